package graphapi

import (
	"context"
	"sync"
	"time"

	"github.com/graph-gophers/dataloader/v7"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
)

// loaders read in one statement what many rows of one request ask for.
type loaders struct {
	// sessions and folders are those that fields of the root name, which know nothing of each other: they are read together when they are
	// asked for within a moment.
	sessions *dataloader.Loader[cluster.SessionID, *session.Session]
	folders  *dataloader.Loader[cluster.FolderID, *folder.Folder]

	// The others belong to rows of lists.
	related    *together[cluster.SessionID, *session.Session]
	dependents *together[cluster.SessionID, []*session.Session]
	times      *together[cluster.SessionID, map[cluster.Status]time.Time]
	idle       *together[cluster.SessionID, idle.Report]
	images     *together[imageKey, *image.Image]
	kernels    *together[cluster.AgentID, []session.Kernel]

	mu sync.Mutex
	// seen are the sessions that were read.
	seen map[cluster.SessionID]*session.Session
}

// imageKey names an image; one request looks every image up once, however many containers run it.
type imageKey struct{ reference, architecture string }

type loadersKey struct{}

const (
	batchWait = time.Millisecond
	maxBatch  = 200
)

// batched makes a loader of a function that reads many things at once. What it does not find is the zero value.
func batched[K comparable, V any](read func(context.Context, []K) (map[K]V, error)) *dataloader.Loader[K, V] {
	return dataloader.NewBatchedLoader(func(ctx context.Context, keys []K) []*dataloader.Result[V] {
		found, err := read(ctx, keys)
		out := make([]*dataloader.Result[V], len(keys))
		for i, k := range keys {
			out[i] = &dataloader.Result[V]{Data: found[k], Error: err}
		}
		return out
	}, dataloader.WithWait[K, V](batchWait), dataloader.WithBatchCapacity[K, V](maxBatch))
}

func withLoaders(ctx context.Context, deps Deps) context.Context {
	n := deps.Nouns
	actor, _ := deps.Actor(ctx)
	l := &loaders{seen: map[cluster.SessionID]*session.Session{}}
	byID := func(ctx context.Context, ids []cluster.SessionID) (map[cluster.SessionID]*session.Session, error) {
		found, err := n.Sessions.ByID(ctx, actor, ids)
		all := make([]*session.Session, 0, len(found))
		for _, s := range found {
			all = append(all, s)
		}
		l.expect(all)
		return found, err
	}
	l.sessions, l.related = batched(byID), newTogether(byID)
	l.folders = batched(func(ctx context.Context, ids []cluster.FolderID) (map[cluster.FolderID]*folder.Folder, error) {
		found, err := n.Folders.Load(ctx, actor, ids)
		out := make(map[cluster.FolderID]*folder.Folder, len(found))
		for id, f := range found {
			out[id] = &f
		}
		return out, err
	})
	l.dependents = newTogether(func(ctx context.Context, ids []cluster.SessionID) (map[cluster.SessionID][]*session.Session, error) {
		found, err := n.Sessions.DependentsOf(ctx, actor, ids)
		var all []*session.Session
		for _, some := range found {
			all = append(all, some...)
		}
		l.expect(all)
		return found, err
	})
	l.times = newTogether(func(ctx context.Context, ids []cluster.SessionID) (map[cluster.SessionID]map[cluster.Status]time.Time, error) {
		return n.Sessions.StatusTimes(ctx, actor, ids)
	})
	l.idle = newTogether(func(ctx context.Context, ids []cluster.SessionID) (map[cluster.SessionID]idle.Report, error) {
		return n.Idle.Checks(ctx, actor, ids)
	})
	l.images = newTogether(func(ctx context.Context, keys []imageKey) (map[imageKey]*image.Image, error) {
		refs := make([]string, len(keys))
		for i, k := range keys {
			refs[i] = k.reference
		}
		found, err := n.Images.Named(ctx, actor, refs)
		out := make(map[imageKey]*image.Image, len(keys))
		for _, k := range keys {
			for _, im := range found[k.reference] {
				if out[k] == nil && (k.architecture == "" || im.Architecture == k.architecture) {
					out[k] = im
				}
			}
		}
		return out, err
	})
	l.kernels = newTogether(func(ctx context.Context, ids []cluster.AgentID) (map[cluster.AgentID][]session.Kernel, error) {
		found, err := n.Sessions.KernelsOfAgents(ctx, actor, ids)
		for _, some := range found {
			l.expectImages(some)
		}
		return found, err
	})
	return context.WithValue(ctx, loadersKey{}, l)
}

func loadersOf(ctx context.Context) *loaders { return ctx.Value(loadersKey{}).(*loaders) }

// expect keeps sessions that were read and announces them: their fields may ask for more.
func (l *loaders) expect(page []*session.Session) {
	l.mu.Lock()
	for _, s := range page {
		l.seen[s.ID] = s
	}
	l.mu.Unlock()
	var ids, running, others []cluster.SessionID
	var kernels []session.Kernel
	for _, s := range page {
		ids, others, kernels = append(ids, s.ID), append(others, dependsOn(s)...), append(kernels, s.Kernels...)
		if s.Status == cluster.Running {
			running = append(running, s.ID)
		}
	}
	l.dependents.expect(ids)
	l.times.expect(ids)
	l.idle.expect(running)
	l.related.expect(others)
	l.expectImages(kernels)
}

func (l *loaders) expectImages(kernels []session.Kernel) {
	keys := make([]imageKey, len(kernels))
	for i, k := range kernels {
		keys[i] = imageKey{k.Image, k.Architecture}
	}
	l.images.expect(keys)
}

// remember keeps sessions that a list has read, so that what their fields ask about them is not read again.
func remember(ctx context.Context, page []*session.Session) []*session.Session {
	loadersOf(ctx).expect(page)
	return page
}

// rememberAgents announces agents whose fields may ask for more.
func rememberAgents(ctx context.Context, page []*node.Agent) []*node.Agent {
	ids := make([]cluster.AgentID, len(page))
	for i, a := range page {
		ids[i] = a.ID
	}
	loadersOf(ctx).kernels.expect(ids)
	return page
}

// loadSession returns a session that the actor may see, nil otherwise.
func loadSession(ctx context.Context, id cluster.SessionID) (*session.Session, error) {
	l := loadersOf(ctx)
	l.mu.Lock()
	s := l.seen[id]
	l.mu.Unlock()
	if s != nil {
		return s, nil
	}
	return l.sessions.Load(ctx, id)()
}

// loadRelated returns those of some sessions that the actor may see.
func loadRelated(ctx context.Context, ids []cluster.SessionID) ([]*session.Session, error) {
	out := []*session.Session{}
	for _, id := range ids {
		s, err := loadersOf(ctx).related.load(ctx, id)
		if err != nil {
			return nil, err
		}
		if s != nil {
			out = append(out, s)
		}
	}
	return out, nil
}

// loadImage returns an image that the actor may see, nil otherwise.
func loadImage(ctx context.Context, reference, architecture string) (*image.Image, error) {
	return loadersOf(ctx).images.load(ctx, imageKey{reference, architecture})
}
