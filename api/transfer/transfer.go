// Package transfer moves files between this machine and folders: it cuts, retries, resumes, compares and walks trees.
// It speaks to managers and storage proxies through package api only, prints nothing, and keeps nothing but the files
// of a ResumeDir. The command line and programs of users call it.
package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/api"
)

// mover is a client that moves files.
type mover struct{ *api.Client }

// Defaults of transfers.
const (
	// DefaultChunk is how many bytes one upload request carries.
	DefaultChunk = 16 << 20
	// DefaultParallel is how many files of a tree move at once.
	DefaultParallel = 4
	// MaxParallel bounds Options.Parallel.
	MaxParallel = 32
)

// The limits of retries.
const (
	retryFirst = 200 * time.Millisecond
	retryMax   = 15 * time.Second
	// retries is how often in a row a request may fail; whatever moves a byte begins a new row.
	retries = 12
	// renewals is how often a transfer may begin anew because its token or the file changed.
	renewals = 5
	// stallTimeout ends a connection on which nothing moves.
	stallTimeout = 2 * time.Minute
	// rateWindow bounds the wait for a rate limit, whose window is 15 minutes.
	rateWindow = 16 * time.Minute
)

// Transfer events.
const (
	Found   = "found"   // Size bytes are to be moved to or from Path
	Bytes   = "bytes"   // Size bytes moved; negative when some have to move again
	Done    = "done"    // Path is there, with Size bytes
	Skipped = "skipped" // Path was left out; Reason says why, and is "" when it was there already
	Failed  = "failed"  // Path could not be moved; Reason says why
	Waiting = "waiting" // a request failed and is tried again; Reason says why
)

// Event tells how a transfer goes on.
type Event struct {
	Kind string
	// Path is relative to what is copied; "" when the event is of a single file.
	Path   string
	Size   int64
	Reason string
}

// Options are common to all transfers. The zero value is good.
type Options struct {
	// Chunk is the size of an upload request in bytes; 0 = DefaultChunk.
	Chunk int64
	// Parallel is how many files of a tree move at once; 0 = DefaultParallel.
	Parallel int
	// Resume remembers unfinished transfers across processes; nil remembers nothing.
	Resume *ResumeDir
	// Checksums sends the SHA-256 of every chunk of an upload, which the server compares before it keeps the chunk.
	// A chunk is then held in memory.
	Checksums bool
	// Verify compares the SHA-256 of both ends after a transfer, and before a file counts as already there. The
	// other end is read through the network for it.
	Verify bool
	// Overwrite moves files even when they seem to be there already.
	Overwrite bool
	// FollowLinks uploads what symbolic links point to; without it they are left out.
	FollowLinks bool
	// Spelling is how the server spells names of files, of which some are one to it that are several here: those of which
	// only the Unicode composition differs. Nil spells them as they are.
	Spelling func(name string) string
	// Seen is told how the transfer goes on. Its calls do not overlap.
	Seen func(Event)
	// Pause waits between tries; nil waits in real time.
	Pause func(ctx context.Context, d time.Duration) error
}

func (o Options) tell(kind, path string, size int64, reason string) {
	if o.Seen != nil {
		o.Seen(Event{Kind: kind, Path: path, Size: size, Reason: reason})
	}
}

func (o Options) spell(name string) string {
	if o.Spelling == nil {
		return name
	}
	return o.Spelling(name)
}

func (o Options) chunk() int64 {
	if o.Chunk <= 0 {
		return DefaultChunk
	}
	return o.Chunk
}

func (o Options) parallel() int {
	if o.Parallel <= 0 {
		return DefaultParallel
	}
	return min(o.Parallel, MaxParallel)
}

// LocalError is a failure on this machine, which another try would not change.
type LocalError struct{ Err error }

func (e *LocalError) Error() string { return e.Err.Error() }
func (e *LocalError) Unwrap() error { return e.Err }

func local(err error) error {
	if err == nil {
		return nil
	}
	return &LocalError{err}
}

// ErrChanged is a file that changed while it was copied.
var ErrChanged = errors.New("it changed while it was copied")

// ErrDiffers is a copy whose SHA-256 is not that of the original.
var ErrDiffers = errors.New("the copy differs from the original")

// errStalled ends a connection on which nothing moves.
var errStalled = fmt.Errorf("nothing moved for %s", stallTimeout)

// transient reports whether another try may help.
func transient(err error) bool {
	var here *LocalError
	var refused *api.Error
	switch {
	case err == nil, errors.As(err, &here), errors.Is(err, api.ErrTicket), errors.Is(err, ErrChanged), errors.Is(err, ErrDiffers):
		return false
	case errors.As(err, &refused):
		switch refused.Status {
		case http.StatusConflict:
			// Of an offset; a directory in the way stays there.
			return refused.Type == "" || strings.HasPrefix(refused.Slug(), "upload-")
		case http.StatusRequestTimeout, http.StatusLocked, http.StatusTooEarly, http.StatusTooManyRequests,
			statusChecksum, http.StatusInternalServerError, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
			return true
		}
		return false
	}
	return true // the network
}

// statusChecksum is what tus answers when a chunk's checksum does not match.
const statusChecksum = 460

// ticketOver reports whether a storage proxy no longer takes a token: it expired, or what it stood for is gone.
func ticketOver(err error) bool {
	var here *LocalError
	var refused *api.Error
	if errors.As(err, &here) || !errors.As(err, &refused) {
		return false
	}
	switch refused.Status {
	case http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusGone:
		return true
	}
	return false
}

// retrier spaces the tries of one file.
type retrier struct {
	o        Options
	path     string
	failures int
	limited  time.Duration // waited for a rate limit
}

func (r *retrier) moved() { r.failures, r.limited = 0, 0 }

// wait pauses after a failure. It returns the failure when it is final, or too many came in a row.
func (r *retrier) wait(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !transient(err) {
		return err
	}
	pause := min(retryFirst<<min(r.failures, 10), retryMax)
	pause = pause/2 + rand.N(pause/2+1) // Many workers fail at once and must not come back at once.
	var refused *api.Error
	if errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests {
		pause = retryMax
		if r.limited += pause; r.limited > rateWindow {
			return err
		}
	} else if r.failures++; r.failures > retries {
		return fmt.Errorf("gave up after %d tries: %w", retries, err)
	}
	r.o.tell(Waiting, r.path, 0, brief(err))
	return r.o.pause(ctx, pause)
}

func (o Options) pause(ctx context.Context, pause time.Duration) error {
	if o.Pause != nil {
		return o.Pause(ctx, pause)
	}
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-t.C:
		return nil
	}
}

// brief drops the addresses and layers that the network names before its reason.
func brief(err error) string {
	text := err.Error()
	var reason syscall.Errno
	if i := strings.Index(text, ": "); i > 0 && errors.As(err, &reason) {
		return text[:i+2] + reason.Error()
	}
	return text
}

// try calls f until it succeeds or fails for good.
func (r *retrier) try(ctx context.Context, f func() error) error {
	for {
		err := f()
		if err == nil {
			return nil
		}
		if err := r.wait(ctx, err); err != nil {
			return err
		}
	}
}

// watchdog ends a context when nothing moves for a while.
type watchdog struct{ timer *time.Timer }

func watch(ctx context.Context) (context.Context, *watchdog, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	w := &watchdog{time.AfterFunc(stallTimeout, func() { cancel(errStalled) })}
	return ctx, w, func() {
		w.timer.Stop()
		cancel(context.Canceled)
	}
}

func (w *watchdog) alive() { w.timer.Reset(stallTimeout) }

// meter tells of the bytes that pass through a reader.
type meter struct {
	io.ReadCloser
	passed func(n int)
}

func (m *meter) Read(p []byte) (int, error) {
	n, err := m.ReadCloser.Read(p)
	if n > 0 {
		m.passed(n)
	}
	return n, err
}
