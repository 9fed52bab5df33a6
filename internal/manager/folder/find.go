package folder

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/list"
)

// Load returns those of the folders that the actor may see.
func (s *Service) Load(ctx context.Context, a authz.Actor, ids []cluster.FolderID) (map[cluster.FolderID]Folder, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return load(ctx, s.d.Store.Queries, a, store.Texts(ids))
}

func load(ctx context.Context, q *dbgen.Queries, a authz.Actor, ids []string) (map[cluster.FolderID]Folder, error) {
	rows, err := q.FolderViews(ctx, string(a.UserID), ids)
	if err != nil {
		return nil, fmt.Errorf("read folders: %w", err)
	}
	out := make(map[cluster.FolderID]Folder, len(rows))
	for _, r := range rows {
		if f, ok := view(a, r); ok {
			out[f.ID] = f
		}
	}
	return out, nil
}

// Find finds a folder by id (with or without dashes) or by its name within the actor's reach. An ambiguous name is
// NotFound with reason too-many-vfolders and matches.
func (s *Service) Find(ctx context.Context, a authz.Actor, ref string) (Folder, error) {
	return s.find(ctx, a, ref, living)
}

// preference says which folders a name means first: those in use (living) or those in the trash bin (trashed).
type preference bool

const (
	living  preference = false
	trashed preference = true
)

func (p preference) prefers(st cluster.FolderStatus) bool { return st.Deleting() == bool(p) }

// find finds a folder by id or name that the actor may see. Folders in the actor's reach count before those that an administrator manages;
// among them, preferred ones count first.
func (s *Service) find(ctx context.Context, a authz.Actor, ref string, prefer preference) (Folder, error) {
	if err := authz.Authenticated(a); err != nil {
		return Folder{}, err
	}
	q := s.d.Store.Queries
	if id, ok := cluster.CanonicalUUID(ref); ok {
		found, err := load(ctx, q, a, []string{id})
		if f, there := found[cluster.FolderID(id)]; there || err != nil {
			return f, err
		}
		// No such id. A folder's name may look like an id, so go on.
	}
	ids, err := s.named(ctx, a, ref, prefer)
	if err != nil {
		return Folder{}, err
	}
	if len(ids) == 0 {
		return Folder{}, authz.NotFound(noun, ref)
	}
	found, err := load(ctx, q, a, ids)
	switch {
	case err != nil:
		return Folder{}, err
	case len(found) == 0: // gone meanwhile
		return Folder{}, authz.NotFound(noun, ref)
	case len(found) > 1:
		return Folder{}, tooMany(ref, ids, found)
	}
	for _, f := range found {
		return f, nil
	}
	return Folder{}, nil
}

type idAndStatus struct{ id, status string }

func (s *Service) named(ctx context.Context, a authz.Actor, name string, prefer preference) ([]string, error) {
	if name != store.Text(name) || len(name) > 256 {
		return nil, nil
	}
	all, err := s.called(ctx, a, authz.Reach, name, prefer)
	if err == nil && len(all) == 0 {
		all, err = s.called(ctx, a, authz.See, name, prefer)
	}
	if err != nil {
		return nil, err
	}
	var preferred, others []string
	for _, r := range all {
		if prefer.prefers(cluster.FolderStatus(r.status)) {
			preferred = append(preferred, r.id)
		} else {
			others = append(others, r.id)
		}
	}
	if len(preferred) > 0 {
		return preferred, nil
	}
	return others, nil
}

// called returns the folders of a name for which the rule allows the actor the verb, the preferred ones first, at most 20. Folders that
// were removed, of which only the row remains, are left out.
func (s *Service) called(ctx context.Context, a authz.Actor, v authz.Verb, name string, prefer preference) ([]idAndStatus, error) {
	var b list.Builder
	sql := "SELECT f.id::text, f.status FROM " + facts.Folders.From + " WHERE f.name = " + b.Arg(name) +
		" AND f.status <> 'delete-complete' AND " +
		facts.Folders.Where(a, v, b.Arg) + " ORDER BY (f.status LIKE 'delete-%') <> " + b.Arg(bool(prefer)) +
		"::boolean, f.created_at, f.id LIMIT 20"
	rows, err := s.d.Store.DB().Query(ctx, sql, b.Args...)
	if err != nil {
		return nil, fmt.Errorf("find folder %q: %w", name, err)
	}
	out, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (f idAndStatus, err error) { return f, r.Scan(&f.id, &f.status) })
	if err != nil {
		return nil, fmt.Errorf("find folder %q: %w", name, err)
	}
	return out, nil
}

func tooMany(ref string, ids []string, found map[cluster.FolderID]Folder) error {
	matches := []map[string]any{}
	for _, id := range ids {
		if f, ok := found[cluster.FolderID(id)]; ok {
			matches = append(matches, map[string]any{"id": f.ID.Hex(), "name": f.Name, "host": f.Host, "status": string(f.Status),
				"user":  f.UserEmail,
				"group": f.ProjectName, "created_at": f.CreatedAt.Format(time.RFC3339Nano)})
		}
	}
	return fault.NotFoundf("several folders are called %q", ref).WithReason("too-many-vfolders").
		WithData(map[string]any{"matches": matches}).WithNext("name the folder by its id")
}
