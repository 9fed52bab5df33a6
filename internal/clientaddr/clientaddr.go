// Package clientaddr says which address a client comes from, and whether a list of networks admits that address. The manager, storage
// proxies and app proxies all use it, so that one rule holds on every way in. It reads no request itself: the address of the connection
// and the values of header fields are inputs.
package clientaddr

import (
	"net/netip"
	"strings"

	"berth.dev/berth/internal/fault"
)

// The header fields that reverse proxies write. They count only when a trusted proxy sent them.
const (
	ForwardedFor   = "X-Forwarded-For"
	ForwardedProto = "X-Forwarded-Proto"
)

// maxHops bounds how many entries of X-Forwarded-For are looked at.
const maxHops = 32

// Trusted are the reverse proxies in front of a server whose X-Forwarded-For and X-Forwarded-Proto are believed. The zero value
// trusts none. Whoever can connect from a trusted address can claim any address, so list the proxies and nothing else.
type Trusted struct {
	prefixes []netip.Prefix
}

// ParseTrusted reads the setting named key: a list of addresses (10.0.0.5) and prefixes (10.0.0.0/24). It refuses what it cannot read.
func ParseTrusted(key string, list []string) (Trusted, error) {
	var t Trusted
	for _, text := range list {
		p, ok := parsePrefix(strings.TrimSpace(text))
		if !ok {
			return Trusted{}, fault.Invalidf("%s: %q is no address or prefix", key, text).
				WithNext("write addresses such as 10.0.0.5 or 10.0.0.0/24")
		}
		t.prefixes = append(t.prefixes, p)
	}
	return t, nil
}

// Empty reports whether no proxy is trusted.
func (t Trusted) Empty() bool { return len(t.prefixes) == 0 }

// Has reports whether an address is one of a trusted proxy.
func (t Trusted) Has(a netip.Addr) bool {
	a = Plain(a)
	for _, p := range t.prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Client is the address of the client behind peer, the other end of the connection. forwardedFor are all values of X-Forwarded-For in
// the order in which they came. Each proxy appends the address that it was asked from, so the list is read from its end, and only as
// long as the one who wrote an entry is trusted: the first address that is not a trusted proxy is the client. An entry that is no
// address ends the search; the client is then the last address that is known.
func (t Trusted) Client(peer netip.Addr, forwardedFor []string) netip.Addr {
	client := Plain(peer)
	for i, hops := len(forwardedFor)-1, 0; i >= 0; i-- {
		rest, more := forwardedFor[i], true
		for more {
			if hops++; hops > maxHops || !t.Has(client) {
				return client
			}
			var entry string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, entry = rest[:comma], rest[comma+1:]
			} else {
				entry, more = rest, false
			}
			next := Parse(entry)
			if !next.IsValid() {
				return client
			}
			client = next
		}
	}
	return client
}

// Secure reports whether the client behind peer uses TLS: tls says whether the connection itself does, forwardedProto are the values of
// X-Forwarded-Proto, of which the last counts when peer is trusted.
func (t Trusted) Secure(peer netip.Addr, tls bool, forwardedProto []string) bool {
	if len(forwardedProto) == 0 || !t.Has(peer) {
		return tls
	}
	last := forwardedProto[len(forwardedProto)-1]
	last = last[strings.LastIndexByte(last, ',')+1:]
	return strings.EqualFold(strings.TrimSpace(last), "https")
}

// Parse reads an address with or without a port, such as 192.0.2.7, 192.0.2.7:4711, 2001:db8::1 or [2001:db8::1]:4711. It returns the
// zero address, which is in no network, when the text is none of these.
func Parse(text string) netip.Addr {
	text = strings.TrimSpace(text)
	if a, err := netip.ParseAddr(text); err == nil {
		return Plain(a)
	}
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return Plain(ap.Addr())
	}
	if inner, ok := strings.CutPrefix(text, "["); ok {
		if a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]")); err == nil && strings.HasSuffix(inner, "]") {
			return Plain(a)
		}
	}
	return netip.Addr{}
}

// Plain is an address in the form in which addresses are compared: IPv4 that was written as IPv6 is IPv4, and the zone is left out.
func Plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Network is what clients' addresses are counted by: an IPv4 address, or the /64 of an IPv6 address, because one machine has all of it.
func Network(a netip.Addr) netip.Addr {
	a = Plain(a)
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}
