package authz

import (
	"errors"
	"net/netip"

	"berth.dev/berth/internal/fault"
)

// ErrElsewhere is the cause of what From refuses: the credential is good. Its text is empty, so that it changes no answer.
var ErrElsewhere = errors.New("")

// From refuses actors who come from an address that their user may not come from.
func From(a Actor, ip netip.Addr) error {
	if a.AllowedClientIP.Admit(ip) {
		return nil
	}
	return fault.New(fault.Unauthenticated, "%s may not come from %s", a.Email, ip).WithReason("auth-failed").WithCause(ErrElsewhere).
		WithNext("use a network that your administrator allows")
}
