package testkit_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// runs counts how often the command of a batch session was executed, on all hosts.
func runs(c *testkit.Cluster, id cluster.SessionID) (n int) {
	k := c.Session(id).MainKernel().ID
	for _, a := range c.Agents {
		n += a.Runs(k)
	}
	return n
}

// started makes a job that runs on the first agent while no runner answers there, so that the manager does not know that it runs.
func started(c *testkit.Cluster, r request.Session) cluster.SessionID {
	c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Dial, Hang: true})
	c.Agents[1].SetSchedulable(false)
	r.Type, r.StartupCommand = cluster.Batch, testkit.Held+"; exit 0"
	id := c.Create(r)
	c.Until("the job has started", func() bool { return runs(c, id) == 1 })
	c.In(id, cluster.Creating)
	c.Agents[1].SetSchedulable(true)
	return id
}

// miss lets the deadlines of all kernels pass, and no lease.
func miss(c *testkit.Cluster) {
	c.Exec(`UPDATE kernels SET deadline = now() - interval '1 second' WHERE deadline IS NOT NULL`)
}

// TestAJobOfALostAgentRunsOnce: the agent was lost while the job started, so nobody knows whether it did.
func TestAJobOfALostAgentRunsOnce(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2})
	id, again := started(c, request.Session{Name: "once"}), started(c, request.Session{Name: "again", RerunOnAgentLoss: true})
	a := c.Agents[0]
	a.Stop()
	c.Pass(time.Minute)
	c.Until("the kernel is lost", func() bool { return c.Session(id).MainKernel().Status == cluster.Lost })
	c.Pass(10 * time.Minute)
	s := c.Ended(id)
	require.Equal(t, string(cluster.ReasonAgentLost), s.StatusInfo)
	require.Equal(t, 1, runs(c, id), "nothing runs twice")
	s = c.Running(again)
	require.Equal(t, c.Agents[1].ID(), s.MainKernel().Agent, "its owner allowed it")
	require.Equal(t, 2, runs(c, again))
	c.Release()
	require.Equal(t, cluster.ResultSuccess, c.Ended(again).Result)
	a.Start()
	c.Clean()
}

// TestAMissedDeadlineAsksTheAgent: a job that misses a deadline goes to another agent only when its own says that it did not start.
func TestAMissedDeadlineAsksTheAgent(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2})
	id := started(c, request.Session{Name: "started"})
	miss(c)
	s := c.Ended(id)
	require.Equal(t, 1, runs(c, id), "nothing runs twice")
	require.Equal(t, int64(1), s.MainKernel().Generation)

	c.Agents[1].SetSchedulable(false)
	back := c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Create, Hang: true})
	id = c.Batch("stuck", "exit 0")
	c.In(id, cluster.Creating)
	c.Agents[1].SetSchedulable(true)
	c.Agents[0].SetSchedulable(false)
	miss(c)
	s = c.Ended(id)
	require.Equal(t, cluster.ResultSuccess, s.Result)
	require.Equal(t, c.Agents[1].ID(), s.MainKernel().Agent)
	require.Equal(t, 1, runs(c, id))
	back()
	c.Clean()
}

// TestSlotsAreFreeWhenTheAgentSaysSo: a session that was destroyed by force holds its slots for as long as its container is there.
func TestSlotsAreFreeWhenTheAgentSaysSo(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Cores: 2})
	whole := map[string]string{"cpu": "2", "mem": "128m"}
	first := c.Create(request.Session{Name: "first", Resources: whole})
	c.Running(first)
	back := c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Stop, Hang: true})
	c.Destroy(first, true)
	require.Equal(t, cluster.Terminated, c.Ended(first).Status, "the answer does not wait for the agent")
	next := c.Create(request.Session{Name: "next", Resources: whole})
	c.Until("it waits with its reason", func() bool { return c.Session(next).StatusInfo == "capacity" })
	require.Equal(t, 1, c.Agents[0].Containers())
	back()
	s := c.Running(next)
	require.Equal(t, int64(1), s.MainKernel().Generation, "it was never placed while the slots were taken")
	c.Destroy(next, true)
	c.Clean()
}
