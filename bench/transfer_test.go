package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
)

const (
	patchBytes  = 16 << 20 // the chunk of the official client
	oneUpload   = 256 << 20
	eachOfEight = 64 << 20
	oneDownload = 1 << 30
)

var benchFolder = cluster.FolderRef{
	Scope:  cluster.QuotaScope{Kind: cluster.UserScope, ID: "11111111-2222-3333-4444-555555555555"},
	Folder: "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee",
}

// runTransfers serves a volume, tokens for it, and the plain handler that it is compared with.
func runTransfers(t *testing.T, said map[string]string) {
	root := os.Getenv("BERTH_ROLE_DIR")
	v, err := posix.Open(posix.Options{Name: "v", Path: root, UID: -1, GID: -1})
	require.NoError(t, err)
	t.Cleanup(func() { _ = v.Close() })
	require.NoError(t, v.CreateFolder(t.Context(), benchFolder, 0o755))
	s := transfer.New(transfer.Options{Key: "0123456789", Log: quiet(), Volumes: func(string) (volume.Volume, bool) { return v, true }})
	serve := func(name string, h http.Handler) {
		srv := httptest.NewUnstartedServer(h)
		if h == s {
			s.Configure(srv.Config)
		}
		srv.Start()
		t.Cleanup(srv.Close)
		said[name] = srv.URL
	}
	serve("berth", s)
	serve("tokens", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		size, _ := strconv.ParseInt(r.FormValue("size"), 10, 64)
		var tok string
		var err error
		if size > 0 {
			tok, _, err = s.UploadToken(r.Context(), transfer.UploadRequest{Volume: "v", Folder: benchFolder, Path: r.FormValue("path"), Size: size})
		} else {
			tok, err = s.DownloadToken(r.Context(), transfer.DownloadRequest{Volume: "v", Folder: benchFolder, Path: r.FormValue("path")})
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_, _ = io.WriteString(w, tok)
	}))
	// The same durability at the same steps, and nothing else.
	serve("plain", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.OpenFile(filepath.Join(root, "plain-"+filepath.Base(r.URL.Path)), os.O_CREATE|os.O_WRONLY, 0o644)
		if err == nil {
			_, err = f.Seek(0, io.SeekEnd)
		}
		if err == nil {
			_, err = io.Copy(f, r.Body)
		}
		if err == nil {
			err = unix.Fdatasync(int(f.Fd()))
		}
		_ = f.Close()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	said["folder"] = filepath.Join(root, benchFolder.Dir())
	said["pid"] = strconv.Itoa(os.Getpid())
}

// transfers is the client's side.
type transfers struct {
	b    *testing.B
	root string
	said map[string]string
	pid  int
	http *http.Client
	body []byte
}

func newTransfers(b *testing.B) *transfers {
	b.Helper()
	if os.Getenv("BERTH_BENCH") == "" {
		b.Skip("run make bench")
	}
	root, err := os.MkdirTemp(os.Getenv("BERTH_BENCH_DIR"), "berth-transfer-")
	require.NoError(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(root) })
	require.NoError(b, os.Chmod(root, 0o755)) // nginx has another user
	r := newRole(b, "transfers", "DIR="+root)
	pid, err := strconv.Atoi(r.said["pid"])
	require.NoError(b, err)
	t := &transfers{b: b, root: root, said: r.said, pid: pid, body: make([]byte, patchBytes),
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10}}}
	for i := range t.body {
		t.body[i] = byte(i * 7)
	}
	return t
}

func (t *transfers) do(method, address string, h http.Header, body []byte) (status int, text []byte) {
	req, err := http.NewRequestWithContext(context.Background(), method, address, bytes.NewReader(body))
	require.NoError(t.b, err)
	req.Header = h
	res, err := t.http.Do(req)
	require.NoError(t.b, err)
	defer res.Body.Close()
	text, err = io.ReadAll(res.Body)
	require.NoError(t.b, err)
	return res.StatusCode, text
}

func (t *transfers) token(path string, size int64) string {
	q := url.Values{"path": {path}, "size": {strconv.FormatInt(size, 10)}}
	status, tok := t.do("GET", t.said["tokens"]+"/?"+q.Encode(), http.Header{}, nil)
	require.Equal(t.b, http.StatusOK, status, string(tok))
	return string(tok)
}

// upload sends one file to berth in the official client's way.
func (t *transfers) upload(name string, size int64) {
	at := t.said["berth"] + "/upload?token=" + t.token(name, size)
	for sent := int64(0); sent < size; sent += patchBytes {
		h := http.Header{"Tus-Resumable": {"1.0.0"}, "Content-Type": {"application/offset+octet-stream"},
			"Upload-Offset": {strconv.FormatInt(sent, 10)}}
		status, text := t.do("PATCH", at, h, t.body)
		require.Equal(t.b, http.StatusNoContent, status, string(text))
	}
}

func (t *transfers) plain(name string, size int64) {
	for sent := int64(0); sent < size; sent += patchBytes {
		status, text := t.do("POST", t.said["plain"]+"/"+name, http.Header{}, t.body)
		require.Equal(t.b, http.StatusNoContent, status, string(text))
	}
}

// each runs fn for so many files at one time and removes them afterwards, unmeasured.
func (t *transfers) each(n int, fn func(name string, size int64), size int64) (wall, cpu time.Duration) {
	before := cpuOf(t.pid, false)
	wall = timed(func() {
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() { fn(fmt.Sprint("f", i), size) })
		}
		wg.Wait()
	})
	cpu = cpuOf(t.pid, false) - before
	for i := range n {
		_ = os.Remove(filepath.Join(t.said["folder"], fmt.Sprint("f", i)))
		_ = os.Remove(filepath.Join(t.root, fmt.Sprint("plain-f", i)))
	}
	return wall, cpu
}

// BenchmarkUpload compares one stream with a plain handler of the same durability, and eight streams with one.
func BenchmarkUpload(b *testing.B) {
	t := newTransfers(b)
	n := setting("BERTH_BENCH_ROUNDS", rounds)
	var berth, plain, eight, eightPlain, berthCPU, plainCPU []time.Duration
	for i := range n + 1 {
		w1, c1 := t.each(1, t.upload, oneUpload)
		w2, c2 := t.each(1, t.plain, oneUpload)
		w3, _ := t.each(8, t.upload, eachOfEight)
		w4, _ := t.each(8, t.plain, eachOfEight)
		if i == 0 {
			continue // the first round warms both
		}
		berth, plain, eight, eightPlain = append(berth, w1), append(plain, w2), append(eight, w3), append(eightPlain, w4)
		berthCPU, plainCPU = append(berthCPU, c1), append(plainCPU, c2)
	}
	rate := func(bytes int64, d time.Duration) float64 { return float64(bytes) / 1e6 / d.Seconds() }
	one, eightRate := rate(oneUpload, median(berth)), rate(8*eachOfEight, median(eight))
	fmt.Printf("upload: %.0f MB/s, plain handler %.0f MB/s, ratio %.2f (1 is equal, more is better)\n", one, rate(oneUpload, median(plain)),
		median(plain).Seconds()/median(berth).Seconds())
	fmt.Printf("upload: server CPU per 256 MiB: %.2f s, plain handler %.2f s\n", median(berthCPU).Seconds(), median(plainCPU).Seconds())
	fmt.Printf("upload: 8 streams %.0f MB/s, %.2f of one; plain handler %.0f MB/s\n", eightRate, eightRate/one,
		rate(8*eachOfEight, median(eightPlain)))
}

// nginx serves a directory with sendfile on.
func nginx(b *testing.B, dir string) (url string, pid int) {
	b.Helper()
	address, pid := nginxWith(b, "server { listen %s; root "+dir+"; }")
	return "http://" + address, pid
}

// BenchmarkDownload compares with nginx for one file in the page cache and one client. The client reads as little
// as it can, so that the servers are what is measured. The congestion control stands beside the result: where it is BBR, nginx pays for
// pauses that our connections within a machine do not have, and the two are alike only in a network namespace with another one:
//
//	unshare -n sh -c 'ip link set lo up; sysctl -w net.ipv4.tcp_congestion_control=reno; go test -run ^$ -bench Download ./bench'
func BenchmarkDownload(b *testing.B) {
	t := newTransfers(b)
	file := filepath.Join(t.said["folder"], "big")
	f, err := os.Create(file)
	require.NoError(b, err)
	for range oneDownload / patchBytes {
		_, err = f.Write(t.body)
		require.NoError(b, err)
	}
	require.NoError(b, f.Sync())
	require.NoError(b, f.Close())
	peer, peerPID := nginx(b, t.said["folder"])
	get := func(address string, pid int) (wall, cpu time.Duration) {
		before := cpuOf(pid, false)
		wall = timed(func() {
			req, err := http.NewRequestWithContext(context.Background(), "GET", address, nil)
			require.NoError(b, err)
			res, err := t.http.Do(req)
			require.NoError(b, err)
			defer res.Body.Close()
			require.Equal(b, http.StatusOK, res.StatusCode)
			buf := t.body[:1<<20]
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, buf)
			require.NoError(b, err)
			require.EqualValues(b, oneDownload, n)
		})
		return wall, cpuOf(pid, false) - before
	}
	ours := t.said["berth"] + "/download?token=" + t.token("big", 0)
	n := setting("BERTH_BENCH_ROUNDS", rounds)
	var berth, other, berthCPU, otherCPU []time.Duration
	for i := range n + 1 {
		w1, c1 := get(ours, t.pid)
		w2, c2 := get(peer+"/big", peerPID)
		if i == 0 {
			continue
		}
		berth, other, berthCPU, otherCPU = append(berth, w1), append(other, w2), append(berthCPU, c1), append(otherCPU, c2)
	}
	rate := func(d time.Duration) float64 { return oneDownload / 1e6 / d.Seconds() }
	control, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
	fmt.Printf("download: %.0f MB/s, nginx %.0f MB/s, ratio %.2f (1 is equal, more is better; %s by default)\n",
		rate(median(berth)), rate(median(other)), median(other).Seconds()/median(berth).Seconds(), bytes.TrimSpace(control))
	fmt.Printf("download: server CPU per GiB: %.2f s, nginx %.2f s\n", median(berthCPU).Seconds(), median(otherCPU).Seconds())
}
