package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// links makes and looks at interfaces in the engine's network namespace.
type links struct {
	ns    int // descriptor of the namespace; 0 is that of this process
	ports string
}

// inside is the name of a session's interface.
const inside = "eth0"

func (l links) handle() (*netlink.Handle, error) {
	var h *netlink.Handle
	var err error
	if l.ns <= 0 {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	} else {
		h, err = netlink.NewHandleAt(netns.NsHandle(l.ns), unix.NETLINK_ROUTE)
	}
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return h, nil
}

// port is the name of the host's end of a session's interface. It holds the last two bytes of the address, so it is unique on
// the bridge.
func (l links) port(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("%s%02x%02x", l.ports, b[2], b[3])
}

// bridgeState says what is wrong with the bridge; "" when nothing is.
func (l links) bridgeState(h *netlink.Handle, bridge string, gateway netip.Addr) (netlink.Link, string, error) {
	link, err := h.LinkByName(bridge)
	var none netlink.LinkNotFoundError
	switch {
	case errors.As(err, &none):
		return nil, "the bridge " + bridge + " is missing", nil
	case err != nil:
		return nil, "", fmt.Errorf("look for bridge %s: %w", bridge, err)
	case link.Type() != "bridge":
		return nil, bridge + " is no bridge", nil
	case link.Attrs().Flags&net.FlagUp == 0:
		return link, "the bridge " + bridge + " is down", nil
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return nil, "", fmt.Errorf("read the addresses of bridge %s: %w", bridge, err)
	}
	for _, a := range addrs {
		if got, ok := netip.AddrFromSlice(a.IP.To4()); ok && got == gateway {
			return link, "", nil
		}
	}
	return link, fmt.Sprintf("the bridge %s does not have the address %s", bridge, gateway), nil
}

// found is a port of the bridge that exists.
type found struct {
	link    netlink.Link
	kernel  cluster.KernelID
	address netip.Addr
}

// list returns the ports of this agent, also those that lost their bridge.
func (l links) list(h *netlink.Handle, subnet netip.Prefix) ([]found, error) {
	all, err := h.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var out []found
	for _, link := range all {
		name := link.Attrs().Name
		rest, ok := strings.CutPrefix(name, l.ports)
		var low uint16
		if _, err := fmt.Sscanf(rest, "%04x", &low); !ok || err != nil || len(rest) != 4 {
			continue
		}
		b := subnet.Addr().As4()
		kernel, _, _ := strings.Cut(link.Attrs().Alias, " ")
		out = append(out, found{link, cluster.KernelID(kernel), netip.AddrFrom4([4]byte{b[0], b[1], byte(low >> 8), byte(low)})})
	}
	return out, nil
}

// connect gives the process's network namespace an interface on the bridge. Calling it again changes nothing. The interface
// has no neighbours: its port is isolated.
func (l links) connect(bridge string, subnet netip.Prefix, a netip.Addr, kernel cluster.KernelID, pid int, own uint64) error {
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return fault.Unavailablef("the network namespace of kernel %s cannot be opened", kernel).WithCause(err)
	}
	defer ns.Close()
	inode, err := inodeOf(int(ns))
	if err != nil {
		return err
	}
	if inode == own {
		return fault.Unavailablef("process %d has the network of the host: the container of kernel %s has ended", pid, kernel)
	}
	h, err := l.handle()
	if err != nil {
		return err
	}
	defer h.Close()
	master, err := h.LinkByName(bridge)
	if err != nil {
		return fmt.Errorf("find bridge %s: %w", bridge, err)
	}
	name, alias := l.port(a), fmt.Sprintf("%s %d", kernel, inode)
	old, err := h.LinkByName(name)
	if err == nil && old.Attrs().Alias != alias {
		// An earlier container had the address. Its interface is being removed with its namespace.
		if err := h.LinkDel(old); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("remove interface %s: %w", name, err)
		}
		err = netlink.LinkNotFoundError{}
		old = nil
	}
	var none netlink.LinkNotFoundError
	if err != nil && !errors.As(err, &none) {
		return fmt.Errorf("look for interface %s: %w", name, err)
	}
	if old == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = name, l.mtu(h)
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: inside, PeerNamespace: netlink.NsFd(int(ns)), PeerMTU: uint32(attrs.MTU)}
		if err := h.LinkAdd(veth); err != nil {
			return fmt.Errorf("make interface %s: %w", name, err)
		}
		if old, err = h.LinkByName(name); err != nil {
			return fmt.Errorf("find interface %s: %w", name, err)
		}
	}
	if err := l.plug(h, old, master); err != nil {
		return err
	}
	if err := l.address(ns, subnet, a, func() error { return l.carries(h, name) }); err != nil {
		return fmt.Errorf("configure the interface of kernel %s: %w", kernel, err)
	}
	// The name of its owner comes last: without it the next attempt begins anew.
	if err := h.LinkSetAlias(old, alias); err != nil {
		return fmt.Errorf("name the owner of interface %s: %w", name, err)
	}
	return nil
}

// plug makes an interface an isolated port of the bridge that is up.
func (l links) plug(h *netlink.Handle, port, bridge netlink.Link) error {
	name := port.Attrs().Name
	if port.Attrs().MasterIndex != bridge.Attrs().Index {
		if err := h.LinkSetMaster(port, bridge); err != nil {
			return fmt.Errorf("put interface %s into bridge %s: %w", name, bridge.Attrs().Name, err)
		}
	}
	if err := h.LinkSetIsolated(port, true); err != nil && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("isolate interface %s: %w", name, err)
	}
	if err := h.LinkSetUp(port); err != nil {
		return fmt.Errorf("start interface %s: %w", name, err)
	}
	return nil
}

// carrierWait bounds the wait for a new port to carry packets; the kernel takes milliseconds, on a busy host up to a second.
const (
	carrierWait  = 1500 * time.Millisecond
	carrierPause = time.Millisecond
)

// carries waits until the bridge forwards what comes from a port. Packets before that are lost, and are sent again a second later.
func (l links) carries(h *netlink.Handle, name string) error {
	for deadline := time.Now().Add(carrierWait); ; time.Sleep(carrierPause) {
		link, err := h.LinkByName(name)
		if err != nil {
			return fmt.Errorf("look at interface %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp || time.Now().After(deadline) {
			return nil
		}
	}
}

// address configures the session's end. The route, for which the runner waits, comes when the port is ready.
func (l links) address(ns netns.NsHandle, subnet netip.Prefix, a netip.Addr, ready func() error) error {
	h, err := netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(inside)
	if err != nil {
		return fmt.Errorf("find it: %w", err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(subnet.Bits(), 32)}}
	if err := h.AddrReplace(link, addr); err != nil {
		return fmt.Errorf("give it the address %s: %w", a, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("start it: %w", err)
	}
	if err := ready(); err != nil {
		return err
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: gatewayOf(subnet).AsSlice()}
	if err := h.RouteReplace(route); err != nil {
		return fmt.Errorf("set its route: %w", err)
	}
	return nil
}

// mtu is that of the interface with the default route: larger packets would not leave the host.
func (l links) mtu(h *netlink.Handle) int {
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return defaultMTU
	}
	for _, r := range routes {
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() || r.LinkIndex == 0 {
			continue
		}
		if link, err := h.LinkByIndex(r.LinkIndex); err == nil && link.Attrs().MTU >= 576 {
			return min(link.Attrs().MTU, defaultMTU)
		}
	}
	return defaultMTU
}

const defaultMTU = 1500

// near are the networks that the host itself is in, and the destinations of its routes: its neighbours. Those of the bridge
// are left out.
func (l links) near(h *netlink.Handle, bridge string) ([]netip.Prefix, error) {
	addrs, err := h.AddrList(nil, netlink.FAMILY_V4)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read the host's addresses: %w", err)
	}
	var out []netip.Prefix
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP.To4()); ok && a.IPNet != nil {
			if link, err := h.LinkByIndex(a.LinkIndex); err == nil && link.Attrs().Name == bridge {
				continue
			}
			if ones, _ := a.IPNet.Mask.Size(); ones >= 8 { // wider ones are tunnels that stand for everything
				out = append(out, netip.PrefixFrom(ip, ones).Masked())
			}
		}
	}
	return out, nil
}

// routed are the destinations of the host's routes but the default ones.
func (l links) routed(h *netlink.Handle) ([]netip.Prefix, error) {
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("read the host's routes: %w", err)
	}
	var out []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil {
			continue
		}
		ip, ok := netip.AddrFromSlice(r.Dst.IP.To4())
		if ones, _ := r.Dst.Mask.Size(); ok && ones > 0 {
			out = append(out, netip.PrefixFrom(ip, ones))
		}
	}
	return out, nil
}

// openNamespace opens the network namespace of the engine. The descriptor is 0 when it is that of this process, which needs no
// rights to be entered.
func openNamespace(pid int) (fd int, inode uint64, err error) {
	own, err := netns.Get() // of this thread: another one may be in another namespace for a moment
	if err != nil {
		return 0, 0, fmt.Errorf("open the network namespace: %w", err)
	}
	defer own.Close()
	if inode, err = inodeOf(int(own)); err != nil {
		return 0, 0, err
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		return 0, 0, fmt.Errorf("open the network namespace of the container engine (process %d): %w", pid, err)
	}
	theirs, err := inodeOf(int(ns))
	if err != nil || theirs == inode {
		_ = ns.Close()
		return 0, inode, err
	}
	return int(ns), theirs, nil
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("identify a network namespace: %w", err)
	}
	return st.Ino, nil
}
