package docker_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/google/uuid"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/conformance"
	"berth.dev/berth/internal/agent/runtime/docker"
	"berth.dev/berth/internal/agent/runtime/testimage"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// gate stands between a runtime and the engine's socket, and can be closed, for all calls or
// for starts only.
type gate struct {
	t      *testing.T
	engine string
	socket string
	starts atomic.Bool // closed for starts

	mu  sync.Mutex
	srv *http.Server
}

func newGate(t *testing.T, host string) *gate {
	dir, err := os.MkdirTemp("", "berth") // socket paths must be short
	require.NoError(t, err)
	g := &gate{t: t, engine: strings.TrimPrefix(host, "unix://"), socket: filepath.Join(dir, "gate.sock")}
	g.open()
	t.Cleanup(func() {
		g.close()
		_ = os.RemoveAll(dir)
	})
	return g
}

func (g *gate) open() {
	l, err := net.Listen("unix", g.socket)
	require.NoError(g.t, err)
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.FlushInterval = -1
	proxy.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", g.engine)
	}}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if g.starts.Load() && strings.HasSuffix(r.URL.Path, "/start") {
			panic(http.ErrAbortHandler) // the connection breaks
		}
		proxy.ServeHTTP(w, r)
	})}
	g.mu.Lock()
	g.srv = srv
	g.mu.Unlock()
	go func() { _ = srv.Serve(l) }() // ends with close
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	_ = g.srv.Close()
	_ = os.Remove(g.socket)
}

func newRuntime(t testing.TB, host, clusterID string, agent cluster.AgentID) *docker.Runtime {
	t.Helper()
	rt, err := docker.New(docker.Config{Host: host, Cluster: clusterID, Agent: agent}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(func() { _ = rt.Close() })
	return rt
}

// boxImage imports the image of the conformance suite.
func boxImage(t testing.TB, api *client.Client) (ref, id string) {
	files := map[string]testimage.File{}
	for name, text := range conformance.ImageFiles {
		files[name] = testimage.File{Data: []byte(text)}
	}
	files[conformance.ImageLink] = testimage.File{Link: "/data"}
	changes := []string{`CMD ["/box", "true"]`, "ENV FROM_IMAGE=yes"}
	for k, v := range conformance.ImageLabels {
		changes = append(changes, "LABEL "+k+"="+v)
	}
	return testimage.Import(t, api, "box", testimage.Scratch(t, files), changes...)
}

// network makes a network for one test; "" where the engine cannot.
func network(t *testing.T, api *client.Client) string {
	name := "berth-test-" + uuid.NewString()[:8]
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	if _, err := api.NetworkCreate(ctx, name, client.NetworkCreateOptions{Driver: "bridge"}); err != nil {
		t.Logf("the engine makes no second network: %v", err)
		return ""
	}
	t.Cleanup(func() {
		_, err := api.NetworkRemove(ctx, name, client.NetworkRemoveOptions{})
		require.NoError(t, err)
	})
	return name
}

func TestConformance(t *testing.T) {
	api := testimage.Engine(t)
	ref, id := boxImage(t, api)
	host := api.DaemonHost()
	conformance.Run(t, func(t *testing.T) (runtime.Runtime, conformance.Fixture) {
		g := newGate(t, host)
		reg := newRegistry(t)
		open := func(t *testing.T, clusterID string, agent cluster.AgentID) runtime.Runtime {
			return newRuntime(t, "unix://"+g.socket, clusterID, agent)
		}
		fix := conformance.Fixture{
			Cluster: "test-" + uuid.NewString(), Agent: "i-test", Image: ref, ImageID: id, Open: open, Real: true,
			BreakStart: func() func() {
				g.starts.Store(true)
				return func() { g.starts.Store(false) }
			},
			Lose:    func() func() { g.close(); return g.open },
			Network: network(t, api),
			Remote:  reg.host + "/box:1", RemoteID: reg.configID,
			Broken: reg.host + "/broken:1", Missing: reg.host + "/none:1",
		}
		t.Cleanup(func() { tidy(t, api, fix, reg.host) })
		return open(t, fix.Cluster, fix.Agent), fix
	})
}

// tidy removes images that the test pulled or committed, and says when containers were left behind.
func tidy(t *testing.T, api *client.Client, fix conformance.Fixture, registryHost string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, label := range []string{"berth.cluster=" + fix.Cluster, "berth.probe=" + fix.Cluster} {
		left, err := api.ContainerList(ctx, client.ContainerListOptions{All: true, Filters: client.Filters{}.Add("label", label)})
		require.NoError(t, err)
		for _, c := range left.Items {
			t.Errorf("container %v was left behind", c.Names)
			_, _ = api.ContainerRemove(ctx, c.ID, client.ContainerRemoveOptions{Force: true})
		}
	}
	all, err := api.ImageList(ctx, client.ImageListOptions{})
	require.NoError(t, err)
	for _, img := range all.Items {
		for _, ref := range img.RepoTags {
			if strings.HasPrefix(ref, registryHost+"/") || ref == conformance.CommitReference(fix) {
				_, _ = api.ImageRemove(ctx, ref, client.ImageRemoveOptions{})
			}
		}
	}
}

func TestEngineThatNeverWas(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "none.sock")
	rt := newRuntime(t, "unix://"+socket, "c", "i-a")
	_, err := rt.Info(t.Context())
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
	require.Equal(t, runtime.ReasonEngine, fault.ReasonOf(err))
	require.Contains(t, err.Error(), socket)
	require.NotEmpty(t, fault.NextOf(err))
}

func TestConfig(t *testing.T) {
	t.Parallel()
	for _, bad := range []docker.Config{
		{}, {Cluster: "c"}, {Agent: "i-a"}, {Cluster: "c", Agent: "i-a", Host: "/var/run/docker.sock"},
		{Cluster: "c", Agent: "i-a", LogMaxBytes: 1},
	} {
		_, err := docker.New(bad, slog.New(slog.DiscardHandler))
		require.Error(t, err, "%+v", bad)
	}
}

// TestUlimitsAreLowered talks to the engine without a gate, whose process would be probed instead.
func TestUlimitsAreLowered(t *testing.T) {
	t.Parallel()
	api := testimage.Engine(t)
	ref, _ := boxImage(t, api)
	rt := newRuntime(t, api.DaemonHost(), "test-"+uuid.NewString(), "i-test")
	k := cluster.KernelID(uuid.NewString())
	t.Cleanup(func() { require.NoError(t, rt.Remove(context.Background(), k)) })
	_, err := rt.Ensure(t.Context(), runtime.Spec{
		Identity: runtime.Identity{Cluster: rt.Cluster(), Agent: "i-test", Kernel: k, Generation: 1, Schema: 1},
		Image:    ref, Entry: []string{"/box", "true"},
		Ulimits: []runtime.Ulimit{{Name: "nofile", Soft: 1 << 40, Hard: 1 << 40}},
	})
	require.NoError(t, err)
	in, err := rt.Info(t.Context())
	require.NoError(t, err)
	require.Contains(t, strings.Join(in.Warnings, "\n"), "ulimit nofile is lowered from 1099511627776")
}

// TestLeftoverProbes plays an agent that was killed while it read files of an image.
func TestLeftoverProbes(t *testing.T) {
	t.Parallel()
	api := testimage.Engine(t)
	ref, _ := boxImage(t, api)
	clusterID := "test-" + uuid.NewString()
	leave := func(agent string) string {
		res, err := api.ContainerCreate(t.Context(), client.ContainerCreateOptions{
			Image:  ref,
			Config: &container.Config{Labels: map[string]string{"berth.probe": clusterID, "berth.probe.agent": agent, "berth.probe.by": "dead"}},
		})
		require.NoError(t, err)
		t.Cleanup(func() {
			_, _ = api.ContainerRemove(context.Background(), res.ID, client.ContainerRemoveOptions{Force: true})
		})
		return res.ID
	}
	mine, other := leave("i-test"), leave("i-other")
	rt := newRuntime(t, api.DaemonHost(), clusterID, "i-test")
	_, err := rt.Images(t.Context())
	require.NoError(t, err)
	_, err = api.ContainerInspect(t.Context(), mine, client.ContainerInspectOptions{})
	require.True(t, cerrdefs.IsNotFound(err), "%v", err)
	_, err = api.ContainerInspect(t.Context(), other, client.ContainerInspectOptions{})
	require.NoError(t, err)
}
