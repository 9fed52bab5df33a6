package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/testkit/testserver"
	wire "berth.dev/berth/internal/wire/storage"
)

const (
	storageSecret = "a secret of the test's own"
	storageScope  = "user:11111111-1111-1111-1111-111111111111/"
	uploadChunk   = 256 << 10
)

// storageNode is a storage proxy of its own that is killed and started again.
type storageNode struct {
	t                testing.TB
	dir, config      string
	manager, clients string // addresses
	volume           string
	kill             func()
}

func newStorageNode(t *testing.T) *storageNode {
	t.Helper()
	needEngine(t)
	dir, err := os.MkdirTemp("", "berth-st-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd := embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, etcd.Service().Start(t.Context()))
	t.Cleanup(func() { _ = etcd.Service().Stop(context.Background()) })
	members, err := etcd.Client().MemberList(t.Context())
	require.NoError(t, err)
	n := &storageNode{t: t, dir: dir, config: filepath.Join(dir, "storage.toml"), volume: filepath.Join(dir, "volume"),
		manager: "127.0.0.1:" + freePort(t), clients: "127.0.0.1:" + freePort(t)}
	require.NoError(t, os.Mkdir(n.volume, 0o755))
	require.NoError(t, os.WriteFile(n.config, fmt.Appendf(nil, `
[storage]
proxy = "px"
node = "n1"
client_listen = %q
manager_listen = %q
state_dir = %q
secret = %q
reap_rate = 400
object_stores = {allow_private = true, allow_http = true}
[storage.etcd]
endpoints = [%q]
[storage.volumes.vol]
backend = "posix"
path = %q
`, n.clients, n.manager, filepath.Join(dir, "state"), storageSecret, members.Members[0].ClientURLs[0], n.volume), 0o600))
	p := &platform{t: t, dir: dir}
	require.Zero(t, p.run("", "config", "check", "--role", "storage", "--config", n.config).code)
	n.start()
	var told sync.WaitGroup
	told.Go(n.tellRights)
	t.Cleanup(told.Wait)
	require.Eventually(t, func() bool {
		got, err := etcd.Client().Get(t.Context(), wire.PresencePath("/berth", "px", "n1"))
		return err == nil && len(got.Kvs) == 1
	}, patience, 20*time.Millisecond, "the proxy announces itself")
	return n
}

// start starts the process; kill then ends it without warning.
func (n *storageNode) start() {
	n.t.Helper()
	cmd := process(n.t, n.dir, "storage", binary, "storage", "--config", n.config)
	for _, addr := range []string{n.manager, n.clients} {
		listening(n.t, strings.TrimPrefix(addr, "127.0.0.1:"))
	}
	n.kill = func() {
		require.NoError(n.t, cmd.Process.Kill())
		require.Eventually(n.t, func() bool { return syscall.Kill(cmd.Process.Pid, 0) != nil }, patience, time.Millisecond, "the process is gone")
	}
}

// tellRights says until the test ends that nobody's rights changed, as managers do.
func (n *storageNode) tellRights() {
	var boot wire.RightsReply
	for n.t.Context().Err() == nil {
		status, text := n.try("POST", wire.PathRights, wire.RightsRequest{Boot: boot.Boot, Complete: boot.Boot != ""})
		if status == 200 {
			first := boot.Boot == ""
			if json.Unmarshal(text, &boot) == nil && (first || boot.Again) {
				continue
			}
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-n.t.Context().Done():
		}
	}
}

// try asks the manager-facing API; status 0 means that nobody answered.
func (n *storageNode) try(method, path string, body any) (status int, text []byte) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, nil
	}
	req, err := http.NewRequestWithContext(n.t.Context(), method, "http://"+n.manager+path, bytes.NewReader(raw))
	if err != nil {
		return 0, nil
	}
	req.Header.Set(wire.Auth, wire.Key(storageSecret, "px", wire.ManagerKey))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	text, err = io.ReadAll(resp.Body)
	if err != nil {
		return 0, nil
	}
	return resp.StatusCode, text
}

func (n *storageNode) ask(method, path string, body any, want int) []byte {
	n.t.Helper()
	status, text := n.try(method, path, body)
	require.Equal(n.t, want, status, "%s %s: %s", method, path, text)
	return text
}

func (n *storageNode) task(id string) wire.Task {
	n.t.Helper()
	var t wire.Task
	require.NoError(n.t, json.Unmarshal(n.ask("GET", wire.PathTask+id, nil, 200), &t))
	return t
}

// upload sends a file in pieces, asking for the offset after everything that went wrong, as clients do.
func (n *storageNode) upload(token string, text []byte, done *atomic.Int64) error {
	url := "http://" + n.clients + "/upload?token=" + token
	send := func(method string, offset int, body []byte) (int, http.Header, error) {
		req, err := http.NewRequestWithContext(n.t.Context(), method, url, bytes.NewReader(body))
		if err != nil {
			return 0, nil, err
		}
		req.Header.Set("Tus-Resumable", "1.0.0")
		if method == "PATCH" {
			req.Header.Set("Content-Type", "application/offset+octet-stream")
			req.Header.Set("Upload-Offset", strconv.Itoa(offset))
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, nil, err
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header, resp.Body.Close()
	}
	offset, known := 0, true
	for deadline := time.Now().Add(patience); ; {
		if time.Now().After(deadline) {
			return errors.New("the upload does not end")
		}
		if offset == len(text) && known {
			return nil
		}
		if !known {
			status, header, err := send("HEAD", 0, nil)
			if err != nil || status != 200 {
				<-time.After(20 * time.Millisecond) // the proxy is away
				continue
			}
			if offset, err = strconv.Atoi(header.Get("Upload-Offset")); err != nil {
				return err
			}
			known = true
			continue
		}
		status, header, err := send("PATCH", offset, text[offset:min(offset+uploadChunk, len(text))])
		if err != nil || status != 204 {
			known = false
			continue
		}
		if offset, err = strconv.Atoi(header.Get("Upload-Offset")); err != nil {
			return err
		}
		done.Add(uploadChunk)
	}
}

// sums are the checksums of all files of a folder, by path.
func (n *storageNode) sums(vfid string) map[string][sha256.Size]byte {
	n.t.Helper()
	var mount wire.MountReply
	require.NoError(n.t, json.Unmarshal(n.ask("POST", wire.PathFolderMount, wire.FolderRequest{Volume: "vol", VFID: vfid}, 200), &mount))
	out := map[string][sha256.Size]byte{}
	require.NoError(n.t, filepath.WalkDir(mount.Path, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, mount.Path+"/")] = sha256.Sum256(text)
		return err
	}))
	return out
}

// left counts what lies in a private directory of the scope.
func (n *storageNode) left(name string) int {
	entries, err := os.ReadDir(filepath.Join(n.volume, "11111111111111111111111111111111", ".berth", name))
	if err != nil {
		return 0
	}
	left := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".done") { // remembers a clone for who asks again
			left++
		}
	}
	return left
}

// TestStorageProxySurvivesKill kills the proxy in the middle of eight uploads, a clone and a purge.
func TestStorageProxySurvivesKill(t *testing.T) {
	t.Parallel()
	n := newStorageNode(t)
	folder := func(i int) string { return storageScope + fmt.Sprintf("22222222-2222-2222-2222-%012d", i) }
	uploads, source, clone, doomed := folder(1), folder(2), folder(3), folder(4)
	mounts := map[string]string{}
	for _, f := range []string{uploads, source, doomed} {
		n.ask("POST", wire.PathFolderCreate, wire.FolderRequest{Volume: "vol", VFID: f}, 204)
		var mount wire.MountReply
		require.NoError(t, json.Unmarshal(n.ask("POST", wire.PathFolderMount, wire.FolderRequest{Volume: "vol", VFID: f}, 200), &mount))
		mounts[f] = mount.Path
	}
	for f, files := range map[string]int{source: 6000, doomed: 9000} {
		for i := range files {
			dir := filepath.Join(mounts[f], fmt.Sprintf("d%02d", i%40))
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%d", i)), bytes.Repeat([]byte{byte(i)}, 100+i%4000), 0o644))
		}
	}
	stored := objects(t, 2000)
	imported := folder(5)
	n.ask("POST", wire.PathFolderCreate, wire.FolderRequest{Volume: "vol", VFID: imported}, 204)
	n.ask("POST", wire.PathImport, wire.TransferRequest{PathRequest: wire.PathRequest{Volume: "vol", VFID: imported, RelPath: "."},
		TaskID: "import", Prefix: "in/",
		Store: wire.ObjectStore{Endpoint: stored.url, Bucket: "bucket", Region: "us-east-1", AccessKey: "someone", SecretKey: "hush-hush"}}, 202)
	require.Eventually(t, func() bool { return n.task("import").Current > 0 }, patience, time.Millisecond)
	random := rand.NewChaCha8([32]byte{5})
	want := map[string][sha256.Size]byte{}
	var sent [8]atomic.Int64
	var failed [8]error
	var sending sync.WaitGroup
	for i := range 8 {
		text := make([]byte, 24<<20+i)
		_, _ = random.Read(text)
		name := fmt.Sprintf("up/file%d", i)
		want[name] = sha256.Sum256(text)
		var token wire.TokenReply
		require.NoError(t, json.Unmarshal(n.ask("POST", wire.PathUpload, wire.UploadRequest{Rights: &wire.TokenRights{User: "ada"},
			PathRequest: wire.PathRequest{Volume: "vol", VFID: uploads, RelPath: name}, Size: int64(len(text)),
		}, 200), &token))
		sending.Go(func() { failed[i] = n.upload(token.Token, text, &sent[i]) })
	}
	require.Eventually(t, func() bool {
		for i := range sent {
			if sent[i].Load() < 2<<20 {
				return false
			}
		}
		return true
	}, patience, time.Millisecond, "all uploads are under way")
	n.ask("POST", wire.PathFolderDelete, wire.FolderRequest{Volume: "vol", VFID: doomed, TaskID: "purge"}, 202)
	n.ask("POST", wire.PathFolderClone, wire.CloneRequest{SrcVolume: "vol", SrcVFID: source, DstVFID: clone, TaskID: "clone"}, 202)
	require.Eventually(t, func() bool { c := n.task("clone"); return c.Current > 0 || c.State != wire.TaskRunning }, patience,
		time.Millisecond)
	before, importing := n.task("clone"), n.task("import")
	killed := time.Now()
	n.kill()
	require.Positive(t, n.left("trash"), "the purge was under way")
	require.NoDirExists(t, mounts[doomed])
	t.Logf("killed with the clone at %d of %d bytes (%s), the import at %d of %d (%s) and %d of 8 uploads complete", before.Current,
		before.Total, before.State,
		importing.Current, importing.Total, importing.State, len(glob(t, mounts[uploads]+"/up/file*")))

	all := func() (total int64) {
		for i := range sent {
			total += sent[i].Load()
		}
		return total
	}
	acknowledged := all()
	n.start()
	for what, goesOn := range map[string]func() bool{
		"clone": func() bool {
			now := n.task("clone")
			return now.Current > before.Current || now.State != wire.TaskRunning
		},
		"import": func() bool {
			now := n.task("import")
			return now.Current > importing.Current || now.State != wire.TaskRunning
		},
		"upload": func() bool { return all() > acknowledged },
	} {
		require.Eventually(t, goesOn, patience, time.Millisecond, what)
		t.Logf("the %s goes on %s after the kill", what, time.Since(killed).Round(time.Millisecond))
	}
	sending.Wait()
	for i, err := range failed {
		require.NoError(t, err, "upload %d", i)
	}
	require.Equal(t, want, n.sums(uploads), "every upload is there once and identical")
	require.Eventually(t, func() bool { return n.task("clone").State != wire.TaskRunning }, patience, 20*time.Millisecond)
	require.Equal(t, wire.TaskDone, n.task("clone").State, n.task("clone").Message)
	require.Equal(t, n.sums(source), n.sums(clone))
	require.Equal(t, wire.TaskDone, n.task("purge").State)
	require.Eventually(t, func() bool { return n.task("import").State != wire.TaskRunning }, patience, 20*time.Millisecond)
	require.Equal(t, wire.TaskDone, n.task("import").State, n.task("import").Message)
	require.Equal(t, stored.sums, n.sums(imported))
	require.Empty(t, glob(t, filepath.Join(n.volume, "*", ".berth", "uploads", "s3-*")), "no part of an object is left")
	require.Eventually(t, func() bool { return n.left("trash") == 0 }, patience, 50*time.Millisecond, "the purge goes on")
	require.Zero(t, n.left("clones"), "nothing is left of the first attempt")
	// Asked again, as a manager that heard no answer would.
	n.ask("POST", wire.PathFolderClone, wire.CloneRequest{SrcVolume: "vol", SrcVFID: source, DstVFID: clone, TaskID: "clone"}, 202)
	n.ask("POST", wire.PathFolderDelete, wire.FolderRequest{Volume: "vol", VFID: doomed, TaskID: "purge"}, 202)
	require.Equal(t, n.sums(source), n.sums(clone))
	var usage wire.UsageReply
	require.NoError(t, json.Unmarshal(n.ask("POST", wire.PathFolderUsage, wire.FolderRequest{Volume: "vol", VFID: clone}, 200), &usage))
	require.True(t, usage.Complete)
	require.Equal(t, int64(6000), usage.FileCount)
	p := &platform{t: t, dir: n.dir}
	doctor := p.run("", "doctor", "--config", n.config)
	require.NotContains(t, doctor.stdout, "WRONG  storage", doctor.stdout)
}

// store is an S3 server with a bucket of objects below in/.
type store struct {
	url  string
	sums map[string][sha256.Size]byte
}

func objects(t *testing.T, count int) store {
	t.Helper()
	backend := testserver.StartS3(t)
	backend.CreateBucket("bucket")
	s := store{url: backend.URL, sums: map[string][sha256.Size]byte{}}
	random := rand.NewChaCha8([32]byte{6})
	for i := range count {
		text := make([]byte, 1000+i)
		if i == 0 {
			text = make([]byte, 20<<20)
		}
		_, _ = random.Read(text)
		name := fmt.Sprintf("d%d/o%d", i%7, i)
		backend.Put("bucket", "in/"+name, text)
		s.sums[name] = sha256.Sum256(text)
	}
	return s
}

func glob(t testing.TB, pattern string) []string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	require.NoError(t, err)
	return found
}
