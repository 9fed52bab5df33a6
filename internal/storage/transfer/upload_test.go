package transfer_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"hash"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/testkit/await"
)

func TestUploadInChunksWithoutHead(t *testing.T) {
	r := newRig(t)
	data := []byte("hello, folder of mine")
	tok := r.uploadToken("./a//b/c.txt", int64(len(data)))
	for at := 0; at < len(data); at += 8 {
		end := min(at+8, len(data))
		a := r.patch(tok, int64(at), data[at:end])
		require.Equal(t, http.StatusNoContent, a.status, string(a.body))
		require.EqualValues(t, end, a.offset(t))
		require.Equal(t, "1.0.0", a.header.Get("Tus-Resumable"))
		require.Equal(t, end < len(data), a.header.Get("Upload-Expires") != "")
		if end < len(data) {
			r.missing("a/b/c.txt")
		}
	}
	require.Equal(t, string(data), r.read("a/b/c.txt"))
}

func TestUploadHead(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("x", 10)
	a := r.head(tok)
	require.Equal(t, http.StatusOK, a.status)
	require.EqualValues(t, 0, a.offset(t))
	require.Equal(t, "10", a.header.Get("Upload-Length"))
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	require.Equal(t, "1.0.0", a.header.Get("Tus-Resumable"))
	r.patch(tok, 0, []byte("1234"))
	require.EqualValues(t, 4, r.head(tok).offset(t))
}

// A client whose answer was lost asks again, any proxy, and must hear that the upload is complete.
func TestCompleteUploadIsRemembered(t *testing.T) {
	r := newRig(t)
	other := r.open()
	tok := r.uploadToken("x", 10)
	require.Equal(t, 204, r.patch(tok, 0, []byte("12345")).status)
	require.Equal(t, 204, other.patch(tok, 5, []byte("67890")).status)
	require.NoError(t, os.Remove(r.path("x"))) // what its owner does with the file later changes nothing
	for _, p := range []*proxy{r.proxy, other} {
		require.EqualValues(t, 10, p.head(tok).offset(t))
		a := p.patch(tok, 10, nil)
		require.Equal(t, 204, a.status)
		require.EqualValues(t, 10, a.offset(t))
		a = p.patch(tok, 5, []byte("67890"))
		require.Equal(t, 204, a.status, "the last chunk again")
		require.EqualValues(t, 10, a.offset(t))
		a = p.patch(tok, 0, []byte("12"))
		require.Equal(t, 409, a.status)
		require.Equal(t, "upload-offset-mismatch", a.slug())
		require.EqualValues(t, 10, a.offset(t))
		require.Equal(t, 404, p.do("DELETE", "/upload", token(tok), nil, nil).status)
	}
	r.missing("x")
}

// A proxy that dies after the last byte and before the rename leaves a complete staged file.
func TestCompleteStagedFileIsPutInPlace(t *testing.T) {
	for _, method := range []string{"HEAD", "PATCH"} {
		t.Run(method, func(t *testing.T) {
			r := newRig(t)
			tok := r.uploadToken("d/x", 3)
			ctx := context.Background()
			st, err := r.v.Stage(ctx, folder, sessionOf(t, tok), false)
			require.NoError(t, err)
			_, err = st.Append(ctx, 0, strings.NewReader("abc"), 3)
			require.NoError(t, err)
			require.NoError(t, st.Sync())
			require.NoError(t, st.Close())
			a := r.do(method, "/upload", token(tok), patchHeaders(3), nil)
			require.Less(t, a.status, 300)
			require.EqualValues(t, 3, a.offset(t))
			require.Equal(t, "abc", r.read("d/x"))
		})
	}
}

func TestEmptyFiles(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("d/empty", 0)
	require.Empty(t, r.read("d/empty"))
	a := r.head(tok)
	require.EqualValues(t, 0, a.offset(t))
	require.Equal(t, "0", a.header.Get("Upload-Length"))
	require.Equal(t, 204, r.patch(tok, 0, nil).status)
	require.Equal(t, 413, r.patch(tok, 0, []byte("x")).status)
	require.Equal(t, 409, r.patch(tok, 1, nil).status)
	q := token(tok)
	q.Set("dst_dir", "other")
	require.Equal(t, 200, r.do("HEAD", "/upload", q, nil, nil).status)
	require.Empty(t, r.read("other/d/empty"))
}

func TestDestinationDirectory(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("b/x", 3)
	q := token(tok)
	q.Set("dst_dir", "./a/")
	require.Equal(t, 204, r.do("PATCH", "/upload", q, patchHeaders(0), strings.NewReader("abc")).status)
	require.Equal(t, "abc", r.read("a/b/x"))
	r.missing("b/x")
}

func TestHostilePaths(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	tok := r.uploadToken("ok", 3)
	bad := []string{"..", "../x", "a/../../x", "a/..", "/etc/passwd", "a\x00b", "\xff\xfe", strings.Repeat("n", 256),
		strings.Repeat("d/", 2100) + "x"}
	for _, p := range bad {
		_, _, err := r.s.UploadToken(ctx, transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: p, Size: 3})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "upload %q: %v", p, err)
		_, err = r.s.DownloadToken(ctx, transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: p})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "download %q: %v", p, err)
		_, err = r.s.ArchiveToken(ctx, transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: []string{"ok", p}})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "archive %q: %v", p, err)
		q := token(tok)
		q.Set("dst_dir", p)
		for _, method := range []string{"PATCH", "HEAD", "DELETE"} {
			a := r.do(method, "/upload", q, patchHeaders(0), strings.NewReader("abc"))
			require.Equal(t, 400, a.status, "%s dst_dir %q", method, p)
			if method != "HEAD" {
				require.Equal(t, "invalid-api-params", a.slug())
			}
		}
	}
	require.EqualValues(t, 0, r.head(tok).offset(t))
	for _, p := range []string{"", ".", "a/", "./"} {
		_, _, err := r.s.UploadToken(ctx, transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: p, Size: 3})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q", p)
	}
}

// A link that leads out of the folder must not carry an upload there.
func TestUploadThroughLinks(t *testing.T) {
	r := newRig(t)
	outside := t.TempDir()
	require.NoError(t, os.Symlink(outside, r.path("out")))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "victim"), []byte("safe"), 0o644))
	require.NoError(t, os.Symlink(filepath.Join(outside, "victim"), r.path("victim")))
	if tok, _, err := r.s.UploadToken(context.Background(),
		transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "out/x", Size: 3}); err == nil {
		a := r.patch(tok, 0, []byte("abc"))
		require.GreaterOrEqual(t, a.status, 400)
		require.Less(t, a.status, 500)
	}
	_, _, err := r.s.UploadToken(context.Background(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "victim", Size: 3})
	require.Equal(t, fault.Conflict, fault.KindOf(err), "%v", err)
	q := token(r.uploadToken("f/victim", 3)) // the link comes after the token
	require.NoError(t, os.Symlink(outside, r.path("f")))
	a := r.do("PATCH", "/upload", q, patchHeaders(0), strings.NewReader("abc"))
	require.GreaterOrEqual(t, a.status, 400)
	require.Less(t, a.status, 500)
	b, err := os.ReadFile(filepath.Join(outside, "victim"))
	require.NoError(t, err)
	require.Equal(t, "safe", string(b))
	names, err := os.ReadDir(outside)
	require.NoError(t, err)
	require.Len(t, names, 1)
}

// What can never be put in place is refused before it is sent, not after.
func TestUploadIntoWhatIsNoDirectory(t *testing.T) {
	r := newRig(t)
	r.write("file", "x")
	r.write("dir/f", "x")
	require.NoError(t, os.Symlink("dir", r.path("link")))
	for _, size := range []int64{0, 3} {
		for _, p := range []string{"file/x", "link/x", "link/deeper/x"} {
			_, _, err := r.s.UploadToken(t.Context(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: p, Size: size})
			require.Equal(t, fault.Conflict, fault.KindOf(err), "%s: %v", p, err)
			require.NotEmpty(t, fault.NextOf(err))
		}
	}
	for _, dir := range []string{"file", "link/deeper"} {
		q := token(r.uploadToken("x", 6))
		q.Set("dst_dir", dir)
		a := r.do("PATCH", "/upload", q, patchHeaders(0), strings.NewReader("abc"))
		require.Equal(t, 400, a.status, dir)
		require.Contains(t, a.problem.Msg, "no directory")
	}
	tok := r.uploadToken("new/deeper/x", 3)
	require.Equal(t, 204, r.patch(tok, 0, []byte("abc")).status)
}

func TestBodyLongerThanDeclared(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("x", 6)
	require.Equal(t, 204, r.patch(tok, 0, []byte("ab")).status)
	a := r.patch(tok, 2, []byte("cdefTOOMUCH"))
	require.Equal(t, 413, a.status)
	require.Equal(t, "upload-too-large", a.slug())
	require.Contains(t, a.problem.Msg, "6 bytes")
	require.EqualValues(t, 2, r.head(tok).offset(t))
	// Without a length the server finds out while it reads.
	a = r.do("PATCH", "/upload", token(tok), patchHeaders(2), io.MultiReader(strings.NewReader("cdefTOOMUCH")))
	require.Equal(t, 413, a.status)
	require.EqualValues(t, 2, r.head(tok).offset(t))
	r.missing("x")
	require.Equal(t, 204, r.patch(tok, 2, []byte("cdef")).status)
	require.Equal(t, "abcdef", r.read("x"))
}

func TestOffsets(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("x", 6)
	require.Equal(t, 204, r.patch(tok, 0, []byte("abc")).status)
	for _, at := range []int64{0, 2, 4, 6, 7, 1 << 40} {
		a := r.patch(tok, at, nil)
		require.Equal(t, 409, a.status, at)
		require.Equal(t, "upload-offset-mismatch", a.slug())
		require.EqualValues(t, 3, a.offset(t))
	}
	require.Equal(t, 409, r.patch(tok, 0, []byte("abc")).status)
	for _, at := range []string{"", "-1", "+3", "3.0", "0x3", "3 ", "99999999999999999999", "３"} {
		h := patchHeaders(0)
		h["Upload-Offset"] = at
		a, err := r.try("PATCH", "/upload", token(tok), h, nil)
		if err == nil && strings.TrimSpace(at) != "3" { // Go's own transport trims and refuses some
			require.Equal(t, 400, a.status, "%q", at)
			require.Equal(t, "invalid-api-params", a.slug())
		}
	}
	h := patchHeaders(3)
	h["Tus-Resumable"] = "0.2.2"
	a := r.do("PATCH", "/upload", token(tok), h, nil)
	require.Equal(t, 412, a.status)
	require.Equal(t, "1.0.0", a.header.Get("Tus-Version"))
	h = patchHeaders(3)
	h["Content-Type"] = "text/plain"
	require.Equal(t, 415, r.do("PATCH", "/upload", token(tok), h, nil).status)
	require.Equal(t, 405, r.do("GET", "/upload", token(tok), nil, nil).status)
	require.Equal(t, 405, r.do("POST", "/upload", token(tok), nil, nil).status)
	h = patchHeaders(3)
	h["X-HTTP-Method-Override"] = "PATCH"
	require.Equal(t, 204, r.do("POST", "/upload", token(tok), h, strings.NewReader("def")).status)
	require.Equal(t, "abcdef", r.read("x"))
}

func TestUnknownSession(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("x", 6)
	r.patch(tok, 0, []byte("abc"))
	require.Equal(t, 204, r.do("DELETE", "/upload", token(tok), nil, nil).status)
	for _, method := range []string{"PATCH", "HEAD", "DELETE"} {
		a := r.do(method, "/upload", token(tok), patchHeaders(3), nil)
		require.Equal(t, 404, a.status)
		if method != "HEAD" {
			require.Equal(t, "no-such-upload-session", a.slug())
			require.NotEmpty(t, a.problem.Next)
		}
	}
}

func TestChecksums(t *testing.T) {
	for name, makeHash := range map[string]func() hash.Hash{"sha1": sha1.New, "sha256": sha256.New, "md5": md5.New} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			tok := r.uploadToken("x", 6)
			send := func(at int64, body, summed string) answer {
				d := makeHash()
				d.Write([]byte(summed))
				h := patchHeaders(at)
				h["Upload-Checksum"] = name + " " + base64.StdEncoding.EncodeToString(d.Sum(nil))
				return r.do("PATCH", "/upload", token(tok), h, strings.NewReader(body))
			}
			require.Equal(t, 204, send(0, "abc", "abc").status)
			a := send(3, "dXf", "def")
			require.Equal(t, 460, a.status)
			require.Equal(t, "checksum-mismatch", a.slug())
			require.EqualValues(t, 3, a.offset(t))
			require.EqualValues(t, 3, r.head(tok).offset(t))
			r.missing("x")
			require.Equal(t, 204, send(3, "def", "def").status)
			require.Equal(t, "abcdef", r.read("x"))
		})
	}
	r := newRig(t)
	tok := r.uploadToken("x", 6)
	for _, sum := range []string{"crc32 AAAA", "sha1", "sha1 ", "sha1 !!!", "sha1 AAAA", "sha256 2jmj7l5rSw0yVb/vlWAYkK/YBwk="} {
		h := patchHeaders(0)
		h["Upload-Checksum"] = sum
		a := r.do("PATCH", "/upload", token(tok), h, strings.NewReader("abc"))
		require.Equal(t, 400, a.status, sum)
	}
}

// A proxy that dies in the middle of a chunk with a checksum leaves bytes that nobody compared.
func TestUnverifiedBytesAreCutAfterCrash(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	tok := r.uploadToken("x", 6)
	require.Equal(t, 204, r.patch(tok, 0, []byte("ab")).status)
	st, err := r.v.Stage(ctx, folder, sessionOf(t, tok), false)
	require.NoError(t, err)
	require.NoError(t, st.SetMeta([]byte(`{"verified_size":2}`)))
	_, err = st.Append(ctx, 2, strings.NewReader("XXXX"), 4)
	require.NoError(t, err)
	require.NoError(t, st.Sync())
	require.NoError(t, st.Close())
	require.EqualValues(t, 2, r.head(tok).offset(t))
	r.missing("x")
	require.Equal(t, 204, r.patch(tok, 2, []byte("cd")).status)
	require.EqualValues(t, 4, r.head(tok).offset(t), "a chunk without checksum is believed again")
	require.Equal(t, 204, r.patch(tok, 4, []byte("ef")).status)
	require.Equal(t, "abcdef", r.read("x"))
}

func TestTokens(t *testing.T) {
	r := newRig(t)
	r.write("f", "content")
	ctx := context.Background()
	up, down := r.uploadToken("x", 3), r.downloadToken("f")
	arch, err := r.s.ArchiveToken(ctx, transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: []string{"f"}})
	require.NoError(t, err)
	foreign := r.open(func(o *transfer.Options) { o.Key = strings.Repeat("0", 64) })
	none := unsigned(t, down)
	check := func(why, method, path, tok string, want int) {
		t.Helper()
		a := r.do(method, path, token(tok), patchHeaders(0), nil)
		require.Equal(t, want, a.status, why)
		if want == 400 {
			require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), why)
			if method != "HEAD" {
				require.Equal(t, "invalid-api-params", a.slug(), why)
				require.NotContains(t, string(a.body), "eyJ", why)
			}
		}
	}
	for path, good := range map[string]string{"/upload": up, "/download": down, "/download-archive": arch} {
		method := map[string]string{"/upload": "PATCH"}[path]
		if method == "" {
			method = "GET"
		}
		for name, tok := range map[string]string{"upload": up, "download": down, "archive": arch, "none": "", "rubbish": "a.b.c",
			"unsigned": none, "long": strings.Repeat("x", 50<<10)} {
			if tok == good {
				continue
			}
			check(name+" at "+path, method, path, tok, 400)
		}
		check("tampered", method, path, good[:len(good)-4]+"AAAA", 400)
	}
	ftok := foreign.uploadToken("x", 3)
	check("foreign", "PATCH", "/upload", ftok, 400)
	check("good", "GET", "/download", down, 200)
	a := r.do("GET", "/download", nil, headers{"Authorization": "Bearer " + down}, nil)
	require.Equal(t, 200, a.status)
	require.Equal(t, "content", string(a.body))

	r.clock.add(2 * time.Hour)
	check("expired", "GET", "/download", down, 400)
	check("expired", "GET", "/download-archive", arch, 400)
	check("still good", "HEAD", "/upload", up, 200)
	r.clock.add(23 * time.Hour)
	check("expired", "PATCH", "/upload", up, 400)

	log := r.log.String()
	require.NotContains(t, log, "eyJ", "no token in the log")
	require.NotContains(t, log, "token=")
}

// The session of a token lives in the folder of the token.
func TestTokenOfAnotherFolder(t *testing.T) {
	r := newRig(t)
	other := folder
	other.Folder = "aaaaaaaa-bbbb-cccc-dddd-ffffffffffff"
	require.NoError(t, r.v.CreateFolder(context.Background(), other, 0o755))
	tok := r.uploadToken("x", 3)
	moved := resign(t, r.clock.Now(), tok, "vfid", other.String())
	require.Equal(t, 404, r.patch(moved, 0, []byte("abc")).status)
	require.EqualValues(t, 0, r.head(tok).offset(t))
	require.Equal(t, 400, r.head(resign(t, r.clock.Now(), tok, "vfid", "user:../../x")).status)
	require.Equal(t, 400, r.head(resign(t, r.clock.Now(), tok, "relpath", "../x")).status)
	require.Equal(t, 400, r.head(resign(t, r.clock.Now(), tok, "session", "../x")).status)
	require.Equal(t, 503, r.head(resign(t, r.clock.Now(), tok, "volume", "gone")).status)
}

func TestUploadTokenRefusals(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	r.write("d/f", "x")
	gone := folder
	gone.Folder = "00000000-0000-0000-0000-000000000001"
	for name, c := range map[string]struct {
		q    transfer.UploadRequest
		want fault.Kind
	}{
		"negative":  {transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: -1}, fault.Invalid},
		"huge":      {transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: 100<<30 + 1}, fault.Invalid},
		"directory": {transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "d", Size: 1}, fault.Conflict},
		"folder":    {transfer.UploadRequest{Volume: "volume1", Folder: gone, Path: "x", Size: 1}, fault.NotFound},
		"empty":     {transfer.UploadRequest{Volume: "volume1", Folder: gone, Path: "x"}, fault.NotFound},
		"volume":    {transfer.UploadRequest{Volume: "v", Folder: folder, Path: "x", Size: 1}, fault.Unavailable},
	} {
		_, _, err := r.s.UploadToken(ctx, c.q)
		require.Equal(t, c.want, fault.KindOf(err), "%s: %v", name, err)
	}
}

func TestQuota(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	const limit, size = 1 << 20, 800 << 10
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	require.NoError(t, r.v.SetScope(ctx, folder.Scope, limit))
	_, _, err := r.s.UploadToken(ctx, transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: "x", Size: limit + 1})
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "%v", err)
	// Two that fit alone and not together: the second one hears of it while it writes.
	one, two := r.uploadToken("one", size), r.uploadToken("two", size)
	require.Equal(t, 204, r.patch(one, 0, data).status)
	a := r.do("PATCH", "/upload", token(two), patchHeaders(0), io.MultiReader(bytes.NewReader(data)))
	require.Equal(t, http.StatusInsufficientStorage, a.status, string(a.body))
	require.Equal(t, "quota-exceeded", a.slug())
	require.NotEmpty(t, a.problem.Next)
	have := a.offset(t)
	require.LessOrEqual(t, have, int64(limit-size))
	require.Equal(t, have, r.head(two).offset(t))
	require.Equal(t, http.StatusInsufficientStorage, r.patch(two, have, data[have:]).status)
	require.NoError(t, r.v.SetScope(ctx, folder.Scope, 4<<20))
	require.Equal(t, 204, r.patch(two, have, data[have:]).status)
	require.Equal(t, string(data), r.read("two"))
}

func TestFolderDeletedMeanwhile(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("x", 6)
	require.Equal(t, 204, r.patch(tok, 0, []byte("abc")).status)
	require.NoError(t, r.v.TrashFolder(context.Background(), folder))
	a := r.patch(tok, 3, []byte("def"))
	require.Equal(t, 404, a.status, string(a.body))
	require.NotEmpty(t, a.problem.Msg)
}

func TestSomethingInTheWay(t *testing.T) {
	r := newRig(t)
	tok := r.uploadToken("d", 3)
	r.write("d/f", "x")
	a := r.patch(tok, 0, []byte("abc"))
	require.GreaterOrEqual(t, a.status, 400)
	require.Less(t, a.status, 500)
	require.Equal(t, "x", r.read("d/f"))
	q := token(tok)
	q.Set("dst_dir", "elsewhere") // the bytes are there; only the place was wrong
	require.Equal(t, 204, r.do("PATCH", "/upload", q, patchHeaders(3), nil).status)
	require.Equal(t, "abc", r.read("elsewhere/d"))
}

func TestExpireUploads(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	old := r.uploadToken("old", 6)
	r.patch(old, 0, []byte("abc"))
	n, err := r.s.ExpireUploads(ctx)
	require.NoError(t, err)
	require.Zero(t, n)
	r.clock.add(25 * time.Hour)
	n, err = r.s.ExpireUploads(ctx)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	_, err = r.v.Stage(ctx, folder, sessionOf(t, old), false)
	require.True(t, fault.Is(err, fault.NotFound))
}

func TestRunEndsWithItsContext(t *testing.T) {
	r := newRig(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.s.Run(ctx) }()
	cancel()
	require.NoError(t, await.Value(t, ended))
}

func TestOptionsAndCORS(t *testing.T) {
	r := newRig(t)
	a := r.do("OPTIONS", "/upload", nil, headers{"Origin": "https://console.example", "Access-Control-Request-Method": "PATCH"}, nil)
	require.Equal(t, 204, a.status)
	require.Equal(t, "1.0.0", a.header.Get("Tus-Version"))
	require.Equal(t, "1.0.0", a.header.Get("Tus-Resumable"))
	require.Equal(t, "checksum,expiration,termination", a.header.Get("Tus-Extension"))
	require.Equal(t, "107374182400", a.header.Get("Tus-Max-Size"))
	require.Equal(t, "*", a.header.Get("Access-Control-Allow-Origin"))
	for _, m := range []string{"PATCH", "HEAD", "DELETE", "GET"} {
		require.Contains(t, a.header.Get("Access-Control-Allow-Methods"), m)
	}
	for _, h := range []string{"Tus-Resumable", "Upload-Length", "Upload-Metadata", "Upload-Offset", "Content-Type"} {
		require.Contains(t, a.header.Get("Access-Control-Allow-Headers"), h)
		require.Contains(t, a.header.Get("Access-Control-Expose-Headers"), h)
	}
	a = r.do("GET", "/download", token("bad"), headers{"Origin": "https://console.example"}, nil)
	require.Equal(t, "*", a.header.Get("Access-Control-Allow-Origin"), "errors are readable too")

	p := r.open(func(o *transfer.Options) { o.AllowedOrigins = []string{"https://console.example"} })
	a = p.do("OPTIONS", "/upload", nil, headers{"Origin": "https://console.example"}, nil)
	require.Equal(t, "https://console.example", a.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, "Origin", a.header.Get("Vary"))
	a = p.do("OPTIONS", "/upload", nil, headers{"Origin": "https://evil.example"}, nil)
	require.Empty(t, a.header.Get("Access-Control-Allow-Origin"))
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	a := r.do("GET", "/", nil, nil, nil)
	require.JSONEq(t, `{"status":"ok","type":"client-facing","storage-proxy":"1.2.3"}`, string(a.body))
	require.Equal(t, 404, r.do("GET", "/nothing", nil, nil, nil).status)
	require.Equal(t, 405, r.do("POST", "/", url.Values{}, nil, bytes.NewReader(nil)).status)
}
