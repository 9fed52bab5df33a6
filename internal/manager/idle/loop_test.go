package idle_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

// idleSite is a database with the idle loop of one or more managers, and what they know of the use of kernels.
type idleSite struct {
	t     *testing.T
	store *store.Store
	world *managertest.World
	cred  tenancy.Credentials

	mu      sync.Mutex
	usage   map[cluster.KernelID][]rule.Sample
	busy    map[cluster.KernelID]error // nil value: busy
	windows []time.Duration
}

var errUnreachable = errors.New("unreachable")

var idleStart = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newIdleSite(t *testing.T) *idleSite {
	t.Helper()
	s := storetest.New(t)
	w := managertest.On(t, managertest.Deps(t, s))
	x := &idleSite{t: t, store: s, world: w, cred: w.Creds, usage: map[cluster.KernelID][]rule.Sample{}, busy: map[cluster.KernelID]error{}}
	x.exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok) VALUES ('a1', 'ALIVE', 'default', 'x86_64', true)`)
	x.exec(`UPDATE keypair_resource_policies SET idle_timeout = 0`)
	return x
}

func (x *idleSite) exec(sql string, args ...any) {
	x.t.Helper()
	_, err := x.store.Pool().Exec(x.t.Context(), sql, args...)
	require.NoError(x.t, err)
}

func (x *idleSite) text(sql string, args ...any) (out string) {
	x.t.Helper()
	require.NoError(x.t, x.store.Pool().QueryRow(x.t.Context(), sql, args...).Scan(&out))
	return out
}

func (x *idleSite) Usage(_ context.Context, kernels []cluster.KernelID, _ time.Duration) map[cluster.KernelID][]rule.Sample {
	x.mu.Lock()
	defer x.mu.Unlock()
	out := map[cluster.KernelID][]rule.Sample{}
	for _, k := range kernels {
		if s, ok := x.usage[k]; ok {
			out[k] = s
		}
	}
	return out
}

func (x *idleSite) KeepUsage(_ context.Context, window time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.windows = append(x.windows, window)
}

func (x *idleSite) isBusy(_ context.Context, _ cluster.AgentID, k cluster.KernelID) (bool, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	err, ok := x.busy[k]
	return ok && err == nil, err
}

// looker is one manager's loop.
type looker struct {
	look func(ctx context.Context, now time.Time, full bool) (time.Time, error)
}

// manager makes the loop of a manager that has just become the leader.
func (x *idleSite) manager(holder string) looker {
	x.t.Helper()
	svc, err := idle.New(idle.Deps{Store: x.store, Clock: time.Now, Tenancy: x.world.Tenancy, Sessions: x.world.Sessions, Usage: x,
		Log: slog.New(slog.NewTextHandler(x.t.Output(), nil))})
	require.NoError(x.t, err)
	var token int64
	require.NoError(x.t, x.store.Tx(x.t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, holder)
		return err
	}))
	term := reconcile.NewTerm(x.store, token, holder)
	return looker{func(ctx context.Context, now time.Time, full bool) (time.Time, error) {
		return svc.LookOnce(ctx, idle.LoopDeps{Usage: x, Busy: x.isBusy}, term, now, full)
	}}
}

// session inserts one that runs since idleStart.
func (x *idleSite) session(typ string) (cluster.SessionID, cluster.KernelID) {
	x.t.Helper()
	id, kernel := uuid.NewString(), uuid.NewString()
	x.exec(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
		requested_slots, started_at, startup_command)
		SELECT $1::uuid, $1::uuid::text, $3, 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'RUNNING', '{}', $4, 'x'
		FROM keypairs k, projects p WHERE k.access_key = $2 AND p.name = 'default'`, id, string(x.cred.AccessKey), typ, idleStart)
	slots, err := json.Marshal(cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 30)})
	require.NoError(x.t, err)
	x.exec(`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, agent_id, started_at) VALUES ($1, $2,
		'img', `+
		`'x86_64', 'RUNNING', $3, 'a1', $4)`,
		kernel, id, slots, idleStart)
	return cluster.SessionID(id), cluster.KernelID(kernel)
}

func (x *idleSite) checker(name, typ, spec string, warn int, dry bool) {
	x.t.Helper()
	x.exec(`INSERT INTO idle_checkers (name, type, target_session_types, warn_before, dry_run, spec) VALUES ($1, $2,
		'{interactive,batch}', `+
		`$3, $4, $5)`, name, typ, warn, dry, spec)
	x.exec(`INSERT INTO idle_checker_bindings (checker, resource_group) VALUES ($1, 'default')`, name)
}

func (x *idleSite) status(id cluster.SessionID) string {
	return x.text(`SELECT status FROM sessions WHERE id = $1`, string(id))
}

func (x *idleSite) warnings(id cluster.SessionID) string {
	return x.text(`SELECT count(*)::text FROM session_events WHERE session_id = $1 AND event = 'session_idle_warning'`, string(id))
}

func (x *idleSite) look(l looker, after time.Duration) time.Time {
	x.t.Helper()
	next, err := l.look(x.t.Context(), idleStart.Add(after), true)
	require.NoError(x.t, err)
	return next.UTC()
}

func TestIdleSessionsAreWarnedOnceAndEndedOnceAcrossLeaders(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.exec(`UPDATE keypair_resource_policies SET max_session_lifetime = 7200, idle_timeout = 3600`)
	used, _ := x.session("interactive")
	batch, _ := x.session("batch")
	idleOne, kernel := x.session("interactive")
	one := x.manager("one")

	require.Equal(t, idleStart.Add(55*time.Minute), x.look(one, time.Minute), "nothing happens before the first warning")
	x.exec(`INSERT INTO session_accesses VALUES ($1, $2)`, string(used), idleStart.Add(50*time.Minute))
	require.Equal(t, idleStart.Add(time.Hour), x.look(one, 55*time.Minute))
	x.look(one, 56*time.Minute)
	require.Equal(t, "1", x.warnings(idleOne))
	require.Equal(t, "0", x.warnings(used))
	require.Equal(t, "0", x.warnings(batch))
	require.Contains(t, x.text(`SELECT detail FROM session_events WHERE session_id = $1 AND event <> ''`, string(idleOne)),
		"idle check policy:network_timeout (keypair policy default): nobody used it for 55m, the limit is 1h; "+
			"the session ends at 2026-03-01T13:00:00Z unless it is used")

	// Another manager takes over: it tells nobody twice and ends at the time that was announced.
	two := x.manager("two")
	_, err := one.look(t.Context(), idleStart.Add(61*time.Minute), true)
	require.Error(t, err, "an older leader does nothing")
	require.Equal(t, "RUNNING", x.status(idleOne))
	x.look(two, 59*time.Minute)
	require.Equal(t, "RUNNING", x.status(idleOne))
	x.look(two, time.Hour)
	x.look(two, time.Hour+time.Minute)
	require.Equal(t, "TERMINATING", x.status(idleOne))
	require.Equal(t, "1", x.warnings(idleOne))
	require.Equal(t, "1", x.text(`SELECT count(*)::text FROM session_events WHERE session_id = $1 AND event = 'session_terminating' AND `+
		`reason = 'idle-timeout'`, string(idleOne)))
	require.Equal(t, "idle-timeout", x.text(`SELECT stop_reason FROM kernels WHERE id = $1`, string(kernel)))
	var e rule.Evidence
	require.NoError(t, json.Unmarshal([]byte(x.text(`SELECT status_data->>'idle' FROM sessions WHERE id = $1`, string(idleOne))), &e))
	warned := idleStart.Add(55 * time.Minute)
	require.Equal(t, rule.Evidence{Checker: "policy:network_timeout", Type: rule.Network, Source: "keypair policy default",
		Reason: cluster.ReasonIdleTimeout,
		Why:    "nobody used it for 1h, the limit is 1h", By: "two", At: idleStart.Add(time.Hour), WarnedAt: &warned,
		Deadline: idleStart.Add(time.Hour),
		Since:    idleStart, Limit: 3600}, e)
	require.Equal(t, "RUNNING", x.status(used))
	require.Equal(t, "RUNNING", x.status(batch))

	// Use takes a warning back; the next one is told anew.
	x.look(two, 106*time.Minute)
	require.Equal(t, "1", x.warnings(used))
	x.exec(`UPDATE session_accesses SET last_access = $1`, idleStart.Add(107*time.Minute))
	x.look(two, 108*time.Minute)
	require.Equal(t, "0", x.text(`SELECT count(*)::text FROM session_idle_warnings WHERE session_id = $1 AND checker = `+
		`'policy:network_timeout'`, string(used)))

	// The lifetime holds for batch sessions and for those in use.
	x.look(two, 116*time.Minute)
	require.Equal(t, "2", x.warnings(used))
	require.Equal(t, "1", x.warnings(batch))
	x.look(two, 2*time.Hour)
	require.Equal(t, "RUNNING", x.status(batch), "five minutes were promised")
	x.look(two, 121*time.Minute)
	require.Equal(t, "TERMINATING", x.status(batch))
	require.Equal(t, "idle-session-lifetime", x.text(`SELECT status_info FROM sessions WHERE id = $1`, string(used)))

	// What was kept for them goes when they have ended.
	x.exec(`UPDATE kernels SET status = 'TERMINATED', ended_at = now()`)
	x.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now()`)
	x.look(two, 3*time.Hour)
	require.Equal(t, "0", x.text(`SELECT ((SELECT count(*) FROM session_accesses) + (SELECT count(*) FROM session_idle_warnings))::text`))
}

func TestBusyAndUnreachableRunnersAreNotUnused(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.checker("net", "network_timeout", `{"max_network_inactivity_seconds": 600}`, 0, false)
	busy, busyKernel := x.session("interactive")
	silent, silentKernel := x.session("interactive")
	lost, lostKernel := x.session("interactive")
	free, _ := x.session("interactive")
	x.busy[busyKernel], x.busy[silentKernel] = nil, errUnreachable
	x.exec(`UPDATE kernels SET status = 'LOST', status_before_lost = 'RUNNING' WHERE id = $1`, string(lostKernel))
	l := x.manager("one")
	x.look(l, time.Hour)
	require.Equal(t, "RUNNING", x.status(busy))
	require.Equal(t, "RUNNING", x.status(silent), "what does not answer is not unused")
	require.Equal(t, "RUNNING", x.status(lost))
	require.Equal(t, "TERMINATING", x.status(free))

	x.mu.Lock()
	clear(x.busy)
	x.mu.Unlock()
	x.look(l, time.Hour+9*time.Minute)
	require.Equal(t, "RUNNING", x.status(busy), "executing counts as use")
	require.Equal(t, "TERMINATING", x.status(silent))
	x.look(l, time.Hour+10*time.Minute)
	require.Equal(t, "TERMINATING", x.status(busy))

	// The lifetime does not depend on what the runner says.
	old, oldKernel := x.session("interactive")
	x.busy[oldKernel] = errUnreachable
	x.checker("life", "session_lifetime", `{"max_lifetime_seconds": 3600}`, 0, false)
	x.look(l, 2*time.Hour)
	require.Equal(t, "idle-session-lifetime", x.text(`SELECT status_info FROM sessions WHERE id = $1`, string(old)))
}

func TestUtilization(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.checker("use", "utilization", `{"time_window_seconds": 600, "thresholds_check_operator": "and",
		"resource_thresholds": {"cpu_util": 5,`+
		` "mem": 50}}`, 120, false)
	x.checker("strict", "utilization", `{"time_window_seconds": 300, "thresholds_check_operator": "or", "resource_thresholds": {"mem": 50}}`,
		0, true)
	x.checker("broken", "utilization", `{}`, 0, false)
	idler, idlerKernel := x.session("interactive")
	worker, workerKernel := x.session("batch")
	dark, _ := x.session("interactive")
	measure := func(k cluster.KernelID, cpu float64) {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.usage[k] = nil
		for b := range int64(180) {
			x.usage[k] = append(x.usage[k], rule.Sample{Bucket: rule.BucketOf(idleStart) + b,
				Values: map[string]float64{"cpu_util": cpu, "mem": 1 << 20}})
		}
	}
	measure(idlerKernel, 1)
	measure(workerKernel, 60)
	l := x.manager("one")
	x.look(l, 9*time.Minute)
	require.Equal(t, "0", x.warnings(idler), "younger than the window")
	x.look(l, 10*time.Minute)
	require.Equal(t, "1", x.warnings(idler))
	_, err := l.look(t.Context(), idleStart.Add(12*time.Minute), false)
	require.NoError(t, err)
	require.Equal(t, "RUNNING", x.status(idler), "a look without measurements decides nothing about them")
	require.Equal(t, "1", x.text(`SELECT count(*)::text FROM session_idle_warnings`))
	two := x.manager("two")
	x.look(two, 12*time.Minute)
	require.Equal(t, "TERMINATING", x.status(idler))
	require.Equal(t, "idle-utilization", x.text(`SELECT status_info FROM sessions WHERE id = $1`, string(idler)))
	var e rule.Evidence
	require.NoError(t, json.Unmarshal([]byte(x.text(`SELECT status_data->>'idle' FROM sessions WHERE id = $1`, string(idler))), &e))
	require.Equal(t, "resource group default", e.Source)
	require.Len(t, e.Resources, 2)
	require.InDelta(t, 1, *e.Resources[0].Percent, 1e-9)
	require.Equal(t, 600.0, e.Window)
	x.look(two, 100*time.Minute)
	require.Equal(t, "RUNNING", x.status(worker), "busy, and the other check only reports")
	require.Equal(t, "RUNNING", x.status(dark), "no data is not idle")
	require.Equal(t, []time.Duration{600 * time.Second}, x.windows[:1])

	// It becomes idle, is warned, and works again: the warning is taken back.
	measure(workerKernel, 0)
	x.look(two, 101*time.Minute)
	require.Equal(t, "1", x.warnings(worker))
	measure(workerKernel, 60)
	x.look(two, 103*time.Minute)
	require.Equal(t, "RUNNING", x.status(worker))
	require.Equal(t, "0", x.text(`SELECT count(*)::text FROM session_idle_warnings WHERE session_id = $1`, string(worker)))
}

func TestKeepAlive(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.checker("net", "network_timeout", `{"max_network_inactivity_seconds": 600}`, 0, false)
	x.checker("life", "session_lifetime", `{"max_lifetime_seconds": 7200}`, 0, false)
	x.checker("dry", "session_lifetime", `{"max_lifetime_seconds": 60}`, 10, true)
	byOwner, _ := x.session("interactive")
	byAdmin, _ := x.session("interactive")
	for id, admin := range map[cluster.SessionID]bool{byOwner: false, byAdmin: true} {
		x.exec(`INSERT INTO keep_alive_grants (session_id, until, by_admin, granted_by) VALUES ($1, $2, $3, 'x')`, string(id),
			idleStart.Add(4*time.Hour), admin)
	}
	l := x.manager("one")
	x.look(l, time.Hour)
	require.Equal(t, "RUNNING", x.status(byOwner))
	x.look(l, 3*time.Hour)
	require.Equal(t, "idle-session-lifetime", x.text(`SELECT status_info FROM sessions WHERE id = $1`, string(byOwner)))
	require.Equal(t, "RUNNING", x.status(byAdmin))
	require.Equal(t, "1", x.text(`SELECT count(*)::text FROM session_idle_warnings WHERE dry_run`),
		"kept alive by an administrator: not even reported")
	require.Equal(t, "0", x.warnings(byOwner), "a dry run tells nobody")
	x.exec(`UPDATE keep_alive_grants SET by_admin = true, until = $1`, idleStart.Add(200*time.Minute))
	x.look(l, 205*time.Minute)
	require.Equal(t, "TERMINATING", x.status(byAdmin))
}

// steadyClock is a clock whose time the test sets; timers fire when it passes them.
type steadyClock struct {
	chassis.Clock
	mu     sync.Mutex
	now    time.Time
	timers []*steadyTimer
}

type steadyTimer struct {
	clock *steadyClock
	at    time.Time
	c     chan time.Time
}

func (c *steadyClock) Now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.now }

func (c *steadyClock) NewTimer(d time.Duration) chassis.Timer {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := &steadyTimer{clock: c, at: c.now.Add(d), c: make(chan time.Time, 1)}
	if c.timers = append(c.timers, t); d <= 0 {
		t.c <- c.now
	}
	return t
}

func (t *steadyTimer) C() <-chan time.Time { return t.c }
func (t *steadyTimer) Stop() bool          { return true }

func (t *steadyTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	select {
	case <-t.c:
	default:
	}
	if t.at = t.clock.now.Add(d); d <= 0 {
		t.c <- t.clock.now
	}
	return true
}

func (c *steadyClock) set(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	for _, t := range c.timers {
		if !t.at.After(now) {
			select {
			case t.c <- now:
			default:
			}
		}
	}
}

func TestTheLoopWakesForDeadlines(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.exec(`UPDATE keypair_resource_policies SET idle_timeout = 3600`)
	id, _ := x.session("interactive")
	clock := &steadyClock{Clock: chassis.RealClock(), now: idleStart}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	ends, err := idle.New(idle.Deps{Store: x.store, Clock: clock.Now, Tenancy: x.world.Tenancy, Sessions: x.world.Sessions, Usage: x,
		Log: log})
	require.NoError(t, err)
	l, err := reconcile.New(reconcile.DefaultConfig(), reconcile.Deps{Store: x.store, Clock: clock, Holder: "one", Log: log,
		Loops: ends.Loops(idle.LoopDeps{Clock: clock, Usage: x, Busy: x.isBusy})})
	require.NoError(t, err)
	svc := l.Service()
	require.NoError(t, svc.Start(t.Context()))
	t.Cleanup(func() { _ = svc.Stop(context.Background()) })
	reach := func(after time.Duration, what string, ok func() bool) {
		t.Helper()
		// The loop may be between two looks: time goes on in small steps until it has seen it.
		require.Eventually(t, func() bool {
			clock.set(clock.Now().Add(time.Millisecond))
			if clock.Now().Before(idleStart.Add(after)) {
				clock.set(idleStart.Add(after))
			}
			clock.set(clock.Now().Add(time.Second))
			return ok()
		}, time.Minute, 5*time.Millisecond, what)
	}
	reach(55*time.Minute, "warned", func() bool { return x.warnings(id) == "1" })
	reach(time.Hour, "ended", func() bool { return x.status(id) == "TERMINATING" })
	require.Equal(t, "1", x.warnings(id))
}

// A session whose kernel works is in use, although nobody typed anything; one that waits is not.
func TestWorkIsUse(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	busy, busyKernel := x.session("interactive")
	waits, waitsKernel := x.session("interactive")
	uses := &session.Uses{}
	now := idleStart.Add(time.Hour)
	w := idle.NewWork(nil, uses, func() time.Time { return now })
	w.Put(t.Context(), "a1", nil, map[cluster.KernelID]map[string]float64{busyKernel: {"cpu_util": 99}, waitsKernel: {"cpu_util": 0.5}})
	require.NoError(t, uses.Flush(t.Context(), x.store, now))
	require.Equal(t, "1", x.text(`SELECT count(*)::text FROM session_accesses WHERE session_id = $1 AND last_access = $2`, string(busy), now))
	require.Equal(t, "0", x.text(`SELECT count(*)::text FROM session_accesses WHERE session_id = $1`, string(waits)))
	// Totals count by how fast they grow.
	w.Put(t.Context(), "a1", nil, map[cluster.KernelID]map[string]float64{waitsKernel: {"io_read": 0}})
	now = now.Add(5 * time.Second)
	w.Put(t.Context(), "a1", nil, map[cluster.KernelID]map[string]float64{waitsKernel: {"io_read": 1 << 30}})
	require.NoError(t, uses.Flush(t.Context(), x.store, now))
	require.Equal(t, "1", x.text(`SELECT count(*)::text FROM session_accesses WHERE session_id = $1`, string(waits)))
}
