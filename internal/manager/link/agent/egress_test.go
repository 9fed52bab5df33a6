package agent_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/wire/node"
)

// TestEgressTravels: a policy goes with the specification, and a changed one without. An agent that keeps no policy gets no kernel
// that needs one.
func TestEgressTravels(t *testing.T) {
	t.Parallel()
	for _, version := range []int32{5, node.Version} {
		b := setup(t, func(*agentlink.Config) {})
		spec := &cluster.KernelSpec{Image: "img"}
		b.desired = []cluster.DesiredKernel{
			{Kernel: kernelA, Generation: 1, Spec: spec},
			{Kernel: kernelB, Generation: 1, Spec: spec, Egress: cluster.Egress{Mode: cluster.EgressNone}},
		}
		who := b.join(t, "a1")
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(t.Context())
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = version
		require.NoError(t, s.Send(up))
		require.Equal(t, version, receive(t, s).GetWelcome().Version)
		d := receive(t, s).GetDesired()
		if version < 6 {
			require.Len(t, d.Kernels, 1, "the kernel whose policy is open")
			require.Equal(t, kernelA, d.Kernels[0].KernelId)
			continue
		}
		require.Len(t, d.Kernels, 2)
		require.Equal(t, "open", d.Kernels[0].Egress)
		require.Equal(t, "none", d.Kernels[1].Egress)
		b.change(func() {
			b.desired[0].Spec, b.desired[1].Spec = nil, nil // the agent has them
			b.desired[0].Egress, _ = cluster.ParseEgress("proxy:10.0.0.5:3128")
		})
		b.link.Wake("a1")
		d = receive(t, s).GetDesired()
		require.False(t, d.Full)
		require.Len(t, d.Kernels, 1)
		require.Equal(t, kernelA, d.Kernels[0].KernelId)
		require.Equal(t, "proxy:10.0.0.5:3128", d.Kernels[0].Egress)
		require.Nil(t, d.Kernels[0].Spec)
	}
}
