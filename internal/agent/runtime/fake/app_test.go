package fake_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

const appToken = "0123456789abcdef"

// withApps starts a container whose runner is told apps.
func withApps(t *testing.T, h host, apps ...run.AppPort) (cluster.KernelID, *run.Client) {
	dir := t.TempDir()
	spec := h.spec("/berth/config.json")
	spec.Mounts = []runtime.Mount{{Source: dir, Target: "/berth"}}
	cfg := run.Config{Version: run.Version, Token: appToken, KernelID: string(spec.Identity.Kernel), Dir: "/berth", Apps: apps}
	require.NoError(t, run.WriteConfig(filepath.Join(dir, "config.json"), cfg))
	_, err := h.rt.Ensure(t.Context(), spec)
	require.NoError(t, err)
	return spec.Identity.Kernel, h.client(t, spec.Identity.Kernel, appToken)
}

func (h host) dial(t *testing.T, k cluster.KernelID, port int) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := h.rt.DialRunner(ctx, k)
	require.NoError(t, err)
	conn, err := tunnel.Open(ctx, c, run.PathDial+"?port="+strconv.Itoa(port), http.Header{"Authorization": {"Bearer " + appToken}})
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
		require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	}
	return conn, err
}

func TestAppsOfTheFakeAreReached(t *testing.T) {
	t.Parallel()
	for name, sockets := range map[string]bool{"in memory": false, "sockets": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, fake.Options{Sockets: sockets})
			k, c := withApps(t, h, run.AppPort{Name: "web", Protocol: run.AppHTTP, Ports: []int{8080}},
				run.AppPort{Name: "echo", Protocol: run.AppTCP, Ports: []int{9000}},
				run.AppPort{Name: "5000", Protocol: run.AppPreopen, Ports: []int{5000}})
			list, err := c.Apps(t.Context())
			require.NoError(t, err)
			require.Len(t, list.Apps, 6)
			require.Equal(t, "ttyd", list.Apps[2].Name)
			require.Equal(t, run.AppStopped, list.Apps[3].State)
			_, err = h.dial(t, k, 8080)
			require.Equal(t, "app-refused", fault.ReasonOf(err), "%v", err)
			for _, app := range []string{"web", "echo"} {
				res, err := c.StartApp(t.Context(), app, run.AppStartRequest{})
				require.NoError(t, err)
				require.Equal(t, run.AppReady, res.App.State)
			}
			web, err := h.dial(t, k, 8080)
			require.NoError(t, err)
			_, err = io.WriteString(web, "GET /path?q=1 HTTP/1.0\r\nHost: here\r\n\r\n")
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(web), nil)
			require.NoError(t, err)
			body, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Contains(t, string(body), "app web of kernel "+string(k)+"\nGET /path?q=1\nHost: here\n")

			echo, err := h.dial(t, k, 9000)
			require.NoError(t, err)
			_, err = io.WriteString(echo, "to and fro")
			require.NoError(t, err)
			require.NoError(t, echo.(interface{ CloseWrite() error }).CloseWrite())
			back, err := io.ReadAll(echo)
			require.NoError(t, err)
			require.Equal(t, "to and fro", string(back))

			_, err = c.StartApp(t.Context(), "5000", run.AppStartRequest{})
			require.Equal(t, "app-refused", fault.ReasonOf(err))
			stop, err := h.Listen(k, 5000, run.AppTCP, fake.Echo)
			require.NoError(t, err)
			_, err = c.StartApp(t.Context(), "5000", run.AppStartRequest{})
			require.NoError(t, err)
			stopOther, err := h.Listen(k, 4321, run.AppHTTP, fake.HTTP(http.NotFoundHandler()))
			require.NoError(t, err)
			defer stopOther()
			list, err = c.Apps(t.Context())
			require.NoError(t, err)
			require.Equal(t, run.App{AppPort: run.AppPort{Name: "port-4321", Protocol: run.AppHTTP, Ports: []int{4321}}, Origin: run.AppNoticed,
				State: run.AppReady}, list.Apps[6])
			live, err := h.dial(t, k, 5000)
			require.NoError(t, err)
			stop()
			_, err = live.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)

			live, err = h.dial(t, k, 9000)
			require.NoError(t, err)
			require.NoError(t, h.CrashApp(k, "echo", "it broke"))
			_, err = live.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
			list, err = c.Apps(t.Context())
			require.NoError(t, err)
			require.Equal(t, run.AppFailed, list.Apps[4].State)
			a, err := c.StopApp(t.Context(), "web")
			require.NoError(t, err)
			require.Equal(t, run.AppStopped, a.State)

			live, err = h.dial(t, k, tunnel.PortSSH)
			require.NoError(t, err)
			require.NoError(t, h.rt.Stop(t.Context(), k, time.Second))
			h.clock.advance(time.Minute)
			_, err = live.Read(make([]byte, 1))
			require.Error(t, err, "the container's end ends what was connected")
		})
	}
}

func TestAnImageOfTheFakeMayLackAProgram(t *testing.T) {
	t.Parallel()
	h := newHost(t, fake.Options{App: func(s runtime.Spec, app run.AppPort) fake.Serve {
		if app.Name == "gone" {
			return nil
		}
		return fake.DefaultApp(s, app)
	}})
	_, c := withApps(t, h, run.AppPort{Name: "gone", Protocol: run.AppHTTP, Ports: []int{8080}})
	list, err := c.Apps(t.Context())
	require.NoError(t, err)
	require.Equal(t, run.AppMissing, list.Apps[3].State)
	_, err = c.StartApp(t.Context(), "gone", run.AppStartRequest{})
	require.Equal(t, "app-missing", fault.ReasonOf(err))
}
