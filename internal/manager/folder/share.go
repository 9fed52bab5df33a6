package folder

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// This file holds the two ways in which somebody gets a permission on a folder that they do not own. A user folder is offered with an
// invitation, which the invited user accepts. On a project folder, whose files all members of the project may use, Share gives single
// members another permission. Both end in a grant: a row with a folder, a user and a permission.

// maxPeople bounds how many users one request names.
const maxPeople = 100

// people finds users by their email addresses, and whether each is a member of the project ("" for none). An address without a user is
// an error that names it. So is the address of a user who is not active, unless former is set: taking a permission away from a former
// user must work.
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

// toShare finds a folder that the actor may share: one that the actor may change as its owner does, on a host where policies give
// the actor the permission permit. The folder must be usable, not in the trash bin or being made.
func (s *Service) toShare(ctx context.Context, a authz.Actor, ref string, permit HostPermission) (Folder, error) {
	f, err := s.toChange(ctx, a, ref, living, permit, "share")
	if err != nil {
		return f, err
	}
	return f, f.needStatus(f.Status.Updatable(), "shared")
}

// stillToShare is called in the transaction that shares a folder which toShare has found. It locks the folder's row, so that nobody
// deletes the folder or gives it to another owner until the transaction ends, and checks again that the actor may share it.
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

// Invite offers a user folder to other users and returns the emails of those who were invited. The owner of the folder is skipped,
// and so is everybody who has a permission on it or a pending invitation to it.
func (s *Service) Invite(
	ctx context.Context, a authz.Actor, ref string, perm cluster.MountPermission, emails []string,
) (_ []string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.invite", ref)
	defer end(&err)
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

// ListInvitations returns the pending invitations that the actor got.
func (s *Service) ListInvitations(ctx context.Context, a authz.Actor) ([]Invitation, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.invitations(ctx, new(string(a.UserID)), nil)
}

// ListSentInvitations returns the pending invitations that the actor sent.
func (s *Service) ListSentInvitations(ctx context.Context, a authz.Actor) ([]Invitation, error) {
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	return s.invitations(ctx, nil, new(string(a.UserID)))
}

// invitations reads pending invitations to one user (invitee) or of one user (inviter).
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

// invitation is an invitation whose row is locked, with its folder as the actor sees it. The folder is zero if the actor may not see it.
type invitation struct {
	dbgen.LockInvitationRow
	folder Folder
}

// answer runs fn, in a transaction, with a pending invitation. An invitation for which concerns returns false is not found, as if it did
// not exist: strangers do not learn of it. The rows of the folder and the invitation are locked until the transaction ends.
//
// ChangeOwnership and Trash lock the same rows. To exclude deadlocks, all take the locks in one order: owner, folder, invitation.
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

// AcceptInvitation accepts an invitation that the actor got, and so grants the folder to the actor. It is a Conflict when the actor
// already has a folder of that name in reach.
func (s *Service) AcceptInvitation(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "invitation.accept", id)
	defer end(&err)
	if err := authz.Changing(a, authz.AreaFolders); err != nil {
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

// DeleteInvitation ends a pending invitation. If the actor is the one who was invited, the invitation is rejected. If the actor sent it, or
// may share its folder, it is canceled. Nobody else can find it.
func (s *Service) DeleteInvitation(ctx context.Context, a authz.Actor, id string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "invitation.delete", id)
	defer end(&err)
	if err := authz.Changing(a, authz.AreaFolders); err != nil {
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

// UpdateInvitation changes the permission that a pending invitation offers. The actor must be allowed to share the folder now; having
// sent the invitation is not enough.
func (s *Service) UpdateInvitation(ctx context.Context, a authz.Actor, id string, perm cluster.MountPermission) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "invitation.modify", id)
	defer end(&err)
	if err := authz.Changing(a, authz.AreaFolders); err != nil {
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

// Share gives members of a project a permission of their own on one of its folders, and returns their emails. That permission replaces
// the one which the folder gives all members.
func (s *Service) Share(
	ctx context.Context, a authz.Actor, ref string, perm cluster.MountPermission, emails []string,
) (_ []string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.share", ref)
	defer end(&err)
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

// Unshare takes the permissions of users on a folder away, whoever gave them, and returns the emails of those who had one.
func (s *Service) Unshare(ctx context.Context, a authz.Actor, ref string, emails []string) (_ []string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.unshare", ref)
	defer end(&err)
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

// Leave gives up the actor's permission on a user folder of somebody else. The folder's owner and administrators may name another user,
// whose permission is taken away instead.
func (s *Service) Leave(ctx context.Context, a authz.Actor, ref string, user *cluster.UserID) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.leave", ref)
	defer end(&err)
	if err := authz.Changing(a, authz.AreaFolders); err != nil {
		return err
	}
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

// Shared lists the permissions that other users have: on all folders of the actor, or on one (ref).
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
		if !f.IsOwner { // the query also finds folders that the actor created but may not change any more
			continue
		}
		out = append(out, Sharing{Folder: f.ID, FolderName: r.Name, Status: cluster.FolderStatus(r.Status), Owner: r.Owner,
			Ownership: f.Ownership,
			UserID:    cluster.UserID(r.UserID), UserEmail: r.Email, Permission: cluster.MountPermission(r.Permission)})
	}
	return out, nil
}

// UpdateSharing changes or takes away permissions that users have on a folder, all of them or none. It gives nobody a first permission:
// a user without one is NotFound.
func (s *Service) UpdateSharing(ctx context.Context, a authz.Actor, ref string, changes []SharingChange) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.modify-shares", ref)
	defer end(&err)
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
