package forward

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// two adds a circuit with two targets, each of which answers with its name.
func (r *rig) two(name string) (c *circuit.Circuit, first proxy.TargetID) {
	r.t.Helper()
	p := proxy.Circuit{ID: name, Revision: 1, Protocol: "http", Mode: proxy.ModeSubdomain, Label: name,
		Targets: []proxy.Target{{Kernel: "k-1", Port: 80, Weight: 1}, {Kernel: "k-2", Port: 80, Weight: 1}}}
	at := map[proxy.TargetID]string{}
	for i, answer := range []string{"first", "other"} {
		app := r.app(name+answer, canned("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"+answer))
		at[p.Targets[i].ID()] = r.apps[app.ID]
	}
	c = circuit.New(p)
	r.mu.Lock()
	r.targets = at
	r.mu.Unlock()
	r.replace(p)
	return c, c.Targets[0].ID()
}

// replace puts a circuit in the table.
func (r *rig) replace(p proxy.Circuit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.circuits[p.ID] = circuit.New(p)
}

// ask sends a request with a key and returns what came.
func (r *rig) ask(client *http.Client, name string, key uint64) (status int, body string) {
	r.t.Helper()
	r.mu.Lock()
	r.key = key
	r.mu.Unlock()
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodGet, "http://"+name+"/", nil)
	require.NoError(r.t, err)
	resp, err := client.Do(req)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(text)
}

// keys returns a key for each of the two targets.
func keys(t *testing.T, c *circuit.Circuit) (first, second uint64) {
	t.Helper()
	for key := uint64(0); first == 0 || second == 0; key++ {
		require.Less(t, key, uint64(1000))
		if target, _ := c.Pick(key); target.ID() == c.Targets[0].ID() {
			first = key
		} else {
			second = key
		}
	}
	return first, second
}

// Requests go to the target that their key chooses, over connections of that target alone; HTTP/2 does the same.
func TestRequestsGoToTheirTarget(t *testing.T) {
	r := newRig(t, nil)
	c, _ := r.two("app")
	one, two := keys(t, c)
	for version, client := range map[string]*http.Client{"HTTP/1.1": r.client(), "HTTP/2": r.client2()} {
		for i, ask := range []struct {
			key  uint64
			want string
		}{{one, "first"}, {two, "other"}, {two, "other"}, {one, "first"}} {
			status, body := r.ask(client, "app", ask.key)
			require.Equal(t, []any{200, ask.want}, []any{status, body}, "%s, request %d", version, i)
		}
	}
	until(t, "one connection to each is kept", func() bool { return r.e.Live().Upstream == 2 })
}

// A target that is gone takes its connections along and no others; a circuit whose targets are all drained says so.
func TestTargetsAreClosed(t *testing.T) {
	r := newRig(t, nil)
	c, first := r.two("app")
	one, two := keys(t, c)
	client := r.client()
	for _, key := range []uint64{one, two} {
		_, _ = r.ask(client, "app", key)
	}
	until(t, "one connection to each is kept", func() bool { return r.e.Live().Upstream == 2 })
	p := c.Circuit
	p.Revision, p.Targets = 2, p.Targets[1:]
	r.replace(p)
	r.e.CloseTargets("app", []proxy.TargetID{first}, "moved")
	until(t, "the connection to the other stays", func() bool { return r.e.Live().Upstream == 1 })
	status, body := r.ask(client, "app", one)
	require.Equal(t, []any{200, "other"}, []any{status, body}, "the visitors of the target that is gone go elsewhere")
	p.Revision, p.Targets = 3, []proxy.Target{p.Targets[0]}
	p.Targets[0].Weight = 0
	r.replace(p)
	status, _ = r.ask(client, "app", one)
	require.Equal(t, 503, status)
}

// A raw connection stays at its target when that is drained and ends when it is gone.
func TestRawConnectionsOfATarget(t *testing.T) {
	var r *rig
	now := func(id string) *circuit.Circuit {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.circuits[id]
	}
	r = newRig(t, func(cfg *Config) { cfg.Current = now })
	echo := r.app("echo", func(c net.Conn) { _, _ = io.Copy(c, c) })
	p := echo.Circuit
	p.ID, p.Protocol = "raw", "tcp"
	p.Targets = []proxy.Target{{Kernel: "k-1", Port: 22, Weight: 1}, {Kernel: "k-2", Port: 22}}
	first, second := p.Targets[0].ID(), p.Targets[1].ID()
	r.mu.Lock()
	r.targets = map[proxy.TargetID]string{first: r.apps["echo"], second: r.apps["echo"]}
	r.mu.Unlock()
	r.replace(p)
	near, far := tcpPair(t)
	require.NoError(t, near.SetDeadline(time.Now().Add(patience)))
	var done sync.WaitGroup
	done.Go(func() { r.e.ServeTCP(t.Context(), far, now("raw")) })
	echoed := func(text string) {
		t.Helper()
		_, err := io.WriteString(near, text)
		require.NoError(t, err)
		got := make([]byte, len(text))
		_, err = io.ReadFull(near, got)
		require.NoError(t, err)
		require.Equal(t, text, string(got))
	}
	echoed("hello")
	p.Revision, p.Targets = 2, []proxy.Target{{Kernel: "k-1", Port: 22}}
	r.replace(p)
	r.e.CloseTargets("raw", []proxy.TargetID{second}, "moved")
	echoed("the other is gone, this one is drained")
	r.e.CloseTargets("raw", []proxy.TargetID{first}, "moved")
	_, err := near.Read(make([]byte, 1))
	require.Error(t, err)
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded))
	done.Wait()
	near, far = tcpPair(t)
	r.e.ServeTCP(t.Context(), far, now("raw")) // returns: a drained target takes nobody
	require.NoError(t, near.SetDeadline(time.Now().Add(patience)))
	_, err = near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}
