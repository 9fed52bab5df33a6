package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/wire/node"
)

// TestMountsNeedVersionTwo: an agent that knows no folders gets no kernel that has some.
func TestMountsNeedVersionTwo(t *testing.T) {
	t.Parallel()
	for _, version := range []int32{1, node.Version} {
		b := setup(t, func(*agentlink.Config) {})
		b.desired = []cluster.DesiredKernel{
			{Kernel: kernelA, Generation: 1, Spec: &cluster.KernelSpec{Image: "img", Mounts: []cluster.FolderMount{{
				Folder: "0b5e4a3c-0000-4000-8000-000000000001", Name: "data", Host: "local:volume1", Scope: "user:0b5e4a3c-0000-4000-8000-000000000002",
				Usage: "general", Perm: cluster.ReadOnly, Subpath: "a/b", Target: "/home/work/data", VolumePath: "/srv/volume1", OwnerUID: 9001,
				OwnerGID: 9002,
			}}}},
			{Kernel: kernelB, Generation: 1, Spec: &cluster.KernelSpec{Image: "img"}},
		}
		who := b.join(t, "a1")
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(t.Context())
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = version
		require.NoError(t, s.Send(up))
		require.Equal(t, version, receive(t, s).GetWelcome().Version)
		d := receive(t, s).GetDesired()
		if version == 1 {
			require.Len(t, d.Kernels, 1, "the kernel without folders")
			require.Equal(t, kernelB, d.Kernels[0].KernelId)
			continue
		}
		require.Len(t, d.Kernels, 2)
		require.Len(t, d.Kernels[0].Spec.Mounts, 1)
		m := d.Kernels[0].Spec.Mounts[0]
		require.Equal(t, "data", m.Name)
		require.Equal(t, "ro", m.Permission)
		require.Equal(t, "a/b", m.Subpath)
		require.EqualValues(t, 9002, m.OwnerGid)
	}
}
