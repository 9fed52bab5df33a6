package e2e_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
)

// line is a long TCP connection to the echo; what it says comes back in order, or it is broken.
type line struct {
	t     testing.TB
	conn  net.Conn
	in    *bufio.Reader
	count int
}

func newLine(t *testing.T, address string) *line {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &line{t: t, conn: conn, in: bufio.NewReader(conn)}
}

// lives says something and hears it.
func (l *line) lives() {
	l.t.Helper()
	l.count++
	require.NoError(l.t, l.conn.SetDeadline(time.Now().Add(patience)))
	_, err := fmt.Fprintf(l.conn, "line %d\n", l.count)
	require.NoError(l.t, err)
	got, err := l.in.ReadString('\n')
	require.NoError(l.t, err, "the connection did not survive")
	require.Equal(l.t, fmt.Sprintf("line %d\n", l.count), got)
}

// TestAppsSurviveKills kills the manager, the agent and the app proxy, each a process of its own, while connections are open.
func TestAppsSurviveKills(t *testing.T) {
	t.Parallel()
	needEngine(t)
	listen := freePort(t)
	// Not among those of `berth up`, of sessions in the network of their hosts, and of connections of any program.
	first := 32000 + os.Getpid()%700
	a := newApart(t, "i-apps", "", fmt.Sprintf(`
[appproxy]
name = "one"
managers = ["HUB"]
join_token_file = "DIR/appproxy.token"
state_dir = "DIR/appproxy"
listen = "127.0.0.1:%s"
url = "http://127.0.0.1:%s"
domain = "apps.localhost"
[appproxy.ports]
from = %d
to = %d
`, listen, listen, first, first+20))
	a.begin("appproxy")
	demo := a.demo("demo")
	c := newConsole(t, a.env())
	byPort, byName := c.launch(demo, "web", "mode=port"), c.launch(demo, "web", "mode=subdomain")
	v := newVisitor(t, "").enters(byPort).enters(byName)
	gateway := c.gateway(demo, "echo")
	long := newLine(t, gateway)
	long.lives()
	socket, err := v.socket(byName.Base, byName.Base)
	require.NoError(t, err)
	defer func() { _ = socket.CloseNow() }()
	echo := func(ws *websocket.Conn) {
		t.Helper()
		require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("hi")))
		_, m, err := ws.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hi", string(m))
	}
	echo(socket)
	app := v.sees(byPort.Base).PID
	everything := func(t *testing.T) { // that visitors do, on new connections
		t.Helper()
		v.client.CloseIdleConnections()
		require.Equal(t, app, v.sees(byPort.Base).PID, "the app was started twice")
		require.Equal(t, app, v.sees(byName.Base).PID)
		require.Equal(t, "x", echoes(t, gateway, "", "x"))
	}

	t.Run("manager", func(t *testing.T) {
		a.kill("manager")
		everything(t) // also while it is dead: the proxy goes on with what it knows
		long.lives()
		echo(socket)
		a.begin("manager")
		everything(t)
		long.lives()
		echo(socket)
		a.eventually("apps can be published again", func() bool {
			_, status, _ := c.tryLaunch(demo, "late")
			return status == 200
		})
	})
	t.Run("agent", func(t *testing.T) {
		a.kill("agent")
		long.lives() // on one host nobody stands between the proxy and the app
		echo(socket)
		a.begin("agent")
		a.eventually("new connections reach the apps", func() bool {
			v.client.CloseIdleConnections()
			status, _, _ := v.get(byPort.Base + "/headers")
			return status == 200 && echoes(t, gateway, "", "x") == "x"
		})
		everything(t)
		long.lives()
		echo(socket)
	})
	t.Run("app proxy", func(t *testing.T) {
		stream := v.streams(byPort.Base)
		a.kill("appproxy")
		stream.ends() // clients notice
		a.begin("appproxy")
		a.eventually("the same cookies, the same addresses", func() bool {
			for _, base := range []string{byPort.Base, byName.Base} {
				resp, err := v.client.Get(base + "/headers")
				if err != nil {
					return false
				}
				_ = resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					return false
				}
			}
			return echoes(t, gateway, "", "x") == "x" // each port is opened by itself
		})
		everything(t)
		again, err := v.socket(byName.Base, byName.Base)
		require.NoError(t, err)
		echo(again)
		_ = again.CloseNow()
		newLine(t, gateway).lives()
		newVisitor(t, "").shut(byPort.Base + "/headers")
	})
	a.must("session", "rm", "--yes", "demo")
	a.clean("--config", a.config)
}
