package agent_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"berth.dev/berth/internal/cluster"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/wire/node"
)

const tunnelKey = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="

// TestEncryptedNetworksTravel: an agent is told of an encrypted network with the keys of its members and never where they are in clear. One
// whose version would carry it in clear gets no kernel of it, and not even the network of a kernel that it has.
func TestEncryptedNetworksTravel(t *testing.T) {
	t.Parallel()
	for _, version := range []int32{node.VersionEncrypted - 1, node.Version} {
		b := setup(t, func(*agentlink.Config) {})
		member := cluster.NetworkMember{Kernel: kernelA, Name: "main1", Address: netip.MustParseAddr("10.223.0.1"), Agent: "a2",
			Host:   netip.MustParseAddr("192.0.2.2"), // a mistake of whoever made it
			Tunnel: cluster.Tunnel{Key: tunnelKey, Endpoint: netip.MustParseAddrPort("192.0.2.2:4798")}}
		network := func(encrypted bool) *cluster.SessionNetwork {
			return &cluster.SessionNetwork{Number: 1, Subnet: netip.MustParsePrefix("10.223.0.0/26"), Encrypted: encrypted,
				Members: []cluster.NetworkMember{member}}
		}
		spec := &cluster.KernelSpec{Image: "img"}
		b.desired = []cluster.DesiredKernel{
			{Kernel: kernelA, Generation: 1, Spec: spec, Network: network(false)},
			{Kernel: kernelB, Generation: 1, Spec: spec, Network: network(true)},
		}
		who := b.join(t, "a1")
		s, err := b.dial(t, node.AgentTLS(who.cert, who.ca, "h2")).Session(t.Context())
		require.NoError(t, err)
		up := hello(who.id)
		up.GetHello().Version = version
		require.NoError(t, s.Send(up))
		require.Equal(t, version, receive(t, s).GetWelcome().Version)
		d := receive(t, s).GetDesired()
		require.Equal(t, "192.0.2.2", d.Kernels[0].Network.Members[0].Host)
		require.Empty(t, d.Kernels[0].Network.Members[0].TunnelKey)
		if version < node.VersionEncrypted {
			require.Len(t, d.Kernels, 1, "the kernel whose network is in clear")
			b.change(func() { // it was started by a newer agent, which this one replaces
				b.desired[0].Spec, b.desired[1].Spec = nil, nil
				b.desired[1].AllRun = true
			})
			b.link.Wake("a1")
			d = receive(t, s).GetDesired()
			require.Len(t, d.Kernels, 1)
			require.Equal(t, kernelB, d.Kernels[0].KernelId)
			require.Nil(t, d.Kernels[0].Network)
			continue
		}
		require.Len(t, d.Kernels, 2)
		sealed := d.Kernels[1].Network
		require.True(t, sealed.Encrypted)
		require.True(t, proto.Equal(&node.NetworkMember{KernelId: kernelA, Name: "main1", Address: "10.223.0.1", AgentId: "a2",
			TunnelKey: tunnelKey, TunnelEndpoint: "192.0.2.2:4798"}, sealed.Members[0]), "%v", sealed.Members[0])
		b.change(func() {
			b.desired[0].Spec, b.desired[1].Spec = nil, nil
			n := network(true)
			n.Members[0].Tunnel.Endpoint = netip.MustParseAddrPort("192.0.2.9:4798")
			b.desired[1].Network = n
		})
		b.link.Wake("a1")
		d = receive(t, s).GetDesired()
		require.Len(t, d.Kernels, 1, "a changed tunnel is news")
		require.Equal(t, "192.0.2.9:4798", d.Kernels[0].Network.Members[0].TunnelEndpoint)
	}
}
