package storage

import (
	"context"
	"net/http"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

func (p *Proxy) taskRoutes(mux *http.ServeMux) {
	mux.HandleFunc("GET "+wire.PathTask+"{id}", func(w http.ResponseWriter, r *http.Request) {
		t, err := p.tasks.Get(r.Context(), r.PathValue("id"))
		if err != nil {
			p.fail(w, r, err)
			return
		}
		answer(w, http.StatusOK, t)
	})
	mux.HandleFunc("DELETE "+wire.PathTask+"{id}", func(w http.ResponseWriter, r *http.Request) {
		t, err := p.tasks.Cancel(r.Context(), r.PathValue("id"))
		if err != nil {
			p.fail(w, r, err)
			return
		}
		answer(w, http.StatusOK, t)
	})
	handle(p, mux, "POST", wire.PathImport, func(ctx context.Context, q wire.TransferRequest) (int, any, error) {
		return p.copyStore(ctx, task.Import, q)
	})
	handle(p, mux, "POST", wire.PathExport, func(ctx context.Context, q wire.TransferRequest) (int, any, error) {
		return p.copyStore(ctx, task.Export, q)
	})
}

const maxStoreText = 1024

func (p *Proxy) copyStore(ctx context.Context, kind task.Kind, q wire.TransferRequest) (int, any, error) {
	f, err := ref(q.VFID)
	if err != nil {
		return 0, nil, err
	}
	clean, err := volume.CleanPath(q.RelPath)
	if err != nil {
		return 0, nil, err
	}
	for _, text := range []string{q.Prefix, q.Store.Endpoint, q.Store.Region, q.Store.Bucket, q.Store.AccessKey, q.Store.SecretKey} {
		if len(text) > maxStoreText {
			return 0, nil, fault.Invalidf("a part of the object store's description is longer than %d bytes", maxStoreText).
				WithReason("invalid-api-params")
		}
	}
	return p.begin(ctx, q.TaskID, task.Spec{Kind: kind, Volume: q.Volume, Folder: f, Path: clean, Prefix: q.Prefix, Store: q.Store})
}

// transferTarget is a volume that answers and a folder.
type transferTarget struct {
	volume string
	folder cluster.FolderRef
}

// token asks the client-facing side for a token, for a bounded time.
func (p *Proxy) token(ctx context.Context, name, vfid string,
	make func(context.Context, transferTarget) (wire.TokenReply, error)) (int, any, error) {
	m, f, err := p.onFolder(name, vfid)
	if err != nil {
		return 0, nil, err
	}
	reply, err := ask(ctx, m, func(ctx context.Context, _ volume.Volume) (wire.TokenReply, error) {
		return make(ctx, transferTarget{name, f})
	}, nil)
	return http.StatusOK, reply, err
}

// tokenAlone is a reply of a token that names no upload.
func tokenAlone(text string, err error) (wire.TokenReply, error) {
	return wire.TokenReply{Token: text}, err
}
