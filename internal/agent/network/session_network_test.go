package network_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/network"
	engine "berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// pair is two hosts with an agent each, and a cable between them.
type pair struct {
	testing.TB
	one, two  *world
	a, b      *network.Network
	addresses map[cluster.AgentID]string
	states    map[cluster.AgentID]string // directories
}

const (
	cableMTU = 1400
	oneHost  = "192.0.2.1"
	twoHost  = "192.0.2.2"
	one6     = "fd00:77::1"
	two6     = "fd00:77::2"
)

func newPair(t testing.TB) *pair {
	t.Helper()
	return newPairAt(t, oneHost, twoHost)
}

// newPairAt has agents that are reached at these addresses of the cable.
func newPairAt(t testing.TB, one, two string) *pair {
	t.Helper()
	p := &pair{TB: t, one: newWorld(t), two: newWorld(t), addresses: map[cluster.AgentID]string{"one": one, "two": two}}
	p.one.in(p.one.pid, func() error {
		ns, err := netns.GetFromPid(p.two.pid)
		if err != nil {
			return err
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU = "cable", cableMTU
		return errors.Join(
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "cable", PeerNamespace: netlink.NsFd(int(ns)), PeerMTU: cableMTU}),
			addressed("cable", oneHost+"/24"))
	})
	p.two.in(p.two.pid, func() error { return addressed("cable", twoHost+"/24") })
	for _, end := range []struct {
		w       *world
		address string
	}{{p.one, one6}, {p.two, two6}} {
		end.w.in(end.w.pid, func() error {
			l, err := netlink.LinkByName("cable")
			if err != nil {
				return err
			}
			a, err := netlink.ParseAddr(end.address + "/64")
			if err != nil {
				return err
			}
			a.Flags = unix.IFA_F_NODAD // nobody else is on the cable
			return netlink.AddrReplace(l, a)
		})
	}
	p.a, p.b = p.agent(p.one, "one"), p.agent(p.two, "two")
	return p
}

func (p *pair) options(w *world, agent cluster.AgentID) network.Options {
	o := w.options(func(c *network.Config) { c.Address = p.addresses[agent] })
	o.Scope, o.Agent = p.Name(), agent
	if p.states == nil {
		p.states = map[cluster.AgentID]string{}
	}
	if p.states[agent] == "" {
		p.states[agent] = p.TempDir()
	}
	o.StateDir = p.states[agent]
	return o
}

func (p *pair) agent(w *world, agent cluster.AgentID) *network.Network {
	p.Helper()
	o := p.options(w, agent)
	n, err := network.New(o)
	require.NoError(p, err)
	p.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(p, network.Remove(ctx, o))
	})
	p.Cleanup(n.Close)
	require.NoError(p, n.Check(p.Context()))
	for _, s := range n.Warnings() {
		p.Skipf("this kernel cannot guard a network: %s", s)
	}
	return n
}

// member is one kernel of the sessions that the tests start.
func member(kernel cluster.KernelID, name, address string, agent cluster.AgentID) cluster.NetworkMember {
	host := map[cluster.AgentID]string{"one": oneHost, "two": twoHost}[agent]
	return cluster.NetworkMember{Kernel: kernel, Name: name, Address: netip.MustParseAddr(address), Agent: agent,
		Host: netip.MustParseAddr(host)}
}

// start starts a kernel in the network of its session and returns the pid of a process in it.
func (p *pair) start(w *world, n *network.Network, kernel cluster.KernelID, s *cluster.SessionNetwork) (pid int) {
	p.Helper()
	n.SetNetwork(kernel, s)
	place, err := n.Join(kernel, cluster.Egress{})
	require.NoError(p, err)
	me, _ := s.Member(kernel)
	require.Equal(p, me.Address.String(), place.Session)
	pid, _ = w.session(n, kernel, "open")
	return pid
}

const eve cluster.KernelID = "0b5e4a3c-0000-4000-8000-00000000000e"

func TestKernelsOfOneSessionReachEachOther(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	session := &cluster.SessionNetwork{Number: 4, Subnet: netip.MustParsePrefix("10.223.0.0/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.0.1", "one"), member(bob, "sub1", "10.223.0.2", "one"), member(carl, "sub2", "10.223.0.3", "two")}}
	stranger := &cluster.SessionNetwork{Number: 5, Subnet: netip.MustParsePrefix("10.223.0.64/26"), Members: []cluster.NetworkMember{
		member(dora, "main1", "10.223.0.65", "two"), member(eve, "sub1", "10.223.0.66", "one")}}
	require.Equal(t, oneHost, p.a.Address())

	adaPID := p.start(p.one, p.a, ada, session)
	place, err := p.a.Join(ada, cluster.Egress{})
	require.NoError(t, err)
	require.Equal(t, []string{"sub1:10.223.0.2", "sub2:10.223.0.3"}, place.Peers)
	bobPID := p.start(p.one, p.a, bob, session)
	carlPID := p.start(p.two, p.b, carl, session)
	doraPID := p.start(p.two, p.b, dora, stranger)
	evePID := p.start(p.one, p.a, eve, stranger)

	for _, way := range []struct {
		what string
		pid  int
		to   string
	}{
		{"on its own agent", adaPID, "10.223.0.2"}, {"over two agents", adaPID, "10.223.0.3"}, {"and back", carlPID, "10.223.0.1"},
		{"to the other", carlPID, "10.223.0.2"}, {"itself", bobPID, "10.223.0.2"}, {"of the other session", doraPID, "10.223.0.66"},
	} {
		require.True(t, p.one.comesToReach(way.pid, "tcp", way.to+":8000"), way.what)
	}
	for _, way := range []struct {
		pid int
		to  string
	}{{doraPID, "10.223.0.3"}, {doraPID, "10.223.0.1"}, {evePID, "10.223.0.1"}, {adaPID, "10.223.0.65"}, {bobPID, "10.223.0.66"}} {
		require.False(t, p.one.reaches(way.pid, "tcp", way.to+":8000"), "a member of another session reaches %s", way.to)
	}
	for _, to := range []string{oneHost, twoHost, "10.99.0.1"} {
		require.False(t, p.one.reaches(adaPID, "tcp", to+":7000"), "a host")
	}
	require.Equal(t, cableMTU-50, p.mtu(adaPID), "what fits into a packet of the cable")

	// With the address of another of its own session, or of the other one, nothing is sent.
	p.two.in(carlPID, func() error {
		l, err := netlink.LinkByName("eth1")
		if err != nil {
			return err
		}
		own, err := netlink.ParseAddr("10.223.0.3/26")
		return errors.Join(err, netlink.AddrDel(l, own), addressed("eth1", "10.223.0.9/26"))
	})
	require.False(t, p.one.reaches(carlPID, "tcp", "10.223.0.1:8000"), "an address of nobody")
	p.two.in(carlPID, func() error { return addressed("eth1", "10.223.0.3/26") })
}

func (p *pair) mtu(pid int) (size int) {
	p.one.in(pid, func() error {
		l, err := netlink.LinkByName("eth1")
		if err == nil {
			size = l.Attrs().MTU
		}
		return err
	})
	return size
}

// talk opens a connection from a process to a member that repeats what it hears; say fails when it does not.
func (p *pair) talk(from, to int, address string) (say func()) {
	p.Helper()
	p.one.in(to, func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		p.Cleanup(func() { _ = l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				p.Cleanup(func() { _ = c.Close() })
				_, _ = io.Copy(c, c)
			}
		}()
		return nil
	})
	var c net.Conn
	p.one.in(from, func() (err error) {
		c, err = net.DialTimeout("tcp", address, patience)
		return err
	})
	p.Cleanup(func() { _ = c.Close() })
	return func() {
		p.Helper()
		require.NoError(p, c.SetDeadline(time.Now().Add(patience)))
		_, err := io.WriteString(c, "hello")
		require.NoError(p, err)
		b := make([]byte, 5)
		_, err = io.ReadFull(c, b)
		require.NoError(p, err)
	}
}

// links names the interfaces in the namespace of an agent's session networks; nil when it has none.
func (p *pair) links(space string) (names []string) {
	p.Helper()
	ns, err := netns.GetFromName(space)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	require.NoError(p, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	require.NoError(p, err)
	defer h.Close()
	all, err := h.LinkList()
	require.NoError(p, err)
	for _, l := range all {
		if l.Attrs().Name != "lo" {
			names = append(names, l.Attrs().Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestNetworksOfSessionsOutliveTheirAgent(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	session := &cluster.SessionNetwork{Number: 9, Subnet: netip.MustParsePrefix("10.223.1.0/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.1.1", "one"), member(carl, "sub1", "10.223.1.2", "two")}}
	adaPID, carlPID := p.start(p.one, p.a, ada, session), p.start(p.two, p.b, carl, session)
	say := p.talk(adaPID, carlPID, "10.223.1.2:9000")
	say()

	// The agent is killed and starts again: nothing is torn down, whether the manager has spoken or not.
	place, err := p.a.Join(ada, cluster.Egress{})
	require.NoError(t, err)
	p.one.present = []engine.Observed{{Identity: engine.Identity{Kernel: ada, Address: place.Address}}}
	again, err := network.New(p.options(p.one, "one"))
	require.NoError(t, err)
	require.NoError(t, again.Check(t.Context()))
	say()
	again.SetNetwork(ada, session)
	require.NoError(t, again.Check(t.Context()))
	say()
	require.Contains(t, p.links(again.SessionSpace()), "vx9")

	// What somebody broke is made again.
	p.inSpace(again.SessionSpace(), func(h *netlink.Handle) error {
		l, err := h.LinkByName("vx9")
		return errors.Join(err, h.LinkDel(l))
	})
	require.NoError(t, again.Check(t.Context()))
	say()

	// The other agent is gone, and its kernel runs nowhere: nothing is sent to it.
	alone := &cluster.SessionNetwork{Number: 9, Subnet: session.Subnet, Members: []cluster.NetworkMember{session.Members[0],
		{Kernel: carl, Name: "sub1", Address: netip.MustParseAddr("10.223.1.2")}}}
	again.SetNetwork(ada, alone)
	require.NoError(t, again.Check(t.Context()))
	require.NotContains(t, p.links(again.SessionSpace()), "vx9")
	again.SetNetwork(ada, session)
	require.NoError(t, again.Check(t.Context()))
	require.True(t, p.one.comesToReach(adaPID, "tcp", "10.223.1.2:8000"), "it returned")

	// The last kernel of the session here takes its network away.
	require.NoError(t, syscall.Kill(adaPID, syscall.SIGKILL)) // its network namespace goes with it
	again.Release(ada)
	require.Eventually(t, func() bool {
		require.NoError(t, again.Check(t.Context()))
		return len(p.links(again.SessionSpace())) == 0
	}, 30*time.Second, 20*time.Millisecond, "something is left: %s", strings.Join(p.links(again.SessionSpace()), " "))
}

func (p *pair) inSpace(space string, do func(h *netlink.Handle) error) {
	p.Helper()
	ns, err := netns.GetFromName(space)
	require.NoError(p, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	require.NoError(p, err)
	defer h.Close()
	require.NoError(p, do(h))
}

// inNamespace runs do in a named network namespace.
func (p *pair) inNamespace(name string, do func() error) {
	p.Helper()
	ns, err := netns.GetFromName(name)
	require.NoError(p, err)
	defer ns.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if err := netns.Set(ns); err != nil {
			done <- err
			return
		}
		done <- do()
	}()
	require.NoError(p, await.Value(p, done))
}

// TestOnlyAgentsSendIntoNetworksOfSessions: VXLAN itself believes every packet that arrives at its port.
func TestOnlyAgentsSendIntoNetworksOfSessions(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	session := &cluster.SessionNetwork{Number: 11, Subnet: netip.MustParsePrefix("10.223.2.0/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.2.1", "one"), member(carl, "sub1", "10.223.2.2", "two")}}
	adaPID := p.start(p.one, p.a, ada, session)
	heard := make(chan string, 16)
	p.hear(adaPID, "10.223.2.1", heard)
	packet := func(text string) []byte { return vxlan(0x620000+11, "10.223.2.2", "10.223.2.1", 5000, text) }
	// Who is no agent of the session speaks first; the agent's packet, which comes after it, is the first to arrive.
	intruder := p.one.namespace()
	p.one.in(p.one.pid, func() error {
		ns, err := netns.GetFromPid(intruder)
		if err != nil {
			return err
		}
		defer ns.Close()
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "evil0"
		return errors.Join(netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "evil1", PeerNamespace: netlink.NsFd(int(ns))}),
			addressed("evil0", "198.51.100.1/24"))
	})
	p.one.in(intruder, func() error { return addressed("evil1", "198.51.100.2/24") })
	for range 3 {
		p.send(p.one, intruder, "198.51.100.1", packet("intruder"))
	}
	p.send(p.two, p.two.pid, oneHost, packet("agent"))
	require.Equal(t, "agent", await.Value(t, heard))
}

// hear passes on what a process hears at UDP port 5000 of its address.
func (p *pair) hear(pid int, address string, heard chan<- string) {
	p.Helper()
	p.one.in(pid, func() error {
		c, err := net.ListenPacket("udp4", address+":5000")
		if err != nil {
			return err
		}
		p.Cleanup(func() { _ = c.Close() })
		go func() {
			b := make([]byte, 64)
			for {
				n, _, err := c.ReadFrom(b)
				if err != nil {
					return
				}
				heard <- string(b[:n])
			}
		}()
		return nil
	})
}

// send sends a packet to the tunnels of a host.
func (p *pair) send(w *world, pid int, host string, packet []byte) {
	p.Helper()
	w.in(pid, func() error {
		c, err := net.Dial("udp4", host+":4799")
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write(packet)
		return err
	})
}

// vxlan is a packet of UDP between two members, as an agent sends it to another (RFC 7348).
func vxlan(vni uint32, from, to string, port uint16, text string) []byte {
	a, b := netip.MustParseAddr(from).As4(), netip.MustParseAddr(to).As4()
	out := binary.BigEndian.AppendUint32([]byte{8, 0, 0, 0}, vni<<8)
	out = append(append(out, 0x02, 0x63), b[:]...)
	out = append(append(out, 0x02, 0x63), a[:]...)
	out = append(out, 0x08, 0x00)
	ip := []byte{0x45, 0, 0, byte(28 + len(text)), 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, a[:]...), b[:]...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	out = binary.BigEndian.AppendUint16(append(out, ip...), 6000)
	out = binary.BigEndian.AppendUint16(out, port)
	out = binary.BigEndian.AppendUint16(out, uint16(8+len(text)))
	return append(append(out, 0, 0), text...)
}

// TestSessionsOfSeveralKernelsWithoutAnAddress: an agent that others cannot reach says so instead of starting a kernel alone.
func TestSessionsOfSeveralKernelsWithoutAnAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.options()
	o.Scope = t.Name()
	n, err := network.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Remove(context.Background(), o)) })
	require.NoError(t, n.Check(t.Context()))
	require.Empty(t, n.Address(), "the host has no default route")
	far := member(bob, "sub1", "10.223.0.2", "two")
	n.SetNetwork(ada, &cluster.SessionNetwork{Number: 1, Subnet: netip.MustParsePrefix("10.223.0.0/26"), Members: []cluster.NetworkMember{
		{Kernel: ada, Name: "main1", Address: netip.MustParseAddr("10.223.0.1"), Agent: o.Agent}, far}})
	_, err = n.Join(ada, cluster.Egress{})
	require.ErrorContains(t, err, "no address is known")
}

// TestAgentsReachEachOtherByIPv6: the kernels' own addresses are of IPv4 all the same.
func TestAgentsReachEachOtherByIPv6(t *testing.T) {
	t.Parallel()
	p := newPairAt(t, one6, two6)
	at := func(m cluster.NetworkMember) cluster.NetworkMember {
		m.Host = netip.MustParseAddr(p.addresses[m.Agent])
		return m
	}
	session := &cluster.SessionNetwork{Number: 31, Subnet: netip.MustParsePrefix("10.223.4.0/26"), Members: []cluster.NetworkMember{
		at(member(ada, "main1", "10.223.4.1", "one")), at(member(carl, "sub1", "10.223.4.2", "two"))}}
	adaPID, carlPID := p.start(p.one, p.a, ada, session), p.start(p.two, p.b, carl, session)
	require.True(t, p.one.comesToReach(adaPID, "tcp", "10.223.4.2:8000"))
	require.True(t, p.one.comesToReach(carlPID, "tcp", "10.223.4.1:8000"))
	require.Equal(t, cableMTU-70, p.mtu(adaPID))
	require.NoError(t, p.a.Check(t.Context()))
	require.True(t, p.one.comesToReach(adaPID, "tcp", "10.223.4.2:8000"), "a look changes nothing")
}

// TestAgentsThatCannotMeetSaySo: a kernel that would wait for the others for ever does not start.
func TestAgentsThatCannotMeetSaySo(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for host, says := range map[string]string{one6: "which are of two kinds", oneHost: "as this one is"} {
		other := member(carl, "sub1", "10.223.5.2", "two")
		other.Host = netip.MustParseAddr(host)
		p.a.SetNetwork(ada, &cluster.SessionNetwork{Number: 41, Subnet: netip.MustParsePrefix("10.223.5.0/26"),
			Members: []cluster.NetworkMember{member(ada, "main1", "10.223.5.1", "one"), other}})
		_, err := p.a.Join(ada, cluster.Egress{})
		require.ErrorContains(t, err, says)
		require.True(t, fault.Is(err, fault.Conflict))
	}
}

// TestAgentsSendIntoTheirOwnSessionsAlone: a compromised agent that holds a kernel of one session sends into no other.
func TestAgentsSendIntoTheirOwnSessionsAlone(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	shared := &cluster.SessionNetwork{Number: 51, Subnet: netip.MustParsePrefix("10.223.6.0/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.6.1", "one"), member(carl, "sub1", "10.223.6.2", "two")}}
	other := &cluster.SessionNetwork{Number: 52, Subnet: netip.MustParsePrefix("10.223.6.64/26"), Members: []cluster.NetworkMember{
		member(bob, "main1", "10.223.6.65", "one"),
		{Kernel: dora, Name: "sub1", Address: netip.MustParseAddr("10.223.6.66"), Agent: "three", Host: netip.MustParseAddr("192.0.2.3")}}}
	heard := make(chan string, 16)
	p.hear(p.start(p.one, p.a, ada, shared), "10.223.6.1", heard)
	p.hear(p.start(p.one, p.a, bob, other), "10.223.6.65", heard)
	for range 3 {
		p.send(p.two, p.two.pid, oneHost, vxlan(0x620000+52, "10.223.6.66", "10.223.6.65", 5000, "forged"))
	}
	p.send(p.two, p.two.pid, oneHost, vxlan(0x620000+51, "10.223.6.2", "10.223.6.1", 5000, "agent"))
	require.Equal(t, "agent", await.Value(t, heard))
}
