package fault_test

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/fault"
)

func TestClip(t *testing.T) {
	t.Parallel()
	require.Equal(t, "short", fault.Clip("short", 5))
	require.Equal(t, "shor…", fault.Clip("short", 4))
	require.Equal(t, "a…", fault.Clip("aé", 2), "no character is cut in half")
	rapid.Check(t, func(t *rapid.T) {
		text, most := rapid.String().Draw(t, "text"), rapid.IntRange(0, 20).Draw(t, "most")
		got := fault.Clip(text, most)
		require.True(t, utf8.ValidString(got))
		require.LessOrEqual(t, len(got), max(most+len("…"), 0))
	})
}
