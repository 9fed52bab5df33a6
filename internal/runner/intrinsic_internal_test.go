package runner

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// shout is an intrinsic app that answers each line, breaks down on "panic" and stays on "stay" until its ctx ends.
type shout struct{ left chan struct{} }

func (shout) Name() string              { return "shout" }
func (shout) Port() int                 { return tunnel.PortTerminal }
func (shout) Protocol() run.AppProtocol { return run.AppTCP }
func (s shout) Serve(ctx context.Context, conn net.Conn) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		switch lines.Text() {
		case "panic":
			panic("asked to")
		case "stay":
			_, _ = io.WriteString(conn, "staying\n")
			<-ctx.Done()
			close(s.left)
			return
		}
		_, _ = io.WriteString(conn, lines.Text()+"!\n")
	}
}

// ownServer serves the handler of a runner that has the one app, on a socket as the real one does.
func ownServer(t *testing.T, app Intrinsic) (r *Runner, socket string) {
	const token = "0123456789abcdef"
	r = &Runner{cfg: run.Config{Token: token}, log: slog.New(slog.DiscardHandler), carried: make(chan struct{}, maxCarried)}
	r.own = newIntrinsicSet([]Intrinsic{app}, func(string, any, []byte) {})
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	require.NoError(t, err)
	srv := httptest.NewUnstartedServer(r.handler())
	_ = srv.Listener.Close()
	srv.Listener = &bounded{Listener: l, free: make(chan struct{}, 2)}
	srv.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) }
	srv.Start()
	t.Cleanup(srv.Close)
	return r, socket
}

// plain hides that a connection is a socket, so that it is carried.
type plain struct{ net.Conn }

func open(t *testing.T, socket string, carried bool) net.Conn {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := net.Dial("unix", socket)
	require.NoError(t, err)
	if carried {
		c = plain{c}
	}
	conn, err := tunnel.Open(ctx, c, run.PathDial+"?port=7681", http.Header{"Authorization": {"Bearer 0123456789abcdef"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return conn
}

func TestIntrinsicAppsAreReachedByTunnels(t *testing.T) {
	for name, carried := range map[string]bool{"handed over": false, "carried": true} {
		t.Run(name, func(t *testing.T) {
			app := shout{left: make(chan struct{})}
			r, socket := ownServer(t, app)
			// More than the socket takes of ordinary calls: tunnels do not count there.
			var conns []net.Conn
			for range 4 {
				conns = append(conns, open(t, socket, carried))
			}
			for _, c := range conns {
				_, err := io.WriteString(c, "hello\n")
				require.NoError(t, err)
				line, err := bufio.NewReader(c).ReadString('\n')
				require.NoError(t, err)
				require.Equal(t, "hello!\n", line)
			}
			// One client's panic ends its own connection only.
			_, err := io.WriteString(conns[0], "panic\n")
			require.NoError(t, err)
			_, err = conns[0].Read(make([]byte, 1))
			require.Error(t, err)
			_, err = io.WriteString(conns[1], "stay\n")
			require.NoError(t, err)
			_, err = io.ReadFull(conns[1], make([]byte, len("staying\n")))
			require.NoError(t, err)
			r.own.close()
			await.Value(t, app.left)
			_, err = conns[2].Read(make([]byte, 1))
			require.Error(t, err, "the runner's end ends its apps")
		})
	}
}

func TestConnectionsToIntrinsicAppsAreBounded(t *testing.T) {
	s := newIntrinsicSet([]Intrinsic{shout{}}, func(string, any, []byte) {})
	defer s.close()
	app, ok := s.on(tunnel.PortTerminal)
	require.True(t, ok)
	var conns []net.Conn
	for range maxIntrinsic {
		c, err := s.connect(app)
		require.NoError(t, err)
		conns = append(conns, c)
	}
	_, err := s.connect(app)
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	for _, c := range conns {
		require.NoError(t, c.Close())
	}
	require.Eventually(t, func() bool {
		c, err := s.connect(app)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, time.Minute, time.Millisecond)
}
