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
