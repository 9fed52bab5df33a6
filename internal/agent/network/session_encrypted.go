package network

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// encrypted is this agent's end of encrypted tunnels. The device is in a network namespace of its own, and so is where VXLAN of encrypted
// networks begins: what does not leave through the device does not leave. It is there while a network here needs it.
type encrypted struct {
	closed bool // the agent ends
	known  bool // key is this agent's
	key    wireguard.Key
	device *wireguard.Device
	// underlay is a descriptor of the engine's namespace, of which inode is the number, as long as the device is there.
	underlay int
	inode    uint64
	peers    []wireguard.Peer
	// problem is why nothing can be encrypted; nil when it can.
	problem error
}

// tunnelMTU is the size of packets inside of encrypted tunnels: room for the largest packet of any session with VXLAN around it. How large
// packets of one session are follows from the ways to its agents.
const tunnelMTU = (maxSessionMTU + overhead6 + 15) &^ 15

// encryptedSpaceName is the name of the network namespace of the encrypted tunnel.
func (n *Network) encryptedSpaceName() string { return n.spaceName() + "-wg" }

// Tunnel is what other agents need for encrypted tunnels to this one: its public key and the UDP port at its address. problem says why it
// carries no encrypted networks now; "" when it may.
func (n *Network) Tunnel() (key string, port int, problem string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := &n.sessions
	if s.encrypted.known {
		key, port = s.encrypted.key.Public().String(), int(n.set.encryptedPort)
	}
	switch {
	case !n.guarded:
		problem = "its engine connects the containers"
	case s.problem != nil:
		problem = s.problem.Error()
	case s.encrypted.problem != nil:
		problem = s.encrypted.problem.Error()
	case !s.own.IsValid():
		problem = "no address is known at which other agents reach it"
	case key == "":
		problem = "its networks are being made"
	}
	return key, port, problem
}

// crosses reports whether a network is encrypted and has members on other agents.
func (n *Network) crosses(w *cluster.SessionNetwork) bool {
	return w.Encrypted && slices.ContainsFunc(w.Members, func(m cluster.NetworkMember) bool {
		return m.Agent != n.o.Agent && m.Agent != ""
	})
}

// encrypts reports whether a network here is to be encrypted on its way to other agents.
func (n *Network) encrypts() bool {
	for _, w := range n.sessions.kernels {
		if n.crosses(w) {
			return true
		}
	}
	return false
}

// inner is this agent's address inside of encrypted tunnels; not valid while it has no key.
func (e *encrypted) inner() netip.Addr {
	if !e.known {
		return netip.Addr{}
	}
	return e.key.Public().Inner()
}

// unencrypted says why what this agent sends to a member's cannot be encrypted; nil when it can. The caller holds mu.
func (n *Network) unencrypted(m cluster.NetworkMember) error {
	s := &n.sessions
	own := netip.AddrPortFrom(s.own, n.set.encryptedPort)
	switch key, err := wireguard.ParsePublicKey(m.Tunnel.Key); {
	case s.encrypted.problem != nil:
		return s.encrypted.problem
	case !s.own.IsValid() || !s.encrypted.known:
		return errors.New("no address is known at which other agents reach it")
	case err != nil || !m.Tunnel.Endpoint.IsValid():
		return fmt.Errorf("agent %s does not say how networks to it are encrypted", m.Agent)
	case key == s.encrypted.key.Public():
		return fmt.Errorf("agent %s has the same key as this one", m.Agent)
	case m.Tunnel.Endpoint == own:
		return fmt.Errorf("agent %s is reached at %s, as this one is", m.Agent, own)
	case m.Tunnel.Endpoint.Addr().Is4() != s.own.Is4():
		return fmt.Errorf("agent %s is reached at %s and this one at %s, which are of two kinds", m.Agent, m.Tunnel.Endpoint, own)
	case s.links.mtuTo(m.Tunnel.Endpoint.Addr(), true) <= 0:
		return fmt.Errorf("the way to agent %s takes packets that are too small to be encrypted", m.Agent)
	}
	return nil
}

// readyTunnel makes the encrypted tunnel ready when a network here needs it, with nobody at its other end, and takes it away when none
// does. It reports whether there is news for other agents. The caller holds mu.
func (n *Network) readyTunnel() (news bool) {
	e := &n.sessions.encrypted
	known, before := e.known, e.problem
	e.problem = n.openTunnel()
	if e.problem != nil {
		n.closeTunnel()
	}
	return known != e.known || (before == nil) != (e.problem == nil) || before != nil && before.Error() != e.problem.Error()
}

func (n *Network) openTunnel() error {
	e := &n.sessions.encrypted
	if e.closed {
		return fault.Unavailablef("the agent ends")
	}
	if err := wireguard.Supported(); err != nil {
		return err
	}
	if !e.known {
		key, err := n.loadKey()
		if err != nil {
			return err
		}
		e.key, e.known = key, true
	}
	l := &n.sessions.links
	if l.encrypted > 0 { // somebody may have removed the namespace
		if h, err := (links{ns: l.encrypted}).handle(); err == nil {
			h.Close()
		} else {
			n.closeTunnel()
			_ = unix.Close(l.encrypted)
			l.encrypted = 0
		}
	}
	needed := n.encrypts()
	if l.encrypted == 0 {
		ns, err := openSessionSpace(n.encryptedSpaceName(), needed)
		if err != nil {
			return err
		}
		l.encrypted = ns
	}
	if !needed {
		n.closeTunnel()
		return nil
	}
	if e.device != nil && e.inode == n.inode {
		select {
		case <-e.device.Done():
		default:
			return nil
		}
	}
	n.closeTunnel()
	underlay, err := keptNamespace(n.ns)
	if err != nil {
		return err
	}
	device, err := wireguard.Open(wireguard.Options{Key: e.key, Port: n.set.encryptedPort, Space: l.encrypted, Underlay: underlay,
		MTU: tunnelMTU, Log: n.o.Log, Now: n.o.Clock.Now})
	if err != nil {
		_ = unix.Close(underlay)
		return err
	}
	e.device, e.underlay, e.inode, e.peers = device, underlay, n.inode, nil
	return nil
}

// keptNamespace opens a network namespace once more, 0 is that of this process.
func keptNamespace(ns int) (int, error) {
	if ns > 0 {
		fd, err := unix.FcntlInt(uintptr(ns), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("keep the network namespace of the container engine: %w", err)
		}
		return fd, nil
	}
	fd, err := netns.GetFromPid(os.Getpid())
	if err != nil {
		return 0, fmt.Errorf("open the network namespace of this process: %w", err)
	}
	return int(fd), nil
}

func (n *Network) loadKey() (wireguard.Key, error) {
	if n.o.StateDir == "" {
		return wireguard.Key{}, fault.Unavailablef("this agent has nowhere to keep the key of encrypted tunnels")
	}
	state, err := os.OpenRoot(n.o.StateDir)
	if err != nil {
		return wireguard.Key{}, fmt.Errorf("open the agent's state directory: %w", err)
	}
	defer state.Close()
	return wireguard.LoadKey(state, rand.Reader)
}

// closeTunnel ends the encrypted tunnel. VXLAN in it stays and finds no way. The caller holds mu.
func (n *Network) closeTunnel() {
	e := &n.sessions.encrypted
	if e.device == nil {
		return
	}
	e.device.Close()
	_ = unix.Close(e.underlay)
	e.device, e.underlay, e.inode, e.peers = nil, 0, 0, nil
}

// meet makes these agents the ones at the other ends of the encrypted tunnel. While rules cannot be set, held is false, and only those stay
// that were there before. The caller holds mu.
func (e *encrypted) meet(peers []wireguard.Peer, held bool) error {
	if e.device == nil {
		return nil
	}
	if !held {
		peers = slices.DeleteFunc(slices.Clone(peers), func(p wireguard.Peer) bool { return !slices.Contains(e.peers, p) })
	}
	e.peers = nil // when it fails, nobody is heard
	if err := e.device.Set(peers); err != nil {
		return err
	}
	e.peers = peers
	return nil
}
