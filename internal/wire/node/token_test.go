package node_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/node"
)

func TestJoinToken(t *testing.T) {
	t.Parallel()
	want := node.JoinToken{CA: [32]byte{1, 2, 3}, Secret: strings.Repeat("Ab-_", 11)}
	got, err := node.ParseJoinToken("  " + want.String() + "\n")
	require.NoError(t, err)
	require.Equal(t, want, got)

	text := want.String()
	for _, bad := range []string{"", "berth-join-1", "berth-join-1..", "berth-join-2" + text[12:], text[:len(text)-4],
		strings.Replace(text, "AQID", "AQ", 1)} {
		_, err := node.ParseJoinToken(bad)
		require.Error(t, err, bad)
		require.NotContains(t, err.Error(), "Ab-_")
	}
}
