// Package nouns makes the use cases of all nouns of the manager and joins them: it makes one service of each noun and hands every
// service those that it uses. It holds no rules. The manager role and the tests call New; httpapi and graphapi get the Set.
package nouns

import (
	"context"
	"crypto/rand"
	"io"
	"log/slog"
	"time"

	"berth.dev/berth/internal/manager/app"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/proxy"
)

// Set is the use cases of one manager.
type Set struct {
	Audit      *audit.Service
	Tenancy    *tenancy.Service
	Resources  *resource.Service
	Images     *image.Service
	Nodes      *node.Service
	Reports    *node.Reports
	Folders    *folder.Service
	Sessions   *session.Service
	Apps       *app.Service
	Idle       *idle.Service
	Operations *operation.Service
}

// LiveStats reads what agents measured most recently of themselves and of kernels.
type LiveStats interface {
	node.LiveStats
	session.LiveStats
}

// Deps are what the nouns work with. Store, Seal, Vault and Log are required; Clock, IDs and Random default to the system's. Of the
// rest each may be nil: what needs it is Unavailable or unknown then.
type Deps struct {
	Store *store.Store
	Seal  *seal.Key
	// Vault keeps the keys of tickets and grants of apps; ClusterID is the issuer of grants.
	Vault     app.Vault
	ClusterID string
	// Revoked tells the app proxies whose certificates ended lately.
	Revoked func(context.Context) ([]proxy.Revocation, error)
	Clock   func() time.Time
	IDs     func() string
	Random  io.Reader
	// Streams is the way to agents' byte streams, Proxies that to storage proxies.
	Streams session.Streams
	Proxies folder.Proxies
	Live    LiveStats
	// Usage is what was measured of kernels over time.
	Usage     idle.Usage
	Explainer session.Explainer
	Callbacks callback.Policy
	// WrapFolders may replace what plans the mounts of sessions; tests race with it there.
	WrapFolders func(session.Folders) session.Folders
	Log         *slog.Logger
}

// New makes the use cases and joins them.
func New(d Deps) (*Set, error) {
	if d.Random == nil {
		d.Random = rand.Reader
	}
	if d.Clock == nil {
		d.Clock = time.Now
	}
	if d.IDs == nil {
		d.IDs = tenancy.RandomIDs(d.Random)
	}
	part := func(name string) *slog.Logger { return d.Log.With("part", name) }
	n := &Set{}
	var err error
	if n.Audit, err = audit.New(d.Store); err != nil {
		return nil, err
	}
	n.Tenancy, err = tenancy.New(tenancy.Deps{Store: d.Store, Seal: d.Seal, Clock: d.Clock, IDs: d.IDs, Random: d.Random,
		Log: part("tenancy")})
	if err != nil {
		return nil, err
	}
	n.Resources, err = resource.New(resource.Deps{Store: d.Store, Seal: d.Seal, IDs: d.IDs, Tenancy: n.Tenancy, Log: part("resource")})
	if err != nil {
		return nil, err
	}
	images := image.Deps{Store: d.Store, IDs: d.IDs, Log: part("image")}
	if d.Streams != nil {
		images.Streams = d.Streams
	}
	if n.Images, err = image.New(images); err != nil {
		return nil, err
	}
	nodes := node.Deps{Store: d.Store}
	if d.Live != nil {
		nodes.Live = d.Live
	}
	if n.Nodes, err = node.New(nodes); err != nil {
		return nil, err
	}
	n.Reports = &node.Reports{Store: d.Store, IDs: d.IDs, DefaultGroup: resource.DefaultGroup, Log: part("node")}
	n.Folders, err = folder.New(folder.Deps{Store: d.Store, Tenancy: n.Tenancy, Proxies: d.Proxies, Clock: d.Clock, IDs: d.IDs,
		Log: part("folder")})
	if err != nil {
		return nil, err
	}
	n.Operations, err = operation.New(operation.Deps{Store: d.Store, Clock: d.Clock, IDs: d.IDs, Callbacks: d.Callbacks,
		Log: part("operation")})
	if err != nil {
		return nil, err
	}
	mounts := session.Folders(n.Folders)
	if d.WrapFolders != nil {
		mounts = d.WrapFolders(mounts)
	}
	sessions := session.Deps{Store: d.Store, Tenancy: n.Tenancy, Resource: n.Resources, Image: n.Images, Tasks: n.Operations, Clock: d.Clock,
		IDs: d.IDs, Streams: d.Streams, Explainer: d.Explainer, Folders: mounts, Log: part("session")}
	if d.Live != nil {
		sessions.Live = d.Live
	}
	if n.Sessions, err = session.New(sessions); err != nil {
		return nil, err
	}
	n.Idle, err = idle.New(idle.Deps{Store: d.Store, Clock: d.Clock, Tenancy: n.Tenancy, Sessions: n.Sessions, Usage: d.Usage,
		Log: part("idle")})
	if err != nil {
		return nil, err
	}
	n.Apps, err = app.New(app.Deps{ClusterID: d.ClusterID, Revoked: d.Revoked,
		Store: d.Store, Sessions: n.Sessions, Vault: d.Vault, Streams: d.Streams, Clock: d.Clock,
		IDs: d.IDs, Random: d.Random, Log: part("app")})
	if err != nil {
		return nil, err
	}
	return n, nil
}
