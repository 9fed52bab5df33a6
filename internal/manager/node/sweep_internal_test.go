package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAbsent: a pass that comes much later than it was due says that nobody looked.
func TestAbsent(t *testing.T) {
	t.Parallel()
	c := SweepConfig{Every: time.Second, Lease: 30 * time.Second}
	now := time.Unix(1000, 0)
	require.True(t, absent(time.Time{}, now, c), "the first pass of a term")
	require.False(t, absent(now, now.Add(time.Second), c))
	require.False(t, absent(now, now.Add(4*time.Second), c))
	require.True(t, absent(now, now.Add(time.Minute), c), "this manager was stopped, or the database was away")
}
