package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"berth.dev/berth/api"
)

// xfsVolume makes an XFS with project quotas in a file, mounts it, and takes both away when the test ends, whatever happens.
func xfsVolume(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting an XFS image takes root")
	}
	mkfs, err := exec.LookPath("mkfs.xfs")
	if err != nil {
		t.Skip("mkfs.xfs is missing; scripts/install-deps.sh test installs xfsprogs")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("/dev/loop-control is missing: this machine has no loop devices")
	}
	dir, err := os.MkdirTemp("", "berth-xfs-")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755)) // sessions are other users
	image, point := filepath.Join(dir, "image"), filepath.Join(dir, "mnt")
	require.NoError(t, os.Mkdir(point, 0o755))
	require.NoError(t, os.WriteFile(image, nil, 0o600))
	require.NoError(t, os.Truncate(image, 1<<30))
	out, err := exec.Command(mkfs, "-q", image).CombinedOutput()
	require.NoError(t, err, string(out))
	loops := func() string {
		out, _ := exec.Command("losetup", "-j", image).Output()
		return string(out)
	}
	out, err = exec.Command("mount", "-o", "loop,prjquota", image, point).CombinedOutput()
	if err != nil {
		for line := range strings.Lines(loops()) {
			device, _, _ := strings.Cut(line, ":")
			_ = exec.Command("losetup", "-d", device).Run()
		}
		t.Skipf("this machine mounts no XFS images with project quotas (it takes CAP_SYS_ADMIN and a kernel with CONFIG_XFS_QUOTA): %s", out)
	}
	t.Cleanup(func() {
		out, err := exec.Command("umount", point).CombinedOutput()
		if err != nil {
			_ = unix.Unmount(point, unix.MNT_DETACH) // the loop device goes with whoever holds it last
		}
		require.NoError(t, err, "something still holds the volume: %s", out)
		require.Eventually(t, func() bool { return loops() == "" }, patience, 50*time.Millisecond, "the loop device is free again")
	})
	return point
}

// quotaView is what a folder's user is told: what its scope holds and may hold (Limit -1: no limit), and the folder's own size.
type quotaView struct{ Used, Limit, Size int64 }

// What the web console asks about quotas: its storage page of one's own scopes, and the administrator's table and buttons.
const (
	askPanel = `query($project_quota_scope_id:String! $user_quota_scope_id:String! $storage_host_name:String! $skipQuotaScope:Boolean!){
		project_quota_scope:quota_scope(quota_scope_id:$project_quota_scope_id, storage_host_name:$storage_host_name)
			@skip(if: $skipQuotaScope){details{usage_bytes hard_limit_bytes} id}
		user_quota_scope:quota_scope(quota_scope_id:$user_quota_scope_id, storage_host_name:$storage_host_name)
			@skip(if: $skipQuotaScope){details{usage_bytes hard_limit_bytes} id}}`
	askTable = `query($quota_scope_id:String! $storage_host_name:String! $skip:Boolean!){
		quota_scope(storage_host_name:$storage_host_name, quota_scope_id:$quota_scope_id)
			@skip(if: $skip){id quota_scope_id storage_host_name details{hard_limit_bytes usage_bytes}}}`
	setScope = `mutation($quota_scope_id:String! $storage_host_name:String! $props:QuotaScopeInput!){
		set_quota_scope(quota_scope_id:$quota_scope_id, storage_host_name:$storage_host_name, props:$props){
			quota_scope{id quota_scope_id storage_host_name details{hard_limit_bytes}}}}`
	unsetScope = `mutation($quota_scope_id:String! $storage_host_name:String!){
		unset_quota_scope(quota_scope_id:$quota_scope_id, storage_host_name:$storage_host_name){
			quota_scope{id quota_scope_id storage_host_name details{hard_limit_bytes}}}}`
)

// scopeReply is a scope as the console reads it. What is null is unknown, or no limit.
type scopeReply struct {
	ID      string
	Scope   string `json:"quota_scope_id"`
	Host    string `json:"storage_host_name"`
	Details struct {
		Used  *int64 `json:"usage_bytes"`
		Limit *int64 `json:"hard_limit_bytes"`
	}
}

// tenant is a user with one folder on the volume with quotas.
type tenant struct {
	p       *platform
	env     []string
	folder  string
	scope   string // of quotas
	project string // the project's, which is empty
	console *console
	api     *api.Client
}

const quotaHost = "local:volume1"

// tenant makes the folder for the user that env, as in client.env, names.
func (p *platform) tenant(env []string, folder string) *tenant {
	p.t.Helper()
	x := &tenant{p: p, env: env, folder: folder, console: newConsole(p.t, env)}
	cfg, err := api.LoadConfig(api.Lookup{Getenv: func(name string) string {
		for _, line := range env {
			if value, ok := strings.CutPrefix(line, name+"="); ok {
				return value
			}
		}
		return ""
	}})
	require.NoError(p.t, err)
	x.api, err = api.New(cfg)
	require.NoError(p.t, err)
	x.must("folder", "create", folder, "--host", quotaHost)
	x.scope = x.info().QuotaScope
	require.Regexp(p.t, "^user:[0-9a-f-]{36}$", x.scope)
	var me struct {
		User struct{ Groups []struct{ ID string } }
	}
	x.console.graph(&me, `query{user{groups{id}}}`, nil)
	require.NotEmpty(p.t, me.User.Groups)
	x.project = "project:" + me.User.Groups[0].ID
	return x
}

// berth runs the command line as the user.
func (x *tenant) berth(args ...string) result {
	x.p.t.Helper()
	ctx, cancel := context.WithTimeout(x.p.t.Context(), patience)
	defer cancel()
	return x.within(ctx, args...)
}

func (x *tenant) within(ctx context.Context, args ...string) result {
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(x.p.environ(), x.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil || ctx.Err() != nil {
		return result{stdout.String(), fmt.Sprintf("%sberth %s did not end: %v", stderr.String(), strings.Join(args, " "), err), -1}
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func (x *tenant) must(args ...string) string {
	x.p.t.Helper()
	r := x.berth(args...)
	require.Zero(x.p.t, r.code, "berth %s: %s%s", strings.Join(args, " "), r.stdout, r.stderr)
	return r.stdout
}

func (x *tenant) info() api.Folder {
	x.p.t.Helper()
	f, err := x.api.Folder(x.p.t.Context(), x.folder)
	require.NoError(x.p.t, err)
	return f
}

// inside runs a script in the user's session "writer".
func (x *tenant) inside(script string) result {
	x.p.t.Helper()
	return x.berth("session", "exec", "writer", "--", "sh", "-c", script)
}

// at is where a file of the folder is inside of sessions.
func (x *tenant) at(name string) string { return "/home/work/" + x.folder + "/" + name }

func (x *tenant) dd(name string, mebibytes int) result {
	x.p.t.Helper()
	return x.inside(fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d conv=fsync", x.at(name), mebibytes))
}

// asks has the console ask for the user's scope, as its page and its table do.
func (x *tenant) asks() (page, table scopeReply) {
	x.p.t.Helper()
	var panel struct {
		Project scopeReply `json:"project_quota_scope"`
		User    scopeReply `json:"user_quota_scope"`
	}
	x.console.graph(&panel, askPanel, map[string]any{"project_quota_scope_id": x.project, "user_quota_scope_id": x.scope,
		"storage_host_name": quotaHost, "skipQuotaScope": false})
	require.NotNil(x.p.t, panel.Project.Details.Used)
	require.Zero(x.p.t, *panel.Project.Details.Used, "nobody wrote for the project")
	var one struct {
		Scope scopeReply `json:"quota_scope"`
	}
	x.console.graph(&one, askTable, map[string]any{"quota_scope_id": x.scope, "storage_host_name": quotaHost, "skip": false})
	require.Equal(x.p.t, []string{x.scope, quotaHost}, []string{one.Scope.Scope, one.Scope.Host})
	return panel.User, one.Scope
}

// quota asks in every way until all of them tell the same: they ask one after the other.
func (x *tenant) quota() (v quotaView) {
	x.p.t.Helper()
	value := func(n *int64) int64 {
		if n == nil {
			return -1
		}
		return *n
	}
	x.p.eventually("all ways to ask for a quota tell the same", func() bool {
		info := x.info()
		told, err := x.api.FolderQuota(x.p.t.Context(), info.FolderSummary)
		require.NoError(x.p.t, err)
		require.False(x.p.t, told.LowerBound)
		page, table := x.asks()
		require.NotNil(x.p.t, info.UsedBytes)
		require.NotNil(x.p.t, told.UsedBytes)
		v = quotaView{*told.UsedBytes, value(told.LimitBytes), *info.UsedBytes}
		for _, r := range []scopeReply{page, table} {
			if value(r.Details.Used) != v.Used || value(r.Details.Limit) != v.Limit {
				return false
			}
		}
		return true
	})
	return v
}

// until waits for what the user is told.
func (x *tenant) until(t *testing.T, what string, ok func(q quotaView) bool) quotaView {
	t.Helper()
	var q quotaView
	defer func() { t.Logf("%s: %+v", what, q) }()
	x.p.eventually(what, func() bool { q = x.quota(); return ok(q) })
	return q
}

// exact waits until the user is told what du counts in the scope's directory, to the byte.
func (x *tenant) exact(t *testing.T, volume string) quotaView {
	t.Helper()
	dir := filepath.Join(volume, strings.ReplaceAll(strings.TrimPrefix(x.scope, "user:"), "-", ""))
	return x.until(t, "what "+x.folder+"'s user is told is what is allocated", func(q quotaView) bool { return q.Used == diskUsed(t, dir) })
}

// limit has the administrator's console set the limit of the user's scope, or take it away.
func (x *tenant) limit(admin *tenant, bytes int64) {
	x.p.t.Helper()
	vars := map[string]any{"quota_scope_id": x.scope, "storage_host_name": quotaHost}
	var set struct {
		Set struct {
			Scope scopeReply `json:"quota_scope"`
		} `json:"set_quota_scope"`
		Unset struct {
			Scope scopeReply `json:"quota_scope"`
		} `json:"unset_quota_scope"`
	}
	if bytes < 0 {
		admin.console.graph(&set, unsetScope, vars)
		require.Equal(x.p.t, x.scope, set.Unset.Scope.Scope)
		return
	}
	vars["props"] = map[string]any{"hard_limit_bytes": bytes}
	admin.console.graph(&set, setScope, vars)
	require.NotNil(x.p.t, set.Set.Scope.Details.Limit)
	require.Equal(x.p.t, bytes, *set.Set.Scope.Details.Limit)
}

func (p *platform) folderInfo(name string) api.Folder {
	p.t.Helper()
	var f api.Folder
	require.NoError(p.t, json.Unmarshal([]byte(p.must("folder", "info", name, "--json")), &f))
	return f
}

// client talks to the cluster as its administrator.
func (p *platform) client() (*api.Client, error) {
	cfg, err := api.LoadConfig(api.Lookup{StateDir: p.dir})
	if err != nil {
		return nil, err
	}
	return api.New(cfg)
}

func (p *platform) graphql(query string, variables map[string]any, into any) {
	p.t.Helper()
	c, err := p.client()
	require.NoError(p.t, err)
	require.NoError(p.t, c.GraphQL(p.t.Context(), query, variables, into))
}

// TestQuotaStopsSessions limits a user on an XFS volume: the kernel stops what runs in sessions, the proxy stops uploads,
// everybody sees the same numbers, and another user notices nothing.
func TestQuotaStopsSessions(t *testing.T) {
	t.Parallel()
	needEngine(t)
	volume := xfsVolume(t) // before the cluster, so that it goes after it
	dir, err := os.MkdirTemp("", "berth-e2e-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755))
	config := filepath.Join(dir, "berth.toml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "[storage.volumes.volume1]\nbackend = \"xfs\"\npath = %q\n", volume), 0o600))
	p := &platform{t: t, dir: dir}
	t.Cleanup(func() {
		if t.Failed() {
			p.dumpLog()
		}
		p.try("down", "--sessions")
		_ = os.RemoveAll(dir)
	})
	p.must("up", "--detach", "--ports", "auto", "--config", config)
	p.eventually("the volume is known", func() bool { return strings.Contains(p.must("folder", "hosts"), quotaHost) })
	admin := p.tenant(p.env(), "data")
	friend := p.tenant(p.member("friend"), "theirs")
	owner := newOfficial(t, p.env())

	const mib, limit = 1 << 20, 64 << 20
	p.must("folder", "quota", "data", "--limit", "80m")
	require.EqualValues(t, 80*mib, admin.quota().Limit)
	p.must("folder", "quota", "data", "--limit", "none")
	require.EqualValues(t, -1, admin.quota().Limit)
	admin.limit(admin, limit)
	require.EqualValues(t, limit, admin.quota().Limit)
	require.Less(t, admin.exact(t, volume).Used, int64(mib))
	require.EqualValues(t, -1, friend.quota().Limit)
	for _, x := range []*tenant{admin, friend} {
		x.must("session", "create", "python", "--name", "writer", "-v", x.folder+":/home/work/"+x.folder)
	}
	onVolume := func(name string) string {
		found := glob(t, filepath.Join(volume, "*", "*", "*", "*", name))
		require.Len(t, found, 1, name)
		return found[0]
	}
	size := func(name string) int64 {
		info, err := os.Stat(onVolume(name))
		require.NoError(t, err)
		return info.Size()
	}
	stopped := func(t *testing.T, r result) {
		t.Helper()
		require.NotZero(t, r.code, r.stdout+r.stderr)
		require.Regexp(t, "No space left on device|Disk quota exceeded", r.stdout+r.stderr)
	}

	t.Run("a session is stopped at the limit", func(t *testing.T) {
		before := friend.exact(t, volume)
		stopped(t, admin.dd("big", 200))
		big := size("big")
		require.LessOrEqual(t, big, int64(limit))
		require.Greater(t, big, int64(limit-4*mib))
		// Directories and our own files of the scope are counted too: some blocks.
		q := admin.exact(t, volume)
		require.GreaterOrEqual(t, q.Used, big)
		require.LessOrEqual(t, q.Used, big+mib)
		require.LessOrEqual(t, q.Used, int64(limit))
		admin.until(t, "the folder's size is that of its file", func(q quotaView) bool { return q.Size == big })
		require.Contains(t, owner.must("vfolder", "info", "data"), "Number of files: 1\n")
		words := p.must("folder", "quota", "data")
		require.Regexp(t, `limit +64(\.0)? MiB`, words)
		require.Regexp(t, `used +6[34](\.\d)? MiB`, words)
		require.Regexp(t, `size +6[34](\.\d)? MiB`, p.must("folder", "info", "data"))
		r := admin.inside("df -B1 --output=size,avail " + admin.at("") + " | tail -n 1")
		var room, left int64
		_, err := fmt.Sscan(r.stdout, &room, &left)
		require.NoError(t, err, r.stdout+r.stderr)
		require.EqualValues(t, limit, room, "a session sees its limit as the size of its disk")
		require.Equal(t, limit-q.Used, left)
		stopped(t, admin.inside("head -c 1000000 /dev/zero >"+admin.at("more")))
		require.Zero(t, admin.inside("rm -f "+admin.at("more")).code)
		require.Equal(t, before, friend.quota(), "another user's scope is what it was")
	})
	t.Run("another user has a limit of her own", func(t *testing.T) {
		full := admin.quota()
		require.Zero(t, friend.dd("first", 100).code, "more than the first user may have, who is full")
		q := friend.exact(t, volume)
		require.GreaterOrEqual(t, q.Used, int64(100*mib))
		require.Less(t, q.Used, int64(101*mib))
		require.EqualValues(t, -1, q.Limit)
		friend.limit(admin, 120*mib)
		stopped(t, friend.dd("second", 40))
		require.LessOrEqual(t, size("second"), int64(20*mib))
		require.Greater(t, size("second"), int64(16*mib))
		require.LessOrEqual(t, friend.exact(t, volume).Used, int64(120*mib))
		friend.until(t, "the folder's size is that of its files", func(q quotaView) bool { return q.Size == size("first")+size("second") })
		require.Equal(t, full, admin.quota(), "the first user's scope is what it was")

		// She learns nothing of others, and may not give herself more.
		for _, query := range []string{askTable, setScope, unsetScope} {
			for _, scope := range []string{admin.scope, friend.scope} {
				if query == askTable && scope == friend.scope {
					continue
				}
				vars := map[string]any{"quota_scope_id": scope, "storage_host_name": quotaHost, "skip": false,
					"props": map[string]any{"hard_limit_bytes": 1 << 30}}
				if query != setScope {
					delete(vars, "props")
				}
				body, err := json.Marshal(map[string]any{"query": query, "variables": vars})
				require.NoError(t, err)
				status, text := friend.console.try("POST", "/admin/gql", string(body))
				require.True(t, status != 200 || strings.Contains(text, `"errors"`), "%d %s", status, text)
				require.NotContains(t, text, fmt.Sprint(full.Used))
			}
		}
		require.NotZero(t, friend.berth("folder", "quota", "theirs", "--limit", "none").code)
		require.EqualValues(t, 120*mib, friend.quota().Limit)
		require.EqualValues(t, limit, admin.quota().Limit)

		// Without a limit of the scope's own that of the policy holds.
		policy := func(bytes int64) {
			t.Helper()
			p.sql(`UPDATE user_resource_policies SET max_quota_scope_size = $1 WHERE name = 'default'`, bytes)
		}
		policy(128 * mib)
		require.EqualValues(t, 120*mib, friend.quota().Limit, "her own limit comes first")
		friend.limit(admin, -1)
		require.EqualValues(t, 128*mib, friend.quota().Limit)
		policy(144 * mib) // the manager finds that by itself; the last part of the story looks
	})
	t.Run("an upload beyond the limit is refused and nothing is lost", func(t *testing.T) {
		require.NotZero(t, admin.inside("echo original >"+admin.at("kept")).code, "not even a name fits")
		r := admin.inside("truncate -s 50M " + admin.at("big") + " && echo original >" + admin.at("kept"))
		require.Zero(t, r.code, r.stderr)
		admin.until(t, "there is room again", func(q quotaView) bool { return q.Used < 52*mib })
		owner.write("kept", strings.Repeat("x", 20*mib))
		words := owner.refused("vfolder", "upload", "data", "kept")
		t.Logf("official client: %s", words)
		require.Contains(t, words, "quota")
		r = p.run("", "cp", filepath.Join(owner.dir, "kept"), "data:kept")
		t.Logf("berth cp: %s", r.stderr)
		require.NotZero(t, r.code)
		require.Contains(t, r.stdout+r.stderr, "quota")
		require.NotContains(t, r.stderr, "goroutine")
		require.Equal(t, "original\n", p.must("folder", "cat", "data:kept"))
		require.Equal(t, "original\n", admin.inside("cat "+admin.at("kept")).stdout)
		require.Less(t, admin.exact(t, volume).Used, int64(52*mib), "what was refused takes no room")
	})
	t.Run("an upload that meets the limit in the middle", func(t *testing.T) {
		// Both were told that there is room; it is enough for one.
		owner.write("one", strings.Repeat("1", 10*mib))
		owner.write("two", strings.Repeat("2", 10*mib))
		a, b := make(chan result, 1), make(chan result, 1)
		go func() { a <- p.run("", "cp", "--force", filepath.Join(owner.dir, "one"), "data:one") }()
		go func() { b <- p.run("", "cp", "--force", filepath.Join(owner.dir, "two"), "data:two") }()
		for name, r := range map[string]result{"one": <-a, "two": <-b} {
			t.Logf("%s: %d %s", name, r.code, r.stderr)
			if r.code != 0 {
				require.Contains(t, r.stderr, "quota")
				require.NotContains(t, p.must("folder", "ls", "data"), name)
				continue
			}
			text, err := os.ReadFile(onVolume(name))
			require.NoError(t, err)
			require.Equal(t, owner.read(name), string(text))
		}
		require.Equal(t, "original\n", p.must("folder", "cat", "data:kept"))
		for _, f := range glob(t, filepath.Join(volume, "*", ".berth", "uploads", "*")) {
			info, err := os.Stat(f)
			require.NoError(t, err)
			require.Zero(t, info.Size(), "what was refused takes no room: %s", f)
		}
		require.Less(t, admin.exact(t, volume).Used, int64(61*mib))
	})
	t.Run("a session cannot leave its quota", func(t *testing.T) {
		// The owner of a file may give it to another project, or none, where nothing keeps it from that.
		p.must("session", "create", "python", "--name", "thief", "-v", "data:/home/work/data")
		r := p.run("", "session", "exec", "thief", "--", "python3", "-c", leaveProject)
		t.Logf("thief: %d %s%s", r.code, r.stdout, r.stderr)
		require.Equal(t, 3, strings.Count(r.stdout, "refused"))
		require.NotContains(t, r.stdout, "left")
		before := diskUsed(t, volume) - admin.exact(t, volume).Used
		stopped(t, admin.dd("bigger", 200))
		require.LessOrEqual(t, admin.exact(t, volume).Used, int64(limit))
		require.Less(t, diskUsed(t, volume), before+limit+mib, "nobody took more than the limit from the volume")
		require.Zero(t, admin.inside("rm -f "+admin.at("bigger")).code)
	})
	t.Run("after deleting there is room", func(t *testing.T) {
		require.Zero(t, admin.inside("rm "+admin.at("big")).code)
		admin.until(t, "what a session deletes is free", func(q quotaView) bool { return q.Used < 24*mib })
		require.Zero(t, admin.dd("again", 30).code)
		p.must("folder", "rm", "--yes", "data:again")
		admin.until(t, "what was deleted for good is free", func(q quotaView) bool { return q.Used < 24*mib })
		owner.must("vfolder", "upload", "data", "kept")
		text, err := os.ReadFile(onVolume("kept"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(text, bytes.Repeat([]byte("x"), 20*mib)))
		require.Zero(t, admin.inside("rm "+admin.at("kept")+" && rm -f "+admin.at("one")+" "+admin.at("two")).code)
		admin.until(t, "the folder is empty", func(q quotaView) bool { return q.Used < mib && q.Size == 0 })
	})
	t.Run("a limit that changes holds for what runs", func(t *testing.T) {
		// One process with one open file all along; what it was refused it tries again.
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		ended := make(chan result, 1)
		go func() {
			ended <- admin.within(ctx, "session", "exec", "writer", "--", "python3", "-c", persists, admin.at("log"), fmt.Sprint(200*mib))
		}()
		defer func() { cancel(); <-ended }()
		grows := func(to int64) {
			t.Helper()
			require.Eventually(t, func() bool {
				found := glob(t, filepath.Join(volume, "*", "*", "*", "*", "log"))
				return len(found) == 1 && size("log") > to-4*mib
			}, patience, 50*time.Millisecond, "the file has %d bytes", to)
			require.LessOrEqual(t, size("log"), to)
			require.LessOrEqual(t, admin.exact(t, volume).Used, to)
		}
		grows(limit)
		admin.limit(admin, 96*mib)
		grows(96 * mib)

		// Below what is used: nothing more, nothing lost, and the truth is told.
		admin.limit(admin, 80*mib)
		stopped(t, admin.inside("head -c 100000 /dev/zero >"+admin.at("more")))
		q := admin.exact(t, volume)
		require.EqualValues(t, 80*mib, q.Limit)
		require.Greater(t, q.Used, q.Limit)
		require.Greater(t, size("log"), int64(92*mib))
		r := p.run("", "cp", filepath.Join(owner.dir, "one"), "data:one")
		require.NotZero(t, r.code)
		require.Contains(t, r.stdout+r.stderr, "quota")
		require.Zero(t, admin.inside("rm -f "+admin.at("more")).code, "what is over its limit can be deleted")

		admin.limit(admin, -1)
		require.EqualValues(t, 144*mib, admin.quota().Limit, "the policy's")
		grows(144 * mib)
		admin.limit(admin, 512*mib)
		r = <-ended
		ended <- r // for whoever waits too
		require.Zero(t, r.code, r.stdout+r.stderr)
		require.Regexp(t, "^(28|122)( (28|122))* done\n$", r.stdout, "what it was refused with")
		require.EqualValues(t, 200*mib, size("log"))
		q = admin.exact(t, volume)
		require.EqualValues(t, 512*mib, q.Limit)
		require.GreaterOrEqual(t, q.Used, int64(200*mib))
		admin.until(t, "the folder's size is that of its file", func(q quotaView) bool { return q.Size == 200*mib })

		friend.until(t, "the policy's new limit holds", func(q quotaView) bool { return q.Limit == 144*mib })
		stopped(t, friend.dd("second", 100))
		require.EqualValues(t, 100*mib, size("first"))
		require.Greater(t, size("second"), int64(40*mib))
		require.LessOrEqual(t, friend.exact(t, volume).Used, int64(144*mib))
	})
	p.clean()
}

// persists writes a file of so many bytes; where it is refused it says why, once for each time, and tries again.
const persists = `
import os, sys, time
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT)
at, refused = 0, False
while at < int(sys.argv[2]):
    try:
        at += os.pwrite(fd, bytes(min(1 << 20, int(sys.argv[2]) - at)), at)
        os.fsync(fd)
        refused = False
    except OSError as e:
        if not refused:
            print(e.errno, end=" ", flush=True)
        refused = True
        time.sleep(0.05)
print("done")
`

// leaveProject tries what xfs_io -c chproj does, on a file that the session owns.
const leaveProject = `
import fcntl, os, struct
def attempt(path, get, set, change):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, set, change(fcntl.ioctl(fd, get, b"\0" * 28)))
        print("left", path)
    except OSError as e:
        print("refused", path, e.errno)
def project(x):
    return x[:12] + struct.pack("I", 0) + x[16:]
def inherit(x):
    return struct.pack("I", struct.unpack("I", x[:4])[0] & ~0x20000000) + x[4:]
attempt("/home/work/data/kept", 0x801c581f, 0x401c5820, project)
attempt("/home/work/data", 0x801c581f, 0x401c5820, project)
attempt("/home/work/data", 0x80086601, 0x40086602, inherit)
`

// diskUsed are the allocated bytes of a file system, as du counts them.
func diskUsed(t *testing.T, path string) int64 {
	t.Helper()
	var n int64
	out, err := exec.Command("du", "-sxB1", path).Output()
	require.NoError(t, err)
	_, err = fmt.Sscan(string(out), &n)
	require.NoError(t, err)
	return n
}
