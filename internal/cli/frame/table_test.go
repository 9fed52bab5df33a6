package frame_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cli/frame"
)

// TestTextsOfOthersDoNotCommandTheTerminal: tags, names and reasons are chosen by other users and by agents.
func TestTextsOfOthersDoNotCommandTheTerminal(t *testing.T) {
	const hostile = "a\x1b]0;title\x07\x1b[2Jb\u009bc"
	var b strings.Builder
	require.NoError(t, frame.Table{Titles: []string{"TAG"}, Rows: [][]string{{hostile}}}.Write(&b, false))
	require.NoError(t, frame.Fields{{"tag", hostile}, {"lines", "one\ntwo"}}.Write(&b, false))
	require.NotContains(t, b.String(), "\x1b")
	require.NotContains(t, b.String(), "\u009b")
	require.Contains(t, b.String(), "]0;title")
	require.Contains(t, b.String(), "one\ntwo")
}
