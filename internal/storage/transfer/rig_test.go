package transfer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/memory"
	"berth.dev/berth/internal/storage/volume/posix"
)

const (
	key     = "6f1d0c7e0f3f4f5b9f1f2a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f"
	chunkMT = "application/offset+octet-stream"
)

var folder = cluster.FolderRef{
	Scope:  cluster.QuotaScope{Kind: cluster.UserScope, ID: "11111111-2222-3333-4444-555555555555"},
	Folder: "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
}

// clock is a clock that only Now of is moved by hand.
type clock struct {
	chassis.Clock
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{Clock: chassis.RealClock(), now: time.Now()} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// rig is a volume on a temporary directory with one folder and a proxy.
type rig struct {
	t     testing.TB
	root  string // of posix
	mem   *memory.Volume
	clock *clock
	log   *syncBuffer
	*proxy
}

// proxy is one node; several may serve the same root.
type proxy struct {
	t   testing.TB
	v   volume.Volume
	s   *transfer.Server
	url string
	srv *httptest.Server
	rt  http.RoundTripper // how clients reach it; the default when nil
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// client has connections of its own: a server of httptest that closes takes those of http.DefaultClient away from other tests.
var client = &http.Client{Transport: &http.Transport{}}

func newRig(t testing.TB, change ...func(*transfer.Options)) *rig {
	t.Helper()
	return newRigOn(t, &rig{root: t.TempDir()}, change...)
}

// newMemoryRig is a rig whose volume is the fake.
func newMemoryRig(t testing.TB, change ...func(*transfer.Options)) *rig {
	t.Helper()
	return newRigOn(t, &rig{mem: memory.New(memory.Options{Name: "volume1"})}, change...)
}

func newRigOn(t testing.TB, r *rig, change ...func(*transfer.Options)) *rig {
	t.Helper()
	r.t, r.clock, r.log = t, newClock(), &syncBuffer{}
	r.proxy = r.open(change...)
	require.NoError(t, r.v.CreateFolder(context.Background(), folder, 0o755))
	return r
}

// open starts another proxy on the same volume.
func (r *rig) open(change ...func(*transfer.Options)) *proxy {
	r.t.Helper()
	p := &proxy{t: r.t}
	if r.mem != nil {
		p.v = r.mem.Replica()
	} else {
		v, err := posix.Open(posix.Options{Name: "volume1", Path: r.root, UID: -1, GID: -1})
		require.NoError(r.t, err)
		p.v = v
	}
	o := transfer.Options{
		Key: key, Version: "1.2.3", Clock: r.clock,
		Volumes:     func(name string) (volume.Volume, bool) { return p.v, name == "volume1" },
		VolumeNames: func() []string { return []string{"volume1"} },
		LockWait:    200 * time.Millisecond, QueueWait: 50 * time.Millisecond,
		QuietWriter: time.Minute, // no client of a test is gone because it is slow
		Log:         slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, c := range change {
		c(&o)
	}
	p.s = transfer.New(o)
	p.srv = httptest.NewUnstartedServer(p.s)
	p.s.Configure(p.srv.Config)
	p.srv.Start()
	p.url = p.srv.URL
	r.t.Cleanup(func() {
		p.srv.CloseClientConnections()
		p.srv.Close()
		_ = p.v.Close()
	})
	return p
}

func (r *rig) path(p string) string { return filepath.Join(r.root, folder.Dir(), p) }

func (r *rig) write(p, content string) {
	r.t.Helper()
	require.NoError(r.t, os.MkdirAll(filepath.Dir(r.path(p)), 0o755))
	require.NoError(r.t, os.WriteFile(r.path(p), []byte(content), 0o644))
}

func (r *rig) read(p string) string {
	r.t.Helper()
	b, err := os.ReadFile(r.path(p))
	require.NoError(r.t, err)
	return string(b)
}

func (r *rig) missing(p string) {
	r.t.Helper()
	_, err := os.Lstat(r.path(p))
	require.ErrorIs(r.t, err, os.ErrNotExist)
}

func (p *proxy) uploadToken(path string, size int64) string {
	p.t.Helper()
	tok, _, err := p.s.UploadToken(context.Background(), transfer.UploadRequest{Volume: "volume1", Folder: folder, Path: path, Size: size})
	require.NoError(p.t, err)
	return tok
}

func (p *proxy) downloadToken(path string) string {
	p.t.Helper()
	tok, err := p.s.DownloadToken(context.Background(), transfer.DownloadRequest{Volume: "volume1", Folder: folder, Path: path})
	require.NoError(p.t, err)
	return tok
}

// answer is a reply that was read to its end.
type answer struct {
	status  int
	header  http.Header
	body    []byte
	problem struct{ Type, Title, Msg, Next string }
	err     error // of reading the body
}

func (a answer) slug() string {
	return strings.TrimPrefix(a.problem.Type, "https://api.backend.ai/probs/storage/")
}

func (a answer) offset(t testing.TB) int64 {
	t.Helper()
	n, err := strconv.ParseInt(a.header.Get("Upload-Offset"), 10, 64)
	require.NoError(t, err)
	return n
}

type headers map[string]string

func (p *proxy) do(method, path string, query url.Values, h headers, body io.Reader) answer {
	p.t.Helper()
	a, err := p.try(method, path, query, h, body)
	require.NoError(p.t, err)
	return a
}

func (p *proxy) try(method, path string, query url.Values, h headers, body io.Reader) (answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.url+path+"?"+query.Encode(), body)
	if err != nil {
		return answer{}, err
	}
	for _, k := range slices.Sorted(maps.Keys(h)) {
		req.Header.Set(k, h[k])
	}
	transport := client.Transport
	if p.rt != nil {
		transport = p.rt
	}
	res, err := transport.RoundTrip(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	a := answer{status: res.StatusCode, header: res.Header}
	a.body, a.err = io.ReadAll(res.Body)
	if strings.HasPrefix(res.Header.Get("Content-Type"), "application/problem+json") {
		if err := json.Unmarshal(a.body, &a.problem); err != nil && method != http.MethodHead {
			return a, err
		}
	}
	return a, nil
}

func token(tok string) url.Values { return url.Values{"token": {tok}} }

func (p *proxy) patch(tok string, offset int64, body []byte) answer {
	p.t.Helper()
	return p.do("PATCH", "/upload", token(tok), patchHeaders(offset), bytes.NewReader(body))
}

func patchHeaders(offset int64) headers {
	return headers{"Tus-Resumable": "1.0.0", "Content-Type": chunkMT, "Upload-Offset": strconv.FormatInt(offset, 10)}
}

func (p *proxy) head(tok string) answer {
	p.t.Helper()
	return p.do("HEAD", "/upload", token(tok), headers{"Tus-Resumable": "1.0.0"}, nil)
}
