package manager_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/testkit"
	"berth.dev/berth/internal/wire/run"
)

// TestAppsWithAProxy: two managers, an agent and a real app proxy, from an app's start to its session's end: the proxy watches
// one manager and hears what is done at the other, and what it carries outlives a restart of its manager.
func TestAppsWithAProxy(t *testing.T) {
	t.Parallel()
	// An agent that is too busy for its heartbeats is not lost, nor are its streams.
	c := testkit.New(t, testkit.Options{Managers: 2, Manager: func(m *manager.Config) { m.Agents.Lease = time.Minute }})
	ctx := t.Context()
	id := c.Create(request.Session{Name: "my-lab"})
	kernel := c.Running(id).MainKernel().ID
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "hello "+r.URL.Path+" "+strings.Join(r.Header["Cookie"], "|"))
	})
	for port, app := range map[int]struct {
		protocol string
		serve    fake.Serve
	}{8000: {"http", fake.HTTP(hello)}, 9000: {"tcp", fake.Echo}} {
		_, err := c.Agents[0].Engine.Listen(kernel, port, run.AppProtocol(app.protocol), app.serve)
		require.NoError(t, err)
	}
	cfg := appproxy.DefaultConfig()
	cfg.Name, cfg.Managers, cfg.StateDir = "p", []string{c.Managers[1].AgentAddr()}, t.TempDir()
	var err error
	cfg.JoinToken, err = c.Managers[1].Admit(ctx, platform.RoleAppProxy, cfg.Name, "", cfg.StateDir)
	require.NoError(t, err)
	cfg.Listen, cfg.Domain, cfg.Ports = "127.0.0.1:0", "apps.localhost", appproxy.PortsConfig{}
	p, err := appproxy.New(cfg, appproxy.Deps{Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	group, err := chassis.NewGroup(slog.New(slog.DiscardHandler), p.Services()...)
	require.NoError(t, err)

	client := c.Client() // of the first manager
	_, err = client.StartApp(ctx, "my-lab", api.StartApp{App: "port-8000"})
	var refused *api.Error
	require.True(t, errors.As(err, &refused), "%v", err)
	require.Equal(t, api.CodeNoAppProxy, refused.Code)
	through, err := client.DialApp(ctx, "my-lab", "port-9000", 0)
	require.NoError(t, err, "through the manager, while there is no proxy")
	echo(t, through)
	require.NoError(t, through.Close())

	require.NoError(t, group.Start(ctx))
	t.Cleanup(func() { _ = group.Stop(context.Background()) })
	c.Until("the proxy is connected", func() bool {
		list, err := c.Managers[0].Nouns().Apps.Proxies(ctx)
		return err == nil && len(list) == 1 && list[0].Connected
	})
	launch, err := client.StartApp(ctx, "my-lab", api.StartApp{App: "port-8000"})
	require.NoError(t, err)
	require.Equal(t, p.URL(), launch.Proxy)
	// Names below localhost lead to this machine, as in browsers.
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	browser := &http.Client{Jar: jar, Timeout: time.Minute,
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, p.Addr())
		}}}
	stranger := &http.Client{Timeout: time.Minute, Transport: browser.Transport}
	try := func(who *http.Client, target string) (int, string, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
		require.NoError(t, err)
		resp, err := who.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(b), err
	}
	get := func(who *http.Client, target string) (int, string) {
		t.Helper()
		status, body, err := try(who, target)
		require.NoError(t, err)
		return status, body
	}
	published, err := client.PublishApp(ctx, launch, string(id), api.Publish{App: "port-8000"})
	require.NoError(t, err)
	status, body := get(browser, published.URL)
	u, err := url.Parse(published.URL)
	require.NoError(t, err)
	origin := u.Scheme + "://" + u.Host
	c.Until("the agent knows whose grants are good", func() bool {
		if status == http.StatusServiceUnavailable {
			status, body = get(browser, origin+"/")
		}
		return status != http.StatusServiceUnavailable
	})
	require.Equal(t, []any{200, "hello / "}, []any{status, body}, "and the app sees no cookie of ours")
	page := origin + "/page"
	status, _ = get(stranger, page)
	require.Equal(t, 401, status)
	status, _ = get(stranger, published.URL)
	require.Equal(t, 401, status, "the code was used")

	circuits, err := client.Circuits(ctx, "my-lab")
	require.NoError(t, err)
	require.Len(t, circuits, 1)
	require.Equal(t, origin, circuits[0].URL)
	change := func(ch api.CircuitChange) {
		t.Helper()
		require.NoError(t, client.ChangeCircuit(ctx, circuits[0].ID, ch))
	}
	until := func(what string, who *http.Client, want int) {
		t.Helper()
		c.Until(what, func() bool { // a request that is under way when the right to it ends is cut
			status, _, err := try(who, page)
			return err == nil && status == want
		})
	}
	change(api.CircuitChange{Public: new(true)})
	until("everybody may", stranger, 200)
	change(api.CircuitChange{Public: new(false)})
	until("nobody else may", stranger, 401)
	until("the revocation holds for all", browser, 401)
	link, err := client.EnterCircuit(ctx, circuits[0].ID)
	require.NoError(t, err)
	status, _ = get(browser, link)
	require.Equal(t, 200, status)

	conn, err := client.DialApp(ctx, "my-lab", "port-9000", 0)
	require.NoError(t, err)
	echo(t, conn)
	c.Managers[1].Stop()
	echo(t, conn)
	status, body = get(browser, page)
	require.Equal(t, []any{200, "hello /page "}, []any{status, body}, "without its manager")
	c.Managers[1].Start()
	c.Until("the proxy is back", func() bool {
		list, err := c.Managers[0].Nouns().Apps.Proxies(ctx)
		return err == nil && len(list) == 1 && list[0].Connected
	})
	echo(t, conn)
	c.Until("visitors count as use", func() bool {
		list, err := client.Circuits(ctx, "my-lab")
		return err == nil && len(list) == 2 && list[0].LastUsed != nil
	})

	c.Destroy(id, false)
	_, err = io.ReadAll(conn)
	t.Logf("the connection ended with %v", err)
	until("the app is gone", browser, 404)
	require.Equal(t, cluster.Terminated, c.Ended(id).Status)
	found, err := c.Managers[0].Findings(ctx)
	require.NoError(t, err)
	require.Empty(t, found)
}

func echo(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := conn.Write([]byte("ping"))
	require.NoError(t, err)
	b := make([]byte, 4)
	_, err = io.ReadFull(conn, b)
	require.NoError(t, err)
	require.Equal(t, "ping", string(b))
}
