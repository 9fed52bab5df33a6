package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/api"
	"berth.dev/berth/api/transfer"
)

func data(p string) api.FolderPath { return api.FolderPath{Folder: "data", Path: p} }

func random(n int, seed uint64) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	_, _ = r.Read(b)
	return b
}

func fileWith(t require.TestingT, dir, name string, body []byte) string {
	p := filepath.Join(dir, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
	require.NoError(t, os.WriteFile(p, body, 0o644))
	return p
}

// troubles draws what happens to the first requests of a transfer.
func troubles(t *rapid.T, size int) []trouble {
	one := rapid.Custom(func(t *rapid.T) trouble {
		k := rapid.IntRange(0, 9).Draw(t, "kind")
		switch {
		case k < 4:
			return trouble{cut: int64(rapid.IntRange(0, size+1).Draw(t, "cut"))}
		case k == 4:
			return trouble{cut: -1, lose: true}
		case k == 5:
			return trouble{cut: -1, status: rapid.SampledFrom([]int{409, 423, 429, 460, 500, 502, 503, 504}).Draw(t, "status")}
		}
		return fine
	})
	list := rapid.SliceOfN(one, 0, 9).Draw(t, "troubles")
	if rapid.Bool().Draw(t, "expires") && len(list) > 0 {
		list[rapid.IntRange(0, len(list)-1).Draw(t, "when")].expire = true
	}
	return list
}

// Whatever is cut, lost, refused or expired: the file that arrives is the file that left.
func TestUploadSurvivesEverything(t *testing.T) {
	s, c := newStore(t)
	dir := t.TempDir()
	rapid.Check(t, func(r *rapid.T) {
		body := random(rapid.IntRange(0, 550).Draw(r, "size"), rapid.Uint64Range(0, 60000).Draw(r, "seed"))
		o := s.options()
		o.Chunk = int64(rapid.IntRange(1, 600).Draw(r, "chunk"))
		o.Chunk = max(o.Chunk, int64(len(body)/20))
		o.Checksums = rapid.Bool().Draw(r, "checksums")
		o.Verify = rapid.Bool().Draw(r, "verify")
		told := int64(0)
		o.Seen = func(e transfer.Event) {
			if e.Kind == transfer.Bytes {
				told += e.Size
			}
		}
		s.troubles = troubles(r, int(o.Chunk))
		f, err := os.Open(fileWith(r, dir, "it", body))
		require.NoError(r, err)
		defer f.Close()
		src, err := transfer.FileContent(f)
		require.NoError(r, err)

		require.NoError(r, transfer.UploadFile(t.Context(), c, data("a/b"), src, o))

		require.True(r, string(body) == s.content("a/b"), "the file differs")
		require.Equal(r, int64(len(body)), told)
	})
}

func TestDownloadSurvivesEverything(t *testing.T) {
	s, c := newStore(t)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	rapid.Check(t, func(r *rapid.T) {
		body := random(rapid.IntRange(0, 2000).Draw(r, "size"), rapid.Uint64Range(0, 60000).Draw(r, "seed"))
		s.put("x", body)
		s.mu.Lock()
		s.etag = rapid.Bool().Draw(r, "etag")
		s.troubles = troubles(r, len(body))
		s.mu.Unlock()
		o := s.options()
		o.Verify = rapid.Bool().Draw(r, "verify")
		told := int64(0)
		o.Seen = func(e transfer.Event) {
			if e.Kind == transfer.Bytes {
				told += e.Size
			}
		}

		require.NoError(r, transfer.DownloadFile(t.Context(), c, data("x"), transfer.Target{Root: root, Name: "sub/x"}, o))

		got, err := os.ReadFile(filepath.Join(dir, "sub", "x"))
		require.NoError(r, err)
		require.True(r, bytes.Equal(body, got), "the file differs")
		require.Equal(r, int64(len(body)), told)
	})
	left, err := os.ReadDir(filepath.Join(dir, "sub"))
	require.NoError(t, err)
	require.Len(t, left, 1, "parts are left")
}

var errKilled = errors.New("killed")

// A process that dies at any byte leaves enough for the next one, which sends only what is missing.
func TestUploadGoesOnInAnotherProcess(t *testing.T) {
	t.Parallel()
	body := random(1000, 7)
	for _, at := range []int64{0, 1, 99, 100, 101, 450, 900, 999} {
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			s, c := newStore(t)
			resume, err := transfer.OpenResumeDir(t.TempDir(), time.Now)
			require.NoError(t, err)
			local := fileWith(t, t.TempDir(), "it", body)
			upload := func(ctx context.Context, o transfer.Options) error {
				f, err := os.Open(local)
				require.NoError(t, err)
				defer f.Close()
				src, err := transfer.FileContent(f)
				require.NoError(t, err)
				o.Resume = resume
				return transfer.UploadFile(ctx, c, data("it"), src, o)
			}
			ctx, kill := context.WithCancelCause(t.Context())
			o := s.options()
			sent := int64(0)
			o.Seen = func(e transfer.Event) {
				if e.Kind != transfer.Bytes {
					return
				}
				if sent += e.Size; sent >= at {
					kill(errKilled)
				}
			}
			require.ErrorIs(t, upload(ctx, o), errKilled)

			require.NoError(t, upload(t.Context(), s.options()))

			require.True(t, string(body) == s.content("it"))
			if at > 100 {
				require.Equal(t, 1, s.count("POST /folders/data/request-upload"), "it began anew")
			}
			left, err := filepath.Glob(filepath.Join(t.TempDir(), "*.json"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

func TestDownloadGoesOnInAnotherProcess(t *testing.T) {
	t.Parallel()
	body := random(1<<20, 8)
	for name, change := range map[string]bool{"unchanged": false, "changed meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, c := newStore(t)
			s.put("it", body)
			resume, err := transfer.OpenResumeDir(t.TempDir(), time.Now)
			require.NoError(t, err)
			dir := t.TempDir()
			root, err := os.OpenRoot(dir)
			require.NoError(t, err)
			defer root.Close()
			to := transfer.Target{Root: root, Name: "it", Place: dir}
			ctx, kill := context.WithCancelCause(t.Context())
			o := s.options()
			o.Resume = resume
			sent := int64(0)
			o.Seen = func(e transfer.Event) {
				if e.Kind == transfer.Bytes {
					sent += e.Size
				}
				if sent > 300_000 {
					kill(errKilled)
				}
			}
			s.holdNext(400_000)
			require.ErrorIs(t, transfer.DownloadFile(ctx, c, data("it"), to, o), errKilled)
			require.NoFileExists(t, filepath.Join(dir, "it"))
			want := body
			if change {
				want = random(1<<20, 9)
				s.put("it", want)
			}
			o.Seen = nil

			require.NoError(t, transfer.DownloadFile(t.Context(), c, data("it"), to, o))

			require.Equal(t, 1, s.count("GET /download bytes="), "it did not ask for the rest")
			require.Equal(t, map[bool]int{false: 2, true: 3}[change], s.count("GET /download"))

			got, err := os.ReadFile(filepath.Join(dir, "it"))
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, got), "old and new are mixed")
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1)
		})
	}
}

// A try that does not get as far as the first byte loses nothing of what the one before it had.
func TestADownloadThatCannotGoOnKeepsWhatThereIs(t *testing.T) {
	t.Parallel()
	body := random(1<<20, 8)
	s, c := newStore(t)
	s.put("it", body)
	resume, err := transfer.OpenResumeDir(t.TempDir(), time.Now)
	require.NoError(t, err)
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	to := transfer.Target{Root: root, Name: "it", Place: dir}
	ctx, kill := context.WithCancelCause(t.Context())
	o := s.options()
	o.Resume = resume
	sent := int64(0)
	o.Seen = func(e transfer.Event) {
		if e.Kind == transfer.Bytes {
			sent += e.Size
		}
		if sent > 300_000 {
			kill(errKilled)
		}
	}
	s.holdNext(400_000)
	require.ErrorIs(t, transfer.DownloadFile(ctx, c, data("it"), to, o), errKilled)
	o.Seen = nil
	s.mu.Lock()
	for range 50 {
		s.troubles = append(s.troubles, trouble{cut: -1, status: 503})
	}
	s.mu.Unlock()
	require.Error(t, transfer.DownloadFile(t.Context(), c, data("it"), to, o))
	s.mu.Lock()
	s.troubles = nil
	s.mu.Unlock()

	require.NoError(t, transfer.DownloadFile(t.Context(), c, data("it"), to, o))

	require.Equal(t, 1, s.count("GET /download")-s.count("GET /download bytes="), "it began anew")
	got, err := os.ReadFile(filepath.Join(dir, "it"))
	require.NoError(t, err)
	require.True(t, bytes.Equal(body, got))
	// Of a file that is gone, nothing is kept.
	s.put("it", random(1<<20, 9))
	sent = 0
	ctx, kill = context.WithCancelCause(t.Context())
	o.Seen = func(e transfer.Event) {
		if e.Kind == transfer.Bytes && e.Size > 0 {
			kill(errKilled)
		}
	}
	s.holdNext(400_000)
	require.ErrorIs(t, transfer.DownloadFile(ctx, c, data("it"), to, o), errKilled)
	o.Seen = nil
	s.mu.Lock()
	delete(s.files, "it")
	s.mu.Unlock()
	require.Error(t, transfer.DownloadFile(t.Context(), c, data("it"), to, o))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1, "a part is left of what is gone")
}

// With Verify nothing gets the name of a file that is not the file.
func TestNothingWrongGetsTheName(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.put("it", random(1000, 1))
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	fileWith(t, dir, "it", []byte("as it was"))
	o := s.options()
	o.Verify = true
	got := int64(0)
	o.Seen = func(e transfer.Event) {
		if got += e.Size; e.Kind == transfer.Bytes && got == 1000 {
			s.put("it", random(1000, 2))
		}
	}
	require.ErrorIs(
		t, transfer.DownloadFile(t.Context(), c, data("it"), transfer.Target{Root: root, Name: "it", Place: dir}, o), transfer.ErrDiffers,
	)
	there, err := os.ReadFile(filepath.Join(dir, "it"))
	require.NoError(t, err)
	require.Equal(t, "as it was", string(there))
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 1)
}

func TestWhatCannotSucceedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.troubles = []trouble{{cut: -1, status: 507}}
	f, err := os.Open(fileWith(t, t.TempDir(), "it", []byte("body")))
	require.NoError(t, err)
	defer f.Close()
	src, err := transfer.FileContent(f)
	require.NoError(t, err)

	err = transfer.UploadFile(t.Context(), c, data("it"), src, s.options())
	require.True(t, api.HasSlug(err, api.SlugQuotaExceeded), err)
	require.Equal(t, 1, s.count("PATCH"))
	require.NotContains(t, err.Error(), "up-1", "the token is shown")

	require.True(t, api.IsNotFound(transfer.UploadFile(t.Context(), c, api.FolderPath{Folder: "nope", Path: "it"}, src, s.options())))
	for _, bad := range []string{"", ".", "../x", "/etc/passwd", "a\x00b", strings.Repeat("x", 256), "\xff"} {
		require.Error(t, transfer.UploadFile(t.Context(), c, data(bad), src, s.options()), bad)
	}
	require.True(t, api.IsNotFound(transfer.ReadFile(t.Context(), c, data("nope"), io.Discard, s.options())))
}

func TestTriesAreBounded(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.put("it", []byte("body"))
	for range 100 {
		s.troubles = append(s.troubles, trouble{cut: -1, status: 503})
	}
	err := transfer.ReadFile(t.Context(), c, data("it"), io.Discard, s.options())
	require.ErrorContains(t, err, "gave up after 12 tries")

	s.Close()
	err = transfer.ReadFile(t.Context(), c, data("it"), io.Discard, s.options())
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
}

func TestASourceThatChangesIsNoticed(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	dir := t.TempDir()
	local := fileWith(t, dir, "it", random(1000, 1))
	f, err := os.Open(local)
	require.NoError(t, err)
	defer f.Close()
	src, err := transfer.FileContent(f)
	require.NoError(t, err)
	o := s.options()
	o.Seen = func(e transfer.Event) { require.NoError(t, os.Truncate(local, 500)) }
	require.ErrorIs(t, transfer.UploadFile(t.Context(), c, data("it"), src, o), transfer.ErrChanged)
}

// tree makes files; names that end in / are directories.
func tree(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, n := range names {
		if strings.HasSuffix(n, "/") {
			require.NoError(t, os.MkdirAll(filepath.Join(dir, n), 0o755))
			continue
		}
		fileWith(t, dir, n, random(50+i*70, uint64(i)))
	}
	return dir
}

// onDisk lists what is below a directory, with the content of files.
func onDisk(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(p string, d os.DirEntry, err error) error {
		require.NoError(t, err)
		rel, _ := filepath.Rel(dir, p)
		if info, err := os.Stat(p); err == nil && info.IsDir() {
			out[rel+"/"] = ""
			return nil
		}
		b, err := os.ReadFile(p)
		out[rel] = string(b)
		return err
	}))
	return out
}

func TestTreesGoThereAndBack(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.page = 2
	dir := tree(t, "a", "b/c", "b/d/e", "b/d/f", "empty/", "b/empty/", "ünï cödé ' \"")
	up := []transfer.Placement{{Local: dir, Remote: data("in/to")}}
	o := s.options()
	o.Parallel = 3

	rep, err := transfer.UploadTree(t.Context(), c, up, o)
	require.NoError(t, err)
	require.Equal(t, int64(5), rep.Files)
	require.True(t, s.dirs["in/to/empty"] && s.dirs["in/to/b/empty"])

	rep, err = transfer.UploadTree(t.Context(), c, up, o)
	require.NoError(t, err)
	require.Equal(t, transfer.Report{Unchanged: 5}, rep)

	back := filepath.Join(t.TempDir(), "back")
	down := []transfer.Placement{{Local: back, Remote: data("in/to")}}
	for _, o.Verify = range []bool{false, true} {
		rep, err = transfer.DownloadTree(t.Context(), c, down, o)
		require.NoError(t, err)
		require.Equal(t, onDisk(t, dir), onDisk(t, back))
	}
	require.Equal(t, transfer.Report{Unchanged: 5}, rep)

	rep, err = transfer.CopyTree(t.Context(), c, []transfer.RemotePlacement{{From: data("in"), To: data("copy")}}, o)
	require.NoError(t, err)
	require.Equal(t, int64(5), rep.Files)
	require.Equal(t, s.content("in/to/b/d/f"), s.content("copy/to/b/d/f"))
	rep, err = transfer.CopyTree(t.Context(), c, []transfer.RemotePlacement{{From: data("in"), To: data("copy")}}, o)
	require.NoError(t, err)
	require.Equal(t, transfer.Report{Unchanged: 5}, rep)
}

// Names that a server spells alike are one file there: it is not written twice, and found again under its spelling.
func TestNamesThatAServerSpellsAlike(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	dir := t.TempDir()
	fileWith(t, dir, "A", []byte("first"))
	fileWith(t, dir, "a", []byte("other"))
	fileWith(t, dir, "There", []byte("it"))
	s.put("t/there", []byte("it"))
	o := s.options()
	o.Spelling = strings.ToLower
	r, err := transfer.UploadTree(t.Context(), c, []transfer.Placement{{Local: dir, Remote: data("t")}}, o)
	require.Error(t, err)
	require.Equal(t, []int64{1, 1, 1}, []int64{r.Files, r.Unchanged, r.Failed})
	require.Equal(t, "a", r.Failures[0].Path)
	require.Contains(t, r.Failures[0].Reason, `"A"`)
	require.Equal(t, "first", s.content("t/A"))
	require.Empty(t, s.content("t/a"))
}

func TestChangedFilesAreCopiedAgain(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	dir := tree(t, "a", "b")
	up := []transfer.Placement{{Local: dir, Remote: data("")}}
	past := s.now.Add(-time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), past, past))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "b"), past, past))
	_, err := transfer.UploadTree(t.Context(), c, up, s.options())
	require.NoError(t, err)

	// The same size and an old time: only comparing finds it.
	fileWith(t, dir, "a", bytes.Repeat([]byte("x"), 50))
	require.NoError(t, os.Chtimes(filepath.Join(dir, "a"), past, past))
	rep, err := transfer.UploadTree(t.Context(), c, up, s.options())
	require.NoError(t, err)
	require.Equal(t, transfer.Report{Unchanged: 2}, rep)
	o := s.options()
	o.Verify = true
	rep, err = transfer.UploadTree(t.Context(), c, up, o)
	require.NoError(t, err)
	require.Equal(t, transfer.Report{Files: 1, Bytes: 50, Unchanged: 1}, rep)
	require.Equal(t, strings.Repeat("x", 50), s.content("a"))

	later := s.now.Add(time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(dir, "b"), later, later))
	rep, err = transfer.UploadTree(t.Context(), c, up, s.options())
	require.NoError(t, err)
	require.Equal(t, int64(1), rep.Files)
}

func TestLinksAndSpecialFiles(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	dir := tree(t, "a", "d/b")
	require.NoError(t, os.Symlink("a", filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("..", filepath.Join(dir, "d", "up")))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "broken")))
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad\xffname"), nil, 0o644))
	up := []transfer.Placement{{Local: dir, Remote: data("x"), Label: "x"}}
	why := map[string]string{}
	o := s.options()
	o.Seen = func(e transfer.Event) {
		if e.Kind == transfer.Skipped || e.Kind == transfer.Failed {
			why[e.Path] = e.Reason
		}
	}

	rep, err := transfer.UploadTree(t.Context(), c, up, o)
	var incomplete *transfer.IncompleteError
	require.ErrorAs(t, err, &incomplete)
	require.Equal(t, "x/bad\xffname could not be copied: the name is not valid UTF-8", err.Error())
	require.Equal(t, int64(2), rep.Files)
	require.Equal(
		t,
		map[string]string{
			"x/link": "a symbolic link", "x/d/up": "a symbolic link", "x/broken": "a symbolic link", "x/pipe": "a named pipe",
			"x/bad\xffname": "the name is not valid UTF-8",
		},
		why,
	)

	o.FollowLinks = true
	rep, err = transfer.UploadTree(t.Context(), c, up, o)
	require.ErrorAs(t, err, &incomplete)
	require.Equal(t, int64(2), rep.Failed, "%v", rep.Failures) // the broken link and the bad name
	require.Equal(t, s.content("x/a"), s.content("x/link"))
	require.Equal(t, "a link to a directory above it", why["x/d/up"])

	s.links["x/l"] = true
	rep, err = transfer.DownloadTree(t.Context(), c, []transfer.Placement{{Local: t.TempDir(), Remote: data("x")}}, s.options())
	require.NoError(t, err)
	require.Equal(t, int64(1), rep.LeftOut)
}

// Names that a server sends never lead out of the target, and links in the target are not followed out of it.
func TestDownloadsStayInside(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.put("ok", []byte("fine"))
	s.put("dir/secret", []byte("overwritten"))
	s.put("victim", []byte("overwritten"))
	for _, name := range []string{"../evil", "..", ".", "", "a/b", "/etc/evil", "nul\x00"} {
		s.evil = append(
			s.evil, api.FolderEntry{Name: name, Type: api.EntryFile, Size: 4}, api.FolderEntry{Name: name, Type: api.EntryDirectory},
		)
	}
	outside := tree(t, "secret")
	before := onDisk(t, outside)
	target := filepath.Join(outside, "target")
	require.NoError(t, os.Mkdir(target, 0o755))
	require.NoError(t, os.Symlink("..", filepath.Join(target, "dir")))
	require.NoError(t, os.Symlink("../secret", filepath.Join(target, "victim")))

	rep, err := transfer.DownloadTree(t.Context(), c, []transfer.Placement{{Local: target, Remote: data("")}}, s.options())

	var incomplete *transfer.IncompleteError
	require.ErrorAs(t, err, &incomplete)
	require.Equal(t, int64(2), rep.Files)
	after := onDisk(t, outside)
	require.Equal(t, before["secret"], after["secret"])
	require.Equal(t, "overwritten", after["target/victim"])
	require.NoFileExists(t, filepath.Join(outside, "evil"))
}

func TestFilesMoveAtOnce(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	names := []string{}
	for i := range 40 {
		names = append(names, fmt.Sprintf("f%02d", i))
	}
	s.meet, s.here = 4, make(chan struct{})
	o := s.options()
	o.Chunk, o.Parallel = 1<<20, 4
	rep, err := transfer.UploadTree(t.Context(), c, []transfer.Placement{{Local: tree(t, names...), Remote: data("")}}, o)
	require.NoError(t, err)
	require.Equal(t, int64(40), rep.Files)
	require.Equal(t, 4, s.most)
}

// What is staged counts in the quota that was met, and nobody could see or delete it.
func TestAnUploadWithoutRoomLeavesNothing(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.troubles = []trouble{fine, {cut: -1, status: 507}}
	f, err := os.Open(fileWith(t, t.TempDir(), "it", random(3000, 1)))
	require.NoError(t, err)
	defer f.Close()
	src, err := transfer.FileContent(f)
	require.NoError(t, err)
	o := s.options()
	o.Chunk = 1000
	err = transfer.UploadFile(t.Context(), c, data("it"), src, o)
	require.True(t, api.HasSlug(err, api.SlugQuotaExceeded), err)
	require.Equal(t, 2, s.count("PATCH"))
	require.Empty(t, s.sessions)

	require.NoError(t, transfer.UploadFile(t.Context(), c, data("it"), src, o), "with room it is begun anew")
	require.Equal(t, string(random(3000, 1)), s.content("it"))
}

// Empty directories that cannot be made are told; what else there is arrives, and nothing is tried in vain.
func TestEmptyDirectoriesThatCannotBeMade(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.taken = map[string]bool{"t/b": true}
	dir := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	fileWith(t, dir, "file", []byte("it"))
	var waited []string
	o := s.options()
	o.Seen = func(e transfer.Event) {
		if e.Kind == transfer.Waiting {
			waited = append(waited, e.Reason)
		}
	}
	r, err := transfer.UploadTree(t.Context(), c, []transfer.Placement{{Local: dir, Remote: data("t")}}, o)
	var incomplete *transfer.IncompleteError
	require.ErrorAs(t, err, &incomplete)
	require.EqualValues(t, 1, r.Failed)
	require.Contains(t, r.Failures[0].Reason, "there is a file of that name")
	require.Contains(t, r.Failures[0].Reason, "t/b")
	require.Equal(t, "it", s.content("t/file"))
	require.True(t, s.dirs["t/a"] && s.dirs["t/c"])
	require.Empty(t, waited)
}

// A storage proxy that stays away ends a copy after the tries of one file, not after those of all.
func TestATreeStopsWhenTheProxyStaysAway(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	dir := t.TempDir()
	for i := range 100 {
		fileWith(t, dir, fmt.Sprintf("%03d", i), []byte("it"))
		s.put(fmt.Sprintf("%03d", i), []byte("other"))
	}
	for _, status := range []int{502, 503, 504} {
		s.mu.Lock()
		s.away, s.requests = 0, nil
		s.mu.Unlock()
		o := s.options()
		o.Parallel = 2
		o.Seen = func(e transfer.Event) {
			if e.Kind == transfer.Found {
				s.mu.Lock()
				s.away = status
				s.mu.Unlock()
			}
		}
		_, err := transfer.UploadTree(t.Context(), c, []transfer.Placement{{Local: dir, Remote: data(".")}}, o)
		var incomplete *transfer.IncompleteError
		require.Error(t, err)
		require.False(t, errors.As(err, &incomplete), "%d: %v", status, err)
		require.Less(t, s.count("POST /folders/data/request-upload"), 40)
	}
}

func TestATreeStopsWhenAllWouldFail(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	for range 50 {
		s.troubles = append(s.troubles, trouble{cut: -1, status: 507})
	}
	names := []string{}
	for i := range 40 {
		names = append(names, fmt.Sprintf("f%02d", i))
	}
	_, err := transfer.UploadTree(t.Context(), c, []transfer.Placement{{Local: tree(t, names...), Remote: data("")}}, s.options())
	require.True(t, api.HasSlug(err, api.SlugQuotaExceeded), err)
	require.LessOrEqual(t, s.count("PATCH"), 8)
}

func TestOneWriterOfAPart(t *testing.T) {
	t.Parallel()
	s, c := newStore(t)
	s.put("it", random(5000, 1))
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	require.NoError(t, err)
	defer root.Close()
	o := s.options()
	inside := false
	o.Seen = func(e transfer.Event) {
		if inside || e.Kind != transfer.Bytes || e.Size == 0 {
			return
		}
		inside = true
		err := transfer.DownloadFile(t.Context(), c, data("it"), transfer.Target{Root: root, Name: "it"}, s.options())
		require.ErrorContains(t, err, "another process downloads")
	}
	require.NoError(t, transfer.DownloadFile(t.Context(), c, data("it"), transfer.Target{Root: root, Name: "it"}, o))
	require.True(t, inside)
}
