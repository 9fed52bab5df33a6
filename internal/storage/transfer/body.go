package transfer

import (
	"errors"
	"hash"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// errYielded is why a body ends whose client had gone quiet when another request wanted the upload.
var errYielded = errors.New("another request took over the upload")

// body is a request's body that ends when no byte comes for a while, and that knows why it ended. Only its own
// request reads it; yield may be called by others.
type body struct {
	r       io.Reader
	control *http.ResponseController
	idle    time.Duration
	sum     hash.Hash // nil without a checksum
	n       int64
	err     error // what ended it; io.EOF for its proper end

	mu      sync.Mutex
	yielded bool
	revoked bool
	moved   time.Time // when bytes came last
}

func newBody(r *http.Request, control *http.ResponseController, idle time.Duration, sum hash.Hash) *body {
	return &body{r: r.Body, control: control, idle: idle, sum: sum, moved: time.Now()}
}

func (b *body) Read(p []byte) (int, error) {
	if b.err != nil {
		return 0, b.err
	}
	b.mu.Lock()
	if b.yielded {
		b.mu.Unlock()
		return 0, b.end(errYielded)
	}
	if b.revoked {
		b.mu.Unlock()
		return 0, b.end(errRevoked)
	}
	_ = b.control.SetReadDeadline(time.Now().Add(b.idle)) // servers without deadlines have their own
	b.mu.Unlock()
	n, err := b.r.Read(p)
	if n > 0 {
		b.n += int64(n)
		if b.sum != nil {
			b.sum.Write(p[:n])
		}
		b.mu.Lock()
		b.moved = time.Now()
		b.mu.Unlock()
	}
	if err != nil {
		return n, b.end(err)
	}
	return n, nil
}

// end remembers the end and takes the deadline away: the server goes on reading, to see the client leave, and
// a deadline that passes then would cancel the request while its bytes are made durable.
func (b *body) end(err error) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.yielded && errors.Is(err, os.ErrDeadlineExceeded) {
		err = errYielded
	}
	if b.revoked && errors.Is(err, os.ErrDeadlineExceeded) {
		err = errRevoked
	}
	b.err = err
	_ = b.control.SetReadDeadline(time.Time{})
	return err
}

// done reports whether the whole body came.
func (b *body) done() bool { return b.err == io.EOF }

// more reports whether there is at least one byte more.
func (b *body) more() bool {
	var one [1]byte
	n, err := b.Read(one[:])
	for n == 0 && err == nil {
		n, err = b.Read(one[:])
	}
	return n > 0
}

// yield ends the body when it has been quiet for so long.
func (b *body) yield(quiet time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.yielded || b.err != nil || time.Since(b.moved) < quiet {
		return
	}
	b.yielded = true
	_ = b.control.SetReadDeadline(time.Unix(1, 0))
}

// revoke ends the body because its sender may write no more.
func (b *body) revoke() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.revoked || b.err != nil {
		return
	}
	b.revoked = true
	_ = b.control.SetReadDeadline(time.Unix(1, 0))
}

// drain takes the rest of the body, within bounds, so that a client which sends first and reads then sees the answer.
func (b *body) drain() {
	buf := make([]byte, 32<<10) // nobody needs it to be fast
	for until := time.Now().Add(maxDrain); b.n < maxDrainBytes && time.Now().Before(until); {
		if _, err := b.Read(buf); err != nil {
			return
		}
	}
}

// writers are the bodies that are being written in this process, by session.
type writers struct {
	mu sync.Mutex
	m  map[string]*body
}

func (w *writers) add(session string, b *body) (remove func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.m == nil {
		w.m = map[string]*body{}
	}
	w.m[session] = b
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.m[session] == b {
			delete(w.m, session)
		}
	}
}

// yield asks the writer of a session to end when its client has gone quiet: its connection is probably dead, and
// the one who asks is the same client again.
func (w *writers) yield(session string, quiet time.Duration) {
	w.mu.Lock()
	b := w.m[session]
	w.mu.Unlock()
	if b != nil {
		b.yield(quiet)
	}
}
