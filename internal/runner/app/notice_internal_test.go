package app

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/address"
	waiting "berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
)

const socketTable = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:22B8 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 11 1 0000000000000000 100 0 0 10 0
   1: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 12 1 0000000000000000 100 0 0 10 0
   2: 0100007F:22B9 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 13 1 0000000000000000 100 0 0 10 0
   3: 020011AC:1F91 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 14 1 0000000000000000 100 0 0 10 0
   4: short
   5: ZZZZZZZZ:1F92 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 15 1
   6: 00000000:0000 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 16 1
   7: 00000000:1F93 00000000:0000 0A 00000000:00000000 00:00000000 00000000  x        0 16 1
`

const socketTable6 = `  sl local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt uid timeout inode
   0: 00000000000000000000000001000000:0BB8 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 21 1
   1: 00000000000000000000000000000000:0BB9 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 22 1
   2: 0000000000000000FFFF00000100007F:0BBA 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 1000 0 23 1
`

func TestParseSockets(t *testing.T) {
	require.Equal(t, []listener{{port: 8888, inode: 11, uid: 1000}, {port: 8080, inode: 12, uid: 1000}},
		parseSockets(strings.NewReader(socketTable), false))
	require.Equal(t, []listener{{port: 3000, inode: 21, uid: 1000, six: true}, {port: 3001, inode: 22}, {port: 3002, inode: 23, uid: 1000}},
		parseSockets(strings.NewReader(socketTable6), true))
}

func portAt(t *testing.T, l net.Listener) int {
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr).Port
}

// longPatience is for programs that do answer: it is not waited for.
const longPatience = time.Minute

func TestSpeaks(t *testing.T) {
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	p, sure := speaks(context.Background(), web.Listener.Addr().(*net.TCPAddr).Port, longPatience)
	require.Equal(t, run.AppHTTP, p)
	require.True(t, sure)
	for name, serve := range map[string]func(net.Conn){
		"speaks first": func(c net.Conn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n"); _, _ = io.Copy(io.Discard, c) },
		"echoes":       func(c net.Conn) { _, _ = io.Copy(c, c) },
		"ends":         func(net.Conn) {},
		// The kernel says with a reset that the question was not read.
		"ends when it is asked": func(c net.Conn) { _, _ = io.ReadFull(c, make([]byte, 1)) },
	} {
		t.Run(name, func(t *testing.T) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			port := portAt(t, l)
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					go func() { defer c.Close(); serve(c) }()
				}
			}()
			p, sure := speaks(context.Background(), port, longPatience)
			require.Equal(t, run.AppTCP, p)
			require.True(t, sure)
		})
	}
	t.Run("says nothing", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		p, sure := speaks(context.Background(), portAt(t, l), listPatience) // nobody accepts: the kernel does
		require.Equal(t, run.AppTCP, p)
		require.False(t, sure)
	})
}

func TestAnswers(t *testing.T) {
	l := address.Listen(t)
	port := portAt(t, l)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan bool, 1)
	go func() { done <- answers(ctx, port, run.AppHTTP) }()
	c, err := l.Accept()
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, 5))
	require.NoError(t, err)
	cancel()
	require.False(t, waiting.Value(t, done), "a server that says nothing is not ready")
	require.NoError(t, c.Close())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, 5))
			_ = c.Close()
		}
	}()
	within, cancel := context.WithTimeout(context.Background(), longPatience)
	defer cancel()
	require.True(t, await(within, port, run.AppHTTP), "a server that refuses HTTP/1.1 is there")
	require.True(t, await(within, port, run.AppTCP))
	require.NoError(t, l.Close())
	require.False(t, answers(context.Background(), port, run.AppTCP))
}

func TestSocketsAreAskedOnce(t *testing.T) {
	const port = 8000
	asked := 0
	now := time.Unix(1_800_000_000, 0)
	n := noticer{now: func() time.Time { return now }}
	n.ask = func(_ context.Context, at int, patience time.Duration) (run.AppProtocol, bool) {
		require.Equal(t, port, at)
		require.Equal(t, listPatience, patience)
		asked++
		return run.AppTCP, false // it said nothing
	}
	look := func() run.AppProtocol {
		return n.protocols(context.Background(), []listener{{port: port, inode: 1}}, listPatience)[port]
	}
	for range 3 {
		require.Equal(t, run.AppTCP, look())
	}
	require.Equal(t, 1, asked)
	for i, pause := range []time.Duration{askAgain, 2 * askAgain, 4 * askAgain} {
		now = now.Add(pause - 1)
		require.Equal(t, run.AppTCP, look())
		require.Equal(t, i+1, asked)
		now = now.Add(1)
		require.Equal(t, run.AppTCP, look())
		require.Equal(t, i+2, asked)
	}
	require.Equal(t, map[int]run.AppProtocol{29500: run.AppTCP},
		n.protocols(context.Background(), []listener{{port: 29500, inode: 2}}, listPatience))
	require.Equal(t, 4, asked)
}

// TestABusyServerIsAskedByWhoOpensIt: a program listens before it has loaded what it needs to answer.
func TestABusyServerIsAskedByWhoOpensIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	port := portAt(t, l)
	now := time.Unix(1_800_000_000, 0)
	n := noticer{now: func() time.Time { return now }}
	of := []listener{{port: port, inode: 1}}
	require.Equal(t, run.AppTCP, n.protocols(t.Context(), of, listPatience)[port])
	go func() { _ = http.Serve(l, http.NotFoundHandler()) }()
	require.Equal(t, run.AppTCP, n.protocols(t.Context(), of, listPatience)[port], "a list does not ask again at once")
	require.Equal(t, run.AppHTTP, n.protocols(t.Context(), of, longPatience)[port])
	require.Equal(t, run.AppHTTP, n.protocols(t.Context(), of, listPatience)[port])
}
