package graphapi

import (
	"context"
	"time"

	"github.com/graph-gophers/dataloader/v7"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/service"
)

// loaders batch look-ups of one request: a list of sessions that asks for each one's
// dependencies reads them in one statement.
type loaders struct {
	sessions *dataloader.Loader[cluster.SessionID, *service.Session]
	idle     *dataloader.Loader[cluster.SessionID, service.IdleReport]
	folders  *dataloader.Loader[cluster.FolderID, *folder.Folder]
}

type loadersKey struct{}

const batchWait = time.Millisecond

func withLoaders(ctx context.Context, deps Deps) context.Context {
	batch := func(ctx context.Context, ids []cluster.SessionID) []*dataloader.Result[*service.Session] {
		out := make([]*dataloader.Result[*service.Session], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Service.SessionsByID(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[*service.Session]{Data: found[id], Error: err}
		}
		return out
	}
	idle := func(ctx context.Context, ids []cluster.SessionID) []*dataloader.Result[service.IdleReport] {
		out := make([]*dataloader.Result[service.IdleReport], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Service.IdleChecks(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[service.IdleReport]{Data: found[id], Error: err}
		}
		return out
	}
	folders := func(ctx context.Context, ids []cluster.FolderID) []*dataloader.Result[*folder.Folder] {
		out := make([]*dataloader.Result[*folder.Folder], len(ids))
		actor, _ := deps.Actor(ctx)
		found, err := deps.Folders.Load(ctx, actor, ids)
		for i, id := range ids {
			out[i] = &dataloader.Result[*folder.Folder]{Error: err}
			if f, ok := found[id]; ok {
				out[i].Data = &f
			}
		}
		return out
	}
	l := &loaders{
		sessions: dataloader.NewBatchedLoader(batch,
			dataloader.WithWait[cluster.SessionID, *service.Session](batchWait),
			dataloader.WithBatchCapacity[cluster.SessionID, *service.Session](200)),
		idle: dataloader.NewBatchedLoader(idle,
			dataloader.WithWait[cluster.SessionID, service.IdleReport](batchWait),
			dataloader.WithBatchCapacity[cluster.SessionID, service.IdleReport](200)),
		folders: dataloader.NewBatchedLoader(folders,
			dataloader.WithWait[cluster.FolderID, *folder.Folder](batchWait),
			dataloader.WithBatchCapacity[cluster.FolderID, *folder.Folder](200)),
	}
	return context.WithValue(ctx, loadersKey{}, l)
}

// session returns a session that the actor may see, nil otherwise.
func session(ctx context.Context, id cluster.SessionID) (*service.Session, error) {
	return ctx.Value(loadersKey{}).(*loaders).sessions.Load(ctx, id)()
}
