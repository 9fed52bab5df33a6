package testkit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

var errDisk = fault.Exhaustedf("no space left on device")

func TestMain(m *testing.M) {
	testkit.ServeProcess()
	// The test database outlives the tests of a process.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("berth.dev/berth/internal/manager/store/storetest.StartServer.func1"))
}

// TestLife follows one session from its request to its end.
func TestLife(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	id := c.Create(request.Session{Name: "hello", Image: "python"})
	s := c.Running(id)
	require.Equal(t, c.Agents[0].ID(), s.MainKernel().Agent)
	require.Equal(t, 1, c.Agents[0].Starts(s.MainKernel().ID))
	require.NotEmpty(t, s.MainKernel().ContainerID)
	c.Allocations()
	c.Destroy(id, false)
	s = c.Ended(id)
	require.Equal(t, cluster.Terminated, s.Status)
	require.Equal(t, string(cluster.ReasonUserRequested), s.StatusInfo)
	c.Clean()
}

func TestBatchResults(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	good, bad := c.Batch("good", `print("fine")`), c.Batch("evil", `print("oh"); exit 3`)
	s := c.Ended(good)
	require.Equal(t, cluster.ResultSuccess, s.Result)
	require.Equal(t, cluster.Terminated, s.Status)
	require.Equal(t, 0, *s.MainKernel().ExitCode)
	s = c.Ended(bad)
	require.Equal(t, cluster.ResultFailure, s.Result)
	require.Equal(t, 3, *s.MainKernel().ExitCode)
	require.Equal(t, string(cluster.ReasonTaskFailed), s.StatusInfo)
	c.Clean()
}

// TestAgentDies: containers and batch jobs go on without their agent, and their ends count.
func TestAgentDies(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	a := c.Agents[0]
	stays, job := c.Create(request.Session{Name: "stays"}), c.Batch("the-job", testkit.Held+"; exit 4")
	k := c.Running(stays).MainKernel()
	c.Running(job)
	a.Stop()
	c.Release()
	c.Until("the job has ended", func() bool { return a.Containers() == 1 })
	a.Start()
	s := c.Ended(job)
	require.Equal(t, 4, *s.MainKernel().ExitCode)
	require.Equal(t, cluster.Running, c.Session(stays).Status)
	require.Equal(t, 1, a.Starts(k.ID), "nothing runs twice")
	require.Equal(t, 1, a.Starts(s.MainKernel().ID))
	c.Destroy(stays, false)
	c.Ended(stays)
	c.Clean()
}

// TestEndedWhileStopped: what an operator ends on a stopped host ends on request, with a result, and does not start again.
func TestEndedWhileStopped(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	a := c.Agents[0]
	shell, job := c.Create(request.Session{Name: "shell"}), c.Batch("the-job", testkit.Held+"; exit 0")
	k := c.Running(shell).MainKernel()
	c.Running(job)
	a.Stop()
	require.Equal(t, 2, a.EndAll())
	require.Zero(t, a.EndAll(), "once more changes nothing")
	a.Start()
	for _, id := range []cluster.SessionID{shell, job} {
		s := c.Ended(id)
		require.Equal(t, cluster.Terminated, s.Status)
		require.Equal(t, string(cluster.ReasonUserRequested), s.StatusInfo)
	}
	require.Equal(t, cluster.ResultFailure, c.Session(job).Result)
	require.Equal(t, 1, a.Starts(k.ID), "nothing runs twice")
	c.Clean()
}

// TestAgentStaysAway: its kernels are LOST after the lease and end after the grace; when it
// comes back it removes them.
func TestAgentStaysAway(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	a := c.Agents[0]
	id := c.Create(request.Session{Name: "lost"})
	k := c.Running(id).MainKernel()
	lost := func() bool { return c.Session(id).MainKernel().Status == cluster.Lost }

	a.Stop()
	c.Pass(time.Minute)
	c.Until("the kernel is lost", lost)
	require.Equal(t, cluster.Running, c.Session(id).Status, "the session keeps its status")
	listed, err := c.Client().KnownAgents(t.Context()) // what `berth agent list` shows when no status is asked for
	require.NoError(t, err)
	require.Len(t, listed, 1)
	require.Equal(t, "LOST", listed[0].Status)
	c.Allocations()
	a.Start()
	c.Until("the kernel is back", func() bool { return c.Session(id).MainKernel().Status == cluster.Running })
	require.Equal(t, 1, a.Starts(k.ID))

	a.Stop()
	c.Pass(time.Minute)
	// What the agent said before it stopped may be read late, and makes the kernel run once more.
	// So the grace ends whenever it has begun; nothing else grows older, or the session might end as an idle one.
	c.Until("the kernel is given up", func() bool {
		c.Exec(`UPDATE kernels SET lost_since = lost_since - interval '10 minutes' WHERE ended_at IS NULL`)
		return c.Session(id).Status.Final()
	})
	s := c.Session(id)
	require.Equal(t, string(cluster.ReasonAgentLost), s.StatusInfo)
	require.Equal(t, 1, a.Engine.Count(), "the container is still there")
	a.Start()
	c.Clean()
}

// TestManagerDies: a session that is asked for before and ends after a restart.
func TestManagerDies(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	m := c.Managers[0]
	stays, job := c.Create(request.Session{Name: "stays"}), c.Batch("the-job", testkit.Held+"; exit 5")
	k := c.Running(stays).MainKernel()
	c.Running(job)
	waits := c.Create(request.Session{Name: "waits"})
	m.Stop()
	c.Release()
	m.Start()
	c.Running(waits)
	require.Equal(t, 5, *c.Ended(job).MainKernel().ExitCode)
	require.Equal(t, 1, c.Agents[0].Starts(k.ID))
	for _, id := range []cluster.SessionID{stays, waits} {
		c.Destroy(id, false)
		c.Ended(id)
	}
	c.Clean()
}

// TestLeaderDies: another manager schedules on, and only one ever does.
func TestLeaderDies(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Managers: 2, Agents: 2})
	first := c.Create(request.Session{Name: "first"})
	c.Running(first)
	c.Managers[0].Stop()
	second := c.Create(request.Session{Name: "second", Agents: []string{string(c.Agents[1].ID())}})
	c.Running(second)
	c.Managers[0].Start()
	c.Managers[1].Stop()
	third := c.Create(request.Session{Name: "third", Agents: []string{string(c.Agents[0].ID())}})
	c.Running(third)
	c.Managers[1].Start()
	for _, id := range []cluster.SessionID{first, second, third} {
		c.Destroy(id, false)
		c.Ended(id)
	}
	c.Clean()
}

// TestFailsElsewhere: what one host cannot start goes to another, and not on for ever.
func TestFailsElsewhere(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2})
	back := c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Create, Err: errDisk})
	id := c.Create(request.Session{Name: "moves"})
	s := c.Running(id)
	require.Equal(t, c.Agents[1].ID(), s.MainKernel().Agent)
	c.Agents[1].Engine.Inject(fake.Fault{Method: fake.Create, Err: errDisk})
	other := c.Create(request.Session{Name: "fails"})
	s = c.Ended(other)
	require.Equal(t, cluster.Error, s.Status)
	require.Equal(t, string(cluster.ReasonFailedToCreate), s.StatusInfo)
	back()
	c.Destroy(id, true)
	c.Ended(id)
	c.Clean()
}
