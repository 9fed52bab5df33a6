package stream_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/stream"
	"berth.dev/berth/internal/cluster"
)

const kernelID = "00000000-0000-4000-8000-000000000001"

// counted counts the pieces that are written to a connection.
type counted struct {
	net.Conn
	writes *atomic.Int64
}

// client has connections of its own: a server of httptest that closes takes those of http.DefaultClient away from other tests.
var client = &http.Client{Transport: &http.Transport{}}

func (c counted) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// way puts the handler between a caller and a runner; it returns the runner's URL as the caller sees it.
func way(t *testing.T, runner http.HandlerFunc) (url string, writes *atomic.Int64) {
	t.Helper()
	server := httptest.NewServer(runner)
	t.Cleanup(server.Close)
	writes = new(atomic.Int64)
	pool := runners.New(func(ctx context.Context, _ cluster.KernelID) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", server.Listener.Addr().String())
		return counted{c, writes}, err
	})
	t.Cleanup(pool.Close)
	agent := httptest.NewServer(stream.New(stream.Options{Runners: pool, Log: slog.New(slog.DiscardHandler),
		Find: func(id cluster.KernelID) (keeper.Kernel, bool) {
			return keeper.Kernel{ID: id, Phase: cluster.PhaseRunning, Token: "secret", Exists: true,
				Container: runtime.Observed{Phase: runtime.PhaseRunning}}, true
		}}))
	t.Cleanup(agent.Close)
	return agent.URL + "/kernels/" + kernelID + "/runner", writes
}

func TestASmallRequestReachesTheRunnerInOnePiece(t *testing.T) {
	t.Parallel()
	url, writes := way(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err == nil {
			_, _ = io.WriteString(w, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+string(b))
		}
	})
	for _, body := range []string{"", "code", strings.Repeat("x", 12<<10)} {
		writes.Store(0)
		resp, err := client.Post(url+"/v1/runs/1/step", "application/json", strings.NewReader(body))
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "POST /v1/runs/1/step Bearer secret "+body, string(got))
		if len(body) < 4<<10 { // what the transport's own buffer takes
			require.EqualValues(t, 1, writes.Load(), "body of %d bytes", len(body))
		}
	}
}

func TestARequestThatBreaksOffDoesNotLookWhole(t *testing.T) {
	t.Parallel()
	var whole atomic.Bool
	t.Cleanup(func() { require.False(t, whole.Load()) }) // after the runner's server has ended
	url, _ := way(t, func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err == nil {
			whole.Store(true)
		}
	})
	host, path, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	conn, err := net.Dial("tcp", host)
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST /"+path+"/v1/upload HTTP/1.1\r\nHost: agent\r\nContent-Length: 100\r\n\r\nonly this")
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	_, err = io.ReadAll(conn)
	require.NoError(t, err)
	require.NoError(t, conn.Close())
}

func TestARepliesPiecesAreNotHeldBack(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	url, _ := way(t, func(w http.ResponseWriter, r *http.Request) {
		for range 3 {
			_, _ = io.WriteString(w, "piece\n")
			_ = http.NewResponseController(w).Flush()
			select {
			case <-read:
			case <-r.Context().Done():
				return
			}
		}
	})
	resp, err := client.Get(url + "/v1/download")
	require.NoError(t, err)
	defer resp.Body.Close()
	for range 3 {
		b := make([]byte, len("piece\n"))
		_, err := io.ReadFull(resp.Body, b)
		require.NoError(t, err)
		read <- struct{}{}
	}
}
