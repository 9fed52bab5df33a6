package runner

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A notice is one line on every terminal and on nothing else.
func TestNotice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"0", "12", "ptmx"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "3"), 0o700)) // cannot be written
	require.Equal(t, 2, notify(dir, "it ends at noon\x1b[2J\n"))
	line := "\r\n\a*** it ends at noon [2J  ***\r\n"
	for name, want := range map[string]string{"0": line, "12": line, "ptmx": ""} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(got), name)
	}
	require.Zero(t, notify(filepath.Join(dir, "none"), "x"))
}
