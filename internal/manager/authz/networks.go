package authz

import (
	"net/netip"
	"slices"
	"strings"

	"berth.dev/berth/internal/fault"
)

// Networks are the addresses that a user may come from, in a shape that is looked up in constant time. The zero value
// admits all.
type Networks struct {
	listed  bool
	known   map[netip.Prefix]struct{}
	lengths []int // of the prefixes in known, each once
}

// ParseNetworks reads a list of addresses, of prefixes (10.0.0.0/8) and of patterns that end in stars (10.1.*.*). An empty
// list admits all. What cannot be read admits nobody: a list of which nothing can be read is not an empty one.
func ParseNetworks(list []string) Networks {
	n := Networks{listed: len(list) > 0, known: map[netip.Prefix]struct{}{}}
	for _, text := range list {
		p, ok := parsePrefix(text)
		if !ok {
			continue
		}
		n.known[p] = struct{}{}
		if !slices.Contains(n.lengths, p.Bits()) {
			n.lengths = append(n.lengths, p.Bits())
		}
	}
	return n
}

func parsePrefix(text string) (netip.Prefix, bool) {
	text = strings.TrimSpace(text)
	if stars := strings.Count(text, ".*"); stars > 0 {
		base := strings.TrimSuffix(text, strings.Repeat(".*", stars))
		addr, err := netip.ParseAddr(base + strings.Repeat(".0", stars))
		if err != nil {
			return netip.Prefix{}, false
		}
		p, err := addr.Prefix(32 - 8*stars)
		return p, err == nil
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Masked(), true
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	addr = addr.Unmap().WithZone("")
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// Admit reports whether somebody may come from the address. An address that is not known is in no network.
func (n Networks) Admit(ip netip.Addr) bool {
	if !n.listed {
		return true
	}
	ip = ip.Unmap().WithZone("")
	return slices.ContainsFunc(n.lengths, func(bits int) bool {
		p, err := ip.Prefix(bits)
		if err != nil {
			return false
		}
		_, ok := n.known[p]
		return ok
	})
}

// From refuses actors who come from an address that their user may not come from.
func From(a Actor, ip netip.Addr) error {
	if a.AllowedClientIP.Admit(ip) {
		return nil
	}
	return fault.New(fault.Unauthenticated, "%s may not come from %s", a.Email, ip).WithReason("auth-failed").
		WithNext("use a network that your administrator allows")
}
