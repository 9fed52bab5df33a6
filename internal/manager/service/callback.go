package service

import "net/netip"

// CallbackPolicy says where session callbacks may go. Link-local, multicast and unspecified
// addresses, which include the metadata services of clouds, are always refused.
type CallbackPolicy struct {
	// AllowPrivate lets callbacks go to private and loopback addresses.
	AllowPrivate bool
	// Allowed lists prefixes that are allowed although they are private.
	Allowed []netip.Prefix
}
