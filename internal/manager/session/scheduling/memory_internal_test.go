package scheduling

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

// writer is one open transaction with the sessions that it has changed.
type writer struct {
	tx         pgx.Tx
	own, added []string
}

// churn changes the database in several transactions at once that commit in any order.
type churn struct {
	t     *testing.T
	store *store.Store
	r     *mathrand.Rand
	key   string
	open  []*writer
	// idle are sessions that no open transaction has changed.
	idle   []string
	agents int
}

func (c *churn) exec(w *writer, sql string, args ...any) {
	c.t.Helper()
	_, err := w.tx.Exec(c.t.Context(), sql, args...)
	require.NoError(c.t, err, sql)
}

const insertSession = `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image,
	status, requested_slots, cluster_size)
	SELECT $1::uuid, $1::uuid::text, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'PENDING', '{}', $2
	FROM keypairs k, projects p WHERE k.access_key = $3 AND p.name = 'default'`

func (c *churn) step() {
	if len(c.open) == 0 || len(c.open) < 5 && c.r.IntN(4) == 0 {
		tx, err := c.store.Pool().Begin(c.t.Context())
		require.NoError(c.t, err)
		c.open = append(c.open, &writer{tx: tx})
	}
	i := c.r.IntN(len(c.open))
	w := c.open[i]
	take := func() (id string) {
		if len(c.idle) == 0 {
			return ""
		}
		n := c.r.IntN(len(c.idle))
		id = c.idle[n]
		c.idle = append(c.idle[:n], c.idle[n+1:]...)
		w.own = append(w.own, id)
		return id
	}
	switch c.r.IntN(12) {
	case 0, 1, 2:
		id, kernels := uuid.NewString(), 1+c.r.IntN(3)
		c.exec(w, insertSession, id, kernels, c.key)
		for k := range kernels {
			c.exec(w, `INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, local_rank) VALUES ($1, $2, 'img', `+
				`'x86_64', 'PENDING', '{"cpu":1000}', $3)`, uuid.NewString(), id, k)
		}
		if on := take(); on != "" && c.r.IntN(2) == 0 {
			c.exec(w, `INSERT INTO session_dependencies VALUES ($1, $2)`, id, on)
		}
		w.added = append(w.added, id)
	case 3, 4:
		if id := take(); id != "" { // placed
			c.exec(w, `UPDATE kernels SET status = 'SCHEDULED', agent_id = 'a0', allocation = jsonb_build_object('cpu',
			jsonb_build_object(local_rank::text, 1000)), scheduled_at = now()
				WHERE session_id = $1 AND status = 'PENDING'`, id)
			c.exec(w, `UPDATE sessions SET status = 'SCHEDULED', scheduled_at = now() WHERE id = $1 AND status = 'PENDING'`, id)
		}
	case 5:
		if id := take(); id != "" {
			c.exec(w, `UPDATE sessions SET status = 'RUNNING', started_at = now() WHERE id = $1 AND status = 'SCHEDULED'`, id)
		}
	case 6:
		if id := take(); id != "" { // one kernel ends before the others
			c.exec(w, `UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1 AND local_rank = 0 AND ended_at IS NULL
				AND EXISTS (SELECT 1 FROM kernels o WHERE o.session_id = $1 AND o.local_rank > 0 AND o.ended_at IS NULL)`, id)
		}
	case 7:
		if id := take(); id != "" {
			c.exec(w, `UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1 AND ended_at IS NULL`, id)
			c.exec(w, `UPDATE sessions SET status = 'TERMINATED', ended_at = now(), result = CASE WHEN random() < 0.5 THEN 'SUCCESS' ELSE `+
				`'UNDEFINED' END WHERE id = $1 AND ended_at IS NULL`, id)
		}
	case 8:
		if id := take(); id != "" { // given back to the queue
			c.exec(w, `UPDATE kernels SET status = 'PENDING', agent_id = NULL, allocation = '{}', `+
				`generation = generation + 1 WHERE session_id = $1 AND ended_at IS NULL AND status <> 'PENDING'`, id)
			c.exec(w, `UPDATE sessions SET status = 'PENDING', started_at = NULL, failed_agents = '{a0}' WHERE id = $1 AND ended_at IS NULL`, id)
		}
	case 9:
		if id := take(); id != "" {
			c.exec(w, `UPDATE sessions SET priority = $2, starts_at = now() + interval '1 hour' WHERE id = $1`, id, c.r.IntN(100))
		}
	case 10:
		c.agents++
		c.exec(w, `INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ($1, 'ALIVE', 'default',
			'x86_64', `+
			`true, '[]')`, fmt.Sprintf("a%d", c.agents))
		c.exec(w, `UPDATE agents SET schedulable = NOT schedulable WHERE id = $1`, fmt.Sprintf("a%d", c.agents))
	case 11:
		if i == 0 { // rows that writers share: only one of them, so that none waits
			c.exec(w, `UPDATE resource_groups SET scheduler_opts = jsonb_build_object('pending_timeout', $1::int) WHERE name = 'default'`,
				1000+c.r.IntN(1000))
			c.exec(w, `UPDATE keypair_resource_policies SET max_concurrent_sessions = $1`, 1000+c.r.IntN(1000))
			c.exec(w, `UPDATE projects SET total_resource_slots = jsonb_build_object('cpu', $1::int)`, 1000*(100+c.r.IntN(1000)))
			c.end(0)
		}
	}
	if c.r.IntN(3) == 0 && len(c.open) > 0 {
		c.end(c.r.IntN(len(c.open)))
	}
}

func (c *churn) end(i int) {
	w := c.open[i]
	c.open = append(c.open[:i], c.open[i+1:]...)
	if c.r.IntN(8) == 0 {
		require.NoError(c.t, w.tx.Rollback(c.t.Context()))
	} else {
		require.NoError(c.t, w.tx.Commit(c.t.Context()))
		c.idle = append(c.idle, w.added...)
	}
	c.idle = append(c.idle, w.own...)
}

// newDatabase is an empty cluster with its administrator.
func newDatabase(t *testing.T) (*store.Store, tenancy.Credentials) {
	t.Helper()
	s := storetest.New(t)
	key, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	require.NoError(t, err)
	var cred tenancy.Credentials
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		d := tenancy.Deps{Store: s, Seal: key, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
		if cred, _, err = tenancy.Prepare(ctx, tx, d); err != nil {
			return err
		}
		return resource.FirstRows(ctx, tx, uuid.NewString)
	}))
	return s, cred
}

// TestLooksMissNothing: whatever order transactions commit in, a look finds exactly what became visible, so that a full
// comparison under the same snapshot finds nothing.
func TestLooksMissNothing(t *testing.T) {
	t.Parallel()
	s, cred := newDatabase(t)
	_, err := s.Pool().Exec(t.Context(), `INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ('a0', `+
		`'ALIVE', 'default', 'x86_64', true, '[]')`)
	require.NoError(t, err)

	c := &churn{t: t, store: s, r: mathrand.New(mathrand.NewPCG(1, uint64(len(cred.AccessKey)))), key: string(cred.AccessKey)}
	t.Cleanup(func() {
		for _, w := range c.open {
			_ = w.tx.Rollback(context.Background())
		}
	})
	m := newMemory(chassis.RealClock())
	compared := 0
	look := func() {
		require.NoError(t, s.View(t.Context(), func(ctx context.Context, q *dbgen.Queries) error {
			if _, err := m.look(ctx, s, q); err != nil {
				return err
			}
			drift, err := m.readAll(ctx, q)
			require.Zero(t, drift, "differences after %d looks", compared)
			return err
		}))
		compared++
	}
	for range 800 {
		c.step()
		if c.r.IntN(6) == 0 {
			look()
		}
	}
	for len(c.open) > 0 {
		c.end(0)
	}
	look()
	require.Greater(t, compared, 60)
	require.NotEmpty(t, m.sessions)
}
