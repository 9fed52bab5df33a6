// Package resource is what sessions compute with and how it is offered: resource groups with their scheduling policies and who
// may use them, the kinds of resource slots, and presets.
//
// It places nothing (session/scheduling does), and agents are of package node. Occupancy is never stored: it is derived from live
// rows whenever somebody asks. httpapi, graphapi and session call it.
package resource

import (
	"log/slog"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

// Nouns of errors.
const (
	groupNoun   = "resource group"
	presetNoun  = "resource preset"
	projectNoun = "project"
)

// Deps are what a Service works with; all are required.
type Deps struct {
	Store   *store.Store
	Seal    *seal.Key
	IDs     func() string
	Tenancy *tenancy.Service
	Log     *slog.Logger
}

// Service is the use cases of resource groups, slots and presets.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Seal == nil || d.IDs == nil || d.Tenancy == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "resource: all dependencies are required")
	}
	return &Service{d: d}, nil
}
