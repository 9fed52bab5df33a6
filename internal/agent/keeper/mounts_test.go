package keeper_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func withFolder(d *cluster.DesiredKernel) {
	d.Spec.Mounts = []cluster.FolderMount{
		{Name: "deep", Host: "local:volume1", Target: "/home/work/more/deep", Perm: cluster.ReadWrite, Subpath: "."},
		{Name: "data", Host: "local:volume1", Target: "/home/work/data", Perm: cluster.ReadOnly, Subpath: "."},
		{Name: "model", Host: "local:volume1", Target: "/models", Perm: cluster.ReadWrite, Subpath: "."},
	}
}

func TestFoldersReachTheContainer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1, withFolder, func(d *cluster.DesiredKernel) { d.Spec.UID = 4321 }))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []host.Owner{{UID: 4321, GID: 9001}}, r.host.Owners(), "the session's user")
	spec, ok := r.engine.Spec(scope, agent, kernelID(1))
	require.True(t, ok)
	dir := "/mounts/" + string(kernelID(1))
	require.Equal(t, []runtime.Mount{
		{Source: dir + "/data", Target: "/home/work/data", ReadOnly: true},
		{Source: dir + "/deep", Target: "/home/work/more/deep"},
		{Source: dir + "/model", Target: "/models"},
	}, spec.Mounts[len(spec.Mounts)-4:len(spec.Mounts)-1])
	require.Equal(t, host.PrivateDir, spec.Mounts[len(spec.Mounts)-1].Target, "nothing is mounted over the runner")
	require.DirExists(t, r.host.Path(kernelID(1), "work", "more", "deep"), "mount points in the home are the user's")
	text, err := os.ReadFile(r.host.Path(kernelID(1), "config", "environ.txt"))
	require.NoError(t, err)
	require.Contains(t, string(text), "BACKENDAI_PERSISTENT_PATHS=/home/work/more/deep:/home/work/data:/models\n")

	require.Zero(t, r.host.Attached(), "a running container has its own")
	r.kill()
	r.start()
	r.want(true, desired(1, withFolder))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Len(t, r.host.Owners(), 1, "what runs is not mounted again")
	r.want(false, stopped(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonUserRequested, o.Reason)
	require.Zero(t, r.host.Attached())
}

// TestHungVolumeIsWaitedFor: the kernel stays PREPARING and says why, others are created meanwhile.
func TestHungVolumeIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	hung := fault.Unavailablef("the file system of volume local:volume1 does not answer on this node")
	r.host.Refuse(hung)
	r.start()
	r.want(true, desired(1, withFolder), desired(2))
	r.await(kernelID(1), "waiting", func(o cluster.KernelObservation) bool {
		return o.Phase == cluster.PhasePreparing && o.Detail == hung.Error()
	})
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	r.host.Refuse(nil)
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Empty(t, o.Detail)
}

// TestHungVolumeGivesUp: a kernel that waited long enough may try another agent.
func TestHungVolumeGivesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.times.Create = 1
	r.host.Refuse(fault.Unavailablef("the file system of volume local:volume1 does not answer on this node"))
	r.start()
	r.want(true, desired(1, withFolder))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonCreateTimeout, o.Reason)
	require.True(t, o.RetryElsewhere)
	require.Contains(t, o.Detail, "local:volume1 does not answer")
	require.Zero(t, r.host.Attached())
}

func TestFolderThatIsGone(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err       error
		elsewhere bool
	}{
		"gone":     {fault.NotFoundf("the folder's directory is not on volume local:volume1"), true},
		"link out": {fault.Invalidf("the directory sub of the folder leads through a link out of the folder"), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.host.Refuse(c.err)
			r.start()
			r.want(true, desired(1, withFolder))
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
			require.True(t, o.Failed)
			require.Equal(t, c.elsewhere, o.RetryElsewhere)
			require.Contains(t, o.Detail, c.err.Error())
			require.Zero(t, r.host.Attached())
		})
	}
}

// TestOrphanedMountsAreSwept: mounts of a kernel that nobody knows go after two looks.
func TestOrphanedMountsAreSwept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.host.Attach(t.Context(), kernelID(7), host.Owner{UID: 1, GID: 1}, []cluster.FolderMount{{Name: "x", Host: "local:volume1"}})
	require.NoError(t, err)
	r.start()
	r.want(true)
	r.eventually("the mounts stay", func() bool { return r.host.Attached() == 0 })
}

// TestHostileMountPoints: what leads a mount point astray ends the kernel with words, and no container is made of it.
func TestHostileMountPoints(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		do   func(t *testing.T, r *rig)
		want string
	}{
		"link in the home": {func(t *testing.T, r *rig) {
			require.NoError(t, os.MkdirAll(r.host.Path(kernelID(1), "work"), 0o755))
			require.NoError(t, os.Symlink("/", r.host.Path(kernelID(1), "work", "more")))
		}, "is no directory"},
		"link in the image under a folder": {func(_ *testing.T, r *rig) { r.engine.LinkInImage(image, "/models") },
			"/models is a symbolic link in image"},
		"link in the image under the home": {func(_ *testing.T, r *rig) { r.engine.LinkInImage(image, "/home") },
			"/home is a symbolic link in image"},
		"link in the image under the runner": {func(_ *testing.T, r *rig) { r.engine.LinkInImage(image, host.PrivateDir) },
			"/.berth is a symbolic link in image"},
		"volume of the image over the runner": {func(_ *testing.T, r *rig) {
			r.engine.AddImage(runtime.Image{References: []string{image}, Volumes: []string{"/.berth/lib/"}}, nil)
		}, "declares the volume /.berth/lib"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			c.do(t, r)
			r.start()
			r.want(true, desired(1, withFolder))
			o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
			require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
			require.False(t, o.RetryElsewhere, "it is the same everywhere")
			require.Contains(t, o.Detail, c.want)
			_, made := r.engine.Spec(scope, agent, kernelID(1))
			require.False(t, made)
		})
	}
}

// TestPretender: a container whose first process is not the runner is ended, although somebody in it answers as the runner does.
func TestPretender(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.host.Distrust(fault.Deniedf("the first process of the container is not the runner"))
	r.start()
	r.want(true, desired(1))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonFailedToStart, o.Reason)
	require.Contains(t, o.Detail, "is not the runner")
	require.False(t, o.RetryElsewhere)
	require.NotContains(t, r.phases(kernelID(1)), string(cluster.PhaseRunning.Status()), "it never counted as running")
	r.eventually("the container stays", func() bool { return r.engine.Count() == 0 })
}
