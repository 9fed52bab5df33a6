package app

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// TestPortsOfOthers: in the network of a host a tunnel leads to leased ports alone, and only while the session's user listens there.
func TestPortsOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	line := func(port, uid int) string {
		return fmt.Sprintf("   0: 0100007F:%04X 00000000:0000 0A 00000000:00000000 00:00000000 00000000 %d 0 1234 1\n", port, uid)
	}
	table := line(2379, 7) + line(30001, 7) + line(30002, 8)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tcp"), []byte(table), 0o600))
	s := &Set{c: Config{NetDir: dir, UID: 7, Only: []int{30001, 30002, 30003}}}
	require.NoError(t, s.Serves(30001))
	for port, kind := range map[int]fault.Kind{2379: fault.Denied, 30002: fault.Denied, 30003: fault.Unavailable} {
		require.Equal(t, kind, fault.KindOf(s.Serves(port)), "port %d", port)
	}
	s.c.Only = nil
	require.NoError(t, s.Serves(2379), "a network of its own has nobody else's ports")
}
