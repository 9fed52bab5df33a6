package posix_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/storage/volume/posix"
)

// TestHugeDirectory measures a directory of a million entries; BERTH_BENCH_DIR says where, else it is a temporary
// directory, and BERTH_BENCH_ENTRIES how many.
func TestHugeDirectory(t *testing.T) {
	if os.Getenv("BERTH_BENCH") != "1" {
		t.Skip("BERTH_BENCH=1 runs measurements")
	}
	entries := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("BERTH_BENCH_ENTRIES")); err == nil {
		entries = n
	}
	path := t.TempDir()
	if dir := os.Getenv("BERTH_BENCH_DIR"); dir != "" {
		path = filepath.Join(dir, uuid.NewString())
		require.NoError(t, os.Mkdir(path, 0o755))
		defer os.RemoveAll(path)
	}
	v, err := posix.Open(posix.Options{Name: "volume1", Path: path, UID: -1, GID: -1})
	require.NoError(t, err)
	defer v.Close()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: uuid.NewString()},
		Folder: cluster.FolderID(uuid.NewString())}
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	fill(t, filepath.Join(path, ref.Dir()), entries)

	tr, err := v.OpenFolder(t.Context(), ref)
	require.NoError(t, err)
	if os.Getenv("BERTH_BENCH_COLD") == "1" {
		unix.Sync()
		require.NoError(t, os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o200))
	}
	require.NoError(t, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0o200))
	before := peak(t)
	begin := time.Now()
	page, next, err := tr.List(t.Context(), ".", "", 1000)
	first := time.Since(begin)
	require.NoError(t, err)
	require.Len(t, page, min(1000, entries))
	t.Logf("first page of %d entries: %v, peak memory of the process %d KiB (%d KiB before)", entries, first, peak(t), before)

	begin = time.Now()
	seen := make(map[string]bool, entries)
	pages := 1
	for {
		for _, e := range page {
			require.False(t, seen[e.Name], e.Name)
			seen[e.Name] = true
		}
		if next == "" {
			break
		}
		page, next, err = tr.List(t.Context(), ".", next, 1000)
		require.NoError(t, err)
		pages++
	}
	require.Len(t, seen, entries)
	t.Logf("all %d pages: %v", pages, time.Since(begin))
	clear(seen)

	begin = time.Now()
	u, err := v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.EqualValues(t, entries, u.Files)
	t.Logf("usage: %v", time.Since(begin))

	begin = time.Now()
	require.NoError(t, v.TrashFolder(t.Context(), ref))
	t.Logf("deletion returns after %v", time.Since(begin))
	begin = time.Now()
	n, err := v.Reap(t.Context(), 10_000)
	require.NoError(t, err)
	t.Logf("reaping %d entries: %v", n, time.Since(begin))
	begin = time.Now()
	for n > 0 {
		n, err = v.Reap(t.Context(), 100_000)
		require.NoError(t, err)
	}
	t.Logf("reaping the rest: %v", time.Since(begin))
}

// fill makes n empty files.
func fill(t *testing.T, dir string, n int) {
	t.Helper()
	begin := time.Now()
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			d, err := os.Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			defer d.Close()
			for i := w; i < n; i += 2 {
				if err := unix.Mknodat(int(d.Fd()), fmt.Sprintf("file-%08d.bin", i), unix.S_IFREG|0o644, 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("made %d entries in %v", n, time.Since(begin))
}

// peak is the most memory that the process held since it was reset, in KiB.
func peak(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, after, _ := bytes.Cut(status, []byte("VmHWM:"))
	line, _, _ := strings.Cut(string(after), "kB")
	n, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	return n
}

// BenchmarkAppend compares an upload's path to the disk with a plain copy of the same durability.
func BenchmarkAppend(b *testing.B) {
	if os.Getenv("BERTH_BENCH") != "1" {
		b.Skip("BERTH_BENCH=1 runs measurements")
	}
	const size = 16 << 20
	data := make([]byte, size)
	path := b.TempDir()
	v, err := posix.Open(posix.Options{Name: "volume1", Path: path, UID: -1, GID: -1})
	require.NoError(b, err)
	defer v.Close()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: uuid.NewString()},
		Folder: cluster.FolderID(uuid.NewString())}
	require.NoError(b, v.SetScope(b.Context(), ref.Scope, 1<<50))
	require.NoError(b, v.CreateFolder(b.Context(), ref, 0o755))
	b.Run("staged", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			s, err := v.Stage(b.Context(), ref, "u", true)
			require.NoError(b, err)
			unlock, err := s.Lock(b.Context())
			require.NoError(b, err)
			_, err = s.Append(b.Context(), 0, bytes.NewReader(data), size)
			require.NoError(b, err)
			require.NoError(b, s.Sync())
			unlock()
			require.NoError(b, s.Close())
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(size)
		for range b.N {
			f, err := os.Create(filepath.Join(path, "plain"))
			require.NoError(b, err)
			_, err = io.CopyBuffer(struct{ io.Writer }{f}, struct{ io.Reader }{bytes.NewReader(data)}, make([]byte, 1<<20))
			require.NoError(b, err)
			require.NoError(b, unix.Fdatasync(int(f.Fd())))
			require.NoError(b, f.Close())
		}
	})
}
