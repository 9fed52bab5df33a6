package transfer

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// Between two looks at the clock the kernel sends up to sendPiece of a file: who took anything of it in time is not idle, and
// it goes on behind that. Nothing else can go on after a timeout, so it gets its time for each copyPiece.
const (
	sendPiece = 256 << 20
	copyPiece = 1 << 20
)

// buffers are for moving file contents; big enough that a system call costs little beside the copy.
var buffers = sync.Pool{New: func() any { b := make([]byte, 1<<20); return &b }}

// reply is a ResponseWriter that ends when its reader takes nothing for a while, and that keeps the kernel's way
// of sending files open: ReadFrom reaches the connection with a plain *os.File.
type reply struct {
	http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
	plain   bool   // the connection is TCP without TLS
	id      string // of the request
	method  string
	status  int
	sent    int64
	problem error
	abort   bool // the reply is incomplete and must not look complete
	left    bool // nobody takes the reply any more
	mu      sync.Mutex
	revoked error // why the transfer must end; nil while it may go on
	in      *body // what the request's writer reads, if it is one
	// What the log says of the transfer.
	folder, session string
	received        int64
}

func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *reply) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *reply) note(folder, session string) { w.folder, w.session = folder, session }

// stir gives the reader another while; connections without deadlines are left alone.
func (w *reply) stir() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.revoked == nil {
		_ = w.control.SetWriteDeadline(time.Now().Add(w.idle))
	}
}

// revoke ends the transfer: a body is read no further, and its sender gets an answer; what is being sent breaks off.
func (w *reply) revoke(why error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.revoked = why
	switch {
	case w.in != nil:
		w.in.revoke()
	case w.method == http.MethodGet:
		_ = w.control.SetWriteDeadline(time.Unix(1, 0))
	}
}

// revocation is why the transfer must end; nil while it may go on.
func (w *reply) revocation() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revoked
}

// carries tells revoke which body is read.
func (w *reply) carries(in *body) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in = in
	if w.revoked != nil {
		in.revoke()
	}
}

// calm takes the deadline away, for the next request on the connection.
func (w *reply) calm() { _ = w.control.SetWriteDeadline(time.Time{}) }

func (w *reply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	w.stir()
	n, err := w.ResponseWriter.Write(p)
	w.sent += int64(n)
	w.left = w.left || err != nil
	return n, err
}

// ReadFrom is what http.ServeContent ends in.
func (w *reply) ReadFrom(src io.Reader) (total int64, err error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	limited, ok := src.(*io.LimitedReader)
	if !ok {
		limited = &io.LimitedReader{R: src, N: 1<<63 - 1}
	}
	to, ok := w.ResponseWriter.(io.ReaderFrom)
	if !ok {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		return io.CopyBuffer(writerOnly{w}, readerOnly{limited}, *buf)
	}
	size := int64(copyPiece)
	_, sends := limited.R.(*os.File)
	if sends = sends && w.plain; sends {
		size = sendPiece
	}
	for limited.N > 0 {
		piece := io.LimitedReader{R: limited.R, N: min(limited.N, size)}
		want := piece.N
		if why := w.revocation(); why != nil {
			w.abort, w.problem = true, why
			return total, errRevoked
		}
		w.stir()
		n, err := to.ReadFrom(&piece)
		limited.N -= n
		total += n
		w.sent += n
		if sends && err != nil && (n > 0 || w.revocation() != nil) && errors.Is(err, os.ErrDeadlineExceeded) {
			continue // slow, not dead
		}
		if err != nil || n < want { // fewer bytes without an error: the file got shorter
			w.left = w.left || err != nil
			return total, err
		}
	}
	return total, nil
}

// writerOnly and readerOnly hide the shortcuts that would lead back to where we are.
type (
	writerOnly struct{ io.Writer }
	readerOnly struct{ io.Reader }
)
