package storage

import "time"

// PathRights is where managers tell a storage proxy whose rights changed: POST RightsRequest -> RightsReply.
//
// Every user, every folder and every pair of both has an epoch, which grows whenever somebody may do less than before. A token for
// clients carries the epochs of the moment in which its rights were decided about.
const PathRights = "/rights"

// RightsKept is how long managers tell of a changed epoch. No token lives that long.
const RightsKept = 8 * 24 * time.Hour

// MaxEpochs bounds the epochs of one RightsRequest.
const MaxEpochs = 20_000

// TokenRights are what a token's rights rest on.
type TokenRights struct {
	User        string `json:"user"`
	UserEpoch   int64  `json:"user_epoch,omitempty"`
	FolderEpoch int64  `json:"folder_epoch,omitempty"`
	ShareEpoch  int64  `json:"share_epoch,omitempty"`
}

// UserSubject, FolderSubject and ShareSubject name what has an epoch. A share is a user's own permission for a folder.
func UserSubject(user string) string { return "user:" + user }

// FolderSubject names a folder.
func FolderSubject(folder string) string { return "folder:" + folder }

// ShareSubject names a user's own permission for a folder.
func ShareSubject(user, folder string) string { return "share:" + user + ":" + folder }

// RightsRequest tells epochs. A manager sends all of RightsKept first, in several requests when they are many, then what changes, and
// every few seconds that nothing did. Boot is the one of the last reply, "" before the first.
type RightsRequest struct {
	Boot   string           `json:"boot"`
	Epochs map[string]int64 `json:"epochs,omitempty"`
	// Complete says that with this request the proxy knows everything as it was AgeMS milliseconds ago.
	Complete bool  `json:"complete"`
	AgeMS    int64 `json:"age_ms"`
}

// RightsReply names the life of the proxy. Again asks for all epochs, because the proxy has been started since.
type RightsReply struct {
	Boot  string `json:"boot"`
	Again bool   `json:"again,omitempty"`
}
