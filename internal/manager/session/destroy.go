package session

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// DestroyOptions say how far a destroy goes.
type DestroyOptions struct {
	Owner     cluster.AccessKey
	Forced    bool
	Recursive bool // with everything that depends on it
}

// Destroyed is the answer for one session; Stats may be empty.
type Destroyed struct {
	ID     cluster.SessionID
	Name   string
	Status cluster.Status // after the request: CANCELLED, TERMINATING or TERMINATED
	Stats  map[string]any
}

// Destroy asks for the end of a session and answers at once. The first item is the named session. Waiting sessions are
// CANCELLED; others become TERMINATING, or with Forced TERMINATED, while their agents still clean up.
func (s *Service) Destroy(ctx context.Context, a authz.Actor, ref string, o DestroyOptions) (_ []Destroyed, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.destroy", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(o.Owner))
	defer s.forgetRoutes("") // before the answer, so that the caller meets no old way
	target, err := s.Changeable(ctx, a, ref, o.Owner)
	if o.Forced && fault.Is(err, fault.NotFound) {
		target, err = s.failedNamed(ctx, a, ref, o.Owner, err)
	}
	if err != nil {
		return nil, err
	}
	var out []Destroyed
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		out = nil
		ids := []cluster.SessionID{cluster.SessionID(target.ID)}
		if o.Recursive {
			later, err := tx.DependentsOf(ctx, target.ID)
			if err != nil {
				return fmt.Errorf("find dependent sessions: %w", err)
			}
			for _, id := range later {
				ids = append(ids, cluster.SessionID(id))
			}
		}
		locked, err := tx.Lock(ctx, ids...)
		if err != nil {
			return err
		}
		for _, l := range locked {
			named := l.ID == target.ID
			refusal := mayDestroy(l.Name, l.Status, o.Forced)
			if refusal != nil && named {
				return refusal
			}
			if refusal == nil {
				if err := destroy(ctx, l, a, o.Forced); err != nil {
					return err
				}
				if l.CallbackUrl != nil {
					tx.Wake(store.TopicCallbacks)
				}
			}
			d := Destroyed{ID: cluster.SessionID(l.ID), Name: l.Name, Status: l.Status,
				Stats: map[string]any{"status": strings.ToLower(string(l.Status))}}
			if named {
				out = append([]Destroyed{d}, out...)
			} else {
				out = append(out, d)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("destroy session %s: %w", target.Name, err)
	}
	s.addLastStats(ctx, out)
	return out, nil
}

// destroy ends a session. Its user hears of it where it was somebody else.
func destroy(ctx context.Context, l *store.Locked, a authz.Actor, forced bool) error {
	reason, detail := cluster.ReasonUserRequested, ""
	switch {
	case a.By != nil:
		reason, detail = cluster.ReasonAdministrator, "asked by "+a.By.Email
	case string(a.UserID) != l.UserID:
		reason, detail = cluster.ReasonAdministrator, "asked by "+a.Email
	case forced:
		reason = cluster.ReasonForced
	}
	if err := l.Stop(ctx, reason, detail, forced && l.Status != cluster.Pending); err != nil {
		return err
	}
	return l.Settle(ctx, reason, detail)
}

// failedNamed finds the newest session of a name that ended in ERROR and that the actor may change. Names mean live sessions, but
// clients destroy a failed one by its name, too. Without one it returns notFound.
func (s *Service) failedNamed(ctx context.Context, a authz.Actor, name string, owner cluster.AccessKey, notFound error) (
	r dbgen.SessionOwnerRow, err error) {
	if owner == "" {
		owner = a.AccessKey
	}
	id, err := s.d.Store.FailedSessionNamed(ctx, string(owner), name)
	if store.Missing(err) {
		return r, notFound
	}
	if err != nil {
		return r, fmt.Errorf("find the failed session %q: %w", name, err)
	}
	if r, err = s.ownerByID(ctx, a, cluster.SessionID(id)); err != nil {
		if fault.Is(err, fault.NotFound) {
			err = notFound
		}
		return r, err
	}
	return r, authz.Sessions.Check(a, authz.Change, objectOf(r))
}

// mayDestroy is the wire's table: what has ended cannot end again, and what is between two states needs force. A session that
// ended in ERROR stays as it is, but clients may destroy it with force.
func mayDestroy(name string, status cluster.Status, forced bool) error {
	switch status {
	case cluster.Error:
		if !forced {
			return fault.Deniedf("session %s has ended already (%s)", name, status).WithNext("destroy it with force")
		}
	case cluster.Terminated, cluster.Cancelled:
		return fault.Deniedf("session %s has ended already (%s)", name, status)
	case cluster.Scheduled, cluster.Preparing, cluster.Pulling, cluster.Terminating:
		if !forced {
			return fault.Deniedf("session %s is %s and cannot be destroyed gracefully", name, status).
				WithNext("wait until it is RUNNING, or destroy it with force")
		}
	}
	return nil
}

// addLastStats adds what is known of the main kernels' use; the answer does not depend on it.
func (s *Service) addLastStats(ctx context.Context, list []Destroyed) {
	ids := make([]string, len(list))
	for i, d := range list {
		ids[i] = string(d.ID)
	}
	kernels, err := s.d.Store.KernelViews(ctx, ids, []string{})
	if err != nil {
		s.d.Log.Warn("could not read the last statistics", "error", err)
		return
	}
	for _, k := range kernels {
		for i := range list {
			var stat map[string]any
			if k.LocalRank == 0 && k.SessionID == string(list[i].ID) && len(k.LastStat) > 0 && json.Unmarshal(k.LastStat, &stat) == nil {
				for name, v := range stat {
					list[i].Stats[name] = v
				}
			}
		}
	}
}
