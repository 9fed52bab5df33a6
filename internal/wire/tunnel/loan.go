package tunnel

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Lent is a socket that a callee handed over and can still end. It is the socket itself: the bytes pass through nobody else.
type Lent struct {
	net.Conn // *net.TCPConn or *net.UnixConn
	lender   net.Conn
}

// NetConn returns the socket. Closing it alone leaves the lender's descriptor open, and with it the connection.
func (l *Lent) NetConn() net.Conn { return l.Conn }

// CloseWrite ends the direction towards the application.
func (l *Lent) CloseWrite() error { return closeWrite(l.Conn) }

// Close closes the socket and tells the lender, whose descriptor is the last one. The connection ends when that is closed, too.
func (l *Lent) Close() error {
	err := l.Conn.Close()
	_ = l.lender.Close() // who has gone needs no word
	return err
}

// Loan is a target that can be ended after it was handed over. Its methods may be called at any time and more than once.
type Loan struct {
	mu       sync.Mutex
	target   net.Conn // nil once it is lent
	fd       int      // of the socket while it is lent, else -1
	borrower net.Conn // the connection over which it was lent; nil before
	over     bool
}

// NewLoan makes a loan of target and owns it.
func NewLoan(target net.Conn) *Loan { return &Loan{target: target, fd: -1} }

// Lend is Accept for who must be able to end the connection later. It lends the loan's target where lendable and the caller can
// take it, and carries bytes everywhere else. When it returns, the connection is over, unless it says that it was lent: then it is
// when Wait returns.
func Lend(w http.ResponseWriter, r *http.Request, l *Loan, lendable bool) (in, out int64, lent bool, err error) {
	conn, buffered, err := answer(w)
	if err != nil {
		l.Release()
		return 0, 0, false, err
	}
	reply := switching
	if r.Header.Get(HeaderHandOver) == HandOverFD {
		lendable = lendable && r.Header.Get(HeaderLoan) == LoanKept && buffered.Reader.Buffered() == 0
		if borrower := unixConn(conn); lendable && borrower != nil {
			unsent, err := l.lend(borrower, conn)
			if err == nil {
				return 0, 0, true, nil
			}
			if !unsent {
				l.TakeBack()
				_ = conn.Close()
				return 0, 0, false, fmt.Errorf("lend: %w", err)
			}
		}
		reply += string(carried)
	}
	defer l.Release()
	defer conn.Close()
	in, out, err = carry(conn, buffered.Reader, reply, l.target)
	return in, out, false, err
}

// lend hands the target over and keeps a descriptor of it that no poller watches: the traffic of the borrower wakes nobody here.
func (l *Loan) lend(to *net.UnixConn, borrower net.Conn) (unsent bool, err error) {
	fd, err := duplicate(l.target)
	if err != nil {
		return true, err
	}
	if unsent, err = handOver(to, []byte(switching+string(loaned)), l.target); err != nil {
		_ = unix.Close(fd)
		return unsent, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.target.Close()
	if l.over { // ended while it was being handed over; what ended it reached the socket through target
		_ = unix.Close(fd)
		_ = borrower.Close()
		return false, nil
	}
	l.target, l.fd, l.borrower = nil, fd, borrower
	return false, borrower.SetDeadline(time.Time{})
}

// Wait returns when the borrower has closed what it was lent or has gone, or the loan was ended. The connection is over then,
// except after Release.
func (l *Loan) Wait() {
	l.mu.Lock()
	borrower := l.borrower
	l.mu.Unlock()
	if borrower == nil {
		return
	}
	var word [1]byte
	_, _ = borrower.Read(word[:]) // a borrower has nothing to say: whatever comes is its end
	l.mu.Lock()
	reset := l.fd >= 0 && resets(l.fd)
	l.mu.Unlock()
	l.end(!reset)
}

// TakeBack ends the connection for everybody who has a descriptor of it.
func (l *Loan) TakeBack() { l.end(true) }

// Release gives our own descriptor away: a connection that is carried ends, one that was lent is the borrower's alone.
func (l *Loan) Release() { l.end(false) }

func (l *Loan) end(shut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return
	}
	l.over = true
	if l.fd >= 0 {
		if shut {
			_ = unix.Shutdown(l.fd, unix.SHUT_RDWR) // fails when the other end has gone
		}
		_ = unix.Close(l.fd)
		l.fd = -1
		_ = l.borrower.Close()
		return
	}
	if shut {
		_ = control(l.target, func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	}
	_ = l.target.Close()
}

// resets reports whether closing the socket resets its connection, because its borrower wants the application to see an error
// and not an orderly end.
func resets(fd int) bool {
	linger, err := unix.GetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER)
	return err == nil && linger.Onoff != 0 && linger.Linger == 0
}

func duplicate(conn net.Conn) (fd int, err error) {
	err = control(conn, func(of int) (err error) {
		fd, err = unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func control(conn net.Conn, f func(fd int) error) error {
	s, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("the connection has no descriptor")
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var done error
	if err := raw.Control(func(fd uintptr) { done = f(int(fd)) }); err != nil {
		return err
	}
	return done
}
