package authz

import (
	"net/netip"

	"berth.dev/berth/internal/fault"
)

// From refuses actors who come from an address that their user may not come from.
func From(a Actor, ip netip.Addr) error {
	if a.AllowedClientIP.Admit(ip) {
		return nil
	}
	return fault.New(fault.Unauthenticated, "%s may not come from %s", a.Email, ip).WithReason("auth-failed").
		WithNext("use a network that your administrator allows")
}
