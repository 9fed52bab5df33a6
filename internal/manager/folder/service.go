package folder

import (
	"context"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/storage"
)

// Proxies is the way to storage proxies; link/storage satisfies it.
type Proxies interface {
	// View returns the nodes that announce themselves now, and those whose announcement ended and that were not
	// replaced: the last that is known of them. While discovery is away everything stays live.
	View() (live, gone []storage.Presence)
	// ClientURL is where clients reach the proxy; fault.Unavailable when no node of it is known.
	ClientURL(proxy string) (string, error)
	// Do asks a node of the proxy: method and path are of package storage, reply may be nil or *json.RawMessage.
	// Errors keep the kind and words that the proxy gave them.
	Do(ctx context.Context, proxy, method, path string, request, reply any) error
}

// Deps are what a Service works with. Store, Tenancy and Log are required; Clock and IDs default to the system's.
type Deps struct {
	Store   *store.Store
	Tenancy *tenancy.Service
	// Proxies may be nil: there are no hosts then.
	Proxies Proxies
	Clock   func() time.Time
	IDs     func() string
	Log     *slog.Logger
}

// Service is the use cases of folders.
type Service struct {
	d Deps
}

// New makes the use cases.
func New(d Deps) (*Service, error) {
	if d.Store == nil || d.Tenancy == nil || d.Log == nil {
		return nil, fault.New(fault.Internal, "folder: store, tenancy and log are required")
	}
	if d.IDs == nil {
		d.IDs = uuid.NewString
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.Proxies == nil {
		d.Proxies = nobody{}
	}
	return &Service{d: d}, nil
}

// nobody stands for the proxies of a cluster that has none.
type nobody struct{}

func (nobody) View() (live, gone []storage.Presence)  { return nil, nil }
func (nobody) ClientURL(proxy string) (string, error) { return "", noProxy(proxy) }
func (nobody) Do(_ context.Context, proxy, _, _ string, _, _ any) error {
	return noProxy(proxy)
}

func noProxy(proxy string) error {
	return fault.Unavailablef("no storage proxy %s is connected", proxy).WithReason("storage-proxy-unavailable").
		WithNext("start it, or look at `berth doctor`")
}
