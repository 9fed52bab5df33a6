// Package supply changes what the cluster can compute with, agents and the resource groups that
// they belong to, and how much of it keypairs may hold. It checks permission and values, writes what should be true and wakes the
// scheduler. service embeds it; nothing else calls it.
package supply

import (
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
)

// DefaultGroup is the resource group that new agents come to.
const DefaultGroup = "default"

// The wire's words in errors.
const (
	agentNoun = "agent instance"
	groupNoun = "scaling group"
)

// Supply holds the use cases.
type Supply struct {
	store *store.Store
	seal  *seal.Key
}

// New makes them; both arguments are required.
func New(s *store.Store, k *seal.Key) *Supply { return &Supply{store: s, seal: k} }

func invalid(format string, args ...any) *fault.Error {
	return fault.Invalidf(format, args...).WithReason("invalid-api-params")
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}
