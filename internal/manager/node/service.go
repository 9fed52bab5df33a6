// Package node is the agents, the machines that run sessions. It has two sides. Service is what administrators see and change;
// httpapi and graphapi call it. Reports is what agents say and are told: it registers agents, stores what they say is true, says
// what should be true of their kernels, and its loop ends the leases of silent agents and enforces the deadlines of kernels.
//
// No user reaches Reports: link/agent calls it for connections that have proved an agent's certificate, and the leader runs its
// loop. This package opens no connection to agents and decides no placement.
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
