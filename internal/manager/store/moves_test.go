package store_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

const tenancy = `
INSERT INTO domains (name) VALUES ('default');
INSERT INTO keypair_resource_policies (name) VALUES ('default');
INSERT INTO user_resource_policies (name) VALUES ('default');
INSERT INTO project_resource_policies (name) VALUES ('default');
INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ('00000000-0000-0000-0000-0000000000a1', 'default', 'default',
	'default');
INSERT INTO resource_groups (name) VALUES ('default');
INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ('00000000-0000-0000-0000-0000000000b1', 'u', 'u@x',
	'default', 'default');
INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('AK', '',
	'00000000-0000-0000-0000-0000000000b1', 'default');
INSERT INTO agents (id, status, resource_group) VALUES ('a1', 'ALIVE', 'default'), ('a2', 'ALIVE', 'default');
`

func exec(t testing.TB, s *store.Store, sql string, args ...any) {
	t.Helper()
	_, err := s.Pool().Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// addSession inserts a session with kernels in given statuses on agents a1, a2, ...
func addSession(t testing.TB, s *store.Store, session cluster.Status, kernels ...cluster.Status) (cluster.SessionID, []cluster.KernelID) {
	t.Helper()
	id := uuid.NewString()
	exec(t, s, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
		requested_slots, ended_at, callback_url)
		VALUES ($1::uuid, $1::uuid::text, 'interactive', 'default', '00000000-0000-0000-0000-0000000000a1',
			'00000000-0000-0000-0000-0000000000b1', 'AK', 'default', 'i', $2, '{}',
		CASE WHEN $3 THEN now() END, 'http://example.org/')`, id, string(session), session.Final())
	var ids []cluster.KernelID
	for i, k := range kernels {
		kid := uuid.NewString()
		exec(t, s, `INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, agent_id, ended_at, local_rank)
			VALUES ($1, $2, 'i', 'x86_64', $3, '{}', $4, CASE WHEN $5 THEN now() END, $6)`,
			kid, id, string(k), fmt.Sprintf("a%d", i+1), k.Final(), i)
		ids = append(ids, cluster.KernelID(kid))
	}
	return cluster.SessionID(id), ids
}

func kernelRow(
	t testing.TB, s *store.Store, id cluster.KernelID,
) (status cluster.Status, generation int64, deadline, ended *time.Time, agent *string) {
	t.Helper()
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT status, generation, deadline, ended_at, agent_id FROM kernels WHERE id = $1`,
		string(id)).
		Scan(&status, &generation, &deadline, &ended, &agent))
	return
}

// Every pair of statuses is tried against PostgreSQL: the table alone decides.
func TestEveryPairOfKernelStatuses(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	for _, from := range cluster.AllStatuses {
		for _, to := range cluster.AllStatuses {
			session := cluster.SessionStatus([]cluster.Status{from})
			_, kernels := addSession(t, s, session, from)
			move := store.KernelMove{Kernel: kernels[0], Generation: 1, From: from, To: to, Reason: "why", Detail: "because \x00\xff"}
			err := s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.MoveKernel(ctx, move) })
			status, generation, deadline, ended, agent := kernelRow(t, s, kernels[0])
			var events int
			require.NoError(t, s.Pool().QueryRow(t.Context(),
				`SELECT count(*) FROM session_events WHERE kernel_id = $1 AND from_status = $2 AND to_status = $3 AND reason = 'why'`,
				string(kernels[0]), string(from), string(to)).Scan(&events))
			if !cluster.KernelMayMove(from, to) {
				require.True(t, fault.Is(err, fault.Conflict), "%s -> %s: %v", from, to, err)
				require.Equal(t, from, status)
				require.Zero(t, events)
				continue
			}
			require.NoError(t, err, "%s -> %s", from, to)
			require.Equal(t, to, status)
			require.Equal(t, 1, events)
			require.Equal(t, to.Final(), ended != nil, "%s -> %s", from, to)
			_, due := cluster.KernelDeadline(to)
			require.Equal(t, due, deadline != nil, "deadline of %s", to)
			if to == cluster.Pending {
				require.EqualValues(t, 2, generation)
				require.Nil(t, agent)
			}
			// The same move again finds the kernel elsewhere.
			err = s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error { return tx.MoveKernel(ctx, move) })
			require.True(t, fault.Is(err, fault.Conflict), "%s -> %s twice: %v", from, to, err)
		}
	}
}

func TestEveryPairOfSessionStatuses(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	for _, from := range cluster.AllStatuses {
		if from == cluster.Lost {
			continue // refused by the schema
		}
		for _, to := range cluster.AllStatuses {
			id, _ := addSession(t, s, from)
			err := s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
				return tx.MoveSession(ctx, store.SessionMove{Session: id, From: from, To: to, Reason: "why"})
			})
			var status cluster.Status
			var ended *time.Time
			var callbacks int
			require.NoError(t, s.Pool().QueryRow(t.Context(),
				`SELECT status, ended_at, (SELECT count(*) FROM callbacks c WHERE c.session_id = s.id) FROM sessions s WHERE id = $1`, string(id)).
				Scan(&status, &ended, &callbacks))
			if !cluster.SessionMayMove(from, to) {
				require.True(t, fault.Is(err, fault.Conflict), "%s -> %s: %v", from, to, err)
				require.Equal(t, from, status)
				require.Zero(t, callbacks)
				continue
			}
			require.NoError(t, err, "%s -> %s", from, to)
			require.Equal(t, to, status)
			require.Equal(t, to.Final(), ended != nil)
			want := 0
			if cluster.SessionEvent(to) != "" {
				want = 1
			}
			require.Equal(t, want, callbacks, "%s -> %s", from, to)
		}
	}
}

func locked(t testing.TB, s *store.Store, id cluster.SessionID, fn func(ctx context.Context, l *store.Locked) error) {
	t.Helper()
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		l, err := tx.LockOne(ctx, id)
		if err != nil {
			return err
		}
		return fn(ctx, l)
	}))
}

func sessionRow(t testing.TB, s *store.Store, id cluster.SessionID) (status cluster.Status, info string, attempts int) {
	t.Helper()
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT status, status_info, attempts FROM sessions WHERE id = $1`, string(id)).
		Scan(&status, &info, &attempts))
	return
}

func TestFailedPlacementsAreRetriedElsewhereAndThenErr(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	id, kernels := addSession(t, s, cluster.Preparing, cluster.Preparing, cluster.Creating)
	for attempt := 1; attempt <= cluster.MaxPlacements; attempt++ {
		locked(t, s, id, func(ctx context.Context, l *store.Locked) error {
			k := l.Kernel(kernels[0])
			if err := k.Fail(ctx, store.KernelMove{Reason: cluster.ReasonFailedToCreate, Detail: "disk full"}, true, true); err != nil {
				return err
			}
			return l.Settle(ctx, cluster.ReasonFailedToCreate, "disk full")
		})
		status, info, attempts := sessionRow(t, s, id)
		require.Equal(t, string(cluster.ReasonFailedToCreate), info)
		if attempt < cluster.MaxPlacements {
			require.Equal(t, cluster.Pending, status)
			require.Equal(t, attempt, attempts)
			k, generation, _, _, agent := kernelRow(t, s, kernels[1])
			require.Equal(t, cluster.Pending, k)
			require.EqualValues(t, attempt+1, generation)
			require.Nil(t, agent)
			var removals int
			require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM kernel_removals WHERE kernel_id = $1`, string(kernels[1])).
				Scan(&removals))
			require.Equal(t, attempt, removals, "the other agent must remove its kernel")
			exec(t, s, `UPDATE kernels SET status = 'PREPARING', agent_id = 'a1' WHERE session_id = $1`, string(id))
			exec(t, s, `UPDATE sessions SET status = 'PREPARING' WHERE id = $1`, string(id))
			continue
		}
		require.Equal(t, cluster.Terminating, status, "the second kernel is still being stopped")
	}
	locked(t, s, id, func(ctx context.Context, l *store.Locked) error {
		if err := l.Kernels[1].End(ctx, store.KernelMove{To: cluster.Terminated, Reason: cluster.ReasonSelfTerminated}); err != nil {
			return err
		}
		return l.Settle(ctx, cluster.ReasonSelfTerminated, "")
	})
	status, info, _ := sessionRow(t, s, id)
	require.Equal(t, cluster.Error, status)
	require.Equal(t, string(cluster.ReasonFailedToCreate), info, "the first final reason wins")
}

func TestForcedStopIsFinalAtOnceAndLeavesARemoval(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	id, kernels := addSession(t, s, cluster.Running, cluster.Running)
	locked(t, s, id, func(ctx context.Context, l *store.Locked) error {
		if err := l.Stop(ctx, cluster.ReasonForced, "", true); err != nil {
			return err
		}
		return l.Settle(ctx, cluster.ReasonForced, "")
	})
	status, info, _ := sessionRow(t, s, id)
	require.Equal(t, cluster.Terminated, status)
	require.Equal(t, string(cluster.ReasonForced), info)
	rows, err := s.RemovalsOfAgents(t.Context(), []string{"a1"})
	require.NoError(t, err)
	require.Len(t, rows, 1)
	require.Equal(t, string(kernels[0]), rows[0].KernelID)

	// One full report without it is not believed, the second is.
	for i := range 2 {
		require.NoError(t, s.MissRemovals(t.Context(), "a1", []string{string(kernels[0])}))
		rows, err = s.RemovalsOfAgents(t.Context(), []string{"a1"})
		require.NoError(t, err)
		require.Len(t, rows, 1-i)
	}
}
