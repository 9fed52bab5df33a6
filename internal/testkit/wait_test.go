package testkit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestSilentAgentIsPassedOver: a placement that its agent never takes up goes to another one.
func TestSilentAgentIsPassedOver(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2})
	quiet := c.Agents[0]
	quiet.Stop()
	id := c.Create(request.Session{Name: "moves"})
	require.Equal(t, quiet.ID(), c.In(id, cluster.Scheduled).MainKernel().Agent)
	// Its lease still runs, but the time to take the kernel up is over.
	c.Overdue()
	s := c.Running(id)
	require.Equal(t, c.Agents[1].ID(), s.MainKernel().Agent)
	quiet.Start()
	c.Destroy(id, false)
	c.Ended(id)
	c.Clean()
	require.Zero(t, quiet.Starts(s.MainKernel().ID), "the agent that came late starts nothing")
}

// TestHungEngine: a creation that hangs ends with a name when no other agent can take it, and an
// end that hangs is forced.
func TestHungEngine(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	a := c.Agents[0]
	back := a.Engine.Inject(fake.Fault{Method: fake.Create, Hang: true})
	id := c.Create(request.Session{Name: "hangs"})
	c.Until("it is being created", func() bool {
		st := c.Session(id).Status
		return st == cluster.Preparing || st == cluster.Prepared || st == cluster.Creating
	})
	c.Until("it has been tried again, but not for ever", func() bool {
		c.Overdue()
		return c.Session(id).Status.Final()
	})
	s := c.Session(id)
	require.Equal(t, cluster.Error, s.Status)
	require.Contains(t, []string{string(cluster.ReasonCreateTimeout), string(cluster.ReasonStartTimeout)}, s.StatusInfo)
	back()
	c.Clean()
}

// TestAKernelIsToldToRunBeforeTheOthers: the news that a kernel runs waits for others of its session on the agent, but not for long.
func TestAKernelIsToldToRunBeforeTheOthers(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	back := c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Start, Hang: true, Times: 1})
	id := c.Create(request.Session{Name: "pair", ClusterSize: 2})
	run := func() (n int) {
		for _, k := range c.Session(id).Kernels {
			if k.Status == cluster.Running {
				n++
			}
		}
		return n
	}
	c.Until("one kernel runs", func() bool { return run() == 1 })
	require.NotEqual(t, cluster.Running, c.Session(id).Status)
	back()
	c.Running(id)
	c.Destroy(id, false)
	c.Ended(id)
	c.Clean()
}

// TestStubbornContainer: a container that ignores the request to end is killed after its grace, and a
// session whose agent does not answer ends at its deadline nevertheless.
func TestStubbornContainer(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Engine: func(o *fake.Options) {
		o.Program = func(s runtime.Spec) fake.Program { p := fake.DefaultProgram(s); p.Stubborn = true; return p }
	}})
	a := c.Agents[0]
	id := c.Create(request.Session{Name: "stubborn"})
	c.Running(id)
	a.Stop()
	c.Destroy(id, false)
	c.In(id, cluster.Terminating)
	c.Until("it has ended nevertheless", func() bool {
		c.Overdue()
		return c.Session(id).Status.Final()
	})
	s := c.Session(id)
	require.Equal(t, string(cluster.ReasonUserRequested), s.StatusInfo, "the first reason wins")
	require.Equal(t, 1, a.Engine.Count(), "nobody was there to remove it")
	a.Start()
	c.Clean()
}

func TestDependencies(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	after := func(name string, deps ...string) cluster.SessionID {
		return c.Create(request.Session{Name: name, Type: cluster.Batch, StartupCommand: "exit 0", Dependencies: deps})
	}
	first := c.Batch("first", testkit.Held+"; exit 0")
	c.Running(first)
	second := after("second", string(first))
	third := after("third", string(second), string(first))
	c.Until("it says for what it waits", func() bool { return c.Session(third).StatusInfo == "dependency" })
	c.Release()
	require.Equal(t, cluster.ResultSuccess, c.Ended(third).Result)
	require.Equal(t, cluster.ResultSuccess, c.Session(second).Result)

	bad := c.Batch("badly", testkit.Held+"; exit 1")
	c.Running(bad)
	never := after("never", string(bad))
	nor := after("neither", string(never))
	c.Release()
	for _, id := range []cluster.SessionID{never, nor} {
		s := c.Ended(id)
		require.Equal(t, cluster.Cancelled, s.Status)
		require.Equal(t, string(cluster.ReasonDependency), s.StatusInfo)
	}
	c.Clean()
}

func TestStartsAt(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	id := c.Create(request.Session{Name: "later", Type: cluster.Batch, StartupCommand: "exit 0", StartsAt: "1h"})
	c.Until("it says when it starts", func() bool { return c.Session(id).StatusInfo == "start-time" })
	c.Pass(time.Hour)
	require.Equal(t, cluster.ResultSuccess, c.Ended(id).Result)
}

// TestQueueMovesOn: what does not fit waits with numbers, and starts when there is room.
func TestQueueMovesOn(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Cores: 2})
	first := c.Create(request.Session{Name: "first", Resources: map[string]string{"cpu": "2", "mem": "128m"}})
	c.Running(first)
	second := c.Create(request.Session{Name: "second"})
	c.Until("it says what it lacks", func() bool { return c.Session(second).StatusInfo == "capacity" })
	data := c.Session(second).StatusData["scheduler"].(map[string]any)
	require.Equal(t, map[string]any{"cpu": "1"}, data["shortfall"])
	require.Contains(t, data["msg"], "lacks 1 cpu")
	c.Destroy(first, false)
	c.Running(second)
	c.Allocations()
	c.Destroy(second, false)
	c.Ended(second)
	c.Clean()
}

// TestOverrunBatch: where neither runner nor agent end a job that takes too long, the manager does.
func TestOverrunBatch(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	id := c.Create(request.Session{Name: "slow", Type: cluster.Batch, StartupCommand: "sleep 600", BatchTimeout: 300 * time.Millisecond})
	c.Running(id)
	c.Pass(2 * time.Minute)
	s := c.Ended(id)
	require.Equal(t, cluster.ResultFailure, s.Result)
	require.Equal(t, string(cluster.ReasonTaskTimeout), s.StatusInfo)
	c.Clean()
}
