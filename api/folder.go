package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Statuses of folders.
const (
	FolderReady         = "ready"
	FolderPerforming    = "performing"
	FolderCloning       = "cloning"
	FolderMounted       = "mounted"
	FolderError         = "error"
	FolderDeletePending = "delete-pending" // in the trash
	FolderDeleteOngoing = "delete-ongoing"
	FolderDeleteDone    = "delete-complete"
	FolderDeleteError   = "delete-error"
)

// Permissions of folders; each includes the ones before.
const (
	PermReadOnly        = "ro"
	PermReadWrite       = "rw"
	PermReadWriteDelete = "wd"
)

// FolderSummary is what all descriptions of a folder say; creating and cloning answer it.
type FolderSummary struct {
	ID            string  `json:"id"` // 32 hex digits, or dashed
	Name          string  `json:"name"`
	Host          string  `json:"host"` // proxy:volume
	QuotaScope    string  `json:"quota_scope_id"`
	Status        string  `json:"status"`
	UsageMode     string  `json:"usage_mode"` // general, model or data
	Permission    string  `json:"permission"` // of the caller: ro, rw or wd
	MaxSize       int64   `json:"max_size"`   // 0: folders have no limit of their own
	Ownership     string  `json:"ownership_type"`
	User          *string `json:"user"`
	Group         *string `json:"group"`
	Creator       *string `json:"creator"`
	Cloneable     bool    `json:"cloneable"`
	UnmanagedPath *string `json:"unmanaged_path"`
	// TaskID is the background task that fills a clone.
	TaskID string `json:"bgtask_id,omitempty"`
}

// FolderItem is a folder in a list. Numbers that are not known are nil.
type FolderItem struct {
	FolderSummary
	Type       string  `json:"type"` // the same as Ownership: user or group
	UserEmail  *string `json:"user_email"`
	GroupName  *string `json:"group_name"`
	IsOwner    bool    `json:"is_owner"`
	CreatedAt  string  `json:"created_at"`
	MaxFiles   int64   `json:"max_files"` // 0: folders have no limit of their own
	CurSize    *int64  `json:"cur_size"`
	StatusInfo string  `json:"status_info,omitempty"` // why it is in error
}

// Folder is a folder in full.
type Folder struct {
	FolderItem
	NumFiles  *int64  `json:"numFiles"` // the same as Files
	Files     *int64  `json:"num_files"`
	UsedBytes *int64  `json:"used_bytes"`
	Created   string  `json:"created"` // the same as CreatedAt
	LastUsed  *string `json:"last_used"`
	// Complete false says that Files and UsedBytes are lower bounds, SizedAt when they were counted; extensions.
	Complete    *bool    `json:"complete"`
	SizedAt     *string  `json:"sized_at"`
	Permissions []string `json:"permissions"` // of the caller, one for each kind of use
}

// FolderID is the answer of GET /folders/_/id.
type FolderID struct {
	ID   string `json:"id"`
	Name string `json:"name"`
}

// FolderRef is the body of requests about one folder that is named by its id.
type FolderRef struct {
	ID string `json:"id"`
}

// FolderRename is the body of POST /folders/{v}/rename.
type FolderRename struct {
	NewName string `json:"new_name"`
}

// FolderFilter selects folders.
type FolderFilter struct {
	// All shows the folders of everybody, to administrators.
	All bool
	// Group selects the folders of one project, by its id.
	Group string
	// Limit is the most folders to return; 0 = all, up to 100,000.
	Limit int
}

// Folders lists the folders that the caller can use, those in the trash among them.
func (c *Client) Folders(ctx context.Context, f FolderFilter) ([]FolderItem, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = maxListed
	}
	all, known := []FolderItem{}, map[string]bool{}
	for len(all) < limit {
		q := url.Values{"limit": {strconv.Itoa(folderPage)}, "offset": {strconv.Itoa(len(all))}}
		if f.All {
			q.Set("all", "true")
		}
		if f.Group != "" {
			q.Set("group_id", f.Group)
		}
		var page []FolderItem
		if err := c.call(ctx, request{method: http.MethodGet, path: "/folders", query: q}, &page); err != nil {
			return nil, err
		}
		fresh := 0
		for _, folder := range page {
			// Servers that know no pages send everything every time.
			if !known[folder.ID] {
				known[folder.ID] = true
				all, fresh = append(all, folder), fresh+1
			}
		}
		if fresh == 0 || len(page) != folderPage {
			break
		}
	}
	return all[:min(len(all), limit)], nil
}

// folderPage is how many folders are asked for at once.
const folderPage = 1000

// NewFolder is the body of POST /folders. Zero values take the manager's defaults.
type NewFolder struct {
	// Name has up to 64 characters of letters, digits, '_', '-' and '.'.
	Name       string `json:"name"`
	Host       string `json:"host,omitempty"`
	UsageMode  string `json:"usage_mode,omitempty"`
	Permission string `json:"permission,omitempty"`
	// Group makes a project folder; it is the project's name or id.
	Group     string `json:"group,omitempty"`
	Cloneable bool   `json:"cloneable"`
}

// CreateFolder makes a folder.
func (c *Client) CreateFolder(ctx context.Context, n NewFolder) (FolderSummary, error) {
	var out FolderSummary
	err := c.call(ctx, request{method: http.MethodPost, path: "/folders", json: n, timeout: slowTimeout}, &out)
	return out, err
}

// folderPath builds /folders/{v}/verb.
func folderPath(folder, verb string) (string, error) {
	switch folder {
	case "", "_", ".", "..":
		return "", fmt.Errorf("%q is not the name or id of a folder", folder)
	}
	p := "/folders/" + url.PathEscape(folder)
	if verb != "" {
		p += "/" + verb
	}
	return p, nil
}

// folderCall is call on a path of a folder.
func (c *Client) folderCall(ctx context.Context, folder, verb string, r request, out any) error {
	p, err := folderPath(folder, verb)
	if err != nil {
		return err
	}
	r.path = p
	if r.timeout == 0 {
		r.timeout = slowTimeout // most of these wait for a storage proxy
	}
	return c.call(ctx, r, out)
}

// Folder describes a folder by name or id. Its numbers are counted when they are asked for, or recently.
func (c *Client) Folder(ctx context.Context, folder string) (Folder, error) {
	var out Folder
	err := c.folderCall(ctx, folder, "", request{method: http.MethodGet}, &out)
	return out, err
}

// RenameFolder gives a folder another name.
func (c *Client) RenameFolder(ctx context.Context, folder, name string) error {
	return c.folderCall(ctx, folder, "rename", request{method: http.MethodPost, json: FolderRename{NewName: name}}, nil)
}

// FolderOptions are what UpdateFolder changes; nil and "" leave things as they are.
type FolderOptions struct {
	Cloneable  *bool  `json:"cloneable,omitempty"`
	Permission string `json:"permission,omitempty"`
}

// UpdateFolder changes options of a folder.
func (c *Client) UpdateFolder(ctx context.Context, folder string, o FolderOptions) error {
	return c.folderCall(ctx, folder, "update-options", request{method: http.MethodPost, json: o}, nil)
}

// TrashFolder moves a folder into the trash, from where RestoreFolder brings it back.
func (c *Client) TrashFolder(ctx context.Context, folder string) (Folder, error) {
	f, err := c.Folder(ctx, folder)
	if err != nil {
		return f, err
	}
	return f, c.call(ctx, request{method: http.MethodDelete, path: "/folders", json: FolderRef{ID: f.ID}}, nil)
}

// RestoreFolder brings a folder back from the trash, by its id.
func (c *Client) RestoreFolder(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/restore-from-trash-bin", json: FolderRef{ID: id}}, nil)
}

// PurgeFolder deletes a folder of the trash for good, by its id.
func (c *Client) PurgeFolder(ctx context.Context, id string) error {
	return c.call(ctx, request{method: http.MethodPost, path: "/folders/delete-from-trash-bin", json: FolderRef{ID: id}}, nil)
}

// TrashedFolder finds a folder in the trash, or one whose deletion failed, by name or id. Those in the trash come first; a
// name can belong to several.
func (c *Client) TrashedFolder(ctx context.Context, folder string) (FolderItem, error) {
	var all []FolderItem
	var err error
	if isUUID(folder) { // may be another user's, for administrators
		var one Folder
		one, err = c.Folder(ctx, folder)
		all = []FolderItem{one.FolderItem}
	} else {
		all, err = c.Folders(ctx, FolderFilter{})
	}
	if err != nil {
		return FolderItem{}, err
	}
	var found, undeleted []FolderItem
	var live bool
	for _, f := range all {
		switch {
		case f.Name != folder && !sameID(f.ID, folder):
		case f.Status == FolderDeletePending:
			found = append(found, f)
		case f.Status == FolderDeleteError:
			undeleted = append(undeleted, f)
		default:
			live = true
		}
	}
	if len(found) == 0 {
		found = undeleted
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		ids := make([]string, len(found))
		for i, f := range found {
			ids[i] = f.ID
		}
		return FolderItem{}, &Error{Status: http.StatusConflict, Op: "GET /folders", Problem: Problem{
			Type: ProblemPrefix + SlugInvalidParams, Title: "Several folders",
			Msg:  fmt.Sprintf("%d folders called %s are in the trash: %s", len(found), folder, strings.Join(ids, ", ")),
			Next: "name one by its id",
		}}
	case live:
		return FolderItem{}, &Error{Status: http.StatusConflict, Op: "GET /folders", Problem: Problem{
			Type: ProblemPrefix + SlugInvalidParams, Title: "Not in the trash",
			Msg: fmt.Sprintf("folder %s is not in the trash", folder), Next: "berth folder rm " + folder + " puts it there",
		}}
	}
	return FolderItem{}, notFound("GET /folders", "there is no folder %s in the trash", folder)
}

// sameID compares ids, dashed or not.
func sameID(a, b string) bool {
	bare := func(s string) string { return strings.ToLower(strings.ReplaceAll(s, "-", "")) }
	return isUUID(a) && isUUID(b) && bare(a) == bare(b)
}

// CloneOptions say what becomes of a clone; "" takes what the original has.
type CloneOptions struct {
	Host       string `json:"target_host,omitempty"`
	UsageMode  string `json:"usage_mode,omitempty"`
	Permission string `json:"permission,omitempty"`
	Cloneable  bool   `json:"cloneable"`
}

// CloneRequest is the body of POST /folders/{v}/clone.
type CloneRequest struct {
	Name string `json:"target_name"`
	CloneOptions
}

// CloneFolder copies a folder to a new one of the caller. The reply's TaskID names the background task that
// copies the files, which TaskEvents follows.
func (c *Client) CloneFolder(ctx context.Context, folder, name string, o CloneOptions) (FolderSummary, error) {
	body := CloneRequest{Name: name, CloneOptions: o}
	var out FolderSummary
	err := c.folderCall(ctx, folder, "clone", request{method: http.MethodPost, json: body}, &out)
	return out, err
}

// FollowTask follows a background task to its end and tells step of every progress; step may be nil. It returns
// the last message. A task that failed or was cancelled is a *TaskError, one that succeeded in part too.
func (c *Client) FollowTask(ctx context.Context, taskID string, step func(TaskEvent)) (string, error) {
	return followTask(taskID, c.TaskEvents(ctx, taskID), step)
}

func followTask(taskID string, events iter.Seq2[Event, error], step func(TaskEvent)) (string, error) {
	for e, err := range events {
		if err != nil {
			return "", err
		}
		t, err := e.Task()
		if err != nil {
			return "", err
		}
		switch e.Name {
		case EventTaskUpdated:
			if step != nil {
				step(t)
			}
		case EventTaskDone:
			return t.Message, nil
		case EventTaskPartial, EventTaskCancelled, EventTaskFailed:
			return t.Message, &TaskError{ID: taskID, Event: e.Name, Message: t.Message}
		}
	}
	return "", errors.New("task " + taskID + ": the manager stopped telling before the end")
}

// TaskError is a background task that did not end well.
type TaskError struct {
	ID      string
	Event   string // EventTaskFailed, EventTaskCancelled or EventTaskPartial
	Message string
}

func (e *TaskError) Error() string {
	what := map[string]string{EventTaskPartial: "was done in part", EventTaskCancelled: "was cancelled"}[e.Event]
	return strings.TrimSuffix("the task "+or(what, "failed")+": "+e.Message, ": ")
}
