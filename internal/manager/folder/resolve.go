package folder

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// ResolveMounts plans the mounts of a session: what the request names, and the owner's dot-folders. q may be of the store or of a
// transaction. The plan may be out of date when the session is written, so that transaction calls Hold.
func (s *Service) ResolveMounts(ctx context.Context, q *dbgen.Queries, owner authz.Actor, r MountRequest) ([]cluster.FolderMount, error) {
	if err := authz.Authenticated(owner); err != nil {
		return nil, err
	}
	sources, err := r.sources()
	if err != nil {
		return nil, err
	}
	var dots []string
	if r.SessionType != cluster.System {
		if dots, err = q.AutoMounted(ctx, new(string(owner.UserID))); err != nil {
			return nil, fmt.Errorf("read dot-folders: %w", err)
		}
	}
	if len(sources) == 0 && len(dots) == 0 {
		return []cluster.FolderMount{}, nil
	}
	l := &mountLookup{s: s, q: q, owner: owner, project: r.Project, volumes: s.volumes(), known: map[string]*mountable{}}
	found := make([]*mountable, len(sources))
	for i, src := range sources {
		if found[i], err = l.find(ctx, src); err != nil {
			return nil, err
		}
	}
	var auto []mountable
	if err := l.load(ctx, dots); err != nil {
		return nil, err
	}
	for _, id := range dots {
		if m := l.known[id]; m != nil {
			auto = append(auto, *m)
		}
	}
	return planMounts(owner.Email, sources, found, auto)
}

// mountLookup reads what one plan needs, each folder and policy once.
type mountLookup struct {
	s       *Service
	q       *dbgen.Queries
	owner   authz.Actor
	project cluster.ProjectID
	volumes map[string]seen
	known   map[string]*mountable // nil for those that the owner does not see
	permits map[cluster.ProjectID]permits
	// remembered are the volumes that the leader has stored; read when a volume is not announced now.
	remembered map[string]knownVolume
}

func (l *mountLookup) load(ctx context.Context, ids []string) error {
	missing := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { _, ok := l.known[id]; return ok })
	if len(missing) == 0 {
		return nil
	}
	rows, err := l.q.FolderViews(ctx, string(l.owner.UserID), missing)
	if err != nil {
		return fmt.Errorf("read folders: %w", err)
	}
	for _, id := range missing {
		l.known[id] = nil
	}
	for _, r := range rows {
		f, ok := view(l.owner, r)
		if !ok {
			continue
		}
		o := objectOf(r)
		m := &mountable{Folder: f, reach: authz.Folders.May(l.owner, authz.Reach, o), most: f.Effective, project: l.project}
		if mountedReadOnly(l.owner, o) {
			m.most = cluster.ReadOnly
		}
		if m.permit, err = l.permitted(ctx, f); err != nil {
			return err
		}
		if m.volume, err = l.volume(ctx, f.Host); err != nil {
			return err
		}
		l.known[r.Folder.ID] = m
	}
	return nil
}

func (l *mountLookup) permitted(ctx context.Context, f Folder) (bool, error) {
	p, ok := l.permits[f.ProjectID]
	if !ok {
		var err error
		if p, err = l.s.permits(ctx, l.q, l.owner, f.ProjectID); err != nil {
			return false, err
		}
		if l.permits == nil {
			l.permits = map[cluster.ProjectID]permits{}
		}
		l.permits[f.ProjectID] = p
	}
	return p[f.Host][PermitMount], nil
}

// find returns the folder of a source. It is nil when the source names a folder of another project, which sessions skip.
func (l *mountLookup) find(ctx context.Context, src source) (*mountable, error) {
	if src.byID {
		return l.one(ctx, src, []string{src.folder})
	}
	rows, err := l.s.called(ctx, l.owner, authz.Reach, src.folder, living)
	if err != nil {
		return nil, err
	}
	var alive, all []string
	for _, r := range rows {
		all = append(all, r.id)
		if living.prefers(cluster.FolderStatus(r.status)) {
			alive = append(alive, r.id)
		}
	}
	switch {
	case len(alive) > 0:
		all = alive
	case len(all) > 1:
		all = all[len(all)-1:] // the plan fails with "it is in the trash bin" instead of "not found" or "several"
	}
	if len(all) == 0 {
		if id, ok := cluster.CanonicalUUID(src.folder); ok {
			all = []string{id}
		}
	}
	return l.one(ctx, src, all)
}

// one chooses among folders of one name. Folders of other projects than the session's do not count, so they do not make a name ambiguous.
func (l *mountLookup) one(ctx context.Context, src source, ids []string) (*mountable, error) {
	if err := l.load(ctx, ids); err != nil {
		return nil, err
	}
	var near []string
	foreign := false
	for _, id := range ids {
		switch m := l.known[id]; {
		case m == nil || !m.reach:
		case m.foreign():
			foreign = true
		default:
			near = append(near, id)
		}
	}
	switch {
	case len(near) == 0 && foreign:
		return nil, nil
	case len(near) == 0:
		return nil, authz.NotFound(noun, src.text)
	case len(near) > 1:
		found := map[cluster.FolderID]Folder{}
		for _, id := range near {
			found[cluster.FolderID(id)] = l.known[id].Folder
		}
		return nil, tooMany(src.folder, near, found)
	}
	return l.known[near[0]], nil
}

// Hold locks the rows of folders, in the transaction that writes a session, and returns those that can no longer be mounted. Trash and
// DeleteForever wait for the lock. After the commit they find the session's rows in session_mounts and refuse.
func (s *Service) Hold(ctx context.Context, q *dbgen.Queries, folders []cluster.FolderID) (gone []cluster.FolderID, err error) {
	if len(folders) == 0 {
		return nil, nil
	}
	rows, err := q.HoldFolders(ctx, store.Texts(folders))
	if err != nil {
		return nil, fmt.Errorf("hold folders: %w", err)
	}
	fine := map[cluster.FolderID]bool{}
	for _, r := range rows {
		fine[cluster.FolderID(r.ID)] = cluster.FolderStatus(r.Status).Mountable()
	}
	for _, id := range folders {
		if !fine[id] {
			gone = append(gone, id)
		}
	}
	return gone, nil
}
