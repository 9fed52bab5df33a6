package scheduling

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// handClock is advanced by hand; nothing here waits for its timers.
type handClock struct {
	chassis.Clock
	now time.Time
}

func (c *handClock) Now() time.Time          { return c.now }
func (c *handClock) Advance(d time.Duration) { c.now = c.now.Add(d) }

// stage is a leader whose turns the test takes, at times of its choosing.
type stage struct {
	*desk
	t     *testing.T
	clock *handClock
	key   string
}

func newStage(t *testing.T, cores int) *stage {
	t.Helper()
	s, cred := newDatabase(t)
	clock := &handClock{chassis.RealClock(), time.Now().UTC().Truncate(time.Microsecond)}
	l, err := New(DefaultConfig(), Deps{Store: s, Clock: clock, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	st := &stage{t: t, clock: clock, key: string(cred.AccessKey), desk: &desk{Scheduling: l, kept: newKept(clock)}}
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		token, err := tx.TakeLeadership(ctx, "test")
		st.term = reconcile.NewTerm(s, token, "test")
		return err
	}))
	st.exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) SELECT 'a', 'ALIVE', 'default', 'x86_64', true,
		jsonb_agg(jsonb_build_object('slot', 'cpu', 'id', i::text, 'capacity', 1000, 'healthy', true)) FROM generate_series(1, $1) i`, cores)
	return st
}

func (s *stage) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.deps.Store.Pool().Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err, sql)
}

func (s *stage) session(extra string) (id string) {
	s.t.Helper()
	id = uuid.NewString()
	require.NoError(s.t, s.deps.Store.Tx(s.t.Context(), func(ctx context.Context, tx *store.Tx) error {
		for _, step := range []struct {
			sql  string
			args []any
		}{
			{insertSession, []any{id, 1, s.key}},
			{`UPDATE sessions SET created_at = $2 WHERE id = $1`, []any{id, s.clock.Now()}},
			{`UPDATE sessions SET name = name` + extra + ` WHERE id = $1`, []any{id}},
			{`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots) VALUES ($1, $2, 'img', 'x86_64', 'PENDING', ` +
				`'{"cpu":1000}')`, []any{uuid.NewString(), id}},
		} {
			if _, err := tx.DB().Exec(ctx, step.sql, step.args...); err != nil {
				return err
			}
		}
		return nil
	}))
	return id
}

func (s *stage) status(id string) (status, info string) {
	s.t.Helper()
	require.NoError(s.t, s.deps.Store.Pool().QueryRow(s.t.Context(), `SELECT status, status_info FROM sessions WHERE id = $1`, id).
		Scan(&status, &info))
	return status, info
}

// play takes a turn and returns when the next one is due.
func (s *stage) play() time.Time {
	s.t.Helper()
	again, err := s.turn(s.t.Context())
	require.NoError(s.t, err)
	return again
}

// TestTurnsKnowWhenTheNextIsDue: time alone starts a session at its start time and cancels one that waited too long, and
// the loop is told when.
func TestTurnsKnowWhenTheNextIsDue(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	s.exec(`UPDATE resource_groups SET scheduler_opts = '{"pending_timeout": 600}'`)
	starts := s.clock.Now().Add(20 * time.Second)
	later := s.session(fmt.Sprintf(", starts_at = '%s'", starts.Format(time.RFC3339Nano)))
	again := s.play()
	require.WithinDuration(t, starts, again, time.Millisecond)
	status, info := s.status(later)
	require.Equal(t, []string{"PENDING", "start-time"}, []string{status, info})
	s.clock.Advance(20*time.Second - time.Millisecond)
	s.play()
	status, _ = s.status(later)
	require.Equal(t, "PENDING", status)
	s.clock.Advance(time.Millisecond)
	s.play()
	status, _ = s.status(later)
	require.Equal(t, "SCHEDULED", status)

	second := s.session(fmt.Sprintf(", starts_at = '%s'", s.clock.Now().Add(time.Second).Format(time.RFC3339Nano)))
	s.play()
	s.clock.Advance(time.Second)
	s.play()
	_, info = s.status(second)
	require.Equal(t, "capacity", info, "its time has come, but no room")
	s.exec(`UPDATE kernels SET status = 'CANCELLED', ended_at = now() WHERE session_id = $1`, second)
	s.exec(`UPDATE sessions SET status = 'CANCELLED', ended_at = now() WHERE id = $1`, second)

	waits := s.session("")
	s.play()
	s.clock.Advance(10*time.Minute - time.Second)
	require.WithinDuration(t, s.clock.Now().Add(time.Second), s.play(), time.Millisecond)
	status, _ = s.status(waits)
	require.Equal(t, "PENDING", status)
	s.clock.Advance(time.Second)
	s.play()
	status, info = s.status(waits)
	require.Equal(t, []string{"CANCELLED", string(cluster.ReasonPendingTimeout)}, []string{status, info})
	s.play()
	require.Len(t, s.kept.m.sessions, 1)
}

// TestANewWordingIsToldInTheEnd: while the reason stays the same, its text is written again only every few seconds, but what was held back
// is written then, although nothing else changes.
func TestANewWordingIsToldInTheEnd(t *testing.T) {
	t.Parallel()
	s := newStage(t, 1)
	trouble := func(text string) { s.exec(`UPDATE agents SET disk_problem = $1`, text) }
	trouble("first")
	id := s.session("")
	var msg string
	told := func() string {
		s.t.Helper()
		require.NoError(t, s.deps.Store.Pool().QueryRow(t.Context(), `SELECT status_data->'scheduler'->>'msg' FROM sessions WHERE id = $1`, id).
			Scan(&msg))
		return msg
	}
	s.play()
	require.Contains(t, told(), "first")
	began := s.clock.Now()
	s.clock.Advance(time.Second)
	trouble("second")
	again := s.play()
	require.Contains(t, told(), "first")
	require.WithinDuration(t, began.Add(rewordEvery), again, time.Millisecond)
	s.clock.Advance(again.Sub(s.clock.Now()))
	s.play()
	require.Contains(t, told(), "second")
	require.Equal(t, s.resyncAt, s.play(), "nothing is left to tell")
}

// TestALeaderThatDiesAnywhereLosesNothing breaks the leader's connections again and again while it works: whether a commit
// happened is then often unknown. Every session is placed once.
func TestALeaderThatDiesAnywhereLosesNothing(t *testing.T) {
	t.Parallel()
	const sessions = 60
	s := newStage(t, sessions)
	s.exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 0`)
	admin := s.deps.Store
	var name string
	require.NoError(t, admin.Pool().QueryRow(t.Context(), `SELECT current_database()`).Scan(&name))
	cfg := admin.Pool().Config().ConnConfig.Copy()
	broken, err := store.Open(t.Context(), store.Config{DSN: cfg.ConnString() + " application_name=victim", SkipMigrations: true, MaxConns: 2},
		slog.New(slog.DiscardHandler))
	if err != nil { // the address is a URL
		broken, err = store.Open(t.Context(), store.Config{DSN: cfg.ConnString() + "&application_name=victim", SkipMigrations: true, MaxConns: 2},
			slog.New(slog.DiscardHandler))
	}
	require.NoError(t, err)
	defer broken.Close()
	l := *s.Scheduling
	s.Scheduling = &l
	use := func(db *store.Store) {
		l.deps.Store = db
		s.term = reconcile.NewTerm(db, s.term.Token, "test")
	}
	use(broken)

	failed, placed := 0, 0
	for i := 0; placed < sessions; i++ {
		require.Less(t, i, 10*sessions)
		if i < sessions {
			use(admin)
			s.session("")
			use(broken)
		}
		var killed sync.WaitGroup
		if i%3 != 0 { // at some moment of the turn
			killed.Go(func() {
				<-time.NewTimer(time.Duration(i%17) * time.Millisecond).C
				_, _ = admin.Pool().Exec(context.Background(),
					`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND datname = $1`, name)
			})
		}
		if _, err := s.turn(t.Context()); err != nil {
			failed++
		}
		killed.Wait()
		require.NoError(t, admin.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions WHERE status = 'SCHEDULED'`).Scan(&placed))
	}
	require.Equal(t, sessions, placed)
	var twice int
	require.NoError(t, admin.Pool().QueryRow(t.Context(),
		`SELECT count(*) FROM (SELECT kernel_id FROM session_events WHERE to_status = 'SCHEDULED' AND kernel_id IS NOT NULL GROUP BY 1 HAVING `+
			`count(*) <> 1) d`).Scan(&twice))
	require.Zero(t, twice)
	t.Logf("%d turns failed", failed)
	require.Positive(t, failed)
}
