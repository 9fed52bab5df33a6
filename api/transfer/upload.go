package transfer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/api"
)

// Content is what an upload reads.
type Content struct {
	// Size in bytes.
	Size int64
	// Identity tells this content from another of the same place, across processes; "" means that an unfinished
	// upload cannot be continued by another process.
	Identity string
	// Open returns the bytes [offset, offset+n). It may be called many times.
	Open func(ctx context.Context, offset, n int64) (io.ReadCloser, error)
	// Check says at the end whether the content was the same all the time; nil is no check.
	Check func() error
}

// FileContent is an open file. The caller closes it after the upload.
func FileContent(f *os.File) (Content, error) {
	before, err := f.Stat()
	if err != nil {
		return Content{}, local(err)
	}
	if !before.Mode().IsRegular() {
		return Content{}, local(fmt.Errorf("%s is not a regular file", f.Name()))
	}
	name, err := filepath.Abs(f.Name())
	if err != nil {
		return Content{}, local(err)
	}
	return Content{
		Size:     before.Size(),
		Identity: name + "|" + strconv.FormatInt(before.ModTime().UnixNano(), 10),
		Open: func(_ context.Context, offset, n int64) (io.ReadCloser, error) {
			return io.NopCloser(&localReader{io.NewSectionReader(f, offset, n)}), nil
		},
		Check: func() error {
			after, err := f.Stat()
			if err == nil && (after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime())) {
				err = ErrChanged
			}
			return local(err)
		},
	}, nil
}

// localReader marks failures of this machine.
type localReader struct{ r io.Reader }

func (l *localReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = local(err)
	}
	return n, err
}

// upload is one file on its way into a folder.
type upload struct {
	c      mover
	to     api.FolderPath
	src    Content
	o      Options
	label  string // in events
	key    string
	ticket api.Ticket
	// offset is what the server has for certain; told is what Seen was told of.
	offset, told int64
	retry        retrier
}

// UploadFile puts a file into a folder, whose directories are made. What is there is replaced at the end, at once:
// nobody sees a part of the new file. Broken connections, refused chunks and expired tokens are dealt with.
func UploadFile(ctx context.Context, client *api.Client, to api.FolderPath, src Content, o Options) error {
	c := mover{client}
	err := c.uploadAs(ctx, "", to, src, o)
	if err != nil {
		return fmt.Errorf("upload %s: %w", to, err)
	}
	o.tell(Done, "", src.Size, "")
	return nil
}

func (c mover) uploadAs(ctx context.Context, label string, to api.FolderPath, src Content, o Options) error {
	if err := api.CheckFolderPath(to.Path); err != nil {
		return local(err)
	}
	if to.IsRoot() {
		return local(errors.New("a file needs a name inside the folder"))
	}
	to.Path = to.Clean()
	u := &upload{c: c, to: to, src: src, o: o, label: label, retry: retrier{o: o, path: label}}
	if src.Identity != "" && src.Size > o.chunk() {
		u.key = resumeKey("upload", c.Config().Endpoint, c.Config().AccessKey, to.Folder, to.Path, src.Size, src.Identity)
	}
	if err := u.run(ctx); err != nil {
		return err
	}
	if src.Check != nil {
		if err := src.Check(); err != nil {
			return err
		}
	}
	if o.Verify {
		return u.verify(ctx)
	}
	return nil
}

func (u *upload) run(ctx context.Context) error {
	resumed := false
	if u.key != "" {
		var saved unfinished
		saved, resumed = u.o.Resume.load(u.key)
		u.ticket = saved.Ticket
	}
	// The server knows best how far it is, whenever we did not see its last word.
	ask := resumed
	if !resumed {
		if err := u.begin(ctx); err != nil {
			return err
		}
	}
	for begun := 1; ; {
		if u.src.Size == 0 {
			return nil // The request for it made the file.
		}
		done, err := u.step(ctx, &ask)
		if done {
			u.forget()
			return nil
		}
		if err == nil {
			continue
		}
		if ticketOver(err) {
			// The bytes are staged under the token and lost with it.
			u.forget()
			if begun++; begun > renewals && !resumed {
				return fmt.Errorf("begun %d times: %w", renewals, err)
			}
			resumed = false
			if err := u.begin(ctx); err != nil {
				return err
			}
			ask = false
			continue
		}
		if err := u.retry.wait(ctx, err); err != nil {
			if api.HasSlug(err, api.SlugQuotaExceeded) {
				u.end(ctx)
			}
			return err
		}
		ask = true
	}
}

// endTimeout bounds the request that ends an upload.
const endTimeout = 10 * time.Second

// end gives the room of what is staged back. It counts in the same quota, and nobody sees it there.
func (u *upload) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	resp, err := u.c.Redeem(ctx, http.MethodDelete, u.op("DELETE"), u.ticket, http.Header{"Tus-Resumable": {tusVersion}}, nil, 0)
	if err == nil { // else it expires by itself
		_ = resp.Body.Close()
	}
	u.forget()
}

// step asks for the offset or sends one chunk. It reports whether the server has the whole file.
func (u *upload) step(ctx context.Context, ask *bool) (bool, error) {
	if *ask {
		offset, err := u.head(ctx)
		if err != nil {
			return false, err
		}
		if offset > u.offset {
			u.retry.moved()
		}
		u.reach(offset)
		*ask = false
		// All bytes are there, but nobody told us that the file is: an empty chunk finishes it.
	}
	offset, err := u.patch(ctx)
	if err != nil {
		return false, err
	}
	if offset > u.offset {
		u.retry.moved()
	} else if offset < u.src.Size {
		return false, fmt.Errorf("%s took no byte at offset %d", u.ticket.Host(), u.offset)
	}
	u.reach(offset)
	return offset == u.src.Size, nil
}

// begin asks for a new ticket.
func (u *upload) begin(ctx context.Context) error {
	u.reach(0)
	err := u.retry.try(ctx, func() (err error) {
		u.ticket, err = u.c.RequestUpload(ctx, u.to, u.src.Size)
		return err
	})
	if err == nil && u.key != "" {
		u.o.Resume.save(u.key, unfinished{Ticket: u.ticket})
	}
	return err
}

func (u *upload) forget() {
	if u.key != "" {
		u.o.Resume.forget(u.key)
	}
}

// reach notes the server's offset and corrects what was told.
func (u *upload) reach(offset int64) {
	u.offset = offset
	if d := offset - u.told; d != 0 {
		u.o.tell(Bytes, u.label, d, "")
		u.told = offset
	}
}

func (u *upload) op(method string) string { return method + " upload of " + u.to.String() }

const tusVersion = "1.0.0"

// head asks how many bytes the server has.
func (u *upload) head(ctx context.Context) (int64, error) {
	ctx, _, stop := watch(ctx)
	defer stop()
	resp, err := u.c.Redeem(ctx, http.MethodHead, u.op("HEAD"), u.ticket, http.Header{"Tus-Resumable": {tusVersion}}, nil, 0)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return u.readOffset(resp)
}

func (u *upload) readOffset(resp *http.Response) (int64, error) {
	offset, err := strconv.ParseInt(resp.Header.Get("Upload-Offset"), 10, 64)
	if err != nil || offset < 0 || offset > u.src.Size {
		return 0, &LocalError{
			fmt.Errorf("the storage proxy answered Upload-Offset %q for a file of %d bytes", resp.Header.Get("Upload-Offset"), u.src.Size),
		}
	}
	return offset, nil
}

// patch sends the chunk at the offset and returns the next one.
func (u *upload) patch(ctx context.Context) (int64, error) {
	n := min(u.o.chunk(), u.src.Size-u.offset)
	ctx, dog, stop := watch(ctx)
	defer stop()
	body, err := u.src.Open(ctx, u.offset, n)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	header := http.Header{
		"Tus-Resumable": {tusVersion},
		"Upload-Offset": {strconv.FormatInt(u.offset, 10)},
		"Content-Type":  {"application/offset+octet-stream"},
	}
	if u.o.Checksums {
		chunk := make([]byte, n)
		if _, err := io.ReadFull(body, chunk); err != nil {
			return 0, shortSource(err)
		}
		sum := sha256.Sum256(chunk)
		header["Upload-Checksum"] = []string{"sha256 " + base64.StdEncoding.EncodeToString(sum[:])}
		body = io.NopCloser(bytes.NewReader(chunk))
	}
	// net/http may still read the body after an early answer, so what it saw is handed over only at the end.
	src := &source{r: io.LimitReader(body, n), left: n, alive: dog.alive, o: u.o, label: u.label}
	resp, err := u.c.Redeem(ctx, http.MethodPatch, u.op("PATCH"), u.ticket, header, src, n)
	sent, failed := src.end()
	u.told += sent
	if failed != nil {
		err = failed
	}
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent && resp.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: the storage proxy answered %s", u.op("PATCH"), resp.Status)
	}
	return u.readOffset(resp)
}

// shortSource tells a file that became shorter from one that cannot be read.
func shortSource(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return local(ErrChanged)
	}
	return err
}

// verify compares the SHA-256 of both ends, reading the uploaded file back.
func (u *upload) verify(ctx context.Context) error {
	here, err := u.src.sum(ctx)
	if err != nil {
		return err
	}
	there, size, err := u.c.sumFile(ctx, u.to, u.o)
	if err == nil && (size != u.src.Size || !bytes.Equal(here, there)) {
		err = ErrDiffers
	}
	return err
}

// sum is the SHA-256 of the content.
func (s Content) sum(ctx context.Context) ([]byte, error) {
	h := sha256.New()
	if s.Size > 0 {
		body, err := s.Open(ctx, 0, s.Size)
		if err != nil {
			return nil, err
		}
		defer body.Close()
		n, err := io.Copy(h, body)
		if err == nil && n != s.Size {
			err = local(ErrChanged)
		}
		if err != nil {
			return nil, err
		}
	}
	return h.Sum(nil), nil
}

// errOver stops the reading of a request that has ended.
var errOver = errors.New("the request has ended")

// source feeds a request and is cut off from it at its end.
type source struct {
	mu     sync.Mutex
	r      io.Reader
	left   int64 // to be read
	sent   int64
	failed error
	over   bool
	alive  func()
	o      Options
	label  string
}

func (s *source) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return 0, errOver
	}
	n, err := s.r.Read(p)
	if n > 0 {
		s.alive()
		s.left -= int64(n)
		s.sent += int64(n)
		s.o.tell(Bytes, s.label, int64(n), "")
	}
	switch {
	case errors.Is(err, io.EOF) && s.left > 0:
		s.failed = local(ErrChanged)
		return n, s.failed
	case err != nil && !errors.Is(err, io.EOF):
		s.failed = err
	}
	return n, err
}

// end stops the reading; it returns how much was read and why no more could be.
func (s *source) end() (sent int64, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.over = true
	return s.sent, s.failed
}
