package storage

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task"
	"berth.dev/berth/internal/storage/transfer"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

const (
	maxMkdir     = 50
	defaultPage  = 1000
	maxPage      = 10_000
	maxDeletions = 10_000
)

func (p *Proxy) fileRoutes(mux *http.ServeMux) {
	handle(p, mux, "POST", wire.PathMkdir, p.mkdir)
	handle(p, mux, "POST GET", wire.PathList, p.list)
	handle(p, mux, "POST", wire.PathRename, p.rename)
	handle(p, mux, "POST", wire.PathMove, func(ctx context.Context, q wire.MoveRequest) (int, any, error) {
		return p.move(ctx, q.Volume, q.VFID, q.Src, q.Dst, true)
	})
	mux.HandleFunc("POST "+wire.PathFetch, p.fetch)
	mux.HandleFunc("GET "+wire.PathFetch, p.fetch)
	handle(p, mux, "POST", wire.PathDownload, func(ctx context.Context, q wire.DownloadRequest) (int, any, error) {
		return p.token(ctx, q.Volume, q.VFID, func(ctx context.Context, r transferTarget) (wire.TokenReply, error) {
			return tokenAlone(p.transfer.DownloadToken(ctx, transfer.DownloadRequest{Volume: r.volume, Folder: r.folder, Path: q.RelPath,
				Archive: q.Archive, Clients: q.Clients, Rights: q.Rights}))
		})
	})
	handle(p, mux, "POST", wire.PathArchive, func(ctx context.Context, q wire.ArchiveRequest) (int, any, error) {
		return p.token(ctx, q.Volume, q.VFID, func(ctx context.Context, r transferTarget) (wire.TokenReply, error) {
			return tokenAlone(p.transfer.ArchiveToken(ctx, transfer.ArchiveRequest{Volume: r.volume, Folder: r.folder, Paths: q.Files,
				Filename: q.Filename, Clients: q.Clients, Rights: q.Rights}))
		})
	})
	handle(p, mux, "POST", wire.PathUpload, func(ctx context.Context, q wire.UploadRequest) (int, any, error) {
		return p.token(ctx, q.Volume, q.VFID, func(ctx context.Context, r transferTarget) (wire.TokenReply, error) {
			text, upload, err := p.transfer.UploadToken(ctx, transfer.UploadRequest{Volume: r.volume, Folder: r.folder, Path: q.RelPath,
				Size: q.Size, Resume: q.Resume, Clients: q.Clients, Rights: q.Rights})
			return wire.TokenReply{Token: text, Upload: upload}, err
		})
	})
	handle(p, mux, "POST", wire.PathRights, func(_ context.Context, q wire.RightsRequest) (int, any, error) {
		if len(q.Epochs) > wire.MaxEpochs {
			return 0, nil, fault.Invalidf("%d epochs are more than one request may have", len(q.Epochs)).
				WithNext("send %d at once at most", wire.MaxEpochs)
		}
		return http.StatusOK, p.rights.Take(q), nil
	})
	handle(p, mux, "POST", wire.PathDelete, p.deleteFiles)
	handle(p, mux, "POST", wire.PathDeleteAsync, p.deleteLater)
}

// texts is a text or a list of texts.
type texts []string

func (t *texts) UnmarshalJSON(raw []byte) error {
	var one string
	if json.Unmarshal(raw, &one) == nil {
		*t = texts{one}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(t))
}

// mkdirQuery is a wire.MkdirRequest whose path may be a text.
type mkdirQuery struct {
	Volume   string `json:"volume"`
	VFID     string `json:"vfid"`
	RelPaths texts  `json:"relpath"`
	Parents  *bool  `json:"parents"`
	ExistOK  bool   `json:"exist_ok"`
}

func (p *Proxy) mkdir(ctx context.Context, q mkdirQuery) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	if len(q.RelPaths) == 0 || len(q.RelPaths) > maxMkdir {
		return 0, nil, fault.Invalidf("%d directories cannot be made at once", len(q.RelPaths)).WithReason("invalid-api-params").
			WithNext("name 1 to %d", maxMkdir)
	}
	parents := q.Parents == nil || *q.Parents
	out, err := inFolder(ctx, m, f, func(ctx context.Context, v volume.Volume, t volume.Tree) (wire.ResultsReply, error) {
		if err := v.Charge(ctx, f.Scope, 0); err != nil {
			return wire.ResultsReply{}, err
		}
		return each(ctx, q.RelPaths, func(name string) error {
			clean, err := volume.CleanPath(name)
			if err != nil {
				return err
			}
			return t.Mkdir(clean, parents, q.ExistOK)
		})
	})
	return statusOf(out), out, err
}

// each does something to every path and says what became of it. A volume that is away ends it.
func each(ctx context.Context, names []string, do func(name string) error) (wire.ResultsReply, error) {
	out := wire.ResultsReply{Success: []wire.PathResult{}, Failed: []wire.PathResult{}}
	for _, name := range names {
		if ctx.Err() != nil {
			return out, context.Cause(ctx)
		}
		err := do(name)
		switch {
		case err == nil:
			out.Success = append(out.Success, wire.PathResult{Item: name})
		case fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Internal):
			return out, err
		default:
			out.Failed = append(out.Failed, wire.PathResult{Item: name, Msg: err.Error()})
		}
	}
	return out, nil
}

func statusOf(r wire.ResultsReply) int {
	switch {
	case len(r.Failed) == 0:
		return http.StatusOK
	case len(r.Success) == 0:
		return http.StatusUnprocessableEntity
	}
	return http.StatusMultiStatus
}

func (p *Proxy) list(ctx context.Context, q wire.ListRequest) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	clean, err := volume.CleanPath(q.RelPath)
	if err != nil {
		return 0, nil, err
	}
	limit := q.Limit
	switch {
	case limit < 0 || limit > maxPage:
		return 0, nil, fault.Invalidf("a page of %d entries is not possible", q.Limit).WithReason("invalid-api-params").
			WithNext("ask for up to %d", maxPage)
	case limit == 0:
		limit = defaultPage
	}
	out, err := inFolder(ctx, m, f, func(ctx context.Context, _ volume.Volume, t volume.Tree) (wire.ListReply, error) {
		page, next, err := t.List(ctx, clean, q.After, limit)
		out := wire.ListReply{Items: make([]wire.Entry, 0, len(page)), Next: next}
		for _, e := range page {
			out.Items = append(out.Items, wire.Entry{
				Name: strings.ToValidUTF8(e.Name, "�"), Type: string(e.Kind), Target: strings.ToValidUTF8(e.Target, "�"),
				Stat: wire.EntryStat{Mode: strconv.FormatUint(uint64(e.Mode.Perm()), 8), Size: e.Size, Created: e.Created.UTC(),
					Modified: e.Modified.UTC()},
			})
		}
		return out, err
	})
	return http.StatusOK, out, err
}

func (p *Proxy) rename(ctx context.Context, q wire.RenameRequest) (int, any, error) {
	clean, err := volume.CleanPath(q.NewName)
	if err != nil {
		return 0, nil, err
	}
	if clean == "." || strings.Contains(q.NewName, "/") {
		return 0, nil, fault.Invalidf("%q is no name for an entry", fault.Clip(q.NewName, maxEcho)).WithReason("invalid-api-params").
			WithNext("give a name without a slash; move it to change its directory")
	}
	from, err := volume.CleanPath(q.RelPath)
	if err != nil {
		return 0, nil, err
	}
	return p.move(ctx, q.Volume, q.VFID, from, path.Join(path.Dir(from), clean), false)
}

// move gives an entry another path. With into, a directory at dst takes the entry in under its name, as mv does.
func (p *Proxy) move(ctx context.Context, name, vfid, src, dst string, into bool) (int, any, error) {
	m, f, err := p.onFolder(name, vfid)
	if err != nil {
		return 0, nil, err
	}
	var ends [2]string
	for i, end := range []string{src, dst} {
		if ends[i], err = volume.CleanPath(end); err != nil {
			return 0, nil, err
		}
		if ends[i] == "." && !(into && i == 1) {
			return 0, nil, fault.Invalidf("the folder itself cannot be moved inside itself").WithReason("invalid-api-params").
				WithNext("name a file or directory in it")
		}
	}
	_, err = inFolder(ctx, m, f, func(_ context.Context, _ volume.Volume, t volume.Tree) (struct{}, error) {
		err := t.Rename(ends[0], ends[1])
		if into && fault.Is(err, fault.Conflict) {
			if e, serr := t.Stat(ends[1]); serr == nil && e.Kind == volume.KindDirectory {
				err = t.Rename(ends[0], path.Join(ends[1], path.Base(ends[0])))
			}
		}
		return struct{}{}, err
	})
	return http.StatusNoContent, nil, err
}

// fetch streams a file to the manager.
func (p *Proxy) fetch(w http.ResponseWriter, r *http.Request) {
	var q wire.PathRequest
	err := decode(w, r, &q)
	if err == nil {
		err = p.send(w, r, q)
	}
	if err != nil {
		p.fail(w, r, err)
	}
}

// send returns an error only while nothing is sent.
func (p *Proxy) send(w http.ResponseWriter, r *http.Request, q wire.PathRequest) error {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return err
	}
	clean, err := volume.CleanPath(q.RelPath)
	if err != nil {
		return err
	}
	file, err := ask(r.Context(), m, func(ctx context.Context, v volume.Volume) (volume.File, error) {
		t, err := v.OpenFolder(ctx, f)
		if err != nil {
			return nil, err
		}
		file, err := t.Open(clean)
		if cerr := t.Close(); err == nil && cerr != nil {
			_ = file.Close() // only read
			err = cerr
		}
		return file, err
	}, func(file volume.File) {
		_ = file.Close() // only read
	})
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("fetch %s: %w", clean, err)
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(info.Size(), 10))
	w.WriteHeader(http.StatusOK)
	if _, err := io.CopyN(w, file, info.Size()); err != nil {
		panic(http.ErrAbortHandler) // the manager must not take half a file for all of it
	}
	return nil
}

// cleanAll cleans the paths of a deletion. The folder itself is none.
func cleanAll(names []string) ([]string, error) {
	if len(names) == 0 || len(names) > maxDeletions {
		return nil, fault.Invalidf("%d paths cannot be deleted at once", len(names)).WithReason("invalid-api-params").
			WithNext("name 1 to %d", maxDeletions)
	}
	out := make([]string, len(names))
	for i, name := range names {
		clean, err := cleanOne(name)
		if err != nil {
			return nil, err
		}
		out[i] = clean
	}
	return out, nil
}

func cleanOne(name string) (string, error) {
	clean, err := volume.CleanPath(name)
	if err == nil && clean == "." {
		err = fault.Invalidf("the folder itself cannot be deleted as one of its files").WithReason("invalid-api-params").
			WithNext("name what is in it, or delete the folder")
	}
	return clean, err
}

func (p *Proxy) deleteFiles(ctx context.Context, q wire.DeleteRequest) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	if len(q.RelPaths) == 0 || len(q.RelPaths) > maxDeletions {
		_, err := cleanAll(q.RelPaths)
		return 0, nil, err
	}
	out, err := inFolder(ctx, m, f, func(ctx context.Context, _ volume.Volume, t volume.Tree) (wire.ResultsReply, error) {
		return each(ctx, q.RelPaths, func(name string) error {
			clean, err := cleanOne(name)
			if err != nil {
				return err
			}
			return t.Remove(clean, q.Recursive)
		})
	})
	return http.StatusOK, out, err
}

func (p *Proxy) deleteLater(ctx context.Context, q wire.DeleteRequest) (int, any, error) {
	f, err := ref(q.VFID)
	if err != nil {
		return 0, nil, err
	}
	paths, err := cleanAll(q.RelPaths)
	if err != nil {
		return 0, nil, err
	}
	return p.begin(ctx, q.TaskID, task.Spec{Kind: task.DeleteFiles, Volume: q.Volume, Folder: f, Paths: paths, Recursive: q.Recursive})
}
