package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

// TestRemediesCountAgents: what would help is said with numbers of agents, and only what would help.
func TestRemediesCountAgents(t *testing.T) {
	t.Parallel()
	with := func(id string, change func(a *scheduler.Agent)) scheduler.Agent {
		a := agent(id, 4, 8)
		change(&a)
		return a
	}
	off := func(id string) scheduler.Agent { return with(id, func(a *scheduler.Agent) { a.Schedulable = false }) }
	arm := func(id string) scheduler.Agent {
		return with(id, func(a *scheduler.Agent) { a.Architecture = "aarch64" })
	}
	hung := func(id string) scheduler.Agent {
		return with(id, func(a *scheduler.Agent) { a.Hung = []string{"v", "w"} })
	}
	lost := func(id string) scheduler.Agent { return with(id, func(a *scheduler.Agent) { a.Alive = false }) }
	armLost := with("z", func(a *scheduler.Agent) { a.Architecture, a.Alive = "riscv64", false })
	armOff := with("y", func(a *scheduler.Agent) { a.Architecture, a.Schedulable = "ppc64le", false })
	plain := job(1, 10, 0, ask(1, 1))
	foldered := job(1, 10, 0, ask(1, 1))
	foldered.Volumes = []string{"v", "w"}
	local := job(1, 10, 0, ask(1, 1))
	local.Kernels[0].Image, local.Kernels[0].Local = "local/mine:1", true
	only := job(1, 10, 0, ask(1, 1))
	only.Designated = []cluster.AgentID{"x", "arm"}
	for name, c := range map[string]struct {
		agents   []scheduler.Agent
		session  scheduler.Session
		text     string
		rejected map[string]int
		remedies []string
	}{
		"lost": {[]scheduler.Agent{lost("a"), lost("b")}, plain, "of 2 agents, 2 lost", map[string]int{"lost": 2}, nil},
		"excluded": {[]scheduler.Agent{off("a"), off("b"), lost("c")}, plain, "of 3 agents, 1 lost, 2 excluded from scheduling",
			map[string]int{"lost": 1, "not-schedulable": 2},
			[]string{"ask an administrator to allow scheduling on one of 2 excluded agents"}},
		"excluded before architecture": {[]scheduler.Agent{arm("a"), off("b")}, plain,
			"of 2 agents, 1 of another architecture than x86_64, 1 excluded from scheduling",
			map[string]int{"architecture": 1, "not-schedulable": 1},
			[]string{"ask an administrator to allow scheduling on one of 1 excluded agents"}},
		"architecture": {[]scheduler.Agent{arm("a"), arm("b"), armLost, armOff}, plain, "of 4 agents, 4 of another architecture than x86_64",
			map[string]int{"architecture": 4}, []string{"choose an image for aarch64"}},
		"architecture of none": {[]scheduler.Agent{armLost}, plain, "of 1 agents, 1 of another architecture than x86_64",
			map[string]int{"architecture": 1}, nil},
		"volumes": {[]scheduler.Agent{hung("a"), hung("b"), lost("c")}, foldered, "of 3 agents, 2 where v or w does not answer, 1 lost",
			map[string]int{"hung-volume": 2, "lost": 1},
			[]string{"wait until its folders' volume answers on one of 2 agents, or start it without folders"}},
		"images": {[]scheduler.Agent{agent("a", 4, 8), agent("b", 1, 1), lost("c")}, local,
			"of 3 agents, 2 without the image local/mine:1, which no registry has, 1 lost", map[string]int{"image": 2, "lost": 1},
			[]string{"ask an administrator to load image local/mine:1 on one of 2 agents, or choose an image of a registry"}},
		"designated": {[]scheduler.Agent{agent("a", 4, 8), agent("b", 4, 8), arm("arm")}, only,
			"of 3 agents, 1 of another architecture than x86_64, 2 not among the designated ones",
			map[string]int{"designated": 2, "architecture": 1}, []string{"choose an image for aarch64 or x86_64"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{Agents: c.agents, Pending: []scheduler.Session{c.session}})["s01"]
			require.Equal(t, scheduler.WaitsForAgent, d.Hold.Reason)
			require.Equal(t, "no agent can take it: "+c.text, d.Hold.Text)
			require.Equal(t, c.rejected, d.Hold.Rejected)
			require.Equal(t, c.remedies, d.Hold.Remedies)
			require.Empty(t, d.Hold.Shortfall)
			require.Zero(t, d.Hold.Estimate)
		})
	}
}

// TestTheBestAgentLacksLeast: the agent that an explanation names is the one with the smallest sum of missing parts, and the first of
// equal ones.
func TestTheBestAgentLacksLeast(t *testing.T) {
	t.Parallel()
	used := func(id cluster.AgentID, cpu int, gib int64) scheduler.Running {
		held := cores(cpu)
		held[cluster.SlotMem] = map[string]cluster.Amount{"root": cluster.Whole(gib << 30)}
		return holding(id, held)
	}
	for name, c := range map[string]struct {
		running  []scheduler.Running
		best     string
		lacks    string
		remedies []string
	}{
		"fewest cores": {[]scheduler.Running{used("a", 3, 0), used("b", 2, 0), used("c", 4, 0)}, "b", "2 cpu",
			[]string{"ask for 2 cpu at most", "wait for sessions on agent b to end"}},
		"parts of what is asked": {[]scheduler.Running{used("a", 1, 6), used("b", 2, 0), used("c", 4, 0)}, "b", "2 cpu",
			[]string{"ask for 2 cpu at most", "wait for sessions on agent b to end"}},
		"two slots": {[]scheduler.Running{used("a", 4, 0), used("b", 4, 8), used("c", 1, 5)}, "c", "1 cpu, 1 GiB mem",
			[]string{"ask for 3 cpu and 3 GiB mem at most", "wait for sessions on agent c to end"}},
		"nothing left": {[]scheduler.Running{used("a", 4, 8), used("b", 4, 8), used("c", 4, 7)}, "c", "4 cpu, 3 GiB mem",
			[]string{"wait for sessions on agent c to end"}},
		"the first of equal ones": {[]scheduler.Running{used("c", 2, 0), used("b", 2, 0), used("a", 2, 0)}, "a", "2 cpu",
			[]string{"ask for 2 cpu at most", "wait for sessions on agent a to end"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{
				Agents:  []scheduler.Agent{agent("a", 4, 8), agent("b", 4, 8), agent("c", 4, 8)},
				Running: c.running, Pending: []scheduler.Session{job(1, 10, 0, ask(4, 4))},
			})["s01"]
			require.Equal(t, "it asks for 4 cpu, 4 GiB mem, the best agent "+c.best+" lacks "+c.lacks+" now", d.Hold.Text)
			require.Equal(t, c.remedies, d.Hold.Remedies)
			require.Zero(t, d.Hold.Estimate)
		})
	}
}

// TestTheLargestAgentIsShortOfLeast: a session that is too big is told about the agent that comes nearest.
func TestTheLargestAgentIsShortOfLeast(t *testing.T) {
	t.Parallel()
	arm := agent("arm", 64, 64)
	arm.Architecture = "aarch64"
	for name, c := range map[string]struct {
		agents []scheduler.Agent
		want   string
	}{
		"cores":           {[]scheduler.Agent{agent("a", 2, 16), agent("b", 6, 16), agent("c", 4, 16), arm}, "the largest, b, is short of 2 cpu"},
		"parts":           {[]scheduler.Agent{agent("a", 7, 4), agent("b", 5, 16)}, "the largest, b, is short of 3 cpu"},
		"first of equals": {[]scheduler.Agent{agent("b", 4, 16), agent("a", 4, 16)}, "the largest, a, is short of 4 cpu"},
		"two slots":       {[]scheduler.Agent{agent("a", 7, 7), agent("b", 1, 8)}, "the largest, a, is short of 1 cpu, 1 GiB mem"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := plan(t, scheduler.Snapshot{Agents: c.agents, Pending: []scheduler.Session{job(1, 10, 0, ask(8, 8))}})["s01"]
			require.Equal(t, scheduler.TooBig, d.Hold.Reason)
			require.Equal(t, "it asks for 8 cpu, 8 GiB mem, more than any agent has: "+c.want, d.Hold.Text)
		})
	}
}

// TestWhoseEndIsWaitedFor: the session that ends last is named if it is the owner's own, the first by id of several.
func TestWhoseEndIsWaitedFor(t *testing.T) {
	t.Parallel()
	run := func(id cluster.SessionID, user, name string, life time.Duration, from int) scheduler.Running {
		x := holding("a", alloc.Allocation{cluster.SlotCPU: {[]string{"0", "1", "2", "3"}[from]: 1000}})
		x.ID, x.Owner, x.Name, x.Lifetime = id, owned(0, user, nil).Owner, name, life
		return x
	}
	for name, c := range map[string]struct {
		running []scheduler.Running
		who     string
		at      time.Duration
	}{
		"mine":         {[]scheduler.Running{run("r1", "ada", "one", time.Hour, 0)}, "session one", time.Hour},
		"of another":   {[]scheduler.Running{run("r1", "bob", "one", time.Hour, 0)}, "a session", time.Hour},
		"without name": {[]scheduler.Running{run("r1", "ada", "", time.Hour, 0)}, "a session", time.Hour},
		"the last to end": {
			[]scheduler.Running{run("r1", "ada", "one", time.Hour, 0), run("r2", "ada", "two", 2*time.Hour, 1)}, "session two", 2 * time.Hour},
		"the first by id": {
			[]scheduler.Running{run("r2", "ada", "two", time.Hour, 0), run("r1", "ada", "one", time.Hour, 1)}, "session one", time.Hour},
		"mine beside another": {
			[]scheduler.Running{run("r1", "bob", "one", time.Hour, 0), run("r2", "ada", "two", time.Hour, 1)}, "session two", time.Hour},
		"overdue": {[]scheduler.Running{run("r1", "ada", "one", time.Minute, 0)}, "session one", 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := owned(1, "ada", ask(4, 1))
			list, err := scheduler.Plan(scheduler.Snapshot{
				Now: now.Add(10 * time.Minute), Agents: []scheduler.Agent{agent("a", 4, 8)}, Running: c.running, Pending: []scheduler.Session{s},
			})
			require.NoError(t, err)
			e := list[0].Hold
			require.Equal(t, now.Add(c.at), e.Estimate)
			require.Equal(t, "wait for "+c.who+" on agent a to end, by "+now.Add(c.at).Format("2006-01-02 15:04:05 MST"),
				e.Remedies[len(e.Remedies)-1])
		})
	}
}

// TestEstimatesReachOneBeyondTheReservations: whoever comes next after those with a reservation gets an estimate, others do not.
func TestEstimatesReachOneBeyondTheReservations(t *testing.T) {
	t.Parallel()
	for _, reservations := range []int{1, 2} {
		c := filled(t, scheduler.Group{Backfill: scheduler.Backfill{Reservations: reservations}}, "a", "b", "c", "d")
		for n := range 4 {
			c.Enqueue("g", job(n, 10, time.Duration(n+1)*time.Hour, ask(4, 1)))
		}
		require.Len(t, pass(t, c, now), 4)
		for n := 4; n < 8; n++ {
			c.Enqueue("g", job(n, 10, 0, ask(4, int64(n-3))))
		}
		require.Empty(t, pass(t, c, now))
		for n := range 4 {
			e, _ := c.Explain(cluster.SessionID([]string{"s04", "s05", "s06", "s07"}[n]))
			require.Equal(t, n+1, e.Position)
			if n <= reservations {
				require.Equal(t, now.Add(time.Duration(n+1)*time.Hour), e.Estimate, "%d of %d", n, reservations)
			} else {
				require.Zero(t, e.Estimate, "%d of %d", n, reservations)
			}
		}
	}
}

// TestRolesAreNamedWhereTheyDoNotFit: a role that no agent is large enough for, or can take, is named, also beside a session that is alike
// but for the labels.
func TestRolesAreNamedWhereTheyDoNotFit(t *testing.T) {
	t.Parallel()
	gang := func(n int, role string) scheduler.Session {
		s := job(n, 10, 0, ask(1, 1), ask(9, 1))
		s.Kernels[1].Role = role
		return s
	}
	d := plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 4, 8)},
		Pending: []scheduler.Session{gang(1, "worker"), gang(2, "server"), gang(3, "")}})
	for id, words := range map[cluster.SessionID]string{"s01": "one of role worker asks for 9 cpu", "s02": "one of role server asks for 9 cpu",
		"s03": "one asks for 9 cpu"} {
		require.Equal(t, scheduler.TooBig, d[id].Hold.Reason, id)
		require.Contains(t, d[id].Hold.Text, "each of its 2 kernels must be placed, "+words, id)
	}
	arm := gang(1, "worker")
	arm.Kernels[1].Architecture = "riscv64"
	d = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 4, 8)}, Pending: []scheduler.Session{arm}})
	require.Contains(t, d["s01"].Hold.Text, "no agent can take its kernels of role worker: ")
}

// TestGangsAreExplainedByTheUnitThatFailed: units that fit are counted as placed, and the first that does not is explained.
func TestGangsAreExplainedByTheUnitThatFailed(t *testing.T) {
	t.Parallel()
	agents := []scheduler.Agent{agent("a", 4, 8), agent("b", 4, 8)}
	busy := []scheduler.Running{holding("b", cores(2))}
	gang := job(1, 10, 0, ask(3, 1), ask(3, 2))
	d := plan(t, scheduler.Snapshot{Agents: agents, Running: busy, Pending: []scheduler.Session{gang}})["s01"]
	require.Equal(t, scheduler.WaitsForCapacity, d.Hold.Reason)
	require.Equal(t, map[string]int{"cpu": 2}, d.Hold.Rejected)
	require.Equal(t, "each of its 2 kernels must be placed, one asks for 3 cpu, 1 GiB mem, the best agent b lacks 1 cpu now", d.Hold.Text)
	require.Equal(t, cluster.Slots{cluster.SlotCPU: 1000}, d.Hold.Shortfall)

	gang.SingleNode = true
	d = plan(t, scheduler.Snapshot{Agents: []scheduler.Agent{agent("a", 8, 8)}, Running: []scheduler.Running{holding("a", cores(3))},
		Pending: []scheduler.Session{gang}})["s01"]
	require.Equal(t, "its 2 kernels ask for 6 cpu, 3 GiB mem together on one agent, the best agent a lacks 1 cpu now", d.Hold.Text)
	require.Equal(t, []string{"wait for sessions on agent a to end"}, d.Hold.Remedies, "a smaller kernel is no advice for a gang")
}
