package e2e_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDownLeavesNoContainers: `berth down --sessions` returns when the containers are gone, not when the sessions are said to
// have ended.
func TestDownLeavesNoContainers(t *testing.T) {
	t.Parallel()
	p := up(t)
	p.must("session", "create", "base", "--name", "crate", "-r", "cpu=1", "-r", "mem=128m")
	filter := "label=berth.session=" + p.sessions()["crate"].ID
	require.Len(t, containers(t, filter), 1)
	p.must("down", "--sessions")
	require.Empty(t, containers(t, filter))
}
