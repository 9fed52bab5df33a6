package transfer_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/testkit/await"
)

func TestDownloadRanges(t *testing.T) {
	r := newRig(t)
	r.write("d/digits.bin", "0123456789")
	tok := r.downloadToken("d/digits.bin")
	whole := r.do("GET", "/download", token(tok), nil, nil)
	require.Equal(t, 200, whole.status)
	require.Equal(t, "0123456789", string(whole.body))
	require.Equal(t, "10", whole.header.Get("Content-Length"))
	require.Equal(t, "application/octet-stream", whole.header.Get("Content-Type"))
	require.Equal(t, "bytes", whole.header.Get("Accept-Ranges"))
	modified, tag := whole.header.Get("Last-Modified"), whole.header.Get("ETag")
	require.NotEmpty(t, modified)
	require.NotEmpty(t, tag)
	for _, c := range []struct {
		name, ranges, ifRange string
		status                int
		body, contentRange    string
	}{
		{"first", "bytes=0-0", "", 206, "0", "bytes 0-0/10"},
		{"middle", "bytes=3-5", "", 206, "345", "bytes 3-5/10"},
		{"rest", "bytes=7-", "", 206, "789", "bytes 7-9/10"},
		{"last", "bytes=-2", "", 206, "89", "bytes 8-9/10"},
		{"beyond the end", "bytes=8-100", "", 206, "89", "bytes 8-9/10"},
		{"more than all", "bytes=-100", "", 206, "0123456789", "bytes 0-9/10"},
		{"behind the end", "bytes=10-", "", 416, "", "bytes */10"},
		{"rubbish", "bytes=a-b", "", 416, "", ""},
		{"backwards", "bytes=5-3", "", 416, "", ""},
		{"other unit", "lines=1-2", "", 416, "", ""},
		{"same date", "bytes=7-", modified, 206, "789", "bytes 7-9/10"},
		{"other date", "bytes=7-", "Mon, 02 Jan 2006 15:04:05 GMT", 200, "0123456789", ""},
		{"same tag", "bytes=7-", tag, 206, "789", "bytes 7-9/10"},
		{"other tag", "bytes=7-", `"x"`, 200, "0123456789", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := headers{"Range": c.ranges}
			if c.ifRange != "" {
				h["If-Range"] = c.ifRange
			}
			a := r.do("GET", "/download", token(tok), h, nil)
			require.Equal(t, c.status, a.status)
			require.Equal(t, c.contentRange, a.header.Get("Content-Range"))
			if c.status < 300 {
				require.Equal(t, c.body, string(a.body))
				require.Equal(t, fmt.Sprint(len(c.body)), a.header.Get("Content-Length"))
			}
		})
	}
	a := r.do("GET", "/download", token(tok), headers{"Range": "bytes=0-1,8-9"}, nil)
	require.Equal(t, 206, a.status)
	kind, _, err := mime.ParseMediaType(a.header.Get("Content-Type"))
	require.NoError(t, err)
	require.Equal(t, "multipart/byteranges", kind)
	a = r.do("HEAD", "/download", token(tok), nil, nil)
	require.Equal(t, 200, a.status)
	require.Equal(t, "10", a.header.Get("Content-Length"))
	require.Equal(t, modified, a.header.Get("Last-Modified"))
	require.Equal(t, 304, r.do("GET", "/download", token(tok), headers{"If-None-Match": tag}, nil).status)

	// A file that was replaced has another tag, so that nobody joins two halves.
	r.write("d/digits.bin", "9876543210")
	require.NoError(t, os.Chtimes(r.path("d/digits.bin"), time.Time{}, time.Now().Add(3*time.Second)))
	a = r.do("GET", "/download", token(tok), headers{"Range": "bytes=5-", "If-Range": tag}, nil)
	require.Equal(t, 200, a.status)
	require.Equal(t, "9876543210", string(a.body))
}

func TestDownloadNames(t *testing.T) {
	r := newRig(t)
	for name, plain := range map[string]string{
		"plain.txt":      "plain.txt",
		`quo"te\d.txt`:   "quo_te_d.txt",
		"한국어 파일.txt":     "___ __.txt",
		"a\r\nSet-X: b":  "a__Set-X: b",
		"100% ;semi.txt": "100_ ;semi.txt",
	} {
		r.write(name, "x")
		a := r.do("GET", "/download", token(r.downloadToken(name)), nil, nil)
		require.Equal(t, 200, a.status)
		got := a.header.Get("Content-Disposition")
		require.True(t, strings.HasPrefix(got, `attachment;filename="`+plain+`";filename*=UTF-8''`), got)
		_, params, err := mime.ParseMediaType(got)
		require.NoError(t, err)
		require.Equal(t, name, params["filename"])
		require.Empty(t, a.header.Get("Set-X"))
		require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
		require.Equal(t, "no-referrer", a.header.Get("Referrer-Policy"), "the token is in the URL")
	}
}

func TestDownloadRefusals(t *testing.T) {
	r := newRig(t)
	ctx := context.Background()
	r.write("d/f", "x")
	_, err := r.s.DownloadToken(ctx, transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: "nope"})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	tok := r.downloadToken("d/f")
	require.NoError(t, os.Remove(r.path("d/f")))
	a := r.do("GET", "/download", token(tok), nil, nil)
	require.Equal(t, 404, a.status)
	require.Equal(t, "nosniff", a.header.Get("X-Content-Type-Options"))
	require.Equal(t, "no-referrer", a.header.Get("Referrer-Policy"))
	require.Equal(t, "file-not-found", a.slug())
	require.Empty(t, a.header.Get("Content-Disposition"))
	a = r.do("HEAD", "/download", token(tok), nil, nil)
	require.Equal(t, 404, a.status)
	a = r.do("GET", "/download", token(r.downloadToken("d")), nil, nil)
	require.Equal(t, 400, a.status)
	require.Equal(t, "invalid-api-params", a.slug())
	require.Contains(t, a.problem.Msg, "archive=true")

	outside := t.TempDir() + "/secret"
	require.NoError(t, os.WriteFile(outside, []byte("secret"), 0o600))
	require.NoError(t, os.Symlink(outside, r.path("out")))
	require.NoError(t, os.Symlink("../../../../../../../../../../../etc/passwd", r.path("up")))
	require.NoError(t, unix.Mkfifo(r.path("pipe"), 0o600))
	for _, p := range []string{"out", "up", "pipe"} {
		a := r.do("GET", "/download", token(r.downloadToken(p)), nil, nil)
		require.GreaterOrEqual(t, a.status, 400, p)
		require.Less(t, a.status, 500, p)
		require.NotContains(t, string(a.body), "secret:")
		require.NotEqual(t, "secret", string(a.body))
	}
	r.write("real", "inside")
	require.NoError(t, os.Symlink("real", r.path("in")))
	a = r.do("GET", "/download", token(r.downloadToken("in")), nil, nil)
	require.Equal(t, "inside", string(a.body))
	q := token(r.downloadToken("real"))
	q.Set("dst_dir", "d")
	q.Set("no_cache", "true")
	a = r.do("GET", "/download", q, nil, nil)
	require.Equal(t, "inside", string(a.body), "dst_dir does not move what a token reads")
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
	q.Set("dst_dir", "../x")
	require.Equal(t, 400, r.do("GET", "/download", q, nil, nil).status)

	other := folder
	other.Folder = cluster.FolderID("aaaaaaaa-bbbb-cccc-dddd-000000000000")
	require.Equal(t, 404, r.do("GET", "/download", token(resign(t, r.clock.Now(), q.Get("token"), "vfid", other.String())), nil, nil).status)
}

// tree fills the folder with everything an archive meets.
func (r *rig) tree() (want map[string]string) {
	r.t.Helper()
	r.write("d/a.txt", "alpha")
	r.write("d/sub/b.txt", strings.Repeat("beta ", 100_000))
	r.write("d/sub/empty", "")
	r.write("d/한글/c d.txt", "gamma")
	r.write(`d/back\slash`, "win")
	r.write("e.txt", "outside of d")
	require.NoError(r.t, os.MkdirAll(r.path("d/hollow"), 0o755))
	require.NoError(r.t, os.Symlink("sub/b.txt", r.path("d/tofile")))
	require.NoError(r.t, os.Symlink("sub", r.path("d/todir")))
	require.NoError(r.t, os.Symlink("../../../../../../../../etc/passwd", r.path("d/escape")))
	require.NoError(r.t, os.Symlink("/etc", r.path("d/abs")))
	require.NoError(r.t, os.Symlink("nowhere", r.path("d/dangling")))
	require.NoError(r.t, os.Symlink("../e.txt", r.path("d/up")))
	require.NoError(r.t, unix.Mkfifo(r.path("d/pipe"), 0o600))
	return map[string]string{
		"a.txt": "alpha", "sub/": "", "sub/b.txt": strings.Repeat("beta ", 100_000), "sub/empty": "",
		"한글/": "", "한글/c d.txt": "gamma", "hollow/": "", "back_slash~": "win",
		"tofile": strings.Repeat("beta ", 100_000), "todir": "-> sub", "up": "outside of d",
	}
}

func unzip(t testing.TB, b []byte) map[string]string {
	t.Helper()
	z, err := zip.NewReader(bytes.NewReader(b), int64(len(b)))
	require.NoError(t, err)
	got := map[string]string{}
	for _, f := range z.File {
		in, err := f.Open()
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		keep(t, got, f.Name, f.Mode(), string(content))
		require.False(t, f.Modified.IsZero())
	}
	return got
}

func untar(t testing.TB, b []byte) map[string]string {
	t.Helper()
	z, err := zstd.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	defer z.Close()
	got := map[string]string{}
	for in := tar.NewReader(z); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return got
		}
		require.NoError(t, err)
		content, err := io.ReadAll(in)
		require.NoError(t, err)
		if h.Typeflag == tar.TypeSymlink {
			content = []byte(h.Linkname)
		}
		keep(t, got, h.Name, h.FileInfo().Mode(), string(content))
	}
}

func keep(t testing.TB, got map[string]string, name string, mode fs.FileMode, content string) {
	t.Helper()
	if at := strings.Index(name, "~"); at > 0 {
		name = name[:at+1]
	}
	require.NotContains(t, got, name)
	if mode&fs.ModeSymlink != 0 {
		content = "-> " + content
	}
	got[name] = content
}

func TestArchiveOfDirectory(t *testing.T) {
	r := newRig(t)
	want := r.tree()
	tok := r.downloadToken("d")
	for format, open := range map[string]func(testing.TB, []byte) map[string]string{"": unzip, "zip": unzip, "tar.zst": untar} {
		q := token(tok)
		q.Set("archive", "true")
		q.Set("format", format)
		a := r.do("GET", "/download", q, nil, nil)
		require.Equal(t, 200, a.status, string(a.body))
		require.NoError(t, a.err)
		got := open(t, a.body)
		require.Equal(t, slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got)), format)
		require.Equal(t, want, got)
		ext := map[string]string{"tar.zst": ".tar.zst"}[format]
		if ext == "" {
			ext = ".zip"
			require.Equal(t, "application/zip", a.header.Get("Content-Type"))
		}
		require.Contains(t, a.header.Get("Content-Disposition"), `filename="d`+ext+`"`)
		a = r.do("HEAD", "/download", q, nil, nil)
		require.Equal(t, 200, a.status)
		require.Empty(t, a.body)
	}
	q := token(tok)
	q.Set("archive", "true")
	q.Set("format", "rar")
	require.Equal(t, 400, r.do("GET", "/download", q, nil, nil).status)

	whole, err := r.s.DownloadToken(context.Background(),
		transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: ".", Archive: true})
	require.NoError(t, err)
	got := unzip(t, r.do("GET", "/download", token(whole), nil, nil).body)
	require.Equal(t, "outside of d", got["e.txt"])
	require.Equal(t, "alpha", got["d/a.txt"])
	require.Equal(t, "outside of d", got["d/up"])
}

func TestArchiveOfPaths(t *testing.T) {
	r := newRig(t)
	r.tree()
	get := func(filename string, paths ...string) (map[string]string, string) {
		t.Helper()
		tok, err := r.s.ArchiveToken(context.Background(),
			transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: paths, Filename: filename})
		require.NoError(t, err)
		a := r.do("GET", "/download-archive", token(tok), nil, nil)
		require.Equal(t, 200, a.status, string(a.body))
		_, params, err := mime.ParseMediaType(a.header.Get("Content-Disposition"))
		require.NoError(t, err)
		return unzip(t, a.body), params["filename"]
	}
	names := func(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

	got, name := get("", "d/a.txt", "./d/sub", "d/sub/b.txt", "d/a.txt")
	require.Equal(t, []string{"a.txt", "sub/", "sub/b.txt", "sub/empty"}, names(got))
	require.Equal(t, "files.zip", name)
	got, name = get("my data.zip", "e.txt", "d/hollow")
	require.Equal(t, []string{"d/hollow/", "e.txt"}, names(got))
	require.Equal(t, "my data.zip", name)
	_, name = get("../../etc/x", "e.txt")
	require.Equal(t, "x.zip", name)
	got, name = get("", "d/sub")
	require.Equal(t, []string{"sub/", "sub/b.txt", "sub/empty"}, names(got))
	require.Equal(t, "sub.zip", name)

	_, err := r.s.ArchiveToken(context.Background(), transfer.ArchiveRequest{Volume: "volume1", Folder: folder})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, err = r.s.ArchiveToken(context.Background(),
		transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: []string{"e.txt", "nope"}})
	require.Equal(t, fault.NotFound, fault.KindOf(err))
	long := make([]string, 1001)
	_, err = r.s.ArchiveToken(context.Background(), transfer.ArchiveRequest{Volume: "volume1", Folder: folder, Paths: long})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

// watched is a volume whose trees open files as told.
type watched struct {
	volume.Volume
	open func(volume.Tree, string) (volume.File, error)
}

type watchedTree struct {
	volume.Tree
	v watched
}

func (v watched) OpenFolder(ctx context.Context, f cluster.FolderRef) (volume.Tree, error) {
	t, err := v.Volume.OpenFolder(ctx, f)
	return watchedTree{t, v}, err
}

func (t watchedTree) Open(p string) (volume.File, error) { return t.v.open(t.Tree, p) }

func watching(open func(volume.Tree, string) (volume.File, error)) func(*transfer.Options) {
	return func(o *transfer.Options) {
		healthy := o.Volumes
		o.Volumes = func(name string) (volume.Volume, bool) {
			v, ok := healthy(name)
			return watched{v, open}, ok
		}
	}
}

// shrinking is a file that is shorter than it said.
type shrinking struct{ volume.File }

func (f shrinking) Read([]byte) (int, error) { return 0, io.EOF }

// An archive in which a file is cut must not look complete.
func TestArchiveOfShrinkingFile(t *testing.T) {
	r := newRig(t, watching(func(t volume.Tree, p string) (volume.File, error) {
		f, err := t.Open(p)
		if p == "d/m" {
			f = shrinking{f}
		}
		return f, err
	}))
	for _, p := range []string{"a", "m", "z"} {
		r.write("d/"+p, strings.Repeat(p, 1<<20))
	}
	for _, format := range []string{"zip", "tar.zst"} {
		q := token(r.downloadToken("d"))
		q.Set("archive", "1")
		q.Set("format", format)
		a, err := r.try("GET", "/download", q, nil, nil)
		if err == nil {
			err = a.err
		}
		require.Error(t, err, "the stream is cut")
		_, err = zip.NewReader(bytes.NewReader(a.body), int64(len(a.body)))
		require.Error(t, err)
	}
}

func TestArchiveNamesWhatIsMissing(t *testing.T) {
	r := newRig(t, watching(func(t volume.Tree, p string) (volume.File, error) {
		switch p {
		case "d/denied":
			return nil, fault.Deniedf("permission denied")
		case "d/removed":
			return nil, fault.NotFoundf("no such file")
		}
		return t.Open(p)
	}))
	for _, p := range []string{"denied", "removed", "kept"} {
		r.write("d/"+p, p)
	}
	q := token(r.downloadToken("d"))
	q.Set("archive", "1")
	got := unzip(t, r.do("GET", "/download", q, nil, nil).body)
	require.Equal(t, []string{"berth-not-included.txt", "kept"}, slices.Sorted(maps.Keys(got)))
	require.Contains(t, got["berth-not-included.txt"], "d/denied: permission denied")
}

// A file that shrinks while it is sent ends the connection early.
func TestDownloadOfShrinkingFile(t *testing.T) {
	r := newRig(t)
	r.write("f", strings.Repeat("x", 32<<20))
	req, err := http.NewRequest("GET", r.url+"/download?"+token(r.downloadToken("f")).Encode(), nil)
	require.NoError(t, err)
	res, err := client.Transport.RoundTrip(req)
	require.NoError(t, err)
	defer res.Body.Close()
	require.NoError(t, os.Truncate(r.path("f"), 1))
	_, err = io.Copy(io.Discard, res.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}

// HTTP/2 has neither the kernel's way nor one connection for each request.
func TestHTTP2(t *testing.T) {
	r := newRig(t, watching(func(t volume.Tree, p string) (volume.File, error) {
		f, err := t.Open(p)
		if p == "bad/m" {
			f = shrinking{f}
		}
		return f, err
	}))
	srv := httptest.NewUnstartedServer(r.s)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	r.url, r.rt = srv.URL, srv.Client().Transport
	data := bytes.Repeat([]byte("0123456789abcdef"), 100<<10)
	tok := r.uploadToken("x", int64(len(data)))
	half := len(data) / 2
	require.Equal(t, 204, r.patch(tok, 0, data[:half]).status)
	require.EqualValues(t, half, r.head(tok).offset(t))
	require.Equal(t, 409, r.patch(tok, 0, data[:half]).status)
	require.Equal(t, 204, r.patch(tok, int64(half), data[half:]).status)
	a := r.do("GET", "/download", token(r.downloadToken("x")), nil, nil)
	require.True(t, bytes.Equal(data, a.body))
	require.Equal(t, fmt.Sprint(len(data)), a.header.Get("Content-Length"))
	a = r.do("GET", "/download", token(r.downloadToken("x")), headers{"Range": "bytes=16-31"}, nil)
	require.Equal(t, "0123456789abcdef", string(a.body))
	r.write("bad/m", strings.Repeat("m", 1<<20))
	q := token(r.downloadToken("bad"))
	q.Set("archive", "1")
	a, err := r.try("GET", "/download", q, nil, nil)
	if err == nil {
		err = a.err
	}
	require.Error(t, err, "the stream is cut")
}

func TestFilesLeaveThroughTheKernel(t *testing.T) {
	r := newRig(t)
	r.write("f", strings.Repeat("x", 3<<20))
	w := &counting{ResponseWriter: discard{h: http.Header{}}}
	req, err := http.NewRequest("GET", "/download?"+url.Values{"token": {r.downloadToken("f")}}.Encode(), nil)
	require.NoError(t, err)
	r.s.ServeHTTP(w, req)
	require.EqualValues(t, 3<<20, w.file, "the connection gets a plain *os.File in a LimitedReader")
	require.EqualValues(t, 1<<20, w.largest, "where a timeout ends a connection, as with TLS, slow readers get time for every piece")
}

// A file is sent in full segments, and nothing of it is held back for the next reply of its connection.
func TestCork(t *testing.T) {
	r := newRig(t)
	r.write("f", strings.Repeat("x", 1<<20))
	corked := func(q *http.Request) int {
		raw, err := transfer.ConnOf(q).SyscallConn()
		require.NoError(t, err)
		value := -1
		require.NoError(t, raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK) }))
		require.NoError(t, err)
		return value
	}
	during, after := make(chan int, 2), make(chan int, 2)
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.s.ServeHTTP(&looking{w, func() { during <- corked(q) }}, q)
		after <- corked(q)
	}))
	r.s.Configure(srv.Config)
	srv.Start()
	t.Cleanup(srv.Close)
	r.url = srv.URL
	for range 2 {
		require.Len(t, r.do("GET", "/download", token(r.downloadToken("f")), nil, nil).body, 1<<20)
		require.Equal(t, 1, await.Value(t, during))
		require.Equal(t, 0, await.Value(t, after))
	}
}

type looking struct {
	http.ResponseWriter
	look func()
}

func (l *looking) ReadFrom(src io.Reader) (int64, error) {
	l.look()
	return l.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
}

type counting struct {
	http.ResponseWriter
	file, largest int64
}

func (c *counting) ReadFrom(src io.Reader) (int64, error) {
	n, err := io.Copy(io.Discard, src)
	c.largest = max(c.largest, n)
	if l, ok := src.(*io.LimitedReader); ok {
		if _, ok := l.R.(*os.File); ok {
			c.file += n
		}
	}
	return n, err
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// What no archive can hold is named in it; it does not end it in the middle without a word.
func TestArchiveOfTooDeepDirectory(t *testing.T) {
	r := newRig(t)
	r.write("d/kept", "kept")
	deep := strings.Repeat("x/", 950)
	r.write("d/"+deep+"lost", "lost")
	for _, format := range []string{"zip", "tar.zst"} {
		q := token(r.downloadToken("d"))
		q.Set("archive", "1")
		q.Set("format", format)
		a := r.do("GET", "/download", q, nil, nil)
		require.NoError(t, a.err)
		if format == "zip" {
			got := unzip(t, a.body)
			require.Equal(t, "kept", got["kept"])
			require.Contains(t, got["berth-not-included.txt"], "nested too deep")
		}
	}
}

// Browsers that come by TLS are told to come by TLS from then on, where the operator says so.
func TestHSTS(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		r := newRig(t, func(o *transfer.Options) { o.HSTS = on })
		for _, state := range []*tls.ConnectionState{nil, {}} {
			for _, path := range []string{"/", "/download?token=x", "/nothing"} {
				q := httptest.NewRequest(http.MethodGet, path, nil)
				q.TLS = state
				w := httptest.NewRecorder()
				r.s.ServeHTTP(w, q)
				want := map[bool]string{true: "max-age=31536000"}[on && state != nil]
				require.Equal(t, want, w.Header().Get("Strict-Transport-Security"), path)
				require.Equal(t, "nosniff", w.Header().Get("X-Content-Type-Options"))
			}
		}
	}
}
