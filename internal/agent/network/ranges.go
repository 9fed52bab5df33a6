package network

import (
	"net/netip"
	"slices"
)

// special are the addresses that no session reaches under any policy unless the operator lists them: the private, shared,
// link-local and reserved blocks of IPv4 (RFC 6890). The metadata services of clouds are among them. IPv6 is closed altogether.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.88.99.0/24"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("198.51.100.0/24"),
	netip.MustParsePrefix("203.0.113.0/24"), netip.MustParsePrefix("224.0.0.0/3"),
	// The metadata service of Alibaba Cloud lies in 100.64.0.0/10, that of Azure's agents does not.
	netip.MustParsePrefix("168.63.129.16/32"),
}

// span is a range of IPv4 addresses; end is the first address behind it, the zero Addr when there is none.
type span struct{ start, end netip.Addr }

// spans returns the IPv4 addresses of prefixes as ranges in order that neither overlap nor touch.
func spans(prefixes []netip.Prefix) []span {
	var list []span
	for _, p := range prefixes {
		if !p.IsValid() || !p.Addr().Is4() {
			continue
		}
		list = append(list, span{p.Masked().Addr(), after(p)})
	}
	slices.SortFunc(list, func(a, b span) int { return a.start.Compare(b.start) })
	var out []span
	for _, s := range list {
		n := len(out)
		switch {
		case n == 0 || out[n-1].end.IsValid() && out[n-1].end.Less(s.start):
			out = append(out, s)
		case !out[n-1].end.IsValid():
		case !s.end.IsValid() || out[n-1].end.Less(s.end):
			out[n-1].end = s.end
		}
	}
	return out
}

// after is the first address behind a prefix; the zero Addr behind the last one.
func after(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	host := 32 - p.Bits()
	n := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	n += 1 << host
	if n >= 1<<32 {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// subnetBits is the size of the network of one agent: a bridge has at most 1,024 ports.
const subnetBits = 22

// candidates are the subnets of the pool in the order in which they are tried: those that overlap nothing of taken, beginning
// at a place that depends on the seed, so that agents of one host seldom try the same one.
func candidates(pool netip.Prefix, seed uint32, taken []netip.Prefix) []netip.Prefix {
	bits := max(subnetBits, pool.Bits())
	count := uint64(1) << (bits - pool.Bits())
	b := pool.Masked().Addr().As4()
	base := uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8 | uint64(b[3])
	var out []netip.Prefix
	for i := range min(count, maxCandidates) {
		n := base + (uint64(seed)+i)%count<<(32-bits)
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}), bits)
		if !slices.ContainsFunc(taken, p.Overlaps) {
			out = append(out, p)
		}
	}
	return out
}

// maxCandidates bounds how many subnets are tried.
const maxCandidates = 256

// gatewayOf is the address of the host in a subnet.
func gatewayOf(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }
