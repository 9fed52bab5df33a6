package e2e_test

import (
	"bytes"
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

// quotaView is what the ways to ask tell of a folder's scope. quota has them agree: ways to ask tell of a folder's scope; they have to agree.
type quotaView struct{ Used, Limit, Size int64 }

func (p *platform) quota(folder string) quotaView {
	p.t.Helper()
	var told api.Quota
	require.NoError(p.t, json.Unmarshal([]byte(p.must("folder", "quota", folder, "--json")), &told))
	require.NotNil(p.t, told.UsedBytes)
	require.NotNil(p.t, told.LimitBytes)
	require.False(p.t, told.LowerBound)
	info := p.folderInfo(folder)
	require.NotNil(p.t, info.UsedBytes)
	var g struct {
		Scope struct {
			Details struct {
				Used  int64 `json:"usage_bytes"`
				Limit int64 `json:"hard_limit_bytes"`
			} `json:"details"`
		} `json:"quota_scope"`
	}
	p.graphql(`query($h:String!,$s:String!){quota_scope(storage_host_name:$h,quota_scope_id:$s){details{usage_bytes hard_limit_bytes}}}`,
		map[string]any{"h": info.Host, "s": info.QuotaScope}, &g)
	require.Equal(p.t, *told.LimitBytes, g.Scope.Details.Limit)
	require.Equal(p.t, *told.UsedBytes, g.Scope.Details.Used)
	return quotaView{*told.UsedBytes, *told.LimitBytes, *info.UsedBytes}
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
// and everybody sees the same numbers.
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
	p.eventually("the volume is known", func() bool { return strings.Contains(p.must("folder", "hosts"), "local:volume1") })
	owner := newOfficial(t, p.env())

	const mib, limit = 1 << 20, 64 << 20
	p.must("folder", "create", "data", "--host", "local:volume1")
	p.must("folder", "quota", "data", "--limit", "80m")
	require.EqualValues(t, 80*mib, p.quota("data").Limit)
	f := p.folderInfo("data")
	var set json.RawMessage
	p.graphql(`mutation($h:String!,$s:String!,$b:BigInt){set_quota_scope(storage_host_name:$h,quota_scope_id:$s,props:{hard_limit_bytes:$b}){quota_scope{id}}}`,
		map[string]any{"h": f.Host, "s": f.QuotaScope, "b": limit}, &set)
	require.EqualValues(t, limit, p.quota("data").Limit)
	require.Less(t, p.quota("data").Used, int64(mib))

	p.must("session", "create", "python", "--name", "writer", "-v", "data:/home/work/data")
	inside := func(script string) result { return p.run("", "session", "exec", "writer", "--", "sh", "-c", script) }
	dd := func(name string, mebibytes int) result {
		return inside(fmt.Sprintf("dd if=/dev/zero of=/home/work/data/%s bs=1M count=%d conv=fsync", name, mebibytes))
	}
	onVolume := func(name string) string {
		found := glob(t, filepath.Join(volume, "*", "*", "*", "*", name))
		require.Len(t, found, 1, name)
		return found[0]
	}
	used := func(what string, ok func(q quotaView) bool) {
		t.Helper()
		var q quotaView
		defer func() { t.Logf("%s: %+v", what, q) }()
		p.eventually(what, func() bool { q = p.quota("data"); return ok(q) })
	}

	t.Run("a session is stopped at the limit", func(t *testing.T) {
		r := dd("big", 200)
		require.NotZero(t, r.code, r.stdout+r.stderr)
		require.Regexp(t, "No space left on device|Disk quota exceeded", r.stdout+r.stderr)
		info, err := os.Stat(onVolume("big"))
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), int64(limit))
		require.Greater(t, info.Size(), int64(limit-4*mib))
		// Directories and our own files of the scope are counted too: some blocks.
		q := p.quota("data")
		require.GreaterOrEqual(t, q.Used, info.Size())
		require.LessOrEqual(t, q.Used, int64(limit))
		used("the folder's size is that of its file", func(q quotaView) bool { return q.Size == info.Size() })
		r = inside("head -c 1000000 /dev/zero >/home/work/data/more; stat -c %s /home/work/data/more; df -B1 --output=size,avail /home/work/data")
		t.Logf("more: %s%s", r.stdout, r.stderr)
		require.Regexp(t, "No space left on device|Disk quota exceeded", r.stdout+r.stderr)
		require.Zero(t, inside("rm -f /home/work/data/more").code)
	})
	t.Run("an upload beyond the limit is refused and nothing is lost", func(t *testing.T) {
		require.NotZero(t, inside("echo original >/home/work/data/kept").code, "not even a name fits")
		r := inside("truncate -s 50M /home/work/data/big && echo original >/home/work/data/kept")
		require.Zero(t, r.code, r.stderr)
		used("there is room again", func(q quotaView) bool { return q.Used < 52*mib })
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
		require.Equal(t, "original\n", inside("cat /home/work/data/kept").stdout)
		used("what was refused takes no room", func(q quotaView) bool { return q.Used < 52*mib })
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
		require.Less(t, p.quota("data").Used, int64(61*mib))
	})
	t.Run("a session cannot leave its quota", func(t *testing.T) {
		// The owner of a file may give it to another project, or none, where nothing keeps it from that.
		p.must("session", "create", "python", "--name", "thief", "-v", "data:/home/work/data")
		r := p.run("", "session", "exec", "thief", "--", "python3", "-c", leaveProject)
		t.Logf("thief: %d %s%s", r.code, r.stdout, r.stderr)
		require.Equal(t, 3, strings.Count(r.stdout, "refused"))
		require.NotContains(t, r.stdout, "left")
		r = dd("bigger", 200)
		require.NotZero(t, r.code)
		require.LessOrEqual(t, p.quota("data").Used, int64(limit))
		require.Less(t, diskUsed(t, volume), int64(limit+16*mib), "nobody took more than the limit from the volume")
		require.Zero(t, inside("rm -f /home/work/data/bigger").code)
	})
	t.Run("after deleting there is room", func(t *testing.T) {
		require.Zero(t, inside("rm /home/work/data/big").code)
		used("what a session deletes is free", func(q quotaView) bool { return q.Used < 24*mib })
		require.Zero(t, dd("again", 30).code)
		p.must("folder", "rm", "--yes", "data:again")
		used("what was deleted for good is free", func(q quotaView) bool { return q.Used < 24*mib })
		owner.must("vfolder", "upload", "data", "kept")
		text, err := os.ReadFile(onVolume("kept"))
		require.NoError(t, err)
		require.True(t, bytes.Equal(text, bytes.Repeat([]byte("x"), 20*mib)))
		q := p.quota("data")
		p.must("folder", "quota", "data", "--limit", "none")
		var told api.Quota
		require.NoError(t, json.Unmarshal([]byte(p.must("folder", "quota", "data", "--json")), &told))
		require.Nil(t, told.LimitBytes)
		require.Equal(t, q.Used, *told.UsedBytes)
		require.Zero(t, dd("large", 100).code)
	})
	p.clean()
}

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
