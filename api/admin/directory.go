package admin

import (
	"context"
	"net/http"

	"berth.dev/berth/api"
)

// Directory is the LDAP directory whose people log in, with the newest comparisons.
type Directory struct {
	Name               string          `json:"name"`
	Domain             string          `json:"domain_name"`
	SyncEvery          string          `json:"sync_every"`
	MostRemoved        int             `json:"most_removed"`
	MostRemovedPercent int             `json:"most_removed_percent"`
	Syncs              []DirectorySync `json:"syncs"`
}

// DirectorySync is a comparison of the directory with the users here. Status is waiting, running, done, stopped or failed.
type DirectorySync struct {
	ID        string    `json:"id"`
	Directory string    `json:"directory"`
	DryRun    bool      `json:"dry_run"`
	AskedBy   string    `json:"asked_by"` // empty for the schedule
	Status    string    `json:"status"`
	Message   string    `json:"message"`
	People    int       `json:"people"`
	Created   int       `json:"created"`
	Changed   int       `json:"changed"`
	Removed   int       `json:"removed"`
	Narrowed  int       `json:"narrowed"` // left with fewer projects or a lesser role
	Refused   int       `json:"refused"`
	Diff      []string  `json:"diff,omitempty"`
	AskedAt   api.Time  `json:"asked_at"`
	EndedAt   *api.Time `json:"ended_at"`
}

// Ended reports whether the comparison has come to an end.
func (s *DirectorySync) Ended() bool { return s.EndedAt != nil }

// GetDirectory tells how the directory does.
func GetDirectory(ctx context.Context, c *api.Client) (Directory, error) {
	var out Directory
	err := c.Do(ctx, http.MethodGet, "/directory", nil, &out)
	return out, err
}

// SyncDirectory asks for a comparison. allow is how many users it may take access from by the caller's word.
func SyncDirectory(ctx context.Context, c *api.Client, dry bool, allow int) (DirectorySync, error) {
	var out DirectorySync
	err := c.Do(ctx, http.MethodPost, "/directory/syncs", map[string]any{"dry_run": dry, "allow_removals": allow}, &out)
	return out, err
}

// GetDirectorySync tells how a comparison went.
func GetDirectorySync(ctx context.Context, c *api.Client, id string) (DirectorySync, error) {
	var out DirectorySync
	err := c.Do(ctx, http.MethodGet, "/directory/syncs/"+id, nil, &out)
	return out, err
}

// AllowRemovals lets an identity provider take access from so many users by SCIM within an hour.
func AllowRemovals(ctx context.Context, c *api.Client, provider string, n int) error {
	return c.Do(ctx, http.MethodPost, "/directory/removals", map[string]any{"provider": provider, "allow_removals": n}, nil)
}
