package folder

import (
	"context"
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

var updatable = []string{string(cluster.FolderReady), string(cluster.FolderMounted)}

// toChange finds a folder that the actor may change as its owner does, and on whose host the actor has the permission.
func (s *Service) toChange(ctx context.Context, a authz.Actor, ref string, prefer preference, permit HostPermission,
	what string) (Folder, error) {
	f, err := s.find(ctx, a, ref, prefer)
	if err != nil {
		return f, err
	}
	if err := f.needOwner(a, what); err != nil {
		return f, err
	}
	return f, s.needHost(ctx, a, f, permit)
}

// Rename gives a folder another name.
func (s *Service) Rename(ctx context.Context, a authz.Actor, ref, name string) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.rename", ref)
	defer end(&err)
	f, err := s.toChange(ctx, a, ref, living, PermitModify, "rename")
	if err != nil {
		return f, err
	}
	if err := f.needStatus(f.Status.Updatable(), "renamed"); err != nil {
		return f, err
	}
	if err := checkName(name, f.Ownership, f.Usage); err != nil {
		return f, err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if f.Ownership == OfUser {
			if err := tx.LockFolderOwner(ctx, string(f.UserID)); err != nil {
				return fmt.Errorf("wait for other folders of the owner: %w", err)
			}
			if err := nameFree(ctx, tx.Queries, name, string(f.ID), string(f.UserID)); err != nil {
				return err
			}
		}
		n, err := tx.RenameFolder(ctx, name, string(f.ID), updatable)
		if store.Duplicate(err, "") {
			return nameTaken(name)
		}
		return changed(n, err, f, "renamed")
	})
	if err != nil {
		return f, err
	}
	return s.Find(ctx, a, string(f.ID))
}

// changed returns the error of a guarded change: one that changes a row only if it is still as expected. n is the number of changed rows;
// 0 means that somebody else changed the folder first, which is a Conflict.
func changed(n int64, err error, f Folder, what string) error {
	if err != nil {
		return fmt.Errorf("store folder %s: %w", f.Name, err)
	}
	if n == 0 {
		return fault.Conflictf("folder %s (%s) was changed meanwhile and is not %s", f.Name, f.Host, what).
			WithReason("vfolder-filter-status-failed").
			WithNext("look at it and try again")
	}
	return nil
}

// UpdateOptions changes what the owner may choose.
func (s *Service) UpdateOptions(ctx context.Context, a authz.Actor, ref string, o Options) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.modify", ref)
	defer end(&err)
	f, err := s.toChange(ctx, a, ref, living, PermitModify, "change")
	if err != nil {
		return f, err
	}
	if err := f.needStatus(f.Status.Updatable(), "changed"); err != nil {
		return f, err
	}
	var perm *string
	if o.Permission != nil {
		if !o.Permission.Valid() {
			return f, wrongPermission(*o.Permission)
		}
		perm = new(string(*o.Permission))
	}
	if perm == nil && o.Cloneable == nil {
		return f, fault.Invalidf("there is nothing to change").WithNext("give cloneable or permission")
	}
	n, err := s.d.Store.SetFolderOptions(ctx, o.Cloneable, perm, string(f.ID), updatable)
	if err := changed(n, err, f, "changed"); err != nil {
		return f, err
	}
	return s.Find(ctx, a, string(f.ID))
}

// leave moves a folder towards its end (trash bin, removal), if no session uses it, and cancels the invitations to it.
func (s *Service) leave(ctx context.Context, a authz.Actor, f Folder, to cluster.FolderStatus, task *string, what string,
	from ...cluster.FolderStatus) (Folder, error) {
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// A session that is being created holds this lock (see Hold) until its mounts are written; then unused finds them.
		if _, err := tx.LockFolder(ctx, string(f.ID)); err != nil {
			if store.Missing(err) {
				return authz.NotFound(noun, f.Name)
			}
			return fmt.Errorf("lock folder %s: %w", f.Name, err)
		}
		if err := unused(ctx, tx.Queries, f, what); err != nil {
			return err
		}
		move := moveTo(string(f.ID), to, from...)
		move.TaskID = task
		if f.Status == cluster.FolderError {
			move.Info = f.StatusInfo // Restore needs to know that the folder was in error
		}
		n, err := tx.MoveFolder(ctx, move)
		if err := changed(n, err, f, what); err != nil {
			return err
		}
		tx.Wake(store.TopicFolders)
		return tx.CancelInvitations(ctx, string(f.ID))
	})
	if err != nil {
		return f, err
	}
	return s.Find(ctx, a, string(f.ID))
}

// unused returns an error when live sessions mount the folder or when it is being copied. The caller has locked the folder's row.
func unused(ctx context.Context, q *dbgen.Queries, f Folder, what string) error {
	sessions, err := q.MountingSessions(ctx, string(f.ID))
	if err != nil {
		return fmt.Errorf("look for sessions that mount folder %s: %w", f.Name, err)
	}
	if len(sessions) > 0 {
		names, list := make([]string, len(sessions)), make([]map[string]string, len(sessions))
		for i, r := range sessions {
			names[i], list[i] = r.Name, map[string]string{"id": r.ID, "name": r.Name}
		}
		if !f.IsOwner {
			names = nil
		}
		return fault.Conflictf("folder %s (%s) cannot be %s: sessions mount it: %s", f.Name, f.Host, what, strings.Join(names, ", ")).
			WithReason("vfolder-operation-failed").WithData(map[string]any{"sessions": list}).WithNext("end these sessions first")
	}
	copies, err := q.CopiesOf(ctx, new(string(f.ID)))
	if err != nil {
		return fmt.Errorf("look for copies of folder %s: %w", f.Name, err)
	}
	if copies > 0 {
		return fault.Conflictf("folder %s (%s) cannot be %s: it is being copied", f.Name, f.Host, what).WithReason("vfolder-operation-failed").
			WithNext("wait until that is done")
	}
	return nil
}

// Trash puts a folder into the trash bin; Conflict while live sessions mount it. Its files stay where they are.
func (s *Service) Trash(ctx context.Context, a authz.Actor, ref string) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.trash", ref)
	defer end(&err)
	f, err := s.toChange(ctx, a, ref, living, PermitDelete, "delete")
	if err != nil {
		return f, err
	}
	if err := f.needStatus(cluster.FolderMayMove(f.Status, cluster.FolderDeletePending), "deleted"); err != nil {
		return f, err
	}
	return s.leave(ctx, a, f, cluster.FolderDeletePending, nil, "deleted")
}

// Restore takes a folder out of the trash bin.
func (s *Service) Restore(ctx context.Context, a authz.Actor, ref string) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.restore", ref)
	defer end(&err)
	f, err := s.toChange(ctx, a, ref, trashed, PermitModify, "restore")
	if err != nil {
		return f, err
	}
	if f.Status != cluster.FolderDeletePending {
		return f, fault.Conflictf("folder %s (%s) is %s and cannot be restored", f.Name, f.Host, f.Status).
			WithReason("vfolder-filter-status-failed").
			WithNext("only what is in the trash bin (delete-pending) can be restored")
	}
	if f.StatusInfo != "" {
		return f, fault.Conflictf("folder %s (%s) was in error and cannot be restored: %s", f.Name, f.Host, f.StatusInfo).
			WithReason("vfolder-filter-status-failed").
			WithNext("delete it for good and make it again")
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if f.Ownership == OfUser {
			if err := tx.LockFolderOwner(ctx, string(f.UserID)); err != nil {
				return fmt.Errorf("wait for other folders of the owner: %w", err)
			}
			if err := nameFree(ctx, tx.Queries, f.Name, string(f.ID), string(f.UserID)); err != nil {
				return restoreClash(err, f)
			}
		}
		n, err := tx.MoveFolder(ctx, moveTo(string(f.ID), cluster.FolderReady, cluster.FolderDeletePending))
		if store.Duplicate(err, "") {
			return restoreClash(nameTaken(f.Name), f)
		}
		return changed(n, err, f, "restored")
	})
	if err != nil {
		return f, err
	}
	return s.Find(ctx, a, string(f.ID))
}

func restoreClash(err error, f Folder) error {
	if fault.ReasonOf(err) != "vfolder-already-exists" {
		return err
	}
	return fault.Conflictf("folder %s (%s) cannot be restored: another folder has its name now", f.Name, f.Host).
		WithReason("vfolder-already-exists").
		WithNext("rename the other folder first")
}

// DeleteForever removes the files of a folder in the trash bin, in the background; its status tells how far that is.
func (s *Service) DeleteForever(ctx context.Context, a authz.Actor, ref string) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.delete", ref)
	defer end(&err)
	f, err := s.toChange(ctx, a, ref, trashed, PermitDelete, "delete")
	if err != nil {
		return f, err
	}
	return s.remove(ctx, a, f)
}

func (s *Service) remove(ctx context.Context, a authz.Actor, f Folder) (Folder, error) {
	switch f.Status {
	case cluster.FolderDeleteOngoing, cluster.FolderDeleteComplete:
		return f, nil // it is being removed, or it was
	case cluster.FolderDeletePending, cluster.FolderDeleteError:
	default:
		return f, fault.Conflictf("folder %s (%s) is %s and cannot be deleted for good", f.Name, f.Host, f.Status).
			WithReason("vfolder-filter-status-failed").
			WithNext("put it into the trash bin first: `berth folder rm %s`", f.Name)
	}
	return s.leave(ctx, a, f, cluster.FolderDeleteOngoing, new(s.d.IDs()), "deleted for good")
}

// Purge is DeleteForever that also forgets the row of a folder that was removed already (administrators).
func (s *Service) Purge(ctx context.Context, a authz.Actor, ref string) (_ Folder, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.purge", ref)
	defer end(&err)
	// Who administrates nothing is told so, whatever folder is named.
	if err := authz.Folders.Need(a, authz.Purge, authz.Object{Domain: a.Domain}, "purge folders"); err != nil {
		return Folder{}, err
	}
	f, err := s.toChange(ctx, a, ref, trashed, PermitDelete, "purge")
	if err != nil {
		return f, err
	}
	if !f.Purgeable {
		return f, authz.Folders.Need(a, authz.Purge, authz.Object{}, fmt.Sprintf("purge folder %s (%s)", f.Name, f.Host))
	}
	if f.Status == cluster.FolderDeleteComplete {
		n, err := s.d.Store.ForgetFolder(ctx, string(f.ID))
		return f, changed(n, err, f, "purged")
	}
	return s.remove(ctx, a, f)
}

// ChangeOwnership gives a user folder to another user (superadmins). Its files stay in the scope that they are in.
func (s *Service) ChangeOwnership(ctx context.Context, a authz.Actor, ref, email string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.change-owner", ref)
	defer end(&err)
	if err := authz.Folders.Need(a, authz.Administer, authz.Object{}, "change the owners of folders"); err != nil {
		return err
	}
	f, err := s.find(ctx, a, ref, living)
	if err != nil {
		return err
	}
	if f.Ownership != OfUser {
		return fault.Invalidf("folder %s (%s) belongs to project %s: only user folders change their owner", f.Name, f.Host, f.ProjectName)
	}
	if err := f.needStatus(f.Status.Updatable(), "given to another user"); err != nil {
		return err
	}
	u, err := s.d.Tenancy.UserByEmail(ctx, email)
	if err != nil {
		return err
	}
	if u.Status != "active" {
		return fault.Invalidf("user %s is %s", email, u.Status).WithNext("choose an active user")
	}
	if u.ID == string(f.UserID) {
		return nil
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockFolderOwner(ctx, u.ID); err != nil {
			return fmt.Errorf("wait for other folders of the owner: %w", err)
		}
		if err := mayHaveMore(ctx, tx.Queries, cluster.QuotaScope{Kind: cluster.UserScope, ID: u.ID}, u.ID); err != nil {
			return err
		}
		if _, err := tx.RevokeFolder(ctx, string(f.ID), []string{u.ID}); err != nil {
			return fmt.Errorf("take back permissions: %w", err)
		}
		if err := nameFree(ctx, tx.Queries, f.Name, string(f.ID), u.ID); err != nil {
			return err
		}
		n, err := tx.SetFolderUser(ctx, &u.ID, u.DomainName, string(f.ID), updatable)
		if store.Duplicate(err, "") {
			return nameTaken(f.Name)
		}
		if err := changed(n, err, f, "given to another user"); err != nil {
			return err
		}
		return tx.CancelInvitations(ctx, string(f.ID))
	})
}
