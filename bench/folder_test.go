package bench_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/storage"
	wire "berth.dev/berth/internal/wire/storage"
)

// benchSecret is the secret of a storage proxy that only this benchmark reaches.
const benchSecret = "0123456789abcdef0123456789abcdef"

// runStorage is a whole storage proxy with one volume.
func runStorage(t *testing.T, said map[string]string) {
	cfg := storage.DefaultConfig()
	cfg.ClientListen, cfg.ManagerListen, cfg.StateDir = "127.0.0.1:0", "127.0.0.1:0", t.TempDir()
	cfg.Secret = chassis.NewSecret(benchSecret)
	cfg.UID, cfg.GID = max(os.Geteuid(), 1), max(os.Getegid(), 1)
	cfg.Volumes = map[string]storage.VolumeConfig{"v": {Backend: "posix", Path: os.Getenv("BERTH_ROLE_DIR")}}
	p, err := storage.New(t.Context(), cfg, storage.Deps{Log: quiet()})
	require.NoError(t, err)
	start(t, p.Services()...)
	said["url"], said["name"], said["pid"] = p.ManagerURL(), p.Name(), strconv.Itoa(os.Getpid())
}

// folders asks a storage proxy as a manager does.
type folders struct {
	b    *testing.B
	root string
	url  string
	key  string
	pid  int
}

func newFolders(b *testing.B) *folders {
	b.Helper()
	if os.Getenv("BERTH_BENCH") == "" {
		b.Skip("run make bench")
	}
	root, err := os.MkdirTemp(os.Getenv("BERTH_BENCH_DIR"), "berth-folders-")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(root) })
	r := newRole(b, "storage", "DIR="+root)
	pid, err := strconv.Atoi(r.said["pid"])
	require.NoError(b, err)
	f := &folders{b: b, root: root, url: r.said["url"], key: wire.Key(benchSecret, r.said["name"], wire.ManagerKey), pid: pid}
	f.ask("POST", wire.PathFolderCreate, f.folder(), nil)
	return f
}

func (f *folders) folder() wire.FolderRequest {
	return wire.FolderRequest{Volume: "v", VFID: benchFolder.String(), TimeoutMS: time.Minute.Milliseconds()}
}

func (f *folders) path(elements ...string) string {
	return filepath.Join(append([]string{f.root, benchFolder.Dir()}, elements...)...)
}

func (f *folders) ask(method, path string, body, into any) {
	text, err := json.Marshal(body)
	require.NoError(f.b, err)
	req, err := http.NewRequestWithContext(f.b.Context(), method, f.url+path, bytes.NewReader(text))
	require.NoError(f.b, err)
	req.Header.Set(wire.Auth, f.key)
	res, err := http.DefaultClient.Do(req)
	require.NoError(f.b, err)
	defer res.Body.Close()
	out, err := io.ReadAll(res.Body)
	require.NoError(f.b, err)
	require.Less(f.b, res.StatusCode, 300, "%s %s: %s", method, path, out)
	if into != nil {
		require.NoError(f.b, json.Unmarshal(out, into))
	}
}

// fill makes a tree of that many small files: a few wide directories and many narrow ones.
func (f *folders) fill(files int) {
	for made := 0; made < files; {
		dir := f.path(fmt.Sprintf("d%03d/e%03d", made%97, made/97%89))
		require.NoError(f.b, os.MkdirAll(dir, 0o755))
		width := min(60, files-made)
		if made%10 == 0 {
			width = min(2000, files-made)
		}
		for range width {
			require.NoError(f.b, os.WriteFile(filepath.Join(dir, fmt.Sprintf("file-%08d.dat", made)), []byte("0123456789")[:made%11], 0o644))
			made++
		}
	}
}

// BenchmarkUsage counts a folder of 500,000 files beside gdu, warm and in turn.
func BenchmarkUsage(b *testing.B) {
	const files = 500_000
	f := newFolders(b)
	f.fill(files)
	var ours, peer []time.Duration
	for i := range setting("BERTH_BENCH_ROUNDS", rounds) + 1 {
		var u wire.UsageReply
		w1 := timed(func() { f.ask("POST", wire.PathFolderUsage, f.folder(), &u) })
		require.True(b, u.Complete)
		require.EqualValues(b, files, u.FileCount)
		w2 := timed(func() { run(b, "gdu", "-n", "-p", "-s", "-a", f.path()) })
		if i > 0 {
			ours, peer = append(ours, w1), append(peer, w2)
		}
	}
	fmt.Printf("usage of %d files: %.2f s, gdu %.2f s, speed %.2f of gdu's (more is better)\n",
		files, median(ours).Seconds(), median(peer).Seconds(), median(peer).Seconds()/median(ours).Seconds())
}

// BenchmarkWideDirectory lists a directory of 1,000,000 entries page by page and throws its folder away. There is no peer.
func BenchmarkWideDirectory(b *testing.B) {
	const entries = 1_000_000
	f := newFolders(b)
	require.NoError(b, os.Mkdir(f.path("wide"), 0o755))
	for i := range entries {
		fd, err := os.Create(f.path("wide", fmt.Sprintf("entry-%07d", i*7919%entries)))
		require.NoError(b, err)
		_ = fd.Close()
	}
	q := wire.ListRequest{PathRequest: wire.PathRequest{Volume: "v", VFID: benchFolder.String(), RelPath: "wide"}}
	var first wire.ListReply
	before := memoryPeak(b, f.pid)
	cold := timed(func() { f.ask("POST", wire.PathList, q, &first) })
	require.NotEmpty(b, first.Next)
	one := memoryPeak(b, f.pid)
	var pages []time.Duration
	seen := 0
	for q.Limit = 10_000; ; {
		var page wire.ListReply
		pages = append(pages, timed(func() { f.ask("POST", wire.PathList, q, &page) }))
		seen += len(page.Items)
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	require.Equal(b, entries, seen)
	peak := memoryPeak(b, f.pid)
	away := timed(func() { f.ask("POST", wire.PathFolderDelete, f.folder(), nil) })
	_, err := os.Stat(f.path())
	require.ErrorIs(b, err, os.ErrNotExist)
	fmt.Printf("directory of %d entries: first page of %d after %.1f ms; in pages of 10,000 the median page %.1f ms, the last %.1f ms; "+
		"folder gone after %.1f ms\n",
		entries, len(first.Items), ms(cold), ms(median(pages)), ms(pages[len(pages)-1]), ms(away))
	fmt.Printf("directory of %d entries: most memory of the whole proxy before %.0f MiB, with the first page %.0f MiB, with all %.0f MiB\n",
		entries, before, one, peak)
}

// memoryPeak is the most a process has been resident with, in MiB.
func memoryPeak(b *testing.B, pid int) float64 {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(b, err)
	_, rest, ok := bytes.Cut(text, []byte("VmHWM:"))
	require.True(b, ok)
	var kib float64
	_, err = fmt.Sscan(string(rest), &kib)
	require.NoError(b, err)
	return kib / 1024
}
