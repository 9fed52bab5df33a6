package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// Waits inside of LockWait: how often it is looked at whether another writer is quiet, and how long HEAD waits before it answers beside
// one.
const (
	lockLook = time.Second
	headWait = 2 * time.Second
)

// maxDrain and maxDrainBytes bound what is read of a refused chunk, maxDrains how many are read at one time.
const (
	maxDrain      = 10 * time.Second
	maxDrainBytes = 256 << 20
	maxDrains     = 128
)

// maxQuick bounds the questions about uploads at one time: each may hold a thread where a volume hangs.
const maxQuick = 256

// upload is a session that this request has the lock of. staged is nil when the upload is complete already.
type upload struct {
	v      volume.Volume
	g      grant
	target string
	staged volume.Staged
	unlock func()
	// size is how much is durable and verified; what lies behind it is cut by the next chunk.
	size int64
	mark int64
}

func (u *upload) close() {
	if u.staged != nil {
		u.unlock()
		_ = u.staged.Close()
	}
}

// tus serves /upload.
func (s *Server) tus(w *reply, r *http.Request) error {
	w.Header().Set("Tus-Resumable", tusVersion)
	w.Header().Set("Cache-Control", "no-store")
	method := r.Method
	if o := r.Header.Get("X-HTTP-Method-Override"); method == http.MethodPost && o != "" {
		method = strings.ToUpper(o)
	}
	switch method {
	case http.MethodHead, http.MethodPatch, http.MethodDelete:
	default:
		return notAllowed(w, "OPTIONS, HEAD, PATCH, DELETE", method)
	}
	if err := checkTusVersion(r.Header); err != nil {
		w.Header().Set("Tus-Version", tusVersion)
		return err
	}
	g, err := s.admit(r, opUpload)
	if err != nil {
		return err
	}
	w.note(g.folder.String(), g.session)
	r, release, err := s.entitle(w, r, g)
	if err != nil {
		return err
	}
	defer release()
	target, err := join(r.URL.Query().Get("dst_dir"), g.path)
	if err != nil {
		return err
	}
	v, err := s.volume(g.volume)
	if err != nil {
		return err
	}
	if g.size == 0 || method != http.MethodPatch {
		leave, err := s.quick.enter(r.Context(), s.o.QueueWait, s.shares(g, maxQuick)...)
		if err != nil {
			return err
		}
		defer leave()
	}
	if g.size == 0 {
		return s.empty(w, r, v, g, target, method)
	}
	switch method {
	case http.MethodHead:
		return s.tell(w, r, v, g, target)
	case http.MethodDelete:
		return s.terminate(w, r, v, g, target)
	}
	err = s.patch(w, r, v, g, target)
	if err != nil && r.Header.Get("Expect") == "" {
		// Clients that send everything before they read would see a reset instead of the answer.
		select {
		case s.drains <- struct{}{}:
			newBody(r, w.control, min(s.o.IdleTimeout, maxDrain), nil).drain()
			<-s.drains
		default: // a flood of refused chunks is not read
		}
	}
	return err
}

// empty answers for a file without bytes, which the token's maker wrote at its own path.
func (s *Server) empty(w *reply, r *http.Request, v volume.Volume, g grant, target, method string) error {
	if method == http.MethodDelete {
		return noSession(g, "it is complete")
	}
	if method == http.MethodPatch {
		c, err := parseChunk(r.Header, r.ContentLength)
		if err != nil {
			return err
		}
		if c.offset != 0 {
			return wrongOffset(w, c.offset, 0)
		}
		if newBody(r, w.control, s.o.IdleTimeout, nil).more() {
			return tooLong(g)
		}
	}
	if target != g.path {
		tree, err := v.OpenFolder(r.Context(), g.folder)
		if err != nil {
			return fmt.Errorf("upload %s: %w", target, err)
		}
		defer tree.Close()
		if _, err := tree.Stat(target); fault.Is(err, fault.NotFound) {
			err = tree.WriteFile(r.Context(), target, strings.NewReader(""), fileMode)
			if err != nil {
				return fmt.Errorf("upload %s: %w", target, err)
			}
		}
	}
	s.offset(w, g, 0)
	w.WriteHeader(okStatus(method))
	return nil
}

func okStatus(method string) int {
	if method == http.MethodHead {
		return http.StatusOK
	}
	return http.StatusNoContent
}

// offset sets the headers that say how far an upload is.
func (s *Server) offset(w *reply, g grant, offset int64) {
	h := w.Header()
	h.Set("Upload-Offset", strconv.FormatInt(offset, 10))
	h.Set("Upload-Length", strconv.FormatInt(g.size, 10))
	if offset < g.size {
		until := s.o.Clock.Now().Add(s.o.UploadExpiry)
		if g.expires.Before(until) {
			until = g.expires
		}
		h.Set("Upload-Expires", until.UTC().Format(http.TimeFormat))
	}
}

// acquire opens a session and waits for its lock. With a nil error the upload is either complete, or ours and
// at u.size; what a dead proxy left complete but not in place is put there first.
func (s *Server) acquire(ctx context.Context, v volume.Volume, g grant, target string, wait time.Duration) (*upload, error) {
	u, err := s.hold(ctx, v, g, target, wait)
	if err == nil && u.staged != nil && u.size >= g.size {
		if err := u.finish(ctx); err != nil {
			u.close()
			return nil, err
		}
	}
	return u, err
}

// hold is acquire that leaves a complete upload where it is.
func (s *Server) hold(ctx context.Context, v volume.Volume, g grant, target string, wait time.Duration) (*upload, error) {
	u := &upload{v: v, g: g, target: target}
	st, err := v.Stage(ctx, g.folder, g.session, false)
	if fault.Is(err, fault.NotFound) {
		return u, u.gone(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("continue the upload of %s: %w", target, err)
	}
	unlock, err := s.lock(ctx, st, g.session, wait)
	if err != nil {
		_ = st.Close()
		if fault.Is(err, fault.NotFound) { // it was completed or removed while we waited
			return u, u.gone(ctx)
		}
		return nil, err
	}
	u.staged, u.unlock = st, unlock
	if u.size, u.mark, err = verifiedSize(st); err != nil {
		u.close()
		return nil, err
	}
	return u, nil
}

// lock waits for other writers, and ends one in this process that has gone quiet.
func (s *Server) lock(ctx context.Context, st volume.Staged, session string, wait time.Duration) (func(), error) {
	for left := wait; ; left -= lockLook {
		s.writers.yield(session, s.o.QuietWriter)
		turn, cancel := context.WithTimeout(ctx, min(left, lockLook))
		unlock, err := st.Lock(turn)
		cancel()
		switch {
		case err == nil:
			return unlock, nil
		case ctx.Err() != nil:
			return nil, fmt.Errorf("wait for the upload: %w", ctx.Err())
		case !fault.Is(err, fault.Conflict):
			return nil, fmt.Errorf("lock the upload: %w", err)
		case left <= lockLook:
			return nil, fault.Conflictf("another request is writing this upload").WithReason(reasonLocked).
				WithNext("try again in some seconds; ask HEAD for the offset first").WithCause(err)
		}
	}
}

// gone is nil for a session that was completed.
func (u *upload) gone(ctx context.Context) error {
	done, err := u.v.Stage(ctx, u.g.folder, doneID(u.g.session), false)
	if fault.Is(err, fault.NotFound) {
		return noSession(u.g, "it was never begun, was ended, or nobody continued it in time")
	}
	if err != nil {
		return fmt.Errorf("look for the upload of %s: %w", u.target, err)
	}
	_ = done.Close()
	u.size = u.g.size
	return nil
}

// doneID names the empty staged file that says, to every proxy, that a session is complete. It expires like
// unfinished uploads do.
func doneID(session string) string { return "done-" + session }

// finish puts the complete file in place. The mark comes first: a crash after it leaves the staged file, which
// counts more than the mark, and never a file in place whose session nobody knows.
func (u *upload) finish(ctx context.Context) error {
	done, err := u.v.Stage(ctx, u.g.folder, doneID(u.g.session), true)
	switch {
	case err == nil:
		defer done.Close()
	case !fault.Is(err, fault.Exhausted): // else the file fits and its mark does not: a file without one is better
		return fmt.Errorf("complete the upload of %s: %w", u.target, err)
	}
	if err := u.staged.Commit(u.target); err != nil {
		if done != nil {
			_ = done.Discard() // the staged file is still there and says more
		}
		return fmt.Errorf("complete the upload of %s: %w", u.target, err)
	}
	u.close()
	u.staged, u.size = nil, u.g.size
	return nil
}

// verified is what is stored beside the staged file of an upload with checksums: bytes behind Size were never
// compared, and a proxy that died left them.
type verified struct {
	Size int64 `json:"verified_size"`
}

// unmarked stands for an upload without checksums: all of its bytes count.
const unmarked int64 = -1

// verifiedSize is the size without a chunk whose checksum nobody has compared.
func verifiedSize(st volume.Staged) (size, mark int64, err error) {
	if size, err = st.Size(); err != nil {
		return 0, 0, fmt.Errorf("ask for the size of the upload: %w", err)
	}
	meta, err := st.Meta()
	if err != nil && !fault.Is(err, fault.NotFound) {
		return 0, 0, fmt.Errorf("read the mark of the upload: %w", err)
	}
	if len(meta) == 0 {
		return size, unmarked, nil
	}
	var v verified
	if err := json.Unmarshal(meta, &v); err != nil {
		return 0, 0, fmt.Errorf("read the mark of the upload: %w", err)
	}
	if v.Size >= 0 {
		size = min(size, v.Size)
	}
	return size, v.Size, nil
}

// setMark stores how much was verified, or that all bytes count.
func (u *upload) setMark(size int64) error {
	if u.mark == size {
		return nil
	}
	meta, err := json.Marshal(verified{Size: size})
	if err == nil {
		err = u.staged.SetMeta(meta)
	}
	if err != nil {
		return fmt.Errorf("mark how much of the upload is verified: %w", err)
	}
	u.mark = size
	return nil
}

// tell answers HEAD: the offset is made durable before it is said, and beside a living writer it is a lower bound.
func (s *Server) tell(w *reply, r *http.Request, v volume.Volume, g grant, target string) error {
	ctx := r.Context()
	u, err := s.acquire(ctx, v, g, target, min(headWait, s.o.LockWait))
	if err == nil {
		defer u.close()
		if u.staged != nil {
			if err := u.staged.Sync(); err != nil {
				return fmt.Errorf("make the upload durable: %w", err)
			}
		}
		s.offset(w, g, u.size)
		w.WriteHeader(http.StatusOK)
		return nil
	}
	if fault.ReasonOf(err) != reasonLocked {
		return err
	}
	st, serr := v.Stage(ctx, g.folder, g.session, false)
	if serr != nil {
		return err
	}
	defer st.Close()
	size, _, serr := verifiedSize(st)
	if serr != nil || size >= g.size { // complete, and the other one is putting it in place
		return err
	}
	if serr := st.Sync(); serr != nil {
		return fmt.Errorf("make the upload durable: %w", serr)
	}
	s.offset(w, g, size)
	w.WriteHeader(http.StatusOK)
	return nil
}

// terminate answers DELETE. What is complete and not in place is not put there: perhaps that is what fails.
func (s *Server) terminate(w *reply, r *http.Request, v volume.Volume, g grant, target string) error {
	u, err := s.hold(r.Context(), v, g, target, s.o.LockWait)
	if err != nil {
		return err
	}
	defer u.close()
	if u.staged == nil {
		return noSession(g, "it is complete")
	}
	if err := u.staged.Discard(); err != nil {
		return fmt.Errorf("end the upload of %s: %w", target, err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// patch writes one chunk.
func (s *Server) patch(w *reply, r *http.Request, v volume.Volume, g grant, target string) error {
	c, err := parseChunk(r.Header, r.ContentLength)
	if err != nil {
		return err
	}
	if c.offset <= g.size && c.length > g.size-c.offset {
		return tooLong(g)
	}
	leave, err := s.limit.enter(r.Context(), s.o.QueueWait, s.shares(g, s.o.MaxTransfers)...)
	if err != nil {
		return err
	}
	defer leave()
	u, err := s.acquire(r.Context(), v, g, target, s.o.LockWait)
	if err != nil {
		return err
	}
	defer u.close()
	if u.staged == nil && c.length > 0 && c.offset+c.length == g.size {
		// The last chunk again, because its answer was lost.
		newBody(r, w.control, s.o.IdleTimeout, nil).drain()
		c.offset = g.size
	}
	if c.offset != u.size {
		return wrongOffset(w, c.offset, u.size)
	}
	if u.staged != nil {
		if c.offset == 0 && target != g.path { // that one was looked at when the token was made
			if err := s.checkPlace(r.Context(), u); err != nil {
				return err
			}
		}
		if err := s.write(w, r, u, c); err != nil {
			return err
		}
	}
	s.offset(w, g, u.size)
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// checkPlace refuses a target that no file can have, before its bytes are taken.
func (s *Server) checkPlace(ctx context.Context, u *upload) error {
	tree, err := u.v.OpenFolder(ctx, u.g.folder)
	if err != nil {
		return fmt.Errorf("upload %s: %w", u.target, err)
	}
	defer tree.Close()
	return placeable(tree, u.target)
}

// write takes the chunk's body into the locked upload, which stands at the chunk's offset, and completes the
// upload at its end. Whatever happens, u.size is what is durable and verified afterwards.
func (s *Server) write(w *reply, r *http.Request, u *upload, c chunk) error {
	// What has come is kept when its client leaves, so the request's end does not end the writing.
	ctx := context.WithoutCancel(r.Context())
	room := u.g.size - c.offset
	// Asking a volume that hangs would hold the client without an answer.
	asking, cancel := context.WithTimeout(ctx, s.o.IdleTimeout)
	err := u.v.Charge(asking, u.g.folder.Scope, max(c.length, 0))
	cancel()
	if err != nil {
		s.offset(w, u.g, u.size)
		return fmt.Errorf("upload %s: %w", u.target, err)
	}
	var sum hash.Hash
	if c.sum != nil {
		sum = c.sum.make()
		if err := u.setMark(c.offset); err != nil {
			return err
		}
	} else if u.mark != unmarked {
		// What a dead proxy left behind the mark goes before the mark does.
		if err := errors.Join(u.cut(ctx, c), u.setMark(unmarked)); err != nil {
			return err
		}
	}
	in := newBody(r, w.control, s.o.IdleTimeout, sum)
	remove := s.writers.add(u.g.session, in)
	w.carries(in)
	written, err := u.staged.Append(ctx, c.offset, in, room)
	long := err == nil && written == room && in.more()
	remove()
	w.received = in.n
	// A volume may wrap what the reader said; the reader knows best.
	if ended := in.err != nil && !in.done(); err == nil && ended || ended && errors.Is(err, in.err) {
		err = cutShort(in.err)
	}
	switch {
	case long:
		return errors.Join(tooLong(u.g), u.cut(ctx, c))
	case c.sum != nil && (err != nil || !c.sum.matches(sum)):
		if err == nil {
			err = fault.Invalidf("the chunk's %s is not the one that was sent with it", c.sum.name).WithReason(reasonChecksum).
				WithNext("send the chunk again")
		}
		if cerr := u.cut(ctx, c); cerr != nil {
			return cerr
		}
		s.offset(w, u.g, u.size)
		return err
	}
	if serr := u.staged.Sync(); serr != nil {
		// What the disk did not take may be lost although the file is that long.
		return errors.Join(fmt.Errorf("make the upload durable: %w", serr), u.cut(ctx, c))
	}
	u.size = c.offset + written
	if err != nil {
		s.offset(w, u.g, u.size)
		return fmt.Errorf("upload %s: %w", u.target, err)
	}
	if u.size == u.g.size {
		if why := w.revocation(); why != nil {
			return why
		}
		if err = u.finish(ctx); err == nil {
			return nil
		}
	}
	if c.sum != nil {
		err = errors.Join(err, u.setMark(u.size))
	}
	return err
}

// cut takes a chunk off again.
func (u *upload) cut(ctx context.Context, c chunk) error {
	if _, err := u.staged.Append(ctx, c.offset, eof{}, 0); err != nil {
		return fmt.Errorf("cut the chunk off: %w", err)
	}
	if err := u.staged.Sync(); err != nil {
		return fmt.Errorf("cut the chunk off: %w", err)
	}
	u.size = c.offset
	return nil
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

func cutShort(err error) error {
	if errors.Is(err, errYielded) {
		return fault.Conflictf("this request was quiet and another took over the upload").WithReason(reasonLocked).
			WithNext("ask HEAD for the offset and go on from there")
	}
	return fault.Invalidf("the chunk ended early").WithReason(reasonCut).
		WithNext("ask HEAD for the offset and go on from there").WithCause(err)
}

func tooLong(g grant) error {
	return fault.Invalidf("the body goes beyond the %d bytes that were declared for %s", g.size, g.path).WithReason(reasonTooLarge).
		WithNext("begin a new upload with the right size")
}

func noSession(g grant, why string) error {
	return fault.NotFoundf("there is no unfinished upload of %s: %s", g.path, why).WithReason(reasonNoSession).
		WithNext("begin a new upload")
}

func wrongOffset(w *reply, got, have int64) error {
	w.Header().Set("Upload-Offset", strconv.FormatInt(have, 10))
	return fault.Conflictf("the chunk begins at %d and the upload is at %d", got, have).WithReason(reasonOffset).
		WithNext("send the bytes from %d on", have)
}
