package forward

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/testkit/await"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/tunnel"
)

// lendTo lets the rig's engine borrow its connections to apps, as it does from the agent of its own host. begun and ended receive
// each loan.
func lendTo(t *testing.T, r *rig) (begun, ended <-chan *tunnel.Loan) {
	t.Helper()
	dir, err := os.MkdirTemp("", "lent")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	loans, done := make(chan *tunnel.Loan, 16), make(chan *tunnel.Loan, 16)
	var all sync.WaitGroup
	srv := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		c, err := net.Dial("tcp", q.Header.Get("Test-App"))
		if err != nil {
			panic(err)
		}
		loan := tunnel.NewLoan(c)
		if _, _, lent, err := tunnel.Lend(w, q, loan, true); err != nil || !lent {
			panic("not lent")
		}
		loans <- loan
		all.Go(func() { loan.Wait(); done <- loan })
	})}
	all.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() { r.stop(); _ = srv.Close(); all.Wait() })
	r.e.dial = func(ctx context.Context, c *circuit.Circuit, _ proxy.Target) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		return tunnel.Open(ctx, conn, "/kernels/k/ports/1", http.Header{"Test-App": {r.apps[c.ID]}})
	}
	return loans, done
}

// TestLentConnections: the engine reads and writes a lent socket as any other, keeps it between requests, notices that it was taken
// back, and returns it when the circuit closes.
func TestLentConnections(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.server("app-0", http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) { _, _ = io.Copy(w, q.Body) }))
	begun, ended := lendTo(t, r)
	client := r.client()
	ask := func() {
		t.Helper()
		q, err := http.NewRequest(http.MethodPut, "http://app-0/", http.NoBody)
		require.NoError(t, err)
		a, err := client.Do(q)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, a.Body)
		require.NoError(t, err)
		require.NoError(t, a.Body.Close())
		require.Equal(t, http.StatusOK, a.StatusCode)
	}
	ask()
	first := await.Value(t, begun)
	ask()
	require.Empty(t, begun, "the second request used the same connection")
	first.TakeBack()
	require.Same(t, first, await.Value(t, ended))
	ask()
	second := await.Value(t, begun)
	r.e.CloseCircuit("app-0", "test")
	require.Same(t, second, await.Value(t, ended))
}

// TestLentConnectionsOfHTTP2 are ended below the library that uses them.
func TestLentConnectionsOfHTTP2(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	begun, ended := lendTo(t, r)
	conn, err := r.e.dial(t.Context(), r.app("app-0", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }), proxy.Target{})
	require.NoError(t, err)
	loan := await.Value(t, begun)
	(&dialed{Conn: conn}).end("test")
	require.Same(t, loan, await.Value(t, ended))
	require.ErrorIs(t, conn.SetDeadline(time.Now()), net.ErrClosed)
}
