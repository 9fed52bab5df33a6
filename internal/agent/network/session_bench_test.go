package network_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/testkit/await"
)

// BenchmarkSessionNetwork measures how fast kernels on two agents send to each other, beside the same VXLAN made by hand: a bridge, a
// tunnel that knows its one peer, and an interface pair, without rules. Both send in turn, so that what else the machine does meets both.
func BenchmarkSessionNetwork(b *testing.B) {
	p := newPair(b)
	session := &cluster.SessionNetwork{Number: 21, Subnet: netip.MustParsePrefix("10.223.3.0/26"), Members: []cluster.NetworkMember{
		member(ada, "main1", "10.223.3.1", "one"), member(carl, "sub1", "10.223.3.2", "two")}}
	ours := [2]int{p.start(p.one, p.a, ada, session), p.start(p.two, p.b, carl, session)}
	hand := [2]int{p.byHand(p.one, oneHost, twoHost, "10.9.9.1/24"), p.byHand(p.two, twoHost, oneHost, "10.9.9.2/24")}
	var kernels, peer []float64
	for b.Loop() {
		kernels = append(kernels, p.flow(ours, "10.223.3.2:9000"))
		peer = append(peer, p.flow(hand, "10.9.9.2:9000"))
	}
	slices.Sort(kernels)
	slices.Sort(peer)
	middle := len(peer) / 2
	b.ReportMetric(kernels[middle]/1e6, "MB/s")
	b.ReportMetric(peer[middle]/1e6, "by-hand-MB/s")
	b.ReportMetric(kernels[middle]/peer[middle], "of-by-hand")
}

// byHand makes the peer's end on a host and returns a process in it.
func (p *pair) byHand(w *world, own, other, address string) int {
	p.Helper()
	pid := w.namespace()
	w.in(w.pid, func() error {
		ns, err := netns.GetFromPid(pid)
		if err != nil {
			return err
		}
		defer ns.Close()
		named := func(name string, mtu int) netlink.LinkAttrs {
			a := netlink.NewLinkAttrs()
			a.Name, a.MTU = name, mtu
			return a
		}
		const mtu = cableMTU - 50
		if err := errors.Join(
			netlink.LinkAdd(&netlink.Bridge{LinkAttrs: named("hand", mtu)}),
			netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: named("handvx", mtu), VxlanId: 77, SrcAddr: net.ParseIP(own), Group: net.ParseIP(other),
				Port: 4789, Learning: true, NoAge: true}),
			netlink.LinkAdd(&netlink.Veth{LinkAttrs: named("handp", mtu), PeerName: "eth1", PeerNamespace: netlink.NsFd(int(ns)), PeerMTU: mtu}),
		); err != nil {
			return err
		}
		bridge, err := netlink.LinkByName("hand")
		if err != nil {
			return err
		}
		for _, name := range []string{"handvx", "handp"} {
			l, err := netlink.LinkByName(name)
			if err := errors.Join(err, netlink.LinkSetMaster(l, bridge), netlink.LinkSetUp(l)); err != nil {
				return err
			}
		}
		return netlink.LinkSetUp(bridge)
	})
	w.in(pid, func() error { return addressed("eth1", address) })
	return pid
}

// flow sends for a second from the first process to the second and returns bytes a second.
func (p *pair) flow(pids [2]int, address string) float64 {
	p.Helper()
	got := make(chan float64, 1)
	p.one.in(pids[1], func() error {
		l, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		go func() {
			defer l.Close()
			c, err := l.Accept()
			if err != nil {
				got <- 0
				return
			}
			defer c.Close()
			began := time.Now()
			n, _ := io.Copy(io.Discard, c)
			got <- float64(n) / time.Since(began).Seconds()
		}()
		return nil
	})
	var c net.Conn
	p.one.in(pids[0], func() (err error) {
		c, err = net.DialTimeout("tcp", address, 20*time.Second)
		return err
	})
	buffer := make([]byte, 256<<10)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		_, err := c.Write(buffer)
		require.NoError(p, err)
	}
	require.NoError(p, c.Close())
	return await.Value(p, got)
}
