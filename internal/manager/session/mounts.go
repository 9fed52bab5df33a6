package session

import (
	"context"
	"fmt"
	"slices"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/tenancy"
)

// mounts plans what the session mounts that the actor asks for: what its owner reaches, within the scope of the actor's token. Requests
// that name no folder share what is mounted by itself.
func (q *lookups) mounts(ctx context.Context, a authz.Actor, owner dbgen.ActorByKeyRow, project dbgen.Project,
	r request.Session) ([]cluster.FolderMount, error) {
	if q.s.d.Folders == nil {
		if !r.NamesFolders() {
			return nil, nil
		}
		for _, name := range slices.Concat(r.Mounts, r.MountIDs) {
			return nil, noFolder(name)
		}
		return nil, noFolder("")
	}
	resolve := func() ([]cluster.FolderMount, error) {
		mounts, err := q.s.d.Folders.ResolveMounts(ctx, q.s.d.Store.Queries, tenancy.ActorOf(owner).Within(a.Scope),
			r.Folders(cluster.ProjectID(project.ID)))
		if err != nil {
			return nil, fmt.Errorf("plan its mounts: %w", err)
		}
		return mounts, nil
	}
	if r.NamesFolders() {
		return resolve()
	}
	return q.automatic.get([4]string{owner.AccessKey, tokenOf(a), project.ID, string(r.Type)}, resolve)
}

func noFolder(name string) error {
	return fault.NotFoundf("No such virtual folder: %s", name).
		WithData(map[string]string{"object": "virtual folder"}).WithNext("start the session without mounts")
}

// insertAlone writes one session in a transaction of its own. Creations of an owner who may have only so many waiting ones
// take turns, so that each sees the ones before; folders are held, so that one that is deleted at this moment is
// either in use or not mounted.
func (s *Service) insertAlone(ctx context.Context, p *sessionPlan) (stored bool, err error) {
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if p.limits.ofWaiting() {
			if err := tx.LockEnqueue(ctx, p.owner.UserID); err != nil {
				return fmt.Errorf("wait for other creations of the user: %w", err)
			}
			if err := p.limits.waiting(ctx, tx.Queries, p.owner.UserID, p.owner.AccessKey, p.session.RequestedSlots); err != nil {
				return err
			}
		}
		if err := s.holdFolders(ctx, tx.Queries, p.session.Mounts); err != nil {
			return err
		}
		ids, err := s.insertSessions(ctx, tx.Queries, []*sessionPlan{p})
		stored = ids[p.session.ID]
		return err
	})
	if store.Unknown(err) {
		there, _, lookErr := s.storedOf(ctx, []*sessionPlan{p})
		if lookErr == nil && there[p.session.ID] {
			return true, nil
		}
		return false, unknownCreation(err)
	}
	return stored, err
}

func (s *Service) holdFolders(ctx context.Context, q *dbgen.Queries, mounts []cluster.FolderMount) error {
	if len(mounts) == 0 {
		return nil
	}
	gone, err := s.d.Folders.Hold(ctx, q, folderIDs(mounts))
	if err != nil {
		return fmt.Errorf("hold its folders: %w", err)
	}
	for _, m := range mounts {
		if slices.Contains(gone, m.Folder) {
			return fault.Conflictf("folder %s (%s) was deleted at this moment", m.Name, m.Host).WithReason("vfolder-filter-status-failed").
				WithNext("restore it from the trash bin, or start the session without it")
		}
	}
	return nil
}

// folderIDs are the folders of some mounts, each once and in one order for everybody.
func folderIDs(mounts []cluster.FolderMount) []cluster.FolderID {
	var out []cluster.FolderID
	for _, m := range mounts {
		out = append(out, m.Folder)
	}
	slices.Sort(out)
	return slices.Compact(out)
}
