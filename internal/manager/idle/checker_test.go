package idle_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
)

func TestIdleCheckers(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	life := idle.Checker{Name: "day", Type: rule.Lifetime, WarnBefore: time.Minute, Enabled: true, Spec: idle.Spec{MaxLifetime: 86400},
		Bindings: []idle.Binding{{Project: "default"}, {ResourceGroup: "default"}, {Domain: "default"}, {}, {}}}
	require.NoError(t, w.Idle.SetChecker(ctx, w.Admin, life))
	list, err := w.Idle.Checkers(ctx, w.Admin)
	require.NoError(t, err)
	require.Len(t, list, 1)
	require.Equal(t, []cluster.SessionType{cluster.Interactive, cluster.Batch}, list[0].Targets)
	require.Len(t, list[0].Bindings, 4, "the same place twice is one binding")
	life.Bindings, life.DryRun = nil, true
	require.NoError(t, w.Idle.SetChecker(ctx, w.Admin, life))
	list, err = w.Idle.Checkers(ctx, w.Admin)
	require.NoError(t, err)
	require.Empty(t, list[0].Bindings)
	require.True(t, list[0].DryRun)

	use := idle.Spec{Window: 600, Operator: rule.And, Thresholds: map[string]float64{"cpu_util": 5}}
	for name, c := range map[string]idle.Checker{
		"a name of nothing":      {Type: rule.Lifetime, Spec: idle.Spec{MaxLifetime: 60}},
		"a name like a policy's": {Name: "policy:session_lifetime", Type: rule.Lifetime, Spec: idle.Spec{MaxLifetime: 60}},
		"no type":                {Name: "x", Spec: use},
		"no limit":               {Name: "x", Type: rule.Lifetime},
		"a huge limit":           {Name: "x", Type: rule.Lifetime, Spec: idle.Spec{MaxLifetime: 1 << 60}},
		"a warning before birth": {Name: "x", Type: rule.Lifetime, WarnBefore: time.Hour, Spec: idle.Spec{MaxLifetime: 3600}},
		"no inactivity":          {Name: "x", Type: rule.Network, Spec: idle.Spec{MaxLifetime: 60}},
		"a short window": {Name: "x", Type: rule.Utilization,
			Spec: idle.Spec{Window: 60, Operator: rule.And, Thresholds: use.Thresholds}},
		"no operator":   {Name: "x", Type: rule.Utilization, Spec: idle.Spec{Window: 600, Thresholds: use.Thresholds}},
		"no thresholds": {Name: "x", Type: rule.Utilization, Spec: idle.Spec{Window: 600, Operator: rule.Or}},
		"a threshold of nothing": {Name: "x", Type: rule.Utilization,
			Spec: idle.Spec{Window: 600, Operator: rule.Or, Thresholds: map[string]float64{"luck": 5}}},
		"a threshold of 0": {Name: "x", Type: rule.Utilization,
			Spec: idle.Spec{Window: 600, Operator: rule.Or, Thresholds: map[string]float64{"mem": 0}}},
		"inference": {Name: "x", Type: rule.Lifetime, Spec: idle.Spec{MaxLifetime: 60},
			Targets: []cluster.SessionType{cluster.Inference}},
		"network of batch": {Name: "x", Type: rule.Network, Spec: idle.Spec{MaxNetworkInactivity: 60},
			Targets: []cluster.SessionType{cluster.Batch}},
		"a binding to two places": {Name: "x", Type: rule.Lifetime, Spec: idle.Spec{MaxLifetime: 60},
			Bindings: []idle.Binding{{Domain: "default", ResourceGroup: "default"}}},
	} {
		err := w.Idle.SetChecker(ctx, w.Admin, c)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	for _, b := range []idle.Binding{{Domain: "nowhere"}, {Project: "nowhere"}, {ResourceGroup: "nowhere"}} {
		err := w.Idle.SetChecker(ctx, w.Admin, idle.Checker{Name: "x", Type: rule.Utilization, Spec: use, Bindings: []idle.Binding{b}})
		require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	}
	require.NoError(t, w.Idle.RemoveChecker(ctx, w.Admin, "day"))
	require.True(t, fault.Is(w.Idle.RemoveChecker(ctx, w.Admin, "day"), fault.NotFound))
}

func TestIdleReportsAndGrants(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	clock.Store(time.Now().UnixNano())
	w := managertest.New(t, func(d *nouns.Deps) { d.Clock = now })
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Running("mine", "a1")
	// The database's clock says when the session started; the fake one goes on from there.
	var started time.Time
	require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT started_at FROM sessions WHERE id = $1`, id).Scan(&started))
	clock.Store(started.UnixNano())
	require.NoError(t, w.Idle.SetChecker(ctx, w.Admin,
		idle.Checker{Name: "day", Type: rule.Lifetime, WarnBefore: time.Minute, Enabled: true, DryRun: true,
			Spec: idle.Spec{MaxLifetime: 600}, Bindings: []idle.Binding{{}}}))
	require.NoError(t, w.Idle.SetChecker(ctx, w.Admin,
		idle.Checker{Name: "use", Type: rule.Utilization, Enabled: true, Bindings: []idle.Binding{{Project: "default"}},
			Spec: idle.Spec{Window: 300, Operator: rule.Or, Thresholds: map[string]float64{"cpu_util": 5}}}))
	clock.Add(int64(6 * time.Minute))

	list, total, err := w.Idle.Report(ctx, w.Admin)
	require.NoError(t, err)
	require.Equal(t, 1, total)
	require.Equal(t, id, list[0].Session)
	checks, err := w.Idle.Checks(ctx, w.Admin, []cluster.SessionID{id})
	require.NoError(t, err)
	by := checks[id].ByType()
	require.Equal(t, "day", by[rule.Lifetime].Checker)
	require.True(t, by[rule.Lifetime].DryRun)
	require.InDelta(t, 240, *by[rule.Lifetime].Remaining, 1)
	require.Equal(t, "policy:network_timeout", by[rule.Network].Checker)
	require.InDelta(t, 3240, *by[rule.Network].Remaining, 5)
	require.Equal(t, rule.Unknown, by[rule.Utilization].Phase, "nothing was measured")
	require.Nil(t, by[rule.Utilization].Remaining)
	require.Equal(t, 5.0, *by[rule.Utilization].Extra.Resources["cpu_util"][1])
	require.Nil(t, by[rule.Utilization].Extra.Resources["cpu_util"][0])

	// Strangers see and grant nothing.
	stranger := w.Stranger("mallory")
	checks, err = w.Idle.Checks(ctx, stranger, []cluster.SessionID{id})
	require.NoError(t, err)
	require.Empty(t, checks)
	list, _, err = w.Idle.Report(ctx, stranger)
	require.NoError(t, err)
	require.Empty(t, list)

	// The owner's grant is bounded by the policy, an administrator's is not, and the owner cannot take that one back.
	owner := w.Admin
	owner.Role = "user"
	_, err = w.Idle.KeepAlive(ctx, owner, "mine", "", 25*time.Hour, "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	until, err := w.Idle.KeepAlive(ctx, owner, "mine", "", 2*time.Hour, "training")
	require.NoError(t, err)
	require.WithinDuration(t, now().Add(2*time.Hour), until, time.Second)
	checks, err = w.Idle.Checks(ctx, owner, []cluster.SessionID{id})
	require.NoError(t, err)
	require.Equal(t, rule.Excluded, checks[id].ByType()[rule.Network].Phase)
	require.Equal(t, rule.Active, checks[id].ByType()[rule.Lifetime].Phase)
	long, err := w.Idle.KeepAlive(ctx, w.Admin, "mine", "", 48*time.Hour, "")
	require.NoError(t, err)
	until, err = w.Idle.KeepAlive(ctx, owner, "mine", "", time.Hour, "")
	require.NoError(t, err)
	require.WithinDuration(t, long, until, time.Millisecond)
	_, err = w.Idle.KeepAlive(ctx, owner, "mine", "", 0, "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Idle.KeepAlive(ctx, w.Admin, "mine", "", 0, "")
	require.NoError(t, err)
	for _, d := range []time.Duration{-1, 1000 * 24 * time.Hour} {
		_, err = w.Idle.KeepAlive(ctx, w.Admin, "mine", "", d, "")
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

// slowStreams answers at once with bodies that stay open.
type slowStreams struct{ session.Streams }

func (slowStreams) RoundTrip(cluster.AgentID, *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestUseIsRemembered(t *testing.T) {
	t.Parallel()
	var clock atomic.Int64
	clock.Store(time.Now().Add(time.Hour).UnixNano())
	now := func() time.Time { return time.Unix(0, clock.Load()) }
	var w *managertest.World
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w = managertest.New(t, func(d *nouns.Deps) { d.Clock, d.Streams = now, slowStreams{} })
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Running("mine", "a1")
	last := func() *time.Time {
		checks, err := w.Idle.Checks(ctx, w.Admin, []cluster.SessionID{id})
		require.NoError(t, err)
		return checks[id].LastAccess
	}
	require.Nil(t, last())
	way, err := w.Sessions.Runner(ctx, w.Admin, "mine", "")
	require.NoError(t, err)
	require.NoError(t, w.Sessions.Uses().Flush(ctx, w.Store, now()))
	require.WithinDuration(t, now(), *last(), time.Millisecond)

	clock.Add(int64(time.Minute))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://runner/v1/pty", strings.NewReader(""))
	require.NoError(t, err)
	resp, err := way.RoundTrip(req)
	require.NoError(t, err)
	for range 3 { // an open stream is use, however quiet
		clock.Add(int64(time.Minute))
		require.NoError(t, w.Sessions.Uses().Flush(ctx, w.Store, now()))
		require.WithinDuration(t, now(), *last(), time.Millisecond)
	}
	clock.Add(int64(time.Minute))
	require.NoError(t, resp.Body.Close())
	end := now()
	clock.Add(int64(time.Minute))
	require.NoError(t, w.Sessions.Uses().Flush(ctx, w.Store, now()))
	require.WithinDuration(t, end, *last(), time.Millisecond, "its end is the last use")
	clock.Add(int64(time.Hour))
	require.NoError(t, w.Sessions.Uses().Flush(ctx, w.Store, now()))
	require.WithinDuration(t, end, *last(), time.Millisecond)
}
