package tenancy

import (
	"context"
	"fmt"
	"math"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// KeypairPolicyProps are what administrators set of a keypair resource policy; nil means no change.
type KeypairPolicyProps struct {
	DefaultForUnspecified *string
	// TotalSlots and MaxPendingSlots are amounts as written, per slot; a slot that is not named is unlimited.
	TotalSlots, MaxPendingSlots map[string]string
	MaxSessionLifetime          *int
	MaxConcurrentSessions       *int
	MaxConcurrentSFTP           *int
	MaxPendingSessions          *int
	MaxPriority                 *int
	MaxContainers               *int
	IdleTimeout                 *int
	AllowedHosts                map[string]any
}

// ModifyKeypairPolicy changes what keypairs of a policy may hold (superadmins). Sessions that run stay; waiting ones meet
// the new limits in the next scheduling pass.
func (s *Service) ModifyKeypairPolicy(ctx context.Context, a authz.Actor, name string, p KeypairPolicyProps) (err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "keypair-policy.modify", name)
	defer end(&err)
	if err := authz.Policies.Need(a, authz.Administer, authz.Object{}, "change resource policies"); err != nil {
		return err
	}
	return s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		row, err := tx.LockKeypairPolicy(ctx, name)
		if store.Missing(err) {
			return authz.NotFound(policyNoun, name)
		}
		if err != nil {
			return fmt.Errorf("find resource policy %s: %w", name, err)
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
	})
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
		if *n.from < 0 || *n.from > n.high {
			return fault.Invalidf("%s must be from 0 to %d, not %d", n.name, n.high, *n.from)
		}
		*n.to = new(int32(*n.from))
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
		slots := cluster.Slots{}
		for slot, text := range t.from {
			if text == "" || text == "Infinity" {
				continue
			}
			kind, ok := kinds[cluster.SlotName(slot)]
			if !ok {
				kind = cluster.SlotCount // of agents that may yet come
			}
			v, err := cluster.ParseAmount(kind, text)
			if err != nil {
				return fmt.Errorf("%s of %s: %w", t.name, slot, err)
			}
			slots[cluster.SlotName(slot)] = v
		}
		*t.to = slots
	}
	return nil
}
