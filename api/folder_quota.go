package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
)

// FolderHost is a volume that folders can live on.
type FolderHost struct {
	Name         string          `json:"name"` // proxy:volume
	Default      bool            `json:"default"`
	Backend      string          `json:"backend,omitempty"`
	Capabilities []string        `json:"capabilities,omitempty"`
	Usage        json.RawMessage `json:"usage,omitempty"`
	SFTPGroups   []string        `json:"sftp_scaling_groups,omitempty"`
	// Permissions are what the caller may do on the host, Problem why it cannot be used now; extensions.
	Permissions []string `json:"permissions,omitempty"`
	Problem     string   `json:"problem,omitempty"`
}

// UsedPercent is how full the volume is, when that is told.
func (h FolderHost) UsedPercent() (float64, bool) {
	var u struct {
		Percent *float64 `json:"percentage"`
	}
	if json.Unmarshal(h.Usage, &u) != nil || u.Percent == nil {
		return 0, false
	}
	return *u.Percent, true
}

// FolderHosts lists the hosts on which the caller may do something, by name.
func (c *Client) FolderHosts(ctx context.Context) ([]FolderHost, error) {
	var out struct {
		Default *string               `json:"default"`
		Allowed []string              `json:"allowed"`
		Info    map[string]FolderHost `json:"volume_info"`
	}
	if err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/hosts"}, &out); err != nil {
		return nil, err
	}
	slices.Sort(out.Allowed)
	hosts := make([]FolderHost, 0, len(out.Allowed))
	for _, name := range out.Allowed {
		h := out.Info[name]
		h.Name, h.Default = name, out.Default != nil && *out.Default == name
		hosts = append(hosts, h)
	}
	return hosts, nil
}

// Quota is what the quota scope of a folder holds: all folders of the same user or project on the same host. A
// nil limit is none; a nil use is unknown.
type Quota struct {
	UsedBytes  *int64 `json:"used_bytes"`
	LimitBytes *int64 `json:"limit_bytes"`
	// LowerBound says that more may be used than UsedBytes. It and the scope are extensions.
	LowerBound bool   `json:"lower_bound,omitempty"`
	Scope      string `json:"quota_scope_id,omitempty"`
	Host       string `json:"host,omitempty"`
}

// FolderQuota tells the quota that a folder counts in.
func (c *Client) FolderQuota(ctx context.Context, f Folder) (Quota, error) {
	var out Quota
	q := url.Values{"folder_host": {f.Host}, "id": {f.ID}}
	err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/quota", query: q}, &out)
	return out, err
}

// SetFolderQuota limits the quota scope of a folder to a number of bytes; administrators only.
func (c *Client) SetFolderQuota(ctx context.Context, f Folder, bytes int64) error {
	body := map[string]any{"folder_host": f.Host, "id": f.ID, "input": map[string]any{"size_bytes": bytes}}
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/_/quota", json: body}, nil)
}

// UnsetFolderQuota takes the limit of a folder's quota scope away; administrators only.
func (c *Client) UnsetFolderQuota(ctx context.Context, f Folder) error {
	const q = `mutation($host:String!,$scope:String!){unset_quota_scope(storage_host_name:$host,` +
		`quota_scope_id:$scope){quota_scope{quota_scope_id}}}`
	var out json.RawMessage
	return c.GraphQL(ctx, q, map[string]any{"host": f.Host, "scope": f.QuotaScope}, &out)
}

// FolderUsage is what a folder holds, counted anew.
type FolderUsage struct {
	Files     int64 `json:"file_count"`
	UsedBytes int64 `json:"used_bytes"`
	// Complete false says that the numbers are lower bounds; nil that the server does not tell.
	Complete *bool `json:"complete,omitempty"`
}

// FolderUsage counts the files of a folder; superadmins only. Others read it from Folder.
func (c *Client) FolderUsage(ctx context.Context, f Folder) (FolderUsage, error) {
	var out FolderUsage
	q := url.Values{"folder_host": {f.Host}, "id": {f.ID}}
	err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/usage", query: q, timeout: slowTimeout}, &out)
	return out, err
}

// ObjectStore is how an S3-compatible endpoint is reached.
type ObjectStore struct {
	Endpoint  string `json:"endpoint"` // https://host[:port]
	Region    string `json:"region,omitempty"`
	Bucket    string `json:"bucket"`
	AccessKey string `json:"access_key"`
	SecretKey string `json:"secret_key"`
}

// ObjectTransfer is a copy between a folder and an object store.
type ObjectTransfer struct {
	Store ObjectStore `json:"store"`
	// Prefix of the keys, or the key of one object.
	Prefix string `json:"prefix"`
	// Path inside the folder; "" is its root.
	Path string `json:"path"`
}

// ImportObjects copies objects into a folder. It returns the id of the background task.
func (c *Client) ImportObjects(ctx context.Context, folder string, t ObjectTransfer) (string, error) {
	return c.objects(ctx, folder, "import", t)
}

// ExportObjects copies files of a folder to an object store. It returns the id of the background task.
func (c *Client) ExportObjects(ctx context.Context, folder string, t ObjectTransfer) (string, error) {
	return c.objects(ctx, folder, "export", t)
}

func (c *Client) objects(ctx context.Context, folder, verb string, t ObjectTransfer) (string, error) {
	t.Path = or(t.Path, ".")
	var out struct {
		TaskID string `json:"bgtask_id"`
	}
	err := c.folderCall(ctx, folder, verb, request{method: http.MethodPost, json: t}, &out)
	return out.TaskID, err
}
