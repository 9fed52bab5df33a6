package e2e_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/manager/folder"
	wire "berth.dev/berth/internal/wire/storage"
)

// balancer gives every request to the next node, as one address of many nodes does. Nodes that nobody listens on are left out;
// a request that has reached a node is not sent again.
type balancer struct {
	url string

	mu     sync.Mutex
	nodes  []*replica
	turn   int
	served map[string][]string // nodes by method, in the order of requests
	moved  int64               // bytes of bodies, since the last arm
	strike func(n *replica, moved int64, ended bool) bool
}

type pickedNode struct{}

func newBalancer(t *testing.T) *balancer {
	t.Helper()
	b := &balancer{served: map[string][]string{}}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "http", r.In.Context().Value(pickedNode{}).(*replica).clients
			r.Out.Host = r.In.Host
		},
		ModifyResponse: func(r *http.Response) error {
			n := r.Request.Context().Value(pickedNode{}).(*replica)
			if r.Request.Method == http.MethodGet {
				r.Body = &countedBody{ReadCloser: r.Body, b: b, n: n}
			} else {
				b.count(n, 0, true)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusBadGateway)
		},
		Transport: &http.Transport{DisableKeepAlives: true, DisableCompression: true},
		ErrorLog:  log.New(io.Discard, "", 0), // broken bodies are what the story is about
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := b.pick(r.Method)
		if n == nil {
			http.Error(w, "no node is there", http.StatusServiceUnavailable)
			return
		}
		if r.ContentLength != 0 {
			r.Body = &countedBody{ReadCloser: r.Body, b: b, n: n}
		}
		proxy.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), pickedNode{}, n)))
	}))
	t.Cleanup(server.Close)
	b.url = server.URL
	return b
}

func (b *balancer) pick(method string) *replica {
	b.mu.Lock()
	defer b.mu.Unlock()
	for range b.nodes {
		n := b.nodes[b.turn%len(b.nodes)]
		b.turn++
		if c, err := net.Dial("tcp", n.clients); err == nil {
			_ = c.Close()
			b.served[method] = append(b.served[method], n.name)
			return n
		}
	}
	return nil
}

// arm forgets what was counted. strike, if any, is asked after every piece of a body and after every answer (ended) and kills
// the node by returning true, once.
func (b *balancer) arm(strike func(n *replica, moved int64, ended bool) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moved, b.served, b.strike = 0, map[string][]string{}, strike
}

func (b *balancer) count(n *replica, bytes int, ended bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moved += int64(bytes)
	if b.strike != nil && b.strike(n, b.moved, ended) {
		b.strike = nil
		n.kill()
	}
}

// met reports whether the node was killed, and who served requests of the method.
func (b *balancer) met(method string) (struck bool, served []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.strike == nil, b.served[method]
}

type countedBody struct {
	io.ReadCloser
	b *balancer
	n *replica
}

func (c *countedBody) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p[:min(len(p), 64<<10)])
	c.b.count(c.n, n, false)
	return n, err
}

// replica is one node of the proxy "nas".
type replica struct {
	t                testing.TB
	name, dir        string
	manager, clients string // addresses
	cmd              *exec.Cmd
	dead             atomic.Bool // killed, and not started again
}

func (r *replica) start() {
	r.t.Helper()
	r.cmd = process(r.t, r.dir, r.name, binary, "storage", "--config", filepath.Join(r.dir, r.name+".toml"))
	for _, addr := range []string{r.manager, r.clients} {
		listening(r.t, strings.TrimPrefix(addr, "127.0.0.1:"))
	}
}

// kill ends the node, also from other goroutines than the test's. It has ended then: one on its way out still takes connections.
func (r *replica) kill() {
	r.dead.Store(true)
	_ = r.cmd.Process.Kill()
	for end := time.Now().Add(patience); !zombie(r.cmd.Process.Pid) && time.Now().Before(end); <-time.After(time.Millisecond) {
	}
}

// holds reports whether the node has the lock of a file in the volume's journal.
func (r *replica) holds(name string) bool {
	fds := fmt.Sprintf("/proc/%d/fd/", r.cmd.Process.Pid)
	entries, err := os.ReadDir(fds)
	if err != nil {
		return false
	}
	for _, e := range entries {
		to, err := os.Readlink(fds + e.Name())
		if err != nil || filepath.Base(to) != name {
			continue
		}
		info, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", r.cmd.Process.Pid, e.Name()))
		if err == nil && bytes.Contains(info, []byte("lock:")) {
			return true
		}
	}
	return false
}

// nas is a cluster with a storage proxy of two nodes on one volume.
type nas struct {
	*platform
	lb     *balancer
	nodes  []*replica
	volume string
	secret string
}

func newNAS(t *testing.T) *nas {
	t.Helper()
	p := up(t)
	raw, err := os.ReadFile(filepath.Join(p.dir, "storage.secret"))
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "berth-nas-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	c := &nas{platform: p, lb: newBalancer(t), volume: filepath.Join(dir, "volume"), secret: strings.TrimSpace(string(raw))}
	require.NoError(t, os.Mkdir(c.volume, 0o755))
	etcd := "unix://" + filepath.Join(embedded.SocketDir(p.dir, "etcd", "client:0"), "client:0")
	for i := range 2 {
		r := &replica{t: t, name: fmt.Sprintf("n%d", i+1), dir: dir, manager: "127.0.0.1:" + freePort(t), clients: "127.0.0.1:" + freePort(t)}
		require.NoError(t, os.WriteFile(filepath.Join(dir, r.name+".toml"), fmt.Appendf(nil, `
[storage]
proxy = "nas"
node = %q
client_listen = %q
client_url = %q
manager_listen = %q
state_dir = %q
secret_file = %q
reap_rate = 1000
[storage.etcd]
endpoints = [%q]
[storage.volumes.shared]
backend = "posix"
path = %q
`, r.name, r.clients, c.lb.url, r.manager, filepath.Join(dir, r.name), filepath.Join(p.dir, "storage.secret"), etcd, c.volume), 0o600))
		r.start()
		c.nodes = append(c.nodes, r)
	}
	c.lb.nodes = c.nodes
	allowed, err := json.Marshal(map[string]any{"local:volume1": folder.AllPermissions(), "nas:shared": folder.AllPermissions()})
	require.NoError(t, err)
	var reply struct {
		Modify struct {
			OK  bool   `json:"ok"`
			Msg string `json:"msg"`
		} `json:"modify_domain"`
	}
	p.graphql(`mutation($h:JSONString){modify_domain(name:"default",props:{allowed_vfolder_hosts:$h}){ok msg}}`,
		map[string]any{"h": string(allowed)}, &reply)
	require.True(t, reply.Modify.OK, reply.Modify.Msg)
	p.eventually("the volume is known", func() bool { return strings.Contains(p.must("folder", "hosts"), "nas:shared") })
	return c
}

// revive starts the nodes that were killed.
func (c *nas) revive() {
	c.t.Helper()
	c.lb.arm(nil)
	for _, n := range c.nodes {
		if n.dead.Swap(false) {
			n.start()
		}
	}
}

// make makes a folder and returns its directory.
func (c *nas) make(name string) string {
	c.t.Helper()
	c.must("folder", "create", name, "--host", "nas:shared", "--cloneable")
	return c.dirOf(name)
}

func (c *nas) dirOf(name string) string {
	c.t.Helper()
	id := strings.ReplaceAll(c.folderInfo(name).ID, "-", "")
	require.Len(c.t, id, 32)
	found := glob(c.t, filepath.Join(c.volume, "*", id[:2], id[2:4], id[4:]))
	require.Len(c.t, found, 1, name)
	return found[0]
}

// folders are the directories of all folders on the volume.
func (c *nas) folders() []string {
	c.t.Helper()
	return glob(c.t, filepath.Join(c.volume, "*", "[0-9a-f][0-9a-f]", "[0-9a-f][0-9a-f]", "*"))
}

// staged are the uploads that have not arrived; those that are complete leave marks of no size.
func (c *nas) staged() (names []string) {
	c.t.Helper()
	for _, f := range glob(c.t, filepath.Join(c.volume, "*", ".berth", "uploads", "*")) {
		if info, err := os.Stat(f); err == nil && info.Size() > 0 {
			names = append(names, filepath.Base(f))
		}
	}
	return names
}

func fileSum(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return sha256.Sum256(text)
}

func treeSums(t *testing.T, dir string) map[string][sha256.Size]byte {
	t.Helper()
	out := map[string][sha256.Size]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out[strings.TrimPrefix(path, dir)] = fileSum(t, path)
		}
		return err
	}))
	return out
}

// fill makes many small files, as the volume's owner would.
func fill(t *testing.T, dir string, files int) {
	t.Helper()
	for i := range files {
		sub := filepath.Join(dir, fmt.Sprintf("d%03d", i%100))
		require.NoError(t, os.MkdirAll(sub, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%d", i)), bytes.Repeat([]byte{byte(i)}, 100+i%4000), 0o644))
	}
	if os.Geteuid() == 0 {
		out, err := exec.Command("chown", "-R", "9001:9001", dir).CombinedOutput()
		require.NoError(t, err, string(out))
	}
}

// TestStorageReplicas moves files through two nodes of one proxy behind one address and kills the node that works.
func TestStorageReplicas(t *testing.T) {
	t.Parallel()
	c := newNAS(t)
	owner := newOfficial(t, c.env())
	const chunk = 16 << 20
	big := make([]byte, 100<<20+12345)
	_, _ = rand.NewChaCha8([32]byte{7}).Read(big)
	want := sha256.Sum256(big)
	const chunks = (100<<20+12345)/chunk + 1
	local := filepath.Join(owner.dir, "big")
	require.NoError(t, os.WriteFile(local, big, 0o644))
	dir := c.make("data")
	remote := filepath.Join(dir, "big")
	// arrived asserts that the file is there, identical and once, and takes it away.
	arrived := func(t *testing.T) {
		t.Helper()
		require.Equal(t, want, fileSum(t, remote))
		require.Len(t, glob(t, dir+"/*"), 1)
		c.must("folder", "rm", "--yes", "data:big")
		c.revive()
	}
	inside := func(_ *replica, moved int64, ended bool) bool { return !ended && moved > 40<<20 }

	t.Run("uploads hop between the nodes", func(t *testing.T) {
		for who, upload := range map[string]func(){
			"official": func() { owner.must("vfolder", "upload", "data", "big") },
			"berth":    func() { c.must("cp", local, "data:big") },
		} {
			c.lb.arm(nil)
			upload()
			_, served := c.lb.met("PATCH")
			require.Len(t, served, chunks, who)
			for i := range served[1:] {
				require.NotEqual(t, served[i], served[i+1], "%s: %v", who, served)
			}
			require.Empty(t, c.staged())
			arrived(t)
		}
	})
	t.Run("berth cp goes on when the node dies that takes its chunk", func(t *testing.T) {
		c.lb.arm(inside)
		r := c.run("", "cp", "--verify", local, "data:big")
		struck, served := c.lb.met("PATCH")
		t.Logf("chunks went to %v", served)
		require.True(t, struck)
		require.Zero(t, r.code, r.stderr)
		require.Empty(t, c.staged(), "nothing of it is left")
		arrived(t)
	})
	t.Run("the official client goes on when a node dies between its chunks", func(t *testing.T) {
		c.lb.arm(func(_ *replica, moved int64, ended bool) bool { return ended && moved >= 2*chunk })
		owner.must("vfolder", "upload", "data", "big")
		struck, served := c.lb.met("PATCH")
		t.Logf("chunks went to %v", served)
		require.True(t, struck)
		require.Len(t, served, chunks)
		arrived(t)
	})
	t.Run("the official client is started again when a node dies inside its chunk", func(t *testing.T) {
		// It waits five minutes and then falls over its own code, so that its user begins anew.
		c.lb.arm(inside)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd, _, _ := owner.command(ctx, "", "vfolder", "upload", "data", "big")
		var said lockedBuffer
		cmd.Stdout, cmd.Stderr = &said, &said
		require.NoError(t, cmd.Start())
		require.Eventually(t, func() bool { return strings.Contains(said.String(), "Retries") }, patience, 50*time.Millisecond, "it was told")
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
		require.NoFileExists(t, remote, "nobody sees a part of it")
		owner.must("vfolder", "upload", "data", "big")
		struck, _ := c.lb.met("PATCH")
		require.True(t, struck)
		require.Len(t, c.staged(), 1, "the first one is kept until it expires")
		arrived(t)
	})
	t.Run("downloads", func(t *testing.T) {
		c.must("cp", local, "data:big")
		client, err := c.client()
		require.NoError(t, err)
		ticket, err := client.RequestDownload(t.Context(), api.FolderPath{Folder: "data", Path: "big"})
		require.NoError(t, err)
		c.lb.arm(nil)
		h, tags := sha256.New(), map[string]bool{}
		for at := 0; at < len(big); at += chunk {
			header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", at, at+chunk-1)}}
			for tag := range tags { // what one node said holds at the other
				header.Set("If-Range", tag)
			}
			resp, err := client.Redeem(t.Context(), http.MethodGet, "range", ticket, header, nil, 0)
			require.NoError(t, err)
			require.Equal(t, http.StatusPartialContent, resp.StatusCode)
			_, err = io.Copy(h, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			tags[resp.Header.Get("ETag")] = true
		}
		require.Equal(t, want[:], h.Sum(nil))
		require.Len(t, tags, 1, "both nodes call the same content by the same name")
		_, served := c.lb.met("GET")
		require.Len(t, served, chunks)
		require.NotEqual(t, served[0], served[1])

		c.lb.arm(inside)
		require.NoError(t, os.Mkdir(filepath.Join(owner.dir, "back"), 0o755))
		owner.must("vfolder", "download", "-b", "back", "data", "big")
		struck, served := c.lb.met("GET")
		require.True(t, struck)
		require.Len(t, served, 2, "it went on at the other one")
		require.Equal(t, want, fileSum(t, filepath.Join(owner.dir, "back", "big")))
		c.revive()

		c.lb.arm(inside)
		r := c.run("", "cp", "data:big", filepath.Join(owner.dir, "mine"))
		require.Zero(t, r.code, r.stderr)
		struck, served = c.lb.met("GET")
		require.True(t, struck)
		require.Len(t, served, 2)
		require.Equal(t, want, fileSum(t, filepath.Join(owner.dir, "mine")))
		arrived(t)
	})
	c.clean()
}

// TestStorageReplicasShareTasks kills the node that copies or deletes, with another one on the same volume.
func TestStorageReplicasShareTasks(t *testing.T) {
	t.Parallel()
	c := newNAS(t)
	const files = 12000
	source := c.make("source")
	fill(t, source, files)
	want := treeSums(t, source)
	require.Len(t, want, files)
	// worker is the node that has a claim; nil when the work has ended before it was seen.
	worker := func(claim string, ended func() bool) (found *replica) {
		t.Helper()
		require.Eventually(t, func() bool {
			for _, n := range c.nodes {
				if n.holds(claim) {
					found = n
				}
			}
			return found != nil || ended()
		}, patience, time.Millisecond, "somebody works")
		return found
	}

	t.Run("a clone", func(t *testing.T) {
		c.revive()
		var ended chan result
		var doc taskDocument
		var w *replica
		for known := map[string]bool{}; w == nil; known[doc.ID] = true { // again where it was copied before anybody looked
			require.Less(t, len(known), 5, "a clone takes no time")
			if len(known) > 0 {
				require.Zero(t, (<-ended).code)
				c.must("folder", "rm", "--yes", "copy")
				c.must("folder", "purge", "--yes", "copy")
				require.Eventually(t, func() bool { return len(c.folders()) == 1 }, patience, 10*time.Millisecond)
			}
			ended = make(chan result, 1)
			go func() { ended <- c.run("", "folder", "clone", "source", "copy") }()
			doc = c.journal(func(d taskDocument) bool { return d.Kind == "clone" && d.Current > 0 && !known[d.ID] })
			w = worker("task-"+doc.ID+".claim", func() bool {
				return c.journal(func(d taskDocument) bool { return d.ID == doc.ID }).ended()
			})
		}
		w.kill()
		doc = c.journal(func(d taskDocument) bool { return d.ID == doc.ID })
		t.Logf("killed %s with the clone at %d of %d bytes, %s", w.name, doc.Current, doc.Total, doc.State)
		r := <-ended
		require.Zero(t, r.code, r.stderr)
		require.Equal(t, "ready", c.folderInfo("copy").Status)
		require.Equal(t, want, treeSums(t, c.dirOf("copy")))
		done := c.journal(func(d taskDocument) bool { return d.ID == doc.ID && d.ended() })
		require.Equal(t, string(wire.TaskDone), done.State, done.Message)
		if !doc.ended() {
			require.Equal(t, 2, done.Begun, "one node began it and the other went on")
		}
		require.Equal(t, files, *mustFiles(c.folderInfo("copy")))
		for _, left := range glob(t, filepath.Join(c.volume, "*", ".berth", "clones", "*")) {
			require.Equal(t, ".done", filepath.Ext(left), "nothing is left of the copying but a mark that it was done")
		}
		require.Len(t, c.folders(), 2, "no folder is there twice")
		c.revive()
	})
	t.Run("both are asked for the same clone at once", func(t *testing.T) {
		c.revive()
		var f api.Folder
		require.NoError(t, json.Unmarshal([]byte(c.must("folder", "create", "twice", "--host", "nas:shared", "--json")), &f))
		dst, src := c.folderInfo("twice"), c.folderInfo("source")
		req := wire.CloneRequest{SrcVolume: "shared", SrcVFID: src.QuotaScope + "/" + src.ID, DstVFID: dst.QuotaScope + "/" + dst.ID,
			TaskID: "both-at-once"}
		require.NoError(t, os.Remove(c.dirOf("twice")))
		var asking sync.WaitGroup
		status := make([]int, 8)
		for i := range status {
			asking.Go(func() { status[i] = c.ask(c.nodes[i%2], wire.PathFolderClone, req) })
		}
		asking.Wait()
		for _, s := range status {
			require.Equal(t, http.StatusAccepted, s)
		}
		done := c.journal(func(d taskDocument) bool { return d.ID == "both-at-once" && d.ended() })
		require.Equal(t, string(wire.TaskDone), done.State, done.Message)
		require.Equal(t, 1, done.Begun, "one of them did it")
		require.Equal(t, want, treeSums(t, c.dirOf("twice")))
	})
	t.Run("the reaper", func(t *testing.T) {
		c.revive()
		c.must("folder", "rm", "--yes", "copy", "twice")
		c.must("folder", "purge", "--yes", "copy", "twice")
		trash := func() (n int) {
			for _, d := range append(glob(t, filepath.Join(c.volume, "*", ".berth", "trash", "*")),
				glob(t, filepath.Join(c.volume, ".berth", "trash", "*"))...) {
				_ = filepath.WalkDir(d, func(_ string, _ fs.DirEntry, err error) error { // it is vanishing
					if err == nil {
						n++
					}
					return nil
				})
			}
			return n
		}
		require.Eventually(t, func() bool { return len(c.folders()) == 1 }, patience, 10*time.Millisecond, "both are in the trash")
		require.Eventually(t, func() bool { return trash() < 2*files-2000 }, patience, 10*time.Millisecond, "the reaper works")
		w := worker("reaper.claim", func() bool { return trash() == 0 })
		require.NotNil(t, w, "the trash was empty before anybody looked")
		w.kill()
		left := trash()
		t.Logf("killed %s with %d of %d files left", w.name, left, 2*files)
		require.Positive(t, left)
		require.Eventually(t, func() bool { return trash() == 0 }, patience, 100*time.Millisecond, "the other one goes on")
		require.Equal(t, want, treeSums(t, source), "and takes nothing else")
		require.Len(t, c.folders(), 1)
		c.revive()
	})
	c.clean()
}

func mustFiles(f api.Folder) *int {
	n := -1
	if f.Files != nil {
		n = int(*f.Files)
	}
	return &n
}

// taskDocument is what the nodes write down of a task.
type taskDocument struct {
	ID, Kind, State, Message string
	Current, Total           int64
	Begun                    int
}

func (d taskDocument) ended() bool { return d.State != string(wire.TaskRunning) }

// journal waits for a document.
func (c *nas) journal(ok func(d taskDocument) bool) (found taskDocument) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		for _, file := range glob(c.t, filepath.Join(c.volume, ".berth", "tasks", "task-*.json")) {
			var d taskDocument
			text, err := os.ReadFile(file)
			if err == nil && json.Unmarshal(text, &d) == nil && ok(d) {
				found = d
				return true
			}
		}
		return false
	}, patience, time.Millisecond)
	return found
}

// ask sends a request of managers to one node; status 0 means that it did not answer.
func (c *nas) ask(n *replica, path string, body any) int {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0
	}
	req, err := http.NewRequestWithContext(c.t.Context(), http.MethodPost, "http://"+n.manager+path, bytes.NewReader(raw))
	if err != nil {
		return 0
	}
	req.Header.Set(wire.Auth, wire.Key(c.secret, "nas", wire.ManagerKey))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}
