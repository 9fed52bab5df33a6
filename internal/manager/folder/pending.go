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

// Get is Find with a fresh count of what the folder holds, if the proxy has one soon.
func (s *Service) Get(ctx context.Context, a Actor, ref string) (Folder, error) {
	return Folder{}, notYet(a)
}

// Rename gives a folder another name.
func (s *Service) Rename(ctx context.Context, a Actor, ref, name string) (Folder, error) {
	return Folder{}, notYet(a)
}

// UpdateOptions changes what the owner may choose.
func (s *Service) UpdateOptions(ctx context.Context, a Actor, ref string, o Options) (Folder, error) {
	return Folder{}, notYet(a)
}

// Trash puts a folder into the trash bin; Conflict while live sessions mount it.
func (s *Service) Trash(ctx context.Context, a Actor, ref string) (Folder, error) {
	return Folder{}, notYet(a)
}

// Restore takes a folder out of the trash bin.
func (s *Service) Restore(ctx context.Context, a Actor, ref string) (Folder, error) {
	return Folder{}, notYet(a)
}

// DeleteForever removes the files of a folder in the trash bin, in the background; its status tells how far that is.
func (s *Service) DeleteForever(ctx context.Context, a Actor, ref string) (Folder, error) {
	return Folder{}, notYet(a)
}

// Purge is DeleteForever that also takes ready folders and forgets the rows of removed ones (administrators).
func (s *Service) Purge(ctx context.Context, a Actor, ref string) (Folder, error) {
	return Folder{}, notYet(a)
}

// Clone copies a folder in the background; task is the id of the background task.
func (s *Service) Clone(ctx context.Context, a Actor, ref string, in CloneInput) (f Folder, task string, err error) {
	return Folder{}, "", notYet(a)
}

// Mkdir makes directories; of several some may fail, which Results tell. The error is set when all failed.
func (s *Service) Mkdir(ctx context.Context, a Actor, ref string, in MkdirInput) (Results, error) {
	return Results{}, notYet(a)
}

// RenameFile gives an entry another name in its directory.
func (s *Service) RenameFile(ctx context.Context, a Actor, ref, path, name string) error {
	return notYet(a)
}

// MoveFile moves an entry inside its folder.
func (s *Service) MoveFile(ctx context.Context, a Actor, ref, src, dst string) error {
	return notYet(a)
}

// ListFiles lists a directory up to a bound, after the entry of that name ("" from the start).
func (s *Service) ListFiles(ctx context.Context, a Actor, ref, path, after string) (Listing, error) {
	return Listing{}, notYet(a)
}

// DeleteFiles deletes files now. The error is set when all failed.
func (s *Service) DeleteFiles(ctx context.Context, a Actor, ref string, files []string, recursive bool) (Results, error) {
	return Results{}, notYet(a)
}

// DeleteFilesAsync deletes files in the background and returns the id of the background task.
func (s *Service) DeleteFilesAsync(ctx context.Context, a Actor, ref string, files []string, recursive bool) (task string, err error) {
	return "", notYet(a)
}

// RequestUpload lets a client write one file of that size in bytes.
func (s *Service) RequestUpload(ctx context.Context, a Actor, ref, path string, size int64) (Ticket, error) {
	return Ticket{}, notYet(a)
}

// RequestDownload lets a client read one file, or a directory as an archive.
func (s *Service) RequestDownload(ctx context.Context, a Actor, ref, path string, archive bool) (Ticket, error) {
	return Ticket{}, notYet(a)
}

// RequestArchive lets a client read several paths as one archive; filename may be "".
func (s *Service) RequestArchive(ctx context.Context, a Actor, ref string, files []string, filename string) (Ticket, error) {
	return Ticket{}, notYet(a)
}

// Usage counts what a folder holds (superadmins); host "" is the folder's.
func (s *Service) Usage(ctx context.Context, a Actor, host, ref string) (Usage, error) {
	return Usage{}, notYet(a)
}

// UsedBytes is Usage without the number of files (superadmins).
func (s *Service) UsedBytes(ctx context.Context, a Actor, host, ref string) (int64, error) {
	return 0, notYet(a)
}

// Import copies from an object store into a folder and returns the id of the background task.
func (s *Service) Import(ctx context.Context, a Actor, ref string, in TransferInput) (task string, err error) {
	return "", notYet(a)
}

// Export copies from a folder to an object store and returns the id of the background task.
func (s *Service) Export(ctx context.Context, a Actor, ref string, in TransferInput) (task string, err error) {
	return "", notYet(a)
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

// ChangeOwnership gives a user folder to another user (superadmins).
func (s *Service) ChangeOwnership(ctx context.Context, a Actor, ref, email string) error {
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
