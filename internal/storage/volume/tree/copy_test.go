package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/testkit/await"
)

// listing describes everything below dir: kinds, modes, times, contents, targets.
func listing(t interface{ Fatal(...any) }, dir string) map[string]string {
	all := map[string]string{}
	must(t, filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		must(t, err)
		rel, _ := filepath.Rel(dir, p)
		if rel == "." {
			return nil
		}
		var st unix.Stat_t
		must(t, unix.Lstat(p, &st))
		text := fmt.Sprintf("%o %d.%09d", st.Mode, st.Mtim.Sec, st.Mtim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			content, err := os.ReadFile(p)
			must(t, err)
			text += fmt.Sprintf(" %d %x", st.Size, sha256.Sum256(content))
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			must(t, err)
			text += " " + target
		}
		all[rel] = text
		return nil
	}))
	return all
}

func equal(t *rapid.T, want, got map[string]string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if got[name] != want[name] {
			t.Fatalf("%q is %q, want %q", name, got[name], want[name])
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[name]; !ok {
			t.Fatalf("%q is too much", name)
		}
	}
}

// expected is what a copy of dir must look like: without pipes and links to places outside.
func expected(t interface{ Fatal(...any) }, dir string) map[string]string {
	all := listing(t, dir)
	for name := range all {
		var st unix.Stat_t
		p := filepath.Join(dir, name)
		must(t, unix.Lstat(p, &st))
		target, _ := os.Readlink(p)
		if st.Mode&unix.S_IFMT == unix.S_IFIFO || target != "" &&
			(filepath.IsAbs(target) || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target))) {
			delete(all, name)
		}
	}
	return all
}

func TestCopyEqualsSource(t *testing.T) {
	t.Parallel()
	base := quickDir(t)
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp(base, "")
		must(t, err)
		defer os.RemoveAll(dir)
		src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
		must(t, os.Mkdir(src, 0o750))
		must(t, os.Mkdir(dst, 0o700))
		grow(t, src)
		var last volume.Progress
		must(t, Copy(context.Background(), openTest(t, src), openTest(t, dst), func(p volume.Progress) { last = p }))
		equal(t, expected(t, src), listing(t, dst))
		if last.Current != last.Total {
			t.Fatalf("ended with %+v", last)
		}
		st, err := os.Stat(dst)
		must(t, err)
		if st.Mode().Perm() != 0o750 {
			t.Fatal("mode of the top", st.Mode())
		}

		// What a crash leaves: some files are missing, half, under their temporary names, or older.
		inodes := map[string]uint64{}
		for name := range listing(t, dst) {
			p := filepath.Join(dst, name)
			st, err := os.Lstat(p)
			if err != nil {
				continue // inside a directory that was removed
			}
			if !st.Mode().IsRegular() {
				continue
			}
			switch rapid.IntRange(0, 4).Draw(t, "damage") {
			case 0:
				must(t, os.Remove(p))
			case 1:
				must(t, os.Rename(p, filepath.Join(filepath.Dir(p),
					fmt.Sprintf("%s%d-%d", tempPrefix, rapid.IntRange(0, 3).Draw(t, "worker"), len(inodes)))))
			case 2:
				must(t, os.Truncate(p, st.Size()+1))
			default:
				inodes[p] = st.Sys().(*syscall.Stat_t).Ino
			}
		}
		must(t, Copy(context.Background(), openTest(t, src), openTest(t, dst), nil))
		equal(t, expected(t, src), listing(t, dst))
		for p, ino := range inodes {
			st, err := os.Lstat(p)
			must(t, err)
			if st.Sys().(*syscall.Stat_t).Ino != ino {
				t.Fatalf("%s was copied again", p)
			}
		}
	})
}

func TestCopyKeepsNamesThatLookTemporary(t *testing.T) {
	t.Parallel()
	src, dst := quickDir(t), quickDir(t)
	for i := range 40 {
		must(t, os.WriteFile(filepath.Join(src, fmt.Sprintf("%s%d-%d", tempPrefix, i%4, i/4)), []byte{byte(i)}, 0o600))
	}
	must(t, os.WriteFile(filepath.Join(dst, tempPrefix+"9-9"), []byte("half"), 0o600))
	must(t, os.WriteFile(filepath.Join(dst, "other"), nil, 0o600))
	for range 2 {
		must(t, Copy(t.Context(), openTest(t, src), openTest(t, dst), nil))
	}
	got := listing(t, dst)
	if len(got) != 41 || got["other"] == "" {
		t.Fatalf("%d entries: %v", len(got), slices.Sorted(maps.Keys(got)))
	}
}

func TestCopyManyFilesOfOneDirectory(t *testing.T) {
	t.Parallel()
	src, dst := quickDir(t), quickDir(t)
	for i := range 5000 {
		must(t, os.WriteFile(filepath.Join(src, fmt.Sprintf("file %d", i)), []byte{byte(i)}, 0o600))
	}
	must(t, Copy(t.Context(), openTest(t, src), openTest(t, dst), nil))
	if !maps.Equal(listing(t, src), listing(t, dst)) {
		t.Fatal("the copy differs")
	}
}

func TestCopyKeepsHoles(t *testing.T) {
	t.Parallel()
	for _, base := range []string{quickDir(t), t.TempDir()} {
		src, dst := filepath.Join(base, "a"), filepath.Join(base, "b")
		must(t, os.Mkdir(src, 0o755))
		must(t, os.Mkdir(dst, 0o755))
		f, err := os.Create(filepath.Join(src, "sparse"))
		must(t, err)
		_, err = f.WriteAt([]byte("in the middle"), 200<<20)
		must(t, err)
		must(t, f.Truncate(400<<20))
		must(t, f.Close())
		must(t, Copy(t.Context(), openTest(t, src), openTest(t, dst), nil))
		var st unix.Stat_t
		must(t, unix.Stat(filepath.Join(dst, "sparse"), &st))
		if st.Size != 400<<20 || st.Blocks*512 > 1<<20 {
			t.Fatalf("size %d in %d bytes", st.Size, st.Blocks*512)
		}
		f, err = os.Open(filepath.Join(dst, "sparse"))
		must(t, err)
		text := make([]byte, 13)
		_, err = f.ReadAt(text, 200<<20)
		must(t, err)
		must(t, f.Close())
		if string(text) != "in the middle" {
			t.Fatalf("%q", text)
		}
	}
}

func TestCopyFaults(t *testing.T) {
	t.Parallel()
	src, dst := quickDir(t), quickDir(t)
	must(t, os.WriteFile(filepath.Join(src, "x"), []byte("x"), 0o600))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Copy(ended, openTest(t, src), openTest(t, dst), nil); !errors.Is(err, context.Canceled) {
		t.Fatal("ended:", err)
	}
	if got := listing(t, dst); len(got) != 0 {
		t.Fatal("an ended copy left", got)
	}
	must(t, os.MkdirAll(filepath.Join(dst, "x"), 0o755))
	if err := Copy(t.Context(), openTest(t, src), openTest(t, dst), nil); !fault.Is(err, fault.Conflict) {
		t.Fatal("a directory in the way:", err)
	}
	// A link in the place of a directory leads nowhere.
	must(t, os.Remove(filepath.Join(dst, "x")))
	must(t, os.MkdirAll(filepath.Join(src, "d"), 0o755))
	must(t, os.WriteFile(filepath.Join(src, "d", "y"), nil, 0o600))
	outside := quickDir(t)
	must(t, os.Symlink(outside, filepath.Join(dst, "d")))
	if err := Copy(t.Context(), openTest(t, src), openTest(t, dst), nil); !fault.Is(err, fault.Conflict) {
		t.Fatal("a link in the way:", err)
	}
	if got := listing(t, outside); len(got) != 0 {
		t.Fatal("written outside:", got)
	}
	for target, want := range map[string]bool{"../x": true, "../../x": false, "/x": false, ".": true, "..": true, "../..": false,
		"a/../../b": true} {
		if staysInside("d", target) != want {
			t.Errorf("staysInside(d, %q) is %v", target, !want)
		}
	}
}

// swap makes dir/d a directory and a link to outside in turns until stop is called.
func swap(t *testing.T, dir, outside string) (stop func()) {
	must(t, os.MkdirAll(filepath.Join(dir, "d", "deeper"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "d", "f"), []byte("inside"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "d", "deeper", "f"), []byte("inside"), 0o600))
	must(t, os.Symlink(outside, filepath.Join(dir, "l")))
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "d"), unix.AT_FDCWD, filepath.Join(dir, "l"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	return func() { close(over); <-done }
}

// TestLinksThatComeAndGoLeadNowhere: whoever can write into a tree cannot make us read, count or remove outside.
func TestLinksThatComeAndGoLeadNowhere(t *testing.T) {
	t.Parallel()
	outside := quickDir(t)
	must(t, os.MkdirAll(filepath.Join(outside, "deeper"), 0o755))
	for _, name := range []string{"f", "deeper/f", "deeper/g"} {
		must(t, os.WriteFile(filepath.Join(outside, name), []byte("a secret of somebody else"), 0o600))
	}
	before := listing(t, outside)
	for range 150 {
		dir := quickDir(t)
		src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
		must(t, os.Mkdir(src, 0o755))
		must(t, os.Mkdir(dst, 0o755))
		stop := swap(t, src, outside)
		root := openTest(t, src)
		u, err := Usage(t.Context(), root, 2)
		must(t, err)
		if limit := int64(len("inside")*2 + 2*len(outside)); u.Bytes > limit {
			t.Fatalf("counted %d bytes, only %d are inside", u.Bytes, limit)
		}
		must(t, Copy(t.Context(), root, openTest(t, dst), nil))
		_, _, err = Remove(t.Context(), openTest(t, dir), "src", 100)
		_ = err // what comes and goes may be in the way
		stop()
		must(t, filepath.WalkDir(dst, func(p string, d fs.DirEntry, err error) error {
			must(t, err)
			if d.Type().IsRegular() {
				text, err := os.ReadFile(p)
				must(t, err)
				if string(text) != "inside" {
					t.Fatalf("%s holds %q", p, text)
				}
			}
			return nil
		}))
	}
	if !maps.Equal(before, listing(t, outside)) {
		t.Fatal("something outside was changed")
	}
}

// TestCopyChild is the process that TestCopyGoesOnAfterKill kills.
func TestCopyChild(t *testing.T) {
	dirs := strings.Split(os.Getenv("BERTH_TEST_COPY"), "|")
	if len(dirs) != 2 {
		t.Skip("runs inside another test")
	}
	must(t, Copy(t.Context(), openTest(t, dirs[0]), openTest(t, dirs[1]), nil))
}

func TestCopyGoesOnAfterKill(t *testing.T) {
	t.Parallel()
	base := quickDir(t)
	src, dst := filepath.Join(base, "src"), filepath.Join(base, "dst")
	must(t, os.Mkdir(src, 0o755))
	must(t, os.Mkdir(dst, 0o755))
	random := rand.NewChaCha8([32]byte{7})
	for i := range 4000 {
		dir := filepath.Join(src, fmt.Sprintf("d%d/e%d", i%7, i%13))
		must(t, os.MkdirAll(dir, 0o755))
		content := make([]byte, 3000+i%40*1000)
		_, _ = random.Read(content)
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), content, 0o600))
	}
	want := listing(t, src)
	visible := func() map[string]string {
		got := map[string]string{}
		for name, text := range listing(t, dst) {
			if st, err := os.Lstat(filepath.Join(dst, name)); err == nil && st.Mode().IsRegular() &&
				!strings.HasPrefix(filepath.Base(name), tempPrefix) {
				got[name] = text
			}
		}
		return got
	}
	kills := 0
	for had := 0; ; {
		child := exec.Command(os.Args[0], "-test.run=^TestCopyChild$")
		child.Env = append(os.Environ(), "BERTH_TEST_COPY="+src+"|"+dst)
		must(t, child.Start())
		ended := make(chan error, 1)
		go func() { ended <- child.Wait() }()
		// Kill it once it did something, wherever it is then.
		var err error
		tick := time.NewTicker(time.Millisecond)
		for running := true; running; {
			select {
			case err = <-ended:
				running = false
			case <-tick.C:
				if n := roughly(dst); kills < 6 && n > had+200 {
					had = n
					must(t, child.Process.Kill())
					kills++
					err = await.Value(t, ended)
					running = false
				}
			}
		}
		tick.Stop()
		for name, text := range visible() {
			if want[name] != text {
				t.Fatalf("%s is visible and not what it is in the source", name)
			}
		}
		if err == nil {
			break
		}
	}
	if !maps.Equal(want, listing(t, dst)) {
		t.Fatal("the copy differs")
	}
	t.Logf("killed %d times", kills)
}

// roughly is roughly how many files are in a directory that another process fills.
func roughly(dir string) (n int) {
	_ = filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { n++; return nil })
	return n
}
