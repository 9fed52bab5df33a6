// Package conformance is what every volume must pass. A driver's test calls Run; volumes that lie in a directory
// call RunOnDisk too, which puts there what only a session could.
package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// Open makes a new, empty volume and closes it when the test ends.
type Open func(t *testing.T) volume.Volume

// Run checks the contract with volumes that open makes.
func Run(t *testing.T, open Open) {
	for _, c := range []struct {
		name string
		test func(t *testing.T, v volume.Volume)
	}{
		{"info and space", infoAndSpace},
		{"folders", folders},
		{"scopes", scopes},
		{"bad paths", badPaths},
		{"files", files},
		{"directories", directories},
		{"rename", rename},
		{"remove", remove},
		{"normal form of names", normalForm},
		{"list in pages", listPages},
		{"list under change", listUnderChange},
		{"walk", walk},
		{"write file fails whole", writeFails},
		{"upload", upload},
		{"upload ends where it cannot", commitRefused},
		{"upload has one writer", oneWriter},
		{"uploads belong to folders", uploadsApart},
		{"upload expires", expire},
		{"quota", quota},
		{"usage", usage},
		{"clone", clone},
		{"clone goes on", cloneGoesOn},
		{"reap", reap},
		{"journal", journal},
		{"closed", closed},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func is(t *testing.T, kind fault.Kind, err error, about ...any) {
	t.Helper()
	require.Error(t, err, about...)
	require.Equal(t, kind.String(), fault.KindOf(err).String(), "%v %v", about, err)
}

// eventually waits for a condition; the deadline only ends a test that would fail.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 5*time.Millisecond, what)
}

func newScope() cluster.QuotaScope {
	return cluster.QuotaScope{Kind: cluster.UserScope, ID: uuid.NewString()}
}

func newRef(s cluster.QuotaScope) cluster.FolderRef {
	return cluster.FolderRef{Scope: s, Folder: cluster.FolderID(uuid.NewString())}
}

// folder makes a folder in a new scope and opens it.
func folder(t *testing.T, v volume.Volume) (cluster.FolderRef, volume.Tree) {
	t.Helper()
	ref := newRef(newScope())
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	return ref, tree(t, v, ref)
}

func tree(t *testing.T, v volume.Volume, ref cluster.FolderRef) volume.Tree {
	t.Helper()
	tr, err := v.OpenFolder(t.Context(), ref)
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr
}

func write(t *testing.T, tr volume.Tree, path, text string) {
	t.Helper()
	require.NoError(t, tr.WriteFile(t.Context(), path, strings.NewReader(text), 0o644))
}

func read(t *testing.T, tr volume.Tree, path string) string {
	t.Helper()
	f, err := tr.Open(path)
	require.NoError(t, err)
	defer f.Close()
	b, err := io.ReadAll(f)
	require.NoError(t, err)
	return string(b)
}

// listAll reads a directory in pages and returns its names as they came.
func listAll(t *testing.T, tr volume.Tree, path string, limit int) []string {
	t.Helper()
	var names []string
	after := ""
	for {
		page, next, err := tr.List(t.Context(), path, after, limit)
		require.NoError(t, err)
		require.LessOrEqual(t, len(page), limit)
		for _, e := range page {
			names = append(names, e.Name)
		}
		if next == "" {
			return names
		}
		require.NotEqual(t, after, next)
		after = next
	}
}

func sorted(names []string) []string {
	names = slices.Clone(names)
	slices.Sort(names)
	return names
}

func stage(t *testing.T, v volume.Volume, ref cluster.FolderRef, id string, create bool) volume.Staged {
	t.Helper()
	s, err := v.Stage(t.Context(), ref, id, create)
	require.NoError(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func lock(t *testing.T, s volume.Staged) func() {
	t.Helper()
	unlock, err := s.Lock(t.Context())
	require.NoError(t, err)
	t.Cleanup(unlock)
	return unlock
}

// noise is bytes that no file system makes smaller.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

// soon ends in a moment, for calls that are meant to wait in vain.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func infoAndSpace(t *testing.T, v volume.Volume) {
	i := v.Info()
	require.NotEmpty(t, i.Name)
	require.NotEmpty(t, i.Backend)
	require.Contains(t, i.Capabilities, volume.CanFolder)
	require.Equal(t, i, v.Info())
	s, err := v.Space(t.Context())
	require.NoError(t, err)
	require.Positive(t, s.CapacityBytes)
	require.GreaterOrEqual(t, s.CapacityBytes, s.FreeBytes)
	require.GreaterOrEqual(t, s.UsedBytes, int64(0))
}

func folders(t *testing.T, v volume.Volume) {
	ref := newRef(newScope())
	_, err := v.OpenFolder(t.Context(), ref)
	is(t, fault.NotFound, err)
	_, err = v.Usage(t.Context(), ref)
	is(t, fault.NotFound, err)
	require.NoError(t, v.TrashFolder(t.Context(), ref), "a missing folder is deleted")

	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o700))
	_, err = v.Scope(t.Context(), ref.Scope)
	require.NoError(t, err, "its scope is made with it")
	tr := tree(t, v, ref)
	write(t, tr, "a", "kept")
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o700))
	require.Equal(t, "kept", read(t, tr, "a"), "making it again changes nothing")
	e, err := tr.Stat(".")
	require.NoError(t, err)
	require.Equal(t, volume.KindDirectory, e.Kind)
	require.Equal(t, fs.FileMode(0o700), e.Mode)

	other := newRef(ref.Scope)
	require.NoError(t, v.CreateFolder(t.Context(), other, 0o755))
	require.Empty(t, listAll(t, tree(t, v, other), ".", 10), "folders do not share files")

	require.NoError(t, v.TrashFolder(t.Context(), ref))
	_, err = v.OpenFolder(t.Context(), ref)
	is(t, fault.NotFound, err)
	require.NoError(t, v.TrashFolder(t.Context(), ref))
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	require.Empty(t, listAll(t, tree(t, v, ref), ".", 10), "a folder made again is empty")
	require.Empty(t, listAll(t, tree(t, v, other), ".", 10), "its neighbour is still there")

	// Folders come and go while their directories' parents do.
	s := newScope()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 20 {
				f := newRef(s)
				if err := v.CreateFolder(t.Context(), f, 0o755); err != nil {
					t.Errorf("create: %v", err)
					return
				}
				if err := v.TrashFolder(t.Context(), f); err != nil {
					t.Errorf("trash: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

func scopes(t *testing.T, v volume.Volume) {
	s := newScope()
	_, err := v.Scope(t.Context(), s)
	is(t, fault.NotFound, err)
	require.NoError(t, v.DeleteScope(t.Context(), s), "a missing scope is deleted")
	require.NoError(t, v.Charge(t.Context(), s, 1), "a scope that is not made yet has no limit")

	require.NoError(t, v.SetScope(t.Context(), s, volume.NoLimit))
	u, err := v.Scope(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, volume.NoLimit, u.LimitBytes)
	require.NoError(t, v.SetScope(t.Context(), s, 64<<20))
	u, err = v.Scope(t.Context(), s)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, u.LimitBytes)

	ref := newRef(s)
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	u, err = v.Scope(t.Context(), s)
	require.NoError(t, err)
	require.EqualValues(t, 64<<20, u.LimitBytes, "a folder does not lift the limit")
	is(t, fault.Conflict, v.DeleteScope(t.Context(), s))
	require.NoError(t, v.TrashFolder(t.Context(), ref))
	require.NoError(t, v.DeleteScope(t.Context(), s), "what is in its trash does not keep a scope")
	_, err = v.Scope(t.Context(), s)
	is(t, fault.NotFound, err)
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755), "a deleted scope can be made again")
	u, err = v.Scope(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, volume.NoLimit, u.LimitBytes)
}

// hostile are paths that no tree takes.
var hostile = []string{
	"..", "../x", "a/../..", "a/../b", "/etc/passwd", "/", "a\x00b", "\xff\xfe", "a/\xc3\x28",
	strings.Repeat("x", 256), "d/" + strings.Repeat("ä", 128), strings.Repeat("a/", 3000),
}

func badPaths(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	write(t, tr, "good", "1")
	up := stage(t, v, ref, "up", true)
	lock(t, up)
	for _, p := range hostile {
		_, err := tr.Stat(p)
		is(t, fault.Invalid, err, "stat", p)
		_, err = tr.Open(p)
		is(t, fault.Invalid, err, "open", p)
		_, _, err = tr.List(t.Context(), p, "", 10)
		is(t, fault.Invalid, err, "list", p)
		is(t, fault.Invalid, tr.Walk(t.Context(), p, func(string, volume.Entry) error { return nil }), "walk", p)
		is(t, fault.Invalid, tr.Mkdir(p, true, true), "mkdir", p)
		is(t, fault.Invalid, tr.Rename("good", p), "rename to", p)
		is(t, fault.Invalid, tr.Rename(p, "x"), "rename from", p)
		is(t, fault.Invalid, tr.Remove(p, true), "remove", p)
		is(t, fault.Invalid, tr.WriteFile(t.Context(), p, strings.NewReader("x"), 0o644), "write", p)
		is(t, fault.Invalid, up.Commit(p), "commit", p)
	}
	require.Equal(t, []string{"good"}, listAll(t, tr, ".", 10), "nothing came of them")

	_, err := tr.Open("nothing")
	is(t, fault.NotFound, err)
	_, err = tr.Open(".")
	is(t, fault.Invalid, err)
	_, _, err = tr.List(t.Context(), "good", "", 10)
	is(t, fault.Invalid, err)
	_, _, err = tr.List(t.Context(), ".", "not a cursor", 10)
	is(t, fault.Invalid, err)
	_, err = tr.Stat("good/x")
	require.Contains(t, []fault.Kind{fault.NotFound, fault.Invalid}, fault.KindOf(err))
	is(t, fault.NotFound, tr.Remove("nothing", true))
	is(t, fault.NotFound, tr.Rename("nothing", "x"))
	is(t, fault.Invalid, tr.Remove(".", true))
	is(t, fault.Invalid, tr.Rename(".", "x"))
	is(t, fault.Conflict, tr.WriteFile(t.Context(), ".", strings.NewReader(""), 0o644))

	for _, id := range []string{"", "..", "a/b", "a.b", "ä", strings.Repeat("x", 65), "a\x00"} {
		_, err := v.Stage(t.Context(), ref, id, true)
		is(t, fault.Invalid, err, "id", id)
		is(t, fault.Invalid, v.Tasks().Put(id, nil), "id", id)
		_, err = v.Tasks().Get(id)
		is(t, fault.Invalid, err, "id", id)
		_, _, err = v.Tasks().Claim(id)
		is(t, fault.Invalid, err, "id", id)
	}
}

func files(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	write(t, tr, "empty", "")
	require.Equal(t, "", read(t, tr, "empty"))
	write(t, tr, "a/b/c.txt", "hello world")
	require.Equal(t, "hello world", read(t, tr, "./a//b/c.txt"), "paths are cleaned")
	write(t, tr, "a/b/c.txt", "again")
	require.Equal(t, "again", read(t, tr, "a/b/c.txt"), "a file is replaced")
	is(t, fault.Conflict, tr.WriteFile(t.Context(), "a/b", strings.NewReader("x"), 0o644), "no file replaces a directory")
	is(t, fault.Invalid, tr.WriteFile(t.Context(), "empty/x", strings.NewReader("x"), 0o644))

	big := noise(3<<20 + 17)
	require.NoError(t, tr.WriteFile(t.Context(), "big", bytes.NewReader(big), 0o600))
	e, err := tr.Stat("big")
	require.NoError(t, err)
	require.Equal(t, "big", e.Name)
	require.Equal(t, volume.KindFile, e.Kind)
	require.EqualValues(t, len(big), e.Size)
	require.Equal(t, fs.FileMode(0o600), e.Mode)
	require.False(t, e.Modified.IsZero())
	require.False(t, e.Created.IsZero())

	f, err := tr.Open("big")
	require.NoError(t, err)
	defer f.Close()
	fi, err := f.Stat()
	require.NoError(t, err)
	require.EqualValues(t, len(big), fi.Size())
	part := make([]byte, 1000)
	_, err = f.ReadAt(part, 1<<20+3)
	require.NoError(t, err)
	require.True(t, bytes.Equal(big[1<<20+3:][:1000], part))
	_, err = f.Seek(2<<20, io.SeekStart)
	require.NoError(t, err)
	rest, err := io.ReadAll(f)
	require.NoError(t, err)
	require.True(t, bytes.Equal(big[2<<20:], rest))

	// A reader keeps the file that it opened.
	write(t, tr, "big", "new")
	_, err = f.ReadAt(part, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(big[:1000], part))
}

func directories(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	require.NoError(t, tr.Mkdir("a", false, false))
	is(t, fault.Conflict, tr.Mkdir("a", false, false))
	require.NoError(t, tr.Mkdir("a", false, true))
	is(t, fault.NotFound, tr.Mkdir("x/y", false, false))
	require.NoError(t, tr.Mkdir("x/y/z", true, false))
	require.NoError(t, tr.Mkdir("x/y/z", true, true))
	write(t, tr, "f", "")
	is(t, fault.Conflict, tr.Mkdir("f", true, true), "a file is no directory")
	is(t, fault.Invalid, tr.Mkdir("f/sub", true, true))
	require.NoError(t, tr.Mkdir(".", false, true))
	is(t, fault.Conflict, tr.Mkdir(".", false, false))
	e, err := tr.Stat("x/y")
	require.NoError(t, err)
	require.Equal(t, volume.KindDirectory, e.Kind)

	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := tr.Mkdir(fmt.Sprintf("p/q/r/%d", i), true, true); err != nil {
				t.Errorf("mkdir: %v", err)
			}
		})
	}
	wg.Wait()
	require.Len(t, listAll(t, tr, "p/q/r", 100), 8)
}

func rename(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	write(t, tr, "a", "1")
	write(t, tr, "b", "2")
	is(t, fault.Conflict, tr.Rename("a", "b"), "nothing is replaced")
	require.Equal(t, "2", read(t, tr, "b"))
	require.NoError(t, tr.Rename("a", "deep/down/a"))
	require.Equal(t, "1", read(t, tr, "deep/down/a"))
	_, err := tr.Stat("a")
	is(t, fault.NotFound, err)
	require.NoError(t, tr.Rename("deep", "moved"), "directories move")
	require.Equal(t, "1", read(t, tr, "moved/down/a"))
	is(t, fault.Invalid, tr.Rename("moved", "moved/down/x"), "not into itself")
	is(t, fault.Conflict, tr.Rename("moved", "b"))
	require.NoError(t, tr.Mkdir("empty", false, false))
	is(t, fault.Conflict, tr.Rename("moved", "empty"), "not even an empty directory is replaced")
	is(t, fault.Conflict, tr.Rename("b", "b"))
	is(t, fault.Invalid, tr.Rename("moved", "b/x"))
	is(t, fault.Conflict, tr.Rename("b", "."))
}

func remove(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	write(t, tr, "f", "1")
	write(t, tr, "d/e/f", "1")
	require.NoError(t, tr.Remove("f", false))
	_, err := tr.Stat("f")
	is(t, fault.NotFound, err)
	is(t, fault.Conflict, tr.Remove("d", false))
	require.NoError(t, tr.Remove("d", true))
	_, err = tr.Stat("d")
	is(t, fault.NotFound, err)
	require.NoError(t, tr.Mkdir("d", false, false))
	require.NoError(t, tr.Remove("d", false), "an empty directory needs no recursion")
	write(t, tr, "f", "1")
	require.NoError(t, tr.Remove("f", true))
	require.Empty(t, listAll(t, tr, ".", 10))
}

func normalForm(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	composed, decomposed := "d/caf\u00e9", "d/cafe\u0301"
	write(t, tr, decomposed, "1")
	require.Equal(t, []string{"caf\u00e9"}, listAll(t, tr, "d", 10), "new names are composed")
	require.Equal(t, "1", read(t, tr, composed))
	require.Equal(t, "1", read(t, tr, decomposed), "and found as they were asked for")
	write(t, tr, composed, "2")
	require.Equal(t, "2", read(t, tr, decomposed))
	require.NoError(t, tr.Mkdir("u\u0308", false, false))
	is(t, fault.Conflict, tr.Mkdir("\u00fc", false, false))
	require.NoError(t, tr.Rename(decomposed, "o\u0308"))
	require.Equal(t, []string{"d", "\u00f6", "\u00fc"}, sorted(listAll(t, tr, ".", 10)))
}

func listPages(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	require.NoError(t, tr.Mkdir("d", false, false))
	page, next, err := tr.List(t.Context(), "d", "", 10)
	require.NoError(t, err)
	require.Empty(t, page)
	require.Empty(t, next)
	var want []string
	for i := range 250 {
		name := fmt.Sprintf("file-%03d-%s", i, strings.Repeat("x", i%40))
		want = append(want, name)
		write(t, tr, "d/"+name, name)
	}
	for _, limit := range []int{1, 7, 249, 250, 251, 1000} {
		require.Equal(t, want, sorted(listAll(t, tr, "d", limit)), "pages of %d", limit)
	}
	require.Equal(t, want, listAll(t, tr, "d", 1000), "one page is in order")
	_, _, err = tr.List(t.Context(), "none", "", 10)
	is(t, fault.NotFound, err)
	page, _, err = tr.List(t.Context(), ".", "", 0)
	require.NoError(t, err, "no limit means a fitting one")
	require.Len(t, page, 1)
	require.Equal(t, volume.KindDirectory, page[0].Kind)

	_, next, err = tr.List(t.Context(), "d", "", 10)
	require.NoError(t, err)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err = tr.List(ended, "d", next, 10_000)
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
}

// listUnderChange: what is there all the time comes once, whatever else comes and goes.
func listUnderChange(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	var stay []string
	for i := range 300 {
		stay = append(stay, fmt.Sprintf("stay-%04d", i))
		write(t, tr, stay[i], "")
	}
	r := rand.New(rand.NewPCG(1, 2))
	live := map[string]bool{}
	change := func() {
		name := fmt.Sprintf("come-%04d", r.IntN(200))
		if live[name] {
			require.NoError(t, tr.Remove(name, false))
		} else {
			write(t, tr, name, "")
		}
		live[name] = !live[name]
	}
	for range 100 {
		change()
	}
	for round := range 3 {
		seen := map[string]int{}
		after := ""
		for {
			page, next, err := tr.List(t.Context(), ".", after, 17)
			require.NoError(t, err)
			for _, e := range page {
				seen[e.Name]++
			}
			if next == "" {
				break
			}
			after = next
			for range 10 {
				change()
			}
		}
		for _, name := range stay {
			require.Equal(t, 1, seen[name], "%s in round %d", name, round)
		}
	}
}

func walk(t *testing.T, v volume.Volume) {
	_, tr := folder(t, v)
	for _, p := range []string{"a/1", "a/b/2", "c/3", "skip/4"} {
		write(t, tr, p, "x")
	}
	require.NoError(t, tr.Mkdir("void", false, false))
	var seen []string
	require.NoError(t, tr.Walk(t.Context(), ".", func(p string, e volume.Entry) error {
		seen = append(seen, p)
		if p == "skip" {
			return fs.SkipDir
		}
		return nil
	}))
	require.Equal(t, []string{"a", "a/1", "a/b", "a/b/2", "c", "c/3", "skip", "void"}, sorted(seen))
	for _, pair := range [][2]string{{"a", "a/1"}, {"a", "a/b"}, {"a/b", "a/b/2"}} {
		require.Less(t, slices.Index(seen, pair[0]), slices.Index(seen, pair[1]), "a directory comes before what it holds")
	}
	seen = nil
	require.NoError(t, tr.Walk(t.Context(), "a/b", func(p string, _ volume.Entry) error { seen = append(seen, p); return nil }))
	require.Equal(t, []string{"a/b/2"}, seen, "paths are the folder's")
	mine := errors.New("mine")
	require.ErrorIs(t, tr.Walk(t.Context(), ".", func(string, volume.Entry) error { return mine }), mine)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, tr.Walk(ended, ".", func(string, volume.Entry) error { return nil }), context.Canceled)
	is(t, fault.NotFound, tr.Walk(t.Context(), "none", func(string, volume.Entry) error { return nil }))
}

type brokenReader struct {
	r   io.Reader
	err error
}

func (b *brokenReader) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if err == io.EOF {
		err = b.err
	}
	return n, err
}

func writeFails(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	write(t, tr, "f", "old")
	gone := errors.New("the client went away")
	err := tr.WriteFile(t.Context(), "f", &brokenReader{strings.NewReader("half"), gone}, 0o644)
	require.ErrorIs(t, err, gone)
	require.Equal(t, "old", read(t, tr, "f"))
	require.Equal(t, []string{"f"}, listAll(t, tr, ".", 10), "nothing half is seen")
	u, err := v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.EqualValues(t, 1, u.Files)
}

func closed(t *testing.T, v volume.Volume) {
	ref, _ := folder(t, v)
	require.NoError(t, v.Close())
	require.NoError(t, v.Close(), "closing twice is closing")
	_, err := v.OpenFolder(t.Context(), ref)
	is(t, fault.Unavailable, err)
	_, err = v.Space(t.Context())
	is(t, fault.Unavailable, err)
}
