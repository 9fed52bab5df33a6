package keeper

import (
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// ReasonHostPorts is the reason of a kernel that waits for ports of its host.
const ReasonHostPorts = "host-ports"

// freePorts is how many ports a kernel in the network of its host has for programs that nobody declared.
const freePorts = 4

// maxPorts bounds the ports of one kernel, so that none takes a whole range.
const maxPorts = 64

// portsNeeded is how many ports of its host a kernel has there.
func portsNeeded(s *cluster.KernelSpec) int {
	n := freePorts
	if s.PeerSecret != "" {
		n++
	}
	for _, a := range appsOf(s) {
		n += len(a.Ports)
	}
	return n
}

// pickPorts chooses ports of a range that nobody has, beginning behind last; nil when there are not enough. A port rests as long as it can
// before it is given out again.
func pickPorts(r cluster.PortRange, n, last int, taken map[int]bool, free func(int) bool) []int {
	size := r.Size()
	if !r.Has(last) {
		last = r.Last
	}
	var out []int
	for i := 0; i < size && len(out) < n; i++ {
		port := r.First + (last-r.First+1+i)%size
		if !taken[port] && (free == nil || free(port)) {
			out = append(out, port)
		}
	}
	if len(out) < n {
		return nil
	}
	return out
}

// holdsPorts reports whether a record's lease still counts: a kernel that has ended holds it as long as its container is there.
func holdsPorts(r *ledger.Record, c *runtime.Observed) bool {
	return r != nil && (r.Final == nil || c != nil)
}

// leasePorts leases the ports that a kernel in the network of this host needs, and records them before anything uses them.
func (n *kernel) leasePorts(d *cluster.DesiredKernel) error {
	k, s := n.k, d.Spec
	if !s.HostNetwork {
		return nil
	}
	need := portsNeeded(s)
	switch {
	case !d.Egress.Open():
		return fault.Deniedf("the egress policy %s cannot be kept in the network of a host", d.Egress)
	case k.o.HostPorts.Size() == 0:
		return fault.Conflictf("this agent runs no session in the network of its host").WithNext("set agent.host_ports")
	case need > maxPorts:
		return fault.Invalidf("it would need %d ports of its host, %d are allowed", need, maxPorts).WithNext("open fewer ports")
	case len(n.record.HostPorts) == need:
		return nil
	}
	endpoint := ""
	var own netip.Addr
	if s.PeerSecret != "" {
		if own = k.hostAddress(); !own.IsValid() {
			return fault.Conflictf("no address is known at which kernels of other hosts reach this one").WithNext("set agent.network.address")
		}
	}
	k.mu.Lock()
	taken := map[int]bool{}
	for _, other := range k.kernels {
		if other == n {
			continue
		}
		for _, port := range other.ports {
			taken[port] = true
		}
		if holdsPorts(other.record, other.container) {
			for _, port := range other.record.HostPorts {
				taken[port] = true
			}
		}
	}
	ports := pickPorts(k.o.HostPorts, need, k.lastPort, taken, k.o.PortFree)
	n.ports = ports
	if ports != nil {
		k.lastPort = ports[len(ports)-1]
	}
	k.mu.Unlock()
	if ports == nil {
		n.show(cluster.PhasePreparing)
		return fault.Unavailablef("it needs %d ports of its host, and agent.host_ports (%s) has fewer that are free", need, k.o.HostPorts).
			WithReason(ReasonHostPorts)
	}
	if own.IsValid() {
		endpoint = netip.AddrPortFrom(own, uint16(ports[0])).String()
	}
	r := n.record.Clone()
	r.HostPorts, r.HostEndpoint = ports, endpoint
	err := k.o.Ledger.Put(r)
	k.mu.Lock()
	defer k.mu.Unlock()
	n.ports = nil
	if err != nil {
		return err
	}
	n.record = r
	return nil
}

// keptPorts are the ports that a new generation of a kernel has from the one before, where it needs as many.
func (n *kernel) keptPorts(s *cluster.KernelSpec) ([]int, string) {
	if r := n.record; r != nil && s.HostNetwork && len(r.HostPorts) == portsNeeded(s) && (s.PeerSecret == "") == (r.HostEndpoint == "") {
		return r.HostPorts, r.HostEndpoint
	}
	return nil, ""
}

// givePorts ends the lease of a kernel whose container is gone.
func (n *kernel) givePorts() {
	if r := n.record; r != nil && len(r.HostPorts) > 0 {
		n.update(func(r *ledger.Record) { r.HostPorts, r.HostEndpoint = nil, "" })
	}
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.ports = nil
}

// leasedBy reads the ports of a container that no record describes from the configuration of its runner.
func (k *Keeper) leasedBy(id cluster.KernelID) []int {
	conf, err := k.o.Host.Runner(id)
	if err != nil {
		return nil
	}
	return conf.HostPorts
}

func (k *Keeper) hostAddress() netip.Addr {
	if k.o.Network == nil {
		return netip.Addr{}
	}
	return k.o.Network.HostAddress()
}

// hostPlace is how a container is in the network of this host. Without a lease none is.
func (n *kernel) hostPlace(d *cluster.DesiredKernel) (network.Place, error) {
	if len(n.record.HostPorts) != portsNeeded(d.Spec) {
		if err := n.leasePorts(d); err != nil {
			return network.Place{}, err
		}
	}
	p := network.Place{Networks: []runtime.Network{{Name: runtime.NetworkHost}}}
	if at := n.k.hostAddress(); at.IsValid() {
		p.Session = at.String() // its own name leads there
	}
	return p, nil
}

// assigned says which port of its host a kernel has for what.
type assigned struct {
	ssh  int // of its server for the other kernels of its session; 0 where it has none
	apps []run.AppPort
	free []int
	host bool
}

// assignPorts gives the ports of a lease to what needs them, always in the same order. Kernels with a network of their own keep the ports
// that their apps are declared with.
func assignPorts(s *cluster.KernelSpec, leased []int) assigned {
	a := assigned{apps: appsOf(s)}
	if !s.HostNetwork || len(leased) < portsNeeded(s) {
		return a
	}
	a.host = true
	take := func(n int) []int {
		out := slices.Clone(leased[:n])
		leased = leased[n:]
		return out
	}
	if s.PeerSecret != "" {
		a.ssh = take(1)[0]
	}
	for i := range a.apps {
		a.apps[i].Ports = take(len(a.apps[i].Ports))
	}
	a.free = take(freePorts)
	return a
}

// environ tells programs which ports of the host are theirs. Nobody else sets these.
func (a assigned) environ(env map[string]string) {
	if !a.host {
		return
	}
	var apps, services, opened, free []string
	for _, p := range a.apps {
		var ports []string
		for _, port := range p.Ports {
			ports = append(ports, strconv.Itoa(port))
		}
		apps = append(apps, p.Name+"="+strings.Join(ports, "+"))
		if p.Protocol == run.AppPreopen {
			opened = append(opened, ports...)
			continue
		}
		text := ports[0]
		if len(ports) > 1 {
			text = "[" + strings.Join(ports, ",") + "]"
		}
		services = append(services, p.Name+":"+string(p.Protocol)+":"+text)
	}
	for _, port := range a.free {
		free = append(free, strconv.Itoa(port))
	}
	maps.Copy(env, map[string]string{"BERTH_NETWORK": runtime.NetworkHost, "BERTH_APP_PORTS": strings.Join(apps, ","),
		"BERTH_FREE_PORTS": strings.Join(free, ","), "BACKENDAI_SERVICE_PORTS": strings.Join(services, ","),
		"BACKENDAI_PREOPEN_PORTS": strings.Join(opened, ",")})
	if a.ssh != 0 {
		env["BERTH_SSH_PORT"] = strconv.Itoa(a.ssh)
	}
}
