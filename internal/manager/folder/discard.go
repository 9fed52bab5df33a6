package folder

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// discardAgain is how long a removal that failed rests before it is tried again.
const discardAgain = time.Minute

// Discard makes the next step towards the end of a folder whose owner is being forgotten: into the trash bin and on to its removal, and
// when that is done its row goes. It reports whether the row is gone, and in words what must happen first where something must.
func (s *Service) Discard(ctx context.Context, tx *store.Tx, f dbgen.FoldersOfRow) (gone bool, waits string, err error) {
	status, err := tx.LockFolder(ctx, f.ID)
	if store.Missing(err) {
		return true, "", nil
	}
	if err != nil {
		return false, "", fmt.Errorf("lock folder %s: %w", f.Name, err)
	}
	move := func(to cluster.FolderStatus, task *string) error {
		m := moveTo(f.ID, to)
		m.TaskID = task
		n, err := tx.MoveFolder(ctx, m)
		if err == nil && n == 0 {
			err = fault.Conflictf("it was changed meanwhile")
		}
		if err != nil {
			return fmt.Errorf("move folder %s to %s: %w", f.Name, to, err)
		}
		return nil
	}
	remove := func() error {
		tx.Wake(store.TopicFolders)
		return move(cluster.FolderDeleteOngoing, new(s.d.IDs()))
	}
	switch is := cluster.FolderStatus(status); is {
	case cluster.FolderDeleteComplete:
		_, err := tx.ForgetFolder(ctx, f.ID)
		return true, "", err
	case cluster.FolderDeletePending:
		return false, "folders are being removed", remove()
	case cluster.FolderDeleteError:
		if s.d.Clock().Sub(f.StatusChanged) < discardAgain {
			return false, fmt.Sprintf("folder %s (%s) could not be removed and is tried again", f.Name, f.Host), nil
		}
		return false, "folders are being removed", remove()
	case cluster.FolderPerforming, cluster.FolderCloning:
		return false, fmt.Sprintf("folder %s (%s) is being made", f.Name, f.Host), nil
	case cluster.FolderDeleteOngoing:
		return false, "folders are being removed", nil
	}
	used := unused(ctx, tx.Queries, Folder{ID: cluster.FolderID(f.ID), Name: f.Name, Host: f.Host, IsOwner: true}, "removed")
	if fault.Is(used, fault.Conflict) {
		return false, used.Error(), nil
	}
	if used != nil {
		return false, "", used
	}
	if err := move(cluster.FolderDeletePending, nil); err != nil {
		return false, "", err
	}
	if err := tx.CancelInvitations(ctx, f.ID); err != nil {
		return false, "", fmt.Errorf("cancel invitations to folder %s: %w", f.Name, err)
	}
	return false, "folders are being removed", remove()
}
