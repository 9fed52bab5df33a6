package api

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Types of directory entries.
const (
	EntryFile      = "FILE"
	EntryDirectory = "DIRECTORY"
	EntrySymlink   = "SYMLINK"
)

// FolderPath is a place inside a folder.
type FolderPath struct {
	// Folder is a name or an id.
	Folder string
	// Path is relative, with forward slashes; "" and "." are the root.
	Path string
}

func (p FolderPath) String() string { return p.Folder + ":" + p.Path }

// Join is the place below p.
func (p FolderPath) Join(name string) FolderPath {
	return FolderPath{Folder: p.Folder, Path: path.Join(p.Path, name)}
}

// IsRoot reports whether p is the whole folder.
func (p FolderPath) IsRoot() bool { return p.Clean() == "." }

// Clean is the path without needless parts, "." for the root.
func (p FolderPath) Clean() string { return path.Clean("./" + p.Path) }

// The bounds of file names, in bytes.
const (
	maxFileName = 255
	maxFilePath = 4096
)

// CheckFolderPath says why a path cannot be one inside a folder, nil when it can.
func CheckFolderPath(p string) error {
	switch {
	case len(p) > maxFilePath:
		return errors.New("the path is longer than 4096 bytes")
	case strings.ContainsRune(p, 0):
		return errors.New("the path contains a NUL byte")
	case !utf8.ValidString(p):
		return errors.New("the name is not valid UTF-8")
	case strings.HasPrefix(p, "/"):
		return errors.New("the path is absolute; paths inside folders are relative")
	}
	for name := range strings.SplitSeq(p, "/") {
		if name == ".." {
			return errors.New(`the path contains ".."`)
		}
		if len(name) > maxFileName {
			return errors.New("a name in it is longer than 255 bytes")
		}
	}
	return nil
}

// FolderEntry is a file, directory or link in a folder.
type FolderEntry struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Size     int64  `json:"size"`
	Mode     string `json:"mode"` // octal, such as 755
	Created  string `json:"created,omitempty"`
	Modified string `json:"modified"` // ISO time
	Target   string `json:"symlink_target,omitempty"`
}

// ModTime is when the content changed last; the zero time when that is not told.
func (e FolderEntry) ModTime() time.Time {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999999"} {
		if t, err := time.Parse(layout, e.Modified); err == nil {
			return t
		}
	}
	return time.Time{}
}

// FolderPage is a part of a directory. Next continues it; "" means that it is complete.
type FolderPage struct {
	Items []FolderEntry `json:"items"`
	// Files is the list as clients before 24.03 read it, of FileInfo.
	Files JSONText `json:"files"`
	Next  string   `json:"next,omitempty"`
	// Truncated says that there is more, but not how to get it.
	Truncated bool `json:"truncated,omitempty"`
}

// ListFolder lists a part of a directory: up to limit entries that follow the cursor after. limit 0 is the
// server's own bound.
func (c *Client) ListFolder(ctx context.Context, at FolderPath, after string, limit int) (FolderPage, error) {
	if err := CheckFolderPath(at.Path); err != nil {
		return FolderPage{}, fmt.Errorf("list %s: %w", at, err)
	}
	q := url.Values{"path": {or(at.Path, ".")}}
	if after != "" {
		q.Set("after", after)
	}
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	out := FolderPage{Items: []FolderEntry{}}
	err := c.folderCall(ctx, at.Folder, "files", request{method: http.MethodGet, query: q}, &out)
	return out, err
}

// listPage is how many entries are asked for at once.
const listPage = 1000

// ErrTruncated ends a listing that the server cut.
var ErrTruncated = errors.New("the server cut the list short")

// FolderEntries lists a directory page by page, to its end. A list that the server cut ends with ErrTruncated.
func (c *Client) FolderEntries(ctx context.Context, at FolderPath) iter.Seq2[FolderEntry, error] {
	return func(yield func(FolderEntry, error) bool) {
		for after := ""; ; {
			page, err := c.ListFolder(ctx, at, after, listPage)
			if err != nil {
				yield(FolderEntry{}, err)
				return
			}
			for _, e := range page.Items {
				if !yield(e, nil) {
					return
				}
			}
			if page.Next == "" || page.Next == after {
				if page.Truncated || page.Next != "" {
					yield(FolderEntry{}, fmt.Errorf("list %s: %w", at, ErrTruncated))
				}
				return
			}
			after = page.Next
		}
	}
}

// PathResult says what became of one path; Msg is nil when there is nothing to say.
type PathResult struct {
	Msg  *string `json:"msg"`
	Item string  `json:"item"`
}

// PathResults say what became of several paths.
type PathResults struct {
	Success []PathResult `json:"success"`
	Failed  []PathResult `json:"failed"`
}

// PathsReply is the answer to requests for several paths, and the data of the problem when some of them failed.
type PathsReply struct {
	Results PathResults `json:"results"`
}

// NewDirectories is the body of POST /folders/{v}/mkdir.
type NewDirectories struct {
	Paths   []string `json:"path"`
	Parents bool     `json:"parents"`
	ExistOK bool     `json:"exist_ok"`
}

// FileMove is the body of POST /folders/{v}/move-file.
type FileMove struct {
	From string `json:"src"`
	To   string `json:"dst"`
}

// FileDeletion is the body of DELETE /folders/{v}/delete-files.
type FileDeletion struct {
	Files     []string `json:"files"`
	Recursive bool     `json:"recursive"`
}

// err is what a request for several paths ends with of which some failed.
func (r PathsReply) err(method, folder, verb string) error {
	failed := r.Results.Failed
	if len(failed) == 0 {
		return nil
	}
	text := fmt.Sprintf("%s: %s", FolderPath{folder, failed[0].Item}, or(deref(failed[0].Msg), "it was refused"))
	if more := len(failed) - 1; more > 0 {
		text += fmt.Sprintf(", and %d more", more)
	}
	return &Error{Status: http.StatusMultiStatus, Op: method + " /folders/" + folder + "/" + verb,
		Problem: Problem{Type: ProblemPrefix + "vfolder-operation-failed", Title: "It was done in part", Msg: text}}
}

// MaxMkdir is how many directories one request makes.
const MaxMkdir = 50

// MakeDirs makes directories inside a folder, with their parents when parents is set. Unless existOK is set, one
// that exists is an error.
func (c *Client) MakeDirs(ctx context.Context, folder string, paths []string, parents, existOK bool) error {
	for _, p := range paths {
		if err := CheckFolderPath(p); err != nil {
			return fmt.Errorf("make directory %s: %w", FolderPath{folder, p}, err)
		}
	}
	for len(paths) > 0 {
		n := min(len(paths), MaxMkdir)
		var out PathsReply
		body := NewDirectories{Paths: paths[:n], Parents: parents, ExistOK: existOK}
		if err := c.folderCall(ctx, folder, "mkdir", request{method: http.MethodPost, json: body}, &out); err != nil {
			return err
		}
		if err := out.err("POST", folder, "mkdir"); err != nil {
			return fmt.Errorf("make directory %w", err)
		}
		paths = paths[n:]
	}
	return nil
}

// MoveFile moves a file or directory inside its folder.
func (c *Client) MoveFile(ctx context.Context, folder, from, to string) error {
	for _, p := range []string{from, to} {
		if err := CheckFolderPath(p); err != nil {
			return fmt.Errorf("move %s: %w", FolderPath{folder, p}, err)
		}
	}
	return c.folderCall(ctx, folder, "move-file", request{method: http.MethodPost, json: FileMove{From: from, To: to}}, nil)
}

// DeleteFiles deletes files, and with recursive directories with all they hold. It cannot be undone.
func (c *Client) DeleteFiles(ctx context.Context, folder string, paths []string, recursive bool) error {
	for _, p := range paths {
		if err := CheckFolderPath(p); err != nil {
			return fmt.Errorf("delete %s: %w", FolderPath{folder, p}, err)
		}
		if (FolderPath{Path: p}).IsRoot() {
			return fmt.Errorf("delete %s: this is the whole folder; TrashFolder moves it into the trash", FolderPath{folder, p})
		}
	}
	var out struct {
		PathsReply
		TaskStarted
	}
	body := FileDeletion{Files: paths, Recursive: recursive}
	if err := c.folderCall(ctx, folder, "delete-files", request{method: http.MethodPost, json: body}, &out); err != nil {
		return err
	}
	if err := out.err("POST", folder, "delete-files"); err != nil {
		return fmt.Errorf("delete %w", err)
	}
	if out.TaskID != "" {
		_, err := c.FollowTask(ctx, out.TaskID, nil)
		return err
	}
	return nil
}

// StatPath tells whether a path is a file or a directory, following links, and the size and time of files.
func (c *Client) StatPath(ctx context.Context, at FolderPath) (FolderEntry, error) {
	_, err := c.ListFolder(ctx, at, "", 1)
	var refused *Error
	switch {
	case err == nil:
		return FolderEntry{Name: path.Base(at.Clean()), Type: EntryDirectory}, nil
	case at.IsRoot(), !errors.As(err, &refused), refused.Status >= 500, IsDenied(err):
		return FolderEntry{}, err
	}
	file, headErr := c.headFile(ctx, at)
	var headRefused *Error
	switch {
	case headErr == nil:
		return file, nil
	case !errors.As(headErr, &headRefused), headRefused.Status >= 500, IsNotFound(headErr), IsDenied(headErr):
		err = headErr
	}
	return FolderEntry{}, err
}

// headFile describes a file without reading it; storage proxies refuse directories.
func (c *Client) headFile(ctx context.Context, at FolderPath) (FolderEntry, error) {
	t, err := c.RequestDownload(ctx, at)
	if err != nil {
		return FolderEntry{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, quickTimeout)
	defer cancel()
	resp, err := c.Redeem(ctx, http.MethodHead, "HEAD of "+at.String(), t, nil, nil, 0)
	if err != nil {
		return FolderEntry{}, err
	}
	defer drain(resp)
	e := FolderEntry{Name: path.Base(at.Clean()), Type: EntryFile, Size: resp.ContentLength}
	if at, err := http.ParseTime(resp.Header.Get("Last-Modified")); err == nil {
		e.Modified = at.Format(time.RFC3339)
	}
	return e, nil
}

// TreeUsage is what a directory holds. Bytes count files at their length.
type TreeUsage struct {
	Files int64 `json:"files"`
	Dirs  int64 `json:"directories"`
	Bytes int64 `json:"bytes"`
}

// DiskUsage counts what is at and below a path by listing it; links are counted and not followed.
func (c *Client) DiskUsage(ctx context.Context, at FolderPath) (TreeUsage, error) {
	var u TreeUsage
	e, err := c.StatPath(ctx, at)
	if err != nil {
		return u, err
	}
	if e.Type == EntryFile {
		return TreeUsage{Files: 1, Bytes: e.Size}, nil
	}
	stack := []FolderPath{at}
	for len(stack) > 0 {
		dir := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		for e, err := range c.FolderEntries(ctx, dir) {
			switch {
			case err != nil:
				return u, err
			case e.Type == EntryDirectory:
				if err := CheckEntryName(e.Name); err != nil {
					return u, fmt.Errorf("list %s: %w", dir, err)
				}
				u.Dirs++
				stack = append(stack, dir.Join(e.Name))
			default:
				u.Files++
				u.Bytes += e.Size
			}
		}
	}
	return u, nil
}

// CheckEntryName refuses names that a listing must not contain: they would lead elsewhere.
func CheckEntryName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("the server sent %q as the name of a file", name)
	}
	return nil
}
