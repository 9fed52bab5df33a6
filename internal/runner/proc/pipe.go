package proc

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// Drain copies a pipe's output to a sink until the pipe's last writer closes it. A process
// may leave children behind that keep the pipe open, so the end of the process
// is not the end of the pipe: Settle passes on what has been written so far and then changes the sink.
type Drain struct {
	r      *os.File
	sink   func([]byte) // used by the loop alone
	settle chan settling
	done   chan struct{}
}

type settling struct {
	next  func([]byte)
	reply chan struct{}
}

// NewDrain begins to copy r, which it owns. Only its own goroutine calls sink.
func NewDrain(r *os.File, sink func([]byte)) *Drain {
	d := &Drain{r: r, sink: sink, settle: make(chan settling), done: make(chan struct{})}
	go d.loop()
	return d
}

func (d *Drain) loop() {
	defer close(d.done)
	defer d.r.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := d.r.Read(buf)
		if n > 0 {
			d.sink(buf[:n])
		}
		switch {
		case err == nil:
		case errors.Is(err, os.ErrDeadlineExceeded):
			eof := d.readRest(buf)
			s := <-d.settle
			d.sink = s.next
			_ = d.r.SetReadDeadline(time.Time{}) // it took a deadline before
			close(s.reply)
			if eof {
				return
			}
		default: // io.EOF, or EIO of a terminal whose other side is closed
			return
		}
	}
}

// maxHeld is the most that a pipe holds; nobody but root can make one larger.
const maxHeld = 1 << 20

// readRest passes on what the pipe holds right now; it reports the pipe's end. Who was left behind may write faster than the
// sink takes it, so the pipe need not ever be empty.
func (d *Drain) readRest(buf []byte) (eof bool) {
	rc, err := d.r.SyscallConn()
	if err != nil {
		return true
	}
	for passed := 0; passed < maxHeld; {
		n, rerr := -1, error(nil)
		// RawRead refuses to run after a deadline, Control does not.
		if err := rc.Control(func(fd uintptr) { n, rerr = syscall.Read(int(fd), buf) }); err != nil {
			return true
		}
		switch {
		case n > 0:
			passed += n
			d.sink(buf[:n])
		case rerr == syscall.EINTR:
		case rerr == syscall.EAGAIN:
			return false
		default:
			return true
		}
	}
	return false
}

// Settle returns when everything written to the pipe before the call went to the sink;
// what follows goes to next.
func (d *Drain) Settle(next func([]byte)) {
	s := settling{next: next, reply: make(chan struct{})}
	_ = d.r.SetReadDeadline(time.Unix(1, 0)) // fails when the pipe has ended; then done is closed
	select {
	case d.settle <- s:
		<-s.reply
	case <-d.done:
	}
}

// Done is closed when the pipe has ended and everything went to the sink.
func (d *Drain) Done() <-chan struct{} { return d.done }

// Pipe makes a pipe whose reading end is drained; the caller closes the writing end.
func Pipe(sink func([]byte)) (*Drain, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	return NewDrain(r, sink), w, nil
}

// NoInput returns a file that is at its end: /dev/null, or an empty pipe in a root without /dev.
func NoInput() (*os.File, error) {
	if f, err := os.Open(os.DevNull); err == nil {
		return f, nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return r, w.Close()
}
