package scheduling_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

const patience = time.Minute

// bundle is a bootstrapped database with the loops running over it.
type bundle struct {
	t     *testing.T
	store *store.Store
	cred  tenancy.Credentials
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return bootstrapped(t, storetest.New(t))
}

func bootstrapped(t *testing.T, s *store.Store) *bundle {
	t.Helper()
	return &bundle{t: t, store: s, cred: managertest.On(t, managertest.Deps(t, s)).Creds}
}

// leading makes the service of one manager that places sessions.
func leading(t testing.TB, cfg scheduling.Config, deps scheduling.Deps, etcd *clientv3.Client, holder string) *chassis.Service {
	t.Helper()
	s, err := scheduling.New(cfg, deps)
	require.NoError(t, err)
	l, err := reconcile.New(reconcile.DefaultConfig(), reconcile.Deps{Store: deps.Store, Loops: s.Loops(), Etcd: etcd, Log: deps.Log,
		Holder: holder, Prefix: "/test"})
	require.NoError(t, err)
	return l.Service()
}

func (b *bundle) lead(holder string) {
	b.t.Helper()
	log := slog.New(slog.NewTextHandler(b.t.Output(), nil))
	svc := leading(b.t, scheduling.DefaultConfig(), scheduling.Deps{Store: b.store, Log: log}, nil, holder)
	require.NoError(b.t, svc.Start(b.t.Context()))
	b.t.Cleanup(func() { _ = svc.Stop(context.Background()) })
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.store.Pool().Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) agent(id string, cores int, mem int64) {
	b.t.Helper()
	var devices []alloc.Device
	for i := range cores {
		devices = append(devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), Capacity: cluster.Whole(1), Healthy: true})
	}
	devices = append(devices, alloc.Device{Slot: cluster.SlotMem, ID: "root", Capacity: cluster.Whole(mem), Healthy: true})
	raw, err := json.Marshal(devices)
	require.NoError(b.t, err)
	b.exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ($1, 'ALIVE', 'default', 'x86_64', `+
		`true, $2)`, id, raw)
}

// session inserts a waiting session with one kernel a core count, all at once.
func (b *bundle) session(extra string, cores ...int) cluster.SessionID {
	b.t.Helper()
	id := uuid.NewString()
	require.NoError(b.t, b.store.Tx(b.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		_, err := tx.DB().Exec(ctx, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group,
			image, status, requested_slots, cluster_size)
			SELECT $1::uuid, $1::uuid::text, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'PENDING', '{}', $2
			FROM keypairs k, projects p WHERE k.access_key = $3 AND p.name = 'default'`, id, len(cores), string(b.cred.AccessKey))
		if err == nil && extra != "" {
			_, err = tx.DB().Exec(ctx, `UPDATE sessions SET `+extra+` WHERE id = $1`, id)
		}
		for i, n := range cores {
			slots, merr := json.Marshal(cluster.Slots{cluster.SlotCPU: cluster.Whole(int64(n)), cluster.SlotMem: cluster.Whole(1 << 20)})
			require.NoError(b.t, merr)
			if err == nil {
				_, err = tx.DB().Exec(ctx, `INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, `+
					`local_rank) VALUES ($1, $2, 'img', 'x86_64', 'PENDING', $3, $4)`,
					uuid.NewString(), id, slots, i)
			}
		}
		tx.Wake(store.TopicSchedule)
		return err
	}))
	return cluster.SessionID(id)
}

func (b *bundle) status(id cluster.SessionID) (status, info string) {
	b.t.Helper()
	require.NoError(b.t, b.store.Pool().QueryRow(b.t.Context(), `SELECT status, status_info FROM sessions WHERE id = $1`, string(id)).
		Scan(&status, &info))
	return status, info
}

func (b *bundle) becomes(id cluster.SessionID, status, info string) {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		s, i := b.status(id)
		return s == status && (info == "" || i == info)
	}, patience, 5*time.Millisecond, "session should become %s %s", status, info)
}

func TestPlacesWhatFitsAndExplainsWhatWaits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 2, 1<<30)
	b.lead("one")

	first := b.session("", 2)
	b.becomes(first, "SCHEDULED", "")
	second := b.session("", 1)
	b.becomes(second, "PENDING", "capacity")
	huge := b.session("", 64)
	b.becomes(huge, "PENDING", "too-big")
	var told, others int
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE o.id = s.resource_group),
		count(*) FILTER (WHERE o.id <> s.resource_group) FROM object_changes o, sessions s WHERE o.noun = 'queue' AND s.id = $1`,
		string(second)).Scan(&told, &others))
	require.Positive(t, told, "readers of events hear of the queue")
	require.LessOrEqual(t, told, 2, "once for each commit")
	require.Zero(t, others)

	b.exec(`UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1`, string(first))
	b.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE id = $1`, string(first))
	b.store.Wake(store.TopicSchedule)
	b.becomes(second, "SCHEDULED", "")

	var agent, allocation string
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT agent_id, allocation FROM kernels
		WHERE session_id = $1`, string(second)).
		Scan(&agent, &allocation))
	require.Equal(t, "a1", agent)
	a, err := alloc.Parse(allocation)
	require.NoError(t, err)
	require.Equal(t, cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 20)}, a.Totals())
}

// TestAnAgentShortOfDiskGetsNothing: what the agent says of its disk reaches the scheduler, and so does its end.
func TestAnAgentShortOfDiskGetsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 4, 1<<30)
	b.exec(`UPDATE agents SET disk_problem = 'less than 4 GiB are free' WHERE id = 'a1'`)
	b.lead("one")
	id := b.session("", 1)
	b.becomes(id, "PENDING", "no-agent")
	b.exec(`UPDATE agents SET disk_problem = '' WHERE id = 'a1'`)
	b.store.Wake(store.TopicSchedule)
	b.becomes(id, "SCHEDULED", "")
}

func TestNeverOverAllocates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 3, 1<<30)
	b.agent("a2", 2, 1<<30)
	b.lead("one")

	for range 12 {
		b.session("", 1)
	}
	var placed int
	require.Eventually(t, func() bool {
		require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions WHERE status = 'SCHEDULED'`).Scan(&placed))
		return placed >= 5
	}, patience, 5*time.Millisecond)
	rows, err := b.store.Pool().Query(t.Context(),
		`SELECT agent_id, key, count(*) FROM kernels, jsonb_each(allocation->'cpu') WHERE status = 'SCHEDULED' GROUP BY 1, 2`)
	require.NoError(t, err)
	defer rows.Close()
	cores := 0
	for rows.Next() {
		var agent, core string
		var n int
		require.NoError(t, rows.Scan(&agent, &core, &n))
		require.Equal(t, 1, n, "core %s of %s", core, agent)
		cores++
	}
	require.NoError(t, rows.Err())
	require.Equal(t, 5, cores)
}

func TestDependencies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 8, 1<<30)

	good, bad := b.session("type = 'batch', startup_command = 'x'", 1), b.session("type = 'batch', startup_command = 'x'", 1)
	afterGood, afterBad := b.session("", 1), b.session("", 1)
	b.exec(`INSERT INTO session_dependencies VALUES ($1, $2), ($3, $4)`, string(afterGood), string(good), string(afterBad), string(bad))
	b.lead("one")
	b.becomes(good, "SCHEDULED", "")
	b.becomes(afterGood, "PENDING", "dependency")

	b.exec(`UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id IN ($1, $2)`, string(good), string(bad))
	b.exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now(), result = CASE WHEN id = $1 THEN 'SUCCESS' ELSE 'FAILURE' END
		WHERE `+
		`id IN ($1, $2)`, string(good), string(bad))
	b.store.Wake(store.TopicSchedule)
	b.becomes(afterGood, "SCHEDULED", "")
	b.becomes(afterBad, "CANCELLED", string(cluster.ReasonDependency))
}

func TestStartTimeAndPendingTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 8, 1<<30)
	b.lead("one")

	soon := b.session("type = 'batch', startup_command = 'x', starts_at = now() + interval '300 milliseconds'", 1)
	far := b.session("type = 'batch', startup_command = 'x', starts_at = now() + interval '1 day'", 1)
	b.becomes(far, "PENDING", "start-time")
	b.becomes(soon, "SCHEDULED", "")

	b.exec(`UPDATE resource_groups SET scheduler_opts = '{"pending_timeout": 60}'`)
	b.exec(`UPDATE sessions SET created_at = now() - interval '2 minutes' WHERE id = $1`, string(far))
	b.store.Wake(store.TopicSchedule)
	b.becomes(far, "CANCELLED", string(cluster.ReasonPendingTimeout))
}

func TestAnOlderLeaderCannotCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.agent("a1", 8, 1<<30)
	b.lead("one")
	b.becomes(b.session("", 1), "SCHEDULED", "")

	// Another manager takes the lead behind the first one's back; the first must notice and campaign anew.
	b.exec(`UPDATE cluster_settings SET value = jsonb_build_object('token', 1000, 'holder', 'two') WHERE key = 'leader'`)
	b.becomes(b.session("", 1), "SCHEDULED", "")
	var token int64
	require.NoError(t, b.store.Pool().QueryRow(t.Context(), `SELECT (value->>'token')::bigint FROM cluster_settings WHERE key = 'leader'`).
		Scan(&token))
	require.Greater(t, token, int64(1000))
}
