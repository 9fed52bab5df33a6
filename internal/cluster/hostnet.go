package cluster

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// NetworkHost is the value of the resource option "network" with which the kernels of a session run in the network of their agents' hosts.
const NetworkHost = "host"

// ParseNetworkMode reads the resource option "network"; "" is a network of the session's own.
func ParseNetworkMode(text string) (host bool, err error) {
	switch text {
	case "":
		return false, nil
	case NetworkHost:
		return true, nil
	}
	return false, fault.Invalidf("%.40q is no network of a session", text).
		WithNext("use %q, or leave it out for a network of its own", NetworkHost)
}

// HostPeer is a kernel of a session whose kernels run in the network of their hosts.
type HostPeer struct {
	Name string // as its session knows it: main1, sub1, ...
	// Endpoint is where its agent observed that the others reach its SSH server; not valid while nothing is known.
	Endpoint netip.AddrPort
}

// PortRange is a block of TCP ports, First and Last included; the zero value has none.
type PortRange struct{ First, Last int }

// ParsePortRange reads "FIRST-LAST"; "" is none.
func ParsePortRange(text string) (PortRange, error) {
	if text == "" {
		return PortRange{}, nil
	}
	from, to, ok := strings.Cut(text, "-")
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if !ok || err1 != nil || err2 != nil || first < 1024 || last > 65535 || first > last {
		return PortRange{}, fault.Invalidf("%.40q is no range of ports", text).
			WithNext("write FIRST-LAST with ports from 1024 to 65535, for example 30000-31999")
	}
	return PortRange{first, last}, nil
}

// Size is how many ports there are.
func (r PortRange) Size() int {
	if r.First == 0 {
		return 0
	}
	return r.Last - r.First + 1
}

// Has reports whether a port is one of them.
func (r PortRange) Has(port int) bool { return r.Size() > 0 && port >= r.First && port <= r.Last }

// String writes the range as ParsePortRange reads it.
func (r PortRange) String() string {
	if r.Size() == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}
