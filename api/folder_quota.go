package api

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
)

// VolumeInfo is what is known of a volume.
type VolumeInfo struct {
	Backend      string      `json:"backend"`
	Capabilities []string    `json:"capabilities"`
	Usage        VolumeUsage `json:"usage"`
	SFTPGroups   []string    `json:"sftp_scaling_groups"`
	// Permissions are what the caller may do on the host, Problem why it cannot be used now; extensions.
	Permissions []string `json:"permissions"`
	Problem     string   `json:"problem,omitempty"`
}

// VolumeUsage is how full a volume is; nil is unknown.
type VolumeUsage struct {
	Percent *float64 `json:"percentage"`
}

// FolderHosts are the volumes that folders can live on, by proxy:volume. Info is nil, and left out, in the list of all.
type FolderHosts struct {
	Default *string               `json:"default"`
	Allowed []string              `json:"allowed"`
	Info    map[string]VolumeInfo `json:"volume_info,omitzero"`
}

// FolderHost is a volume that folders can live on.
type FolderHost struct {
	Name    string `json:"name"` // proxy:volume
	Default bool   `json:"default"`
	VolumeInfo
}

// FolderHosts lists the hosts on which the caller may do something, by name.
func (c *Client) FolderHosts(ctx context.Context) ([]FolderHost, error) {
	var out FolderHosts
	if err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/hosts"}, &out); err != nil {
		return nil, err
	}
	slices.Sort(out.Allowed)
	hosts := make([]FolderHost, 0, len(out.Allowed))
	for _, name := range out.Allowed {
		hosts = append(hosts, FolderHost{Name: name, Default: out.Default != nil && *out.Default == name, VolumeInfo: out.Info[name]})
	}
	return hosts, nil
}

// HostPermissions are all permissions that policies may give on a volume.
type HostPermissions struct {
	Permissions []string `json:"vfolder_host_permission_list"`
}

// MountReport tells where the parts of a cluster see volumes, by what they mount.
type MountReport struct {
	Manager      MountedVolumes            `json:"manager"`
	StorageProxy MountedVolumes            `json:"storage-proxy"`
	Agents       map[string]MountedVolumes `json:"agents"`
}

// MountedVolumes are the volumes that one part of a cluster sees.
type MountedVolumes struct {
	Success bool     `json:"success"`
	Mounts  []string `json:"mounts"`
	Message string   `json:"message"`
}

// Quota is what the quota scope of a folder holds: all folders of the same user or project on the same host. A
// nil limit is none; a nil use is unknown.
type Quota struct {
	UsedBytes  *int64 `json:"used_bytes"`
	LimitBytes *int64 `json:"limit_bytes"`
	SizeBytes  *int64 `json:"size_bytes"` // the same as LimitBytes
	// LowerBound says that more may be used than UsedBytes. It and the scope are extensions.
	LowerBound bool   `json:"lower_bound"`
	Scope      string `json:"quota_scope_id"`
	Host       string `json:"host"`
}

// QuotaChange is the body of POST /folders/_/quota.
type QuotaChange struct {
	Host  string     `json:"folder_host"`
	ID    string     `json:"id"`
	Input QuotaLimit `json:"input"`
}

// QuotaLimit is a limit in bytes.
type QuotaLimit struct {
	SizeBytes int64 `json:"size_bytes"`
}

// FolderQuota tells the quota that a folder counts in.
func (c *Client) FolderQuota(ctx context.Context, f FolderSummary) (Quota, error) {
	var out Quota
	q := url.Values{"folder_host": {f.Host}, "id": {f.ID}}
	err := c.call(ctx, request{method: http.MethodGet, path: "/folders/_/quota", query: q}, &out)
	return out, err
}

// SetFolderQuota limits the quota scope of a folder to a number of bytes; administrators only.
func (c *Client) SetFolderQuota(ctx context.Context, f FolderSummary, bytes int64) error {
	body := QuotaChange{Host: f.Host, ID: f.ID, Input: QuotaLimit{SizeBytes: bytes}}
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/_/quota", json: body}, nil)
}

// UnsetFolderQuota takes the limit of a folder's quota scope away; administrators only.
func (c *Client) UnsetFolderQuota(ctx context.Context, f FolderSummary) error {
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
	Complete *bool `json:"complete"`
	// At is when they were counted, an ISO time.
	At string `json:"at"`
}

// UsedBytes is the answer of GET /folders/_/used-bytes.
type UsedBytes struct {
	UsedBytes int64 `json:"used_bytes"`
}

// FolderUsage counts the files of a folder; superadmins only. Others read it from Folder.
func (c *Client) FolderUsage(ctx context.Context, f FolderSummary) (FolderUsage, error) {
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
	var out TaskStarted
	err := c.folderCall(ctx, folder, verb, request{method: http.MethodPost, json: t}, &out)
	return out.TaskID, err
}
