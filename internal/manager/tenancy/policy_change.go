package tenancy

import (
	"context"
	"fmt"
	"math"
	"strings"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// maxPolicyName bounds the name of a policy, in bytes.
const maxPolicyName = 64

// KeypairPolicyProps are what administrators set of a keypair resource policy; nil means no change.
type KeypairPolicyProps struct {
	DefaultForUnspecified *string
	// TotalSlots and MaxPendingSlots are amounts as written, per slot; a slot that is not named is unlimited.
	TotalSlots, MaxPendingSlots map[string]string
	MaxSessionLifetime          *int
	MaxConcurrentSessions       *int
	MaxConcurrentSFTP           *int
	// MaxPendingSessions and MaxPriority are lifted by -1.
	MaxPendingSessions *int
	MaxPriority        *int
	MaxContainers      *int
	IdleTimeout        *int
	AllowedHosts       map[string]any
	Expect             Expect[dbgen.KeypairResourcePolicy]
}

// ModifyKeypairPolicy changes what keypairs of a policy may hold (superadmins). Sessions that run stay; waiting ones meet
// the new limits in the next scheduling pass.
func (s *Service) ModifyKeypairPolicy(ctx context.Context, a authz.Actor, name string, p KeypairPolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair-policy.modify", name)
	defer end(&err)
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "change resource policies"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error { return changeKeypairPolicy(ctx, tx, name, p) })
}

// changeKeypairPolicy applies properties to a policy that is there.
func changeKeypairPolicy(ctx context.Context, tx *store.Tx, name string, p KeypairPolicyProps) error {
	row, err := tx.LockKeypairPolicy(ctx, store.Text(name))
	if store.Missing(err) {
		return authz.NotFound(policyNoun, name)
	}
	if err != nil {
		return fmt.Errorf("find resource policy %s: %w", name, err)
	}
	if err := p.Expect.met(ctx, tx, row); err != nil {
		return err
	}
	kinds, err := tx.SlotKinds(ctx)
	if err != nil {
		return fmt.Errorf("read the kinds of slots: %w", err)
	}
	if err := setLimits(&row, p, cluster.AgreedKinds(kinds)); err != nil {
		return err
	}
	err = tx.UpdateKeypairPolicy(ctx, dbgen.UpdateKeypairPolicyParams{
		Name: row.Name, DefaultForUnspecified: row.DefaultForUnspecified, TotalResourceSlots: row.TotalResourceSlots,
		MaxSessionLifetime:    row.MaxSessionLifetime,
		MaxConcurrentSessions: row.MaxConcurrentSessions, MaxConcurrentSftpSessions: row.MaxConcurrentSftpSessions,
		MaxPendingSessionCount:         row.MaxPendingSessionCount,
		MaxPendingSessionResourceSlots: row.MaxPendingSessionResourceSlots, MaxPriority: row.MaxPriority,
		MaxContainersPerSession: row.MaxContainersPerSession,
		IdleTimeout:             row.IdleTimeout, AllowedVfolderHosts: row.AllowedVfolderHosts,
	})
	if err != nil {
		return fmt.Errorf("change resource policy %s: %w", name, err)
	}
	tx.Wake(store.TopicSchedule)
	return nil
}

// CreateKeypairPolicy makes a keypair resource policy (superadmins). What is not named has the default of the policy "default" at first.
func (s *Service) CreateKeypairPolicy(ctx context.Context, a authz.Actor, name string, p KeypairPolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair-policy.create", name)
	defer end(&err)
	return s.createPolicy(ctx, a, name, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.InsertKeypairPolicy(ctx, name) },
		func(ctx context.Context, tx *store.Tx) error { return changeKeypairPolicy(ctx, tx, name, p) })
}

// DeleteKeypairPolicy deletes a keypair resource policy that no keypair has (superadmins).
func (s *Service) DeleteKeypairPolicy(ctx context.Context, a authz.Actor, name string) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair-policy.delete", name)
	defer end(&err)
	return s.deletePolicy(ctx, a, name, "keypairs", func(ctx context.Context, tx *store.Tx) (users []string, n int64, err error) {
		rows, err := tx.UsersOfKeypairPolicy(ctx, name)
		for _, r := range rows {
			users, n = append(users, r.Who), r.N
		}
		return users, n, err
	}, func(ctx context.Context, tx *store.Tx) (int64, error) { return tx.DeleteKeypairPolicy(ctx, name) })
}

// createPolicy inserts a policy and sets it.
func (s *Service) createPolicy(
	ctx context.Context, a authz.Actor, name string, insert func(context.Context, *store.Tx) (int64, error),
	set func(context.Context, *store.Tx) error,
) error {
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "make resource policies"); err != nil {
		return err
	}
	if name == "" || len(name) > maxPolicyName || store.Text(name) != name || strings.ContainsFunc(name, unprintable) {
		return fault.Invalidf("%.80q cannot be the name of a resource policy", name).
			WithNext("use 1 to %d bytes without spaces", maxPolicyName)
	}
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		n, err := insert(ctx, tx)
		if err != nil {
			return err
		}
		if n == 0 {
			return fault.Conflictf("there is a resource policy %s already", name).WithNext("choose another name, or change that one")
		}
		return set(ctx, tx)
	})
	if err != nil {
		return fmt.Errorf("make resource policy %s: %w", name, err)
	}
	return nil
}

// deletePolicy deletes a policy that nobody has; users are some of those who have it, and how many they are.
func (s *Service) deletePolicy(
	ctx context.Context, a authz.Actor, name, whom string,
	users func(context.Context, *store.Tx) ([]string, int64, error), remove func(context.Context, *store.Tx) (int64, error),
) error {
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "delete resource policies"); err != nil {
		return err
	}
	if name == Default {
		return fault.Conflictf("resource policy %s is what new ones get", name).WithNext("change it instead")
	}
	if store.Text(name) != name {
		return authz.NotFound(policyNoun, name)
	}
	inUse := func(who []string, n int64) error {
		more := ""
		if n > int64(len(who)) {
			more = fmt.Sprintf(" and %d more", n-int64(len(who)))
		}
		return fault.Conflictf("resource policy %s is in use by %s%s", name, strings.Join(who, ", "), more).
			WithNext("give these %s another policy first", whom)
	}
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		who, n, err := users(ctx, tx)
		if err != nil {
			return fmt.Errorf("look who uses it: %w", err)
		}
		if n > 0 {
			return inUse(who, n)
		}
		gone, err := remove(ctx, tx)
		if err == nil && gone == 0 {
			return authz.NotFound(policyNoun, name)
		}
		return err
	})
	if store.Dangling(err) { // somebody got it in this moment
		return fault.Conflictf("resource policy %s is in use", name).WithNext("give these %s another policy first", whom)
	}
	if err != nil {
		return fmt.Errorf("delete resource policy %s: %w", name, err)
	}
	return nil
}

// setLimits applies the properties to a row after checking them.
func setLimits(r *dbgen.KeypairResourcePolicy, p KeypairPolicyProps, kinds map[cluster.SlotName]cluster.SlotKind) error {
	if store.Set(&r.DefaultForUnspecified, p.DefaultForUnspecified); r.DefaultForUnspecified != "LIMITED" &&
		r.DefaultForUnspecified != "UNLIMITED" {
		return fault.Invalidf("default_for_unspecified is %q", r.DefaultForUnspecified).WithNext("use LIMITED or UNLIMITED")
	}
	for _, n := range []struct {
		name      string
		to        *int32
		from      *int
		low, high int
	}{
		{"max_session_lifetime", &r.MaxSessionLifetime, p.MaxSessionLifetime, 0, math.MaxInt32},
		{"max_concurrent_sessions", &r.MaxConcurrentSessions, p.MaxConcurrentSessions, 0, math.MaxInt32},
		{"max_concurrent_sftp_sessions", &r.MaxConcurrentSftpSessions, p.MaxConcurrentSFTP, 0, math.MaxInt32},
		{"max_containers_per_session", &r.MaxContainersPerSession, p.MaxContainers, 1, 10_000},
	} {
		if n.from == nil {
			continue
		}
		if *n.from < n.low || *n.from > n.high {
			return fault.Invalidf("%s must be from %d to %d, not %d", n.name, n.low, n.high, *n.from)
		}
		*n.to = int32(*n.from)
	}
	for _, n := range []struct {
		name string
		to   **int32
		from *int
		high int
	}{{"max_pending_session_count", &r.MaxPendingSessionCount, p.MaxPendingSessions, math.MaxInt32},
		{"max_priority", &r.MaxPriority, p.MaxPriority, 100}} {
		if n.from == nil {
			continue
		}
		if *n.from < -1 || *n.from > n.high {
			return fault.Invalidf("%s must be from 0 to %d, not %d", n.name, n.high, *n.from).WithNext("use -1 for no limit")
		}
		if *n.to = nil; *n.from >= 0 {
			*n.to = new(int32(*n.from))
		}
	}
	if p.IdleTimeout != nil {
		if *p.IdleTimeout < 0 {
			return fault.Invalidf("idle_timeout must not be negative")
		}
		r.IdleTimeout = int64(*p.IdleTimeout)
	}
	if p.AllowedHosts != nil {
		r.AllowedVfolderHosts = p.AllowedHosts
	}
	for _, t := range []struct {
		name string
		to   *cluster.Slots
		from map[string]string
	}{{"total_resource_slots", &r.TotalResourceSlots, p.TotalSlots},
		{"max_pending_session_resource_slots", &r.MaxPendingSessionResourceSlots, p.MaxPendingSlots}} {
		if t.from == nil {
			continue
		}
		slots, err := readLimits(t.name, t.from, kinds)
		if err != nil {
			return err
		}
		*t.to = slots
	}
	return nil
}

// readLimits reads amounts per slot as people write them; an empty one and "Infinity" are no limit. The name is the wire's, for errors.
func readLimits(name string, from map[string]string, kinds map[cluster.SlotName]cluster.SlotKind) (cluster.Slots, error) {
	out := cluster.Slots{}
	for slot, text := range from {
		if slot == "" || len(slot) > maxName || store.Text(slot) != slot {
			return nil, fault.Invalidf("%s: %.80q is no name of a slot", name, slot)
		}
		if text == "" || text == "Infinity" {
			continue
		}
		kind, ok := kinds[cluster.SlotName(slot)]
		if !ok {
			kind = cluster.SlotCount // of agents that may yet come
		}
		v, err := cluster.ParseAmount(kind, text)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", name, slot, err)
		}
		out[cluster.SlotName(slot)] = v
	}
	return out, nil
}
