package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// OpenAt opens a volume in the directory path and closes it when the test ends.
type OpenAt func(t *testing.T, path string) volume.Volume

// RunOnDisk checks what only volumes in a directory have: what sessions do to the files directly, and two
// proxies on one directory. fresh makes a new, empty directory.
func RunOnDisk(t *testing.T, fresh func(t *testing.T) string, open OpenAt) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, d disk)
	}{
		{"links", links},
		{"links swapped", linksSwapped},
		{"parents swapped", parentsSwapped},
		{"devices", devices},
		{"names of sessions", sessionNames},
		{"uploads and links", uploadsAndLinks},
		{"two proxies", twoProxies},
		{"two proxies clone and reap", twoProxiesWork},
		{"layout", layout},
		{"owners", owners},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := fresh(t)
			c.test(t, disk{path: path, outside: outside(t, path), v: open(t, path), open: open})
		})
	}
}

type disk struct {
	path    string
	outside string // a directory beside the folders, with a file "secret"
	v       volume.Volume
	open    OpenAt
}

const secret = "nobody may read this"

// outside lies on the volume, so that no border between file systems helps, and in no folder.
func outside(t *testing.T, path string) string {
	t.Helper()
	dir := filepath.Join(path, "outside")
	require.NoError(t, os.Mkdir(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "secret"), []byte(secret), 0o644))
	t.Cleanup(func() {
		b, err := os.ReadFile(filepath.Join(dir, "secret"))
		if err != nil || string(b) != secret {
			t.Errorf("what is outside was changed: %q %v", b, err)
		}
		if all, _ := os.ReadDir(dir); len(all) != 1 {
			t.Errorf("something was made outside: %v", all)
		}
	})
	return dir
}

func (d disk) dir(ref cluster.FolderRef) string { return filepath.Join(d.path, ref.Dir()) }

func links(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := d.dir(ref)
	write(t, tr, "real/file", "1")
	for name, target := range map[string]string{
		"in": "real", "in-file": "real/file", "real/up": "../real/file", "dangling": "nothing", "loop": "loop",
		"out": d.outside, "out-file": d.outside + "/secret", "dots": "../../../../outside", "dots-file": "../../../../outside/secret",
		"magic": "/proc/self/root/etc/hostname", "self": ".", "chain": "out",
	} {
		require.NoError(t, os.Symlink(target, filepath.Join(dir, name)))
	}
	require.Equal(t, "1", read(t, tr, "in/file"))
	require.Equal(t, "1", read(t, tr, "in-file"))
	require.Equal(t, "1", read(t, tr, "real/up"))
	require.Equal(t, "1", read(t, tr, "self/self/real/file"))
	require.Equal(t, []string{"file", "up"}, listAll(t, tr, "in", 10))
	e, err := tr.Stat("in")
	require.NoError(t, err)
	require.Equal(t, volume.KindSymlink, e.Kind)
	require.Equal(t, "real", e.Target)
	e, err = tr.Stat("out-file")
	require.NoError(t, err, "a link can be looked at, whatever it says")
	require.Equal(t, volume.KindSymlink, e.Kind)

	for _, p := range []string{"out-file", "dots-file", "magic", "out/secret", "dots/secret", "chain/secret"} {
		_, err := tr.Open(p)
		is(t, fault.Invalid, err, "open", p)
	}
	for _, p := range []string{"out", "dots", "chain"} {
		_, _, err := tr.List(t.Context(), p, "", 10)
		is(t, fault.Invalid, err, "list", p)
		is(t, fault.Invalid, tr.Walk(t.Context(), p, func(string, volume.Entry) error { return nil }), p)
		_, err = tr.Stat(p + "/secret")
		is(t, fault.Invalid, err, p)
		is(t, fault.Invalid, tr.Mkdir(p+"/new", true, true), p)
		is(t, fault.Invalid, tr.Mkdir(p+"/new/deep", true, true), p)
		is(t, fault.Invalid, tr.WriteFile(t.Context(), p+"/secret", strings.NewReader("x"), 0o644), p)
		is(t, fault.Invalid, tr.WriteFile(t.Context(), p+"/new/x", strings.NewReader("x"), 0o644), p)
		is(t, fault.Invalid, tr.Remove(p+"/secret", true), p)
		is(t, fault.Invalid, tr.Rename(p+"/secret", "mine"), p)
		is(t, fault.Invalid, tr.Rename("real/file", p+"/new"), p)
	}
	is(t, fault.NotFound, func() error { _, err := tr.Open("dangling"); return err }())
	is(t, fault.Invalid, func() error { _, err := tr.Open("loop"); return err }())
	is(t, fault.Conflict, tr.WriteFile(t.Context(), "out-file", strings.NewReader("x"), 0o644), "a link is not written through, nor replaced")
	is(t, fault.Conflict, tr.WriteFile(t.Context(), "dangling", strings.NewReader("x"), 0o644))
	is(t, fault.Invalid, tr.WriteFile(t.Context(), "dangling/x", strings.NewReader("x"), 0o644))
	is(t, fault.Conflict, tr.Mkdir("dangling", false, true))
	write(t, tr, "in/new", "2")
	require.Equal(t, "2", read(t, tr, "real/new"), "a directory is reached through a link that stays inside")

	seen := 0
	require.NoError(t, tr.Walk(t.Context(), ".", func(p string, e volume.Entry) error {
		seen++
		require.NotContains(t, p, "secret")
		return nil
	}))
	require.Equal(t, 12+1+2, seen, "no link is followed")
	u, err := d.v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.EqualValues(t, 12+2, u.Files)

	// Links go, what they lead to stays.
	require.NoError(t, tr.Rename("out", "moved"))
	require.NoError(t, tr.Remove("moved", true))
	require.NoError(t, tr.Remove("out-file", false))
	require.NoError(t, tr.Remove("in", true))
	require.Equal(t, "1", read(t, tr, "real/file"))

	dst := newRef(newScope())
	require.NoError(t, d.v.CloneFolder(t.Context(), ref, dst, nil))
	copied := tree(t, d.v, dst)
	require.Equal(t, "1", read(t, copied, "in-file"))
	_, err = copied.Open("dots-file")
	require.Error(t, err)
	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	require.NoError(t, d.v.TrashFolder(t.Context(), dst))
	reapAll(t, d.v)
}

// swap exchanges two names in a directory until stop, as fast as it can.
func swap(dir, a, b string) (stop func()) {
	var wg sync.WaitGroup
	var done atomic.Bool
	wg.Go(func() {
		for !done.Load() {
			_ = unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, a), unix.AT_FDCWD, filepath.Join(dir, b), unix.RENAME_EXCHANGE)
		}
	})
	return func() { done.Store(true); wg.Wait() }
}

// linksSwapped: a name is a directory at one moment and a link out of the folder at the next.
func linksSwapped(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := d.dir(ref)
	write(t, tr, "x/secret", "mine")
	require.NoError(t, os.Symlink(d.outside, filepath.Join(dir, "y")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("mine"), 0o644))
	require.NoError(t, os.Symlink(d.outside+"/secret", filepath.Join(dir, "g")))
	defer swap(dir, "x", "y")()
	defer swap(dir, "f", "g")()

	in := 0
	for i := range 150 {
		for _, p := range []string{"x/secret", "f"} {
			if f, err := tr.Open(p); err == nil {
				b := make([]byte, 100)
				n, _ := f.ReadAt(b, 0)
				f.Close()
				require.Equal(t, "mine", string(b[:n]), p)
				in++
			}
		}
		if page, _, err := tr.List(t.Context(), "x", "", 1000); err == nil {
			for _, e := range page {
				require.NotEqual(t, int64(len(secret)), e.Size, "listed what is outside")
			}
		}
		_ = tr.Walk(t.Context(), ".", func(p string, e volume.Entry) error {
			if e.Kind == volume.KindFile {
				require.NotEqual(t, int64(len(secret)), e.Size, "walked out to %s", p)
			}
			return nil
		})
		name := fmt.Sprintf("x/new%d", i%5)
		_ = tr.WriteFile(t.Context(), name, strings.NewReader("mine"), 0o644)
		_ = tr.Mkdir(fmt.Sprintf("x/dir%d/deep", i%5), true, true)
		_ = tr.Remove(name, true)
		_ = tr.Remove(fmt.Sprintf("x/dir%d", i%5), true)
		_ = tr.Rename(fmt.Sprintf("x/dir%d", i%5), "x/other")
		_ = tr.Remove("x/other", true)
		if i%50 == 0 {
			s := stage(t, d.v, ref, "u", true)
			lock(t, s)
			_, err := s.Append(t.Context(), 0, strings.NewReader("mine"), 4)
			require.NoError(t, err)
			_ = s.Commit("x/secret")
			require.NoError(t, s.Close())
			_, err = d.v.Usage(t.Context(), ref)
			require.NoError(t, err)
			dst := newRef(ref.Scope)
			if err := d.v.CloneFolder(t.Context(), ref, dst, nil); err == nil {
				for p, text := range contents(t, tree(t, d.v, dst)) {
					require.NotEqual(t, secret, text, p)
				}
			}
			require.NoError(t, d.v.TrashFolder(t.Context(), dst))
		}
	}
	require.Positive(t, in, "some of it worked")
	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	reapAll(t, d.v)
}

// parentsSwapped: a directory in the middle of a path moves while its path is walked.
func parentsSwapped(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := d.dir(ref)
	write(t, tr, "a/b/c/secret", "mine")
	write(t, tr, "other/secret", "else")
	require.NoError(t, os.Symlink("../../../../../../outside/secret", filepath.Join(dir, "a/b/c/up")))
	require.NoError(t, os.Symlink("../../../other/secret", filepath.Join(dir, "a/b/c/across")))
	// c is one and three levels deep in turns, so that ".." counted from it is wrong at times.
	stop := func() func() {
		var wg sync.WaitGroup
		var done atomic.Bool
		wg.Go(func() {
			for !done.Load() {
				_ = os.Rename(filepath.Join(dir, "a/b/c"), filepath.Join(dir, "c"))
				_ = os.Rename(filepath.Join(dir, "c"), filepath.Join(dir, "a/b/c"))
			}
		})
		return func() { done.Store(true); wg.Wait() }
	}()
	defer stop()
	for range 2000 {
		for _, p := range []string{"a/b/c/up", "c/up", "a/b/c/across", "a/b/c/secret", "c/secret"} {
			f, err := tr.Open(p)
			if err != nil {
				continue
			}
			b := make([]byte, 100)
			n, _ := f.ReadAt(b, 0)
			f.Close()
			require.Contains(t, []string{"mine", "else"}, string(b[:n]), p)
		}
	}
}

func devices(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := d.dir(ref)
	write(t, tr, "file", "1")
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)
	here, err := os.Open(dir)
	require.NoError(t, err)
	defer here.Close()
	// Addresses of sockets are short; the folder's path is not.
	require.NoError(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: fmt.Sprintf("/proc/self/fd/%d/socket", here.Fd())}))
	want := []string{"pipe", "socket"}
	if err := syscall.Mknod(filepath.Join(dir, "null"), syscall.S_IFCHR|0o666, 1<<8|3); err == nil {
		want = append(want, "null")
	} else if !errors.Is(err, syscall.EPERM) {
		require.NoError(t, err)
	}
	page, _, err := tr.List(t.Context(), ".", "", 10)
	require.NoError(t, err)
	var others []string
	for _, e := range page {
		if e.Kind == volume.KindOther {
			others = append(others, e.Name)
		}
	}
	require.ElementsMatch(t, want, others)
	for _, name := range want {
		_, err := tr.Open(name) // a pipe that was opened would wait for its writer here
		is(t, fault.Invalid, err, name)
		is(t, fault.Conflict, tr.WriteFile(t.Context(), name, strings.NewReader("x"), 0o644), name)
		is(t, fault.Invalid, tr.WriteFile(t.Context(), name+"/x", strings.NewReader("x"), 0o644), name)
		is(t, fault.Conflict, tr.Mkdir(name, true, true), name)
		s := stage(t, d.v, ref, "u", true)
		lock(t, s)
		is(t, fault.Conflict, s.Commit(name), name)
		require.NoError(t, s.Close())
	}
	dst := newRef(ref.Scope)
	require.NoError(t, d.v.CloneFolder(t.Context(), ref, dst, nil))
	require.Equal(t, []string{"file"}, listAll(t, tree(t, d.v, dst), ".", 10), "devices are not copied")
	for _, name := range want[1:] {
		require.NoError(t, tr.Remove(name, false), name)
	}
	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	reapAll(t, d.v)
}

// sessionNames are names that only a session can make: they are seen, and go with their directory.
func sessionNames(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := filepath.Join(d.dir(ref), "d")
	require.NoError(t, tr.Mkdir("d", false, false))
	names := []string{"\xff\xfe", "a\nb", "cafe\u0301", "-rf", "*", strings.Repeat("x", 255), ".berth"}
	made := 0
	for _, n := range names {
		if os.WriteFile(filepath.Join(dir, n), []byte("1"), 0o644) == nil {
			made++
		}
	}
	require.Len(t, listAll(t, tr, "d", 2), made)
	require.Equal(t, "1", read(t, tr, "d/cafe\u0301"), "names that were never composed are found too")
	write(t, tr, "d/cafe\u0301", "2")
	require.Len(t, listAll(t, tr, "d", 2), made, "and replaced, not doubled")
	require.NoError(t, tr.Remove("d", true))

	deep := d.dir(ref)
	for range 300 {
		deep = filepath.Join(deep, "deeper")
	}
	require.NoError(t, os.MkdirAll(deep, 0o755))
	n := 0
	require.NoError(t, tr.Walk(t.Context(), ".", func(string, volume.Entry) error { n++; return nil }))
	require.Equal(t, 300, n)
	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	require.Greater(t, reapAll(t, d.v), 300)
}

func uploadsAndLinks(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	dir := d.dir(ref)
	write(t, tr, "real/file", "1")
	require.NoError(t, os.Symlink("real", filepath.Join(dir, "in")))
	require.NoError(t, os.Symlink(d.outside, filepath.Join(dir, "out")))
	require.NoError(t, os.Symlink(d.outside+"/secret", filepath.Join(dir, "target")))
	s := stage(t, d.v, ref, "u", true)
	lock(t, s)
	_, err := s.Append(t.Context(), 0, strings.NewReader("data"), 4)
	require.NoError(t, err)
	is(t, fault.Invalid, s.Commit("in/file"), "an upload never goes through a link")
	is(t, fault.Invalid, s.Commit("out/secret"))
	is(t, fault.Conflict, s.Commit("target"))
	require.Equal(t, "1", read(t, tr, "real/file"))
	require.NoError(t, s.Commit("real/file"))
	require.Equal(t, "data", read(t, tr, "real/file"))
}

func twoProxies(t *testing.T, d disk) {
	other := d.open(t, d.path)
	ref, tr := folder(t, d.v)
	write(t, tr, "f", "1")
	require.Equal(t, "1", read(t, tree(t, other, ref), "f"))

	a, b := stage(t, d.v, ref, "u", true), stage(t, other, ref, "u", false)
	unlock := lock(t, a)
	_, err := b.Lock(soon(t))
	is(t, fault.Conflict, err, "one writer over all proxies")
	_, err = a.Append(t.Context(), 0, strings.NewReader("hel"), 3)
	require.NoError(t, err)
	require.NoError(t, a.Sync())
	unlock()
	unlock = lock(t, b)
	size, err := b.Size()
	require.NoError(t, err)
	require.EqualValues(t, 3, size, "an upload hops between proxies")
	_, err = b.Append(t.Context(), size, strings.NewReader("lo"), 2)
	require.NoError(t, err)
	future := time.Now().Add(time.Hour)
	require.NoError(t, a.Close())
	n, err := d.v.ExpireStaged(t.Context(), future)
	require.NoError(t, err)
	require.Zero(t, n, "what another proxy has open stays")
	require.NoError(t, b.Commit("up"))
	unlock()
	require.Equal(t, "hello", read(t, tr, "up"))

	lock(t, stage(t, other, ref, "v", true))
	require.NoError(t, other.Tasks().Put("task", []byte("1")))
	release, ok, err := other.Tasks().Claim("task")
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = d.v.Tasks().Claim("task")
	require.NoError(t, err)
	require.False(t, ok)
	doc, err := d.v.Tasks().Get("task")
	require.NoError(t, err)
	require.Equal(t, "1", string(doc))
	release()
	release, ok, err = d.v.Tasks().Claim("task")
	require.NoError(t, err)
	require.True(t, ok)
	release()

	// Limits hold for all proxies.
	require.NoError(t, d.v.SetScope(t.Context(), ref.Scope, 4<<20))
	u, err := other.Scope(t.Context(), ref.Scope)
	require.NoError(t, err)
	require.EqualValues(t, 4<<20, u.LimitBytes)
	is(t, fault.Exhausted, tree(t, other, ref).WriteFile(t.Context(), "big", bytes.NewReader(noise(8<<20)), 0o644))

	// Scopes go while folders are made in them.
	s := newScope()
	var wg sync.WaitGroup
	for _, v := range []volume.Volume{d.v, other} {
		wg.Go(func() {
			for range 20 {
				f := newRef(s)
				if err := v.CreateFolder(t.Context(), f, 0o755); err != nil {
					t.Errorf("create: %v", err)
					return
				}
				tr, err := v.OpenFolder(t.Context(), f)
				if err != nil {
					t.Errorf("a folder that was made is not there: %v", err)
					return
				}
				tr.Close()
				if err := v.TrashFolder(t.Context(), f); err != nil {
					t.Errorf("trash: %v", err)
				}
				if err := v.DeleteScope(t.Context(), s); err != nil && !fault.Is(err, fault.Conflict) {
					t.Errorf("delete scope: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func twoProxiesWork(t *testing.T, d disk) {
	other := d.open(t, d.path)
	ref, tr := folder(t, d.v)
	want := grow(t, tr)
	dst := newRef(ref.Scope)
	var wg sync.WaitGroup
	for _, v := range []volume.Volume{d.v, other} {
		wg.Go(func() {
			if err := v.CloneFolder(t.Context(), ref, dst, nil); err != nil && !fault.Is(err, fault.Conflict) {
				t.Errorf("clone: %v", err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, other.CloneFolder(t.Context(), ref, dst, nil))
	sameFiles(t, want, contents(t, tree(t, other, dst)))

	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	for _, v := range []volume.Volume{d.v, other} {
		wg.Go(func() {
			for {
				n, err := v.Reap(t.Context(), 5)
				if err != nil {
					t.Errorf("reap: %v", err)
				}
				if n == 0 || err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	reapAll(t, d.v)
	left, err := os.ReadDir(filepath.Join(d.path, ref.Scope.Dir(), ".berth/trash"))
	require.NoError(t, err)
	require.Empty(t, left)
	sameFiles(t, want, contents(t, tree(t, other, dst)))
}

// layout is part of the wire: agents mount what lies there.
func layout(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	write(t, tr, "a/f", "1")
	h := ref.Folder.Hex()
	dir := filepath.Join(d.path, strings.ReplaceAll(ref.Scope.ID, "-", ""), h[:2], h[2:4], h[4:])
	b, err := os.ReadFile(filepath.Join(dir, "a/f"))
	require.NoError(t, err)
	require.Equal(t, "1", string(b))
	require.Equal(t, d.path, d.v.Info().Path)
	fi, err := os.Stat(filepath.Join(d.path, ref.Scope.Dir(), ".berth"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm(), "what is unfinished or deleted is nobody's to see")
	require.NoError(t, d.v.TrashFolder(t.Context(), ref))
	_, err = os.Stat(filepath.Join(d.path, ref.Scope.Dir(), h[:2]))
	require.ErrorIs(t, err, os.ErrNotExist, "empty parents go")
}

func owners(t *testing.T, d disk) {
	ref, tr := folder(t, d.v)
	write(t, tr, "a/b/f", "1")
	require.NoError(t, tr.Mkdir("m/n", true, false))
	s := stage(t, d.v, ref, "u", true)
	lock(t, s)
	require.NoError(t, s.Commit("x/y/up"))
	i := d.v.Info()
	for _, p := range []string{".", "a", "a/b", "a/b/f", "m", "m/n", "x", "x/y", "x/y/up"} {
		fi, err := os.Lstat(filepath.Join(d.dir(ref), p))
		require.NoError(t, err)
		st := fi.Sys().(*syscall.Stat_t)
		require.Equal(t, []int{i.OwnerUID, i.OwnerGID}, []int{int(st.Uid), int(st.Gid)}, p)
	}
	e, err := tr.Stat("x/y/up")
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o644), e.Mode)
}
