package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSettling: agents get the time of a lease when nobody has looked for a while, and when a term begins.
func TestSettling(t *testing.T) {
	t.Parallel()
	c := SweepConfig{Every: time.Second, Lease: 30 * time.Second}
	now := time.Unix(1000, 0)
	var s settling
	require.Zero(t, s.looked(now, c))
	require.Equal(t, now.Add(c.Lease), s.until, "the first sweep of a term")
	require.Zero(t, s.looked(now.Add(4*time.Second), c))
	require.Equal(t, now.Add(c.Lease), s.until, "sweeps that come in time change nothing")
	later := now.Add(time.Minute)
	require.Equal(t, 56*time.Second, s.looked(later, c))
	require.Equal(t, later.Add(c.Lease), s.until, "this manager was stopped, or the database was away")
}
