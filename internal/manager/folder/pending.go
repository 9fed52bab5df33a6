package folder

import (
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/dbgen"
	"context"
)

func notYet(a Actor) error {
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	return fault.Unavailablef("folders are not served yet")
}

// Clone copies a folder in the background; task is the id of the background task.
func (s *Service) Clone(ctx context.Context, a Actor, ref string, in CloneInput) (f Folder, task string, err error) {
	return Folder{}, "", notYet(a)
}

// Invite offers a user folder to other users and returns the emails of those who were invited.
func (s *Service) Invite(ctx context.Context, a Actor, ref string, perm cluster.MountPermission, emails []string) ([]string, error) {
	return nil, notYet(a)
}

// ListInvitations are the pending ones to the actor.
func (s *Service) ListInvitations(ctx context.Context, a Actor) ([]Invitation, error) {
	return nil, notYet(a)
}

// ListSentInvitations are the pending ones of the actor.
func (s *Service) ListSentInvitations(ctx context.Context, a Actor) ([]Invitation, error) {
	return nil, notYet(a)
}

// AcceptInvitation accepts an invitation to the actor.
func (s *Service) AcceptInvitation(ctx context.Context, a Actor, id string) error { return notYet(a) }

// DeleteInvitation cancels an invitation of the actor or rejects one to the actor.
func (s *Service) DeleteInvitation(ctx context.Context, a Actor, id string) error { return notYet(a) }

// UpdateInvitation changes the permission that a pending invitation of the actor offers.
func (s *Service) UpdateInvitation(ctx context.Context, a Actor, id string, perm cluster.MountPermission) error {
	return notYet(a)
}

// Share gives members of a project a permission on a project folder and returns their emails.
func (s *Service) Share(ctx context.Context, a Actor, ref string, perm cluster.MountPermission, emails []string) ([]string, error) {
	return nil, notYet(a)
}

// Unshare takes such permissions back and returns the emails of those who had one.
func (s *Service) Unshare(ctx context.Context, a Actor, ref string, emails []string) ([]string, error) {
	return nil, notYet(a)
}

// Leave gives up a folder that was shared with the actor; an administrator or the owner may name another user.
func (s *Service) Leave(ctx context.Context, a Actor, ref string, user *cluster.UserID) error {
	return notYet(a)
}

// Shared lists who has a permission on the actor's folders, or on one (ref).
func (s *Service) Shared(ctx context.Context, a Actor, ref string) ([]Sharing, error) {
	return nil, notYet(a)
}

// UpdateSharing changes permissions that users have, all or none.
func (s *Service) UpdateSharing(ctx context.Context, a Actor, ref string, changes []SharingChange) error {
	return notYet(a)
}

// QuotaScope tells what a scope holds on a host; scope is user:<uuid> or project:<uuid>.
func (s *Service) QuotaScope(ctx context.Context, a Actor, host, scope string) (Quota, error) {
	return Quota{}, notYet(a)
}

// SetQuotaScope limits a scope on a host (superadmins).
func (s *Service) SetQuotaScope(ctx context.Context, a Actor, host, scope string, bytes int64) (Quota, error) {
	return Quota{}, notYet(a)
}

// UnsetQuotaScope takes back what SetQuotaScope set: the policy's limit holds again (superadmins).
func (s *Service) UnsetQuotaScope(ctx context.Context, a Actor, host, scope string) (Quota, error) {
	return Quota{}, notYet(a)
}

// GetQuota is QuotaScope of a folder's scope; host "" is the folder's.
func (s *Service) GetQuota(ctx context.Context, a Actor, host, ref string) (Quota, error) {
	return Quota{}, notYet(a)
}

// SetQuota is SetQuotaScope of a folder's scope.
func (s *Service) SetQuota(ctx context.Context, a Actor, host, ref string, bytes int64) (Quota, error) {
	return Quota{}, notYet(a)
}

// UnsetQuota is UnsetQuotaScope of a folder's scope.
func (s *Service) UnsetQuota(ctx context.Context, a Actor, host, ref string) (Quota, error) {
	return Quota{}, notYet(a)
}

// ResolveMounts plans the mounts of a session of owner: what the request names and, besides, the owner's dot-folders.
// q may be of the store or of a transaction; Hold confirms the answer in the transaction that writes the session.
func (s *Service) ResolveMounts(ctx context.Context, q *dbgen.Queries, owner Actor, r MountRequest) ([]cluster.FolderMount, error) {
	if r.empty() {
		return nil, authz.Authenticated(owner)
	}
	return nil, notYet(owner)
}

// Hold keeps folders mountable until the transaction of q ends, after which the rows of session_mounts do, and returns
// those that cannot be mounted any more. Trash and DeleteForever wait for it.
func (s *Service) Hold(ctx context.Context, q *dbgen.Queries, folders []cluster.FolderID) (gone []cluster.FolderID, err error) {
	return nil, nil
}

func (r MountRequest) empty() bool {
	return len(r.Mounts)+len(r.MountIDs)+len(r.MountMap)+len(r.MountIDMap) == 0
}
