// Package session is what users ask for: sessions and their kernels. It checks permission and values, writes in one transaction what
// should be true, and reads it back. It tells waiters and subscribers what happened, and opens the way to a kernel's runner. Its
// loops end overdue batch sessions and forget old history.
//
// It never orders an agent. session/scheduling places sessions; node stores what agents report. httpapi, graphapi, idle and app call it.
//
// Every exported method of Service takes the actor and decides about it in its first lines.
package session

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/recent"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// Nouns of errors.
const (
	noun        = "session"
	groupNoun   = "resource group"
	agentNoun   = "agent"
	projectNoun = "project"
)

// Streams is the way to an agent's byte streams.
type Streams interface {
	// RoundTrip sends req (path /kernels/<id>/...) to the agent; fault.Unavailable when it is not connected.
	RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error)
	// Upgrade opens a full-duplex stream.
	Upgrade(ctx context.Context, agent cluster.AgentID, path string, header http.Header) (io.ReadWriteCloser, error)
}

// LiveStats reads what agents measured most recently of kernels. What is not known is absent, never zero.
type LiveStats interface {
	Kernels(ctx context.Context, ids []cluster.KernelID) map[cluster.KernelID]map[string]float64
}

// Folders resolves what sessions mount; folder.Service satisfies it.
type Folders interface {
	// ResolveMounts plans the mounts of a session of owner, automatic ones included.
	ResolveMounts(ctx context.Context, q *dbgen.Queries, owner authz.Actor, r folder.MountRequest) ([]cluster.FolderMount, error)
	// Hold keeps folders mountable until the transaction of q ends and returns those that are not any more.
	Hold(ctx context.Context, q *dbgen.Queries, folders []cluster.FolderID) (gone []cluster.FolderID, err error)
}

// Tasks runs work that outlives its request; operation.Service satisfies it.
type Tasks interface {
	// StartTask runs work as a task of the actor and returns the task's id; report says how far it is. The task begins only if may,
	// which runs in the transaction that notes it, returns nil.
	StartTask(ctx context.Context, a authz.Actor, kind, subject string, may func(ctx context.Context, tx *store.Tx) error,
		work func(ctx context.Context, report func(message string)) (string, error)) (id string, err error)
}

// Deps are what a Service works with. What may be nil says so.
type Deps struct {
	Store    *store.Store
	Tenancy  *tenancy.Service
	Resource *resource.Service
	Image    *image.Service
	Tasks    Tasks
	Clock    func() time.Time
	IDs      func() string
	// Streams may be nil: byte streams are Unavailable then.
	Streams Streams
	// Live may be nil: nothing is known live then.
	Live LiveStats
	// Explainer may be nil: why sessions wait is only what is stored about them then.
	Explainer Explainer
	// Folders may be nil: there are no folders then.
	Folders Folders
	Log     *slog.Logger
}

// Service is the use cases of sessions.
type Service struct {
	d      Deps
	hub    *hub
	counts counts
	uses   Uses
	// routes are the ways to runners.
	routes *recent.Cache[routeKey, route]
	// beforeLook starts the pause before a wait looks again, without a hint, whether containers are gone: removalPause, but in tests.
	beforeLook func() <-chan time.Time
	// creations are requests for sessions on their way to a shared commit.
	creations *store.Group[*creation]
}

// New makes the use cases. Run must be running for waits and events to work.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Resource == nil || d.Image == nil || d.Tasks == nil || d.Clock == nil || d.IDs == nil ||
		d.Log == nil {
		return nil, fault.New(fault.Internal, "session: a required dependency is missing")
	}
	s := &Service{d: d, hub: newHub(d.Store, d.Log, resync), routes: recent.New[routeKey, route](d.Store.ActorsTurn),
		beforeLook: func() <-chan time.Time { return time.After(removalPause) }}
	s.hub.changed = s.forgetRoutes
	s.creations = store.NewGroup(maxCreations, s.create)
	return s, nil
}

// Uses is where uses of sessions that do not pass through Runner are noted, such as visits of apps.
func (s *Service) Uses() *Uses { return &s.uses }

// Run serves until ctx ends: waits and events, and what is counted of queries and uses.
func (s *Service) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { s.hub.run(ctx) })
	parts.Go(func() { s.runCounts(ctx) })
	parts.Go(func() { s.uses.run(ctx, s.d.Store, s.d.Clock, s.d.Log) })
	parts.Wait()
	return nil
}

// countsEvery is how often gathered query counts are written.
const countsEvery = 3 * time.Second

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
