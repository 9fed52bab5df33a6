package keeper_test

import (
	"fmt"
	"slices"
	"strings"
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
	w.mu.Unlock()
	if err != nil {
		return network.Place{}, err
	}
	w.note("join %s", e)
	return network.Place{Networks: []runtime.Network{{Name: runtime.NetworkNone}}, Address: address}, nil
}

func (w *wires) Connect(_ cluster.KernelID, pid int) error {
	if pid <= 0 {
		return fault.Invalidf("there is no process %d", pid)
	}
	w.note("connect")
	return nil
}

func (w *wires) SetEgress(_ cluster.KernelID, e cluster.Egress) { w.note("set %s", e) }
func (w *wires) Release(cluster.KernelID)                       { w.note("release") }

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

// TestPeersKnowEachOther: all containers of a session on one agent find each other by name, whichever is made first, and no others.
func TestPeersKnowEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.network = &wires{}
	r.start()
	r.want(true, desired(1), desired(2, func(d *cluster.DesiredKernel) { d.Spec.Hostname = "sub1" }),
		desired(3, func(d *cluster.DesiredKernel) { d.Session = "22222222-0000-4000-8000-000000000000" }))
	names := func(id cluster.KernelID) (out []string) {
		r.awaitPhase(id, 1, cluster.PhaseRunning)
		spec, ok := r.engine.Spec(scope, agent, id)
		require.True(t, ok)
		return spec.ExtraHosts
	}
	first, second, other := names(kernelID(1)), names(kernelID(2)), names(kernelID(3))
	require.Len(t, first, 2)
	require.ElementsMatch(t, first, second)
	require.Regexp(t, `main1:10\.222\.0\.\d sub1:10\.222\.0\.\d`, strings.Join(slices.Sorted(slices.Values(first)), " "))
	require.Len(t, other, 1)
	require.NotContains(t, first, other[0])
}
