package tree

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/fault"
)

func TestRemoveInStepsRemovesExactlyTheTree(t *testing.T) {
	t.Parallel()
	base := quickDir(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(dir)
		must(t, os.MkdirAll(filepath.Join(dir, "gone"), 0o755))
		must(t, os.MkdirAll(filepath.Join(dir, "stays"), 0o755))
		grow(t, filepath.Join(dir, "stays"))
		grow(t, filepath.Join(dir, "gone"))
		must(t, os.Symlink("../stays", filepath.Join(dir, "gone", "link out")))
		before, stays := listing(t, filepath.Join(dir, "stays")), listing(t, filepath.Join(dir, "gone"))
		root := openTest(t, dir)
		total, limit := 0, rapid.IntRange(1, 12).Draw(t, "limit")
		for steps := 0; ; steps++ {
			removed, done, err := Remove(context.Background(), root, "gone", limit)
			must(t, err)
			if removed > limit || removed == 0 && !done {
				t.Fatalf("removed %d of at most %d, done %v", removed, limit, done)
			}
			if total += removed; done {
				break
			}
		}
		if want := len(stays) + 1; total != want {
			t.Fatalf("removed %d entries, want %d", total, want)
		}
		if _, err := os.Lstat(filepath.Join(dir, "gone")); !os.IsNotExist(err) {
			t.Fatal("the tree is still there", err)
		}
		equal(t, before, listing(t, filepath.Join(dir, "stays")))
	})
}

func TestRemoveDeepTree(t *testing.T) {
	t.Parallel()
	dir := quickDir(t)
	must(t, os.Mkdir(filepath.Join(dir, "deep"), 0o755))
	fd, err := unix.Open(filepath.Join(dir, "deep"), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("n", 200)
	const depth = 1500 // 300 kB of path
	for range depth {
		must(t, unix.Mkdirat(fd, name, 0o755))
		must(t, unix.Mknodat(fd, "file", unix.S_IFREG|0o600, 0))
		next, err := unix.Openat(fd, name, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		must(t, err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	root := openTest(t, dir)
	u, err := Usage(context.Background(), root, 2)
	must(t, err)
	if u.Files != depth || !u.Complete {
		t.Fatalf("counted %+v", u)
	}
	total := 0
	for done := false; !done; {
		var n int
		n, done, err = Remove(context.Background(), root, "deep", 700)
		must(t, err)
		total += n
	}
	if total != 2*depth+1 {
		t.Fatalf("removed %d, want %d", total, 2*depth+1)
	}
}

func TestRemoveEdges(t *testing.T) {
	t.Parallel()
	dir := quickDir(t)
	root := openTest(t, dir)
	for _, bad := range []string{"", ".", "..", "a/b", "a\x00"} {
		if _, _, err := Remove(context.Background(), root, bad, 9); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if n, done, err := Remove(context.Background(), root, "absent", 9); n != 0 || !done || err != nil {
		t.Error(n, done, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	must(t, os.Symlink("file", filepath.Join(dir, "link")))
	if n, done, err := Remove(context.Background(), root, "link", 9); n != 1 || !done || err != nil {
		t.Error(n, done, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if n, done, err := Remove(ended, root, "file", 9); n != 0 || done || err == nil {
		t.Error(n, done, err)
	}
	if n, done, err := Remove(context.Background(), root, "file", 9); n != 1 || !done || err != nil {
		t.Error(n, done, err)
	}
	must(t, os.MkdirAll(filepath.Join(dir, "closed", "inner"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "closed", "inner", "f"), nil, 0o600))
	must(t, os.Chmod(filepath.Join(dir, "closed", "inner"), 0))
	must(t, os.Chmod(filepath.Join(dir, "closed"), 0o500))
	if n, done, err := Remove(context.Background(), root, "closed", 9); n != 3 || !done || err != nil {
		t.Error(n, done, err)
	}
}
