// Package service holds the use cases of the manager, one file per noun and verb: it checks
// permission, validates, writes what should be true in one transaction and reads it back.
//
// It never orders an agent and opens no network connection of its own, with two exceptions that go
// through small interfaces or bounded workers: byte streams (Streams) and session callbacks.
// httpapi and graphapi call Service; agentlink and reconcile call Nodes.
//
// Every exported method of Service takes the Actor and decides about it in its first line;
// the few public ones are listed in public_test.go.
package service

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/snapshot"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/service/callback"
	"berth.dev/berth/internal/manager/service/idling"
	"berth.dev/berth/internal/manager/service/node"
	"berth.dev/berth/internal/manager/service/preset"
	"berth.dev/berth/internal/manager/service/supply"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Actor is the authenticated caller of a use case.
type Actor = authz.Actor

// Streams is the way to an agent's byte streams; agentlink satisfies it.
type Streams interface {
	// RoundTrip sends req (path /kernels/<id>/...) to the agent; fault.Unavailable when it is not connected.
	RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error)
	// Upgrade opens a full-duplex stream.
	Upgrade(ctx context.Context, agent cluster.AgentID, path string, header http.Header) (io.ReadWriteCloser, error)
}

// LiveStats reads what agents measured most recently. Both methods return only what is
// known: an absent key is unknown, never zero. Losing all of it loses only charts.
type LiveStats interface {
	Agents(ctx context.Context, ids []cluster.AgentID) map[cluster.AgentID]map[string]float64
	Kernels(ctx context.Context, ids []cluster.KernelID) map[cluster.KernelID]map[string]float64
}

// Folders resolves what sessions mount; folder.Service satisfies it.
type Folders interface {
	// ResolveMounts plans the mounts of a session of owner, automatic ones included.
	ResolveMounts(ctx context.Context, q *dbgen.Queries, owner Actor, r folder.MountRequest) ([]cluster.FolderMount, error)
	// Hold keeps folders mountable until the transaction of q ends and returns those that are not any more.
	Hold(ctx context.Context, q *dbgen.Queries, folders []cluster.FolderID) (gone []cluster.FolderID, err error)
}

// Deps are what a Service works with. Store, Seal, Random and Log are required.
type Deps struct {
	Store *store.Store
	Seal  *seal.Key
	// Clock and IDs default to time.Now and random version 4 UUIDs made from Random.
	Clock  func() time.Time
	IDs    func() string
	Random io.Reader
	// Streams may be nil: byte streams are Unavailable then.
	Streams Streams
	// Live may be nil: nothing is known live then.
	Live LiveStats
	// Usage may be nil: checks of utilisation know nothing then and find nobody idle.
	Usage snapshot.Usage
	// Explainer may be nil: why sessions wait is only what is stored about them then.
	Explainer Explainer
	// Folders may be nil: there are no folders then.
	Folders Folders
	// Callbacks says where session callbacks may go.
	Callbacks CallbackPolicy
	Log       *slog.Logger
}

// CallbackPolicy says where session callbacks may go.
type CallbackPolicy = callback.Policy

// What administrators change of agents, resource groups and limits; see package supply.
type (
	AgentChange        = supply.AgentChange
	ResourceGroupProps = supply.ResourceGroupProps
	GroupUser          = supply.GroupUser
	KeypairPolicyProps = supply.KeypairPolicyProps
)

// Idle checks; see package idling.
type (
	IdleType     = idle.Type
	IdleOperator = idle.Operator
	IdleSpec     = idling.Spec
	IdleBinding  = idling.Binding
	IdleChecker  = idling.Checker
	IdleReport   = idling.Report
)

// Resource presets; see package preset.
type (
	Preset      = preset.Preset
	PresetInput = preset.Input
	PresetCheck = preset.Check
)

// Nodes is the side of the service that agents' reports go to; see package node.
type Nodes = node.Nodes

// Page is one page of a list and the number of items of the whole list.
type Page[T any] struct {
	Items []T
	Total int
}

// ListQuery selects a page. Filter and Order are the wire's mini-language (reference of the
// official clients): `status == "RUNNING" & name like "a%"` and `+name,-created_at`.
type ListQuery struct {
	Filter, Order string
	// Limit is 1 to 100; 0 means 20.
	Limit, Offset int
}

// Service is the manager's use cases.
type Service struct {
	*supply.Supply
	*idling.Idling
	*preset.Presetting
	d         Deps
	passwords *seal.Passwords
	hub       *hub
	counts    counts
	accesses  idling.Accesses
	work      *background
	frozen    frozenCache
	// routes are the ways to runners, actors who owns an access key.
	routes recent[routeKey, route]
	actors recent[cluster.AccessKey, knownActor]
	// creations are requests for sessions on their way to a shared commit.
	creations creations
}

// New makes the service. Run must be running for waits, events and callbacks to work.
func New(d Deps) (*Service, error) {
	switch {
	case d.Store == nil, d.Seal == nil, d.Log == nil:
		return nil, fault.New(fault.Internal, "service: store, seal and log are required")
	}
	d = d.withDefaults()
	s := &Service{Supply: supply.New(d.Store, d.Seal), d: d, passwords: seal.NewPasswords(0, d.Random), hub: newHub(d.Store, d.Log), work: newBackground(maxBackground)}
	s.Idling = idling.New(idling.Deps{Store: d.Store, Clock: d.Clock, Usage: d.Usage, Log: d.Log, Session: s.findToChange, Project: s.findProject, Policy: s.keypairPolicyOf})
	s.Presetting = preset.New(preset.Deps{Store: d.Store, IDs: d.IDs, Log: d.Log, Project: s.findProject, Slots: s.slotKinds})
	s.hub.changed = s.forgetRoutes
	s.routes.actors, s.actors.actors = d.Store.ActorsTurn, d.Store.ActorsTurn
	return s, nil
}

func (d Deps) withDefaults() Deps {
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		random := d.Random
		d.IDs = func() string {
			id, err := uuid.NewRandomFromReader(random)
			if err != nil {
				panic(fmt.Sprintf("make an id: %v", err)) // the system's randomness does not fail
			}
			return id.String()
		}
	}
	return d
}

// Nodes returns the side for agentlink and reconcile.
func (s *Service) Nodes() *Nodes {
	return &Nodes{Store: s.d.Store, IDs: s.d.IDs, Log: s.d.Log, DefaultGroup: first}
}

// countsEvery is how often gathered query counts are written.
const countsEvery = 3 * time.Second

// Run serves until ctx ends: events, waits, callbacks and background tasks. It returns when all of its work has stopped.
func (s *Service) Run(ctx context.Context) error {
	if _, err := s.d.Store.AbandonTasks(ctx); err != nil && ctx.Err() == nil {
		s.d.Log.Warn("could not end tasks of an earlier manager", "error", err)
	}
	var parts sync.WaitGroup
	parts.Go(func() { s.hub.run(ctx) })
	parts.Go(func() { (&callback.Worker{Store: s.d.Store, Policy: s.d.Callbacks, Log: s.d.Log}).Run(ctx) })
	parts.Go(func() { s.runCounts(ctx) })
	parts.Go(func() { s.accesses.Run(ctx, s.d.Store, s.d.Clock, s.d.Log) })
	parts.Wait()
	s.work.stop()
	return nil
}

func (s *Service) runCounts(ctx context.Context) {
	tick := time.NewTicker(countsEvery)
	defer tick.Stop()
	flush := func(ctx context.Context) {
		if err := s.counts.flush(ctx, s.d.Store); err != nil {
			s.d.Log.Warn("could not store query counts", "error", err)
		}
	}
	for {
		select {
		case <-tick.C:
			flush(ctx)
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			flush(last)
			return
		}
	}
}
