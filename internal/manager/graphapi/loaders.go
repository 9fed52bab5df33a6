package graphapi

import (
	"context"
	"time"

	"github.com/graph-gophers/dataloader/v7"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/image"
	"berth.dev/berth/internal/manager/session"
)

// loaders batch look-ups of one request: a list of sessions that asks for each one's
// dependencies reads them in one statement.
type loaders struct {
	sessions *dataloader.Loader[cluster.SessionID, *session.Session]
	idle     *dataloader.Loader[cluster.SessionID, idle.Report]
	folders  *dataloader.Loader[cluster.FolderID, *folder.Folder]
	images   *dataloader.Loader[imageKey, *image.Image]
}

// imageKey names an image; one request looks every image up once, however many containers run it.
type imageKey struct{ reference, architecture string }

type loadersKey struct{}

const batchWait = time.Millisecond

func withLoaders(ctx context.Context, deps Deps) context.Context {
	batch := func(ctx context.Context, ids []cluster.SessionID) []*dataloader.Result[*session.Session] {
		out := make([]*dataloader.Result[*session.Session], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Nouns.Sessions.ByID(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[*session.Session]{Data: found[id], Error: err}
		}
		return out
	}
	checks := func(ctx context.Context, ids []cluster.SessionID) []*dataloader.Result[idle.Report] {
		out := make([]*dataloader.Result[idle.Report], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Nouns.Idle.Checks(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[idle.Report]{Data: found[id], Error: err}
		}
		return out
	}
	folders := func(ctx context.Context, ids []cluster.FolderID) []*dataloader.Result[*folder.Folder] {
		out := make([]*dataloader.Result[*folder.Folder], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Nouns.Folders.Load(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[*folder.Folder]{Error: err}
			if f, ok := found[id]; ok {
				out[i].Data = &f
			}
		}
		return out
	}
	images := func(ctx context.Context, keys []imageKey) []*dataloader.Result[*image.Image] {
		out := make([]*dataloader.Result[*image.Image], len(keys))
		actor, _ := deps.Actor(ctx)
		for i, k := range keys {
			im, err := orNil(deps.Nouns.Images.Get(ctx, actor, k.reference, k.architecture))
			out[i] = &dataloader.Result[*image.Image]{Data: im, Error: err}
		}
		return out
	}
	l := &loaders{
		sessions: dataloader.NewBatchedLoader(batch,
			dataloader.WithWait[cluster.SessionID, *session.Session](batchWait),
			dataloader.WithBatchCapacity[cluster.SessionID, *session.Session](200)),
		idle: dataloader.NewBatchedLoader(checks,
			dataloader.WithWait[cluster.SessionID, idle.Report](batchWait),
			dataloader.WithBatchCapacity[cluster.SessionID, idle.Report](200)),
		folders: dataloader.NewBatchedLoader(folders,
			dataloader.WithWait[cluster.FolderID, *folder.Folder](batchWait),
			dataloader.WithBatchCapacity[cluster.FolderID, *folder.Folder](200)),
		images: dataloader.NewBatchedLoader(images,
			dataloader.WithWait[imageKey, *image.Image](batchWait),
			dataloader.WithBatchCapacity[imageKey, *image.Image](200)),
	}
	return context.WithValue(ctx, loadersKey{}, l)
}

// loadSession returns a session that the actor may see, nil otherwise.
func loadSession(ctx context.Context, id cluster.SessionID) (*session.Session, error) {
	return ctx.Value(loadersKey{}).(*loaders).sessions.Load(ctx, id)()
}

// loadImage returns an image that the actor may see, nil otherwise.
func loadImage(ctx context.Context, reference, architecture string) (*image.Image, error) {
	return ctx.Value(loadersKey{}).(*loaders).images.Load(ctx, imageKey{reference, architecture})()
}
