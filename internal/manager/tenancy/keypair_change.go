package tenancy

import (
	"context"
	"encoding/json"
	"fmt"
	"math"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// maxKeypairs is how many keypairs a user has at most.
	maxKeypairs = 50
	// defaultRate is the number of requests in 15 minutes of a new keypair.
	defaultRate = 10_000
)

// KeypairProps are what administrators set of a keypair; nil means the default when it is made and no change later.
type KeypairProps struct {
	IsActive *bool
	// IsAdmin is for users who administrate something; what they may do is decided by their role.
	IsAdmin        *bool
	ResourcePolicy *string
	// RateLimit is the number of requests in 15 minutes; 0 is no limit.
	RateLimit *int
	// ConcurrencyLimit bounds the live sessions that are started with the keypair, besides what policies say; 0 is no limit.
	ConcurrencyLimit *int
	Expect           Expect[dbgen.Keypair]
}

// CreateKeypair makes another keypair of a user (email or id), for superadmins and administrators of the user's domain. The answer has the
// secret; nobody but who signs with the keypair is told it again. Administrators who make one for themselves get the limits of their main
// keypair.
func (s *Service) CreateKeypair(ctx context.Context, a authz.Actor, user string, p KeypairProps) (_ *Keypair, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.create", user)
	defer end(&err)
	u, err := s.userOf(ctx, user)
	if err != nil {
		return nil, err
	}
	o := authz.Object{Name: user, Owner: cluster.UserID(u.ID), OwnerRole: authz.Role(u.Role), Domain: u.DomainName}
	if err := authz.Keypairs.Need(a, authz.Administer, o, "make a keypair of "+user); err != nil {
		return nil, err // also for users who do not exist: strangers learn nothing
	}
	if u.ID == "" {
		return nil, authz.NotFound(userNoun, user)
	}
	key, secret, sealed, err := s.freshKeypair()
	if err != nil {
		return nil, err
	}
	row := dbgen.Keypair{AccessKey: string(key), SecretSealed: sealed, UserID: u.ID, IsActive: true, IsAdmin: administrates(u.Role),
		ResourcePolicy: Default, RateLimit: defaultRate, Dotfiles: json.RawMessage("[]")}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := s.changesKeypairs(ctx, tx, a); err != nil {
			return err
		}
		before := row
		if own := u.ID == string(a.UserID) && !a.Superadmin(); own && u.MainAccessKey != nil {
			main, err := tx.LockKeypair(ctx, *u.MainAccessKey)
			if err != nil {
				return fmt.Errorf("find the main keypair: %w", err)
			}
			before.ResourcePolicy, before.RateLimit, before.ConcurrencyLimit = main.Keypair.ResourcePolicy, main.Keypair.RateLimit,
				main.Keypair.ConcurrencyLimit
		}
		after := before
		if err := setKeypair(&after, p, u.Role); err != nil {
			return err
		}
		if err := ownLimits(a, u.ID, before, after); err != nil {
			return err
		}
		n, err := tx.CountKeypairsOf(ctx, "", u.ID)
		if err != nil {
			return fmt.Errorf("count keypairs of %s: %w", u.Email, err)
		}
		if n.There >= maxKeypairs {
			return fault.Exhaustedf("%s has %d keypairs already", u.Email, n.There).WithNext("delete one first")
		}
		if err := insertKeypair(ctx, tx, after); err != nil {
			return err
		}
		if u.MainAccessKey == nil {
			return tx.SetMainKeypair(ctx, &after.AccessKey, u.ID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("make a keypair of %s: %w", user, err)
	}
	return s.shownOnce(ctx, a, key, secret)
}

// userOf finds a user by email or id; the row is empty when there is none.
func (s *Service) userOf(ctx context.Context, ref string) (dbgen.User, error) {
	if id, ok := cluster.CanonicalUUID(ref); ok {
		ref = id
	}
	u, err := s.d.Store.UserByRef(ctx, store.Text(ref))
	if err != nil && !store.Missing(err) {
		return u, fmt.Errorf("find user %s: %w", ref, err)
	}
	return u, nil
}

// freshKeypair makes a keypair with its sealed secret.
func (s *Service) freshKeypair() (key cluster.AccessKey, secret seal.Secret, sealed []byte, err error) {
	if key, secret, err = newKeypair(s.d.Random); err != nil {
		return "", "", nil, err
	}
	if sealed, err = s.d.Seal.Seal(secret, keypairPurpose(string(key))); err != nil {
		return "", "", nil, fmt.Errorf("seal the secret key: %w", err)
	}
	return key, secret, sealed, nil
}

// shownOnce is a new keypair with its secret, for who had it made.
func (s *Service) shownOnce(ctx context.Context, a authz.Actor, key cluster.AccessKey, secret seal.Secret) (*Keypair, error) {
	k, err := s.GetKeypair(ctx, a, key)
	if err != nil {
		return nil, err
	}
	k.SecretKey = secret
	return k, nil
}

// changesKeypairs makes changes of keypairs and users take turns, and refuses those who sign with a keypair that was replaced: whoever has
// got hold of one that is about to end does not get another by it.
func (s *Service) changesKeypairs(ctx context.Context, tx *store.Tx, a authz.Actor) error {
	if err := tx.LockUserChanges(ctx); err != nil {
		return fmt.Errorf("wait for other changes of users: %w", err)
	}
	mine, err := tx.ActorByKey(ctx, string(a.AccessKey))
	if err != nil && !store.Missing(err) {
		return fmt.Errorf("find keypair: %w", err)
	}
	if err == nil && mine.ExpiresAt != nil {
		return fault.Deniedf("access key %s was replaced and changes no keypairs", a.AccessKey).WithNext("sign with its successor")
	}
	return nil
}

func insertKeypair(ctx context.Context, tx *store.Tx, k dbgen.Keypair) error {
	err := tx.InsertKeypair(ctx, dbgen.InsertKeypairParams{AccessKey: k.AccessKey, SecretSealed: k.SecretSealed, UserID: k.UserID,
		IsActive: k.IsActive, IsAdmin: k.IsAdmin, ResourcePolicy: k.ResourcePolicy, RateLimit: k.RateLimit, ConcurrencyLimit: k.ConcurrencyLimit,
		SshPublicKey: k.SshPublicKey, SshPrivateSealed: k.SshPrivateSealed, Dotfiles: k.Dotfiles, BootstrapScript: k.BootstrapScript})
	if store.Dangling(err) {
		return authz.NotFound(policyNoun, k.ResourcePolicy)
	}
	if err != nil {
		return fmt.Errorf("store the keypair: %w", err)
	}
	return nil
}

// setKeypair applies properties to a row after checking them; role is that of its user.
func setKeypair(k *dbgen.Keypair, p KeypairProps, role string) error {
	if p.IsAdmin != nil && *p.IsAdmin && !administrates(role) {
		return fault.Invalidf("a keypair of a %s is not one of an administrator", role).
			WithNext("change the user's role, their keypairs follow")
	}
	store.Set(&k.IsActive, p.IsActive)
	store.Set(&k.IsAdmin, p.IsAdmin)
	store.Set(&k.ResourcePolicy, p.ResourcePolicy)
	if p.RateLimit != nil {
		if *p.RateLimit < 0 || *p.RateLimit > math.MaxInt32 {
			return fault.Invalidf("rate_limit must be from 0 to %d, not %d", math.MaxInt32, *p.RateLimit)
		}
		k.RateLimit = int32(*p.RateLimit)
	}
	if n := p.ConcurrencyLimit; n != nil {
		if *n < 0 || *n > math.MaxInt32 {
			return fault.Invalidf("concurrency_limit must be from 0 to %d, not %d", math.MaxInt32, *n)
		}
		if k.ConcurrencyLimit = nil; *n > 0 {
			k.ConcurrencyLimit = new(int32(*n))
		}
	}
	return nil
}

// ownLimits refuses that anybody but superadmins changes what limits themselves.
func ownLimits(a authz.Actor, user string, before, after dbgen.Keypair) error {
	same := before.ResourcePolicy == after.ResourcePolicy && before.RateLimit == after.RateLimit && before.IsAdmin == after.IsAdmin &&
		(before.ConcurrencyLimit == nil) == (after.ConcurrencyLimit == nil) &&
		(before.ConcurrencyLimit == nil || *before.ConcurrencyLimit == *after.ConcurrencyLimit)
	if same || a.Superadmin() || user != string(a.UserID) {
		return nil
	}
	return fault.Deniedf("%s may not set their own limits", a.Email).
		WithNext("leave out resource_policy, rate_limit, concurrency_limit and is_admin, or ask a superadmin")
}

// lockedKeypair finds a keypair with which the actor may do something, for the rest of the transaction.
func lockedKeypair(ctx context.Context, tx *store.Tx, a authz.Actor, v authz.Verb, key cluster.AccessKey) (dbgen.LockKeypairRow, error) {
	row, err := tx.LockKeypair(ctx, store.Text(string(key)))
	if store.Missing(err) {
		return row, authz.NotFound(keypairNoun, string(key))
	}
	if err != nil {
		return row, fmt.Errorf("find keypair %s: %w", key, err)
	}
	return row, authz.Keypairs.Check(a, v, authz.Object{Name: string(key), Owner: cluster.UserID(row.Keypair.UserID),
		OwnerRole: authz.Role(row.Role), Domain: row.DomainName})
}

// ModifyKeypair changes a keypair (superadmins, and administrators of its user's domain). One that is not active any more is let in nowhere
// from then on; its sessions run on. Nobody but superadmins sets their own limits, nobody makes the keypair inactive that they sign with,
// and superadmins keep one.
func (s *Service) ModifyKeypair(ctx context.Context, a authz.Actor, key cluster.AccessKey, p KeypairProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.modify", string(key))
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := s.changesKeypairs(ctx, tx, a); err != nil {
			return err
		}
		row, err := lockedKeypair(ctx, tx, a, authz.Administer, key)
		if err != nil {
			return err
		}
		before, k := row.Keypair, row.Keypair
		if err := p.Expect.met(ctx, tx, k); err != nil {
			return err
		}
		if err := setKeypair(&k, p, row.Role); err != nil {
			return err
		}
		if err := ownLimits(a, k.UserID, before, k); err != nil {
			return err
		}
		switch {
		case before.IsActive && !k.IsActive:
			if err := mayEnd(ctx, tx, a, row); err != nil {
				return err
			}
		case !before.IsActive && k.IsActive && k.ReplacedBy != nil:
			return fault.Conflictf("access key %s was replaced by %s and has ended", key, *k.ReplacedBy).WithNext("make another keypair")
		}
		err = tx.UpdateKeypair(ctx, dbgen.UpdateKeypairParams{AccessKey: k.AccessKey, IsActive: k.IsActive, IsAdmin: k.IsAdmin,
			ResourcePolicy: k.ResourcePolicy, RateLimit: k.RateLimit, ConcurrencyLimit: k.ConcurrencyLimit})
		if store.Dangling(err) {
			return authz.NotFound(policyNoun, k.ResourcePolicy)
		}
		if err != nil {
			return fmt.Errorf("store the keypair: %w", err)
		}
		tx.Wake(store.TopicSchedule)
		return nil
	})
	if err != nil {
		return fmt.Errorf("change keypair %s: %w", key, err)
	}
	return nil
}

// mayEnd refuses to end the keypair that the actor signs with, and the last one of all superadmins.
func mayEnd(ctx context.Context, tx *store.Tx, a authz.Actor, row dbgen.LockKeypairRow) error {
	if row.Keypair.AccessKey == string(a.AccessKey) {
		return fault.Conflictf("you sign with access key %s", a.AccessKey).WithNext("sign with another keypair, or replace this one")
	}
	if row.Role != string(authz.RoleSuperadmin) {
		return nil
	}
	n, err := tx.CountOtherSuperadminKeys(ctx, row.Keypair.AccessKey)
	if err != nil {
		return fmt.Errorf("count keypairs of superadmins: %w", err)
	}
	if n == 0 {
		return fault.Conflictf("access key %s is the last one of a superadmin", row.Keypair.AccessKey).
			WithNext("make another keypair of a superadmin first")
	}
	return nil
}

// DeleteKeypair deletes a keypair for good (its user, superadmins, administrators of its user's domain): neither the main one nor the one
// that the actor signs with. It is let in nowhere from then on; its sessions run on and go to the user's main keypair.
func (s *Service) DeleteKeypair(ctx context.Context, a authz.Actor, key cluster.AccessKey) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair.delete", string(key))
	defer end(&err)
	if err := authz.Authenticated(a); err != nil {
		return err
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := s.changesKeypairs(ctx, tx, a); err != nil {
			return err
		}
		row, err := lockedKeypair(ctx, tx, a, authz.Change, key)
		if err != nil {
			return err
		}
		if err := mayEnd(ctx, tx, a, row); err != nil {
			return err
		}
		if row.IsMain {
			return fault.Conflictf("access key %s is the main one of %s", key, row.Email).
				WithNext("make another keypair the main one first, replace this one, or make it inactive")
		}
		u, err := tx.UserByRef(ctx, row.Keypair.UserID)
		if err != nil {
			return fmt.Errorf("find user %s: %w", row.Email, err)
		}
		if err := tx.EraseKeypair(ctx, u.MainAccessKey, string(key)); err != nil {
			return fmt.Errorf("erase it: %w", err)
		}
		if err := tx.ForgetGroupsOfKeypair(ctx, string(key)); err != nil {
			return fmt.Errorf("end its use of resource groups: %w", err)
		}
		if _, err := tx.PassOnSessions(ctx, new(string(key)), maxPassedOn); err != nil {
			return fmt.Errorf("pass on its sessions: %w", err)
		}
		tx.Wake(store.TopicKeypairs, store.TopicSchedule)
		return nil
	})
	if err != nil {
		return fmt.Errorf("delete keypair %s: %w", key, err)
	}
	return nil
}
