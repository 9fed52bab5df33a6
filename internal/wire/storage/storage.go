// Package storage is what managers and storage proxies say to each other: how a proxy announces itself in
// etcd, and the JSON of its manager-facing API.
//
// Version 4 (2026-11-27) names uploads, so that a client that lost its token goes on with one (UploadRequest.Resume).
// Version 3 (2026-11-22) proves announcements (Presence.Proof). A manager takes those of earlier versions as they are, unless it has
// seen a proven one of the same proxy.
// Version 2 (2026-11-22) tells proxies about changed rights (PathRights) and puts them into tokens; both sides understand version 1.
// Version 1 (2026-11-21). Requests are POST with a JSON body wherever the older protocol sent a body with GET;
// proxies accept both. Every request carries the header Auth. Errors are problem+json whose "kind" is a fault.Kind.
package storage

import "time"

// Version is the protocol's version.
const Version = 4

// Auth is the header with the key that a manager shows a proxy.
const Auth = "X-BackendAI-Storage-Auth-Token"

// PresencePath is where the node of a proxy announces itself below the etcd prefix: <prefix>/storage/<proxy>/<node>.
// The value is a Presence; the key ends with the node's lease.
func PresencePath(prefix, proxy, node string) string {
	return prefix + "/storage/" + proxy + "/" + node
}

// Presence is one node of a proxy. Nodes of the same proxy name have the same volumes and the same keys.
type Presence struct {
	Proxy      string    `json:"proxy"`
	Node       string    `json:"node"`
	Version    string    `json:"version"`
	Protocol   int       `json:"protocol"`
	ManagerURL string    `json:"manager_url"` // of the manager-facing API
	ClientURL  string    `json:"client_url"`  // of the client-facing API, as clients reach it
	StartedAt  time.Time `json:"started_at"`
	Volumes    []Volume  `json:"volumes"`
	// SFTPGroups are the resource groups of SFTP sessions near these volumes.
	SFTPGroups []string `json:"sftp_scaling_groups,omitempty"`
	// Proof is what Prove says.
	Proof string `json:"proof,omitempty"`
}

// Volume is a volume as its proxy sees it; health and space are refreshed every few seconds.
type Volume struct {
	Name         string   `json:"name"`
	Backend      string   `json:"backend"`
	Path         string   `json:"path"`
	FSPrefix     string   `json:"fsprefix"`
	Capabilities []string `json:"capabilities"`
	OwnerUID     int      `json:"owner_uid"`
	OwnerGID     int      `json:"owner_gid"`
	// Problem says why the volume cannot be used now; "" when it can.
	Problem       string    `json:"problem,omitempty"`
	CapacityBytes int64     `json:"capacity_bytes,omitempty"`
	UsedBytes     int64     `json:"used_bytes,omitempty"`
	CheckedAt     time.Time `json:"checked_at"`
}

// The paths of the manager-facing API. Those of the described system keep their names; Task and the
// object-store tasks are ours.
const (
	PathVolumes      = "/volumes"           // GET -> VolumeList
	PathScope        = "/quota-scope"       // POST ScopeRequest (make, set), GET -> ScopeReply, PATCH
	PathScopeQuota   = "/quota-scope/quota" // DELETE ScopeRequest: no limit
	PathFolderCreate = "/folder/create"     // POST FolderRequest -> 204
	// POST FolderRequest -> 202 TaskReply; renamed into the trash before the answer
	PathFolderDelete    = "/folder/delete"
	PathFolderClone     = "/folder/clone"                       // POST CloneRequest -> 202 TaskReply
	PathFolderMount     = "/folder/mount"                       // GET FolderRequest -> MountReply
	PathFolderUsage     = "/folder/usage"                       // GET FolderRequest -> UsageReply
	PathFolderUsedBytes = "/folder/used-bytes"                  // GET FolderRequest -> UsageReply
	PathFSUsage         = "/folder/fs-usage"                    // GET FolderRequest -> SpaceReply
	PathMkdir           = "/folder/file/mkdir"                  // POST MkdirRequest -> 200 | 207 | 422 ResultsReply
	PathList            = "/folder/file/list"                   // POST ListRequest -> ListReply
	PathRename          = "/folder/file/rename"                 // POST RenameRequest -> 204
	PathMove            = "/folder/file/move"                   // POST MoveRequest -> 204
	PathFetch           = "/folder/file/fetch"                  // POST PathRequest -> bytes
	PathDownload        = "/folder/file/download"               // POST DownloadRequest -> TokenReply
	PathArchive         = "/folder/file/archive-download-token" // POST ArchiveRequest -> TokenReply
	PathUpload          = "/folder/file/upload"                 // POST UploadRequest -> TokenReply
	PathDelete          = "/folder/file/delete"                 // POST DeleteRequest -> ResultsReply
	PathDeleteAsync     = "/folder/file/delete-async"           // POST DeleteRequest -> 202 TaskReply
	PathImport          = "/folder/object-store/import"         // POST TransferRequest -> 202 TaskReply
	PathExport          = "/folder/object-store/export"         // POST TransferRequest -> 202 TaskReply
	PathTask            = "/task/"                              // GET /task/{id} -> Task; DELETE cancels
	PathMetric          = "/volume/performance-metric"          // GET {volume}
	PathHardware        = "/volume/hwinfo"                      // GET {volume}
)

// FolderRequest names a folder; VFID is a cluster.FolderRef in its text form.
type FolderRequest struct {
	Volume string `json:"volume"`
	VFID   string `json:"vfid"`
	// Mode of a new folder, 0 for 0755; volumes take away the rights of others than its owner.
	Mode uint32 `json:"mode,omitempty"`
	// TimeoutMS bounds a count of usage, 0 for the proxy's own bound.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// TaskID makes asynchronous requests repeatable: the same id is the same task. "" lets the proxy choose.
	TaskID  string `json:"task_id,omitempty"`
	Subpath string `json:"subpath,omitempty"`
}

// ScopeRequest names a quota scope; Options nil leaves the limit alone.
type ScopeRequest struct {
	Volume  string        `json:"volume"`
	Scope   string        `json:"qsid"`
	Options *ScopeOptions `json:"options,omitempty"`
}

// ScopeOptions hold the limit in bytes, -1 for none.
type ScopeOptions struct {
	LimitBytes int64 `json:"limit_bytes"`
}

// ScopeReply is what a scope holds; a null limit is none, a null use is unknown.
type ScopeReply struct {
	UsedBytes  *int64 `json:"used_bytes"`
	LimitBytes *int64 `json:"limit_bytes"`
	LowerBound bool   `json:"lower_bound,omitempty"`
}

// CloneRequest copies a folder on one volume.
type CloneRequest struct {
	SrcVolume string `json:"src_volume"`
	SrcVFID   string `json:"src_vfid"`
	DstVolume string `json:"dst_volume,omitempty"`
	DstVFID   string `json:"dst_vfid"`
	TaskID    string `json:"task_id,omitempty"`
}

// PathRequest names a path inside a folder.
type PathRequest struct {
	Volume  string `json:"volume"`
	VFID    string `json:"vfid"`
	RelPath string `json:"relpath"`
}

// ListRequest asks for a page; Limit 0 is the proxy's own.
type ListRequest struct {
	PathRequest
	After string `json:"after,omitempty"`
	Limit int    `json:"limit,omitempty"`
}

// ListReply is a page; Next is "" at the end.
type ListReply struct {
	Items []Entry `json:"items"`
	Next  string  `json:"next,omitempty"`
}

// Entry is one directory entry.
type Entry struct {
	Name   string    `json:"name"`
	Type   string    `json:"type"` // FILE, DIRECTORY, SYMLINK, OTHER
	Stat   EntryStat `json:"stat"`
	Target string    `json:"symlink_target"`
}

// EntryStat is what is known of an entry; Mode is octal text of the permission bits, such as "755".
type EntryStat struct {
	Mode     string    `json:"mode"`
	Size     int64     `json:"size"`
	Created  time.Time `json:"created"`
	Modified time.Time `json:"modified"`
}

// MkdirRequest makes up to 50 directories.
type MkdirRequest struct {
	Volume   string   `json:"volume"`
	VFID     string   `json:"vfid"`
	RelPaths []string `json:"relpath"` // on the wire a text or a list
	Parents  bool     `json:"parents"`
	ExistOK  bool     `json:"exist_ok"`
}

// ResultsReply says of every path what became of it.
type ResultsReply struct {
	Success []PathResult `json:"success"`
	Failed  []PathResult `json:"failed"`
}

// PathResult is what became of one path; Msg is empty for success.
type PathResult struct {
	Item string `json:"item"`
	Msg  string `json:"msg,omitempty"`
}

// RenameRequest gives the entry at RelPath another name in the same directory.
type RenameRequest struct {
	PathRequest
	NewName string `json:"new_name"`
	IsDir   bool   `json:"is_dir"`
}

// MoveRequest moves an entry inside its folder.
type MoveRequest struct {
	Volume string `json:"volume"`
	VFID   string `json:"vfid"`
	Src    string `json:"src_relpath"`
	Dst    string `json:"dst_relpath"`
}

// DownloadRequest asks for a token that reads one file, or a directory as an archive.
type DownloadRequest struct {
	PathRequest
	Archive bool `json:"archive"`
	Allowed
	Rights *TokenRights `json:"rights,omitempty"`
}

// ArchiveRequest asks for a token that reads several paths as one archive.
type ArchiveRequest struct {
	Volume   string   `json:"volume"`
	VFID     string   `json:"virtual_folder_id"`
	Files    []string `json:"files"`
	Filename string   `json:"filename,omitempty"`
	Allowed
	Rights *TokenRights `json:"rights,omitempty"`
}

// UploadRequest asks for a token that writes one file of a declared size in bytes.
type UploadRequest struct {
	PathRequest
	Size int64 `json:"size"`
	// Resume names an upload that was begun before (TokenReply.Upload); "" begins one, which proxies before version 4 always do.
	Resume string `json:"resume,omitempty"`
	Allowed
	Rights *TokenRights `json:"rights,omitempty"`
}

// Allowed are the addresses and prefixes that a token may be used from: those of the user's own list. None means all. Proxies before
// 2026-11-22 ignore it.
type Allowed struct {
	Clients []string `json:"allowed_client_ips,omitempty"`
}

// TokenReply is a token for the client-facing API.
type TokenReply struct {
	Token string `json:"token"`
	// Upload names the upload of the token; it is no secret.
	Upload string `json:"upload,omitempty"`
}

// DeleteRequest deletes paths.
type DeleteRequest struct {
	Volume    string   `json:"volume"`
	VFID      string   `json:"vfid"`
	RelPaths  []string `json:"relpaths"`
	Recursive bool     `json:"recursive"`
	TaskID    string   `json:"task_id,omitempty"`
}

// TransferRequest copies between a folder and an S3-compatible object store.
type TransferRequest struct {
	PathRequest             // the file or directory inside the folder
	TaskID      string      `json:"task_id,omitempty"`
	Store       ObjectStore `json:"store"`
	Prefix      string      `json:"prefix"` // key prefix, or the key of one object
}

// ObjectStore is how an S3-compatible endpoint is reached. The keys are kept by the proxy only while the task lasts.
type ObjectStore struct {
	Endpoint  string `json:"endpoint"` // https://host[:port]
	Region    string `json:"region,omitempty"`
	Bucket    string `json:"bucket"`
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// MountReply is a folder's absolute path on hosts that have the volume mounted like the proxy.
type MountReply struct {
	Path string `json:"path"`
}

// UsageReply is what a folder holds; Complete is false for a lower bound.
type UsageReply struct {
	FileCount int64     `json:"file_count"`
	UsedBytes int64     `json:"used_bytes"`
	Complete  bool      `json:"complete"`
	At        time.Time `json:"at"`
}

// SpaceReply is what a volume's file system holds.
type SpaceReply struct {
	CapacityBytes int64 `json:"capacity_bytes"`
	UsedBytes     int64 `json:"used_bytes"`
}

// VolumeList is every volume of a proxy.
type VolumeList struct {
	Volumes []Volume `json:"volumes"`
}

// TaskReply names a background task.
type TaskReply struct {
	TaskID string `json:"bgtask_id"`
}

// TaskState is how far a background task is.
type TaskState string

// The states; the last three are final. A task that is unknown answers 404: it never began here, or it ended
// more than a day ago.
const (
	TaskRunning   TaskState = "started"
	TaskDone      TaskState = "done"
	TaskCancelled TaskState = "cancelled"
	TaskFailed    TaskState = "failed"
)

// Task is a background task of a proxy.
type Task struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"` // clone, delete-files, import, export, delete-folder
	State   TaskState `json:"state"`
	Current int64     `json:"current"`
	Total   int64     `json:"total"`
	Message string    `json:"message"`
}

// Problem is the body (application/problem+json) of every error of the manager-facing API.
type Problem struct {
	Type   string `json:"type"` // about:blank
	Title  string `json:"title"`
	Status int    `json:"status"`
	Kind   string `json:"kind"`             // a fault.Kind as text
	Reason string `json:"reason,omitempty"` // of the fault
	Msg    string `json:"msg"`              // what happened, to which object
	Next   string `json:"next,omitempty"`   // what to do now
}
