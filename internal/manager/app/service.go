// Package app is the manager's side of apps: it starts them through a session's runner, publishes them as circuits of app proxies,
// and decides who may visit those. It owns the tables of circuits. A circuit is published while its kernel runs, and rows end with
// their kernel.
//
// It carries no bytes of visitors: app proxies do. httpapi calls the use cases that take an actor. link/proxy calls those of
// proxies; their right is a launch token, a one-time code or the proxy's certificate.
//
// Every use case is one transaction at most, with no network inside it: apps are started before, proxies hear of it after.
package app

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/wire/proxy"
)

// Sessions is what this package needs of the use cases of sessions; session.Service satisfies it.
type Sessions interface {
	// Find authorises reading a session.
	Find(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*session.Session, error)
	// Runner authorises using a session that is RUNNING and opens the way to its runner.
	Runner(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (*session.Runner, error)
	// Uses is where visits are noted as uses of sessions.
	Uses() *session.Uses
}

// Vault keeps the keys of tickets and grants, sealed; Update alone against other managers.
type Vault interface {
	Get(ctx context.Context, key string) ([]byte, error)
	Update(ctx context.Context, key string, fn func(old []byte) ([]byte, error)) ([]byte, error)
}

// Deps are what a Service works with. Store, Sessions, Vault and Log are required.
type Deps struct {
	Store    *store.Store
	Sessions Sessions
	Vault    Vault
	// Streams may be nil: no runner can be reached then.
	Streams session.Streams
	// Revoked tells the app proxies whose certificates ended lately. It may be nil: none.
	Revoked func(context.Context) ([]proxy.Revocation, error)
	// ClusterID is the issuer of grants: agents obey those of their own cluster.
	ClusterID string
	// Clock, IDs and Random default to the system's.
	Clock  func() time.Time
	IDs    func() string
	Random io.Reader
	Log    *slog.Logger
}

// Service is the use cases of apps and circuits.
type Service struct {
	d     Deps
	table table

	tickets *ticketKeys
	grants  *grants
}

// New makes the use cases. Run must be running for proxies to hear of changes.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Sessions == nil || d.Vault == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "app: store, sessions, vault and log are required")
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		d.IDs = uuid.NewString
	}
	if d.Random == nil {
		d.Random = rand.Reader
	}
	s := &Service{d: d, tickets: newTicketKeys(), grants: newGrants()}
	s.table.init()
	return s, nil
}

// Run follows the circuits, keeps house and stores uses of sessions until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { s.follow(ctx) })
	parts.Go(func() { s.keepHouse(ctx) })
	parts.Wait()
	return nil
}
