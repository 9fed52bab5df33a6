package runner_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// boards stands for a well-known app's program: it serves who it runs as and how it was called.
const boards = `#!/usr/bin/python3
import http.server, os, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{os.getuid()} {' '.join(sys.argv[1:])} {os.environ['HOME']}".encode())
http.server.HTTPServer((sys.argv[2], int(sys.argv[4])), H).serve_forever()
`

// unused is a port that nobody listens on and no other test was told. These tests have the ports from 64000 to 64499: no other package has
// them, nor does the kernel give them to anybody. Each process begins elsewhere.
func unused(t *testing.T) int {
	for range 500 {
		port := 64_000 + (os.Getpid()*37+int(portsTold.Add(1)))%500
		if l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			require.NoError(t, l.Close())
			return port
		}
	}
	t.Fatal("no port is free")
	return 0
}

var portsTold atomic.Int64

func appNamed(t *testing.T, b *box, name string) run.App {
	list, err := b.c.Apps(ctx(t))
	require.NoError(t, err)
	for _, a := range list.Apps {
		if a.Name == name {
			return a
		}
	}
	return run.App{}
}

func TestAnAppIsStartedAndReached(t *testing.T) {
	cfg := config(t)
	port := unused(t)
	cfg.Apps = []run.AppPort{{Name: "tensorboard", Protocol: run.AppHTTP, Ports: []int{port}}}
	b := start(t, cfg)
	hello, err := b.c.Hello(ctx(t))
	require.NoError(t, err)
	require.Contains(t, hello.Capabilities, run.CanApps)
	require.Equal(t, run.AppMissing, appNamed(t, b, "tensorboard").State)
	_, err = b.c.StartApp(ctx(t), "tensorboard", run.AppStartRequest{})
	require.Equal(t, "app-missing", fault.ReasonOf(err), "%v", err)
	require.Contains(t, fault.NextOf(err), "pip install")

	b.put("install.sh", "mkdir -p ~/.local/bin && cat > ~/.local/bin/tensorboard && chmod +x ~/.local/bin/tensorboard")
	b.put("boards.py", boards)
	require.Zero(t, b.shell("install", "sh install.sh < boards.py").exit)
	res, err := b.c.StartApp(ctx(t), "tensorboard", run.AppStartRequest{Arguments: map[string]any{"--logdir": "here"}})
	require.NoError(t, err)
	require.Equal(t, run.AppReady, res.App.State)
	require.Equal(t, port, res.Port)
	conn, err := b.dial(strconv.Itoa(res.Port), false)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n")
	require.NoError(t, err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, strconv.Itoa(cfg.User.UID)+" --host 127.0.0.1 --port "+strconv.Itoa(port)+" --logdir here "+cfg.User.Home, string(body))

	log, err := b.c.AppLog(ctx(t), "tensorboard", 100_000)
	require.NoError(t, err)
	require.Contains(t, string(log), "it answers on port")
	_, err = b.c.AppLog(ctx(t), "sshd", 0)
	require.True(t, fault.Is(err, fault.NotFound))

	a, err := b.c.StopApp(ctx(t), "tensorboard")
	require.NoError(t, err)
	require.Equal(t, run.AppStopped, a.State)
	_, err = b.dial(strconv.Itoa(port), false)
	require.Equal(t, "app-refused", fault.ReasonOf(err))
	_, err = b.c.StartApp(ctx(t), "tensorboard", run.AppStartRequest{})
	require.NoError(t, err)
	// The session's end ends it, with no restart in between; launch's cleanup waits for that.
}

func TestAProgramOfTheSessionIsNoticed(t *testing.T) {
	b := start(t, config(t))
	port := unused(t)
	name := "port-" + strconv.Itoa(port)
	b.put("serve.py", "import http.server\nhttp.server.HTTPServer(('127.0.0.1', "+strconv.Itoa(port)+
		"), http.server.SimpleHTTPRequestHandler).serve_forever()\n")
	s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"python3", "serve.py"}})
	require.NoError(t, err)
	defer s.Close()
	// A server that is slow to answer is listed as TCP until it is asked again, after seconds.
	var a run.App
	require.Eventually(t, func() bool { a = appNamed(t, b, name); return a.Protocol == run.AppHTTP }, time.Minute, 20*time.Millisecond)
	require.Equal(t, run.AppReady, a.State)
	require.Equal(t, run.AppNoticed, a.Origin)
}
