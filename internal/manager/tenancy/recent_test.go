package tenancy_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
)

func TestActorsAreBelievedForAMomentAndForgottenAtOnce(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	began := time.Now()
	w := managertest.New(t, func(d *nouns.Deps) { d.Clock = func() time.Time { return began.Add(time.Duration(late.Load())) } })
	ctx := t.Context()
	key := w.Stranger("someone").AccessKey
	refused := func(svc *tenancy.Service) bool {
		_, _, err := svc.Authenticate(ctx, key)
		require.True(t, err == nil || fault.Is(err, fault.Unauthenticated), "%v", err)
		return err != nil
	}
	require.False(t, refused(w.Tenancy))

	// A change counts at once, whoever makes it; another manager hears of it soon, without its clock moving.
	other, err := tenancy.New(tenancy.Deps{Store: storetest.Beside(t, w.Store), Seal: w.Deps.Seal, Clock: func() time.Time { return began },
		Log: w.Deps.Log})
	require.NoError(t, err)
	require.False(t, refused(other))
	set := func(active bool) {
		w.Exec("UPDATE keypairs SET is_active = $2 WHERE access_key = $1", key, active)
	}
	set(false)
	require.True(t, refused(w.Tenancy), "this manager's own change")
	managertest.Soon(t, "the other manager hears of the change", func() bool { return refused(other) })
	set(true)
	require.False(t, refused(w.Tenancy), "a refusal was remembered")
	managertest.Soon(t, "the other manager hears of the change back", func() bool { return !refused(other) })

	// Even what nobody tells of counts after a second.
	w.Exec("ALTER TABLE keypairs DISABLE TRIGGER actors_changed")
	set(false)
	late.Add(int64(time.Second))
	require.True(t, refused(w.Tenancy), "an answer was believed for too long")
}
