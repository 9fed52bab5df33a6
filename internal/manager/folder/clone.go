package folder

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Clone copies a folder in the background; task is the id of the background task. The copy is on the host of its source.
// Only rows are written here. Loop asks the proxy, again until the copy is complete or has failed for good.
func (s *Service) Clone(ctx context.Context, a authz.Actor, ref string, in CloneInput) (f Folder, task string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "folder.clone", ref)
	defer end(&err)
	src, err := s.find(ctx, a, ref, living)
	if err != nil {
		return Folder{}, "", err
	}
	if err := src.needFiles(a, cluster.ReadOnly, "copy files"); err != nil {
		return Folder{}, "", err
	}
	if !src.Cloneable && !src.IsOwner {
		return Folder{}, "", fault.Deniedf("folder %s (%s) is not cloneable", src.Name, src.Host).
			WithNext("ask %s to make it cloneable", src.ownerWords())
	}
	if err := src.needStatus(src.Status.Updatable(), "copied"); err != nil {
		return Folder{}, "", err
	}
	if _, err := placeOf(src); err != nil {
		return Folder{}, "", err
	}
	in = in.like(src)
	if in.Host != src.Host {
		return Folder{}, "", fault.Invalidf("a copy of folder %s must be on its host %s, not on %s", src.Name, src.Host, in.Host).
			WithNext("leave the host out")
	}
	d, err := s.drafted(ctx, a, CreateInput{Name: in.Name, Host: in.Host, Usage: in.Usage, Permission: in.Permission, Project: in.Project,
		Cloneable: in.Cloneable})
	if err != nil {
		return Folder{}, "", err
	}
	if _, err := s.knownHost(src.Host); err != nil {
		return Folder{}, "", err
	}
	task = s.d.IDs()
	d.row.Status, d.row.SourceID, d.row.TaskID = string(cluster.FolderCloning), new(string(src.ID)), &task
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		// The lock keeps the source until the copy's row is committed; after that, unused finds that row.
		held, err := tx.HoldFolders(ctx, []string{string(src.ID)})
		if err != nil {
			return fmt.Errorf("hold folder %s: %w", src.Name, err)
		}
		if len(held) == 0 {
			return authz.NotFound(noun, src.Name)
		}
		if st := cluster.FolderStatus(held[0].Status); !st.Updatable() {
			return wrongStatus(src.Name, src.Host, st, "copied")
		}
		if err := s.insert(ctx, tx, d); err != nil {
			return err
		}
		return noteTask(ctx, tx, a, task, taskClone, d.row.ID, d.host.Proxy)
	})
	if err != nil {
		return Folder{}, "", err
	}
	f, err = s.Find(ctx, a, d.row.ID)
	return f, task, err
}

// like turns the input into a request for a folder; what it leaves out is taken from the source.
func (in CloneInput) like(src Folder) CloneInput {
	if in.Host == "" {
		in.Host = src.Host
	}
	if in.Usage == "" {
		in.Usage = src.Usage
	}
	if in.Permission == "" {
		in.Permission = cluster.ReadWrite
	}
	return in
}
