package folder

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// Who loses a right to a folder loses it in the sessions that run, too. This loop is woken by every change of rights (migration 0022) and
// writes what each mount of a live session may still be; the desired state of the kernels follows from that, and agents make it true
// (agent/mount.Withhold). What is given back comes with the next container of the session.
//
// Users who are let in nowhere, because they or their domain are not active, keep what is their own in their sessions, which run on; what
// others shared with them and the folders of projects are taken away. So are those of a project that is not active.

const (
	withholdCalm  = 30 * time.Second
	withholdAgain = time.Second
	// withholdSettles is how long after a change of rights a session may still be stored that was planned before it.
	withholdSettles = 15 * time.Second
	withholdRows    = 500
)

func (s *Service) withholdLoop() reconcile.Loop {
	return reconcile.Loop{
		Name:  "mounts",
		Hears: func(topic string) bool { return topic == store.TopicRights },
		Begin: func(t reconcile.Term) reconcile.Work {
			var compared time.Time // when all mounts were looked at
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
				now := s.d.Clock()
				all := compared.IsZero() || now.Sub(compared) >= withholdCalm
				if err := s.withhold(ctx, t.Commit, all); err != nil {
					return 0, err
				}
				if all {
					compared = now
				}
				young, err := s.d.Store.RightsAreYoung(ctx, withholdSettles)
				if err != nil {
					return 0, fmt.Errorf("look for young rights: %w", err)
				}
				if young {
					return withholdAgain, nil
				}
				return withholdCalm, nil
			}}
		},
	}
}

// withhold brings what mounts of live sessions may be in step with the rights of their owners: of all, or of those whose rights changed
// lately.
func (s *Service) withhold(
	ctx context.Context, commit func(context.Context, func(context.Context, *store.Tx) error) error, all bool,
) error {
	after, n := "00000000-0000-0000-0000-000000000000", int32(-1)
	for {
		rows, err := s.d.Store.MountRights(ctx, after, n, !all, withholdRows)
		if err != nil {
			return fmt.Errorf("read the rights of mounts: %w", err)
		}
		for _, r := range rows {
			if string(allowedOf(r)) == r.Allowed {
				continue
			}
			if err := commit(ctx, func(ctx context.Context, tx *store.Tx) error { return setAllowed(ctx, tx, r) }); err != nil {
				return fmt.Errorf("change what session %s may have of folder %s: %w", r.SessionID, r.Name, err)
			}
		}
		if len(rows) < withholdRows {
			return nil
		}
		after, n = rows[len(rows)-1].SessionID, rows[len(rows)-1].N
	}
}

// allowedOf decides what is left of a mount: "" is nothing. It is the rule by which mounts are planned.
func allowedOf(r dbgen.MountRightsRow) cluster.MountPermission {
	if !r.FolderThere {
		return ""
	}
	a := authz.Actor{UserID: cluster.UserID(r.UserID), AccessKey: cluster.AccessKey(r.AccessKey), Role: authz.Role(r.Role),
		Domain: r.DomainName}
	o := authz.Object{Name: r.Name, Owner: cluster.UserID(r.FolderUser), OwnerRole: authz.Role(r.OwnerRole), Domain: r.FolderDomain,
		Project: cluster.ProjectID(r.FolderProject), ProjectType: r.ProjectType, Creator: cluster.UserID(r.Creator),
		Permission: cluster.MountPermission(r.FolderPermission)}
	if r.Active {
		for _, p := range r.Projects {
			a.Projects = append(a.Projects, cluster.ProjectID(p))
		}
		o.Granted, o.Given = cluster.MountPermission(r.Granted), r.Granted != ""
	}
	switch {
	case !authz.Folders.May(a, authz.Reach, o):
		return ""
	case mountedReadOnly(a, o):
		return cluster.ReadOnly
	}
	return accessOf(a, o).files
}

// inside is what a container has of a mount: "", ro or rw.
func inside(permission, allowed string) cluster.MountPermission {
	switch {
	case allowed == "":
		return ""
	case cluster.MountPermission(allowed).CanWrite() && cluster.MountPermission(permission).CanWrite():
		return cluster.ReadWrite
	}
	return cluster.ReadOnly
}

func setAllowed(ctx context.Context, tx *store.Tx, r dbgen.MountRightsRow) error {
	allowed := string(allowedOf(r))
	n, err := tx.SetMountAllowed(ctx, allowed, r.SessionID, r.N)
	if err != nil || n == 0 {
		return err
	}
	was, is := inside(r.Permission, r.Allowed), inside(r.Permission, allowed)
	if was == is || is == cluster.ReadWrite || was == "" {
		return nil // the container stays as it is
	}
	detail := fmt.Sprintf("folder %s is taken out of this session, because its owner has no right to it any more", r.Name)
	if is == cluster.ReadOnly {
		detail = fmt.Sprintf("folder %s is read-only in this session from now on, because its owner may not change it any more", r.Name)
	}
	agents, err := tx.TellFolderWithheld(ctx, r.SessionID, string(cluster.SessionFolderWithheld), string(cluster.ReasonRightEnded), detail)
	if err != nil {
		return fmt.Errorf("tell the session: %w", err)
	}
	tx.Wake(store.TopicEvents, store.SessionTopic(r.SessionID))
	for _, a := range agents {
		tx.Wake(store.AgentTopic(a))
	}
	return nil
}
