package rule_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

const (
	minute = time.Minute
	hour   = time.Hour
)

func lifetime(limit, warn time.Duration) rule.Checker {
	return rule.Checker{Name: "life", Type: rule.Lifetime, Limit: limit, Warn: warn}
}

func network(limit, warn time.Duration) rule.Checker {
	return rule.Checker{Name: "net", Type: rule.Network, Limit: limit, Warn: warn}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	grant := func(until time.Duration, admin bool) *rule.Grant {
		return &rule.Grant{Until: at(until), Admin: admin, By: "x"}
	}
	cases := []struct {
		name     string
		session  rule.Session
		checker  rule.Checker
		now      time.Duration
		phase    rule.Phase
		deadline time.Duration // 0: none
		tell     bool
	}{
		{"young", rule.Session{}, lifetime(hour, 5*minute), 10 * minute, rule.Active, hour, false},
		{"warning is due", rule.Session{}, lifetime(hour, 5*minute), 55 * minute, rule.Idle, hour, true},
		{"warned", rule.Session{Warned: map[string]time.Time{"life": at(55 * minute)}}, lifetime(hour, 5*minute), 58 * minute, rule.Idle, hour,
			false},
		{"over", rule.Session{Warned: map[string]time.Time{"life": at(55 * minute)}}, lifetime(hour, 5*minute), hour, rule.Expired, hour, false},
		{"a late warning moves the end", rule.Session{}, lifetime(hour, 5*minute), 10 * hour, rule.Idle, 10*hour + 5*minute, true},
		{"warned late", rule.Session{Warned: map[string]time.Time{"life": at(10 * hour)}}, lifetime(hour, 5*minute), 10*hour + 4*minute,
			rule.Idle, 10*hour + 5*minute, false},
		{"no warning wanted", rule.Session{}, lifetime(hour, 0), hour, rule.Expired, hour, false},
		{"no limit", rule.Session{}, lifetime(0, 0), 1000 * hour, rule.Excluded, 0, false},
		{"never ran", rule.Session{StartedAt: time.Unix(1, 0)}, lifetime(hour, 0), hour, rule.Excluded, 0, false},
		{"inference", rule.Session{Type: cluster.Inference},
			rule.Checker{Name: "x", Type: rule.Lifetime, Limit: hour, Targets: []cluster.SessionType{cluster.Inference}}, 2 * hour, rule.Excluded, 0,
			false},
		{"grace", rule.Session{}, rule.Checker{Name: "x", Type: rule.Lifetime, Limit: hour, Grace: 2 * hour}, 90 * minute, rule.Grace, 0, false},
		{"a new user", rule.Session{UserSince: at(-hour)}, rule.Checker{Name: "x", Type: rule.Lifetime, Limit: minute, NewUserGrace: 2 * hour},
			30 * minute, rule.Grace, 0, false},
		{"an owner's grant does not lengthen life", rule.Session{Keep: grant(5*hour, false)}, lifetime(hour, 0), 2 * hour, rule.Expired, hour,
			false},
		{"an administrator's does", rule.Session{Keep: grant(5*hour, true)}, lifetime(hour, 0), 2 * hour, rule.Excluded, 0, false},

		{"in use", rule.Session{LastAccess: at(50 * minute)}, network(hour, 5*minute), 70 * minute, rule.Active, 110 * minute, false},
		{"unused", rule.Session{}, network(hour, 5*minute), 56 * minute, rule.Idle, 61 * minute, true},
		{"used after the warning", rule.Session{LastAccess: at(58 * minute), Warned: map[string]time.Time{"net": at(55 * minute)}},
			network(hour, 5*minute), 118 * minute, rule.Idle, 123 * minute, true},
		{"batch", rule.Session{Type: cluster.Batch}, network(minute, 0), hour, rule.Excluded, 0, false},
		{"system", rule.Session{Type: cluster.System},
			rule.Checker{Name: "x", Type: rule.Network, Limit: minute, Targets: []cluster.SessionType{cluster.System}}, hour, rule.Excluded, 0,
			false},
		{"kept", rule.Session{Keep: grant(5*hour, false)}, network(hour, 0), 2 * hour, rule.Excluded, 0, false},
		{"the end of a grant counts as use", rule.Session{Keep: grant(5*hour, false)}, network(hour, 0), 5*hour + 30*minute, rule.Active,
			6 * hour, false},
		{"and then it is over", rule.Session{Keep: grant(5*hour, false)}, network(hour, 0), 6 * hour, rule.Expired, 6 * hour, false},
		{"not a type of this version", rule.Session{}, rule.Checker{Name: "x", Type: "moon"}, hour, rule.Excluded, 0, false},
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
			v := rule.Judge(s, []rule.Checker{c.checker}, at(c.now))[0]
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
func samples(now time.Time, window time.Duration, values map[string]float64) []rule.Sample {
	var out []rule.Sample
	for b := rule.BucketOf(now) - int64(window/rule.Bucket); b < rule.BucketOf(now); b++ {
		out = append(out, rule.Sample{Bucket: b, Values: values})
	}
	return out
}

func busyness(window time.Duration, op rule.Operator, thresholds map[string]float64) rule.Checker {
	return rule.Checker{Name: "use", Type: rule.Utilization, Use: rule.Use{Window: window, Operator: op, Thresholds: thresholds}}
}

// Every combination of two resources that are under their thresholds, not under, unknown or not allocated.
func TestOperators(t *testing.T) {
	t.Parallel()
	type state string
	const under, over, unknown, absent = state("under"), state("over"), state("unknown"), state("absent")
	now := at(hour)
	judge := func(op rule.Operator, cpu, gpu state) rule.Phase {
		k := rule.Kernel{ID: "k", Allocated: cluster.Slots{}}
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
		s := rule.Session{Type: cluster.Interactive, StartedAt: start, Kernels: []rule.Kernel{k}}
		return rule.Judge(s, []rule.Checker{busyness(10*minute, op, map[string]float64{"cpu_util": 10, "cuda_util": 10})}, now)[0].Phase
	}
	for _, c := range []struct {
		cpu, gpu state
		and, or  rule.Phase
	}{
		{under, under, rule.Expired, rule.Expired},
		{under, over, rule.Active, rule.Expired},
		{over, over, rule.Active, rule.Active},
		{under, unknown, rule.Unknown, rule.Expired},
		{over, unknown, rule.Active, rule.Unknown},
		{unknown, unknown, rule.Unknown, rule.Unknown},
		{under, absent, rule.Expired, rule.Expired},
		{over, absent, rule.Active, rule.Active},
		{unknown, absent, rule.Unknown, rule.Unknown},
		{absent, absent, rule.Excluded, rule.Excluded},
	} {
		require.Equal(t, c.and, judge(rule.And, c.cpu, c.gpu), "%s and %s", c.cpu, c.gpu)
		require.Equal(t, c.or, judge(rule.Or, c.cpu, c.gpu), "%s or %s", c.cpu, c.gpu)
		require.Equal(t, c.or, judge(rule.Or, c.gpu, c.cpu), "%s or %s", c.gpu, c.cpu)
	}
}

func TestMeasures(t *testing.T) {
	t.Parallel()
	now := at(hour)
	two := cluster.Slots{cluster.SlotCPU: cluster.Whole(2), cluster.SlotMem: cluster.Whole(1000)}
	kernel := func(id string, window time.Duration, values map[string]float64) rule.Kernel {
		return rule.Kernel{ID: cluster.KernelID(id), Allocated: two, Samples: samples(now, window, values)}
	}
	judge := func(c rule.Checker, kernels ...rule.Kernel) rule.Verdict {
		return rule.Judge(rule.Session{Type: cluster.Interactive, StartedAt: start, Kernels: kernels}, []rule.Checker{c}, now)[0]
	}
	c := busyness(10*minute, rule.And, map[string]float64{"cpu_util": 10, "mem": 50})

	v := judge(c, kernel("a", 10*minute, map[string]float64{"cpu_util": 10, "mem": 100}),
		kernel("b", 10*minute, map[string]float64{"cpu_util": 0, "mem": 300}))
	require.Equal(t, rule.Expired, v.Phase)
	require.InDelta(t, 2.5, *v.Figures[0].Percent, 1e-9, "of all the cores of the session")
	require.InDelta(t, 20, *v.Figures[1].Percent, 1e-9, "used of allocated")
	require.InDelta(t, 1, v.Figures[0].Coverage, 1e-9)

	require.Equal(t, rule.Unknown, judge(c, kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0}), kernel("b", 0, nil)).Phase,
		"a kernel of which nothing is known may be the busy one")
	require.Equal(t, rule.Unknown, judge(c, kernel("a", 7*minute, map[string]float64{"cpu_util": 0, "mem": 0})).Phase, "covers 70 %")
	wants := func(percent float64) rule.Phase {
		u := busyness(10*minute, rule.And, map[string]float64{"cpu_util": 10})
		return judge(u, kernel("a", 10*minute, map[string]float64{"cpu_util": 2, "cpu_want": percent})).Phase
	}
	require.Equal(t, rule.Active, wants(97), "it computes all the time, and others leave it little")
	require.NotEqual(t, rule.Active, wants(20), "it waits for somebody on a full host")
	old := kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0})
	old.Samples = old.Samples[:4]
	require.Equal(t, rule.Unknown, judge(c, old).Phase)
	wide := busyness(50*minute, rule.And, map[string]float64{"cpu_util": 10})
	old = kernel("a", 50*minute, map[string]float64{"cpu_util": 0})
	old.Samples = old.Samples[:45]
	require.Equal(t, rule.Unknown, judge(wide, old).Phase, "the newest figures are missing")
	require.Equal(t, rule.Grace, judge(busyness(2*hour, rule.And, map[string]float64{"cpu_util": 10}), old).Phase,
		"it runs for less than the window")

	spike := kernel("a", 10*minute, map[string]float64{"cpu_util": 0, "mem": 0})
	spike.Samples[3].Values = map[string]float64{"cpu_util": 200, "mem": 0}
	v = judge(c, spike)
	require.Equal(t, rule.Active, v.Phase, "a minute of full use is 10 % of the window")
	require.True(t, v.Deadline.IsZero())
}

func genSession(t *rapid.T, withUse bool) (rule.Session, time.Time) {
	now := start.Add(time.Duration(rapid.IntRange(0, 100*3600).Draw(t, "age")) * time.Second)
	s := rule.Session{
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
		k := rule.Kernel{ID: cluster.KernelID(rune('a' + i)),
			Allocated: cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(1 << 30)}}
		if withUse {
			k.Samples = samples(now, time.Duration(rapid.IntRange(0, 60).Draw(t, "measured"))*minute,
				map[string]float64{"cpu_util": rapid.Float64Range(0, 100).Draw(t, "cpu")})
		}
		s.Kernels = append(s.Kernels, k)
	}
	return s, now
}

func genUse(t *rapid.T) rule.Checker {
	c := busyness(time.Duration(rapid.IntRange(1, 60).Draw(t, "window"))*minute, rapid.SampledFrom([]rule.Operator{rule.And, rule.Or}).
		Draw(t, "op"),
		map[string]float64{"cpu_util": rapid.Float64Range(0, 100).Draw(t, "threshold"), "mem": 100})
	c.Warn = time.Duration(rapid.IntRange(0, 600).Draw(t, "warn")) * time.Second
	return c
}

func TestNoDataNeverExpires(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, now := genSession(t, false)
		v := rule.Judge(s, []rule.Checker{genUse(t)}, now)[0]
		require.NotContains(t, []rule.Phase{rule.Idle, rule.Expired}, v.Phase)
		require.True(t, v.Deadline.IsZero())
	})
}

// However often one looks and whatever happens, a session is told at least as early as its checker says, and it ends by the
// earliest deadline.
func TestNobodyEndsUntold(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		secs := func(name string, lo, hi int) time.Duration {
			return time.Duration(rapid.IntRange(lo, hi).Draw(t, name)) * time.Second
		}
		checkers := []rule.Checker{
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
			verdicts := rule.Judge(s, checkers, now)
			if end, ok := rule.Ends(verdicts); ok {
				require.False(t, now.Before(end.Deadline))
				if w := end.Checker.Warn; w > 0 {
					require.False(t, now.Before(s.Warned[end.Checker.Name].Add(w)), "told at %s, ends at %s, promised %s", s.Warned[end.Checker.Name],
						now, w)
				}
				for _, v := range verdicts {
					if v.Phase == rule.Expired {
						require.False(t, v.Deadline.Before(end.Deadline), "the earliest deadline wins")
					}
				}
				return
			}
			next := rule.Next(verdicts)
			require.True(t, next.IsZero() || next.After(now), "next look at %s, now %s", next, now)
			for _, v := range verdicts {
				if v.Tell {
					s.Warned[v.Checker.Name] = now
				} else if v.Phase == rule.Active || v.Phase == rule.Unknown {
					delete(s.Warned, v.Checker.Name)
				}
				if v.Phase == rule.Active && v.Next.IsZero() {
					require.Equal(t, rule.Utilization, v.Checker.Type)
				}
			}
		}
	})
}

func TestDryRunsEndNothing(t *testing.T) {
	t.Parallel()
	c := lifetime(hour, 0)
	c.DryRun = true
	verdicts := rule.Judge(rule.Session{Type: cluster.Batch, StartedAt: start}, []rule.Checker{c, lifetime(3*hour, 0)}, at(2*hour))
	require.Equal(t, rule.Expired, verdicts[0].Phase)
	_, ok := rule.Ends(verdicts)
	require.False(t, ok)
	v, ok := rule.Ends(rule.Judge(rule.Session{Type: cluster.Batch, StartedAt: start}, []rule.Checker{c, lifetime(3*hour, 0)}, at(3*hour)))
	require.True(t, ok)
	require.False(t, v.Checker.DryRun)
}
