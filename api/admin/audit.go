// Package admin is the part of the API that administrators of a cluster use. Its functions take the client that they ask with.
package admin

import (
	"context"
	"encoding/json"
	"net/url"
	"strconv"

	"berth.dev/berth/api"
)

// AuditEntry is something that was done to the cluster, or denied.
type AuditEntry struct {
	ID     int64  `json:"id"`
	At     string `json:"at"`
	Action string `json:"action"` // such as user.modify
	Object string `json:"object"`
	Result string `json:"result"` // done or denied
	Reason string `json:"reason,omitempty"`
	// The user who did it, as they were at that time.
	UserID    string `json:"user_id"`
	Email     string `json:"email"`
	Role      string `json:"role"`
	Domain    string `json:"domain_name"`
	AccessKey string `json:"access_key"`
	// ActingFor is the access key on whose behalf it was done, where that is another one.
	ActingFor string `json:"acting_for,omitempty"`
	// Token is the id of the API token that it was done with.
	Token     string `json:"token,omitempty"`
	Address   string `json:"address"`
	RequestID string `json:"request_id"`
	// Means is how somebody proved who they are at a login, or failed to. Attempts is how many refusals alike the entry stands for, where
	// it is more than one: then nobody did it, the user's members are empty, and Object is the account that was tried.
	Means    string        `json:"means,omitempty"`
	Attempts int64         `json:"attempts,omitempty"`
	Changes  []AuditChange `json:"changes"`
	// ChangeCount is how many rows changed; Changes are the first of them.
	ChangeCount int `json:"change_count"`
}

// AuditChange is a row before and after: the columns that differ, or all of one that is new or was deleted. Secrets are not shown.
type AuditChange struct {
	Table  string          `json:"table"`
	Key    string          `json:"key"`
	Before json.RawMessage `json:"before,omitempty"`
	After  json.RawMessage `json:"after,omitempty"`
}

// AuditPage is a page of the audit log.
type AuditPage struct {
	Items      []AuditEntry `json:"items"`
	TotalCount int          `json:"total_count"`
}

// AuditQuery selects entries of the audit log.
type AuditQuery struct {
	Filter string // in the language of lists
	Limit  int    // 1 to 100; 0 is the server's choice
	Offset int
	// After, unless nil, asks for the entries after that id in their order; without it the newest come first.
	After *int64
}

// AuditLog lists what was done and denied: everything for superadmins, what users of the domain did for its administrators.
func AuditLog(ctx context.Context, c *api.Client, q AuditQuery) (AuditPage, error) {
	query := url.Values{}
	for name, n := range map[string]int{"limit": q.Limit, "offset": q.Offset} {
		if n > 0 {
			query.Set(name, strconv.Itoa(n))
		}
	}
	if q.Filter != "" {
		query.Set("filter", q.Filter)
	}
	if q.After != nil {
		query.Set("after", strconv.FormatInt(*q.After, 10))
	}
	var out AuditPage
	err := c.Get(ctx, "/audit", query, &out)
	return out, err
}
