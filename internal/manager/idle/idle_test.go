package idle_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

const (
	minute = time.Minute
	hour   = time.Hour
)

func lifetime(limit, warn time.Duration) idle.Checker {
	return idle.Checker{Name: "life", Type: idle.Lifetime, Limit: limit, Warn: warn}
}

func network(limit, warn time.Duration) idle.Checker {
	return idle.Checker{Name: "net", Type: idle.Network, Limit: limit, Warn: warn}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	grant := func(until time.Duration, admin bool) *idle.Grant {
		return &idle.Grant{Until: at(until), Admin: admin, By: "x"}
	}
	cases := []struct {
		name     string
		session  idle.Session
		checker  idle.Checker
		now      time.Duration
		phase    idle.Phase
		deadline time.Duration // 0: none
		tell     bool
	}{
		{"young", idle.Session{}, lifetime(hour, 5*minute), 10 * minute, idle.Active, hour, false},
		{"warning is due", idle.Session{}, lifetime(hour, 5*minute), 55 * minute, idle.Idle, hour, true},
		{"warned", idle.Session{Warned: map[string]time.Time{"life": at(55 * minute)}}, lifetime(hour, 5*minute), 58 * minute, idle.Idle, hour, false},
		{"over", idle.Session{Warned: map[string]time.Time{"life": at(55 * minute)}}, lifetime(hour, 5*minute), hour, idle.Expired, hour, false},
		{"a late warning moves the end", idle.Session{}, lifetime(hour, 5*minute), 10 * hour, idle.Idle, 10*hour + 5*minute, true},
		{"warned late", idle.Session{Warned: map[string]time.Time{"life": at(10 * hour)}}, lifetime(hour, 5*minute), 10*hour + 4*minute, idle.Idle, 10*hour + 5*minute, false},
		{"no warning wanted", idle.Session{}, lifetime(hour, 0), hour, idle.Expired, hour, false},
		{"no limit", idle.Session{}, lifetime(0, 0), 1000 * hour, idle.Excluded, 0, false},
		{"never ran", idle.Session{StartedAt: time.Unix(1, 0)}, lifetime(hour, 0), hour, idle.Excluded, 0, false},
		{"inference", idle.Session{Type: cluster.Inference}, idle.Checker{Name: "x", Type: idle.Lifetime, Limit: hour, Targets: []cluster.SessionType{cluster.Inference}}, 2 * hour, idle.Excluded, 0, false},
		{"grace", idle.Session{}, idle.Checker{Name: "x", Type: idle.Lifetime, Limit: hour, Grace: 2 * hour}, 90 * minute, idle.Grace, 0, false},
		{"a new user", idle.Session{UserSince: at(-hour)}, idle.Checker{Name: "x", Type: idle.Lifetime, Limit: minute, NewUserGrace: 2 * hour}, 30 * minute, idle.Grace, 0, false},
		{"an owner's grant does not lengthen life", idle.Session{Keep: grant(5*hour, false)}, lifetime(hour, 0), 2 * hour, idle.Expired, hour, false},
		{"an administrator's does", idle.Session{Keep: grant(5*hour, true)}, lifetime(hour, 0), 2 * hour, idle.Excluded, 0, false},

		{"in use", idle.Session{LastAccess: at(50 * minute)}, network(hour, 5*minute), 70 * minute, idle.Active, 110 * minute, false},
		{"unused", idle.Session{}, network(hour, 5*minute), 56 * minute, idle.Idle, 61 * minute, true},
		{"used after the warning", idle.Session{LastAccess: at(58 * minute), Warned: map[string]time.Time{"net": at(55 * minute)}}, network(hour, 5*minute), 118 * minute, idle.Idle, 123 * minute, true},
		{"batch", idle.Session{Type: cluster.Batch}, network(minute, 0), hour, idle.Excluded, 0, false},
		{"system", idle.Session{Type: cluster.System}, idle.Checker{Name: "x", Type: idle.Network, Limit: minute, Targets: []cluster.SessionType{cluster.System}}, hour, idle.Excluded, 0, false},
		{"kept", idle.Session{Keep: grant(5*hour, false)}, network(hour, 0), 2 * hour, idle.Excluded, 0, false},
		{"the end of a grant counts as use", idle.Session{Keep: grant(5*hour, false)}, network(hour, 0), 5*hour + 30*minute, idle.Active, 6 * hour, false},
		{"and then it is over", idle.Session{Keep: grant(5*hour, false)}, network(hour, 0), 6 * hour, idle.Expired, 6 * hour, false},
		{"not a type of this version", idle.Session{}, idle.Checker{Name: "x", Type: "moon"}, hour, idle.Excluded, 0, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := c.session
			if s.StartedAt = start; c.session.StartedAt.Unix() == 1 {
				s.StartedAt = time.Time{}
			}
			if s.Type == "" {
				s.Type = cluster.Interactive
			}
			v := idle.Judge(s, []idle.Checker{c.checker}, at(c.now))[0]
			require.Equal(t, c.phase, v.Phase, v.Why)
			require.Equal(t, c.tell, v.Tell)
			require.NotEmpty(t, v.Why)
			if c.deadline == 0 {
				require.True(t, v.Deadline.IsZero(), "%s", v.Deadline)
			} else {
				require.Equal(t, at(c.deadline), v.Deadline)
			}
		})
	}
}

// samples makes one a minute over the window that ends at now.
func samples(now time.Time, window time.Duration, values map[string]float64) []idle.Sample {
	var out []idle.Sample
	for b := idle.BucketOf(now) - int64(window/idle.Bucket); b < idle.BucketOf(now); b++ {
		out = append(out, idle.Sample{Bucket: b, Values: values})
	}
	return out
}

func busyness(window time.Duration, op idle.Operator, thresholds map[string]float64) idle.Checker {
	return idle.Checker{Name: "use", Type: idle.Utilization, Use: idle.Use{Window: window, Operator: op, Thresholds: thresholds}}
}

// Every combination of two resources that are under their thresholds, not under, unknown or not allocated.
func TestOperators(t *testing.T) {
	t.Parallel()
	type state string
	const under, over, unknown, absent = state("under"), state("over"), state("unknown"), state("absent")
	now := at(hour)
	judge := func(op idle.Operator, cpu, gpu state) idle.Phase {
		k := idle.Kernel{ID: "k", Allocated: cluster.Slots{}}
		values := map[string]float64{}
		for _, r := range []struct {
			slot   cluster.SlotName
			metric string
			is     state
		}{{cluster.SlotCPU, "cpu_util", cpu}, {"cuda.device", "cuda_util", gpu}} {
			if r.is != absent {
				k.Allocated[r.slot] = cluster.Whole(1)
			}
			switch r.is {
			case under:
				values[r.metric] = 1
			case over:
				values[r.metric] = 90
			}
		}
		k.Samples = samples(now, 10*minute, values)
		s := idle.Session{Type: cluster.Interactive, StartedAt: start, Kernels: []idle.Kernel{k}}
		return idle.Judge(s, []idle.Checker{busyness(10*minute, op, map[string]float64{"cpu_util": 10, "cuda_util": 10})}, now)[0].Phase
	}
	for _, c := range []struct {
		cpu, gpu state
		and, or  idle.Phase
	}{
		{under, under, idle.Expired, idle.Expired},
		{under, over, idle.Active, idle.Expired},
		{over, over, idle.Active, idle.Active},
		{under, unknown, idle.Unknown, idle.Expired},
		{over, unknown, idle.Active, idle.Unknown},
		{unknown, unknown, idle.Unknown, idle.Unknown},
		{under, absent, idle.Expired, idle.Expired},
		{over, absent, idle.Active, idle.Active},
		{unknown, absent, idle.Unknown, idle.Unknown},
		{absent, absent, idle.Excluded, idle.Excluded},
	} {
		require.Equal(t, c.and, judge(idle.And, c.cpu, c.gpu), "%s and %s", c.cpu, c.gpu)
		require.Equal(t, c.or, judge(idle.Or, c.cpu, c.gpu), "%s or %s", c.cpu, c.gpu)
		require.Equal(t, c.or, judge(idle.Or, c.gpu, c.cpu), "%s or %s", c.gpu, c.cpu)
	}
}

func TestMeasures(t *testing.T) {
	t.Parallel()
	now := at(hour)
	two := cluster.Slots{cluster.SlotCPU: cluster.Whole(2), cluster.SlotMem: cluster.Whole(1000)}
	kernel := func(id string, window time.Duration, values map[string]float64) idle.Kernel {
		return idle.Kernel{ID: cluster.KernelID(id), Allocated: two, Samples: samples(now, window, values)}
	}
	judge := func(c idle.Checker, kernels ...idle.Kernel) idle.Verdict {
		return idle.Judge(idle.Session{Type: cluster.Interactive, StartedAt: start, Kernels: kernels}, []idle.Checker{c}, now)[0]
	}
	c := busyness(10*minute, idle.And, map[string]float64{"cpu_util": 10, "mem": 50})

	v := judge(c, kernel("a", 10*minute, map[string]float64{"cpu_util": 10, "mem": 100}), kernel("b", 10*minute, map[string]float64{"cpu_util": 0, "mem": 300}))
	require.Equal(t, idle.Expired, v.Phase)
	require.InDelta(t, 2.5, *v.Figures[0].Percent, 1e-9, "of all the cores of the session")
	require.InDelta(t, 20, *v.Figures[1].Percent, 1e-9, "used of allocated")
	require.InDelta(t, 1, v.Figures[0].Coverage, 1e-9)

	require.Equal(t, idle.Unknown, judge(c, kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0}), kernel("b", 0, nil)).Phase,
		"a kernel of which nothing is known may be the busy one")
	require.Equal(t, idle.Unknown, judge(c, kernel("a", 7*minute, map[string]float64{"cpu_util": 0, "mem": 0})).Phase, "covers 70 %")
	old := kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0})
	old.Samples = old.Samples[:4]
	require.Equal(t, idle.Unknown, judge(c, old).Phase)
	wide := busyness(50*minute, idle.And, map[string]float64{"cpu_util": 10})
	old = kernel("a", 50*minute, map[string]float64{"cpu_util": 0})
	old.Samples = old.Samples[:45]
	require.Equal(t, idle.Unknown, judge(wide, old).Phase, "the newest figures are missing")
	require.Equal(t, idle.Grace, judge(busyness(2*hour, idle.And, map[string]float64{"cpu_util": 10}), old).Phase, "it runs for less than the window")

	spike := kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0})
	spike.Samples[3].Values = map[string]float64{"cpu_util": 200, "mem": 0}
	v = judge(c, spike)
	require.Equal(t, idle.Active, v.Phase, "a minute of full use is 10 % of the window")
	require.True(t, v.Deadline.IsZero())
}

func genSession(t *rapid.T, withUse bool) (idle.Session, time.Time) {
	now := start.Add(time.Duration(rapid.IntRange(0, 100*3600).Draw(t, "age")) * time.Second)
	s := idle.Session{
		Type: rapid.SampledFrom([]cluster.SessionType{cluster.Interactive, cluster.Batch, cluster.Inference, cluster.System}).Draw(t, "type"),
		ID:   "s", StartedAt: start, Warned: map[string]time.Time{},
	}
	if rapid.Bool().Draw(t, "accessed") {
		s.LastAccess = start.Add(time.Duration(rapid.IntRange(0, 100*3600).Draw(t, "access")) * time.Second)
	}
	if rapid.Bool().Draw(t, "warned") {
		s.Warned["use"] = now.Add(-time.Duration(rapid.IntRange(0, 7200).Draw(t, "warnedAgo")) * time.Second)
	}
	for i := range rapid.IntRange(1, 3).Draw(t, "kernels") {
		k := idle.Kernel{ID: cluster.KernelID(rune('a' + i)), Allocated: cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 30)}}
		if withUse {
			k.Samples = samples(now, time.Duration(rapid.IntRange(0, 60).Draw(t, "measured"))*minute, map[string]float64{"cpu_util": rapid.Float64Range(0, 100).Draw(t, "cpu")})
		}
		s.Kernels = append(s.Kernels, k)
	}
	return s, now
}

func genUse(t *rapid.T) idle.Checker {
	c := busyness(time.Duration(rapid.IntRange(1, 60).Draw(t, "window"))*minute, rapid.SampledFrom([]idle.Operator{idle.And, idle.Or}).Draw(t, "op"),
		map[string]float64{"cpu_util": rapid.Float64Range(0, 100).Draw(t, "threshold"), "mem": 100})
	c.Warn = time.Duration(rapid.IntRange(0, 600).Draw(t, "warn")) * time.Second
	return c
}

func TestNoDataNeverExpires(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, now := genSession(t, false)
		v := idle.Judge(s, []idle.Checker{genUse(t)}, now)[0]
		require.NotContains(t, []idle.Phase{idle.Idle, idle.Expired}, v.Phase)
		require.True(t, v.Deadline.IsZero())
	})
}

// However often one looks and whatever happens, a session is told at least as early as its checker says, and it ends by the earliest deadline.
func TestNobodyEndsUntold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secs := func(name string, lo, hi int) time.Duration {
			return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Second
		}
		checkers := []idle.Checker{
			network(secs("inactivity", 10, 4000), secs("warn1", 0, 900)), lifetime(secs("life", 10, 20000), secs("warn2", 0, 900)), genUse(t),
		}
		s, _ := genSession(t, false)
		s.Type, s.LastAccess, s.Warned = cluster.Interactive, time.Time{}, map[string]time.Time{}
		now := start
		for range 400 {
			now = now.Add(secs("step", 1, 600))
			if rapid.IntRange(0, 5).Draw(t, "access") == 0 {
				s.LastAccess = now
			}
			use := rapid.Float64Range(0, 100).Draw(t, "use")
			for i := range s.Kernels {
				s.Kernels[i].Samples = samples(now, hour, map[string]float64{"cpu_util": use, "mem": 0})
			}
			verdicts := idle.Judge(s, checkers, now)
			if end, ok := idle.Ends(verdicts); ok {
				require.False(t, now.Before(end.Deadline))
				if w := end.Checker.Warn; w > 0 {
					require.False(t, now.Before(s.Warned[end.Checker.Name].Add(w)), "told at %s, ends at %s, promised %s", s.Warned[end.Checker.Name], now, w)
				}
				for _, v := range verdicts {
					if v.Phase == idle.Expired {
						require.False(t, v.Deadline.Before(end.Deadline), "the earliest deadline wins")
					}
				}
				return
			}
			next := idle.Next(verdicts)
			require.True(t, next.IsZero() || next.After(now), "next look at %s, now %s", next, now)
			for _, v := range verdicts {
				if v.Tell {
					s.Warned[v.Checker.Name] = now
				} else if v.Phase == idle.Active || v.Phase == idle.Unknown {
					delete(s.Warned, v.Checker.Name)
				}
				if v.Phase == idle.Active && v.Next.IsZero() {
					require.Equal(t, idle.Utilization, v.Checker.Type)
				}
			}
		}
	})
}

func TestDryRunsEndNothing(t *testing.T) {
	t.Parallel()
	c := lifetime(hour, 0)
	c.DryRun = true
	verdicts := idle.Judge(idle.Session{Type: cluster.Batch, StartedAt: start}, []idle.Checker{c, lifetime(3*hour, 0)}, at(2*hour))
	require.Equal(t, idle.Expired, verdicts[0].Phase)
	_, ok := idle.Ends(verdicts)
	require.False(t, ok)
	v, ok := idle.Ends(idle.Judge(idle.Session{Type: cluster.Batch, StartedAt: start}, []idle.Checker{c, lifetime(3*hour, 0)}, at(3*hour)))
	require.True(t, ok)
	require.False(t, v.Checker.DryRun)
}
