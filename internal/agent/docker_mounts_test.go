package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

// volume is a volume with one folder, whose files belong to 9001.
type volume struct {
	t      *testing.T
	root   string
	folder cluster.FolderMount
}

func newVolume(t *testing.T) *volume {
	v := &volume{t: t, root: t.TempDir(), folder: cluster.FolderMount{
		Folder: "0b5e4a3c-0000-4000-8000-000000000001", Name: "data", Host: "local:volume1", Scope: "user:0b5e4a3c-0000-4000-8000-000000000002",
		Usage: "general", Perm: cluster.ReadWrite, Subpath: ".", Target: "/home/work/data", OwnerUID: 9001, OwnerGID: 9001,
	}}
	v.folder.VolumePath = v.root
	require.NoError(t, os.MkdirAll(v.path("sub", "inner"), 0o755))
	require.NoError(t, os.WriteFile(v.path("sub", "inner", "file"), []byte("from outside\n"), 0o644))
	require.NoError(t, filepath.WalkDir(v.path(), func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 9001, 9001)
	}))
	return v
}

func (v *volume) path(elem ...string) string {
	ref, err := v.folder.Ref()
	require.NoError(v.t, err)
	return filepath.Join(append([]string{v.root, ref.Dir()}, elem...)...)
}

// at mounts the folder elsewhere in the container.
func (v *volume) at(target, subpath string, perm cluster.MountPermission) cluster.FolderMount {
	f := v.folder
	f.Target, f.Subpath, f.Perm = target, subpath, perm
	return f
}

func (v *volume) owner(name string) string {
	st, err := os.Lstat(v.path(name))
	require.NoError(v.t, err)
	sys := st.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%d:%d", sys.Uid, sys.Gid)
}

// shell runs a command in a kernel as its user.
func shell(t *testing.T, m *manager, id cluster.KernelID, script string) (string, int) {
	t.Helper()
	s, err := m.runner(id).Exec(t.Context(), run.ExecStart{Argv: []string{"sh", "-c", script}})
	require.NoError(t, err)
	defer s.Close()
	var out strings.Builder
	exit, err := s.Wait(&out, &out)
	require.NoError(t, err)
	return strings.TrimSpace(out.String()), exit.Code
}

// TestFoldersOnTheRealEngine: what a session sees, may write and leaves behind, under two users.
func TestFoldersOnTheRealEngine(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	m := newManager(t)
	h := newDockerHost(t, m)
	v := newVolume(t)
	h.startDocker()
	m.until("the engine answers", func() bool { return m.facts.EngineOK })
	for i, uid := range []int{9001, 1234} {
		id := kernelID(20 + i)
		d := onDocker(20 + i)
		d.Spec.UID, d.Spec.GID = uid, uid
		d.Spec.Mounts = []cluster.FolderMount{
			v.at("/home/work/data", ".", cluster.ReadWrite), v.at("/home/work/deep/look", ".", cluster.ReadOnly),
			v.at("/mnt/inner", "sub/inner", cluster.ReadWriteDelete),
		}
		m.want(d)
		m.until("it runs", func() bool { return m.phase(id) >= cluster.PhaseRunning })
		require.Equal(t, cluster.PhaseRunning, m.of(id).Phase, "%+v", m.of(id))
		out, code := shell(t, m, id, "id -u; cat data/sub/inner/file; stat -c %u:%g data/sub; "+
			"umask 022; echo $$ > data/new-$(id -u) && mkdir -p data/dir-$(id -u) && stat -c %u:%g data/new-$(id -u)")
		require.Zero(t, code, out)
		own := fmt.Sprintf("%d:%d", uid, uid)
		require.Equal(t, fmt.Sprintf("%d\nfrom outside\n%s\n%s", uid, own, own), out)
		require.Equal(t, "9001:9001", v.owner(fmt.Sprintf("new-%d", uid)), "owned on the volume by its owner")
		require.Equal(t, "9001:9001", v.owner(fmt.Sprintf("dir-%d", uid)))
		out, code = shell(t, m, id, "echo x > deep/look/sub/nope")
		require.NotZero(t, code)
		require.Contains(t, out, "Read-only file system")
		out, code = shell(t, m, id, "touch deep/mine && stat -c %u deep && cat /mnt/inner/file"+
			" && rm /mnt/inner/file && echo 'from outside' > /mnt/inner/file && echo $BACKENDAI_PERSISTENT_PATHS")
		require.Zero(t, code, out)
		require.Equal(t, fmt.Sprintf("%d\nfrom outside\n/home/work/data:/home/work/deep/look:/mnt/inner", uid), out)

		// The agent comes and goes: the session keeps its folder.
		h.stop()
		h.startDocker()
		m.until("it still runs", func() bool { return m.phase(id) == cluster.PhaseRunning })
		require.Eventually(t, func() bool { return h.agent.Ready(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
		out, code = shell(t, m, id, fmt.Sprintf("cat data/new-%d && echo again > data/again", uid))
		require.Zero(t, code, out)
		points, err := mount.Attached(filepath.Join(h.cfg.StateDir, "mounts"))
		require.NoError(t, err)
		require.Empty(t, points, "a running container has its own mounts")

		stop := stopped(20 + i)
		m.want(stop)
		m.until("it ends", func() bool { return m.phase(id) == cluster.PhaseEnded })
		require.FileExists(t, v.path(fmt.Sprintf("new-%d", uid)), "files stay after the session")
		require.NoError(t, os.Remove(v.path("again")))
	}
	require.Empty(t, m.told().HungVolumes)
	found, err := h.agent.Findings(t.Context())
	require.NoError(t, err)
	require.Empty(t, slicesWithout(found, "deletion"))

	// A folder that vanished is a named failure.
	gone := onDocker(30)
	f := v.folder
	f.Folder = "0b5e4a3c-0000-4000-8000-0000000000ff"
	gone.Spec.Mounts = []cluster.FolderMount{f}
	m.want(gone)
	m.until("it fails", func() bool { return m.phase(kernelID(30)) == cluster.PhaseEnded })
	o := m.of(kernelID(30))
	require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
	require.Contains(t, o.Detail, "mount folder data: the folder's directory is not on volume local:volume1")
}
