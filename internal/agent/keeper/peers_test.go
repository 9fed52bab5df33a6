package keeper_test

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// TestPeersReachTheRunner: a runner knows the session's kernels before its own counts as running, is told once when all run, also behind a
// crash of the agent, and follows those that move.
func TestPeersReachTheRunner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.network = &wires{}
	at := func(second string) func(*cluster.DesiredKernel) {
		return func(d *cluster.DesiredKernel) {
			if d.Spec != nil {
				d.Spec.PeerSecret = "0123456789abcdef0123456789abcdef"
			}
			d.Network = &cluster.SessionNetwork{Subnet: netip.MustParsePrefix("10.223.0.0/26"), Members: []cluster.NetworkMember{
				{Kernel: kernelID(1), Name: "main1", Address: netip.MustParseAddr("10.223.0.1"), Agent: agent},
				{Kernel: kernelID(9), Name: "sub1", Address: netip.MustParseAddr(second), Agent: "elsewhere"}}}
		}
	}
	all := func(d *cluster.DesiredKernel) { d.AllRun = true }
	told := func() []run.PeersRequest { return r.host.Peers(kernelID(1)) }
	list := func(second string) []run.Peer {
		return []run.Peer{{Name: "main1", Address: "10.223.0.1"}, {Name: "sub1", Address: second}}
	}
	r.start()
	r.host.Resist(fault.Unavailablef("the runner is busy"))
	r.want(true, desired(1, at("10.223.0.2")))
	r.await(kernelID(1), "a kernel that knows nobody", func(o cluster.KernelObservation) bool {
		return o.Phase == cluster.PhaseCreating && o.Detail != ""
	})
	r.host.Resist(nil)
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []run.PeersRequest{{Peers: list("10.223.0.2")}}, told())
	conf, err := r.host.Runner(kernelID(1))
	require.NoError(t, err)
	require.Equal(t, "main1", conf.Peers.Name)
	require.Equal(t, "10.223.0.0/26", conf.Env["OMPI_MCA_btl_tcp_if_include"])
	require.Equal(t, "eth1", conf.Env["NCCL_SOCKET_IFNAME"])

	r.host.Resist(fault.Unavailablef("the runner is busy"))
	r.want(false, desired(1, loose, at("10.223.0.2"), all))
	r.kill()
	r.host.Resist(nil)
	r.start()
	r.want(true, desired(1, at("10.223.0.2"), all))
	r.eventually("told that all run", func() bool { return len(told()) == 2 })
	require.Equal(t, run.PeersRequest{Peers: list("10.223.0.2"), Running: true}, told()[1])
	r.kill()
	r.start()
	r.want(true, desired(1, at("10.223.0.2"), all))
	r.want(false, desired(1, loose, at("10.223.0.5"), all))
	r.eventually("told of a move", func() bool { return len(told()) == 3 })
	require.Equal(t, run.PeersRequest{Peers: list("10.223.0.5"), Running: true}, told()[2], "what was told is not told again")
}

// TestOlderRunnersWaitForNobody: a container that was started before is left as it is, and its owner is told.
func TestOlderRunnersWaitForNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Empty(t, r.host.Peers(kernelID(1)), "the only kernel of a session has no others")
	r.kill()
	r.host.Resist(run.TooOld())
	r.start()
	r.want(true, desired(1, func(d *cluster.DesiredKernel) {
		d.Spec.PeerSecret = "0123456789abcdef0123456789abcdef"
		d.AllRun = true
	}))
	o := r.await(kernelID(1), "told", func(o cluster.KernelObservation) bool { return o.Detail != "" })
	require.Contains(t, o.Detail, "restart the session")
	require.Equal(t, cluster.PhaseRunning, o.Phase)
}

// TestNoNamesWithoutANetwork: where the engine connects containers, nothing leads to the addresses of the session's network. The kernel's
// file of hosts stays as the engine made it, and commands begin when all run.
func TestNoNamesWithoutANetwork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.start()
	r.want(true, desired(1, func(d *cluster.DesiredKernel) {
		d.Spec.PeerSecret = "0123456789abcdef0123456789abcdef"
		d.AllRun = true
		d.Network = &cluster.SessionNetwork{Subnet: netip.MustParsePrefix("10.223.0.0/26"), Members: []cluster.NetworkMember{
			{Kernel: kernelID(1), Name: "main1", Address: netip.MustParseAddr("10.223.0.1"), Agent: agent}}}
	}))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []run.PeersRequest{{Peers: []run.Peer{}, Running: true}}, r.host.Peers(kernelID(1)))
	conf, err := r.host.Runner(kernelID(1))
	require.NoError(t, err)
	require.NotContains(t, conf.Env, "NCCL_SOCKET_IFNAME")
}
