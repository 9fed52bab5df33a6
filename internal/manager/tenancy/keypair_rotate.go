package tenancy

import (
	"context"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

const (
	// maxOverlap bounds how long a keypair that was replaced still holds.
	maxOverlap = 30 * 24 * time.Hour
	// maxEnds and maxPassedOn bound one pass of the loop and one transaction.
	maxEnds     = 100
	maxPassedOn = 10_000
	// endsCalm is the longest rest between two looks for keypairs whose time has come, endsSoon the shortest.
	endsCalm = 30 * time.Second
	endsSoon = 100 * time.Millisecond
)

// RotateKeypair replaces a keypair (its user, superadmins, administrators of its user's domain); key "" is the actor's own. The new
// one takes over what hangs on the old one: whether it is the main one, policy, limits, SSH keypair, dotfiles, bootstrap script,
// resource groups and live sessions. The old one holds for the overlap, at most 30 days, and then ends by itself. The answer has the
// secret, which nobody but who signs with the keypair is told again.
func (s *Service) RotateKeypair(ctx context.Context, a authz.Actor, key cluster.AccessKey, overlap time.Duration) (_ *Keypair, err error) {
	if key == "" {
		key = a.AccessKey
	}
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.rotate", string(key))
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return nil, err
	}
	fresh, secret, sealed, err := s.freshKeypair()
	if err != nil {
		return nil, err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := s.changesKeypairs(ctx, tx, a); err != nil {
			return err
		}
		row, err := lockedKeypair(ctx, tx, a, authz.Change, key)
		if err != nil {
			return err
		}
		k := row.Keypair
		switch {
		case overlap < 0 || overlap > maxOverlap:
			return fault.Invalidf("an overlap of %s is not from 0 to %s", overlap, maxOverlap)
		case k.ReplacedBy != nil:
			return fault.Conflictf("access key %s was replaced by %s already", key, *k.ReplacedBy).WithNext("replace that one")
		case !k.IsActive:
			return fault.Conflictf("access key %s is not active", key).WithNext("make it active first, or make another keypair")
		}
		n, err := tx.CountKeypairsOf(ctx, "", k.UserID)
		if err != nil {
			return fmt.Errorf("count keypairs of %s: %w", row.Email, err)
		}
		if n.There >= maxKeypairs {
			return fault.Exhaustedf("%s has %d keypairs already", row.Email, n.There).WithNext("delete one first")
		}
		k.AccessKey, k.SecretSealed = string(fresh), sealed
		if k.SshPrivateSealed != nil {
			private, err := s.d.Seal.Open(k.SshPrivateSealed, sshPurpose(string(key)))
			if err == nil {
				k.SshPrivateSealed, err = s.d.Seal.Seal(private, sshPurpose(k.AccessKey))
			}
			if err != nil {
				return fmt.Errorf("seal the SSH key again: %w", err)
			}
		}
		if err := insertKeypair(ctx, tx, k); err != nil {
			return err
		}
		if err := tx.CopyGroupsOfKeypair(ctx, k.AccessKey, string(key)); err != nil {
			return fmt.Errorf("give it the resource groups: %w", err)
		}
		if err := tx.ReplaceKeypair(ctx, k.AccessKey, overlap, string(key)); err != nil {
			return fmt.Errorf("set the end of the old one: %w", err)
		}
		if row.IsMain {
			if err := tx.SetMainKeypair(ctx, &k.AccessKey, k.UserID); err != nil {
				return fmt.Errorf("make it the main one: %w", err)
			}
		}
		if _, err := tx.PassOnSessions(ctx, new(string(key)), maxPassedOn); err != nil {
			return fmt.Errorf("pass on the sessions: %w", err)
		}
		tx.Wake(store.TopicKeypairs, store.TopicSchedule)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("replace keypair %s: %w", key, err)
	}
	return s.shownOnce(ctx, a, fresh, secret)
}

// Loops returns the control loop that ends keypairs whose time has come and passes their live sessions on.
func (s *Service) Loops() []reconcile.Loop {
	return []reconcile.Loop{{
		Name:  "keypair-end",
		Hears: func(topic string) bool { return topic == store.TopicKeypairs },
		Begin: func(t reconcile.Term) reconcile.Work {
			return reconcile.Work{Pass: func(ctx context.Context) (time.Duration, error) {
				if err := t.Check(ctx); err != nil {
					return 0, err
				}
				return s.EndKeypairs(ctx)
			}}
		},
	}}
}

// EndKeypairs makes one pass: it ends keypairs whose time has come, passes their live sessions on to their successors, and returns
// how long to wait until the next one. Requests are refused from the time on whether it ran or not.
func (s *Service) EndKeypairs(ctx context.Context) (time.Duration, error) {
	wait := endsCalm
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		ended, err := tx.EndKeypairs(ctx, maxEnds)
		if err != nil {
			return fmt.Errorf("end keypairs: %w", err)
		}
		for _, k := range ended {
			s.d.Log.Info("a keypair that was replaced has ended", "access_key", k.AccessKey, "user", k.Email)
		}
		passed, err := tx.PassOnSessions(ctx, nil, maxPassedOn)
		if err != nil {
			return fmt.Errorf("pass on sessions of keypairs that ended: %w", err)
		}
		next, err := tx.NextKeypairEnd(ctx)
		if err != nil {
			return fmt.Errorf("look for the next keypair that ends: %w", err)
		}
		if wait = min(max(next, endsSoon), endsCalm); passed == maxPassedOn {
			wait = endsSoon
		}
		if passed > 0 {
			tx.Wake(store.TopicSchedule)
		}
		return nil
	})
	return wait, err
}
