package clientaddr

import (
	"net/netip"
	"slices"
	"strings"
)

// Networks are the addresses that somebody may come from, in a shape that is looked up in constant time. The zero value admits all.
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
		p, ok := parsePattern(text)
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

func parsePattern(text string) (netip.Prefix, bool) {
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
	return parsePrefix(text)
}

// parsePrefix reads an address or a prefix.
func parsePrefix(text string) (netip.Prefix, bool) {
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
	addr = Plain(addr)
	return netip.PrefixFrom(addr, addr.BitLen()), true
}

// Listed reports whether there is a list at all; without one everybody may come from anywhere.
func (n Networks) Listed() bool { return n.listed }

// Texts is the list in a form that ParseNetworks reads again; nil when there is none. It is sorted.
func (n Networks) Texts() []string {
	if !n.listed {
		return nil
	}
	if len(n.known) == 0 {
		return []string{"none"} // no network: admits nobody
	}
	out := make([]string, 0, len(n.known))
	for p := range n.known {
		out = append(out, p.String())
	}
	slices.Sort(out)
	return out
}

// TextsFor is Texts for somebody at an address, with at most so many networks: of a longer list those that admit the address.
func (n Networks) TextsFor(ip netip.Addr, most int) []string {
	all := n.Texts()
	if len(all) <= most {
		return all
	}
	ip = Plain(ip)
	var out []string
	for p := range n.known {
		if p.Contains(ip) && len(out) < most {
			out = append(out, p.String())
		}
	}
	if len(out) == 0 {
		return []string{"none"}
	}
	slices.Sort(out)
	return out
}

// Admit reports whether somebody may come from the address. An address that is not known is in no network.
func (n Networks) Admit(ip netip.Addr) bool {
	if !n.listed {
		return true
	}
	ip = Plain(ip)
	return slices.ContainsFunc(n.lengths, func(bits int) bool {
		p, err := ip.Prefix(bits)
		if err != nil {
			return false
		}
		_, ok := n.known[p]
		return ok
	})
}
