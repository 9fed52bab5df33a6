package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxPeople bounds how many users one request names.
const maxPeople = 100

// people finds users by email; unknown ones are an error that names them, and so are users who cannot log in, unless former.
func (s *Service) people(ctx context.Context, project cluster.ProjectID, emails []string, former bool) ([]dbgen.UsersByEmailRow, error) {
	if len(emails) == 0 || len(emails) > maxPeople {
		return nil, fault.Invalidf("this takes 1 to %d email addresses, not %d", maxPeople, len(emails))
	}
	clean := make([]string, len(emails))
	for i, e := range emails {
		clean[i] = store.Text(strings.TrimSpace(e))
	}
	slices.Sort(clean)
	clean = slices.Compact(clean)
	rows, err := s.d.Store.UsersByEmail(ctx, orNil(string(project)), clean)
	if err != nil {
		return nil, fmt.Errorf("find users: %w", err)
	}
	for _, e := range clean {
		if !slices.ContainsFunc(rows, func(r dbgen.UsersByEmailRow) bool { return r.Email == e && (former || r.Status == "active") }) {
			return nil, authz.NotFound(userNoun, e)
		}
	}
	return rows, nil
}

// toShare finds a folder whose permissions the actor gives.
func (s *Service) toShare(ctx context.Context, a authz.Actor, ref string, permit HostPermission) (Folder, error) {
	f, err := s.toChange(ctx, a, ref, living, permit, "share")
	if err != nil {
		return f, err
	}
	return f, f.needStatus(f.Status.Updatable(), "shared")
}

// stillToShare keeps a folder of toShare from being deleted or given to another owner until the transaction ends.
func stillToShare(ctx context.Context, tx *store.Tx, a authz.Actor, f Folder) error {
	held, err := tx.HoldFolders(ctx, []string{string(f.ID)})
	if err != nil {
		return fmt.Errorf("hold folder %s: %w", f.Name, err)
	}
	if len(held) == 0 || !cluster.FolderStatus(held[0].Status).Updatable() {
		return changed(0, nil, f, "shared")
	}
	now, err := load(ctx, tx.Queries, a, []string{string(f.ID)})
	if err != nil {
		return err
	}
	g, there := now[f.ID]
	if !there {
		return authz.NotFound(noun, f.Name)
	}
	return g.needOwner(a, "share")
}

// Invite offers a user folder to other users and returns the emails of those who were invited. Who has the folder
// already, or an invitation to it, is not invited again.
func (s *Service) Invite(ctx context.Context, a authz.Actor, ref string, perm cluster.MountPermission, emails []string) ([]string, error) {
	f, err := s.toShare(ctx, a, ref, PermitInvite)
	if err != nil {
		return nil, err
	}
	switch {
	case !perm.Valid():
		return nil, wrongPermission(perm)
	case f.Ownership != OfUser:
		return nil, fault.Invalidf("folder %s (%s) belongs to project %s: its members have it without an invitation", f.Name, f.Host,
			f.ProjectName).
			WithNext("use `berth folder share` to give single members another permission")
	case strings.HasPrefix(f.Name, "."):
		return nil, fault.Invalidf("folder %s (%s) is mounted into all sessions of its owner and cannot be shared", f.Name, f.Host).
			WithNext("use another folder")
	}
	users, err := s.people(ctx, "", emails, false)
	if err != nil {
		return nil, err
	}
	out := []string{}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = out[:0]
		if err := stillToShare(ctx, tx, a, f); err != nil {
			return err
		}
		for _, u := range users {
			if u.ID == string(f.UserID) {
				continue
			}
			n, err := tx.AddInvitation(ctx, dbgen.AddInvitationParams{ID: s.d.IDs(), FolderID: string(f.ID), InviterID: string(a.UserID),
				InviteeID: u.ID, Permission: string(perm)})
			if err != nil {
				return fmt.Errorf("invite %s: %w", u.Email, err)
			}
			if n > 0 {
				out = append(out, u.Email)
			}
		}
		return nil
	})
	return out, err
}

// ListInvitations are the pending ones to the actor.
func (s *Service) ListInvitations(ctx context.Context, a authz.Actor) ([]Invitation, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.invitations(ctx, new(string(a.UserID)), nil)
}

// ListSentInvitations are the pending ones of the actor.
func (s *Service) ListSentInvitations(ctx context.Context, a authz.Actor) ([]Invitation, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.invitations(ctx, nil, new(string(a.UserID)))
}

func (s *Service) invitations(ctx context.Context, invitee, inviter *string) ([]Invitation, error) {
	rows, err := s.d.Store.PendingInvitations(ctx, invitee, inviter)
	if err != nil {
		return nil, fmt.Errorf("read invitations: %w", err)
	}
	out := make([]Invitation, len(rows))
	for i, r := range rows {
		out[i] = Invitation{ID: r.ID, Folder: cluster.FolderID(r.FolderID), FolderName: r.FolderName, Inviter: r.Inviter, Invitee: r.Invitee,
			Permission: cluster.MountPermission(r.Permission), State: r.State, CreatedAt: r.CreatedAt.UTC(), ModifiedAt: r.ModifiedAt.UTC()}
	}
	return out, nil
}

// invitation is one under its lock, with its folder as the actor sees it; the zero Folder when the actor does not.
type invitation struct {
	dbgen.LockInvitationRow
	folder Folder
}

// answer runs fn with a pending invitation that concerns the actor. Its folder stays as it is meanwhile. Locks are taken in
// the order in which ChangeOwnership and Trash take them: owner, folder, invitation.
func (s *Service) answer(ctx context.Context, a authz.Actor, id string, concerns func(invitation) bool,
	fn func(ctx context.Context, tx *store.Tx, i invitation) error) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	uuid, ok := cluster.CanonicalUUID(id)
	if !ok {
		return authz.NotFound(invitationNoun, id)
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.LockFolderOwner(ctx, string(a.UserID)); err != nil {
			return fmt.Errorf("wait for other folders: %w", err)
		}
		of, err := tx.FolderOfInvitation(ctx, uuid)
		if err == nil {
			_, err = tx.HoldFolders(ctx, []string{of})
		}
		var i invitation
		if err == nil {
			i.LockInvitationRow, err = tx.LockInvitation(ctx, uuid)
		}
		switch {
		case store.Missing(err):
			return authz.NotFound(invitationNoun, id)
		case err != nil:
			return fmt.Errorf("read invitation %s: %w", id, err)
		}
		seen, err := load(ctx, tx.Queries, a, []string{of})
		if err != nil {
			return err
		}
		i.folder = seen[cluster.FolderID(of)]
		switch {
		case !concerns(i):
			return authz.NotFound(invitationNoun, id)
		case i.State != "pending":
			return fault.Conflictf("the invitation to folder %s is %s already", i.FolderName, i.State).WithReason("vfolder-operation-failed")
		}
		return fn(ctx, tx, i)
	})
}

// AcceptInvitation accepts an invitation to the actor.
func (s *Service) AcceptInvitation(ctx context.Context, a authz.Actor, id string) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	mine := func(i invitation) bool { return i.InviteeID == string(a.UserID) }
	return s.answer(ctx, a, id, mine, func(ctx context.Context, tx *store.Tx, i invitation) error {
		if st := cluster.FolderStatus(i.FolderStatus); !st.Updatable() {
			return wrongStatus(i.FolderName, "an invitation", st, "shared")
		}
		taken, err := tx.NameInReach(ctx, i.FolderName, i.FolderID, string(a.UserID))
		if err != nil {
			return fmt.Errorf("look for folders called %s: %w", i.FolderName, err)
		}
		if taken {
			return fault.Conflictf("%s has a folder called %s already, so the invitation to another one cannot be accepted", a.Email, i.FolderName).
				WithReason("vfolder-already-exists").WithNext("rename or delete the other folder, then accept again")
		}
		if err := tx.GrantFolder(ctx, i.FolderID, string(a.UserID), i.Permission); err != nil {
			return fmt.Errorf("grant folder %s: %w", i.FolderName, err)
		}
		return tx.SetInvitation(ctx, i.ID, "accepted", i.Permission)
	})
}

// DeleteInvitation rejects an invitation to the actor, or cancels one of the actor or to a folder that the actor may share.
func (s *Service) DeleteInvitation(ctx context.Context, a authz.Actor, id string) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	me := string(a.UserID)
	concerns := func(i invitation) bool { return i.InviteeID == me || i.InviterID == me || i.folder.IsOwner }
	return s.answer(ctx, a, id, concerns, func(ctx context.Context, tx *store.Tx, i invitation) error {
		state := "canceled"
		if i.InviteeID == me {
			state = "rejected"
		}
		return tx.SetInvitation(ctx, i.ID, state, i.Permission)
	})
}

// UpdateInvitation changes the permission that a pending invitation to a folder offers which the actor may share.
func (s *Service) UpdateInvitation(ctx context.Context, a authz.Actor, id string, perm cluster.MountPermission) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	if !perm.Valid() {
		return wrongPermission(perm)
	}
	mine := func(i invitation) bool { return i.InviterID == string(a.UserID) || i.folder.IsOwner }
	return s.answer(ctx, a, id, mine, func(ctx context.Context, tx *store.Tx, i invitation) error {
		if !i.folder.IsOwner {
			return fault.Deniedf("%s may not share folder %s any more", a.Email, i.FolderName).
				WithNext("withdraw the invitation, or ask the folder's owner")
		}
		return tx.SetInvitation(ctx, i.ID, i.State, string(perm))
	})
}

// Share gives members of a project a permission on a project folder and returns their emails.
func (s *Service) Share(ctx context.Context, a authz.Actor, ref string, perm cluster.MountPermission, emails []string) ([]string, error) {
	f, err := s.toShare(ctx, a, ref, PermitShare)
	if err != nil {
		return nil, err
	}
	switch {
	case !perm.Valid():
		return nil, wrongPermission(perm)
	case f.Ownership != OfProject:
		return nil, fault.Invalidf("folder %s (%s) belongs to a user", f.Name, f.Host).WithNext("invite other users to it: `berth folder invite`")
	}
	users, err := s.people(ctx, f.ProjectID, emails, false)
	if err != nil {
		return nil, err
	}
	out := []string{}
	for _, u := range users {
		if !u.Member {
			return nil, fault.Invalidf("%s is no member of project %s", u.Email, f.ProjectName).
				WithNext("add the user to the project first")
		}
		out = append(out, u.Email)
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := stillToShare(ctx, tx, a, f); err != nil {
			return err
		}
		for _, u := range users {
			if err := tx.GrantFolder(ctx, string(f.ID), u.ID, string(perm)); err != nil {
				return fmt.Errorf("share folder %s with %s: %w", f.Name, u.Email, err)
			}
		}
		return nil
	})
	return out, err
}

// Unshare takes permissions on a folder back, whoever gave them, and returns the emails of those who had one.
func (s *Service) Unshare(ctx context.Context, a authz.Actor, ref string, emails []string) ([]string, error) {
	f, err := s.toShare(ctx, a, ref, PermitShare)
	if err != nil {
		return nil, err
	}
	users, err := s.people(ctx, f.ProjectID, emails, true)
	if err != nil {
		return nil, err
	}
	ids := make([]string, len(users))
	for i, u := range users {
		ids[i] = u.ID
	}
	out, err := s.d.Store.RevokeFolder(ctx, string(f.ID), ids)
	if err != nil {
		return nil, fmt.Errorf("unshare folder %s: %w", f.Name, err)
	}
	return out, nil
}

// Leave gives up a folder that was shared with the actor; an administrator or the owner may name another user.
func (s *Service) Leave(ctx context.Context, a authz.Actor, ref string, user *cluster.UserID) error {
	f, err := s.find(ctx, a, ref, living)
	if err != nil {
		return err
	}
	who := a.UserID
	if user != nil && *user != "" && *user != a.UserID {
		id, ok := cluster.CanonicalUUID(string(*user))
		if !ok {
			return authz.NotFound(userNoun, string(*user))
		}
		if err := f.needOwner(a, "remove users from"); err != nil {
			return err
		}
		who = cluster.UserID(id)
	}
	switch {
	case f.Ownership == OfProject:
		return fault.Invalidf("folder %s (%s) belongs to project %s and cannot be left", f.Name, f.Host, f.ProjectName)
	case who == f.UserID:
		return fault.Invalidf("folder %s (%s) cannot be left by its owner", f.Name, f.Host).WithNext("delete it instead")
	}
	gone, err := s.d.Store.RevokeFolder(ctx, string(f.ID), []string{string(who)})
	if err != nil {
		return fmt.Errorf("leave folder %s: %w", f.Name, err)
	}
	if len(gone) == 0 {
		return fault.NotFoundf("folder %s (%s) is not shared with that user", f.Name, f.Host)
	}
	return nil
}

// Shared lists who has a permission on the actor's folders, or on one (ref).
func (s *Service) Shared(ctx context.Context, a authz.Actor, ref string) ([]Sharing, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	var one *string
	if ref != "" {
		f, err := s.find(ctx, a, ref, living)
		if err != nil {
			return nil, err
		}
		if err := f.needOwner(a, "see who shares"); err != nil {
			return nil, err
		}
		one = new(string(f.ID))
	}
	rows, err := s.d.Store.SharingsOf(ctx, one, string(a.UserID))
	if err != nil {
		return nil, fmt.Errorf("read who shares folders: %w", err)
	}
	ids := make([]string, len(rows))
	for i, r := range rows {
		ids[i] = r.FolderID
	}
	slices.Sort(ids)
	seen, err := load(ctx, s.d.Store.Queries, a, slices.Compact(ids))
	if err != nil {
		return nil, err
	}
	out := []Sharing{}
	for _, r := range rows {
		f := seen[cluster.FolderID(r.FolderID)]
		if !f.IsOwner { // who made it once
			continue
		}
		out = append(out, Sharing{Folder: f.ID, FolderName: r.Name, Status: cluster.FolderStatus(r.Status), Owner: r.Owner,
			Ownership: f.Ownership,
			UserID:    cluster.UserID(r.UserID), UserEmail: r.Email, Permission: cluster.MountPermission(r.Permission)})
	}
	return out, nil
}

// UpdateSharing changes permissions that users have, all or none. Of user folders only those that have one can get another.
func (s *Service) UpdateSharing(ctx context.Context, a authz.Actor, ref string, changes []SharingChange) error {
	f, err := s.toShare(ctx, a, ref, PermitShare)
	if err != nil {
		return err
	}
	if len(changes) == 0 || len(changes) > maxPeople {
		return fault.Invalidf("this takes 1 to %d changes, not %d", maxPeople, len(changes))
	}
	ids := make([]string, len(changes))
	for i, c := range changes {
		id, ok := cluster.CanonicalUUID(string(c.User))
		if !ok {
			return authz.NotFound(userNoun, string(c.User))
		}
		if c.Permission != nil && !c.Permission.Valid() {
			return wrongPermission(*c.Permission)
		}
		ids[i] = id
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := stillToShare(ctx, tx, a, f); err != nil {
			return err
		}
		for i, c := range changes {
			if c.Permission == nil {
				if _, err := tx.RevokeFolder(ctx, string(f.ID), []string{ids[i]}); err != nil {
					return fmt.Errorf("unshare folder %s: %w", f.Name, err)
				}
				continue
			}
			n, err := tx.ChangeGrant(ctx, string(f.ID), ids[i], string(*c.Permission))
			if err != nil {
				return fmt.Errorf("share folder %s: %w", f.Name, err)
			}
			if n == 0 {
				return fault.NotFoundf("folder %s (%s) is not shared with user %s", f.Name, f.Host, ids[i]).
					WithNext("invite the user, or share the project's folder, first")
			}
		}
		return nil
	})
}
