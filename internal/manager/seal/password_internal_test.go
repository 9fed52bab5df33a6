package seal

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLoginsLeaveProcessors: what anybody can ask for takes half of the turns, so that everything else goes on.
func TestLoginsLeaveProcessors(t *testing.T) {
	t.Parallel()
	p := NewPasswords(4, Cost{Memory: 64, Time: 1}, rand.Reader)
	for range 2 {
		require.NoError(t, enter(t.Context(), p.checks))
		require.NoError(t, enter(t.Context(), p.turns))
	}
	hash, err := p.Hash(t.Context(), "pässword")
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = p.Check(ctx, "pässword", hash)
	require.ErrorIs(t, err, context.Canceled)
	leave(p.checks)
	ok, _, err := p.Check(t.Context(), "pässword", hash)
	require.NoError(t, err)
	require.True(t, ok)
	require.Len(t, p.checks, 1)
	require.Len(t, p.turns, 2)
}
