package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"os"

	"berth.dev/berth/api/unpack"
)

// Limits of the manager for one request.
const (
	// MaxUploadFiles is how many files one upload request carries.
	MaxUploadFiles = 20
	// MaxUploadSize is the size in bytes that an uploaded file must stay below.
	MaxUploadSize = 1 << 20
	// MaxDownloadFiles is how many paths one download request names.
	MaxDownloadFiles = 5
)

// FileInfo is a file inside a session, as listed.
type FileInfo struct {
	Name string `json:"filename"`
	// Mode is text such as -rw-r--r--.
	Mode  string  `json:"mode"`
	Size  int64   `json:"size"`
	CTime float64 `json:"ctime"` // seconds since 1970
	MTime float64 `json:"mtime"`
	ATime float64 `json:"atime"`
}

// FileList is a directory inside a session.
type FileList struct {
	Files []FileInfo `json:"files"`
	// Path is the absolute path inside the container.
	Path string `json:"abspath"`
}

// FilesReply is the answer of GET /session/{s}/files.
type FilesReply struct {
	Files  JSONText `json:"files"` // of FileInfo
	Errors string   `json:"errors"`
	Path   string   `json:"abspath"`
}

// ListFiles lists a directory below the session's home.
func (c *Client) ListFiles(ctx context.Context, session, dir string) (FileList, error) {
	var out FilesReply
	r := request{method: http.MethodGet, query: url.Values{"path": {or(dir, ".")}}}
	if err := c.sessionCall(ctx, session, "files", r, &out); err != nil {
		return FileList{}, err
	}
	if out.Errors != "" {
		return FileList{}, fmt.Errorf("list %s in session %s: %s", or(dir, "."), session, out.Errors)
	}
	list := FileList{Path: out.Path, Files: []FileInfo{}}
	if err := json.Unmarshal(out.Files, &list.Files); err != nil {
		return FileList{}, fmt.Errorf("list %s in session %s: read reply: %w", or(dir, "."), session, err)
	}
	return list, nil
}

// Upload is one file to put below the session's home.
type Upload struct {
	// Path is relative, with forward slashes.
	Path string
	// Open returns the content; it is called once.
	Open func() (io.ReadCloser, error)
}

// UploadFiles puts files into a running session, in as many requests as are needed.
func (c *Client) UploadFiles(ctx context.Context, session string, files []Upload) error {
	for _, f := range files {
		if !unpack.Local(f.Path) {
			return fmt.Errorf("upload %s: the path must be relative and stay below the session's home", f.Path)
		}
	}
	for len(files) > 0 {
		n := min(len(files), MaxUploadFiles)
		if err := c.uploadBatch(ctx, session, files[:n]); err != nil {
			return err
		}
		files = files[n:]
	}
	return nil
}

func (c *Client) uploadBatch(ctx context.Context, session string, files []Upload) error {
	pr, pw := io.Pipe()
	form := multipart.NewWriter(pw)
	written := make(chan error, 1)
	go func() {
		err := writeUploads(form, files)
		pw.CloseWithError(err)
		written <- err
	}()
	err := c.sessionCall(ctx, session, "upload", request{
		method: http.MethodPost, body: pr, contentType: form.FormDataContentType(), timeout: slowTimeout,
	}, nil)
	pr.CloseWithError(errUploadOver)
	if werr := <-written; werr != nil && !errors.Is(werr, errUploadOver) && (err == nil || errors.Is(err, werr)) {
		return werr
	}
	return err
}

// errUploadOver stops the writing side when the request has ended early.
var errUploadOver = errors.New("the request has ended")

func writeUploads(form *multipart.Writer, files []Upload) error {
	for _, f := range files {
		h := textproto.MIMEHeader{}
		h.Set("Content-Disposition", `form-data; name="src"; filename="`+url.PathEscape(f.Path)+`"`)
		h.Set("Content-Type", "application/octet-stream")
		part, err := form.CreatePart(h)
		if err != nil {
			return err
		}
		body, err := f.Open()
		if err != nil {
			return fmt.Errorf("upload %s: %w", f.Path, err)
		}
		n, err := io.Copy(part, io.LimitReader(body, MaxUploadSize))
		_ = body.Close()
		if errors.Is(err, errUploadOver) {
			return err
		}
		if err != nil {
			return fmt.Errorf("upload %s: %w", f.Path, err)
		}
		if n == MaxUploadSize {
			return fmt.Errorf("upload %s: files of %d KiB and more cannot be uploaded into a session", f.Path, MaxUploadSize>>10)
		}
	}
	return form.Close()
}

// Extracted is told of each file that a download wrote.
type Extracted func(name string, size int64)

// DownloadFiles copies files and directories of a session below the directory dest.
// Nothing is ever written outside dest, whatever the session sends.
func (c *Client) DownloadFiles(ctx context.Context, session string, paths []string, dest *os.Root, seen Extracted) error {
	for len(paths) > 0 {
		n := min(len(paths), MaxDownloadFiles)
		if err := c.downloadBatch(ctx, session, paths[:n], dest, seen); err != nil {
			return err
		}
		paths = paths[n:]
	}
	return nil
}

func (c *Client) downloadBatch(ctx context.Context, session string, paths []string, dest *os.Root, seen Extracted) error {
	p, err := sessionPath("/session", session, "download")
	if err != nil {
		return err
	}
	resp, err := c.send(ctx, request{method: http.MethodPost, path: p, query: url.Values{"files": paths}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	media, params, err := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	if err != nil || media != "multipart/mixed" || params["boundary"] == "" {
		return fmt.Errorf("download from session %s: the reply is %q, want multipart/mixed", session, resp.Header.Get("Content-Type"))
	}
	parts := multipart.NewReader(resp.Body, params["boundary"])
	left := int64(unpack.Most)
	for range paths {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			break
		}
		if err == nil {
			err = unpack.Tar(part, dest, &left, seen)
		}
		if err != nil {
			return fmt.Errorf("download from session %s: %w", session, err)
		}
	}
	return nil
}
