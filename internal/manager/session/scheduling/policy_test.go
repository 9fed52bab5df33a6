package scheduling_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
)

// measured runs the loops with metrics and a planner.
func (b *bundle) measured(change func(*scheduling.Config)) (*scheduling.Planner, *prometheus.Registry) {
	b.t.Helper()
	cfg := scheduling.DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	registry, planner := prometheus.NewRegistry(), scheduling.NewPlanner(b.store, nil)
	log := slog.New(slog.NewTextHandler(b.t.Output(), nil))
	svc := leading(b.t, cfg, scheduling.Deps{Store: b.store, Log: log, Registry: registry, Planner: planner}, nil, "one")
	require.NoError(b.t, svc.Start(b.t.Context()))
	b.t.Cleanup(func() { _ = svc.Stop(context.Background()) })
	return planner, registry
}

func metric(t *testing.T, r *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := r.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// end ends a session as if its agent had reported it.
func (b *bundle) end(id cluster.SessionID) {
	b.t.Helper()
	require.NoError(b.t, b.store.Tx(b.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DB().Exec(ctx, `UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1`, string(id))
		if err == nil {
			_, err = tx.DB().Exec(ctx, `UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE id = $1`, string(id))
		}
		tx.Wake(store.TopicSchedule)
		return err
	}))
}

// owner adds a user with a keypair.
func (b *bundle) owner(name string) (key string) {
	b.t.Helper()
	id := uuid.NewString()
	b.exec(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, $2, $2 || '@x', 'default',
		'default')`, id, name)
	b.exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, '', $2, 'default')`, "KEY"+name, id)
	b.exec(`UPDATE users SET main_access_key = $2 WHERE id = $1`, id, "KEY"+name)
	return "KEY" + name
}

func (b *bundle) of(key string) string {
	return fmt.Sprintf("access_key = '%s', user_id = (SELECT user_id FROM keypairs WHERE access_key = '%s')", key, key)
}

// TestPoliciesChangeLive: fifo, lifo, something broken and fair-share, one after the other, without a restart.
func TestPoliciesChangeLive(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 1, 1<<40)
	busy, quiet := b.owner("busy"), b.owner("quiet")
	// The busy one used a core for a day, long before anybody looked.
	past := b.session(b.of(busy), 1)
	b.exec(`UPDATE kernels SET status = 'TERMINATED', started_at = now() - interval '3 days', `+
		`ended_at = now() - interval '2 days' WHERE session_id = $1`, string(past))
	b.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() - interval '2 days' WHERE id = $1`, string(past))
	planner, registry := b.measured(nil)

	first := b.session("", 1)
	b.becomes(first, "SCHEDULED", "")
	one, two, three := b.session(b.of(busy)+", created_at = now() - interval '3 minutes'", 1),
		b.session("created_at = now() - interval '2 minutes'", 1), b.session(b.of(quiet)+", created_at = now() - interval '1 minutes'", 1)
	for _, id := range []cluster.SessionID{one, two, three} {
		b.becomes(id, "PENDING", "capacity")
	}
	b.end(first)
	b.becomes(one, "SCHEDULED", "") // fifo

	set := func(scheduler, opts string) {
		b.exec(`UPDATE resource_groups SET scheduler = $1, scheduler_opts = $2`, scheduler, []byte(opts))
		b.store.Wake(store.TopicSchedule)
	}
	status := func(scheduler string, warned bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			st, err := planner.Status(t.Context())
			return err == nil && len(st) == 1 && st[0].Scheduler == scheduler && (st[0].Warning != "") == warned
		}, patience, 5*time.Millisecond)
	}
	set("lifo", `{}`)
	status("lifo", false)
	set("lifo", `{"preemption": {"enabled": "perhaps"}}`) // package resource would refuse it
	status("lifo", true)                                  // the last good policy stays
	b.end(one)
	b.becomes(three, "SCHEDULED", "") // lifo

	again := b.session(b.of(busy)+", created_at = now() - interval '5 minutes'", 1)
	later := b.session(b.of(quiet), 1)
	b.becomes(again, "PENDING", "capacity")
	b.becomes(later, "PENDING", "capacity")
	require.Eventually(t, func() bool { // the past has been added up
		var days int
		return b.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM usage_daily WHERE slot = 'cpu' AND amount > 0`).Scan(&days) == nil &&
			days == 2
	}, patience, 5*time.Millisecond)
	var amount float64
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT sum(amount)::float8 FROM usage_daily WHERE slot = 'cpu'`).Scan(&amount))
	require.InDelta(t, 86400*1000, amount, 1)
	set("fair-share", `{}`)
	status("fair-share", false)
	b.exec(`UPDATE sessions SET priority = 0 WHERE id = $1`, string(two)) // out of the way
	b.end(three)
	b.becomes(later, "SCHEDULED", "") // although the busy one's is older
	require.Zero(t, metric(t, registry, "berth_scheduler_drift_total"))
}

// TestUseIsCountedOnce: whatever stops between two steps, and whoever goes on.
func TestUseIsCountedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	past := b.session("", 2)
	b.exec(`UPDATE kernels SET status = 'TERMINATED', started_at = now() - interval '10 days', `+
		`ended_at = now() - interval '1 day' WHERE session_id = $1`, string(past))
	b.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE id = $1`, string(past))
	used := func() (amount float64) {
		require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT coalesce(sum(amount), 0)::float8 FROM usage_daily WHERE slot = 'cpu'`).
			Scan(&amount))
		return amount
	}
	for i := range 5 { // leaders that stop as soon as they have done something
		svc := leading(t, scheduling.DefaultConfig(), scheduling.Deps{Store: b.store, Log: slog.New(slog.DiscardHandler)}, nil, fmt.Sprint(i))
		before := used()
		require.NoError(t, svc.Start(t.Context()))
		require.Eventually(t, func() bool { return used() > before || before >= 2*9*86400*1000-1 }, patience, time.Millisecond)
		require.NoError(t, svc.Stop(context.Background()))
	}
	b.lead("last")
	require.Eventually(t, func() bool { return used() >= 2*9*86400*1000-1 }, patience, 5*time.Millisecond)
	require.InDelta(t, 2*9*86400*1000, used(), 1)
}

// TestResyncsFindNothing: full comparisons beside a queue that moves find nothing to correct.
func TestResyncsFindNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 7`)
	for i := range 4 {
		b.agent(fmt.Sprint("a", i), 4, 1<<40)
	}
	_, registry := b.measured(func(c *scheduling.Config) { c.Resync = time.Second })
	var ids []cluster.SessionID
	for i := range 60 {
		ids = append(ids, b.session("", 1+i%3))
		if i%2 == 1 {
			id := ids[i/2]
			require.Eventually(t, func() bool { s, info := b.status(id); return s == "SCHEDULED" || info != "" }, patience, time.Millisecond)
			b.end(id)
		}
	}
	// Comparisons take a share of the time at most, so on a busy machine they come seldom.
	require.Eventually(t, func() bool { return metric(t, registry, "berth_scheduler_resyncs_total") >= 3 }, 2*patience, 5*time.Millisecond)
	require.Zero(t, metric(t, registry, "berth_scheduler_drift_total"))
}

// TestConcurrencyAndQuotaWait: a limit of what lives holds a session back, not its creation, and says which one.
func TestConcurrencyAndQuotaWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	b.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 1`)
	planner, _ := b.measured(nil)
	first := b.session("", 1)
	b.becomes(first, "SCHEDULED", "")
	second := b.session("", 2)
	b.becomes(second, "PENDING", "concurrency")
	b.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 0`)
	b.exec(`UPDATE projects SET total_resource_slots = '{"cpu": 2000}'`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(second, "PENDING", "quota")
	e, err := planner.Explain(t.Context(), second)
	require.NoError(t, err)
	require.Contains(t, e.Text, "default")
	b.exec(`UPDATE projects SET total_resource_slots = '{"cpu": 3000, "toy": 0}'`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(second, "SCHEDULED", "")
}

// TestAnInactiveOwnerStartsNothing: what waits goes on to wait while its domain, project, user or keypair is not active, says so, and
// starts when the owner is active again. What runs is not touched.
func TestAnInactiveOwnerStartsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	planner, _ := b.measured(nil)
	b.agent("a1", 8, 1<<40)
	runs := b.session("", 1)
	b.becomes(runs, "SCHEDULED", "")
	for _, tt := range []struct{ off, on, says string }{
		{`UPDATE projects SET is_active = false WHERE name = 'default'`, `UPDATE projects SET is_active = true`, "project default is not active"},
		{`UPDATE domains SET is_active = false WHERE name = 'default'`, `UPDATE domains SET is_active = true`, "domain default is not active"},
		{`UPDATE users SET status = 'inactive'`, `UPDATE users SET status = 'active'`, "user " + b.cred.Email + " is not active"},
		{`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET is_active = true`,
			"keypair " + string(b.cred.AccessKey) + " is not active"},
	} {
		b.exec(tt.off)
		waits := b.session("", 1)
		system := b.session("type = 'system'", 1)
		for _, id := range []cluster.SessionID{waits, system} {
			b.becomes(id, "PENDING", "inactive")
			e, err := planner.Explain(t.Context(), id)
			require.NoError(t, err)
			require.Equal(t, "inactive", e.Reason)
			require.Contains(t, e.Text, tt.says)
		}
		b.exec(tt.on)
		b.store.Wake(store.TopicSchedule)
		b.becomes(waits, "SCHEDULED", "")
		b.becomes(system, "SCHEDULED", "")
		b.end(waits)
		b.end(system)
	}
	s, _ := b.status(runs)
	require.Equal(t, "SCHEDULED", s)

	// A keypair that another one replaced and that has ended holds nothing back: its sessions are the other one's now.
	b.exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) SELECT 'NEXT', '', user_id, resource_policy
		FROM keypairs`)
	b.exec(`UPDATE keypairs SET is_active = false, replaced_by = 'NEXT' WHERE access_key <> 'NEXT'`)
	b.becomes(b.session("", 1), "SCHEDULED", "")
}

// TestWhatWaitsOfAnInactiveProjectKeepsNothing: a guarantee is kept for who waits for it, and not for who cannot start.
func TestWhatWaitsOfAnInactiveProjectKeepsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	var domain string
	sub := uuid.NewString()
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT domain_name FROM projects WHERE name = 'default'`).Scan(&domain))
	b.exec(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ($1, 'vision', 'default', 'default')`, sub)
	b.exec(`INSERT INTO quotas (id, domain_name, guaranteed, most) VALUES ($1, $2, '{}', '{"cpu": 4000}')`, uuid.NewString(), domain)
	b.exec(`INSERT INTO quotas (id, domain_name, project_id, guaranteed, most) VALUES ($1, $2, $3, '{"cpu": 4000}', '{}')`, uuid.NewString(),
		domain, sub)
	b.measured(nil)
	first := b.session("", 2)
	b.becomes(first, "SCHEDULED", "")
	assured := b.session("project_id = '"+sub+"'", 4)
	b.becomes(assured, "PENDING", "quota")
	borrower := b.session("", 2)
	b.becomes(borrower, "PENDING", "quota")
	b.exec(`UPDATE projects SET is_active = false WHERE id = $1`, sub)
	b.store.Wake(store.TopicSchedule)
	b.becomes(borrower, "SCHEDULED", "")
	b.becomes(assured, "PENDING", "inactive")
	b.exec(`UPDATE projects SET is_active = true WHERE id = $1`, sub)
	b.store.Wake(store.TopicSchedule)
	b.end(first)
	later := b.session("", 1)
	b.becomes(later, "PENDING", "quota")
	b.end(borrower)
	b.becomes(assured, "SCHEDULED", "")
}

// TestPreemption: a session of higher priority ends one of lower priority and gets its place.
func TestPreemption(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 2, 1<<40)
	b.exec(`UPDATE resource_groups SET scheduler_opts = '{"preemption": {"enabled": true}}'`)
	b.measured(nil)
	low, keep := b.session("priority = 1", 1), b.session("priority = 1, preemptible = false", 1)
	b.becomes(low, "SCHEDULED", "")
	b.becomes(keep, "SCHEDULED", "")
	b.exec(`UPDATE kernels SET status = 'RUNNING', started_at = now()`)
	b.exec(`UPDATE sessions SET status = 'RUNNING', started_at = now()`)
	b.store.Wake(store.TopicSchedule)
	urgent := b.session("priority = 50", 1)
	b.becomes(low, "TERMINATING", string(cluster.ReasonPreempted))
	b.becomes(urgent, "PENDING", "preempting")
	other := b.session("priority = 2", 1) // comes later and must not take the place
	b.becomes(other, "PENDING", "")
	b.end(low)
	b.becomes(urgent, "SCHEDULED", "")
	s, _ := b.status(keep)
	require.Equal(t, "RUNNING", s)
}

// TestExplanationsAreNotRewritten: thousands of equal sessions are told once, a bounded number at a time, and not
// again when only their numbers change.
func TestExplanationsAreNotRewritten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 2, 1<<40)
	b.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 0`)
	const waiting = 600
	require.NoError(t, b.store.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DB().Exec(ctx, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group,
			image, status, requested_slots, cluster_size)
			SELECT gen_random_uuid(), 'n' || i, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'PENDING', '{}', 1
			FROM keypairs k, projects p, generate_series(1, $2) i WHERE k.access_key = $1
			AND p.name = 'default'`, string(b.cred.AccessKey), waiting)
		if err == nil {
			_, err = tx.DB().Exec(ctx, `INSERT INTO kernels (id, session_id, image, architecture, status, `+
				`requested_slots) SELECT gen_random_uuid(), id, 'img', 'x86_64', 'PENDING', '{"cpu": 4000}' FROM sessions`)
		}
		return err
	}))
	planner, _ := b.measured(nil)
	told := func() (n int) {
		require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions WHERE status_info = 'too-big'`).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool { return told() == waiting }, patience, 5*time.Millisecond)
	var largest int
	require.NoError(t, b.store.Pool().QueryRow(t.Context(),
		`SELECT max(n) FROM (SELECT count(*) n FROM sessions WHERE status_info = 'too-big' GROUP BY xmin::text) commits`).Scan(&largest))
	require.Less(t, largest, waiting, "a bounded number at a time")
	written := func() (at string) {
		require.NoError(t, b.store.Pool().QueryRow(t.Context(),
			`SELECT string_agg(xmin::text, ',' ORDER BY id) FROM sessions WHERE requested_slots = '{}' AND status_info = 'too-big'`).Scan(&at))
		return at
	}
	before := written()
	passed := func() time.Time {
		st, err := planner.Status(t.Context())
		require.NoError(t, err)
		return st[0].LastPass
	}
	for range 20 { // turns in which everything is looked at
		now := passed()
		small := b.session("", 1)
		require.Eventually(t, func() bool { s, _ := b.status(small); return s == "SCHEDULED" && passed().After(now) }, patience, time.Millisecond)
		b.end(small)
	}
	require.Equal(t, before, written())
}

// TestRescheduling: in this mode a victim goes back into the queue once it has stopped, as if it had never run.
func TestRescheduling(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 2, 1<<40)
	b.exec(`UPDATE resource_groups SET scheduler_opts = '{"preemption": {"enabled": true, "mode": "reschedule"}}'`)
	_, registry := b.measured(func(c *scheduling.Config) { c.Resync = time.Second })
	low := b.session("priority = 1, type = 'batch', startup_command = 'x'", 1, 1)
	b.becomes(low, "SCHEDULED", "")
	b.exec(`UPDATE kernels SET status = 'RUNNING', started_at = now()`)
	b.exec(`UPDATE sessions SET status = 'RUNNING', started_at = now()`)
	b.store.Wake(store.TopicSchedule)
	urgent := b.session("priority = 50", 2)
	b.becomes(low, "TERMINATING", string(cluster.ReasonRescheduled))
	stopped := func(id cluster.SessionID, rank int) { // what the agent's tombstone does
		require.NoError(t, b.store.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
			l, err := tx.LockOne(ctx, id)
			if err != nil {
				return err
			}
			if err := l.SetResult(ctx, cluster.ResultFailure, cluster.ReasonTaskFailed, nil); err != nil {
				return err
			}
			if err := l.Kernels[rank].End(ctx, store.KernelMove{To: cluster.Terminated, Reason: cluster.ReasonTaskFailed}); err != nil {
				return err
			}
			return l.Settle(ctx, cluster.ReasonTaskFailed, "")
		}))
	}
	stopped(low, 1)
	b.becomes(low, "TERMINATING", "")
	stopped(low, 0)
	b.becomes(urgent, "SCHEDULED", "")
	b.becomes(low, "PENDING", "capacity")
	var result, started string
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT result, coalesce(started_at::text, '') FROM sessions WHERE id = $1`,
		string(low)).Scan(&result, &started))
	require.Equal(t, "UNDEFINED", result)
	require.Empty(t, started)
	b.end(urgent)
	b.becomes(low, "SCHEDULED", "")

	// Whoever ends such a session while it stops ends it for good.
	b.exec(`UPDATE kernels SET status = 'RUNNING', started_at = now() WHERE session_id = $1`, string(low))
	b.exec(`UPDATE sessions SET status = 'RUNNING', started_at = now() WHERE id = $1`, string(low))
	b.store.Wake(store.TopicSchedule)
	next := b.session("priority = 50", 2)
	b.becomes(low, "TERMINATING", string(cluster.ReasonRescheduled))
	require.NoError(t, b.store.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, low)
		if err != nil {
			return err
		}
		if err := l.Stop(ctx, cluster.ReasonForced, "", true); err != nil {
			return err
		}
		return l.Settle(ctx, cluster.ReasonForced, "")
	}))
	b.becomes(low, "TERMINATED", string(cluster.ReasonForced))
	b.becomes(next, "PENDING", "capacity") // its agent has not said that the slots are free
	b.exec(`DELETE FROM kernel_removals`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(next, "SCHEDULED", "")
	resyncs := metric(t, registry, "berth_scheduler_resyncs_total")
	require.Eventually(t, func() bool { return metric(t, registry, "berth_scheduler_resyncs_total") > resyncs }, 2*patience,
		5*time.Millisecond, "the last one may have taken long, and each takes a fiftieth of the time at most")
	require.Zero(t, metric(t, registry, "berth_scheduler_drift_total"))
}

// TestHierarchicalQuotas: a level of the tree keeps a session waiting and is named; what a sub-project is guaranteed is lent until somebody
// waits for it; a lower limit ends nothing.
func TestHierarchicalQuotas(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 16, 1<<40)
	var above string
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT id::text FROM projects WHERE name = 'default'`).Scan(&above))
	sub := uuid.NewString()
	b.exec(`INSERT INTO projects (id, name, domain_name, resource_policy, parent_id) VALUES ($1, 'vision', 'default', 'default', $2)`,
		sub, above)
	set := func(project string, guaranteed, most string) {
		b.exec(`DELETE FROM quotas WHERE project_id = $1`, project)
		b.exec(`INSERT INTO quotas (id, domain_name, project_id, guaranteed, most) VALUES ($1, 'default', $2, $3, $4)`,
			uuid.NewString(), project, guaranteed, most)
		b.store.Wake(store.TopicSchedule)
	}
	set(above, `{}`, `{"cpu": 4000}`)
	planner, _ := b.measured(nil)
	first := b.session("", 3)
	b.becomes(first, "SCHEDULED", "")
	second := b.session("", 2)
	b.becomes(second, "PENDING", "quota")
	e, err := planner.Explain(t.Context(), second)
	require.NoError(t, err)
	require.Equal(t, "default/default limit 4 cpu, 3 cpu in use, and it asks for 2 cpu", e.Text)

	// The sub-project's guarantee goes first, although its session is the younger one.
	set(sub, `{"cpu": 2000}`, `{}`)
	third := b.session("", 2)
	b.exec(`UPDATE sessions SET project_id = $2 WHERE id = $1`, string(third), sub)
	b.store.Wake(store.TopicSchedule)
	b.becomes(third, "PENDING", "quota")
	b.end(first)
	b.becomes(third, "SCHEDULED", "")
	b.becomes(second, "SCHEDULED", "")

	// Lower than what is used: nothing ends, and nothing more starts.
	set(above, `{}`, `{"cpu": 1000}`)
	fourth := b.session("", 1)
	b.becomes(fourth, "PENDING", "quota")
	b.becomes(third, "SCHEDULED", "")
	b.exec(`DELETE FROM quotas`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(fourth, "SCHEDULED", "")
}
