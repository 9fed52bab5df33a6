package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
)

// apply does a step to what is there, as the kernel would; it refuses what a kernel refuses.
func apply(t *rapid.T, have map[uint32]present, own netip.Addr, s step) {
	p := have[s.number]
	switch s.do {
	case makeBridge:
		p.bridge = true
	case removeBridge:
		if p.tunnel != nil || len(p.ports) > 0 {
			t.Fatalf("the bridge of network %d is removed under its ports", s.number)
		}
		delete(have, s.number)
		return
	case makeTunnel:
		if !p.bridge || p.tunnel != nil {
			t.Fatalf("the tunnel of network %d is made without its bridge or twice", s.number)
		}
		p.tunnel = &tunnel{local: own, mtu: s.mtu, up: true, far: map[netip.Addr]netip.Addr{}}
	case removeTunnel:
		p.tunnel = nil
	case reachMember:
		p.tunnel.far[s.member] = s.host
	case forgetMember:
		if p.tunnel.far[s.member] != s.host {
			t.Fatalf("member %s is forgotten at %s, where it is not", s.member, s.host)
		}
		delete(p.tunnel.far, s.member)
	case removePort:
		p.ports = slices.DeleteFunc(slices.Clone(p.ports), func(p port) bool { return p.name == s.port })
	}
	have[s.number] = p
}

// TestPlansOfNetworksComeToAnEnd: whatever is there, the steps make what is wanted of it, and then there is nothing more to do.
func TestPlansOfNetworksComeToAnEnd(t *testing.T) {
	t.Parallel()
	address := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 223, 0, last}) }
	host := func(last byte) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, last}) }
	rapid.Check(t, func(t *rapid.T) {
		small := func(name string, most byte) byte { return rapid.ByteMax(most).Draw(t, name) }
		far := func(name string) map[netip.Addr]netip.Addr {
			out := map[netip.Addr]netip.Addr{}
			for range small(name, 3) {
				out[address(small("member", 3))] = host(small("host", 2))
			}
			return out
		}
		own, here := host(9), func(id cluster.KernelID) bool { return id == "here" }
		want, have := map[uint32]wanted{}, map[uint32]present{}
		for range small("wanted", 3) {
			want[uint32(small("number", 3))] = wanted{far: far("far"), mtu: 1400 + int(small("size", 1))}
		}
		for range small("present", 3) {
			p := present{bridge: rapid.Bool().Draw(t, "bridge")}
			for i := range small("ports", 3) {
				kernel := cluster.KernelID(rapid.SampledFrom([]string{"", "here", "gone"}).Draw(t, "kernel"))
				p.ports = append(p.ports, port{fmt.Sprint("port", i), kernel})
			}
			if p.bridge && rapid.Bool().Draw(t, "tunnel") {
				p.tunnel = &tunnel{local: host(8 + small("own", 1)), mtu: 1400 + int(small("size", 1)), up: rapid.Bool().Draw(t,
					"up"), far: far("forwards")}
			}
			have[uint32(small("number", 3))] = p
		}
		before := maps.Clone(have)
		for _, s := range planNetworks(want, have, own, here) {
			apply(t, have, own, s)
		}
		if again := planNetworks(want, have, own, here); len(again) > 0 {
			t.Fatalf("there is more to do: %v", again)
		}
		for n, w := range want {
			p := have[n]
			if !p.bridge || (p.tunnel != nil) != (len(w.far) > 0) || p.tunnel != nil && (!maps.Equal(p.tunnel.far, w.far) || p.tunnel.mtu != w.mtu) {
				t.Fatalf("network %d is %+v, wanted is %+v", n, p, w)
			}
		}
		for n, p := range before {
			kept := slices.DeleteFunc(slices.Clone(p.ports), func(p port) bool { return p.kernel == "gone" })
			if !slices.Equal(kept, have[n].ports) || len(kept) > 0 && p.bridge && !have[n].bridge {
				t.Fatalf("network %d has the ports %v left of %v: those of containers that are here should stay, with it", n, have[n].ports, p.ports)
			}
		}
	})
}

func TestWantedNetworks(t *testing.T) {
	t.Parallel()
	subnet := netip.MustParsePrefix("10.223.0.0/26")
	a := func(text string) netip.Addr { return netip.MustParseAddr(text) }
	n := &cluster.SessionNetwork{Number: 7, Subnet: subnet, Members: []cluster.NetworkMember{
		{Kernel: "k0", Name: "main1", Address: a("10.223.0.1"), Agent: "here", Host: a("192.0.2.1")},
		{Kernel: "k1", Name: "sub1", Address: a("10.223.0.2"), Agent: "far", Host: a("192.0.2.2")},
		{Kernel: "k2", Name: "sub2", Address: a("10.223.0.3"), Agent: "farther", Host: a("192.0.2.3")},
		{Kernel: "k3", Name: "sub3", Address: a("10.223.0.4")},
		{Kernel: "k4", Name: "sub4", Address: a("10.223.0.5"), Agent: "other family", Host: a("2001:db8::5")},
	}}
	mtu := func(host netip.Addr, _ bool) int {
		return map[string]int{"192.0.2.2": 8950, "192.0.2.3": 1350}[host.String()]
	}
	got := wantedNetworks(map[cluster.KernelID]*cluster.SessionNetwork{"k0": n, "stranger": n}, "here", a("192.0.2.1"), netip.Addr{}, mtu)
	require.Len(t, got, 1)
	require.Equal(t, 1350, got[7].mtu, "the narrowest way decides")
	require.Equal(t, map[netip.Addr]netip.Addr{a("10.223.0.2"): a("192.0.2.2"), a("10.223.0.3"): a("192.0.2.3")}, got[7].far)
	require.Equal(t, n.Members[:1], got[7].local, "who is no member gets no port")
	alone := wantedNetworks(map[cluster.KernelID]*cluster.SessionNetwork{"k0": n}, "here", netip.Addr{}, netip.Addr{}, mtu)
	require.Empty(t, alone[7].far, "without an address nobody else is reached")
	require.Equal(t, defaultMTU, alone[7].mtu)
}
