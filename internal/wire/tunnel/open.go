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
	"os"
	"syscall"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// maxHead bounds the callee's reply head, maxFailure the body of a refusal, in bytes.
const (
	maxHead    = 8 << 10
	maxFailure = 16 << 10
)

// Open asks the peer of conn for a connection to what path names and returns it: conn itself, or a socket that was handed
// over in its place (conn is then closed). ctx bounds the opening only. On every error conn is closed. header is sent
// along; it must not name the upgrade. Errors are faults: what the peer refused with, or Unavailable.
func Open(ctx context.Context, conn net.Conn, path string, header http.Header) (_ net.Conn, err error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil { // the deadline may strike the open connection
			err = context.Cause(ctx)
		}
		if err != nil {
			_ = conn.Close()
			if ctx.Err() != nil {
				err = fault.New(fault.Timeout, "the connection was not opened in time").WithCause(err)
			}
		}
	}()
	unix, _ := conn.(*net.UnixConn)
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: berth\r\nConnection: Upgrade\r\nUpgrade: %s\r\nContent-Length: 0\r\n", path, Protocol)
	if unix != nil {
		fmt.Fprintf(&b, "%s: %s\r\n", HeaderHandOver, HandOverFD)
	}
	if err := header.Write(&b); err != nil {
		return nil, fmt.Errorf("open tunnel: %w", err)
	}
	b.WriteString("\r\n")
	if _, err := conn.Write(b.Bytes()); err != nil {
		return nil, unreachable(err)
	}
	head, err := readHead(conn)
	if err != nil {
		return nil, unreachable(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), conn)), nil)
	if err != nil {
		return nil, unreachable(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure))
		return nil, run.FaultOf(resp.StatusCode, text)
	}
	if unix == nil {
		return conn, nil
	}
	return take(unix)
}

// readHead reads up to the empty line and no byte more: what follows belongs to the application.
func readHead(conn net.Conn) ([]byte, error) {
	head := make([]byte, 0, 256)
	var one [1]byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) >= maxHead {
			return nil, errors.New("the reply's head is too long")
		}
		if _, err := io.ReadFull(conn, one[:]); err != nil {
			return nil, err
		}
		head = append(head, one[0])
	}
	return head, nil
}

// take reads the byte that says how the bytes travel, with the descriptor that may come along.
func take(unix *net.UnixConn) (net.Conn, error) {
	var one [1]byte
	oob := make([]byte, syscall.CmsgSpace(4*8)) // room for more than one, so that a liar's others are closed too
	n, oobn, flags, _, err := unix.ReadMsgUnix(one[:], oob)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, unreachable(err)
	}
	files := received(oob[:oobn])
	defer func() {
		for _, f := range files {
			_ = f.Close() // net.FileConn made a copy
		}
	}()
	switch {
	case one[0] == carried && len(files) == 0:
		return unix, nil
	case one[0] != handed || len(files) != 1 || flags&syscall.MSG_CTRUNC != 0:
		return nil, unreachable(errors.New("the reply to a hand-over cannot be understood"))
	}
	conn, err := net.FileConn(files[0])
	if err != nil {
		return nil, unreachable(err)
	}
	switch c := conn.(type) {
	case *net.TCPConn: // keep-alive and the like are the socket's own
	case *net.UnixConn:
	default: // datagrams have no end and no order
		_ = c.Close()
		return nil, unreachable(fmt.Errorf("a %T was handed over", c))
	}
	_ = unix.Close()
	return conn, nil
}

func received(oob []byte) []*os.File {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var files []*os.File
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			continue
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "tunnel"))
		}
	}
	return files
}

func unreachable(err error) error {
	var f *fault.Error
	if errors.As(err, &f) {
		return err
	}
	return fault.Unavailablef("the way into the session broke off").WithReason("tunnel").WithCause(err)
}
