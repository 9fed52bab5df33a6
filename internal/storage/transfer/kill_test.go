package transfer_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/posix"
	"berth.dev/berth/internal/testkit/address"
	"berth.dev/berth/internal/testkit/await"
)

// TestProxyProcess is the proxy of the test below, in a process of its own.
func TestProxyProcess(t *testing.T) {
	root := os.Getenv("BERTH_TRANSFER_ROOT")
	if root == "" {
		t.Skip("a part of TestKilledProxies")
	}
	v, err := posix.Open(posix.Options{Name: "volume1", Path: root, UID: -1, GID: -1})
	require.NoError(t, err)
	s := transfer.New(transfer.Options{Key: key, Volumes: func(string) (volume.Volume, bool) { return v, true }})
	l, err := net.Listen("tcp", os.Getenv("BERTH_TRANSFER_LISTEN"))
	require.NoError(t, err)
	go func() { _ = http.Serve(l, s) }()
	fmt.Printf("\nREADY\n")
	_, _ = io.Copy(io.Discard, os.Stdin) // until our parent is gone, if nobody kills us before
}

// victim is a proxy that is killed again and again and listens at the same address each time.
type victim struct {
	t          *testing.T
	root, addr string
	cmd        *exec.Cmd
}

func (v *victim) start() {
	cmd := exec.Command(os.Args[0], "-test.run", "^TestProxyProcess$", "-test.v")
	cmd.Env = append(os.Environ(), "BERTH_TRANSFER_ROOT="+v.root, "BERTH_TRANSFER_LISTEN="+v.addr)
	_, err := cmd.StdinPipe()
	require.NoError(v.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(v.t, err)
	require.NoError(v.t, cmd.Start())
	v.cmd = cmd
	require.NoError(v.t, out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)))
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "READY" {
			return
		}
	}
	require.Fail(v.t, "the proxy did not start")
}

func (v *victim) kill() {
	_ = v.cmd.Process.Kill()
	_ = v.cmd.Wait()
}

// gate is told when the first half of a chunk was sent, and opens for the second.
type gate struct{ reached, open chan struct{} }

// half is a chunk whose second half waits at a gate.
type half struct {
	chunk []byte
	at    int
	gate  gate
}

func (h *half) Read(b []byte) (int, error) {
	end := len(h.chunk)
	switch {
	case h.at == end:
		return 0, io.EOF
	case h.at < end/2:
		end /= 2
	case h.at == end/2:
		h.gate.reached <- struct{}{}
		<-h.gate.open
	}
	n := copy(b, h.chunk[h.at:end])
	h.at += n
	return n, nil
}

func (h *half) RoundTrip(r *http.Request) (*http.Response, error) {
	r.ContentLength = int64(len(h.chunk))
	return client.Transport.RoundTrip(r)
}

// Proxies that die by SIGKILL in the middle of 8 uploads: what was acknowledged is there, clients go on, and
// every file is right and there once.
func TestKilledProxies(t *testing.T) {
	r := newRig(t) // makes the folder and the tokens
	v := &victim{t: t, root: r.root, addr: address.Hold(t)}
	v.start()
	defer v.kill()
	const files, size, step, each, kills = 8, 4 << 20, 256 << 10, 10, 6
	var sent atomic.Int64   // chunks that were acknowledged
	var killed atomic.Int64 // how often; a proxy takes no more than some chunks before it is killed, however fast it is
	var failed atomic.Int64 // chunks
	var held atomic.Int64   // chunks of which one half is sent only after a kill
	gates := make([]gate, kills)
	for n := range gates {
		gates[n] = gate{reached: make(chan struct{}, 100), open: make(chan struct{})}
	}
	sums := make([][32]byte, files)
	var wg sync.WaitGroup
	for i := range files {
		data := make([]byte, size)
		random := rand.NewChaCha8([32]byte{byte(i)})
		_, _ = random.Read(data)
		sums[i] = sha256.Sum256(data)
		tok := r.uploadToken(fmt.Sprint("d/f", i), size)
		wg.Go(func() {
			acknowledged := int64(0)
			p := &proxy{t: t, url: "http://" + v.addr}
			for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); {
				a, err := p.try("HEAD", "/upload", token(tok), nil, nil)
				if n := killed.Load(); err != nil || a.status != 200 || n < kills && sent.Load() >= 2*each*(n+1) {
					<-time.After(time.Millisecond)
					continue
				}
				at := a.offset(t)
				if at < acknowledged {
					t.Errorf("f%d: %d bytes were acknowledged and %d are there", i, acknowledged, at)
					return
				}
				if at == size {
					return
				}
				chunk := data[at:min(at+step, size)]
				if n := held.Load(); n < kills && n == killed.Load() && sent.Load() >= each*(n+1) && held.CompareAndSwap(n, n+1) {
					h := &half{chunk: chunk, gate: gates[n]}
					a, err = (&proxy{t: t, url: p.url, rt: h}).try("PATCH", "/upload", token(tok), patchHeaders(at), h)
					if killed.Load() == n {
						held.Store(n) // it failed before its half was sent: the proxy had just started, and another one is held
					}
				} else {
					a, err = p.try("PATCH", "/upload", token(tok), patchHeaders(at), bytes.NewReader(chunk))
				}
				if err == nil && a.status == 204 {
					acknowledged = a.offset(t)
					sent.Add(1)
				} else {
					failed.Add(1)
				}
			}
			t.Errorf("f%d did not end", i)
		})
	}
	for _, g := range gates {
		await.Value(t, g.reached)
		v.kill()
		killed.Add(1)
		close(g.open)
		v.start()
	}
	wg.Wait()
	require.GreaterOrEqual(t, failed.Load(), int64(kills), "each kill met a chunk half way")
	for i := range files {
		require.Equal(t, sums[i], sha256.Sum256([]byte(r.read(fmt.Sprint("d/f", i)))), i)
	}
	names, err := os.ReadDir(r.path("d"))
	require.NoError(t, err)
	require.Len(t, names, files)
	left, err := os.ReadDir(filepath.Join(r.root, folder.Scope.Dir(), ".berth", "uploads"))
	require.NoError(t, err)
	for _, e := range left {
		require.Contains(t, e.Name(), ".done-", "only the marks of complete uploads are left")
	}
}

// A reader that takes nothing gives its place up.
func TestStalledReader(t *testing.T) {
	r := newRig(t, func(o *transfer.Options) { o.MaxPerFolder = 1; o.IdleTimeout = 100 * time.Millisecond })
	require.NoError(t, os.WriteFile(r.path("big"), nil, 0o644))
	require.NoError(t, os.Truncate(r.path("big"), 1<<30))
	r.write("d/f", "x")
	for _, query := range []string{"", "&archive=1"} {
		tok := r.downloadToken("big")
		if query != "" {
			tok = r.downloadToken(".")
		}
		conn := r.dial(fmt.Sprintf("GET /download?%s%s HTTP/1.1\r\nHost: x\r\n\r\n", token(tok).Encode(), query))
		require.Eventually(t, func() bool {
			a, err := r.try("GET", "/download", token(r.downloadToken("d/f")), nil, nil)
			return err == nil && a.status == 200
		}, 30*time.Second, 10*time.Millisecond)
		_ = conn.Close()
	}
}
