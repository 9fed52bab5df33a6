package embedded

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// What a mapping held in memory goes, what the file holds stays, and other mappings are left alone.
func TestUnpopulate(t *testing.T) {
	const size = 4 << 20
	mapped := func(name string) (file string, mem []byte) {
		file = filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte(strings.Repeat("x", size)), 0o600))
		f, err := os.Open(file)
		require.NoError(t, err)
		defer f.Close()
		mem, err = unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_SHARED|unix.MAP_POPULATE)
		require.NoError(t, err)
		t.Cleanup(func() { _ = unix.Munmap(mem) })
		return file, mem
	}
	resident := func(file string) (kb string) {
		text, err := os.ReadFile("/proc/self/smaps")
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(text), " "+file+"\n")
		require.True(t, found)
		_, rest, _ = strings.Cut(rest, "\nRss:")
		kb, _, _ = strings.Cut(rest, "\n")
		return strings.TrimSpace(kb)
	}
	file, mem := mapped("db")
	other, _ := mapped("db2")
	require.Equal(t, "4096 kB", resident(file))
	require.NoError(t, unpopulate(file))
	require.Equal(t, "0 kB", resident(file))
	require.Equal(t, "4096 kB", resident(other))
	require.Equal(t, strings.Repeat("x", 100), string(mem[size-100:]))
}
