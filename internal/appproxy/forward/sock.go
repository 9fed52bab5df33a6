package forward

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/wire/tunnel"
)

// pageSize is what one read takes at most. Connections that wait on a plain socket hold no buffer.
const pageSize = 16 << 10

type page [pageSize]byte

var pages = sync.Pool{New: func() any { return new(page) }}

// sock is one connection with a buffer of bytes that were read and not consumed.
type sock struct {
	conn net.Conn
	raw  syscall.RawConn // of a plain socket; nil for TLS and wrappers
	page *page
	buf  []byte // page's memory, or a larger one of its own; nil when nothing is held
	r, w int

	onRead, onWrite func(fd uintptr) bool // made once: one closure per call would be garbage
	n               int                   // the last read's
	err             error
	out             []byte // what a write has left
	outErr          error
}

func (s *sock) init(conn net.Conn) {
	s.conn = conn
	chassis.Unpace(conn)
	s.raw = rawOf(conn)
	if s.raw != nil {
		s.onRead, s.onWrite = s.readReady, s.writeReady
	}
}

// rawOf returns the socket below conn if reading and writing it is the same as reading and writing conn.
func rawOf(conn net.Conn) syscall.RawConn {
	var raw syscall.RawConn
	switch c := conn.(type) {
	case *net.TCPConn:
		raw, _ = c.SyscallConn()
	case *net.UnixConn:
		if c.LocalAddr().Network() == "unix" {
			raw, _ = c.SyscallConn()
		}
	case *tunnel.Lent:
		return rawOf(c.Conn)
	}
	return raw
}

var errTooLarge = errors.New("larger than allowed")

func (s *sock) buffered() []byte { return s.buf[s.r:s.w] }

// take consumes n buffered bytes.
func (s *sock) take(n int) {
	s.r += n
	if s.r == s.w {
		s.r, s.w = 0, 0
	}
}

// release gives the buffer back to the pool; it must be empty.
func (s *sock) release() {
	if s.page != nil {
		pages.Put(s.page)
		s.page = nil
	}
	s.buf, s.r, s.w = nil, 0, 0
}

// fill reads at least one byte more. It holds at most limit unread bytes, then it returns errTooLarge.
func (s *sock) fill(limit int) error {
	if s.w == len(s.buf) && s.buf != nil {
		switch {
		case s.r > 0:
			s.w = copy(s.buf, s.buf[s.r:s.w])
			s.r = 0
		case s.w >= limit:
			return errTooLarge
		default:
			big := make([]byte, min(2*len(s.buf), max(limit, len(s.buf)+1)))
			copy(big, s.buf[:s.w])
			if s.page != nil {
				pages.Put(s.page)
				s.page = nil
			}
			s.buf = big
		}
	}
	if s.raw == nil {
		if s.buf == nil {
			s.page = pages.Get().(*page)
			s.buf = s.page[:]
		}
		n, err := s.conn.Read(s.buf[s.w:])
		s.w += n
		if n > 0 {
			return nil
		}
		if err == nil {
			err = io.ErrNoProgress
		}
		return err
	}
	if err := s.raw.Read(s.onRead); err != nil {
		return err
	}
	if s.err != nil {
		return s.err
	}
	if s.n == 0 {
		return io.EOF
	}
	s.w += s.n
	return nil
}

// readReady reads into the buffer. While it waits for something to read it holds no memory for the buffer.
func (s *sock) readReady(fd uintptr) bool {
	if s.buf == nil {
		s.page = pages.Get().(*page)
		s.buf = s.page[:]
	}
	for {
		s.n, s.err = readNow(int(fd), s.buf[s.w:])
		switch s.err {
		case syscall.EINTR:
			continue
		case syscall.EAGAIN:
			if s.w == 0 {
				s.release()
			}
			return false
		}
		return true
	}
}

// write writes all of b.
func (s *sock) write(b []byte) (int, error) {
	if s.raw == nil || len(b) == 0 || len(b) > pageSize { // longer calls are the scheduler's business
		return s.conn.Write(b)
	}
	s.out = b
	err := s.raw.Write(s.onWrite)
	if err == nil {
		err = s.outErr
	}
	n := len(b) - len(s.out)
	s.out, s.outErr = nil, nil
	return n, err
}

func (s *sock) writeReady(fd uintptr) bool {
	for len(s.out) > 0 {
		n, err := writeNow(int(fd), s.out)
		switch err {
		case nil:
			s.out = s.out[n:]
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			s.outErr = err
			return true
		}
	}
	return true
}

// halfClose closes the sending direction.
func (s *sock) halfClose() error {
	if h, ok := s.conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return errors.New("cannot be closed by half")
}

// endBelow finds what is closed to end a connection at once: a lent socket, whose lender hears of it, or the socket below TLS.
func endBelow(conn net.Conn) net.Conn {
	for {
		if _, ok := conn.(*tunnel.Lent); ok {
			return conn
		}
		u, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			return conn
		}
		conn = u.NetConn()
	}
}

// kill closes the socket at once. The orderly close of TLS or of a WebSocket may block.
func (s *sock) kill() {
	switch c := endBelow(s.conn).(type) {
	case *net.TCPConn, *net.UnixConn, *tunnel.Lent:
		_ = c.Close()
	default:
		_ = c.SetDeadline(past)
		go func() { _ = c.Close() }() // wrappers may say goodbye first; the deadline bounds that
	}
}

// reset closes the socket so that the other end sees an error instead of the end of the data.
func (s *sock) reset() {
	if t, ok := chassis.SocketBelow(s.conn).(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	s.kill()
}

// quiet reports whether a kept connection is still open and nothing has arrived on it.
func (s *sock) quiet() bool {
	if s.r != s.w {
		return false
	}
	c, ok := chassis.SocketBelow(s.conn).(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	quiet := false
	err = raw.Control(func(fd uintptr) {
		_, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		quiet = err == syscall.EAGAIN
	})
	return err == nil && quiet
}

// hungUp reports whether the other end has closed the connection, or its sending direction.
func (s *sock) hungUp() bool {
	c, ok := chassis.SocketBelow(s.conn).(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}

// past is a deadline that has passed: it wakes readers and writers.
var past = time.Unix(1, 0)

// Bounds of splicing: from which size on a body is spliced through a pipe, and the size of that pipe. Larger pipes do not cost
// less CPU, and each call would occupy the processor for longer. All pipes of one user together may have 64 MiB by default;
// above that the kernel makes them very small.
const (
	spliceFrom = 64 << 10
	pipeSize   = 256 << 10
)

// pipe moves bytes between two sockets inside the kernel.
type pipe struct {
	r, w    int
	max     int // of the next move in
	n       int // moved by the last call
	err     error
	in, out func(fd uintptr) bool
	left    int // in the pipe
}

// pipes keeps empty pipes for reuse; those above its capacity are closed.
var pipes = make(chan *pipe, 64)

func getPipe() (*pipe, error) {
	select {
	case p := <-pipes:
		return p, nil
	default:
	}
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	p := &pipe{r: fd[0], w: fd[1]}
	_, _ = unix.FcntlInt(uintptr(fd[0]), unix.F_SETPIPE_SZ, pipeSize) // a smaller one works too
	p.in, p.out = p.moveIn, p.moveOut
	return p, nil
}

func putPipe(p *pipe) {
	if p.left == 0 {
		select {
		case pipes <- p:
			return
		default:
		}
	}
	_ = unix.Close(p.r)
	_ = unix.Close(p.w)
}

const spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK

func (p *pipe) moveIn(fd uintptr) bool {
	for {
		n, err := spliceNow(int(fd), p.w, p.max)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN: // the pipe is empty: it is the socket that has nothing
			return false
		}
		p.n, p.err = n, err
		return true
	}
}

func (p *pipe) moveOut(fd uintptr) bool {
	for {
		n, err := spliceNow(p.r, int(fd), p.left)
		switch err {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		p.n, p.err = n, err
		return true
	}
}

// splice moves up to n bytes (n < 0: without limit) from src to dst inside the kernel. With n < 0 it returns without an error
// after a small move, because plain reads and writes are cheaper for those. It calls progress before it waits and after each
// move. It returns the number of bytes moved, and io.EOF when src has ended.
func splice(dst, src *sock, n int64, progress func(waiting waiting, moved int)) (int64, error) {
	p, err := getPipe()
	if err != nil {
		return 0, nil // out of descriptors: the caller copies
	}
	defer putPipe(p)
	var total int64
	for n < 0 || total < n {
		p.max = pipeSize
		if n >= 0 {
			p.max = int(min(pipeSize, n-total))
		}
		progress(forSource, 0)
		if err := src.raw.Read(p.in); err != nil {
			return total, err
		}
		if p.err != nil {
			return total, p.err
		}
		if p.n == 0 {
			return total, io.EOF
		}
		got := p.n
		p.left = got
		progress(forTarget, 0)
		for p.left > 0 {
			if err := dst.raw.Write(p.out); err != nil {
				return total, writeError{err}
			}
			if p.err != nil {
				return total, writeError{p.err}
			}
			p.left -= p.n
			total += int64(p.n)
			progress(forTarget, p.n)
		}
		if n < 0 && got < pageSize {
			break
		}
	}
	return total, nil
}

// waiting says which side a copy waits for next.
type waiting int

const (
	forSource waiting = iota
	forTarget
)

// writeError is a failure of the side that is written to.
type writeError struct{ err error }

func (e writeError) Error() string { return e.err.Error() }
func (e writeError) Unwrap() error { return e.err }
