package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// serveInside runs a handler on a pipe and returns the way to it.
func serveInside(t *testing.T, h http.HandlerFunc) (*Managers, *Pipe) {
	t.Helper()
	p := NewPipe()
	server := &http.Server{Handler: h}
	done := make(chan error, 1)
	go func() { done <- server.Serve(p) }()
	t.Cleanup(func() {
		require.NoError(t, server.Close())
		require.Error(t, <-done, "it served until the server or the pipe was closed")
	})
	return Inside(p), p
}

func send(t *testing.T, ctx context.Context, m *Managers, method, body string) (*http.Response, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "http://x/path?q=1", strings.NewReader(body))
	require.NoError(t, err)
	r.Header.Set("Authorization", "forged")
	return m.RoundTrip(r)
}

func TestInsideTheClientIsTheAddressOfTheConnection(t *testing.T) {
	t.Parallel()
	m, p := serveInside(t, func(w http.ResponseWriter, r *http.Request) {
		raw, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.RemoteAddr+" "+r.RequestURI+" "+string(raw)+" "+r.Header.Get("Authorization"))
	})
	at := netip.MustParseAddrPort("192.0.2.7:4711")
	resp, err := send(t, From(t.Context(), at, "fox"), m, "POST", "body")
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "192.0.2.7:4711 /path?q=1 body ", string(text), "and a client's own signature goes nowhere")
	resp, err = send(t, As(From(t.Context(), at, "fox"), "token"), m, "GET", "")
	require.NoError(t, err)
	text, err = io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "192.0.2.7:4711 /path?q=1  BerthLogin token", string(text))
	require.NoError(t, m.Ready(t.Context()))

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = send(t, t.Context(), m, "POST", "body")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Error(t, m.Ready(t.Context()))
}

// What may have arrived at a manager is not sent to another one.
func TestRequestsThatMayHaveArrivedAreNotRepeated(t *testing.T) {
	t.Parallel()
	broken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer broken.Close()
	go func() {
		for {
			conn, err := broken.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 64<<10)) // the request came, and its answer never does
			_ = conn.Close()
		}
	}()
	got := 0
	second, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got++ })}
	go func() { _ = server.Serve(second) }()
	defer server.Close()
	m, err := Network([]string{"http://" + broken.Addr().String(), "http://" + second.Addr().String()}, "")
	require.NoError(t, err)
	_, err = send(t, t.Context(), m, "POST", "body")
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.Zero(t, got)
	_, err = Network([]string{"10.0.0.1"}, "")
	require.Error(t, err)
	_, err = Network(nil, "sha1:x")
	require.Error(t, err)
}
