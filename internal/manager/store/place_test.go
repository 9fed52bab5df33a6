package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

func TestPlacedTogetherAllOrNothingPerSession(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	good, gk := addSession(t, s, cluster.Pending, cluster.Pending, cluster.Pending)
	part, pk := addSession(t, s, cluster.Pending, cluster.Pending, cluster.Pending)
	old, ok := addSession(t, s, cluster.Pending, cluster.Pending)
	ended, ek := addSession(t, s, cluster.Cancelled, cluster.Cancelled)
	exec(t, s, `UPDATE kernels SET generation = 2 WHERE id = $1`, string(ok[0]))
	at := func(s cluster.SessionID, k cluster.KernelID) store.Place {
		return store.Place{Session: s, Kernel: k, Generation: 1, Agent: "a2", Allocation: `{"cpu":{"0":1000}}`}
	}
	missing := cluster.SessionID("00000000-0000-0000-0000-00000000dead")
	places := []store.Place{at(good, gk[0]), at(good, gk[1]), at(part, pk[0]), at(old, ok[0]), at(ended, ek[0]), at(missing, ek[0])}
	var refused []cluster.SessionID
	require.NoError(t, s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		refused, err = tx.PlaceBatch(ctx, places)
		return err
	}))
	require.Equal(t, []cluster.SessionID{part, old, ended, missing}, refused)
	for _, k := range gk {
		status, generation, deadline, _, agent := kernelRow(t, s, k)
		require.Equal(t, cluster.Scheduled, status)
		require.EqualValues(t, 1, generation)
		require.NotNil(t, deadline)
		require.Equal(t, "a2", *agent)
		var allocation string
		require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT allocation FROM kernels WHERE id = $1 AND scheduled_at IS NOT NULL`, string(k)).
			Scan(&allocation))
		require.JSONEq(t, `{"cpu":{"0":1000}}`, allocation)
	}
	status, _, _ := sessionRow(t, s, good)
	require.Equal(t, cluster.Scheduled, status)
	rows, err := s.HistoryOf(t.Context(), string(good))
	require.NoError(t, err)
	require.Len(t, rows, 3, "two kernels and their session")
	for _, k := range []cluster.KernelID{pk[0], pk[1], ok[0]} {
		status, _, _, _, _ := kernelRow(t, s, k)
		require.Equal(t, cluster.Pending, status)
	}
}

func TestSeveralMovesOfOneTransactionAreOneUpdateWithAllTheirEvents(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	id, kernels := addSession(t, s, cluster.Scheduled, cluster.Scheduled)
	code, log := 0, "bye"
	locked(t, s, id, func(ctx context.Context, l *store.Locked) error {
		k := l.Kernels[0]
		for _, m := range []store.KernelMove{{To: cluster.Preparing, ContainerID: "c"}, {To: cluster.Running},
			{To: cluster.Terminated, Reason: "done", ExitCode: &code, Log: &log}} {
			if err := k.Move(ctx, m); err != nil {
				return err
			}
			if err := l.Settle(ctx, m.Reason, ""); err != nil {
				return err
			}
		}
		return nil
	})
	var status, container, text, reason string
	var exit *int
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT status, container_id, log, exit_code, stop_reason FROM kernels
		WHERE id = $1 AND started_at IS NOT NULL AND ended_at IS NOT NULL AND deadline IS NULL`, string(kernels[0])).
		Scan(&status, &container, &text, &exit, &reason))
	require.Equal(t, "TERMINATED c bye done", status+" "+container+" "+text+" "+reason)
	require.Equal(t, 0, *exit)
	rows, err := s.HistoryOf(t.Context(), string(id))
	require.NoError(t, err)
	var steps []string
	for _, r := range rows {
		noun := "session"
		if r.KernelID != nil {
			noun = "kernel"
		}
		steps = append(steps, noun+" "+r.FromStatus+" "+r.ToStatus)
	}
	require.Equal(t, []string{"kernel SCHEDULED PREPARING", "session SCHEDULED PREPARING", "kernel PREPARING RUNNING",
		"session PREPARING RUNNING",
		"kernel RUNNING TERMINATED", "session RUNNING TERMINATED"}, steps)
	var callbacks int
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM callbacks WHERE session_id = $1`, string(id)).Scan(&callbacks))
	require.Equal(t, 3, callbacks)
}

// A statement between moves sees them, and a refused one does not hide behind the others.
func TestStatementsSeeTheMovesBeforeThem(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	exec(t, s, tenancy)
	id, kernels := addSession(t, s, cluster.Running, cluster.Running)
	locked(t, s, id, func(ctx context.Context, l *store.Locked) error {
		if err := l.Kernels[0].Move(ctx, store.KernelMove{To: cluster.Terminating, Reason: "why"}); err != nil {
			return err
		}
		return s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			var status cluster.Status
			if err := tx.DB().QueryRow(ctx, `SELECT status FROM kernels WHERE id = $1`, string(kernels[0])).Scan(&status); err != nil {
				return err
			}
			require.Equal(t, cluster.Terminating, status)
			return nil
		})
	})
	_, more := addSession(t, s, cluster.Running, cluster.Running)
	err := s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error {
		for _, m := range []store.KernelMove{{Kernel: kernels[0], From: cluster.Terminating}, {Kernel: more[0], From: cluster.Restarting}} {
			m.Generation, m.To = 1, cluster.Terminated
			if err := tx.MoveKernel(ctx, m); err != nil {
				return err
			}
		}
		return nil
	})
	require.Error(t, err, "the second is not RESTARTING")
	status, _, _, _, _ := kernelRow(t, s, kernels[0])
	require.Equal(t, cluster.Terminating, status, "all or nothing")
}
