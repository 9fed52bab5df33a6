package tree

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/storage/volume"
)

func openTest(t interface {
	Fatal(...any)
	Cleanup(func())
}, dir string) *os.Root {
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

func must(t interface{ Fatal(...any) }, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// naive is what Usage must say, by the standard library.
func naive(t *rapid.T, dir string) volume.Usage {
	seen := map[uint64]bool{}
	u := volume.Usage{Complete: true}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		if kind := st.Mode & unix.S_IFMT; (kind == unix.S_IFREG || kind == unix.S_IFLNK) && !seen[st.Ino] {
			seen[st.Ino] = true
			u.Files++
			u.Bytes += st.Size
		}
		return nil
	}))
	return u
}

// grow makes a random tree below dir with files, holes, links of all sorts and pipes.
func grow(t *rapid.T, dir string) {
	dirs, files := []string{dir}, []string{}
	name := rapid.StringMatching(`[a-zäö .\n\-]{1,12}`)
	for i := range rapid.IntRange(0, 40).Draw(t, "entries") {
		parent := rapid.SampledFrom(dirs).Draw(t, "parent")
		p := filepath.Join(parent, name.Draw(t, "name")+strconv.Itoa(i))
		switch rapid.IntRange(0, 9).Draw(t, "kind") {
		case 0, 1, 2:
			must(t, os.Mkdir(p, 0o755))
			dirs = append(dirs, p)
		case 3:
			must(t, os.Symlink(rapid.SampledFrom([]string{"x", "../x", "../../../../../../../etc/passwd", "/etc/passwd", ".", "a/../b"}).
				Draw(t, "target"), p))
		case 4:
			if len(files) > 0 {
				must(t, os.Link(rapid.SampledFrom(files).Draw(t, "linked"), p))
			}
		case 5:
			must(t, unix.Mkfifo(p, 0o600))
		case 6: // data, a hole, data
			f, err := os.Create(p)
			must(t, err)
			_, err = f.WriteAt([]byte("begin"), int64(rapid.IntRange(0, 300<<10).Draw(t, "hole")))
			must(t, err)
			must(t, f.Truncate(rapid.Int64Range(0, 1<<20).Draw(t, "length")))
			must(t, f.Close())
			files = append(files, p)
		default:
			must(t, os.WriteFile(p, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "content"),
				fs.FileMode(rapid.SampledFrom([]int{0o600, 0o644, 0o755, 0o444}).Draw(t, "mode"))))
			files = append(files, p)
		}
	}
}

// quickDir is a directory where many small syncs cost nothing, when there is one.
func quickDir(t testing.TB) string {
	if d, err := os.MkdirTemp("/dev/shm", "berth-tree-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(d) })
		return d
	}
	return t.TempDir()
}

func TestUsageEqualsNaiveWalk(t *testing.T) {
	t.Parallel()
	base := quickDir(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(dir)
		grow(t, dir)
		got, err := Usage(context.Background(), openTest(t, dir), rapid.IntRange(0, 4).Draw(t, "workers"))
		must(t, err)
		if want := naive(t, dir); got != want {
			t.Fatalf("got %+v, want %+v", got, want)
		}
	})
}

// Files with holes are as large as their owner says. Their sum stays much, it does not become nothing.
func TestUsageOfSizesThatNoDiskHas(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "usage")
	if err != nil {
		t.Skip("needs a file system with very large files:", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for _, name := range []string{"a", "b", "c"} {
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
		if err := os.Truncate(filepath.Join(dir, name), 1<<62); err != nil {
			t.Skip("needs a file system with very large files:", err)
		}
	}
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	u, err := Usage(t.Context(), root, 0)
	must(t, err)
	if u.Files != 3 || u.Bytes != maxBytes {
		t.Fatalf("counted %+v", u)
	}
}
