package s3_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
	"berth.dev/berth/internal/testkit/testserver"
	wire "berth.dev/berth/internal/wire/storage"
)

const bucketName = "data"

// store is an S3 server on this host that counts what is asked of it.
type store struct {
	t       *testing.T
	backend *testserver.S3
	url     string
	gets    atomic.Int64
	puts    atomic.Int64
	mu      sync.Mutex
	// before may end a request before the server sees it.
	before func(r *http.Request) error
}

func newStore(t *testing.T) *store {
	t.Helper()
	s := &store{t: t, backend: testserver.StartS3(t)}
	s.backend.CreateBucket(bucketName)
	handler := s.backend.Handler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		before := s.before
		s.mu.Unlock()
		if before != nil {
			if err := before(r); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
		}
		switch r.Method {
		case http.MethodGet:
			s.gets.Add(1)
		case http.MethodPut:
			s.puts.Add(1)
		}
		// The server takes signed chunks of whole objects, but not of parts.
		if strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
			text, err := unchunk(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
			r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
			r.Header.Set("Content-Length", strconv.Itoa(len(text)))
			r.Header.Del("X-Amz-Decoded-Content-Length")
		}
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// unchunk reads a body of chunks "<size in hex>;chunk-signature=...\r\n<bytes>\r\n".
func unchunk(body io.Reader) ([]byte, error) {
	var out bytes.Buffer
	for in := bufio.NewReader(body); ; {
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		size, _, _ := strings.Cut(strings.TrimSpace(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if err != nil || n == 0 {
			return out.Bytes(), err
		}
		if _, err := io.CopyN(&out, in, n); err != nil {
			return nil, err
		}
		if _, err := in.Discard(2); err != nil {
			return nil, err
		}
	}
}

func (s *store) put(key string, text []byte) {
	s.t.Helper()
	s.backend.Put(bucketName, key, text)
}

func (s *store) text(key string) string {
	s.t.Helper()
	return string(s.backend.Get(bucketName, key))
}

func (s *store) bucket() *s3.Bucket {
	s.t.Helper()
	b, err := s3.Open(wire.ObjectStore{Endpoint: s.url, Bucket: bucketName, AccessKey: "me", SecretKey: "hush", Region: "us-east-1"},
		s3.Policy{AllowPrivate: true, AllowHTTP: true})
	require.NoError(s.t, err)
	s.t.Cleanup(b.Close)
	return b
}

func scratch(t *testing.T) (volume.Volume, cluster.FolderRef) {
	t.Helper()
	v, err := posix.Open(posix.Options{Name: "v", Path: t.TempDir(), UID: os.Geteuid(), GID: os.Getegid(), Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	f, err := cluster.ParseFolderRef("user:11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222")
	require.NoError(t, err)
	require.NoError(t, v.CreateFolder(t.Context(), f, 0o755))
	return v, f
}

// files reads everything in a folder.
func files(t *testing.T, v volume.Volume, f cluster.FolderRef) map[string]string {
	t.Helper()
	tree, err := v.OpenFolder(t.Context(), f)
	require.NoError(t, err)
	defer tree.Close()
	out := map[string]string{}
	require.NoError(t, tree.Walk(t.Context(), ".", func(path string, e volume.Entry) error {
		switch e.Kind {
		case volume.KindFile:
			file, err := tree.Open(path)
			if err != nil {
				return err
			}
			defer file.Close()
			text, err := io.ReadAll(file)
			out[path] = string(text)
			return err
		case volume.KindDirectory:
			out[path+"/"] = ""
		}
		return nil
	}))
	return out
}

func random(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	out := make([]byte, n)
	_, _ = r.Read(out)
	return out
}

func TestImportCopiesWhatIsBelowThePrefix(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	big := random(11<<20 + 7)
	s.put("in/a.txt", []byte("A"))
	s.put("in/sub/b.txt", []byte("BB"))
	s.put("in/empty", nil)
	s.put("in/dir/", nil)
	s.put("in/big", big)
	s.put("inside", []byte("another prefix"))
	v, f := scratch(t)
	var last volume.Progress
	count, err := s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: "to", Prefix: "in", Task: "t1",
		Tell: func(p volume.Progress, _ func() s3.Resume) {
			last = p
		}}, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, int64(4), count.Objects)
	require.Zero(t, count.Refused)
	require.Equal(t, int64(len(big)+3), last.Current)
	require.Equal(t, last.Total, last.Current)
	got := files(t, v, f)
	require.Equal(t, sha256.Sum256(big), sha256.Sum256([]byte(got["to/big"])))
	delete(got, "to/big")
	require.Equal(t, map[string]string{"to/": "", "to/a.txt": "A", "to/sub/": "", "to/sub/b.txt": "BB", "to/empty": "", "to/dir/": ""}, got)
}

func TestImportOfOneObject(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("in/a.txt", []byte("A"))
	v, f := scratch(t)
	for _, to := range []string{".", "copy.txt", "new/copy.txt"} {
		_, err := s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: to, Prefix: "in/a.txt", Task: "t"}, s3.Resume{})
		require.NoError(t, err, to)
	}
	require.Equal(t, map[string]string{"a.txt": "A", "copy.txt": "A", "new/": "", "new/copy.txt": "A"}, files(t, v, f))
	_, err := s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "nothing", Task: "t"}, s3.Resume{})
	require.True(t, fault.Is(err, fault.NotFound), err)
}

func TestTrickyKeysAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tricky := []string{"in/../x", "in//etc/passwd", "in/a//b", "in/./c", "in/..", "in/" + strings.Repeat("n", 300), "in/d/../../y"}
	for _, key := range tricky {
		s.put(key, []byte("evil"))
	}
	s.put("in/good", []byte("good"))
	s.put("in/good/below", []byte("a file is in the way"))
	v, f := scratch(t)
	count, err := s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "in", Task: "t"}, s3.Resume{})
	require.NoError(t, err)
	require.GreaterOrEqual(t, count.Refused, int64(len(tricky)))
	require.NotEmpty(t, count.Example)
	got := files(t, v, f)
	for path, text := range got {
		require.NotEqual(t, "evil", text, path)
	}
}

func TestImportGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	v, f := scratch(t)
	const n = 60
	for i := range n {
		s.put(fmt.Sprintf("in/%03d", i), fmt.Appendf(nil, "object %d", i))
	}
	big := random(9 << 20)
	s.put("in/zz", big)
	ctx, cancel := context.WithCancelCause(t.Context())
	boom := errors.New("crash")
	var resume func() s3.Resume
	tr := s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "in/", Task: "t", Tell: func(p volume.Progress, r func() s3.Resume) {
		resume = r
		if p.Current > 5<<20 { // in the middle of the big one
			cancel(boom)
		}
	}}
	_, err := s.bucket().Import(ctx, tr, s3.Resume{})
	require.ErrorIs(t, err, boom)
	at := resume()
	require.GreaterOrEqual(t, at.After, "in/0")
	before := s.gets.Load()
	tr.Tell = nil
	count, err := s.bucket().Import(t.Context(), tr, at)
	require.NoError(t, err)
	require.Equal(t, int64(n+1), count.Objects, "every object is counted once")
	require.Less(t, s.gets.Load()-before, int64(20), "complete objects are not read again, nor the first parts of the large one")
	got := files(t, v, f)
	require.Len(t, got, n+1)
	require.Equal(t, sha256.Sum256(big), sha256.Sum256([]byte(got["zz"])))
}

// A store that sends whole objects where parts were asked for must not make a file of beginnings.
func TestStoreWithoutRangesIsRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("in/small", []byte("small"))
	s.put("in/big", random(9<<20))
	s.before = func(r *http.Request) error {
		r.Header.Del("Range")
		return nil
	}
	v, f := scratch(t)
	_, err := s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "in/big", Task: "t"}, s3.Resume{})
	require.True(t, fault.Is(err, fault.Invalid), err)
	require.Empty(t, files(t, v, f))
	_, err = s.bucket().Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "in/small", Task: "t"}, s3.Resume{})
	require.NoError(t, err)
}

// Files that become shorter while they are read, or that are no files any more, are left out; the store is not blamed.
func TestExportOfWhatChanges(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	v, f := scratch(t)
	tree, err := v.OpenFolder(t.Context(), f)
	require.NoError(t, err)
	defer tree.Close()
	for _, name := range []string{"a", "log", "z"} {
		require.NoError(t, tree.WriteFile(t.Context(), name, bytes.NewReader(random(1<<20)), 0o644))
	}
	path := filepath.Join(v.Info().Path, f.Dir(), "log")
	s.before = func(r *http.Request) error {
		if r.Method == http.MethodPut && strings.HasSuffix(r.URL.Path, "/log") {
			return errors.Join(os.Truncate(path, 5), errors.New("cut"))
		}
		return nil
	}
	tr := s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "out", Task: "t"}
	count, err := s.bucket().Export(t.Context(), tr, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, int64(2), count.Objects)
	require.Equal(t, int64(1), count.Refused)
	require.Contains(t, count.String(), "log")
}

func TestExportAndAgain(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	v, f := scratch(t)
	tree, err := v.OpenFolder(t.Context(), f)
	require.NoError(t, err)
	defer tree.Close()
	big := random(33<<20 + 5)
	require.NoError(t, tree.Mkdir("sub", true, true))
	require.NoError(t, tree.WriteFile(t.Context(), "sub/big", bytes.NewReader(big), 0o644))
	require.NoError(t, tree.WriteFile(t.Context(), "a", strings.NewReader("A"), 0o644))
	tr := s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "out", Task: "t"}
	count, err := s.bucket().Export(t.Context(), tr, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, int64(2), count.Objects)
	require.Equal(t, "A", s.text("out/a"))
	require.Equal(t, sha256.Sum256(big), sha256.Sum256([]byte(s.text("out/sub/big"))))

	puts := s.puts.Load()
	count, err = s.bucket().Export(t.Context(), tr, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, int64(2), count.Skipped)
	require.Equal(t, puts, s.puts.Load(), "nothing is sent again")

	require.NoError(t, tree.WriteFile(t.Context(), "a", strings.NewReader("B"), 0o644))
	count, err = s.bucket().Export(t.Context(), tr, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, int64(1), count.Objects)
	require.Equal(t, "B", s.text("out/a"))

	_, err = s.bucket().Export(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: "a", Prefix: "one/", Task: "t"}, s3.Resume{})
	require.NoError(t, err)
	require.Equal(t, "B", s.text("one/a"))
}

func TestStoreThatFailsIsUnavailable(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.put("in/a", []byte("A"))
	s.before = func(*http.Request) error { return errors.New("down") }
	v, f := scratch(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := s.bucket().Import(ctx, s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "in/", Task: "t"}, s3.Resume{})
	require.True(t, fault.Is(err, fault.Unavailable), err)
	require.NotContains(t, err.Error(), "hush")
}

func TestAddressesAreChecked(t *testing.T) {
	t.Parallel()
	strict, lax := s3.Policy{}, s3.Policy{AllowPrivate: true, AllowHTTP: true}
	for ip, want := range map[string][2]bool{ // strict, with AllowPrivate
		"8.8.8.8": {true, true}, "2606:4700::1": {true, true}, "127.0.0.1": {false, true}, "::1": {false, true}, "10.1.2.3": {false, true},
		"192.168.0.1": {false, true}, "172.16.0.1": {false, true}, "fd12::1": {false, true}, "100.64.1.1": {false, true},
		"::ffff:127.0.0.1": {false, true}, "64:ff9b::7f00:1": {false, true}, "169.254.169.254": {false, false}, "fe80::1": {false, false},
		"0.0.0.0": {false, false}, "::": {false, false}, "224.0.0.1": {false, false}, "fd00:ec2::254": {false, false},
		"255.255.255.255": {false, false},
	} {
		require.Equal(t, want[0], strict.Check(netip.MustParseAddr(ip)) == nil, ip)
		require.Equal(t, want[1], lax.Check(netip.MustParseAddr(ip)) == nil, ip)
	}
	for _, endpoint := range []string{"", "s3.example.com", "ftp://x", "https://u:p@x", "https://x/path", "https://x?a=b", "https://"} {
		_, err := s3.Open(wire.ObjectStore{Endpoint: endpoint, Bucket: "bucket"}, lax)
		require.True(t, fault.Is(err, fault.Invalid), endpoint)
	}
	for _, endpoint := range []string{"http://s3.example.com", "https://127.0.0.1", "https://[::1]:9000"} {
		_, err := s3.Open(wire.ObjectStore{Endpoint: endpoint, Bucket: "bucket"}, strict)
		require.True(t, fault.Is(err, fault.Denied), endpoint)
	}
	// A name is checked by what it resolves to.
	s := newStore(t)
	s.put("a", nil)
	named := strings.Replace(s.url, "127.0.0.1", "localhost", 1)
	b, err := s3.Open(wire.ObjectStore{Endpoint: named, Bucket: bucketName, Region: "us-east-1", AccessKey: "me", SecretKey: "hush"},
		s3.Policy{AllowHTTP: true})
	require.NoError(t, err)
	v, f := scratch(t)
	_, err = b.Import(t.Context(), s3.Transfer{Volume: v, Folder: f, Path: ".", Prefix: "a", Task: "t"}, s3.Resume{})
	require.True(t, fault.Is(err, fault.Denied), err)
	require.Zero(t, s.gets.Load())
}
