package folder

import (
	"context"
	"fmt"
	"path"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/storage"
)

const (
	// settleTime bounds what a request does with a proxy once its row is written. After unsettledFor the loop does the same, in case the
	// request's manager was killed; both may, and the request then finds the folder ready.
	settleTime   = 30 * time.Second
	unsettledFor = 3 * time.Second
	folderMode   = 0o755
)

// draft is a folder before its row is written.
type draft struct {
	row   dbgen.AddFolderParams
	scope cluster.QuotaScope
	host  cluster.VolumeHost
	owner string // user or project
	email string // of the user that will own it
}

// drafted checks a request for a new folder and returns what to write. The actor needs the permission create-vfolder on its host. Create
// and Clone use it.
func (s *Service) drafted(ctx context.Context, a authz.Actor, in CreateInput) (draft, error) {
	if in.Usage == "" {
		in.Usage = UsageGeneral
	}
	switch {
	case !in.Usage.Valid():
		return draft{}, fault.Invalidf("%.40q is no usage of folders", string(in.Usage)).WithNext("use general, model or data")
	case in.Permission != "" && !in.Permission.Valid():
		return draft{}, wrongPermission(in.Permission)
	}
	d := draft{row: dbgen.AddFolderParams{ID: s.d.IDs(), Name: in.Name, UsageMode: string(in.Usage), DomainName: a.Domain,
		CreatorID: new(string(a.UserID)),
		Cloneable: in.Cloneable, Status: string(cluster.FolderPerforming)}}
	perm, of, project := cluster.ReadWrite, OfUser, cluster.ProjectID("")
	if in.Project != "" {
		p, err := s.d.Tenancy.VisibleProject(ctx, a, in.Project, a.Domain)
		if err != nil {
			return d, err
		}
		modelStore := p.Type == "model-store"
		o := authz.Object{Project: cluster.ProjectID(p.ID), ProjectType: p.Type, Domain: p.DomainName}
		if err := authz.Folders.Need(a, authz.Create, o, "create folders of project "+p.Name); err != nil {
			return d, err
		}
		if !p.IsActive {
			return d, fault.Invalidf("project %s is not active and gets no more folders", p.Name).
				WithNext("ask an administrator to activate it, or choose another project")
		}
		if modelStore {
			perm = cluster.ReadOnly
		}
		of, project = OfProject, cluster.ProjectID(p.ID)
		d.scope, d.owner, d.row.ProjectID, d.row.DomainName = cluster.QuotaScope{Kind: cluster.ProjectScope, ID: p.ID}, p.ID, &p.ID, p.DomainName
	} else {
		if err := authz.Folders.Need(a, authz.Create, authz.Object{}, "create folders"); err != nil {
			return d, err
		}
		d.scope, d.owner, d.row.UserID = cluster.QuotaScope{Kind: cluster.UserScope, ID: string(a.UserID)}, string(a.UserID),
			new(string(a.UserID))
		d.email = a.Email
	}
	if in.Permission != "" {
		perm = in.Permission
	}
	d.row.Permission, d.row.QuotaScope = string(perm), d.scope.String()
	if err := checkName(in.Name, of, in.Usage); err != nil {
		return d, err
	}
	allowed, err := s.permits(ctx, s.d.Store.Queries, a, project)
	if err != nil {
		return d, err
	}
	if in.Host == "" {
		if in.Host, err = s.defaultHost(ctx, func(string) bool { return true }); err != nil {
			return d, err
		}
		if in.Host == "" {
			return d, fault.Invalidf("the folder needs a host: there is no default one").WithNext("name one of `berth folder hosts`")
		}
	}
	if d.host, err = cluster.ParseVolumeHost(in.Host); err != nil {
		return d, err
	}
	d.row.Host = d.host.String()
	return d, allowed.need(a, PermitCreate, d.row.Host, "")
}

func wrongPermission(p cluster.MountPermission) error {
	return fault.Invalidf("%.40q is no permission", string(p)).WithNext("use ro, rw or wd")
}

// Create makes a folder and returns when its proxy has made the directory. The row is written first, with status performing. If the
// manager dies before the proxy has answered, Loop finds the row and finishes the folder.
func (s *Service) Create(ctx context.Context, a authz.Actor, in CreateInput) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.create", in.Name)
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return Folder{}, err
	}
	if in.UnmanagedPath != "" {
		if err := authz.Folders.Need(a, authz.Administer, authz.Object{}, "create folders with an unmanaged path"); err != nil {
			return Folder{}, err
		}
		if !path.IsAbs(in.UnmanagedPath) || path.Clean(in.UnmanagedPath) != in.UnmanagedPath || len(in.UnmanagedPath) > 1024 ||
			store.Text(in.UnmanagedPath) != in.UnmanagedPath {
			return Folder{}, fault.Invalidf("the unmanaged path %.200q is no clean absolute path", in.UnmanagedPath)
		}
	}
	d, err := s.drafted(ctx, a, in)
	if err != nil {
		return Folder{}, err
	}
	if in.UnmanagedPath != "" {
		d.row.UnmanagedPath, d.row.Status = &in.UnmanagedPath, string(cluster.FolderReady)
	} else if _, err := s.knownHost(d.row.Host); err != nil {
		return Folder{}, err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return s.insert(ctx, tx, d) })
	if err != nil {
		return Folder{}, err
	}
	if in.UnmanagedPath == "" {
		// This goes on when the client disconnects, so that the folder is not left half made.
		settle, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleTime)
		defer cancel()
		err := s.make(settle, d.row.ID, d.host, d.scope)
		if err == nil {
			err = made(settle, s.d.Store.Queries, d.row.ID)
		}
		if err != nil && !s.isReady(settle, d.row.ID) {
			s.undo(settle, d.row.ID, err)
			return Folder{}, fmt.Errorf("create folder %s on %s: %w", in.Name, d.row.Host, err)
		}
	}
	return s.Find(ctx, a, d.row.ID)
}

// insert writes the row of a new folder, if the owner may have one more folder and has none of that name. It takes the lock of the
// owner's folders first, as everything does that gives the owner a folder. So what it counts stays true until the commit.
func (s *Service) insert(ctx context.Context, tx *store.Tx, d draft) error {
	if err := tx.LockFolderOwner(ctx, d.owner); err != nil {
		return fmt.Errorf("wait for other folders of the owner: %w", err)
	}
	if err := mayHaveMore(ctx, tx.Queries, d.scope, d.owner); err != nil {
		return err
	}
	if d.row.UserID != nil {
		if err := nameFree(ctx, tx.Queries, d.row.Name, d.row.ID, d.owner); err != nil {
			return err
		}
	}
	err := tx.AddFolder(ctx, d.row)
	switch {
	case store.Duplicate(err, ""):
		return nameTaken(d.row.Name)
	case err != nil:
		return fmt.Errorf("store folder %s: %w", d.row.Name, err)
	}
	if err := tx.AddScope(ctx, d.row.Host, d.row.QuotaScope); err != nil {
		return fmt.Errorf("note scope %s: %w", d.row.QuotaScope, err)
	}
	tx.Wake(store.TopicFolders)
	return nil
}

func nameTaken(name string) error {
	return fault.Conflictf("a folder called %s exists already", name).WithReason("vfolder-already-exists").WithNext("choose another name")
}

// nameFree returns an error when a user already has a folder of that name in reach.
func nameFree(ctx context.Context, q *dbgen.Queries, name, besides, user string) error {
	taken, err := q.NameInReach(ctx, name, besides, user)
	if err != nil {
		return fmt.Errorf("look for folders called %s: %w", name, err)
	}
	if taken {
		return nameTaken(name)
	}
	return nil
}

// mayHaveMore returns an error when the owner has as many folders as the policy allows.
func mayHaveMore(ctx context.Context, q *dbgen.Queries, scope cluster.QuotaScope, owner string) error {
	most, _, err := limits(ctx, q, scope.Kind, owner)
	if err != nil || most <= 0 {
		return err
	}
	n, err := q.CountFolders(ctx, owner)
	if err != nil {
		return fmt.Errorf("count folders: %w", err)
	}
	if n >= int64(most) {
		return fault.Exhaustedf("the %s has %d folders, and its policy allows %d", scope.Kind, n, most).
			WithNext("delete folders for good, or ask an administrator to raise max_vfolder_count")
	}
	return nil
}

// limits returns what the owner's policy allows: the number of folders (0: no limit) and the bytes of a scope (-1: no limit).
func limits(ctx context.Context, q *dbgen.Queries, kind cluster.ScopeKind, owner string) (most int32, bytes int64, err error) {
	if kind == cluster.UserScope {
		r, err := q.LimitsOfUserFolders(ctx, owner)
		most, bytes = r.MaxVfolderCount, r.MaxQuotaScopeSize
		if err != nil && !store.Missing(err) {
			return 0, -1, fmt.Errorf("read the user's policy: %w", err)
		}
	} else {
		r, err := q.LimitsOfProjectFolders(ctx, owner)
		most, bytes = r.MaxVfolderCount, r.MaxQuotaScopeSize
		if err != nil && !store.Missing(err) {
			return 0, -1, fmt.Errorf("read the project's policy: %w", err)
		}
	}
	if bytes <= 0 {
		bytes = -1
	}
	return most, bytes, nil
}

// make asks a proxy to make the folder of a row, and its scope. Repeating it changes nothing.
func (s *Service) make(ctx context.Context, id string, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	if err := s.ensureScope(ctx, host, scope); err != nil {
		return err
	}
	ref := cluster.FolderRef{Scope: scope, Folder: cluster.FolderID(id)}
	req := storage.FolderRequest{Volume: host.Volume, VFID: ref.String(), Mode: folderMode}
	return s.d.Proxies.Do(ctx, host.Proxy, "POST", storage.PathFolderCreate, req, nil)
}

// made marks a folder as ready. Its proxy has made it.
func made(ctx context.Context, q *dbgen.Queries, id string) error {
	n, err := q.MoveFolder(ctx, moveTo(id, cluster.FolderReady, cluster.FolderPerforming))
	if err == nil && n == 0 {
		return fault.Conflictf("the folder was changed meanwhile").WithReason("vfolder-creation-failed")
	}
	return err
}

// isReady reports whether the loop has made a folder ready in its request's place.
func (s *Service) isReady(ctx context.Context, id string) bool {
	status, err := s.d.Store.LockFolder(ctx, id)
	return err == nil && cluster.FolderStatus(status) == cluster.FolderReady
}

// moveTo describes a guarded move of a folder to a status: from the given ones, or from all from which the table of moves leads there.
func moveTo(id string, to cluster.FolderStatus, from ...cluster.FolderStatus) dbgen.MoveFolderParams {
	sources := cluster.FolderSources(to)
	if len(from) > 0 {
		sources = sources[:0]
		for _, f := range from {
			if cluster.FolderMayMove(f, to) {
				sources = append(sources, string(f))
			}
		}
	}
	return dbgen.MoveFolderParams{ID: id, ToStatus: string(to), Sources: sources}
}

// undo marks a folder whose creation failed for removal, because its proxy may have made it all the same. Loop removes it. Such a removal
// has no task id, which tells Loop to delete the row at its end.
func (s *Service) undo(ctx context.Context, id string, why error) {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if _, err := s.d.Store.MoveFolder(undo, undoing(id, why)); err != nil {
		s.d.Log.Warn("could not note that a folder was not made; it will be tried again", "folder", id, "error", err)
	}
	s.d.Store.Wake(store.TopicFolders)
}

func undoing(id string, why error) dbgen.MoveFolderParams {
	move := moveTo(id, cluster.FolderDeleteOngoing, cluster.FolderPerforming)
	move.Info = store.Text("making it failed: " + why.Error())
	return move
}

// ensureScope tells a proxy of a scope and its limit, unless it has been told before.
func (s *Service) ensureScope(ctx context.Context, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	row, err := s.d.Store.GetScope(ctx, host.String(), scope.String())
	switch {
	case store.Missing(err):
		if err := s.d.Store.AddScope(ctx, host.String(), scope.String()); err != nil {
			return fmt.Errorf("note scope %s: %w", scope, err)
		}
	case err != nil:
		return fmt.Errorf("read scope %s: %w", scope, err)
	case row.AppliedAt != nil:
		return nil
	}
	want := int64(-1)
	if row.OwnBytes != nil {
		want = *row.OwnBytes
	} else if _, want, err = limits(ctx, s.d.Store.Queries, scope.Kind, scope.ID); err != nil {
		return err
	}
	return s.applyScope(ctx, host, scope, want)
}

// applyScope tells a proxy the limit of a scope (-1: none) and records that it has been told.
func (s *Service) applyScope(ctx context.Context, host cluster.VolumeHost, scope cluster.QuotaScope, bytes int64) error {
	began, err := s.d.Store.ScopeBegun(ctx, host.String(), scope.String())
	if err != nil {
		return fmt.Errorf("note the limit of scope %s: %w", scope, err)
	}
	req := storage.ScopeRequest{Volume: host.Volume, Scope: scope.String()}
	if bytes >= 0 {
		req.Options = &storage.ScopeOptions{LimitBytes: bytes}
	}
	if err := s.d.Proxies.Do(ctx, host.Proxy, "POST", storage.PathScope, req, nil); err != nil {
		return fmt.Errorf("make scope %s on %s: %w", scope, host, err)
	}
	if bytes < 0 {
		// The scope may have had a limit, which is taken away. Volumes without quotas answer with an error that means nothing.
		err := s.d.Proxies.Do(ctx, host.Proxy, "DELETE", storage.PathScopeQuota,
			storage.ScopeRequest{Volume: host.Volume, Scope: scope.String()}, nil)
		if err != nil && !fault.Is(err, fault.Invalid) && !fault.Is(err, fault.NotFound) {
			return fmt.Errorf("take the limit off scope %s on %s: %w", scope, host, err)
		}
	}
	n, err := s.d.Store.ScopeApplied(ctx, bytes, host.String(), scope.String(), *began)
	if err == nil && n == 0 {
		err = s.d.Store.ScopeUnknown(ctx, host.String(), scope.String())
		s.d.Store.Wake(store.TopicFolders)
	}
	if err != nil {
		return fmt.Errorf("note the limit of scope %s: %w", scope, err)
	}
	return nil
}
