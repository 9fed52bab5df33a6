package resource_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
)

// binding is the level that binds one thing.
func binding(t *testing.T, l *resource.Limits, kind, what string) (resource.LimitLevel, bool) {
	t.Helper()
	for _, line := range l.Lines {
		if line.Kind == kind && line.What == what {
			if line.Binds < 0 {
				return resource.LimitLevel{}, false
			}
			return line.Levels[line.Binds], true
		}
	}
	t.Fatalf("there is no line about %s %s: %+v", kind, what, l.Lines)
	return resource.LimitLevel{}, false
}

// The preview names for each slot and count the level that leaves least, with its policy.
func TestLimitsNameTheLevelThatBinds(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Running("mylab", "a1")
	limits := func() *resource.Limits {
		l, err := w.Resources.Limits(ctx, w.Admin, "", "default", "")
		require.NoError(t, err)
		return l
	}
	held := w.Session(w.Running("other", "a1")).RequestedSlots[cluster.SlotCPU]
	cpu, limited := binding(t, limits(), resource.LimitOfRunning, "cpu")
	require.True(t, limited)
	require.Equal(t, "resource group", cpu.Level, "no policy limits it, the agents do")
	require.Equal(t, cluster.Whole(8), cpu.Limit)
	require.Equal(t, cpu.Limit-cpu.Used, cpu.Left)
	require.Equal(t, 2*held, cpu.Used)

	for level, sql := range map[string]string{
		"domain":  `UPDATE domains SET total_resource_slots = '{"cpu": 5000}'`,
		"project": `UPDATE projects SET total_resource_slots = '{"cpu": 4000}'`,
		"user":    `UPDATE keypair_resource_policies SET total_resource_slots = '{"cpu": 3000}'`,
	} {
		w.Exec(`UPDATE domains SET total_resource_slots = '{}'`)
		w.Exec(`UPDATE projects SET total_resource_slots = '{}'`)
		w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{}'`)
		w.Exec(sql)
		cpu, _ = binding(t, limits(), resource.LimitOfRunning, "cpu")
		require.Equal(t, level, cpu.Level)
		require.Equal(t, cpu.Limit-2*held, cpu.Left)
	}
	w.Exec(`UPDATE keypair_resource_policies SET max_concurrent_sessions = 2`)
	n, _ := binding(t, limits(), resource.LimitOfRunning, "live sessions")
	require.Equal(t, "default", n.Policy)
	require.EqualValues(t, 2, n.Limit)
	require.Zero(t, n.Left)
	_, limited = binding(t, limits(), resource.LimitOfWaiting, "waiting sessions")
	require.False(t, limited)
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = 3`)
	n, limited = binding(t, limits(), resource.LimitOfWaiting, "waiting sessions")
	require.True(t, limited)
	require.EqualValues(t, 3, n.Left)
	n, limited = binding(t, limits(), resource.LimitOfSession, "containers")
	require.True(t, limited)
	require.Equal(t, cluster.Whole(16), n.Limit)
}

// A policy below what is held leaves nothing, and takes nothing away.
func TestLimitsBelowUseLeaveNothing(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Running("mylab", "a1")
	w.Running("other", "a1")
	w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{"cpu": 1}', max_concurrent_sessions = 1`)
	l, err := w.Resources.Limits(t.Context(), w.Admin, "", "default", "default")
	require.NoError(t, err)
	for _, what := range []string{"cpu", "live sessions"} {
		b, _ := binding(t, l, resource.LimitOfRunning, what)
		require.Equal(t, "user", b.Level)
		require.Zero(t, b.Left)
		require.Greater(t, b.Used, b.Limit)
	}
	require.Equal(t, cluster.Running, w.Session(id).Status)
}

// Nobody asks about those whom they do not see, and administrators may keep totals of projects to themselves.
func TestLimitsOfOthers(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	stranger := w.Stranger("stranger")
	_, err := w.Resources.Limits(ctx, stranger, w.Admin.Email, "default", "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.Resources.Limits(ctx, authz.Actor{}, "", "default", "")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Resources.Limits(ctx, w.Admin, "", "default", "nowhere")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.NoError(t, w.Resources.SetProjectResourcesHidden(ctx, w.Admin, true))
	user := w.Admin
	user.Role = authz.RoleUser
	w.Exec(`UPDATE projects SET total_resource_slots = '{"cpu": 1000}'`)
	w.Agent("a1", 8, 16*managertest.GiB)
	l, err := w.Resources.Limits(ctx, user, "", "default", "")
	require.NoError(t, err)
	for _, line := range l.Lines {
		for _, level := range line.Levels {
			if level.Level == "project" || level.Level == "domain" {
				require.True(t, level.Hidden)
				require.Zero(t, level.Limit+level.Used+level.Left)
			}
		}
	}
}

// Who is not active may start nothing, and the preview names the level that is not.
func TestLimitsOfInactiveOwnersLeaveNothing(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	for level, change := range map[string][2]string{
		"project": {`UPDATE projects SET is_active = false`, `UPDATE projects SET is_active = true`},
		"domain":  {`UPDATE domains SET is_active = false`, `UPDATE domains SET is_active = true`},
		"user":    {`UPDATE users SET status = 'inactive'`, `UPDATE users SET status = 'active'`},
		"keypair": {`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET is_active = true`},
	} {
		w.Exec(change[0])
		l, err := w.Resources.Limits(ctx, w.Admin, "", "default", "")
		require.NoError(t, err, level)
		for _, what := range []string{"cpu", "live sessions"} {
			b, limited := binding(t, l, resource.LimitOfRunning, what)
			require.True(t, limited, "%s %s", level, what)
			require.Equal(t, level, b.Level, what)
			require.Zero(t, b.Left, "%s %s", level, what)
		}
		w.Exec(change[1])
	}
}
