package tunnel_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/tunnel"
)

const ok101 = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth-conn/1\r\n\r\n"

// piece is what a callee says at once: bytes and descriptors.
type piece struct {
	text string
	fds  []int
}

// answered opens a tunnel to a callee that says pieces and hangs up.
func answered(t *testing.T, pieces ...piece) (net.Conn, error) {
	t.Helper()
	l := listenUnix(t)
	defer l.Close()
	c := dial(t, l)
	s, err := l.Accept()
	require.NoError(t, err)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer s.Close()
		_ = s.SetDeadline(time.Now().Add(patience))
		_, _ = s.Read(make([]byte, 4096))
		for _, p := range pieces {
			var oob []byte
			if p.fds != nil {
				oob = syscall.UnixRights(p.fds...)
			}
			if _, _, err := s.(*net.UnixConn).WriteMsgUnix([]byte(p.text), oob, nil); err != nil {
				return // the caller has seen enough
			}
		}
	})
	return tunnel.Open(within(t), c, "/kernels/k/ports/1", nil)
}

// sockets are descriptors of every kind, closed with the test.
func sockets(t *testing.T) (tcp, unix, datagram, udp, listening, unconnected, pipe, file int) {
	t.Helper()
	add := func(fd int, err error) int {
		require.NoError(t, err)
		t.Cleanup(func() { _ = syscall.Close(fd) })
		return fd
	}
	pair := func(kind int) int {
		p, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
		add(p[1], err)
		return add(p[0], err)
	}
	socket := func(kind int) int { return add(syscall.Socket(syscall.AF_INET, kind|syscall.SOCK_CLOEXEC, 0)) }
	loopback := &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}
	listening = socket(syscall.SOCK_STREAM)
	require.NoError(t, syscall.Bind(listening, loopback))
	require.NoError(t, syscall.Listen(listening, 8))
	at, err := syscall.Getsockname(listening)
	require.NoError(t, err)
	tcp = socket(syscall.SOCK_STREAM)
	require.NoError(t, syscall.Connect(tcp, at))
	udp = socket(syscall.SOCK_DGRAM)
	require.NoError(t, syscall.Connect(udp, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: 9}))
	var ends [2]int
	require.NoError(t, syscall.Pipe2(ends[:], syscall.O_CLOEXEC))
	add(ends[1], nil)
	return tcp, pair(syscall.SOCK_STREAM), pair(syscall.SOCK_DGRAM), udp, listening, socket(syscall.SOCK_STREAM), add(ends[0], nil),
		add(syscall.Open(os.DevNull, syscall.O_RDONLY|syscall.O_CLOEXEC, 0))
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}

// TestHostileCallees runs alone: it counts descriptors.
func TestHostileCallees(t *testing.T) {
	tcp, unix, datagram, udp, listening, unconnected, pipe, file := sockets(t)
	many := make([]int, 250)
	for i := range many {
		many[i] = tcp
	}
	one := func(text string, fds ...int) []piece { return []piece{{text, fds}} }
	drip := []piece{}
	for range 200 {
		drip = append(drip, piece{"H", []int{tcp}})
	}
	for name, pieces := range map[string][]piece{
		"nothing":                  nil,
		"no HTTP":                  one("SSH-2.0-OpenSSH\r\n\r\n"),
		"cut head":                 one("HTTP/1.1 101 Switching"),
		"no byte after the head":   one(ok101),
		"unknown byte":             one(ok101 + "X"),
		"handed nothing":           one(ok101 + "F"),
		"lent nothing":             one(ok101 + "L"),
		"lent two":                 {{ok101, nil}, {"L", []int{tcp, tcp}}},
		"lent a pipe":              {{ok101, nil}, {"L", []int{pipe}}},
		"carried and a descriptor": one(ok101+"S", tcp),
		"unknown byte, descriptor": {{ok101, nil}, {"X", []int{tcp}}},
		"two descriptors":          {{ok101, nil}, {"F", []int{tcp, tcp}}},
		"two descriptors, twice":   {{ok101, []int{tcp}}, {"F", []int{unix}}},
		"very many descriptors":    {{ok101, nil}, {"F", many}},
		"many with the head":       one(ok101+"F", many...),
		"a descriptor a byte":      drip,
		"datagrams":                {{ok101, nil}, {"F", []int{datagram}}},
		"udp":                      {{ok101, nil}, {"F", []int{udp}}},
		"listening":                {{ok101, nil}, {"F", []int{listening}}},
		"unconnected":              {{ok101, nil}, {"F", []int{unconnected}}},
		"pipe":                     {{ok101, nil}, {"F", []int{pipe}}},
		"file":                     {{ok101, nil}, {"F", []int{file}}},
		"long head":                one("HTTP/1.1 101 x\r\nA: " + strings.Repeat("a", 20000) + "\r\n\r\nF"),
		"endless head":             one(strings.Repeat("a\r\n", 20000)),
		"other protocol":           one("HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\nF", tcp),
		"continue":                 one("HTTP/1.1 100 Continue\r\n\r\n"),
		"success":                  one("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
		"redirect":                 one("HTTP/1.1 302 Found\r\nLocation: http://x/\r\nContent-Length: 0\r\n\r\n"),
		"refusal with descriptor":  one("HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n{}", tcp),
	} {
		before := descriptors(t)
		conn, err := answered(t, pieces...)
		require.Error(t, err, name)
		require.Nil(t, conn, name)
		require.True(t, fault.Is(err, fault.Unavailable), "%s: %v", name, err)
		require.LessOrEqual(t, descriptors(t), before, "%s: descriptors leak", name)
	}
	// A refusal's words are bounded, and so is a body that says no length.
	_, err := answered(t, piece{"HTTP/1.1 409 x\r\n\r\n" + strings.Repeat("x", 1<<16), nil})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Less(t, len(err.Error()), 1000)
	// Honest ones, in whatever pieces.
	for _, pieces := range [][]piece{
		{{ok101, nil}, {"F", []int{tcp}}}, {{ok101 + "F", []int{tcp}}}, {{ok101[:20], nil}, {ok101[20:] + "F", []int{unix}}},
		{{ok101[:len(ok101)-2], nil}, {"\r", nil}, {"\n", []int{tcp}}, {"F", nil}}, {{ok101, nil}, {"L", []int{tcp}}},
	} {
		before := descriptors(t)
		conn, err := answered(t, pieces...)
		require.NoError(t, err)
		require.NotNil(t, conn.RemoteAddr())
		require.NoError(t, conn.Close())
		require.LessOrEqual(t, descriptors(t), before)
	}
}

// TestBytesBehindTheReply checks that no byte of the application is lost, wherever the pieces of the reply are cut.
func TestBytesBehindTheReply(t *testing.T) {
	for cut := range len(ok101) + 3 {
		text := ok101 + "Sapp"
		conn, err := answered(t, piece{text[:cut], nil}, piece{text[cut:], nil})
		require.NoError(t, err, "cut at %d", cut)
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		require.Equal(t, "app", string(got), "cut at %d", cut)
		require.NoError(t, conn.Close())
	}
}

// FuzzReply checks that no reply makes a caller hang, crash, or lose a byte behind it.
func FuzzReply(f *testing.F) {
	f.Add([]byte(ok101+"Sapp"), 10)
	f.Add([]byte("HTTP/1.1 404 x\r\nContent-Length: 2\r\n\r\n{}"), 0)
	f.Add([]byte("HTTP/1.1 101 x\r\nUpgrade: berth-conn/1\r\nTransfer-Encoding: chunked\r\n\r\nFF"), 30)
	f.Fuzz(func(t *testing.T, reply []byte, cut int) {
		near, far, err := unixPair()
		require.NoError(t, err)
		defer far.Close()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			cut := min(max(cut, 0), len(reply))
			_, _ = far.Write(reply[:cut])
			_, _ = far.Write(reply[cut:])
			_ = far.CloseWrite()
		})
		conn, err := tunnel.Open(ctx, near, "/kernels/k/ports/"+strconv.Itoa(1), nil)
		if err != nil {
			require.NotEqual(t, fault.Timeout, fault.KindOf(err), "%v", err)
			return
		}
		defer conn.Close()
		got, err := io.ReadAll(conn)
		require.NoError(t, err)
		_, want, _ := bytes.Cut(reply, []byte("\r\n\r\n"))
		require.Equal(t, want[1:], got)
	})
}

func unixPair() (near, far *net.UnixConn, err error) {
	p, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	var ends [2]*net.UnixConn
	for i, fd := range p {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			return nil, nil, err
		}
		ends[i] = c.(*net.UnixConn)
	}
	return ends[0], ends[1], nil
}
