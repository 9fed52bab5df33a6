package tunnel

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// maxHead bounds the callee's reply head, maxFailure the body of a refusal, in bytes; openLimit bounds the opening when its
// context does not.
const (
	maxHead    = 8 << 10
	maxFailure = 16 << 10
	openLimit  = 30 * time.Second
)

// Open asks the peer of conn for a connection to what path names and returns it: conn itself, a socket that was handed over in
// its place (conn is then closed), or one that was lent (*Lent, which keeps conn open). ctx bounds the opening only. On every
// error conn is closed. header is sent along, less what the protocol itself says. Errors are faults: what the peer refused with,
// Timeout or Unavailable.
func Open(ctx context.Context, conn net.Conn, path string, header http.Header) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, openLimit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	opened, err := open(conn, path, header)
	if stop() && err == nil {
		return opened, nil
	}
	// Even if the opening has succeeded: the deadline may strike conn any time now.
	if opened != nil {
		_ = opened.Close()
	}
	_ = conn.Close()
	if ctx.Err() != nil {
		return nil, fault.New(fault.Timeout, "the connection was not opened in time").WithReason("tunnel").WithCause(context.Cause(ctx))
	}
	return nil, err
}

// open does the work of Open; after an error conn and what came over it are worth nothing.
func open(conn net.Conn, path string, header http.Header) (net.Conn, error) {
	if strings.ContainsFunc(path, func(c rune) bool { return c <= ' ' || c >= 0x7f }) || !strings.HasPrefix(path, "/") {
		return nil, fault.New(fault.Internal, "a tunnel cannot be asked for at %q", path)
	}
	c := newCallee(conn)
	defer c.drop()
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: berth\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n", path, Protocol)
	if c.unix != nil {
		fmt.Fprintf(&b, "%s: %s\r\n%s: %s\r\n", HeaderHandOver, HandOverFD, HeaderLoan, LoanKept)
	}
	own := map[string]bool{"Host": true, "Connection": true, "Upgrade": true, "Content-Length": true, "Transfer-Encoding": true,
		HeaderHandOver: true, HeaderLoan: true}
	if err := header.WriteSubset(&b, own); err != nil {
		return nil, fmt.Errorf("open tunnel: %w", err)
	}
	b.WriteString("\r\n")
	if _, err := conn.Write(b.Bytes()); err != nil {
		return nil, unreachable(err)
	}
	head, err := c.readHead()
	if err != nil {
		return nil, unreachable(err)
	}
	if err := check(head, conn); err != nil {
		return nil, err
	}
	if c.unix == nil {
		return conn, nil
	}
	return c.result()
}

// check reads the reply's head; a refusal's body follows it on rest.
func check(head []byte, rest io.Reader) error {
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), rest)), nil)
	if err != nil {
		return unreachable(err)
	}
	switch {
	case resp.StatusCode >= 400:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
		return run.FaultOf(resp.StatusCode, text)
	case resp.StatusCode != http.StatusSwitchingProtocols, !strings.EqualFold(resp.Header.Get("Upgrade"), Protocol):
		return unreachable(fmt.Errorf("the peer answered %d and does not speak %s", resp.StatusCode, Protocol))
	}
	return nil
}

// callee reads a peer's reply and no byte more: what follows belongs to the application. Nor does it lose a descriptor
// that comes along with any of the bytes.
type callee struct {
	net.Conn
	unix *net.UnixConn   // nil when no descriptor can come
	raw  syscall.RawConn // nil when conn cannot be peeked into
	fds  []int
}

func newCallee(conn net.Conn) *callee {
	c := &callee{Conn: conn}
	var s syscall.Conn
	switch t := conn.(type) {
	case *net.UnixConn:
		c.unix, s = t, t
	case *net.TCPConn:
		s = t
	default: // TLS, for one: what it holds in memory is read byte by byte
		return c
	}
	if raw, err := s.SyscallConn(); err == nil {
		c.raw = raw
	}
	return c
}

// drop closes the descriptors that were received and not passed on.
func (c *callee) drop() {
	for _, fd := range c.fds {
		_ = syscall.Close(fd)
	}
	c.fds = nil
}

var headEnd = []byte("\r\n\r\n")

func (c *callee) readHead() ([]byte, error) {
	head := make([]byte, 0, 512)
	for {
		// The part that is looked at is at least one byte and within the bounds.
		if len(head) >= maxHead {
			return nil, errors.New("the reply's head is too long")
		}
		part := head[len(head):min(cap(head), maxHead)]
		if len(part) == 0 {
			head = append(head, 0)[:len(head)]
			continue
		}
		n := 1
		if c.raw != nil {
			seen, err := c.peek(part)
			if err != nil {
				return nil, err
			}
			n = seen
			// The end may have begun in what was read before.
			from := max(0, len(head)-len(headEnd)+1)
			if i := bytes.Index(head[from:len(head)+seen], headEnd); i >= 0 {
				n = from + i + len(headEnd) - len(head)
			}
		}
		if err := c.consume(part[:n]); err != nil {
			return nil, err
		}
		head = head[:len(head)+n]
		if bytes.HasSuffix(head, headEnd) {
			return head, nil
		}
	}
}

// peek waits for bytes and copies them to p without taking them.
func (c *callee) peek(p []byte) (n int, err error) {
	rerr := c.raw.Read(func(fd uintptr) bool {
		for {
			n, _, err = syscall.Recvfrom(int(fd), p, syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
			if !errors.Is(err, syscall.EINTR) {
				return !errors.Is(err, syscall.EAGAIN)
			}
		}
	})
	switch {
	case rerr != nil:
		return 0, rerr
	case err != nil:
		return 0, err
	case n <= 0:
		return 0, io.ErrUnexpectedEOF
	}
	return n, nil
}

// consume reads exactly p and keeps the descriptor that comes along.
func (c *callee) consume(p []byte) error {
	if c.unix == nil {
		_, err := io.ReadFull(c.Conn, p)
		return err
	}
	oob := make([]byte, syscall.CmsgSpace(4*4)) // room for more than one, to notice a liar; what has none is closed by the kernel
	for len(p) > 0 {
		n, oobn, flags, _, err := c.unix.ReadMsgUnix(p, oob)
		if err != nil {
			return err
		}
		if n <= 0 {
			return io.ErrUnexpectedEOF
		}
		c.keep(oob[:oobn])
		if len(c.fds) > 1 || flags&syscall.MSG_CTRUNC != 0 {
			return errors.New("the reply brings more than one descriptor")
		}
		p = p[n:]
	}
	return nil
}

func (c *callee) keep(oob []byte) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return
	}
	for _, m := range messages {
		if fds, err := syscall.ParseUnixRights(&m); err == nil {
			c.fds = append(c.fds, fds...)
		}
	}
}

// result reads the byte that says how the bytes travel.
func (c *callee) result() (net.Conn, error) {
	var one [1]byte
	if err := c.consume(one[:]); err != nil {
		return nil, unreachable(err)
	}
	switch {
	case one[0] == carried && len(c.fds) == 0:
		return c.Conn, nil
	case one[0] != handed && one[0] != loaned || len(c.fds) != 1:
		return nil, unreachable(errors.New("the reply to a hand-over cannot be understood"))
	}
	fd := c.fds[0]
	c.fds = nil
	conn, err := adopt(fd)
	if err != nil {
		return nil, unreachable(err)
	}
	if one[0] == loaned {
		return &Lent{Conn: conn, lender: c.Conn}, nil
	}
	_ = c.Close()
	return conn, nil
}
