package agent

import (
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// A connection may break between the handshake and its place in the hub: an agent that was killed just then.
func TestConnectionThatBreaksBeforeItIsPut(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler))
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	c, err := newStreamConn(t.Context(), "i-dies", near)
	require.NoError(t, err)
	require.NoError(t, far.Close())
	require.Eventually(t, func() bool { return c.http.Err() != nil }, 10*time.Second, time.Millisecond)
	done := make(chan error, 1)
	go func() { done <- h.put(c) }()
	select {
	case err = <-done:
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		t.Fatal("the hub is stuck")
	}
	_, _, err = h.take("i-dies")
	require.NoError(t, err)
	require.Empty(t, h.conns, "a broken connection stayed")
	h.close()
	require.True(t, fault.Is(h.put(c), fault.Unavailable))
}
