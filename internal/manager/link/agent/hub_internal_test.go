package agent

import (
	"context"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// A connection may break between the handshake and its place in the hub: an agent that was killed just then.
func TestConnectionThatBreaksBeforeItIsPut(t *testing.T) {
	t.Parallel()
	h := newHub(slog.New(slog.DiscardHandler), time.Now, func(cluster.AgentID) {})
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	c, err := newStreamConn(t.Context(), "i-dies", near)
	require.NoError(t, err)
	require.NoError(t, far.Close())
	require.Eventually(t, func() bool { return c.http.Err() != nil }, 30*time.Second, time.Millisecond)
	done := make(chan error, 1)
	go func() { done <- h.put(c) }()
	require.NoError(t, await.Value(t, done))
	_, _, err = h.take("i-dies")
	require.NoError(t, err)
	require.Empty(t, h.conns, "a broken connection stayed")
	h.close()
	require.True(t, fault.Is(h.put(c), fault.Unavailable))
}

// serving is a hub whose agents dial when they are asked to, over pipes, and answer every request.
type serving struct {
	*hub
	clock time.Time
	asked chan cluster.AgentID
}

func newServing(t *testing.T) *serving {
	t.Helper()
	s := &serving{clock: time.Unix(1000, 0), asked: make(chan cluster.AgentID, 16)}
	s.hub = newHub(slog.New(slog.DiscardHandler), func() time.Time { return s.clock }, func(a cluster.AgentID) { s.asked <- a })
	t.Cleanup(s.close)
	return s
}

// dial puts a connection of an agent.
func (s *serving) dial(t *testing.T, agent cluster.AgentID) *streamConn {
	t.Helper()
	near, far := net.Pipe()
	go func() { _, _ = io.Copy(io.Discard, far) }()
	t.Cleanup(func() { _ = far.Close() })
	c, err := newStreamConn(t.Context(), agent, near)
	require.NoError(t, err)
	require.NoError(t, s.put(c))
	return c
}

// TestAnAgentIsAskedOnce: whoever wants the connection of an agent while it is to come waits for the same one; who gave up waiting asked
// in vain, so the next one asks again.
func TestAnAgentIsAskedOnce(t *testing.T) {
	t.Parallel()
	s := newServing(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.find(gone, "a1")
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, cluster.AgentID("a1"), <-s.asked)
	require.False(t, s.wants("a1"), "nobody waits")

	s.want("a1")
	require.Equal(t, cluster.AgentID("a1"), <-s.asked)
	require.True(t, s.wants("a1"))
	s.want("a1")
	require.Empty(t, s.asked, "it is dialling")
	first := s.dial(t, "a1")
	require.False(t, s.wants("a1"))
	s.want("a1")
	require.Empty(t, s.asked, "it has one")
	require.NoError(t, first.raw.Close())
	require.Eventually(t, func() bool { return !s.holds("a1") }, 30*time.Second, time.Millisecond)
	s.want("a1")
	require.Equal(t, cluster.AgentID("a1"), <-s.asked, "the one that it had broke")
}

// TestIdleConnectionsClose: one that no stream has been on for a while, of an agent that may be asked for another one.
func TestIdleConnectionsClose(t *testing.T) {
	t.Parallel()
	s := newServing(t)
	for _, agent := range []cluster.AgentID{"idle", "old", "busy", "used"} {
		s.dial(t, agent)
	}
	busy, err := s.find(t.Context(), "busy")
	require.NoError(t, err)
	s.clock = s.clock.Add(time.Minute)
	used, err := s.find(t.Context(), "used")
	require.NoError(t, err)
	s.release(used)
	asks := func(a cluster.AgentID) bool { return a != "old" }
	s.closeIdle(s.clock, asks)
	for agent, holds := range map[cluster.AgentID]bool{"idle": false, "old": true, "busy": true, "used": true} {
		require.Equal(t, holds, s.holds(agent), agent)
	}
	require.Empty(t, s.asked, "nobody wants another one")

	s.release(busy)
	s.closeIdle(s.clock.Add(time.Second), asks)
	require.False(t, s.holds("busy"))
	require.False(t, s.holds("used"))
	require.True(t, s.holds("old"))
}
