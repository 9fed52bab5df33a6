package service_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/service"
	"berth.dev/berth/internal/manager/store/storetest"
)

func TestActorsAreBelievedForAMomentAndForgottenAtOnce(t *testing.T) {
	t.Parallel()
	var late atomic.Int64
	began := time.Now()
	w := newWorld(t, func(d *service.Deps) { d.Clock = func() time.Time { return began.Add(time.Duration(late.Load())) } })
	ctx := t.Context()
	key := w.stranger("someone").AccessKey
	refused := func(svc *service.Service) bool {
		_, _, err := svc.Authenticate(ctx, key)
		require.True(t, err == nil || fault.Is(err, fault.Unauthenticated), "%v", err)
		return err != nil
	}
	require.False(t, refused(w.svc))

	// A change counts at once, whoever makes it; another manager hears of it soon, without its clock moving.
	d := deps(t, w.store)
	d.Clock = func() time.Time { return began }
	d.Store = storetest.Open(t, w.dsn)
	other, err := service.New(d)
	require.NoError(t, err)
	require.False(t, refused(other))
	set := func(active bool) {
		w.exec("UPDATE keypairs SET is_active = $2 WHERE access_key = $1", key, active)
	}
	set(false)
	require.True(t, refused(w.svc), "this manager's own change")
	soon(t, "the other manager hears of the change", func() bool { return refused(other) })
	set(true)
	require.False(t, refused(w.svc), "a refusal was remembered")
	soon(t, "the other manager hears of the change back", func() bool { return !refused(other) })

	// Even what nobody tells of counts after a second.
	w.exec("ALTER TABLE keypairs DISABLE TRIGGER actors_changed")
	set(false)
	late.Add(int64(time.Second))
	require.True(t, refused(w.svc), "an answer was believed for too long")
}
