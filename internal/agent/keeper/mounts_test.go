package keeper_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/mount"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// mounts is a host's mounts in memory; like those of the kernel they outlive the agent.
type mounts struct {
	mu       sync.Mutex
	attached map[cluster.KernelID][]mount.Bind
	err      error // of Prepare
	uids     []int
}

func (m *mounts) Prepare(_ context.Context, id cluster.KernelID, uid, _ int, folders []cluster.FolderMount) ([]mount.Bind, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attached, id)
	if m.err != nil {
		m.attached[id] = nil // half of it
		return nil, m.err
	}
	m.uids = append(m.uids, uid)
	var out []mount.Bind
	for _, f := range folders {
		out = append(out, mount.Bind{Source: filepath.Join("/mounts", string(id), f.Name), Target: f.Target, ReadOnly: !f.Perm.CanWrite()})
	}
	m.attached[id] = out
	return out, nil
}

func (m *mounts) Release(id cluster.KernelID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attached, id)
	return nil
}

func (m *mounts) List() (out []cluster.KernelID, _ []string, _ error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id := range m.attached {
		out = append(out, id)
	}
	return out, nil, nil
}

func (m *mounts) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.attached)
}

func (m *mounts) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func withFolder(d *cluster.DesiredKernel) {
	d.Spec.Mounts = []cluster.FolderMount{
		{Name: "deep", Target: "/home/work/data/deep", Perm: cluster.ReadWrite, Subpath: "."},
		{Name: "data", Target: "/home/work/data", Perm: cluster.ReadOnly, Subpath: "."},
		{Name: "model", Target: "/models", Perm: cluster.ReadWrite, Subpath: "."},
	}
}

func TestFoldersReachTheContainer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1, withFolder, func(d *cluster.DesiredKernel) { d.Spec.UID = 4321 }))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []int{4321}, r.mounts.uids, "the session's user")
	spec, ok := r.engine.Spec(scope, agent, kernelID(1))
	require.True(t, ok)
	dir := "/mounts/" + string(kernelID(1))
	require.Equal(t, []runtime.Mount{
		{Source: dir + "/data", Target: "/home/work/data", ReadOnly: true},
		{Source: dir + "/deep", Target: "/home/work/data/deep"},
		{Source: dir + "/model", Target: "/models"},
	}, spec.Mounts[len(spec.Mounts)-3:], "outer ones first")
	require.DirExists(t, filepath.Join(r.dir, "kernels", string(kernelID(1)), "work", "data", "deep"), "mount points in the home are the user's")
	env, err := filepath.Glob(filepath.Join(r.dir, "kernels", string(kernelID(1)), "config", "environ.txt"))
	require.NoError(t, err)
	require.Len(t, env, 1)
	text, err := os.ReadFile(env[0])
	require.NoError(t, err)
	require.Contains(t, string(text), "BACKENDAI_PERSISTENT_PATHS=/home/work/data/deep:/home/work/data:/models\n")

	require.Zero(t, r.mounts.count(), "a running container has its own")
	r.kill()
	r.start()
	r.want(true, desired(1, withFolder))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Len(t, r.mounts.uids, 1, "what runs is not mounted again")
	r.want(false, stopped(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonUserRequested, o.Reason)
	require.Zero(t, r.mounts.count())
}

// TestHungVolumeIsWaitedFor: the kernel stays PREPARING and says why, others are created meanwhile.
func TestHungVolumeIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hung := fault.Unavailablef("the file system of volume local:volume1 does not answer on this node").WithReason(mount.ReasonHung)
	r.mounts.fail(hung)
	r.start()
	r.want(true, desired(1, withFolder), desired(2))
	r.await(kernelID(1), "waiting", func(o cluster.KernelObservation) bool {
		return o.Phase == cluster.PhasePreparing && o.Detail == hung.Error()
	})
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	r.mounts.fail(nil)
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Empty(t, o.Detail)
}

// TestHungVolumeGivesUp: a kernel that waited long enough may try another agent.
func TestHungVolumeGivesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.times.Create = 1
	r.mounts.fail(fault.Unavailablef("the file system of volume local:volume1 does not answer on this node"))
	r.start()
	r.want(true, desired(1, withFolder))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonCreateTimeout, o.Reason)
	require.True(t, o.RetryElsewhere)
	require.Contains(t, o.Detail, "local:volume1 does not answer")
	require.Zero(t, r.mounts.count())
}

func TestFolderThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		elsewhere bool
	}{
		"gone":     {fault.NotFoundf("the folder's directory is not on volume local:volume1").WithReason(mount.ReasonFolder), true},
		"link out": {fault.Invalidf("the directory sub of the folder leads through a link out of the folder").WithReason(mount.ReasonPath), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.mounts.fail(c.err)
			r.start()
			r.want(true, desired(1, withFolder))
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
			require.True(t, o.Failed)
			require.Equal(t, c.elsewhere, o.RetryElsewhere)
			require.Contains(t, o.Detail, c.err.Error())
			require.Zero(t, r.mounts.count())
		})
	}
}

// TestOrphanedMountsAreSwept: mounts of a kernel that nobody knows go after two looks.
func TestOrphanedMountsAreSwept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.mounts.attached[kernelID(7)] = []mount.Bind{{Source: "/x"}}
	r.start()
	r.want(true)
	r.eventually("the mounts stay", func() bool { return r.mounts.count() == 0 })
}
