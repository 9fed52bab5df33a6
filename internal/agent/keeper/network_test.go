package keeper_test

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// wires is a network that notes what is asked of it.
type wires struct {
	mu     sync.Mutex
	asked  []string
	broken error
	places map[cluster.KernelID]string
	nets   map[cluster.KernelID]*cluster.SessionNetwork
}

func (w *wires) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if line := fmt.Sprintf(format, args...); !slices.Contains(w.asked, line) {
		w.asked = append(w.asked, line)
	}
}

func (w *wires) Join(id cluster.KernelID, e cluster.Egress) (network.Place, error) {
	w.mu.Lock()
	err := w.broken
	if w.places == nil {
		w.places = map[cluster.KernelID]string{}
	}
	if _, ok := w.places[id]; !ok && err == nil {
		w.places[id] = fmt.Sprintf("10.222.0.%d", 2+len(w.places))
	}
	address := w.places[id]
	p := network.Place{Networks: []runtime.Network{{Name: runtime.NetworkNone}}, Address: address}
	if n := w.nets[id]; n != nil {
		me, _ := n.Member(id)
		p.Session = me.Address.String()
		for _, m := range n.Members {
			if m.Kernel != id {
				p.Peers = append(p.Peers, m.Name+":"+m.Address.String())
			}
		}
	}
	w.mu.Unlock()
	if err != nil {
		return network.Place{}, err
	}
	w.note("join %s", e)
	return p, nil
}

func (w *wires) Connect(_ cluster.KernelID, pid int) error {
	if pid <= 0 {
		return fault.Invalidf("there is no process %d", pid)
	}
	w.note("connect")
	return nil
}

func (w *wires) SetEgress(_ cluster.KernelID, e cluster.Egress) { w.note("set %s", e) }

func (w *wires) SetNetwork(id cluster.KernelID, n *cluster.SessionNetwork) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.nets == nil {
		w.nets = map[cluster.KernelID]*cluster.SessionNetwork{}
	}
	w.nets[id] = n
}

func (w *wires) Release(cluster.KernelID) { w.note("release") }

func (w *wires) list() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.asked)
}

// TestKernelsAreConnected: a container is made without a network, connected before it counts as running, follows a changed policy,
// and gives its address back.
func TestKernelsAreConnected(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := &wires{broken: fault.Unavailablef("the bridge is missing")}
	r.network = w
	r.start()
	d := desired(1, func(d *cluster.DesiredKernel) { d.Egress, _ = cluster.ParseEgress("proxy:10.0.0.5:3128") })
	r.want(true, d)
	r.await(kernelID(1), "waiting for the network", func(o cluster.KernelObservation) bool { return o.Detail == "the bridge is missing" })
	w.mu.Lock()
	w.broken = nil
	w.mu.Unlock()
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	require.Equal(t, []string{"set proxy:10.0.0.5:3128", "join proxy:10.0.0.5:3128", "connect"}, w.list())
	spec, ok := r.engine.Spec(scope, agent, kernelID(1))
	require.True(t, ok)
	require.Equal(t, []runtime.Network{{Name: runtime.NetworkNone}}, spec.Networks)
	require.Equal(t, "10.222.0.2", spec.Identity.Address)
	require.Contains(t, spec.ExtraHosts, "main1:10.222.0.2")
	conf, err := r.host.Runner(kernelID(1))
	require.NoError(t, err)
	require.True(t, conf.AwaitNetwork)
	require.Equal(t, "http://10.0.0.5:3128", conf.Env["https_proxy"])

	d.Spec, d.Egress = nil, cluster.Egress{Mode: cluster.EgressNone}
	r.want(false, d)
	r.eventually("the new policy is passed on", func() bool { return slices.Contains(w.list(), "set none") })
	r.want(false, stopped(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	r.eventually("the address is given back", func() bool { return slices.Contains(w.list(), "release") })
}

// TestPeersKnowEachOther: kernels know the names of all others of their session by the addresses of its network, wherever those run, and
// themselves by theirs.
func TestPeersKnowEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.network = &wires{}
	r.start()
	session := &cluster.SessionNetwork{Subnet: netip.MustParsePrefix("10.223.0.0/26"), Members: []cluster.NetworkMember{
		{Kernel: kernelID(1), Name: "main1", Address: netip.MustParseAddr("10.223.0.1"), Agent: agent},
		{Kernel: kernelID(2), Name: "sub1", Address: netip.MustParseAddr("10.223.0.2"), Agent: agent},
		{Kernel: kernelID(9), Name: "sub2", Address: netip.MustParseAddr("10.223.0.3"), Agent: "elsewhere"}}}
	member := func(d *cluster.DesiredKernel) {
		d.Network = session
		d.Egress, _ = cluster.ParseEgress("proxy:10.0.0.5:3128")
	}
	r.want(true, desired(1, member), desired(2, member, func(d *cluster.DesiredKernel) { d.Spec.Hostname = "sub1" }),
		desired(3, func(d *cluster.DesiredKernel) { d.Session = "22222222-0000-4000-8000-000000000000" }))
	names := func(id cluster.KernelID) []string {
		r.awaitPhase(id, 1, cluster.PhaseRunning)
		spec, ok := r.engine.Spec(scope, agent, id)
		require.True(t, ok)
		return spec.ExtraHosts
	}
	all := []string{"main1:10.223.0.1", "sub1:10.223.0.2", "sub2:10.223.0.3"}
	require.ElementsMatch(t, all, names(kernelID(1)))
	require.ElementsMatch(t, all, names(kernelID(2)))
	conf, err := r.host.Runner(kernelID(1))
	require.NoError(t, err)
	require.Equal(t, "localhost,127.0.0.1,::1,main1,sub1,sub2,10.223.0.0/26", conf.Env["no_proxy"])
	other := names(kernelID(3))
	require.Len(t, other, 1)
	require.Regexp(t, `^main1:10\.222\.0\.\d$`, other[0])
}

func (w *wires) HostAddress() netip.Addr { return netip.MustParseAddr("192.0.2.7") }
