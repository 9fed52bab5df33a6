package keeper_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	folderA = cluster.FolderID("0b5e4a3c-0000-4000-8000-00000000000a")
	folderB = cluster.FolderID("0b5e4a3c-0000-4000-8000-00000000000b")
)

// withShares gives a kernel two folders of somebody else.
func withShares(d *cluster.DesiredKernel) {
	d.Spec.Mounts = []cluster.FolderMount{
		{Folder: folderA, Name: "data", Host: "local:volume1", Target: "/home/work/data", Perm: cluster.ReadWrite, Subpath: "."},
		{Folder: folderB, Name: "model", Host: "local:volume1", Target: "/models", Perm: cluster.ReadWrite, Subpath: "."},
	}
}

func without(list ...cluster.Withheld) func(*cluster.DesiredKernel) {
	return func(d *cluster.DesiredKernel) { d.Withheld = list }
}

func loose(d *cluster.DesiredKernel) { d.Spec = nil }

var (
	goneA = cluster.Withheld{Folder: folderA, Name: "data", Scope: "user:0b5e4a3c-0000-4000-8000-000000000002"}
	roB   = cluster.Withheld{Folder: folderB, Name: "model", Scope: "user:0b5e4a3c-0000-4000-8000-000000000002", ReadOnly: true}
)

func (r *rig) withheld() []cluster.Withheld { return r.engine.Withheld(scope, agent, kernelID(1)) }

// TestLostFoldersAreTakenAway: a running container loses what its owner lost, once, also behind a restart of the agent.
func TestLostFoldersAreTakenAway(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1, withShares))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Empty(t, r.withheld())
	r.want(false, desired(1, loose, without(goneA)))
	o := r.await(kernelID(1), "told of the folder", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	require.Contains(t, o.Detail, "folder data was taken out of the container")
	require.Equal(t, []cluster.Withheld{goneA}, r.withheld())
	r.eventually("terminals are told", func() bool { return len(r.host.Notices()) == 1 })

	r.kill()
	r.start()
	r.want(true, desired(1, withShares, without(goneA, roB)))
	r.eventually("the other folder stays writable", func() bool { return len(r.withheld()) == 2 })
	require.Equal(t, []cluster.Withheld{goneA, roB}, r.withheld(), "what is done is not done again")
	require.Equal(t, cluster.PhaseRunning, r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning).Phase)
}

// TestLostWhileItStarts: rights that end while the container is made are not in it, and are looked for when it runs.
func TestLostWhileItStarts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1, withShares, without(goneA, roB)))
	r.eventually("nothing was looked for", func() bool { return len(r.withheld()) == 2 })
	spec, ok := r.engine.Spec(scope, agent, kernelID(1))
	require.True(t, ok)
	for _, m := range spec.Mounts {
		require.NotEqual(t, "/home/work/data", m.Target)
		if m.Target == "/models" {
			require.True(t, m.ReadOnly)
		}
	}
}

// TestFoldersThatCannotBeTaken: a failure is tried again and told; a host that never can is left in peace; a hold that does not end ends
// the kernel.
func TestFoldersThatCannotBeTaken(t *testing.T) {
	t.Parallel()
	fail := func(err error, times int) *rig {
		r := newRig(t)
		r.start()
		r.want(true, desired(1, withShares))
		r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
		r.engine.Inject(fake.Fault{Method: fake.Withhold, Err: err, Times: times})
		r.want(false, desired(1, loose, without(goneA)))
		return r
	}
	r := fail(fault.Unavailablef("the volume hangs"), 2)
	r.await(kernelID(1), "told of the failure", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	r.eventually("it was not tried again", func() bool { return len(r.withheld()) == 1 })

	r = fail(fault.Invalidf("no rights here").WithReason(host.ReasonCannot), 0)
	o := r.await(kernelID(1), "told of the failure", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	require.Contains(t, o.Detail, "folder data is still in the container")
	require.Equal(t, cluster.PhaseRunning, o.Phase)

	r = fail(fault.Conflictf("held").WithReason(host.ReasonHeld), 0)
	o = r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonRightEnded, o.Reason)
	require.Contains(t, o.Detail, "data")
}

// TestKeysReachTheRunner: the runner is told when the keys differ from those that it started with, and not otherwise.
func TestKeysReachTheRunner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := func(d *cluster.DesiredKernel) {
		d.AuthorizedKeys = []string{"ssh-ed25519 AAAA one"}
		if d.Spec != nil {
			d.Spec.Dotfiles = []cluster.Dotfile{{Path: cluster.AuthorizedKeys, Perm: "600", Data: "ssh-ed25519 AAAA one\n"}}
		}
	}
	second := func(d *cluster.DesiredKernel) { d.AuthorizedKeys = []string{"ssh-ed25519 BBBB two"} }
	none := func(d *cluster.DesiredKernel) { d.AuthorizedKeys = []string{} }
	r.start()
	r.want(true, desired(1, first))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Nil(t, r.host.Keys(kernelID(1)), "it has them from the start")
	r.host.Resist(fault.Unavailablef("the runner is busy"))
	r.want(false, desired(1, loose, second))
	r.kill()
	r.host.Resist(nil)
	r.start()
	r.want(true, desired(1, first, second))
	r.eventually("the new key came not", func() bool { return len(r.host.Keys(kernelID(1))) == 1 })
	require.Equal(t, []string{"ssh-ed25519 BBBB two"}, r.host.Keys(kernelID(1)))
	r.want(false, desired(1, loose, none))
	r.eventually("the key stayed", func() bool { return len(r.host.Keys(kernelID(1))) == 0 })
}
