package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"berth.dev/berth/internal/agent/network"
	engine "berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/wireguard"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// newEncryptedPair has two agents that can encrypt. Where this host cannot, the test is skipped.
func newEncryptedPair(t testing.TB) *pair {
	t.Helper()
	if err := wireguard.Supported(); err != nil {
		t.Skipf("%v", err)
	}
	p := newPair(t)
	for _, n := range []*network.Network{p.a, p.b} {
		_, port, problem := n.Tunnel()
		require.Empty(t, problem)
		require.Equal(t, 4798, port)
	}
	return p
}

// sealed is a member of an encrypted network, as managers name it: with its agent's end of tunnels, and without where it is in clear.
func (p *pair) sealed(kernel cluster.KernelID, name, address string, agent cluster.AgentID) cluster.NetworkMember {
	p.Helper()
	m := member(kernel, name, address, agent)
	key, port, _ := map[cluster.AgentID]*network.Network{"one": p.a, "two": p.b}[agent].Tunnel()
	m.Tunnel = cluster.Tunnel{Key: key, Endpoint: netip.AddrPortFrom(m.Host, uint16(port))}
	m.Host = netip.Addr{}
	return m
}

func (p *pair) encrypted(number uint32, subnet string, members ...cluster.NetworkMember) *cluster.SessionNetwork {
	return &cluster.SessionNetwork{Number: number, Subnet: netip.MustParsePrefix(subnet), Members: members, Encrypted: true}
}

// cable looks at all packets between the two hosts.
type cable struct {
	mu       sync.Mutex
	sealed   int
	clear    []string
	contents bool
	mark     func()
	marks    int
}

const secretWord = "the-word-that-nobody-on-the-wire-may-read"

func (p *pair) watch() *cable {
	p.Helper()
	c, fd := &cable{}, -1
	c.mark = func() {
		p.one.in(p.one.pid, func() error {
			u, err := net.Dial("udp4", twoHost+":9")
			if err != nil {
				return err
			}
			defer u.Close()
			_, _ = io.WriteString(u, "mark") // nobody listens
			return nil
		})
	}
	p.one.in(p.one.pid, func() (err error) {
		const all = unix.ETH_P_ALL
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all<<8); err != nil {
			return err
		}
		return unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	})
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 1<<16)
		for {
			if n, from, err := unix.Recvfrom(fd, b, 0); err == nil {
				if at, ok := from.(*unix.SockaddrLinklayer); ok && at.Pkttype != unix.PACKET_LOOPBACK {
					c.note(b[:n])
				}
				continue
			}
			select {
			case <-end:
				return
			default:
			}
		}
	}()
	p.Cleanup(func() { close(end); <-ended; _ = unix.Close(fd) })
	return c
}

// note sorts a packet. The engine's bridge is in this namespace, too; what matters is UDP of one of the two ports, and the contents.
func (c *cable) note(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.contents = c.contents || bytes.Contains(p, []byte(secretWord))
	if len(p) < 42 || p[12] != 8 || p[13] != 0 || p[23] != unix.IPPROTO_UDP {
		return
	}
	switch port := int(p[36])<<8 | int(p[37]); port {
	case 4798:
		c.sealed++
	case 9:
		c.marks++
	case 4799:
		c.clear = append(c.clear, fmt.Sprintf("%x", p[14:42]))
	}
}

// clean fails when something was in clear among what has been sent so far. All of it has been seen when a mark that comes after it has.
func (c *cable) clean(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	before := c.marks
	c.mu.Unlock()
	require.Eventually(t, func() bool {
		c.mark()
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.marks > before
	}, 30*time.Second, 10*time.Millisecond)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.False(t, c.contents, "the contents are on the cable")
	require.Empty(t, c.clear, "VXLAN is on the cable in clear")
	require.NotZero(t, c.sealed)
}

// speak opens a connection on which a secret word is said; say fails when it does not come back.
func (p *pair) speak(from, to int, address string) (say func(), c net.Conn) {
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
	p.one.in(from, func() (err error) {
		c, err = net.DialTimeout("tcp", address, patience)
		return err
	})
	p.Cleanup(func() { _ = c.Close() })
	return func() {
		p.Helper()
		require.NoError(p, c.SetDeadline(time.Now().Add(patience)))
		_, err := io.WriteString(c, secretWord)
		require.NoError(p, err)
		b := make([]byte, len(secretWord))
		_, err = io.ReadFull(c, b)
		require.NoError(p, err)
	}, c
}

// TestEncryptedNetworksAreNeverInClear: what kernels on two agents say to each other is sealed on the cable, while the agents run, while
// one is killed, and after it is back. Connections live on.
func TestEncryptedNetworksAreNeverInClear(t *testing.T) {
	t.Parallel()
	p := newEncryptedPair(t)
	w := p.watch()
	session := p.encrypted(61, "10.223.7.0/26", p.sealed(ada, "main1", "10.223.7.1", "one"), p.sealed(carl, "sub1", "10.223.7.2", "two"))
	adaPID, carlPID := p.start(p.one, p.a, ada, session), p.start(p.two, p.b, carl, session)
	require.Equal(t, (cableMTU-60)&^15-70, p.mtu(adaPID), "what fits into a sealed packet of the cable")
	say, c := p.speak(adaPID, carlPID, "10.223.7.2:9000")
	say()
	w.clean(t)
	require.True(t, p.one.comesToReach(carlPID, "tcp", "10.223.7.1:8000"), "and back")

	// One agent is killed: its device ends with it, and nobody sends in clear.
	place, err := p.a.Join(ada, cluster.Egress{})
	require.NoError(t, err)
	p.one.present = []engine.Observed{{Identity: engine.Identity{Kernel: ada, Address: place.Address}}}
	p.a.Close()
	_, err = io.WriteString(c, secretWord[:1]) // waits in the connection
	require.NoError(t, err)
	p.one.in(adaPID, func() error {
		u, err := net.Dial("udp4", "10.223.7.2:5000")
		if err != nil {
			return err
		}
		defer u.Close()
		_, _ = io.WriteString(u, secretWord)
		return nil
	})
	require.False(t, p.one.reaches(adaPID, "tcp", "10.223.7.2:8000"), "there is no way while the agent is down")
	again, err := network.New(p.options(p.one, "one"))
	require.NoError(t, err)
	t.Cleanup(again.Close)
	require.NoError(t, again.Check(t.Context()))
	key, _, _ := again.Tunnel()
	require.Equal(t, session.Members[0].Tunnel.Key, key, "its key is kept")
	require.Contains(t, p.links(again.SessionSpace()), "vx61", "what containers are connected to stays")
	again.SetNetwork(ada, session)
	require.NoError(t, again.Check(t.Context()))
	one := make([]byte, 1)
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	_, err = io.ReadFull(c, one)
	require.NoError(t, err, "the connection did not live on")
	say()
	w.clean(t)

	// Somebody removes the device: still nothing is sent in clear, and it is made again.
	p.inSpace(again.SessionSpace()+"-wg", func(h *netlink.Handle) error {
		l, err := h.LinkByName(wireguard.Interface)
		return errors.Join(err, h.LinkDel(l))
	})
	require.Eventually(t, func() bool {
		require.NoError(t, again.Check(t.Context()))
		return p.one.reaches(adaPID, "tcp", "10.223.7.2:8000")
	}, 60*time.Second, 20*time.Millisecond)
	say()
	w.clean(t)

	// The last network that needs it takes the device away.
	again.Release(ada)
	require.NoError(t, again.Check(t.Context()))
	require.Empty(t, p.links(again.SessionSpace()+"-wg"))
}

// TestTheCableIsSeen: a network in clear would be noticed.
func TestTheCableIsSeen(t *testing.T) {
	t.Parallel()
	p := newEncryptedPair(t)
	w := p.watch()
	session := &cluster.SessionNetwork{Number: 62, Subnet: netip.MustParsePrefix("10.223.7.64/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.7.65", "one"), member(carl, "sub1", "10.223.7.66", "two")}}
	say, _ := p.speak(p.start(p.one, p.a, ada, session), p.start(p.two, p.b, carl, session), "10.223.7.66:9000")
	say()
	require.Eventually(t, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.contents && len(w.clear) > 0 && w.sealed == 0
	}, 30*time.Second, 10*time.Millisecond)
}

// TestPeersOfEncryptedNetworks: an agent hears those that its sessions reach and nobody else, each in its own sessions, and a removed one
// no more.
func TestPeersOfEncryptedNetworks(t *testing.T) {
	t.Parallel()
	p := newEncryptedPair(t)
	shared := p.encrypted(63, "10.223.8.0/26", p.sealed(ada, "main1", "10.223.8.1", "one"), p.sealed(carl, "sub1", "10.223.8.2", "two"))
	third := p.sealed(dora, "sub1", "10.223.8.66", "two") // on an agent that is not there
	third.Agent, third.Tunnel.Endpoint = "three", netip.MustParseAddrPort("192.0.2.3:4798")
	third.Tunnel.Key = wireguard.PublicKey{7}.String()
	other := p.encrypted(64, "10.223.8.64/26", p.sealed(bob, "main1", "10.223.8.65", "one"), third)
	heard := make(chan string, 64)
	adaPID := p.start(p.one, p.a, ada, shared)
	p.hear(adaPID, "10.223.8.1", heard)
	p.hear(p.start(p.one, p.a, bob, other), "10.223.8.65", heard)
	carlPID := p.start(p.two, p.b, carl, shared)
	require.True(t, p.one.comesToReach(carlPID, "tcp", "10.223.8.1:8000"))

	// A compromised agent sends into another session, from the inside of its tunnel and in clear.
	inner := func(m cluster.NetworkMember) string {
		key, err := wireguard.ParsePublicKey(m.Tunnel.Key)
		require.NoError(t, err)
		return key.Inner().String()
	}
	forged := vxlan(0x620000+64, "10.223.8.66", "10.223.8.65", 5000, "forged")
	clear := vxlan(0x620000+63, "10.223.8.2", "10.223.8.1", 5000, "clear")
	own := vxlan(0x620000+63, "10.223.8.2", "10.223.8.1", 5000, "own")
	inTunnel := func(packet []byte) {
		p.inNamespace(p.b.SessionSpace()+"-wg", func() error {
			c, err := net.Dial("udp6", net.JoinHostPort(inner(shared.Members[0]), "4799"))
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(packet)
			return err
		})
	}
	for range 3 {
		inTunnel(forged)
		p.send(p.two, p.two.pid, oneHost, clear)
		p.send(p.two, p.two.pid, oneHost, forged)
	}
	inTunnel(own)
	require.Equal(t, "own", await.Value(t, heard))

	// The member moves to an agent that is not there: the one before is not heard any more.
	moved := p.encrypted(63, "10.223.8.0/26", shared.Members[0], shared.Members[1])
	moved.Members[1].Agent, moved.Members[1].Tunnel = "three", third.Tunnel
	p.a.SetNetwork(ada, moved)
	require.NoError(t, p.a.Check(t.Context()))
	require.False(t, p.one.reaches(carlPID, "tcp", "10.223.8.1:8000"))
	p.a.SetNetwork(ada, shared)
	require.NoError(t, p.a.Check(t.Context()))
	require.True(t, p.one.comesToReach(carlPID, "tcp", "10.223.8.1:8000"), "and it is again")
}

// TestAgentsThatCannotEncryptSaySo: no kernel starts where its network would not be encrypted.
func TestAgentsThatCannotEncryptSaySo(t *testing.T) {
	t.Parallel()
	p := newEncryptedPair(t)
	me, far := p.sealed(ada, "main1", "10.223.9.1", "one"), p.sealed(carl, "sub1", "10.223.9.2", "two")
	without, same := far, far
	without.Tunnel, without.Host = cluster.Tunnel{}, netip.MustParseAddr(twoHost)
	same.Tunnel.Key = me.Tunnel.Key
	for _, c := range []struct {
		other cluster.NetworkMember
		says  string
	}{{without, "does not say how networks to it are encrypted"}, {same, "has the same key as this one"}} {
		p.a.SetNetwork(ada, p.encrypted(65, "10.223.9.0/26", me, c.other))
		_, err := p.a.Join(ada, cluster.Egress{})
		require.ErrorContains(t, err, c.says)
		require.True(t, fault.Is(err, fault.Conflict))
		require.NoError(t, p.a.Check(t.Context()))
		require.NotContains(t, p.links(p.a.SessionSpace()), "vx65")
	}

	o := newWorld(t).options(func(c *network.Config) { c.Address = oneHost })
	o.Scope, o.Agent = t.Name()+" without", "one"
	n, err := network.New(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, network.Remove(context.Background(), o)) })
	require.NoError(t, n.Check(t.Context()))
	_, _, problem := n.Tunnel()
	require.Contains(t, problem, "nowhere to keep the key")
	bobs := p.sealed(bob, "main1", "10.223.9.65", "one")
	n.SetNetwork(bob, p.encrypted(66, "10.223.9.64/26", bobs, p.sealed(carl, "sub1", "10.223.9.66", "two")))
	_, err = n.Join(bob, cluster.Egress{})
	require.ErrorContains(t, err, "nowhere to keep the key")
	// On its own it needs no tunnel.
	n.SetNetwork(bob, p.encrypted(66, "10.223.9.64/26", bobs, p.sealed(dora, "sub1", "10.223.9.66", "one")))
	place, err := n.Join(bob, cluster.Egress{})
	require.NoError(t, err)
	require.Equal(t, "10.223.9.65", place.Session)
}

// TestEncryptedNetworksWhosePortIsTaken: the agent says so, starts no kernel of them, and goes on when the port is free.
func TestEncryptedNetworksWhosePortIsTaken(t *testing.T) {
	t.Parallel()
	p := newEncryptedPair(t)
	var taken net.PacketConn
	p.one.in(p.one.pid, func() (err error) {
		taken, err = net.ListenPacket("udp4", ":4798")
		return err
	})
	defer taken.Close()
	session := p.encrypted(67, "10.223.10.0/26", p.sealed(ada, "main1", "10.223.10.1", "one"), p.sealed(carl, "sub1", "10.223.10.2", "two"))
	p.a.SetNetwork(ada, session)
	require.NoError(t, p.a.Check(t.Context()))
	_, _, problem := p.a.Tunnel()
	require.Contains(t, problem, "cannot be made")
	require.Contains(t, p.a.Warnings()[0], "the encrypted networks of sessions here are down")
	_, err := p.a.Join(ada, cluster.Egress{})
	require.ErrorContains(t, err, "cannot be made")
	require.NoError(t, taken.Close())
	require.NoError(t, p.a.Check(t.Context()))
	_, _, problem = p.a.Tunnel()
	require.Empty(t, problem)
	require.Empty(t, p.a.Warnings())
	adaPID := p.start(p.one, p.a, ada, session)
	p.start(p.two, p.b, carl, session)
	require.True(t, p.one.comesToReach(adaPID, "tcp", "10.223.10.2:8000"))
}
