package session

import (
	"context"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// Rename gives a RUNNING session another name.
func (s *Service) Rename(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.rename", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	defer s.forgetRoutes("") // before the answer, so that the caller meets no old way
	o, err := s.Changeable(ctx, a, ref, owner)
	if err != nil {
		return err
	}
	if err := cluster.CheckSessionName(name); err != nil {
		return err
	}
	return s.rename(ctx, o.ID, o.AccessKey, name)
}

func (s *Service) rename(ctx context.Context, id, accessKey, name string) error {
	n, err := s.d.Store.RenameSession(ctx, name, id)
	if store.Duplicate(err, "sessions_live_name") {
		e := fault.Conflictf("a session called %s exists already", name).WithReason("session-already-exists").WithNext("choose another name")
		if live, err := s.d.Store.LiveSessionByName(ctx, accessKey, name); err == nil {
			e = e.WithData(map[string]any{"existingSessionId": live.ID})
		}
		return e
	}
	if err != nil {
		return fmt.Errorf("rename session %s: %w", id, err)
	}
	if n == 0 {
		return notRunning(id, "renamed")
	}
	s.d.Store.Wake(store.SessionTopic(id))
	return nil
}

func notRunning(id, what string) *fault.Error {
	return fault.Conflictf("session %s is not RUNNING and cannot be %s", id, what).WithReason("existing-session-not-running").
		WithNext("wait until it is RUNNING")
}

// Modify changes name or priority; nil leaves a field as it is. Priority counts only while the session waits.
func (s *Service) Modify(ctx context.Context, a authz.Actor, id cluster.SessionID, name *string, priority *int) (_ *Session, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.modify", string(id))
	defer end(&err)
	o, err := s.Changeable(ctx, a, string(id), "")
	if err != nil {
		return nil, err
	}
	if priority != nil {
		if *priority < 0 || *priority > 100 {
			return nil, fault.Invalidf("priority %d is not between 0 and 100", *priority)
		}
		if !authz.Cluster.May(a, authz.Administer, authz.Object{}) {
			limits, err := s.limitsOf(ctx, o.AccessKey)
			if err != nil {
				return nil, err
			}
			if _, err := limits.priority(a, priority); err != nil {
				return nil, err
			}
		}
	}
	if name != nil {
		if err := cluster.CheckSessionName(*name); err != nil {
			return nil, err
		}
		if err := s.rename(ctx, o.ID, o.AccessKey, *name); err != nil {
			return nil, err
		}
	}
	if priority != nil {
		n, err := s.d.Store.SetSessionPriority(ctx, int32(*priority), o.ID)
		if err != nil {
			return nil, fmt.Errorf("set priority: %w", err)
		}
		if n == 0 {
			return nil, fault.Conflictf("session %s no longer waits; its priority means nothing now", o.Name)
		}
		s.d.Store.Wake(store.TopicSchedule)
	}
	return s.loadSession(ctx, cluster.SessionID(o.ID))
}

// Restart replaces the containers of a RUNNING session by fresh ones of the next generation on the same agents.
func (s *Service) Restart(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) (_ cluster.SessionID, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "session.restart", ref)
	defer end(&err)
	audit.ActingFor(ctx, string(owner))
	defer s.forgetRoutes("") // before the answer, so that the caller meets no old way
	o, err := s.Changeable(ctx, a, ref, owner)
	if err != nil {
		return "", err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, cluster.SessionID(o.ID))
		if err != nil {
			return err
		}
		if l.Type == cluster.Batch {
			return fault.Invalidf("session %s is a batch session; start it again instead", l.Name)
		}
		if l.Status != cluster.Running {
			return notRunning(l.ID, "restarted")
		}
		for _, k := range l.Kernels {
			if k.Status != cluster.Running {
				return fault.Conflictf("kernel %s of session %s is %s", k.ID, l.Name, k.Status).WithNext("try again when its agent is back")
			}
			if err := k.Restart(ctx); err != nil {
				return err
			}
		}
		return l.Settle(ctx, cluster.ReasonRestarting, "")
	})
	if err != nil {
		return "", fmt.Errorf("restart session %s: %w", o.Name, err)
	}
	return cluster.SessionID(o.ID), nil
}

// Apps lists the apps of the main kernel.
func (s *Service) Apps(ctx context.Context, a authz.Actor, ref string, owner cluster.AccessKey) ([]ServicePort, error) {
	v, err := s.Find(ctx, a, ref, owner)
	if err != nil {
		return nil, err
	}
	k := v.MainKernel()
	if k == nil {
		return nil, authz.NotFound("main kernel", ref)
	}
	return k.ServicePorts, nil
}
