package network

import (
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// Config is what the operator says about the network of sessions.
type Config struct {
	// Require keeps sessions from an agent that cannot guard their network. Without it such an agent warns and goes on.
	Require bool
	// Pool is the block of private IPv4 addresses from which the agent takes a subnet for its sessions.
	Pool string
	// Allow are private destinations that sessions with open egress reach all the same, each ADDRESS, ADDRESS:PORT or
	// ADDRESS/BITS: a package mirror on the host, a data server beside it.
	Allow []string
	// Deny are further destinations that they do not reach, each ADDRESS or ADDRESS/BITS.
	Deny []string
	// Resolvers are the IPv4 addresses of name servers for sessions; none means those of the host.
	Resolvers []string
	// Address is where other agents reach this one for the networks of sessions; "" means the address of the host's default route.
	Address string
	// TunnelPort is the UDP port of VXLAN between agents, the same on all of them.
	TunnelPort int
	// EncryptedPort is the UDP port at which this agent hears encrypted packets of others.
	EncryptedPort int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{Pool: "10.222.0.0/16", TunnelPort: 4799, EncryptedPort: 4798}
}

// maxListed bounds each of the lists.
const maxListed = 128

// Validate reports the first value that cannot be used.
func (c Config) Validate() error {
	_, err := c.read()
	return err
}

// settings are the values of a Config.
type settings struct {
	require   bool
	pool      netip.Prefix
	allow     []Allowance
	deny      []netip.Prefix
	resolvers []netip.Addr
	// address is that among agents; not valid when it is to be found out.
	address    netip.Addr
	tunnelPort int
	// encryptedPort is that of encrypted tunnels.
	encryptedPort uint16
}

func (c Config) read() (settings, error) {
	s := settings{require: c.Require, tunnelPort: c.TunnelPort}
	if c.TunnelPort < 1 || c.TunnelPort > 65535 {
		return s, fault.Invalidf("agent.network.tunnel_port is %d", c.TunnelPort).
			WithNext("choose a UDP port that is free on all agents, such as 4799")
	}
	if c.EncryptedPort < 1 || c.EncryptedPort > 65535 || c.EncryptedPort == c.TunnelPort {
		return s, fault.Invalidf("agent.network.encrypted_port is %d", c.EncryptedPort).
			WithNext("choose a UDP port that is free on this host and not agent.network.tunnel_port, such as 4798")
	}
	s.encryptedPort = uint16(c.EncryptedPort)
	if c.Address != "" {
		a, err := netip.ParseAddr(c.Address)
		if err != nil || a.Zone() != "" || a.IsLoopback() || a.IsUnspecified() || a.IsMulticast() {
			return s, fault.Invalidf("agent.network.address %q is no address that other agents reach", c.Address).WithCause(err).
				WithNext("write one IPv4 or IPv6 address of this host")
		}
		s.address = a.Unmap()
	}
	if len(c.Allow) > maxListed || len(c.Deny) > maxListed || len(c.Resolvers) > 3 {
		return s, fault.Invalidf("agent.network lists more than %d destinations or 3 resolvers", maxListed)
	}
	var err error
	if s.pool, err = netip.ParsePrefix(c.Pool); err != nil || !s.pool.Addr().Is4() || s.pool.Bits() < 8 || s.pool.Bits() > 24 {
		return s, fault.Invalidf("agent.network.pool %q is no block of IPv4 addresses", c.Pool).WithCause(err).
			WithNext("write ADDRESS/BITS with 8 to 24 bits, for example 10.222.0.0/16")
	}
	s.pool = s.pool.Masked()
	for _, text := range c.Allow {
		a, err := parseAllowance(text)
		if err != nil {
			return s, err
		}
		s.allow = append(s.allow, a)
	}
	for _, text := range c.Deny {
		p, ok := parseDestination(text)
		if !ok {
			return s, fault.Invalidf("agent.network.deny %q is no destination", text).WithNext("write an IPv4 ADDRESS or ADDRESS/BITS")
		}
		s.deny = append(s.deny, p)
	}
	for _, text := range c.Resolvers {
		a, err := netip.ParseAddr(text)
		if err != nil || !a.Is4() || a.IsLoopback() {
			return s, fault.Invalidf("agent.network.resolvers %q is no address of a name server", text).
				WithNext("write an IPv4 address that sessions can reach; loopback addresses are their own")
		}
		s.resolvers = append(s.resolvers, a)
	}
	return s, nil
}

// parseAllowance reads ADDRESS, ADDRESS:PORT or ADDRESS/BITS.
func parseAllowance(text string) (Allowance, error) {
	if where, port, ok := strings.Cut(text, ":"); ok {
		p, good := parseDestination(where)
		n, err := strconv.ParseUint(port, 10, 16)
		if good && err == nil && n > 0 {
			return Allowance{To: p, Port: uint16(n)}, nil
		}
	} else if p, ok := parseDestination(text); ok {
		return Allowance{To: p}, nil
	}
	return Allowance{}, fault.Invalidf("agent.network.allow %q is no destination", text).
		WithNext("write an IPv4 ADDRESS, ADDRESS:PORT, ADDRESS/BITS or ADDRESS/BITS:PORT, for example 10.0.0.5:3141")
}

func parseDestination(text string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(text); err == nil && p.Addr().Is4() {
		return p.Masked(), true
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return netip.PrefixFrom(a, 32), true
	}
	return netip.Prefix{}, false
}

// The files that name the host's resolvers. Where the first names only a local service of systemd, that service's own list is
// in the second.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// fallback are the resolvers that the engine gives to containers where the host has none that they could reach.
var fallback = []netip.Addr{netip.MustParseAddr("8.8.8.8"), netip.MustParseAddr("8.8.4.4")}

// hostResolvers are the name servers of this host that sessions can reach.
func hostResolvers(files []string) []netip.Addr {
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		if found := parseResolvers(string(text)); len(found) > 0 {
			return found
		}
	}
	return slices.Clone(fallback)
}

// parseResolvers reads the IPv4 addresses of a resolv.conf that are not the host's own.
func parseResolvers(text string) []netip.Addr {
	var out []netip.Addr
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" || len(out) == 3 {
			continue
		}
		if a, err := netip.ParseAddr(f[1]); err == nil && a.Is4() && !a.IsLoopback() && !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// trackedFile names how many connections the kernel remembers, in all network namespaces the same.
const trackedFile = "/proc/sys/net/netfilter/nf_conntrack_max"

// One session may have a sharePart-th of them, and never less than leastShare.
const (
	sharePart    = 16
	leastShare   = 1024
	defaultShare = 16384
)

// connectionShare is how many connections one session may have at a time.
func connectionShare() uint32 {
	text, err := os.ReadFile(trackedFile)
	if err != nil {
		return defaultShare // where the file comes with the first rule
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 31)
	if err != nil || n == 0 { // 0 means no bound
		return defaultShare
	}
	return uint32(max(leastShare, n/sharePart))
}
