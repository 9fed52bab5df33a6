package h2_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"berth.dev/berth/internal/manager/link/h2"
)

const patience = time.Minute

// pair is the two ends of a connection.
func pair(t *testing.T) (client, server net.Conn) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	client, err = (&net.Dialer{}).DialContext(t.Context(), "tcp", l.Addr().String())
	require.NoError(t, err)
	server, err = l.Accept()
	require.NoError(t, err)
	for _, c := range []net.Conn{client, server} {
		require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
		t.Cleanup(func() { _ = c.Close() })
	}
	return client, server
}

// serve serves one end; ended is closed when Serve has returned.
func serve(ctx context.Context, conn net.Conn, handler http.HandlerFunc) (ended chan struct{}) {
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		h2.Serve(ctx, conn, &http2.Server{}, 16<<10, handler, slog.New(slog.DiscardHandler))
	}()
	return ended
}

func get(ctx context.Context, c *http.ClientConn, path, body string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://peer"+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	return c.RoundTrip(req)
}

func wait(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(patience):
		require.FailNow(t, "waited too long", what)
	}
}

// TestRequestsShareAConnection: the side that was dialed is the client as well as the other, and nothing is dialed again when it breaks.
func TestRequestsShareAConnection(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	ended := serve(t.Context(), near, func(w http.ResponseWriter, r *http.Request) { // the dialling side serves
		_, _ = io.WriteString(w, r.URL.Path+" ")
		_, _ = io.Copy(w, r.Body)
	})
	client, err := h2.NewClient(t.Context(), "a test", far)
	require.NoError(t, err)
	for _, body := range []string{"one", "two"} {
		resp, err := get(t.Context(), client, "/x", body)
		require.NoError(t, err)
		got, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "/x "+body, string(got))
	}
	require.NoError(t, far.Close())
	wait(t, "for the server to notice", ended)
	_, err = get(t.Context(), client, "/x", "")
	require.Error(t, err)
}

// TestServeWaitsForItsHandlers: the end of the context closes the connection and ends the requests on it, and nothing runs on afterwards.
func TestServeWaitsForItsHandlers(t *testing.T) {
	t.Parallel()
	near, far := pair(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	begun, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ended := serve(ctx, near, func(_ http.ResponseWriter, r *http.Request) {
		defer close(left)
		close(begun)
		<-r.Context().Done()
		<-leave
	})
	client, err := h2.NewClient(t.Context(), "a test", far)
	require.NoError(t, err)
	failed := make(chan struct{})
	go func() {
		defer close(failed)
		if resp, err := get(t.Context(), client, "/", ""); err == nil {
			_ = resp.Body.Close()
		}
	}()
	wait(t, "for the request", begun)
	cancel()
	wait(t, "for the client to see the end", failed)
	select {
	case <-ended:
		require.Fail(t, "Serve returned while a handler ran")
	default:
	}
	close(leave)
	wait(t, "for the handler", left)
	wait(t, "for Serve", ended)
}
