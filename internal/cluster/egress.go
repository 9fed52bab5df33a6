package cluster

import (
	"net/netip"
	"strings"

	"berth.dev/berth/internal/fault"
)

// EgressMode says what sessions may reach from inside.
type EgressMode string

// The modes of egress.
const (
	// EgressOpen allows the internet, and no private address that the operator did not list.
	EgressOpen EgressMode = "open"
	// EgressProxy allows one HTTP proxy and nothing else, names included.
	EgressProxy EgressMode = "proxy"
	// EgressNone allows nothing.
	EgressNone EgressMode = "none"
)

// Egress is the egress policy of a resource group. The zero value means open.
type Egress struct {
	Mode EgressMode
	// Proxy is where the proxy listens, in EgressProxy alone.
	Proxy netip.AddrPort
}

const egressProxyPrefix = "proxy:"

// ParseEgress reads what String writes: "open", "none" or "proxy:ADDRESS:PORT". The empty text means open.
func ParseEgress(text string) (Egress, error) {
	switch text {
	case "", string(EgressOpen):
		return Egress{Mode: EgressOpen}, nil
	case string(EgressNone):
		return Egress{Mode: EgressNone}, nil
	}
	if where, ok := strings.CutPrefix(text, egressProxyPrefix); ok {
		p, err := netip.ParseAddrPort(where)
		if err == nil && p.Addr().Is4() && !p.Addr().IsUnspecified() && !p.Addr().IsLoopback() && !p.Addr().IsMulticast() && p.Port() > 0 {
			return Egress{Mode: EgressProxy, Proxy: p}, nil
		}
	}
	return Egress{}, fault.Invalidf("%q is no egress policy", text).WithNext("use open, none or proxy:ADDRESS:PORT with the IPv4 address " +
		"of an HTTP proxy, for example proxy:10.0.0.5:3128; sessions that may reach only a proxy resolve no names")
}

// String writes the policy as it is stored and sent.
func (e Egress) String() string {
	switch e.Mode {
	case EgressNone:
		return string(EgressNone)
	case EgressProxy:
		return egressProxyPrefix + e.Proxy.String()
	}
	return string(EgressOpen)
}

// Open reports whether the policy allows what every session may do by default.
func (e Egress) Open() bool { return e.Mode == "" || e.Mode == EgressOpen }
