package httpapi

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// The wire's bounds of uploads and downloads. A tar upload, our extension, has only the runner's own.
const (
	maxUploadFiles   = 20
	maxUploadFile    = 1 << 20
	maxDownloadFiles = 5
)

// patientBody moves the deadline of a long body with every read, so that only a stalled client is given up.
type patientBody struct {
	io.Reader
	rc *http.ResponseController
}

func (b patientBody) Read(p []byte) (int, error) {
	_ = b.rc.SetReadDeadline(time.Now().Add(bodyPatience)) // without support the client's own patience counts
	return b.Reader.Read(p)
}

// upload takes the official clients' multipart form or, as our extension, a tar stream.
func (a *API) upload(c *call) error {
	ref, who, _, err := c.refOwner()
	if err != nil {
		return err
	}
	mediatype, attrs, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || mediatype != "multipart/form-data" && mediatype != run.ContentTar {
		return fault.Invalidf("an upload has content type %.80q", c.r.Header.Get("Content-Type")).
			WithNext("send multipart/form-data, or a tar stream as %s", run.ContentTar)
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	rc := http.NewResponseController(c.w.ResponseWriter)
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	body := patientBody{c.r.Body, rc}
	if mediatype == run.ContentTar {
		if _, err := client.Upload(c.ctx(), run.ContentTar, body); err != nil {
			return err
		}
		return c.nothing()
	}
	// The form becomes a tar on the way, one small file in memory at a time.
	pr, pw := io.Pipe()
	converted := make(chan error, 1)
	go func() {
		err := tarOfForm(pw, multipart.NewReader(body, attrs["boundary"]), a.now())
		pw.CloseWithError(err)
		converted <- err
	}()
	_, err = client.Upload(c.ctx(), run.ContentTar, pr)
	pr.CloseWithError(io.ErrClosedPipe) // the converter must not wait for a reader that left
	if cerr := <-converted; cerr != nil && !errors.Is(cerr, io.ErrClosedPipe) {
		return cerr // what was wrong with the form caused the failure of the upload
	}
	if err != nil {
		return err
	}
	return c.nothing()
}

// tarOfForm writes the files of a form as a tar.
func tarOfForm(w io.Writer, form *multipart.Reader, now time.Time) error {
	t := tar.NewWriter(w)
	for n := 0; ; n++ {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			if n == 0 {
				return fault.Invalidf("the upload holds no file")
			}
			return t.Close()
		}
		if err != nil {
			return fault.Invalidf("the upload is not a readable form").WithCause(err)
		}
		if n == maxUploadFiles {
			return fault.Invalidf("the upload holds more than %d files", maxUploadFiles).WithNext("upload them in several requests")
		}
		// FileName would cut the directories off.
		_, attrs, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil {
			return fault.Invalidf("a part of the upload has no readable Content-Disposition").WithCause(err)
		}
		name, err := uploadPath(unquoted(attrs["filename"]))
		if err != nil {
			return err
		}
		data, err := io.ReadAll(io.LimitReader(part, maxUploadFile+1))
		if err != nil {
			return fault.Invalidf("the upload broke off in file %q", name).WithCause(err)
		}
		if len(data) > maxUploadFile {
			return fault.Invalidf("file %q is larger than 1 MiB", name).WithNext("use `berth session upload`, which has no such bound")
		}
		head := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: 0o644, ModTime: now, Format: tar.FormatPAX}
		if err := t.WriteHeader(head); err != nil {
			return fmt.Errorf("pass on file %q: %w", name, err)
		}
		if _, err := t.Write(data); err != nil {
			return fmt.Errorf("pass on file %q: %w", name, err)
		}
	}
}

// unquoted takes the percent-encoding off a file name: the official clients send up%2Fdata.txt. A name that is
// not well encoded means itself.
func unquoted(name string) string {
	if plain, err := url.PathUnescape(name); err == nil {
		return plain
	}
	return name
}

// uploadPath checks the path of an uploaded file early; the runner confines it for good.
func uploadPath(name string) (string, error) {
	bad := func(why string) (string, error) {
		return "", fault.Invalidf("the path %.200q of an uploaded file is not allowed: %s", name, why).
			WithNext("use a path below the session's home directory")
	}
	clean := path.Clean(name)
	switch {
	case name == "" || clean == ".":
		return bad("it is empty")
	case strings.ContainsRune(name, 0):
		return bad("it holds a zero byte")
	case clean == ".." || strings.HasPrefix(clean, "../"):
		return bad("it leaves the home directory")
	case strings.HasPrefix(clean, "/"):
		if rest, ok := strings.CutPrefix(clean, "/home/work/"); ok {
			return rest, nil
		}
		return bad("it is absolute")
	case len(clean) > 4096:
		return bad("it is too long")
	}
	return clean, nil
}

// download answers one tar for each file as parts of a multipart reply.
func (a *API) download(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	files := p.List("files|file")
	switch {
	case len(files) == 0:
		p.Fail("files", "is required")
	case len(files) > maxDownloadFiles:
		p.Fail("files", "may name at most %d files", maxDownloadFiles)
	}
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	// All are opened before the reply begins, so that a missing one is a clear error.
	tars := make([]io.ReadCloser, 0, len(files))
	defer func() {
		for _, t := range tars {
			t.Close()
		}
	}()
	for _, f := range files {
		t, err := client.Download(c.ctx(), f)
		if err != nil {
			return err
		}
		tars = append(tars, t)
	}
	w := multipart.NewWriter(c.w)
	c.w.Header().Set("Content-Type", "multipart/mixed; boundary="+w.Boundary())
	c.w.WriteHeader(http.StatusOK)
	for i, t := range tars {
		part, err := w.CreatePart(textproto.MIMEHeader{
			"Content-Type":        {"application/octet-stream"},
			"Content-Encoding":    {"identity"},
			"Content-Disposition": {mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(files[i]) + ".tar"})},
		})
		if err == nil {
			_, err = io.Copy(part, t)
		}
		if err != nil {
			c.w.note = "broke off: " + err.Error()
			panic(http.ErrAbortHandler)
		}
	}
	if err := w.Close(); err != nil {
		return errClientGone
	}
	return nil
}

// downloadSingle answers the tar of one file itself.
func (a *API) downloadSingle(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	file := p.Need("file|path")
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	t, err := client.Download(c.ctx(), file)
	if err != nil {
		return err
	}
	defer t.Close()
	return c.stream(run.ContentTar, t)
}

// files lists a directory; the list itself is a JSON text inside of JSON.
func (a *API) files(c *call) error {
	ref, who, p, err := c.refOwner()
	if err != nil {
		return err
	}
	dir := p.Text("path", ".")
	if err := p.Err(); err != nil {
		return err
	}
	client, _, err := a.runner(c.ctx(), c.actor, ref, who)
	if err != nil {
		return err
	}
	list, err := client.Files(c.ctx(), dir)
	if err != nil {
		return err
	}
	files := make([]api.FileInfo, len(list.Entries))
	for i, e := range list.Entries {
		files[i] = api.FileInfo{Name: e.Filename, Mode: e.Mode, Size: e.Size, CTime: e.Ctime, MTime: e.Mtime, ATime: e.Atime}
	}
	return c.ok(api.FilesReply{Files: api.TextOf(files), Path: list.Abspath})
}
