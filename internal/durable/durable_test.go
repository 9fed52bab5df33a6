package durable_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/durable"
)

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("theirs"), 0o644))
	file := filepath.Join(dir, "file")
	for _, before := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(file, []byte("longer than the new content"), 0o666) },
		func() error { return os.Symlink(outside, file) },
	} {
		_ = os.Remove(file)
		require.NoError(t, before())
		require.NoError(t, durable.WriteFile(file, []byte("new"), 0o600))
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, "new", string(got))
		info, err := os.Lstat(file)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
	theirs, err := os.ReadFile(outside)
	require.NoError(t, err)
	require.Equal(t, "theirs", string(theirs))
	require.NoError(t, durable.WriteFile(file, nil, 0o644), "whatever the umask is")
	info, err := os.Lstat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), info.Mode())
}

// What cannot be written leaves the old file, and nothing beside it.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	require.Error(t, durable.WriteFile(filepath.Join(dir, "missing", "file"), nil, 0o600))
	taken := filepath.Join(dir, "directory")
	require.NoError(t, os.Mkdir(taken, 0o755))
	require.Error(t, durable.WriteFile(taken, []byte("new"), 0o600))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
