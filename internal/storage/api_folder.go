package storage

import (
	"context"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

// volumeQuery names a volume.
type volumeQuery struct {
	Volume string `json:"volume"`
}

func (p *Proxy) volumeRoutes(mux *http.ServeMux) {
	handle(p, mux, "GET", wire.PathVolumes, func(context.Context, struct{}) (int, any, error) {
		return http.StatusOK, wire.VolumeList{Volumes: p.Volumes()}, nil
	})
	handle(p, mux, "GET", "/findings", func(context.Context, struct{}) (int, any, error) {
		return http.StatusOK, p.Findings(), nil
	})
	handle(p, mux, "GET POST", wire.PathHardware, func(_ context.Context, q volumeQuery) (int, any, error) {
		m, err := p.volumes.find(q.Volume)
		if err != nil {
			return 0, nil, err
		}
		s := m.state(p.cfg.UID, p.cfg.GID)
		status, info := "healthy", any(nil)
		if s.Problem != "" {
			status, info = "unavailable", s.Problem
		}
		return http.StatusOK, map[string]any{
			"status": status, "status_info": info, "metadata": map[string]any{"backend": s.Backend, "path": s.Path, "checked_at": s.CheckedAt},
		}, nil
	})
	handle(p, mux, "GET POST", wire.PathMetric, func(_ context.Context, q volumeQuery) (int, any, error) {
		m, err := p.volumes.find(q.Volume)
		if err != nil {
			return 0, nil, err
		}
		// Operations and their times are the file server's to measure: nothing here does, so nothing is said.
		return http.StatusOK, map[string]any{"metric": map[string]any{}, "observed_at": m.state(p.cfg.UID, p.cfg.GID).CheckedAt}, nil
	})
	handle(p, mux, "POST", wire.PathScope, p.makeScope)
	handle(p, mux, "PATCH", wire.PathScope, p.changeScope)
	handle(p, mux, "GET", wire.PathScope, p.describeScope)
	handle(p, mux, "DELETE", wire.PathScope, func(ctx context.Context, q wire.ScopeRequest) (int, any, error) {
		return p.onScope(ctx, q, func(ctx context.Context, v volume.Volume, s cluster.QuotaScope) error { return v.DeleteScope(ctx, s) })
	})
	handle(p, mux, "DELETE POST", wire.PathScopeQuota, func(ctx context.Context, q wire.ScopeRequest) (int, any, error) {
		return p.onScope(ctx, q, func(ctx context.Context, v volume.Volume, s cluster.QuotaScope) error {
			if _, err := v.Scope(ctx, s); err != nil {
				return err
			}
			return v.SetScope(ctx, s, volume.NoLimit)
		})
	})
}

func (p *Proxy) onScope(ctx context.Context, q wire.ScopeRequest,
	f func(context.Context, volume.Volume, cluster.QuotaScope) error) (int, any, error) {
	m, err := p.volumes.find(q.Volume)
	if err != nil {
		return 0, nil, err
	}
	s, err := cluster.ParseQuotaScope(q.Scope)
	if err != nil {
		return 0, nil, err
	}
	_, err = ask(ctx, m, func(ctx context.Context, v volume.Volume) (struct{}, error) { return struct{}{}, f(ctx, v, s) }, nil)
	return http.StatusNoContent, nil, err
}

func limitOf(o *wire.ScopeOptions) (int64, error) {
	if o.LimitBytes < volume.NoLimit {
		return 0, fault.Invalidf("a limit of %d bytes is not possible", o.LimitBytes).WithReason("invalid-api-params").
			WithNext("write -1 for no limit")
	}
	return o.LimitBytes, nil
}

// makeScope makes the scope, or sets the limit of one that is there.
func (p *Proxy) makeScope(ctx context.Context, q wire.ScopeRequest) (int, any, error) {
	return p.onScope(ctx, q, func(ctx context.Context, v volume.Volume, s cluster.QuotaScope) error {
		if q.Options != nil {
			limit, err := limitOf(q.Options)
			if err != nil {
				return err
			}
			return v.SetScope(ctx, s, limit)
		}
		_, err := v.Scope(ctx, s)
		if fault.Is(err, fault.NotFound) {
			return v.SetScope(ctx, s, volume.NoLimit)
		}
		return err
	})
}

// changeScope sets the limit of a scope that must be there.
func (p *Proxy) changeScope(ctx context.Context, q wire.ScopeRequest) (int, any, error) {
	return p.onScope(ctx, q, func(ctx context.Context, v volume.Volume, s cluster.QuotaScope) error {
		if _, err := v.Scope(ctx, s); err != nil || q.Options == nil {
			return err
		}
		limit, err := limitOf(q.Options)
		if err != nil {
			return err
		}
		return v.SetScope(ctx, s, limit)
	})
}

func (p *Proxy) describeScope(ctx context.Context, q wire.ScopeRequest) (int, any, error) {
	m, err := p.volumes.find(q.Volume)
	if err != nil {
		return 0, nil, err
	}
	s, err := cluster.ParseQuotaScope(q.Scope)
	if err != nil {
		return 0, nil, err
	}
	u, err := ask(ctx, m, func(ctx context.Context, v volume.Volume) (volume.ScopeUsage, error) { return v.Scope(ctx, s) }, nil)
	if err != nil {
		return 0, nil, err
	}
	out := wire.ScopeReply{LowerBound: !u.Complete}
	if u.LimitBytes != volume.NoLimit {
		out.LimitBytes = &u.LimitBytes
	}
	if u.UsedBytes >= 0 && (u.Complete || u.UsedBytes > 0) { // a lower bound of nothing says nothing
		out.UsedBytes = &u.UsedBytes
	}
	return http.StatusOK, out, nil
}

func (p *Proxy) folderRoutes(mux *http.ServeMux) {
	handle(p, mux, "POST", wire.PathFolderCreate, p.createFolder)
	handle(p, mux, "POST", wire.PathFolderDelete, func(ctx context.Context, q wire.FolderRequest) (int, any, error) {
		f, err := ref(q.VFID)
		if err != nil {
			return 0, nil, err
		}
		return p.begin(ctx, q.TaskID, task.Spec{Kind: task.DeleteFolder, Volume: q.Volume, Folder: f})
	})
	handle(p, mux, "POST", wire.PathFolderClone, p.clone)
	handle(p, mux, "GET POST", wire.PathFolderMount, p.mount)
	handle(p, mux, "GET POST", wire.PathFolderUsage, p.folderUsage)
	handle(p, mux, "GET POST", wire.PathFolderUsedBytes, p.folderUsage)
	handle(p, mux, "GET POST", wire.PathFSUsage, func(_ context.Context, q wire.FolderRequest) (int, any, error) {
		m, err := p.volumes.find(q.Volume)
		if err != nil {
			return 0, nil, err
		}
		if _, err := m.get(); err != nil {
			return 0, nil, err
		}
		s := m.state(p.cfg.UID, p.cfg.GID) // at most a few seconds old
		return http.StatusOK, wire.SpaceReply{CapacityBytes: s.CapacityBytes, UsedBytes: s.UsedBytes}, nil
	})
}

// onFolder finds volume and folder of a request.
func (p *Proxy) onFolder(name, vfid string) (*mounted, cluster.FolderRef, error) {
	m, err := p.volumes.find(name)
	if err != nil {
		return nil, cluster.FolderRef{}, err
	}
	f, err := ref(vfid)
	return m, f, err
}

func (p *Proxy) createFolder(ctx context.Context, q wire.FolderRequest) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	mode := fs.FileMode(0o755)
	if q.Mode != 0 {
		mode = fs.FileMode(q.Mode) & fs.ModePerm
	}
	_, err = ask(ctx, m, func(ctx context.Context, v volume.Volume) (struct{}, error) {
		return struct{}{}, v.CreateFolder(ctx, f, mode)
	}, nil)
	return http.StatusNoContent, nil, err
}

func (p *Proxy) clone(ctx context.Context, q wire.CloneRequest) (int, any, error) {
	if q.DstVolume != "" && q.DstVolume != q.SrcVolume {
		return 0, nil, fault.Invalidf("a folder cannot be cloned from volume %q to volume %q", fault.Clip(q.SrcVolume, maxEcho),
			fault.Clip(q.DstVolume, maxEcho)).
			WithReason("invalid-api-params").WithNext("clone it on its own volume")
	}
	src, err := ref(q.SrcVFID)
	if err != nil {
		return 0, nil, err
	}
	dst, err := ref(q.DstVFID)
	if err != nil {
		return 0, nil, err
	}
	if src == dst {
		return 0, nil, fault.Invalidf("folder %s cannot be cloned onto itself", src).WithReason("invalid-api-params").
			WithNext("name another folder")
	}
	return p.begin(ctx, q.TaskID, task.Spec{Kind: task.Clone, Volume: q.SrcVolume, Source: src, Folder: dst})
}

// begin writes a task down, for a bounded time.
func (p *Proxy) begin(ctx context.Context, id string, s task.Spec) (int, any, error) {
	m, err := p.volumes.find(s.Volume)
	if err != nil {
		return 0, nil, err
	}
	id, err = ask(ctx, m, func(ctx context.Context, _ volume.Volume) (string, error) { return p.tasks.Start(ctx, id, s) }, nil)
	return http.StatusAccepted, wire.TaskReply{TaskID: id}, err
}

// mount says where the folder, or a directory of it, is on hosts that have the volume mounted like this one.
func (p *Proxy) mount(ctx context.Context, q wire.FolderRequest) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	sub, err := volume.CleanPath(q.Subpath)
	if err != nil {
		return 0, nil, err
	}
	root, err := inFolder(ctx, m, f, func(_ context.Context, v volume.Volume, t volume.Tree) (string, error) {
		_, err := t.Stat(sub)
		return v.Info().Path, err
	})
	return http.StatusOK, wire.MountReply{Path: path.Join(root, f.Dir(), sub)}, err
}

// inFolder does something with the files of a folder, for a bounded time.
func inFolder[T any](ctx context.Context, m *mounted, f cluster.FolderRef,
	do func(ctx context.Context, v volume.Volume, t volume.Tree) (T, error)) (T, error) {
	return ask(ctx, m, func(ctx context.Context, v volume.Volume) (out T, err error) {
		t, err := v.OpenFolder(ctx, f)
		if err != nil {
			return out, err
		}
		out, err = do(ctx, v, t)
		if cerr := t.Close(); err == nil {
			err = cerr
		}
		return out, err
	}, nil)
}

const (
	// usagePatience is how long a count may keep a manager waiting when it does not say, usageMost at most.
	usagePatience = 5 * time.Second
	usageMost     = 25 * time.Second
	// usageGood is how old a complete count may be that is given instead of a new, incomplete one.
	usageGood = time.Hour
	maxUsages = 10_000
)

// usages remembers the last complete counts.
type usages struct {
	mu   sync.Mutex
	last map[string]volume.Usage
}

func newUsages() *usages { return &usages{last: map[string]volume.Usage{}} }

func (u *usages) keep(key string, now volume.Usage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.last) >= maxUsages {
		for other := range u.last {
			delete(u.last, other)
			break
		}
	}
	u.last[key] = now
}

func (u *usages) get(key string) (volume.Usage, bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	v, ok := u.last[key]
	return v, ok
}

// folderUsage counts for a bounded time. A count that was cut short gives way to an earlier, complete one.
func (p *Proxy) folderUsage(ctx context.Context, q wire.FolderRequest) (int, any, error) {
	m, f, err := p.onFolder(q.Volume, q.VFID)
	if err != nil {
		return 0, nil, err
	}
	wait := usagePatience
	if q.TimeoutMS > 0 {
		wait = min(time.Duration(min(q.TimeoutMS, 1<<31))*time.Millisecond, usageMost)
	}
	u, err := ask(ctx, m, func(ctx context.Context, v volume.Volume) (volume.Usage, error) {
		ctx, cancel := context.WithTimeout(ctx, wait)
		defer cancel()
		return v.Usage(ctx, f)
	}, nil)
	if err != nil {
		return 0, nil, err
	}
	key := q.Volume + "/" + f.String()
	if u.Complete {
		p.usage.keep(key, u)
	} else if old, ok := p.usage.get(key); ok && p.deps.Clock.Now().Sub(old.At) < usageGood {
		u = old
	}
	return http.StatusOK, wire.UsageReply{FileCount: u.Files, UsedBytes: u.Bytes, Complete: u.Complete, At: u.At}, nil
}
