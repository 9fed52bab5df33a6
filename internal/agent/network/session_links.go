package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// sessionLinks makes and looks at the networks of sessions. They are in a network namespace of their own, which has no addresses and no
// way to the host or out of it: whatever a container sends there reaches members of its session or nobody. Tunnels begin in the engine's
// namespace, where the agents' network is.
type sessionLinks struct {
	ns       int // descriptor of the namespace of session networks
	underlay int // descriptor of the engine's namespace; 0 is that of this process
	port     int // UDP port of tunnels
	// encrypted is a descriptor of the namespace of the encrypted tunnel; 0 while there is none.
	encrypted int
}

const (
	// SessionInterface is the name of a container's interface in the network of its session.
	SessionInterface = "eth1"
	// firstVNI is the VXLAN network identifier of network 0.
	firstVNI = 0x620000
	// namespaces is where named network namespaces are; `ip netns` shows them.
	namespaces = "/run/netns/"
)

// openSessionSpace opens the namespace of session networks. Where it is missing it is made, or the descriptor is 0 when nobody needs it. It
// stays when the agent ends.
func openSessionSpace(name string, needed bool) (int, error) {
	var st unix.Statfs_t
	err := unix.Statfs(namespaces+name, &st)
	if err == nil && st.Type != unix.NSFS_MAGIC { // its maker died before it was one
		if err := errors.Join(unmounted(namespaces+name), unix.Unlink(namespaces+name)); err != nil {
			return 0, fmt.Errorf("remove what is left of the network namespace %s: %w", name, err)
		}
		err = unix.ENOENT
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("look for the network namespace %s: %w", name, err)
	}
	if err == nil {
		ns, err := netns.GetFromName(name)
		if err != nil {
			return 0, fmt.Errorf("open the network namespace %s: %w", name, err)
		}
		return int(ns), nil
	}
	if !needed {
		return 0, nil
	}
	type result struct {
		ns  netns.NsHandle
		err error
	}
	made := make(chan result, 1)
	go func() {
		// The thread gets another namespace. It ends with this goroutine unless it is back in its own.
		runtime.LockOSThread()
		own, err := netns.Get()
		if err != nil {
			made <- result{err: err}
			return
		}
		defer own.Close()
		ns, err := netns.NewNamed(name)
		if netns.Set(own) == nil {
			runtime.UnlockOSThread()
		}
		made <- result{ns, err}
	}()
	r := <-made
	if r.err != nil {
		return 0, fmt.Errorf("make the network namespace %s: %w", name, r.err)
	}
	return int(r.ns), nil
}

func unmounted(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// removeSessionSpace removes the namespace with all that is in it.
func removeSessionSpace(name string) error {
	if err := netns.DeleteNamed(name); err != nil && !missing(err) {
		return fmt.Errorf("remove the network namespace %s: %w", name, err)
	}
	return nil
}

// leftIn names the interfaces in the namespace of session networks; none where there is no such namespace.
func leftIn(space string) ([]string, error) {
	ns, err := openSessionSpace(space, false)
	if err != nil || ns == 0 {
		return nil, err
	}
	defer unix.Close(ns)
	h, err := links{ns: ns}.handle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	all, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, link := range all {
		if link.Attrs().Name != "lo" {
			names = append(names, link.Attrs().Name)
		}
	}
	return names, nil
}

func bridgeName(number uint32) string { return fmt.Sprintf("br%d", number) }
func tunnelName(number uint32) string { return fmt.Sprintf("vx%d", number) }

// sessionPorts is how the names of all ports of containers begin.
const sessionPorts = "p"

// sessionPort is the name of a member's port: the number of its network, and its place in it.
func sessionPort(number uint32, subnet netip.Prefix, a netip.Addr) string {
	x, y := a.As4(), subnet.Masked().Addr().As4()
	place := (uint32(x[2])<<8 | uint32(x[3])) - (uint32(y[2])<<8 | uint32(y[3]))
	return fmt.Sprintf("%s%d-%x", sessionPorts, number, place&0xffff)
}

// memberMAC is the hardware address of a member, which follows from its address: so every agent knows those of all.
func memberMAC(a netip.Addr) net.HardwareAddr {
	b := a.As4()
	return net.HardwareAddr{0x02, 0x63, b[0], b[1], b[2], b[3]}
}

func memberOf(mac net.HardwareAddr) (netip.Addr, bool) {
	if len(mac) != 6 || mac[0] != 0x02 || mac[1] != 0x63 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(mac[2:6])), true
}

func (l sessionLinks) handle() (*netlink.Handle, error) { return links{ns: l.ns}.handle() }

// observe reads the networks of sessions that are there.
func (l sessionLinks) observe(h *netlink.Handle) (map[uint32]present, error) {
	all, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	have := map[uint32]present{}
	for _, link := range all {
		name, up := link.Attrs().Name, link.Attrs().Flags&net.FlagUp != 0
		var number, place uint32
		switch {
		case scanned(name, "br%d", &number):
			p := have[number]
			p.bridge = up
			have[number] = p
		case scanned(name, "vx%d", &number):
			t, err := l.tunnelOf(h, link)
			if err != nil {
				return nil, err
			}
			p := have[number]
			p.tunnel = t
			have[number] = p
		case strings.HasPrefix(name, sessionPorts) && scanned(name, sessionPorts+"%d-%x", &number, &place):
			p := have[number]
			kernel, _, _ := strings.Cut(link.Attrs().Alias, " ")
			p.ports = append(p.ports, port{name, cluster.KernelID(kernel)})
			have[number] = p
		}
	}
	return have, nil
}

func scanned(name, format string, to ...any) bool {
	n, err := fmt.Sscanf(name, format, to...)
	return err == nil && n == len(to)
}

func (l sessionLinks) tunnelOf(h *netlink.Handle, link netlink.Link) (*tunnel, error) {
	t := &tunnel{mtu: link.Attrs().MTU, up: link.Attrs().Flags&net.FlagUp != 0 && link.Attrs().MasterIndex != 0,
		far: map[netip.Addr]netip.Addr{}}
	if v, ok := link.(*netlink.Vxlan); ok {
		if a, ok := netip.AddrFromSlice(v.SrcAddr); ok {
			t.local = a.Unmap()
		}
		t.up = t.up && v.Port == l.port
	}
	forwards, err := h.NeighList(link.Attrs().Index, unix.AF_BRIDGE)
	if err != nil {
		return nil, fmt.Errorf("read where %s forwards to: %w", link.Attrs().Name, err)
	}
	neighbours, err := h.NeighList(link.Attrs().Index, unix.AF_INET)
	if err != nil {
		return nil, fmt.Errorf("read the neighbours of %s: %w", link.Attrs().Name, err)
	}
	answered := map[netip.Addr]bool{}
	for _, n := range neighbours {
		a, ok := netip.AddrFromSlice(n.IP)
		if ok && n.State&netlink.NUD_PERMANENT != 0 && bytes.Equal(n.HardwareAddr, memberMAC(a.Unmap())) {
			answered[a.Unmap()] = true
		}
	}
	for _, f := range forwards {
		host, ok := netip.AddrFromSlice(f.IP)
		if member, ours := memberOf(f.HardwareAddr); ok && ours {
			if t.far[member] = host.Unmap(); !answered[member] {
				t.far[member] = netip.Addr{} // half of it: it is made again
			}
		}
	}
	return t, nil
}

// do carries out a step. Doing it again changes nothing.
func (l sessionLinks) do(h *netlink.Handle, s step) error {
	switch s.do {
	case makeBridge:
		return l.makeBridge(h, s.number)
	case removeBridge:
		return removeLink(h, bridgeName(s.number))
	case makeTunnel:
		return l.makeTunnel(h, s)
	case removeTunnel:
		return removeLink(h, tunnelName(s.number))
	case removePort:
		return removeLink(h, s.port)
	case reachMember, forgetMember:
		return l.forward(h, s)
	}
	return fault.New(fault.Internal, "a step of session networks is called %q", s.do)
}

func removeLink(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		if noLink(err) {
			return nil
		}
		return fmt.Errorf("look for interface %s: %w", name, err)
	}
	if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove interface %s: %w", name, err)
	}
	return nil
}

func noLink(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

func (l sessionLinks) makeBridge(h *netlink.Handle, number uint32) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName(number)
	snooping := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &snooping}
	if err := h.LinkAdd(bridge); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make bridge %s: %w", attrs.Name, err)
	}
	link, err := h.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", attrs.Name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("start bridge %s: %w", attrs.Name, err)
	}
	return nil
}

// makeTunnel makes the VXLAN interface of a network. It learns nothing and floods nothing: it forwards to the members that it is told, and
// answers for their addresses itself. Its packets begin in the namespace in which it is made: for an encrypted network that is one from
// which there is no other way than the encrypted tunnel.
func (l sessionLinks) makeTunnel(h *netlink.Handle, s step) error {
	bridge, err := h.LinkByName(bridgeName(s.number))
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridgeName(s.number), err)
	}
	from := l.underlay
	if s.encrypted {
		if from = l.encrypted; from <= 0 {
			return fault.Unavailablef("network %d of sessions is to be encrypted, and this agent has no encrypted tunnel", s.number)
		}
	}
	under, err := links{ns: from}.handle()
	if err != nil {
		return err
	}
	defer under.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Namespace = tunnelName(s.number), s.mtu, netlink.NsFd(l.ns)
	v := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: firstVNI + int(s.number), SrcAddr: s.local.AsSlice(), Port: l.port,
		Proxy: true, NoAge: true}
	if err := under.LinkAdd(v); err != nil {
		if errors.Is(err, unix.EEXIST) {
			return fault.Conflictf("another agent of this host has a tunnel for network %d of sessions at port %d", s.number, l.port).WithCause(err).
				WithNext("give each agent of a host a network namespace of its own")
		}
		return fmt.Errorf("make tunnel %s: %w", attrs.Name, err)
	}
	link, err := h.LinkByName(attrs.Name)
	if err != nil {
		return fmt.Errorf("find tunnel %s: %w", attrs.Name, err)
	}
	if err := h.LinkSetMaster(link, bridge); err != nil {
		return fmt.Errorf("put tunnel %s into its bridge: %w", attrs.Name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("start tunnel %s: %w", attrs.Name, err)
	}
	return nil
}

// forward tells a tunnel where a member is, or forgets it.
func (l sessionLinks) forward(h *netlink.Handle, s step) error {
	link, err := h.LinkByName(tunnelName(s.number))
	if err != nil {
		return fmt.Errorf("find tunnel %s: %w", tunnelName(s.number), err)
	}
	mac := memberMAC(s.member)
	to := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, State: netlink.NUD_PERMANENT,
		HardwareAddr: mac}
	neighbour := &netlink.Neigh{LinkIndex: link.Attrs().Index, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: s.member.AsSlice(),
		HardwareAddr: mac}
	if s.do == forgetMember {
		for _, n := range []*netlink.Neigh{to, neighbour} {
			if err := h.NeighDel(n); err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("forget member %s of network %d: %w", s.member, s.number, err)
			}
		}
		return nil
	}
	to.IP = s.host.AsSlice()
	if err := h.NeighSet(to); err != nil {
		return fmt.Errorf("forward to member %s of network %d: %w", s.member, s.number, err)
	}
	if err := h.NeighSet(neighbour); err != nil {
		return fmt.Errorf("answer for member %s of network %d: %w", s.member, s.number, err)
	}
	return nil
}

// connect gives a container its interface in the network of its session. Calling it again changes nothing.
func (l sessionLinks) connect(number uint32, w wanted, m cluster.NetworkMember, pid int, own uint64) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fault.Unavailablef("the network namespace of kernel %s cannot be opened", m.Kernel).WithCause(err)
	}
	defer ns.Close()
	inode, err := inodeOf(int(ns))
	if err != nil {
		return err
	}
	if inode == own {
		return fault.Unavailablef("process %d has the network of the host: the container of kernel %s has ended", pid, m.Kernel)
	}
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	bridge, err := h.LinkByName(bridgeName(number))
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridgeName(number), err)
	}
	name, alias := sessionPort(number, w.subnet, m.Address), fmt.Sprintf("%s %d", m.Kernel, inode)
	old, err := h.LinkByName(name)
	switch {
	case err == nil && old.Attrs().Alias != alias: // of an earlier container, or half made
		if err := removeLink(h, name); err != nil {
			return err
		}
		old = nil
	case err != nil && !noLink(err):
		return fmt.Errorf("look for interface %s: %w", name, err)
	case err != nil:
		old = nil
	}
	if old == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, w.mtu
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: SessionInterface, PeerNamespace: netlink.NsFd(int(ns)), PeerMTU: uint32(w.mtu),
			PeerHardwareAddr: memberMAC(m.Address)}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("make interface %s: %w", name, err)
		}
		if old, err = h.LinkByName(name); err != nil {
			return fmt.Errorf("find interface %s: %w", name, err)
		}
	}
	if err := h.LinkSetMaster(old, bridge); err != nil {
		return fmt.Errorf("put interface %s into bridge %s: %w", name, bridgeName(number), err)
	}
	if err := h.LinkSetUp(old); err != nil {
		return fmt.Errorf("start interface %s: %w", name, err)
	}
	if err := l.address(ns, w.subnet, m.Address); err != nil {
		return fmt.Errorf("configure the session interface of kernel %s: %w", m.Kernel, err)
	}
	if err := (links{}).carries(h, name); err != nil {
		return err
	}
	if err := h.LinkSetAlias(old, alias); err != nil {
		return fmt.Errorf("name the owner of interface %s: %w", name, err)
	}
	return nil
}

// disconnect removes a member's port.
func (l sessionLinks) disconnect(number uint32, subnet netip.Prefix, a netip.Addr) error {
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	return removeLink(h, sessionPort(number, subnet, a))
}

// address configures the container's end.
func (l sessionLinks) address(ns netns.NsHandle, subnet netip.Prefix, a netip.Addr) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(SessionInterface)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	if err := h.AddrReplace(link, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32)}}); err != nil {
		return fmt.Errorf("give it the address %s: %w", a, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("start it: %w", err)
	}
	return nil
}

// What VXLAN adds to a packet of a session, in bytes: an Ethernet header, its own, one of UDP and one of IPv4 or IPv6.
const (
	overhead4 = 14 + 8 + 8 + 20
	overhead6 = 14 + 8 + 8 + 40
	// maxSessionMTU bounds packets on ways that have no bound of their own, such as the host's own addresses.
	maxSessionMTU = 9000
)

// mtuTo is the size of the largest packet of a session that reaches a host without being cut: what the route to it takes, as far as the
// kernel has found out, without what VXLAN adds.
// It is 0 where the network is encrypted and no packet would arrive.
func (l sessionLinks) mtuTo(host netip.Addr, encrypted bool) int {
	way := l.wayTo(host)
	if encrypted {
		inside, ok := wireguard.MTU(way, host.Is4())
		if !ok {
			return 0
		}
		return min(inside-overhead6, maxSessionMTU)
	}
	if host.Is6() {
		return min(way-overhead6, maxSessionMTU)
	}
	return min(way-overhead4, maxSessionMTU)
}

// wayTo is the size of the largest packet that the way to a host takes, as far as the kernel has found out.
func (l sessionLinks) wayTo(host netip.Addr) int {
	h, err := links{ns: l.underlay}.handle()
	if err != nil {
		return defaultMTU
	}
	defer h.Close()
	routes, err := h.RouteGet(host.AsSlice())
	if err != nil || len(routes) == 0 {
		return defaultMTU
	}
	size := routes[0].MTU
	if link, err := h.LinkByIndex(routes[0].LinkIndex); err == nil && (size == 0 || link.Attrs().MTU < size) {
		size = link.Attrs().MTU
	}
	if size < 576 {
		return defaultMTU
	}
	return size
}

// ownAddress is the address that packets to other hosts come from: that of the default route.
func (l sessionLinks) ownAddress() netip.Addr {
	h, err := links{ns: l.underlay}.handle()
	if err != nil {
		return netip.Addr{}
	}
	defer h.Close()
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.LinkIndex == 0 {
				continue
			}
			if a, ok := netip.AddrFromSlice(r.Src); ok {
				return a.Unmap()
			}
			link, err := h.LinkByIndex(r.LinkIndex)
			if err != nil {
				continue
			}
			addrs, err := h.AddrList(link, family)
			if err != nil {
				continue
			}
			for _, a := range addrs {
				if ip, ok := netip.AddrFromSlice(a.IP); ok && a.Scope == int(netlink.SCOPE_UNIVERSE) {
					return ip.Unmap()
				}
			}
		}
	}
	return netip.Addr{}
}
