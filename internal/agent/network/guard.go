package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// parts are what the tables had once: a kernel that took them does not lack them.
type parts struct{ bridged, counted bool }

// guard guards sessions where the kernel can; elsewhere the engine connects them.
func (n *Network) guard(ctx context.Context) ([]string, error) {
	if why := n.unable(); why != nil {
		return n.unguarded(ctx, why)
	}
	warnings, err := n.hold(ctx)
	if !errors.Is(err, errUnable) {
		return warnings, err
	}
	n.mu.Lock()
	n.lacking = err
	n.mu.Unlock()
	return n.unguarded(ctx, err)
}

// errUnable: this kernel lacks what guards take, or keeps it from this process.
var errUnable = errors.New("bridges or tables of nftables (CONFIG_NF_TABLES_INET) cannot be used here")

func unableFor(err error) error {
	if unavailable(err) {
		return fmt.Errorf("%w: %w", errUnable, err)
	}
	return err
}

// unable returns why this kernel cannot guard sessions, when that was found out a short while ago. It is asked again only now and then,
// because a module may have been loaded since. An agent that has guarded sessions once asks at each check.
func (n *Network) unable() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.guarded || (n.rounds+1)%engineRounds == 0 {
		return nil
	}
	return n.lacking
}

// hold makes the bridge, the tables and the ports true.
func (n *Network) hold(ctx context.Context) ([]string, error) {
	if err := n.holdBridge(ctx); err != nil {
		return nil, unableFor(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.survey(); err != nil {
		return nil, err
	}
	if err := n.holdTables(); err != nil {
		return nil, unableFor(err)
	}
	if err := n.holdPorts(); err != nil {
		return nil, err
	}
	n.guarded, n.lacking = true, nil
	var warnings []string
	if text := n.checkSessions(); text != "" {
		warnings = append(warnings, text)
	}
	if !n.bridged {
		warnings = append(warnings, "this kernel has no nftables for bridges: the ports of sessions are isolated, but not checked for "+
			"false addresses")
	}
	if !n.counted {
		warnings = append(warnings, "this kernel cannot count connections (CONFIG_NFT_CONNLIMIT): one session can fill the host's table of them")
	}
	return warnings, nil
}

// holdBridge sees to it that the engine has the network and the host its bridge.
func (n *Network) holdBridge(ctx context.Context) error {
	n.mu.Lock()
	subnet, l := n.subnet, n.links()
	n.rounds++
	ask := !subnet.IsValid() || n.rounds%engineRounds == 0
	n.mu.Unlock()
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	state := ""
	if !ask {
		if _, state, err = l.bridgeState(h, n.Bridge(), gatewayOf(subnet)); err != nil || state == "" {
			return err
		}
		n.o.Log.Warn("the bridge of sessions is broken and is made again", "problem", state)
	}
	near, err := l.near(h, n.Bridge())
	if err != nil {
		return err
	}
	routes, err := l.routed(h)
	if err != nil {
		return err
	}
	taken := append(near, routes...)
	for _, r := range n.resolvers() {
		taken = append(taken, netip.PrefixFrom(r, 32))
	}
	spec := runtime.BridgeSpec{Name: n.Name(), Interface: n.Bridge(), Subnets: candidates(n.set.pool, n.seed(), taken)}
	if subnet.IsValid() { // sessions have addresses of it
		spec.Subnets = append([]netip.Prefix{subnet}, spec.Subnets...)
	}
	for try := range 2 {
		if subnet, err = n.o.Engine.EnsureBridge(ctx, spec); err != nil {
			return err
		}
		var bridge netlink.Link
		if bridge, state, err = l.bridgeState(h, n.Bridge(), gatewayOf(subnet)); err != nil {
			return err
		}
		if state == "" {
			// Sessions remember the hardware address of their gateway. A bridge without one of its own has the lowest of its ports,
			// which changes as sessions come and go; a bridge that was made again has a new one.
			if err := h.LinkSetHardwareAddr(bridge, n.hardwareAddress()); err != nil {
				return fmt.Errorf("set the hardware address of bridge %s: %w", n.Bridge(), err)
			}
		}
		if state == "" || try > 0 {
			break
		}
		// The engine knows the network and its bridge is gone. No container of the engine's is on it, so it can be made anew.
		spec.Renew = true
		spec.Subnets = append([]netip.Prefix{subnet}, spec.Subnets...)
	}
	if state != "" {
		return fault.Unavailablef("%s", state).WithNext("restart the container engine; it makes its bridges anew")
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.subnet = subnet
	return nil
}

func (n *Network) resolvers() []netip.Addr {
	if len(n.set.resolvers) > 0 {
		return n.set.resolvers
	}
	return hostResolvers(resolverFiles)
}

// survey reads what of the host the rules depend on; the caller holds mu.
func (n *Network) survey() error {
	l := n.links()
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	near, err := l.near(h, n.Bridge())
	if err != nil {
		return err
	}
	n.closed = slices.Concat(special, near, n.set.deny)
	n.resolver = n.resolvers()
	n.share = connectionShare()
	return nil
}

// tables describes the tables for the sessions there are; the caller holds mu.
func (n *Network) tables() []table {
	in := ruleInput{Table: n.Table(), Bridge: n.Bridge(), Ports: n.Bridge() + "-", Subnet: n.subnet, Resolvers: n.resolver,
		Allow: n.set.allow, Closed: n.closed, Sessions: map[netip.Addr]member{}}
	if n.counted {
		in.Connections = n.share
	}
	for _, s := range n.members {
		if s.admitted {
			in.Sessions[s.address] = member{n.links().port(s.address), s.force}
		}
	}
	list := tables(in)
	if !n.bridged {
		list = list[:1]
	}
	return list
}

// holdTables makes the tables again when they are not as they should be; the caller holds mu.
func (n *Network) holdTables() error {
	r := n.open(n.ns)
	if !n.ready { // at the start, tables of an earlier run hold the policies of its sessions
		n.inherit(r)
	}
	n.enforce()
	list := n.tables()
	what, err := r.differs(list)
	if err != nil && len(list) == 2 && lacks(err) && !n.held.bridged {
		if what, err = r.differs(list[:1]); err == nil {
			n.bridged = false
		}
	}
	if err != nil {
		return err
	}
	if what == "" {
		n.complete(r)
		return nil
	}
	if n.ready && n.guarded {
		n.o.Log.Warn("the rules of the network of sessions are not as they were made; they are made again", "problem", what)
	}
	return n.put(r)
}

// put makes the tables, without what this kernel lacks; the caller holds mu. Any other failure may pass: it is returned, and no session
// starts until the next check has made all of them. What the tables had once is never left out.
func (n *Network) put(r rules) error {
	bridged, counted := n.bridged, n.counted
	err := r.put(n.tables())
	for _, try := range []parts{{bridged, false}, {false, counted}, {false, false}} {
		if err == nil {
			n.held.bridged, n.held.counted = n.held.bridged || n.bridged, n.held.counted || n.counted
			return nil
		}
		if !lacks(err) {
			break
		}
		if n.held.bridged && !try.bridged || n.held.counted && !try.counted {
			continue
		}
		n.bridged, n.counted = try.bridged, try.counted
		if other := r.put(n.tables()); other == nil || !lacks(other) {
			err = other
		}
	}
	if err != nil {
		n.bridged, n.counted = bridged, counted
	}
	return err
}

// complete tries now and then to make what was left out: the module may have been loaded since. The caller holds mu.
func (n *Network) complete(r rules) {
	if n.bridged && n.counted || n.rounds%engineRounds != 0 {
		return
	}
	for _, try := range []parts{{true, true}, {true, n.counted}, {n.bridged, true}} {
		bridged, counted := n.bridged, n.counted
		if try == (parts{bridged, counted}) {
			continue
		}
		n.bridged, n.counted = try.bridged, try.counted
		if r.put(n.tables()) == nil {
			n.held.bridged, n.held.counted = n.held.bridged || n.bridged, n.held.counted || n.counted
			n.o.Log.Info("the rules of the network of sessions are more complete than before", "bridges", n.bridged, "connections", n.counted)
			return
		}
		n.bridged, n.counted = bridged, counted
	}
}

// inherit takes over the policies that the tables of an earlier run hold; the caller holds mu.
func (n *Network) inherit(r rules) {
	policies := r.policies(n.tables())
	for _, s := range n.members {
		if !s.admitted {
			if e, ok := policies[s.address]; ok && s.inherits {
				s.egress = e
			}
			s.admitted, s.force = true, s.egress
		}
	}
}

// enforce puts policies in force that have changed; the caller holds mu. What fails is made by the comparison that follows.
func (n *Network) enforce() {
	for id, s := range n.members {
		if !s.admitted || s.force == s.egress {
			continue
		}
		old := s.force
		s.force = s.egress
		n.o.Log.Info("a session has another egress policy", "kernel", id, "egress", s.egress)
		if err := n.open(n.ns).turn(n.tables(), s.address, old, s.force); err != nil {
			n.o.Log.Debug("change the rules", "err", err)
		}
	}
}

// holdPorts puts ports back that lost their bridge, and removes those of nobody; the caller holds mu.
func (n *Network) holdPorts() error {
	l := n.links()
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	bridge, err := h.LinkByName(n.Bridge())
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", n.Bridge(), err)
	}
	ports, err := l.list(h, n.subnet)
	if err != nil {
		return err
	}
	for _, p := range ports {
		s := n.members[p.kernel]
		if s == nil || s.address != p.address || p.link.Attrs().MasterIndex == bridge.Attrs().Index {
			continue
		}
		if err := l.plug(h, p.link, bridge); err != nil {
			return err
		}
	}
	return nil
}
