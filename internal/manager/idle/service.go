// Package idle ends sessions that nobody uses. Administrators make checkers and bind them to domains, projects or resource groups;
// policies of keypairs bring limits of their own. The loop on the leader looks at running sessions, warns and ends them. Users see
// how their sessions stand and may keep them alive.
//
// Which session is idle is decided in package rule below, and nowhere else. httpapi and graphapi call this package.
package idle

import (
	"log/slog"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

const checkerNoun = "idle checker"

// Deps are what a Service works with; all but Usage are required.
type Deps struct {
	Store    *store.Store
	Clock    func() time.Time
	Tenancy  *tenancy.Service
	Sessions *session.Service
	// Usage may be nil: nothing is known of the use of kernels then, and no check of utilisation ends anything.
	Usage Usage
	Log   *slog.Logger
}

// Service is the use cases of idle checks.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Clock == nil || d.Tenancy == nil || d.Sessions == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "idle: a required dependency is missing")
	}
	return &Service{d: d}, nil
}
