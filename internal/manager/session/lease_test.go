package session_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
)

// A session whose client is gone ends by its lease; one whose client renews, or gave the lease back, stays.
func TestLeases(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	w := managertest.New(t)
	w.Agent("a1", 8, 8*managertest.GiB)
	create := func(name string, lease time.Duration) session.Created {
		c, err := w.Sessions.Create(ctx, w.Admin, request.Session{Name: name, Image: "python", Lease: lease})
		require.NoError(t, err)
		return c
	}
	gone, waiting := create("gone", time.Minute), create("waiting", time.Minute)
	renews, stays := create("renews", time.Minute), create("stays", 0)
	kept := create("kept", time.Minute)
	w.Place(gone.ID, "a1")
	require.NoError(t, w.Sessions.RenewLease(ctx, w.Admin, "kept", "", 0), "the client leaves it")

	var token int64
	require.NoError(t, w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, "m1")
		return err
	}))
	pass := w.Sessions.LeaseLoop().Begin(reconcile.NewTerm(w.Store, token, "m1")).Pass
	expire := func() { w.Exec(`UPDATE session_leases SET until = now() - interval '1 second'`) }
	status := func(c session.Created) cluster.Status { return w.Session(c.ID).Status }

	// Nobody could renew while no manager led: a term begins with new leases.
	expire()
	_, err := pass(ctx)
	require.NoError(t, err)
	_, err = pass(ctx)
	require.NoError(t, err)
	require.Equal(t, cluster.Pending, status(waiting))

	expire()
	require.NoError(t, w.Sessions.RenewLease(ctx, w.Admin, "renews", "", time.Minute))
	_, err = pass(ctx)
	require.NoError(t, err)
	require.Equal(t, cluster.Cancelled, status(waiting))
	require.Equal(t, cluster.Terminating, status(gone))
	require.Equal(t, cluster.Pending, status(renews))
	require.Equal(t, cluster.Pending, status(stays))
	require.Equal(t, cluster.Pending, status(kept))
	require.Equal(t, string(cluster.ReasonClientGone), w.Session(waiting.ID).StatusInfo)

	require.True(t, fault.Is(w.Sessions.RenewLease(ctx, w.Admin, "stays", "", time.Minute), fault.Conflict))
	require.True(t, fault.Is(w.Sessions.RenewLease(ctx, w.Admin, "renews", "", time.Second), fault.Invalid))
	require.True(t, fault.Is(w.Sessions.RenewLease(ctx, w.Stranger("mallory"), "renews", "", time.Minute), fault.NotFound))
	_, err = w.Sessions.Create(ctx, w.Admin, request.Session{Name: "short", Image: "python", Lease: time.Second})
	require.True(t, fault.Is(err, fault.Invalid))
}
