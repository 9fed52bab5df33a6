package folder

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
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

// preference says which of several folders of a name is meant: whether those in the trash bin.
type preference bool

const (
	living  preference = false
	trashed preference = true
)

func (p preference) prefers(st cluster.FolderStatus) bool { return st.Deleting() == bool(p) }

// find finds a folder that the actor may see. Of those with the name the preferred ones count first; what an administrator
// manages counts when nothing in reach has the name.
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
		// A name may look like an id.
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
	var all []idAndStatus
	rows, err := s.d.Store.FoldersInReach(ctx, name, string(a.UserID), store.Texts(a.Projects), bool(prefer))
	if err != nil {
		return nil, fmt.Errorf("find folder %q: %w", name, err)
	}
	for _, r := range rows {
		all = append(all, idAndStatus{r.ID, r.Status})
	}
	if len(all) == 0 && (a.Superadmin() || a.Monitor() || a.Role == authz.RoleAdmin) {
		domain := &a.Domain
		if a.Superadmin() || a.Monitor() {
			domain = nil
		}
		rows, err := s.d.Store.FoldersManaged(ctx, name, domain, bool(prefer))
		if err != nil {
			return nil, fmt.Errorf("find folder %q: %w", name, err)
		}
		for _, r := range rows {
			all = append(all, idAndStatus{r.ID, r.Status})
		}
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

func tooMany(ref string, ids []string, found map[cluster.FolderID]Folder) error {
	matches := []map[string]any{}
	for _, id := range ids {
		if f, ok := found[cluster.FolderID(id)]; ok {
			matches = append(matches, map[string]any{"id": f.ID.Hex(), "name": f.Name, "host": f.Host, "status": string(f.Status), "user": f.UserEmail,
				"group": f.ProjectName, "created_at": f.CreatedAt.Format(time.RFC3339Nano)})
		}
	}
	return fault.NotFoundf("several folders are called %q", ref).WithReason("too-many-vfolders").
		WithData(map[string]any{"matches": matches}).WithNext("name the folder by its id")
}

const zeroUUID = "00000000-0000-0000-0000-000000000000"
