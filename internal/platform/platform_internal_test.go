package platform

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Looks are close to each other at first and rare after a while.
func TestLookAgain(t *testing.T) {
	require.Equal(t, 5*time.Millisecond, lookAgain(0))
	require.Equal(t, 20*time.Millisecond, lookAgain(640*time.Millisecond))
	require.Equal(t, 250*time.Millisecond, lookAgain(time.Minute))
}
