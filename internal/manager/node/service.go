// Package node is the machines that run sessions. Service is what administrators see and change of agents. Reports is the
// other side: it registers agents, stores what they say is true, says what should be true of them, and looks after their leases
// and the deadlines of their kernels. Only connections that proved a node's certificate, and the leader's loops, call Reports.
package node

import (
	"context"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

// Nouns of errors.
const (
	agentNoun = "agent"
	groupNoun = "resource group"
)

// LiveStats reads what agents measured most recently of themselves. What is not known is absent, never zero.
type LiveStats interface {
	Agents(ctx context.Context, ids []cluster.AgentID) map[cluster.AgentID]map[string]float64
}

// Deps are what a Service works with. Store is required; Live may be nil: nothing is known live then.
type Deps struct {
	Store *store.Store
	Live  LiveStats
}

// Service is the use cases of agents.
type Service struct{ d Deps }

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil {
		return nil, fault.New(fault.Internal, "node: the store is required")
	}
	return &Service{d: d}, nil
}
