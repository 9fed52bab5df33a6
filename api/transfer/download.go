package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/api"
)

// fileVersion tells one content of a remote file from another.
type fileVersion struct {
	ETag     string `json:"etag,omitempty"`     // strong ones only
	Modified string `json:"modified,omitempty"` // Last-Modified
	// Settled says that Modified was a second old or more, so that it cannot stand for two contents.
	Settled bool  `json:"settled,omitempty"`
	Size    int64 `json:"size"`
}

func versionOf(resp *http.Response, size int64) fileVersion {
	v := fileVersion{Modified: resp.Header.Get("Last-Modified"), Size: size}
	if tag := resp.Header.Get("ETag"); tag != "" && !strings.HasPrefix(tag, "W/") {
		v.ETag = tag
	}
	now, err := http.ParseTime(resp.Header.Get("Date"))
	if at := v.modTime(); err == nil && !at.IsZero() {
		v.Settled = now.Sub(at) >= time.Second
	}
	return v
}

func (v fileVersion) modTime() time.Time {
	t, err := http.ParseTime(v.Modified)
	if err != nil {
		return time.Time{}
	}
	return t
}

// condition is what If-Range asks for; "" when the version cannot be told from others.
func (v fileVersion) condition() string {
	if v.ETag != "" {
		return v.ETag
	}
	if v.Settled {
		return v.Modified
	}
	return ""
}

func (v fileVersion) same(o fileVersion) bool {
	return v.ETag == o.ETag && v.Modified == o.Modified && v.Size == o.Size
}

// download is one file on its way out of a folder.
type download struct {
	c      mover
	from   api.FolderPath
	o      Options
	label  string
	ticket api.Ticket
	// version is that of the bytes read so far; known says that there is one.
	version fileVersion
	known   bool
	begun   int
	retry   retrier
	// quiet keeps bytes from being told.
	quiet bool
}

func (c mover) newDownload(label string, from api.FolderPath, o Options) *download {
	from.Path = from.Clean()
	return &download{c: c, from: from, o: o, label: label, retry: retrier{o: o, path: label}}
}

func (d *download) op() string { return "download of " + d.from.String() }

// begin asks for a new ticket.
func (d *download) begin(ctx context.Context) error {
	if err := api.CheckFolderPath(d.from.Path); err != nil {
		return local(err)
	}
	return d.retry.try(ctx, func() (err error) {
		d.ticket, err = d.c.RequestDownload(ctx, d.from)
		return err
	})
}

// copy writes the bytes from offset to the end into w and goes on after broken connections. It returns how far
// it came. ErrChanged means that the file is another one than that of the bytes before.
func (d *download) copy(ctx context.Context, offset, end int64, w func(version fileVersion) (io.Writer, error)) (int64, error) {
	if d.ticket.Token == "" {
		if err := d.begin(ctx); err != nil {
			return offset, err
		}
	}
	for {
		n, done, err := d.once(ctx, offset, end, w)
		offset += n
		if n > 0 {
			d.retry.moved()
		}
		if done {
			return offset, nil
		}
		if ticketOver(err) {
			// A file that is gone is gone for a new token as well, and asking for it says so in better words.
			if d.begun++; d.begun > renewals {
				return offset, err
			}
			if err := d.begin(ctx); err != nil {
				return offset, err
			}
			continue
		}
		if err := d.retry.wait(ctx, err); err != nil {
			return offset, err
		}
	}
}

// once is one request. It returns how many bytes it wrote and whether the end is reached.
func (d *download) once(ctx context.Context, offset, end int64, w func(fileVersion) (io.Writer, error)) (int64, bool, error) {
	if d.known && end < 0 {
		end = d.version.Size
	}
	if d.known && offset >= end {
		return 0, true, nil
	}
	ctx, dog, stop := watch(ctx)
	defer stop()
	header := http.Header{}
	if offset > 0 || end >= 0 && (!d.known || end < d.version.Size) {
		last := ""
		if end >= 0 {
			last = strconv.FormatInt(end-1, 10)
		}
		header["Range"] = []string{fmt.Sprintf("bytes=%d-%s", offset, last)}
		if d.known {
			condition := d.version.condition()
			if condition == "" {
				return 0, false, ErrChanged // It may have; there is no way to ask.
			}
			header["If-Range"] = []string{condition}
		}
	}
	resp, err := d.c.Redeem(ctx, http.MethodGet, d.op(), d.ticket, header, nil, 0)
	var refused *api.Error
	if errors.As(err, &refused) && refused.Status == http.StatusRequestedRangeNotSatisfiable {
		return 0, false, ErrChanged
	}
	if err != nil {
		return 0, false, err
	}
	defer resp.Body.Close()
	start, got, err := readRange(resp)
	if err != nil {
		return 0, false, local(fmt.Errorf("%s: %w", d.op(), err))
	}
	if d.known && !d.version.same(got) || start > offset {
		return 0, false, ErrChanged
	}
	if !d.known {
		d.version, d.known = got, true
	}
	if end < 0 || end > got.Size {
		end = got.Size
	}
	if offset >= end {
		_, err := w(got) // The place for an empty file.
		return 0, err == nil, err
	}
	// A server without ranges sends everything again.
	if _, err := io.CopyN(io.Discard, resp.Body, offset-start); err != nil {
		return 0, false, err
	}
	to, err := w(got)
	if err != nil {
		return 0, false, err
	}
	body := &meter{resp.Body, func(n int) {
		dog.alive()
		if !d.quiet {
			d.o.tell(Bytes, d.label, int64(n), "")
		}
	}}
	n, err := copyLocal(to, io.LimitReader(body, end-offset))
	if err == nil && n < end-offset {
		err = io.ErrUnexpectedEOF
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		var here *LocalError
		if !errors.As(err, &here) {
			err = cause
		}
	}
	return n, err == nil, err
}

// copyLocal is io.Copy whose failures to write are of this machine.
func copyLocal(w io.Writer, r io.Reader) (int64, error) {
	buf := make([]byte, 128<<10)
	var written int64
	for {
		n, err := r.Read(buf)
		if n > 0 {
			m, werr := w.Write(buf[:n])
			written += int64(m)
			if werr != nil {
				return written, local(werr)
			}
		}
		if errors.Is(err, io.EOF) {
			return written, nil
		}
		if err != nil {
			return written, err
		}
	}
}

// readRange tells where a reply starts and which version of the file it is of.
func readRange(resp *http.Response) (start int64, v fileVersion, err error) {
	if resp.StatusCode != http.StatusPartialContent {
		if resp.ContentLength < 0 {
			return 0, v, errors.New("the storage proxy did not say how long the file is")
		}
		return 0, versionOf(resp, resp.ContentLength), nil
	}
	var last, total int64
	text := resp.Header.Get("Content-Range")
	if n, err := fmt.Sscanf(text, "bytes %d-%d/%d", &start, &last, &total); err != nil || n != 3 || start < 0 || last < start ||
		total <= last {
		return 0, v, fmt.Errorf("the storage proxy answered Content-Range %q", text)
	}
	return start, versionOf(resp, total), nil
}

// headFile tells the version of a file without reading it. Directories are refused by the server.
func (c mover) headFile(ctx context.Context, at api.FolderPath) (fileVersion, error) {
	d := c.newDownload("", at, Options{})
	if err := d.begin(ctx); err != nil {
		return fileVersion{}, err
	}
	var v fileVersion
	err := d.retry.try(ctx, func() error {
		ctx, _, stop := watch(ctx)
		defer stop()
		resp, err := c.Redeem(ctx, http.MethodHead, d.op(), d.ticket, nil, nil, 0)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.ContentLength < 0 {
			return local(errors.New("the storage proxy did not say how long the file is"))
		}
		v = versionOf(resp, resp.ContentLength)
		return nil
	})
	return v, err
}

// sumFile reads a remote file and returns its SHA-256 and length.
func (c mover) sumFile(ctx context.Context, at api.FolderPath, o Options) ([]byte, int64, error) {
	for range renewals {
		d := c.newDownload("", at, o)
		d.quiet = true
		h := sha256.New()
		n, err := d.copy(ctx, 0, -1, func(fileVersion) (io.Writer, error) { return h, nil })
		if errors.Is(err, ErrChanged) {
			if err := o.pause(ctx, time.Second); err != nil {
				return nil, 0, err
			}
			continue
		}
		return h.Sum(nil), n, err
	}
	return nil, 0, ErrChanged
}

// ReadFile writes a file of a folder to w, going on after broken connections. A file that changes meanwhile ends
// with ErrChanged.
func ReadFile(ctx context.Context, client *api.Client, from api.FolderPath, w io.Writer, o Options) error {
	c := mover{client}
	d := c.newDownload("", from, o)
	if _, err := d.copy(ctx, 0, -1, func(fileVersion) (io.Writer, error) { return w, nil }); err != nil {
		return fmt.Errorf("read %s: %w", from, err)
	}
	return nil
}

// RemoteContent is a file of a folder as the content of an upload, read through this machine.
func RemoteContent(ctx context.Context, client *api.Client, from api.FolderPath, o Options) (Content, error) {
	c := mover{client}
	from.Path = from.Clean()
	v, err := c.headFile(ctx, from)
	if err != nil {
		return Content{}, fmt.Errorf("read %s: %w", from, err)
	}
	d := c.newDownload("", from, o)
	d.version, d.known, d.quiet = v, true, true
	return Content{
		Size:     v.Size,
		Identity: from.String() + "|" + v.ETag + "|" + v.Modified,
		Open: func(ctx context.Context, offset, n int64) (io.ReadCloser, error) {
			pr, pw := io.Pipe()
			ctx, cancel := context.WithCancel(ctx)
			body := &remoteBody{PipeReader: pr, cancel: cancel, over: make(chan struct{})}
			go func() {
				defer close(body.over)
				var err error
				if d.version.condition() == "" {
					// It was written within this second; the next one can tell it from another.
					err = d.settle(ctx)
				}
				if err == nil {
					_, err = d.copy(ctx, offset, offset+n, func(fileVersion) (io.Writer, error) { return pw, nil })
				}
				if errors.Is(err, ErrChanged) || err != nil && !transient(err) {
					err = local(err)
				}
				pw.CloseWithError(err)
			}()
			return body, nil
		},
	}, nil
}

// remoteBody is a part of a remote file. Parts of one file are read one after another: closing waits for the end.
type remoteBody struct {
	*io.PipeReader
	cancel context.CancelFunc
	over   chan struct{}
}

func (b *remoteBody) Close() error {
	b.cancel()
	err := b.PipeReader.Close()
	<-b.over
	return err
}

// settle waits until the version of a file just written can be told from others.
func (d *download) settle(ctx context.Context) error {
	for range renewals {
		v, err := d.c.headFile(ctx, d.from)
		if err != nil {
			return err
		}
		if !v.same(d.version) {
			return local(ErrChanged)
		}
		if v.condition() != "" {
			d.version = v
			return nil
		}
		if err := d.o.pause(ctx, time.Second); err != nil {
			return err
		}
	}
	return local(ErrChanged)
}

// Target is a file to be written below a directory that downloads never leave.
type Target struct {
	Root *os.Root
	// Name is the path below Root.
	Name string
	// Place tells this Root from others, across processes; it is its absolute path. "" means that another process
	// cannot go on with an unfinished download.
	Place string
	// Mode of a new file; 0 = 0644.
	Mode fs.FileMode
	// Modified is the time the file gets, when it is the server's up to the second; the zero time takes the server's.
	Modified time.Time
}

// DownloadFile writes a file of a folder. It grows under a hidden name beside the target and takes the target's
// name at the end, so that nobody sees a part of it; a symbolic link at the target is replaced, not followed.
func DownloadFile(ctx context.Context, client *api.Client, from api.FolderPath, to Target, o Options) error {
	c := mover{client}
	size, err := c.downloadAs(ctx, "", from, to, o)
	if err != nil {
		return fmt.Errorf("download %s: %w", from, err)
	}
	o.tell(Done, "", size, "")
	return nil
}

func (c mover) downloadAs(ctx context.Context, label string, from api.FolderPath, to Target, o Options) (int64, error) {
	name := path.Clean(to.Name)
	if !filepath.IsLocal(to.Name) || name == "." {
		return 0, local(fmt.Errorf("%q is no name for a file below the target directory", to.Name))
	}
	if info, err := to.Root.Lstat(name); err == nil && info.IsDir() {
		return 0, local(fmt.Errorf("%s is a directory here", name))
	}
	if dir := path.Dir(name); dir != "." {
		if err := to.Root.MkdirAll(dir, 0o755); err != nil {
			return 0, local(err)
		}
	}
	d := c.newDownload(label, from, o)
	for tries := 1; ; tries++ {
		size, err := d.toFile(ctx, name, to)
		if errors.Is(err, ErrChanged) && tries <= renewals {
			// A second makes the next version one that can be told from others.
			if err := o.pause(ctx, time.Second); err != nil {
				return 0, err
			}
			d.known = false
			continue
		}
		return size, err
	}
}

// toFile downloads into the part beside name and renames it.
func (d *download) toFile(ctx context.Context, name string, to Target) (int64, error) {
	partName := path.Join(path.Dir(name), ".berth-"+resumeKey("part", name)[:16]+".part")
	part, err := lockPart(to.Root, partName)
	if err != nil {
		return 0, local(err)
	}
	defer part.Close()
	key := ""
	if to.Place != "" {
		key = resumeKey("download", d.c.Config().Endpoint, d.c.Config().AccessKey, d.from.Folder, d.from.Path, to.Place, name)
	}
	offset, remembered := int64(0), false
	if saved, ok := d.o.Resume.load(key); ok && key != "" && !d.known {
		if info, err := part.Stat(); err == nil && info.Size() <= saved.Version.Size && saved.Version.condition() != "" {
			d.version, d.known, offset, remembered = saved.Version, true, info.Size(), true
		}
	}
	if err = part.Truncate(offset); err == nil {
		_, err = part.Seek(offset, io.SeekStart)
	}
	if err != nil {
		return 0, local(err)
	}
	d.o.tell(Bytes, d.label, offset, "")
	size, err := d.copy(ctx, offset, -1, func(v fileVersion) (io.Writer, error) {
		if !remembered && key != "" && v.Size > d.o.chunk() {
			d.o.Resume.save(key, unfinished{Version: v})
		}
		remembered = true
		return part, nil
	})
	if err != nil {
		if over := errors.Is(err, ErrChanged) || api.IsNotFound(err); over || key == "" || !remembered || d.version.Size <= d.o.chunk() {
			d.o.Resume.forgetIf(key)
			_ = to.Root.Remove(partName)
		}
		if errors.Is(err, ErrChanged) {
			d.o.tell(Bytes, d.label, -size, "")
		}
		return size, err
	}
	if d.o.Verify {
		// Nothing gets the name of the file that is not the file.
		if err := d.verifyPart(ctx, part); err != nil {
			if errors.Is(err, ErrDiffers) {
				d.o.Resume.forgetIf(key)
				_ = to.Root.Remove(partName)
			}
			return size, err
		}
	}
	return size, local(d.finish(part, partName, name, to, key))
}

// finish gives a complete part its name, time and mode.
func (d *download) finish(part *os.File, partName, name string, to Target, key string) error {
	info, err := part.Stat()
	if err != nil {
		return err
	}
	if info.Size() != d.version.Size {
		return fmt.Errorf("%d bytes were written of %d", info.Size(), d.version.Size)
	}
	at := d.version.modTime()
	if at.IsZero() || to.Modified.Unix() == at.Unix() {
		at = to.Modified // knows the fraction
	}
	if !at.IsZero() {
		if err := to.Root.Chtimes(partName, at, at); err != nil {
			return err
		}
	}
	if mode := to.Mode.Perm(); mode != 0 && mode != 0o644 {
		if err := part.Chmod(mode); err != nil {
			return err
		}
	}
	if err := to.Root.Rename(partName, name); err != nil {
		return err
	}
	d.o.Resume.forgetIf(key)
	return nil
}

// verifyPart compares the SHA-256 of both ends, reading the remote file once more.
func (d *download) verifyPart(ctx context.Context, part *os.File) error {
	if _, err := part.Seek(0, io.SeekStart); err != nil {
		return local(err)
	}
	same, err := d.c.identical(ctx, d.from, part, d.o)
	if err == nil && !same {
		err = ErrDiffers
	}
	return err
}

// identical compares a local and a remote file by their SHA-256.
func (c mover) identical(ctx context.Context, at api.FolderPath, f io.Reader, o Options) (bool, error) {
	h := sha256.New()
	n, err := io.Copy(h, f)
	if err != nil {
		return false, local(err)
	}
	there, size, err := c.sumFile(ctx, at, o)
	return size == n && bytes.Equal(h.Sum(nil), there), err
}
