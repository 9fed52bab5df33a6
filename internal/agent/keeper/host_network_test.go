package keeper_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

func onHost(d *cluster.DesiredKernel) {
	if d.Spec != nil {
		d.Spec.HostNetwork, d.Spec.PeerSecret = true, "0123456789abcdef0123456789abcdef"
	}
}

func (r *rig) leases() map[cluster.KernelID][]int {
	out := map[cluster.KernelID][]int{}
	for _, rec := range r.ledger.Records() {
		if len(rec.HostPorts) > 0 {
			out[rec.Kernel] = rec.HostPorts
		}
	}
	return out
}

// TestPortsOfTheHostAreLeased: kernels in the network of their host get ports that nobody else has, also behind a crash of the agent, and
// say where the others of their session reach them. Who finds none waits with words and goes on when a container is gone.
func TestPortsOfTheHostAreLeased(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := &wires{}
	r.network, r.ports = w, cluster.PortRange{First: 30000, Last: 30010}
	r.portFree = func(port int) bool { return port != 30002 }
	r.start()
	r.want(true, desired(1, onHost), desired(2, onHost))
	first := r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	second := r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	before := r.leases()
	all := slices.Concat(before[kernelID(1)], before[kernelID(2)])
	slices.Sort(all)
	require.Equal(t, []int{30000, 30001, 30003, 30004, 30005, 30006, 30007, 30008, 30009, 30010}, all)
	for id, o := range map[cluster.KernelID]cluster.KernelObservation{kernelID(1): first, kernelID(2): second} {
		require.Equal(t, netip.AddrPortFrom(w.HostAddress(), uint16(before[id][0])).String(), o.HostEndpoint)
		conf, err := r.host.Runner(id)
		require.NoError(t, err)
		require.Equal(t, before[id], conf.HostPorts)
		require.Equal(t, before[id][0], conf.Peers.Port)
		require.False(t, conf.AwaitNetwork)
		k, _ := r.keeper.Find(id)
		require.True(t, k.Container.Identity.HostNetwork)
	}
	require.NotContains(t, w.list(), "connect", "there is nothing to connect")

	r.kill()
	r.start()
	r.want(true, desired(1, onHost), desired(2, onHost), desired(3, onHost))
	o := r.await(kernelID(3), "told", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	require.Contains(t, o.Detail, "agent.host_ports (30000-30010) has fewer that are free")
	require.Equal(t, cluster.PhasePreparing, o.Phase)
	require.Equal(t, before, r.leases())
	r.want(false, stopped(1))
	r.awaitPhase(kernelID(3), 1, cluster.PhaseRunning)
	now := r.leases()
	require.Equal(t, before[kernelID(2)], now[kernelID(2)])
	require.ElementsMatch(t, before[kernelID(1)], now[kernelID(3)])
	require.Empty(t, now[kernelID(1)], "its end is not acknowledged, and its container is gone")
}

// TestPeersOnHosts: a runner is told of the others by the ports that their agents observed, and of nothing that is not known yet.
func TestPeersOnHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.network, r.ports = &wires{}, cluster.PortRange{First: 30000, Last: 30010}
	r.start()
	peers := []cluster.HostPeer{{Name: "main1"}, {Name: "sub1"}}
	r.want(true, desired(1, onHost, func(d *cluster.DesiredKernel) { d.HostPeers = peers }))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []run.PeersRequest{{Peers: []run.Peer{}}}, r.host.Peers(kernelID(1)))
	r.want(false, desired(1, loose, func(d *cluster.DesiredKernel) {
		d.AllRun = true
		d.HostPeers = []cluster.HostPeer{{Name: "main1", Endpoint: netip.MustParseAddrPort("192.0.2.7:30000")},
			{Name: "sub1", Endpoint: netip.MustParseAddrPort("192.0.2.7:30005")}}
	}))
	r.eventually("told", func() bool { return len(r.host.Peers(kernelID(1))) == 2 })
	require.Equal(t, run.PeersRequest{Running: true, Peers: []run.Peer{{Name: "main1", Address: "192.0.2.7", Port: 30000},
		{Name: "sub1", Address: "192.0.2.7", Port: 30005}}}, r.host.Peers(kernelID(1))[1])
}

// TestHostsThatRefuse: no policy can be kept in the network of a host, and an agent without ports has none to give.
func TestHostsThatRefuse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.network = &wires{}
	r.start()
	closed := func(d *cluster.DesiredKernel) { d.Egress = cluster.Egress{Mode: cluster.EgressNone} }
	r.want(true, desired(1, onHost, closed), desired(2, onHost))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Contains(t, o.Detail, "cannot be kept in the network of a host")
	require.False(t, o.RetryElsewhere)
	o = r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.Contains(t, o.Detail, "agent.host_ports")
	require.True(t, o.RetryElsewhere)
	require.Zero(t, r.engine.Count())
}
