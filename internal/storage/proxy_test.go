package storage_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/storage"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/memory"
	"berth.dev/berth/internal/testkit/await"
	wire "berth.dev/berth/internal/wire/storage"
)

// client waits for no answer longer than anything in a test takes.
var client = &http.Client{Timeout: time.Minute}

const (
	secret = "a secret that nobody knows"
	vfid   = "user:11111111-1111-1111-1111-111111111111/22222222-2222-2222-2222-222222222222"
	scope  = "user:11111111-1111-1111-1111-111111111111"
)

// quick is a clock by which what is done now and then is done fifty times as often. Timers take as long as ever: they are the patience
// with a volume, and one that is well may be slow on a busy machine.
type quick struct{ chassis.Clock }

func (q quick) NewTicker(d time.Duration) chassis.Ticker { return q.Clock.NewTicker(d / 50) }

// node is one running proxy.
type node struct {
	t *testing.T
	*storage.Proxy
	stop func()
}

func config(t *testing.T) storage.Config {
	cfg := storage.DefaultConfig()
	cfg.ClientListen, cfg.ManagerListen, cfg.StateDir = "127.0.0.1:0", "127.0.0.1:0", t.TempDir()
	cfg.Secret = chassis.NewSecret(secret)
	cfg.UID, cfg.GID = max(os.Geteuid(), 1), max(os.Getegid(), 1)
	return cfg
}

func run(t *testing.T, cfg storage.Config, deps storage.Deps) *node {
	t.Helper()
	deps.Log = slog.New(slog.DiscardHandler)
	p, err := storage.New(t.Context(), cfg, deps)
	require.NoError(t, err)
	g, err := chassis.NewGroup(deps.Log, p.Services()...)
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	n := &node{t: t, Proxy: p, stop: sync.OnceFunc(func() { _ = g.Stop(context.Background()) })}
	t.Cleanup(n.stop)
	return n
}

// onDisk is a configuration with one posix volume.
func onDisk(t *testing.T) (storage.Config, string) {
	cfg, path := config(t), t.TempDir()
	cfg.Volumes = map[string]storage.VolumeConfig{"disk": {Backend: "posix", Path: path}}
	return cfg, path
}

type reply struct {
	status int
	body   []byte
	header http.Header
}

func (n *node) send(method, path, key string, body any) reply {
	n.t.Helper()
	var text []byte
	switch b := body.(type) {
	case nil:
	case string:
		text = []byte(b)
	default:
		var err error
		text, err = json.Marshal(body)
		require.NoError(n.t, err)
	}
	req, err := http.NewRequestWithContext(n.t.Context(), method, n.ManagerURL()+path, bytes.NewReader(text))
	require.NoError(n.t, err)
	req.Header.Set(wire.Auth, key)
	resp, err := client.Do(req)
	require.NoError(n.t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	require.NoError(n.t, err)
	return reply{resp.StatusCode, out, resp.Header}
}

// ask sends with the right key and checks the status.
func (n *node) ask(method, path string, body any, want int) reply {
	n.t.Helper()
	r := n.send(method, path, wire.Key(secret, n.Name(), wire.ManagerKey), body)
	require.Equal(n.t, want, r.status, "%s %s: %s", method, path, r.body)
	return r
}

// refused checks the problem document.
func (n *node) refused(method, path string, body any, status int, kind string) wire.Problem {
	n.t.Helper()
	r := n.ask(method, path, body, status)
	require.Equal(n.t, "application/problem+json", r.header.Get("Content-Type"))
	var p wire.Problem
	require.NoError(n.t, json.Unmarshal(r.body, &p))
	require.Equal(n.t, kind, p.Kind)
	require.NotEmpty(n.t, p.Msg)
	return p
}

func read[T any](t *testing.T, r reply) T {
	t.Helper()
	var out T
	require.NoError(t, json.Unmarshal(r.body, &out), string(r.body))
	return out
}

func (n *node) until(what string, ok func() bool) {
	n.t.Helper()
	require.Eventually(n.t, ok, time.Minute, 5*time.Millisecond, what)
}

func (n *node) ends(id string) wire.Task {
	n.t.Helper()
	var got wire.Task
	n.until("task "+id+" ends", func() bool {
		got = read[wire.Task](n.t, n.ask("GET", wire.PathTask+id, nil, 200))
		return got.State != wire.TaskRunning
	})
	return got
}

func request(extra string) string {
	return `{"volume":"disk","vfid":"` + vfid + `"` + extra + `}`
}

// TestOneProxysKeyIsNoOthers: proxies that have a key of their own instead of the managers' secret cannot act as a manager for each other.
// Managers reach them as before.
func TestOneProxysKeyIsNoOthers(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	taken, err := wire.KeysOf(secret, "another").Text()
	require.NoError(t, err)
	own, err := wire.KeysOf(secret, cfg.Proxy).Text()
	require.NoError(t, err)
	cfg.Secret = chassis.NewSecret(own)
	n := run(t, cfg, storage.Deps{})
	n.ask("GET", wire.PathVolumes, nil, 200)
	for what, key := range map[string]string{
		"its key":                          taken,
		"what it shows":                    wire.KeysOf(secret, "another").Manager,
		"what it derives from its own key": wire.Key(taken, cfg.Proxy, wire.ManagerKey),
		"the key as text":                  own,
	} {
		require.Equal(t, 401, n.send("GET", wire.PathVolumes, key, nil).status, what)
	}
	require.True(t, wire.Proven(wire.KeysOf(secret, cfg.Proxy).Announce, n.Presence()))
	require.False(t, wire.Proven(wire.KeysOf(secret, "another").Announce, n.Presence()))

	cfg.Secret = chassis.NewSecret(taken)
	_, err = storage.New(t.Context(), cfg, storage.Deps{})
	require.ErrorContains(t, err, "is the key of storage proxy another")
	cfg.Secret = chassis.NewSecret(own[:len(own)-7])
	_, err = storage.New(t.Context(), cfg, storage.Deps{})
	require.ErrorContains(t, err, "damaged")
}

func TestKeyOfManagers(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	for _, key := range []string{"", "wrong", secret, wire.Key(secret, "another", wire.ManagerKey),
		wire.Key(secret, n.Name(), wire.ClientKey)} {
		r := n.send("GET", wire.PathVolumes, key, nil)
		require.Equal(t, 401, r.status, key)
		require.NotContains(t, string(r.body), secret)
	}
	require.Equal(t, 200, n.send("GET", "/", "", nil).status)
	require.Equal(t, 200, n.send("GET", "/status", "", nil).status)
	n.refused("GET", "/nonsense", nil, 404, "not-found")
	n.refused("POST", wire.PathFolderCreate, `{`, 400, "invalid")
	n.refused("POST", wire.PathFolderCreate, `{"volume":"`+strings.Repeat("x", 5<<20)+`"}`, 400, "invalid")
	n.refused("POST", wire.PathFolderCreate, `{"volume":"nope","vfid":"`+vfid+`"}`, 404, "not-found")
	n.refused("POST", wire.PathFolderCreate, `{"volume":"disk","vfid":"user:x/y"}`, 400, "invalid")
}

func TestFoldersAndFiles(t *testing.T) {
	t.Parallel()
	cfg, path := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	n.refused("GET", wire.PathFolderUsage, request(""), 404, "not-found")
	n.ask("POST", wire.PathFolderCreate, request(""), 204)
	n.ask("POST", wire.PathFolderCreate, request(""), 204)

	list := read[wire.VolumeList](t, n.ask("GET", wire.PathVolumes, nil, 200))
	require.Len(t, list.Volumes, 1)
	require.Equal(t, path, list.Volumes[0].Path)
	require.Empty(t, list.Volumes[0].Problem)
	require.Positive(t, list.Volumes[0].CapacityBytes)

	n.ask("POST", wire.PathMkdir, request(`,"relpath":"a","parents":true`), 200)
	mixed := read[wire.ResultsReply](t, n.ask("POST", wire.PathMkdir, request(`,"relpath":["b/c","a","../x"],"parents":true`), 207))
	require.Len(t, mixed.Success, 1)
	require.Len(t, mixed.Failed, 2)
	n.ask("POST", wire.PathMkdir, request(`,"relpath":["a"]`), 422)
	n.ask("POST", wire.PathMkdir, request(`,"relpath":["a"],"exist_ok":true`), 200)
	n.refused("POST", wire.PathMkdir, request(`,"relpath":[]`), 400, "invalid")

	mount := read[wire.MountReply](t, n.ask("GET", wire.PathFolderMount, request(`,"subpath":"b"`), 200))
	require.Equal(t, filepath.Join(path, "11111111111111111111111111111111/22/22/2222222222222222222222222222/b"), mount.Path)
	require.DirExists(t, mount.Path)
	n.refused("GET", wire.PathFolderMount, request(`,"subpath":"gone"`), 404, "not-found")
	n.refused("GET", wire.PathFolderMount, request(`,"subpath":"../.."`), 400, "invalid")
	require.NoError(t, os.WriteFile(filepath.Join(mount.Path, "file"), []byte("hello"), 0o644))

	page := read[wire.ListReply](t, n.ask("POST", wire.PathList, request(`,"relpath":".","limit":1`), 200))
	require.Len(t, page.Items, 1)
	require.NotEmpty(t, page.Next)
	rest := read[wire.ListReply](t, n.ask("POST", wire.PathList, request(`,"relpath":".","after":"`+page.Next+`"`), 200))
	require.Len(t, rest.Items, 1)
	require.NotEqual(t, page.Items[0].Name, rest.Items[0].Name)
	require.Equal(t, "DIRECTORY", rest.Items[0].Type)
	require.Equal(t, "755", rest.Items[0].Stat.Mode)
	n.refused("POST", wire.PathList, request(`,"relpath":".","limit":1000000`), 400, "invalid")

	require.Equal(t, "hello", string(n.ask("POST", wire.PathFetch, request(`,"relpath":"b/file"`), 200).body))
	n.ask("POST", wire.PathRename, request(`,"relpath":"b/file","new_name":"datei"`), 204)
	n.refused("POST", wire.PathRename, request(`,"relpath":"b/datei","new_name":"../x"`), 400, "invalid")
	n.ask("POST", wire.PathMove, request(`,"src_relpath":"b/datei","dst_relpath":"a/z"`), 204)
	n.refused("POST", wire.PathMove, request(`,"src_relpath":"a/z","dst_relpath":"a/z"`), 409, "conflict")
	n.ask("POST", wire.PathMove, request(`,"src_relpath":"a/z","dst_relpath":"b"`), 204) // into the directory, as mv does
	require.Equal(t, "hello", string(n.ask("POST", wire.PathFetch, request(`,"relpath":"b/z"`), 200).body))
	n.ask("POST", wire.PathMove, request(`,"src_relpath":"b/z","dst_relpath":"."`), 204)
	n.ask("POST", wire.PathMove, request(`,"src_relpath":"z","dst_relpath":"a"`), 204)
	n.refused("POST", wire.PathRename, request(`,"relpath":"a/z","new_name":"../b"`), 400, "invalid")
	usage := read[wire.UsageReply](t, n.ask("GET", wire.PathFolderUsage, request(""), 200))
	require.Equal(t, int64(1), usage.FileCount)
	require.Equal(t, int64(5), usage.UsedBytes)
	require.True(t, usage.Complete)
	space := read[wire.SpaceReply](t, n.ask("GET", wire.PathFSUsage, request(""), 200))
	require.Positive(t, space.CapacityBytes)
	require.Contains(t, string(n.ask("GET", wire.PathHardware, request(""), 200).body), `"healthy"`)
	require.Contains(t, string(n.ask("GET", wire.PathMetric+"?volume=disk", nil, 200).body), `"metric":{}`)

	task := read[wire.TaskReply](t, n.ask("POST", wire.PathFolderClone, map[string]string{"src_volume": "disk", "src_vfid": vfid,
		"dst_vfid": strings.Replace(vfid, "22222222-", "33333333-", 1), "task_id": "clone-1"}, 202))
	require.Equal(t, "clone-1", task.TaskID)
	require.Equal(t, wire.TaskDone, n.ends("clone-1").State)
	n.refused("POST", wire.PathFolderClone, map[string]string{"src_volume": "disk", "dst_volume": "else", "src_vfid": vfid, "dst_vfid": vfid},
		400, "invalid")

	gone := read[wire.ResultsReply](t, n.ask("POST", wire.PathDelete, request(`,"relpaths":["a/z","a/none","."]`), 200))
	require.Len(t, gone.Success, 1)
	require.Len(t, gone.Failed, 2)
	later := read[wire.TaskReply](t, n.ask("POST", wire.PathDeleteAsync, request(`,"relpaths":["a","b"],"recursive":true`), 202))
	require.Equal(t, wire.TaskDone, n.ends(later.TaskID).State)
	empty := read[wire.ListReply](t, n.ask("POST", wire.PathList, request(`,"relpath":"."`), 200))
	require.Empty(t, empty.Items)
	n.refused("GET", wire.PathTask+"unknown", nil, 404, "not-found")
	n.ask("POST", wire.PathFolderDelete, request(`,"task_id":"del-1"`), 202)
	require.NoDirExists(t, mount.Path)
	require.Equal(t, wire.TaskDone, n.ends("del-1").State)
	n.ask("POST", wire.PathFolderDelete, request(`,"task_id":"del-1"`), 202)
	n.refused("POST", wire.PathImport, request(`,"relpath":".","store":{"endpoint":"https://127.0.0.1","bucket":"bucket"}`), 403, "denied")
}

func TestQuotaScopes(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	q := func(options string) string { return `{"volume":"disk","qsid":"` + scope + `"` + options + `}` }
	n.refused("GET", wire.PathScope, q(""), 404, "not-found")
	n.refused("PATCH", wire.PathScope, q(`,"options":{"limit_bytes":5}`), 404, "not-found")
	n.ask("POST", wire.PathScope, q(""), 204)
	require.Nil(t, read[wire.ScopeReply](t, n.ask("GET", wire.PathScope, q(""), 200)).LimitBytes)
	n.ask("PATCH", wire.PathScope, q(`,"options":{"limit_bytes":1000}`), 204)
	n.ask("POST", wire.PathScope, q(""), 204) // makes what is there, and leaves its limit alone
	require.Equal(t, int64(1000), *read[wire.ScopeReply](t, n.ask("GET", wire.PathScope, q(""), 200)).LimitBytes)
	n.ask("POST", wire.PathFolderCreate, request(""), 204)
	n.refused("POST", wire.PathUpload, request(`,"relpath":"f","size":100000`), 507, "exhausted")
	n.ask("DELETE", wire.PathScopeQuota, q(""), 204)
	require.Nil(t, read[wire.ScopeReply](t, n.ask("GET", wire.PathScope, q(""), 200)).LimitBytes)
	n.refused("POST", wire.PathScope, q(`,"options":{"limit_bytes":-5}`), 400, "invalid")
}

func TestVolumeThatHangsHarmsNoOther(t *testing.T) {
	t.Parallel()
	well, sick := memory.New(memory.Options{Name: "well"}), memory.New(memory.Options{Name: "sick"})
	cfg := config(t)
	n := run(t, cfg, storage.Deps{Clock: quick{chassis.RealClock()}, Volumes: map[string]volume.Volume{"well": well, "sick": sick}})
	on := func(name string) map[string]string { return map[string]string{"volume": name, "vfid": vfid} }
	for _, name := range []string{"well", "sick"} {
		n.ask("POST", wire.PathFolderCreate, on(name), 204)
	}
	resume := sick.Hang()
	answered := make(chan reply, 1)
	go func() { // under way when the volume is found to hang
		answered <- n.send("POST", wire.PathFolderCreate, wire.Key(secret, n.Name(), wire.ManagerKey), on("sick"))
	}()
	problem := func(name string) string {
		for _, v := range n.Volumes() {
			if v.Name == name {
				return v.Problem
			}
		}
		return "gone"
	}
	n.until("the problem is announced", func() bool { return problem("sick") != "" })
	require.Equal(t, 503, (await.Value(t, answered)).status)
	n.refused("POST", wire.PathFolderCreate, on("sick"), 503, "unavailable")
	// A look at a volume that is well is late where the machine is busy, and the next one makes it good.
	n.until("the other volume is used", func() bool {
		found := n.Findings()
		return problem("well") == "" && n.Ready(t.Context()) == nil && len(found) == 1 && found[0].Object == "local:sick" &&
			n.send("POST", wire.PathFolderCreate, wire.Key(secret, n.Name(), wire.ManagerKey), on("well")).status == 204
	})
	resume()
	n.until("the volume is used again", func() bool { return problem("sick") == "" })
	n.ask("POST", wire.PathFolderCreate, on("sick"), 204)
}

func TestVolumeThatIsNotMountedIsNotUsed(t *testing.T) {
	t.Parallel()
	cfg, path := onDisk(t)
	n := run(t, cfg, storage.Deps{})
	n.ask("POST", wire.PathFolderCreate, request(""), 204)
	n.stop()
	aside := path + "-elsewhere" // as if it was unmounted
	require.NoError(t, os.Rename(path, aside))
	require.NoError(t, os.Mkdir(path, 0o755))
	n = run(t, cfg, storage.Deps{Clock: quick{chassis.RealClock()}})
	p := n.refused("POST", wire.PathFolderCreate, request(""), 503, "unavailable")
	require.Contains(t, p.Msg, "marker")
	require.Contains(t, p.Next, "mount")
	require.Error(t, n.Ready(t.Context()))
	entries, err := os.ReadDir(path)
	require.NoError(t, err)
	require.Empty(t, entries, "nothing is written below the empty mount point")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Rename(aside, path))
	n.until("the volume is back", func() bool { return n.Volumes()[0].Problem == "" })
	n.ask("GET", wire.PathFolderUsage, request(""), 200)
}

// TestUploadHopsBetweenNodes sends one half of a file to each of two nodes of a proxy.
func TestUploadHopsBetweenNodes(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	one := run(t, cfg, storage.Deps{})
	cfg.Node, cfg.StateDir = "two", t.TempDir()
	two := run(t, cfg, storage.Deps{})
	one.tell(nil)
	two.tell(nil)
	one.ask("POST", wire.PathFolderCreate, request(""), 204)
	text := strings.Repeat("0123456789", 1000)
	asked := request(fmt.Sprintf(`,"relpath":"dir/f","size":%d,"rights":{"user":"u"}`, len(text)))
	token := read[wire.TokenReply](t, one.ask("POST", wire.PathUpload, asked, 200)).Token
	half := len(text) / 2
	for i, n := range []*node{one, two} {
		req, err := http.NewRequestWithContext(t.Context(), "PATCH", n.ClientURL()+"/upload?token="+token,
			strings.NewReader(text[i*half:(i+1)*half]))
		require.NoError(t, err)
		req.Header.Set("Tus-Resumable", "1.0.0")
		req.Header.Set("Content-Type", "application/offset+octet-stream")
		req.Header.Set("Upload-Offset", fmt.Sprint(i*half))
		resp, err := client.Do(req)
		require.NoError(t, err)
		body, _ := io.ReadAll(resp.Body)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 204, resp.StatusCode, string(body))
	}
	require.Equal(t, text, string(two.ask("POST", wire.PathFetch, request(`,"relpath":"dir/f"`), 200).body))
	asked = request(`,"relpath":"dir/f","rights":{"user":"u"}`)
	token = read[wire.TokenReply](t, two.ask("POST", wire.PathDownload, asked, 200)).Token
	resp, err := client.Get(one.ClientURL() + "/download?token=" + token)
	require.NoError(t, err)
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, text, string(body))
	archive := n3(vfid)
	require.NotEmpty(t, read[wire.TokenReply](t, one.ask("POST", wire.PathArchive, archive, 200)).Token)
}

func n3(vfid string) map[string]any {
	return map[string]any{"volume": "disk", "virtual_folder_id": vfid, "files": []string{"dir"}}
}

func TestAnnouncement(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "berth-st-") // short: sockets live below it
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd := embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, etcd.Service().Start(t.Context()))
	t.Cleanup(func() { _ = etcd.Service().Stop(context.Background()) })
	v := memory.New(memory.Options{Name: "v"})
	cfg := config(t)
	cfg.Proxy, cfg.Node = "px", "n1"
	n := run(t, cfg, storage.Deps{Etcd: etcd.Client(), Clock: quick{chassis.RealClock()}, Volumes: map[string]volume.Volume{"v": v}})
	seen := func() (p wire.Presence, there bool) {
		got, err := etcd.Client().Get(t.Context(), wire.PresencePath("/berth", "px", "n1"))
		for tries := 1; err != nil && tries < 5; tries++ { // etcd refuses what it could not answer within seconds
			t.Log(err)
			got, err = etcd.Client().Get(t.Context(), wire.PresencePath("/berth", "px", "n1"))
		}
		require.NoError(t, err)
		if len(got.Kvs) == 0 {
			return p, false
		}
		require.NotZero(t, got.Kvs[0].Lease)
		require.NotContains(t, string(got.Kvs[0].Value), secret)
		require.NoError(t, json.Unmarshal(got.Kvs[0].Value, &p))
		return p, true
	}
	var p wire.Presence
	n.until("the proxy announces itself", func() (ok bool) { p, ok = seen(); return ok })
	require.Equal(t, n.ManagerURL(), p.ManagerURL)
	require.Equal(t, n.ClientURL(), p.ClientURL)
	require.Equal(t, wire.Version, p.Protocol)
	require.Len(t, p.Volumes, 1)
	resume := v.Hang()
	n.until("the problem is announced", func() bool { p, ok := seen(); return ok && p.Volumes[0].Problem != "" })
	resume()
	n.until("its end is announced", func() bool { p, ok := seen(); return ok && p.Volumes[0].Problem == "" })
	// Somebody deletes the key, as an etcd that was restored from a backup would: it comes back.
	_, err = etcd.Client().Delete(t.Context(), wire.PresencePath("/berth", "px", "n1"))
	require.NoError(t, err)
	n.until("the proxy announces itself again", func() bool { _, ok := seen(); return ok })
	n.stop()
	_, there := seen()
	require.False(t, there, "an orderly stop takes the announcement back")
}

func TestProxyServesWithoutEtcd(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "berth-st-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	etcd := embedded.NewEtcd(dir, slog.New(slog.DiscardHandler))
	require.NoError(t, etcd.Service().Start(t.Context()))
	cfg, _ := onDisk(t)
	n := run(t, cfg, storage.Deps{Etcd: etcd.Client()})
	require.NoError(t, etcd.Service().Stop(context.Background()))
	n.ask("POST", wire.PathFolderCreate, request(""), 204)
	n.ask("GET", wire.PathVolumes, nil, 200)
}

func TestFindingsThroughTheListener(t *testing.T) {
	t.Parallel()
	cfg, _ := onDisk(t)
	_, err := storage.AskFindings(t.Context(), cfg)
	require.Error(t, err)
	n := run(t, cfg, storage.Deps{})
	cfg.ManagerListen = n.ManagerAddr()
	found, err := storage.AskFindings(t.Context(), cfg)
	require.NoError(t, err)
	require.Empty(t, found)
	cfg.Secret = chassis.NewSecret("some other secret text")
	_, err = storage.AskFindings(t.Context(), cfg)
	require.Error(t, err)
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change func(*storage.Config)
		want   string
	}{
		"proxy":  {func(c *storage.Config) { c.Proxy = "a:b" }, "storage.proxy"},
		"listen": {func(c *storage.Config) { c.ClientListen = "x" }, "storage.client_listen"},
		"url":    {func(c *storage.Config) { c.ManagerURL = "ftp://x" }, "storage.manager_url"},
		"backend": {func(c *storage.Config) {
			c.Volumes = map[string]storage.VolumeConfig{"v": {Backend: "tape", Path: "/x"}}
		}, "backend"},
		"path": {func(c *storage.Config) {
			c.Volumes = map[string]storage.VolumeConfig{"v": {Backend: "posix", Path: "x"}}
		}, "absolute"},
		"twice": {func(c *storage.Config) {
			c.Volumes = map[string]storage.VolumeConfig{"v": {Backend: "posix", Path: "/x"}, "w": {Backend: "posix", Path: "/x/"}}
		}, "same path"},
		"tls":   {func(c *storage.Config) { c.TLS.Cert = "x" }, "storage.tls"},
		"rate":  {func(c *storage.Config) { c.ReapRate = 0 }, "reap_rate"},
		"token": {func(c *storage.Config) { c.TokenLife = time.Second }, "token_life"},
		"uid":   {func(c *storage.Config) { c.UID = 0 }, "user 0"},
	} {
		cfg := storage.DefaultConfig()
		require.NoError(t, cfg.Validate())
		tc.change(&cfg)
		require.ErrorContains(t, cfg.Validate(), tc.want, name)
	}
	cfg := storage.DefaultConfig()
	require.ErrorContains(t, cfg.Complete(), "storage.secret")
	cfg.Secret = chassis.NewSecret("short")
	require.ErrorContains(t, cfg.Complete(), "storage.volumes")
	cfg.StateDir = t.TempDir()
	cfg.Volumes = map[string]storage.VolumeConfig{"v": {Backend: "posix", Path: "/x"}}
	_, err := storage.New(t.Context(), cfg, storage.Deps{})
	require.ErrorContains(t, err, "shorter")
}
