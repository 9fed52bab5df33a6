package testkit_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestLeaderIsKilled: the process that schedules is killed in the middle of a thousand placements. The standby goes on within
// five seconds, and every container was started exactly once.
func TestLeaderIsKilled(t *testing.T) {
	t.Parallel()
	const jobs = 1000
	c := testkit.New(t, testkit.Options{Managers: 2, NoAgents: true, Cores: 32, Quiet: true,
		Manager: func(cfg *manager.Config) { cfg.Reconcile.LeaderTTL = manager.DefaultConfig().Reconcile.LeaderTTL }})
	c.Managers[1].Stop()
	leader := c.StartProcess("doomed")
	// What is left to lead is the process; the first manager comes back as the standby that serves clients and agents.
	c.Managers[0].Stop()
	c.Managers[0].Start()
	for range 4 {
		c.AddAgent()
	}
	count := func(query string, args ...any) (n int) {
		require.NoError(t, c.Store.Pool().QueryRow(t.Context(), query, args...).Scan(&n))
		return n
	}
	c.Until("four agents are known", func() bool {
		return count(`SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]'`) == 4
	})
	ids := make([]cluster.SessionID, jobs)
	admin, svc := c.Admin(), c.Nouns()
	// Half of the jobs come after the leader's end, so that it has not placed all before, however slow this process is.
	killed := make(chan struct{})
	var group sync.WaitGroup
	for w := range 16 {
		group.Go(func() {
			for i := w; i < jobs; i += 16 {
				if i >= jobs/2 {
					select {
					case <-killed:
					case <-t.Context().Done():
						return
					}
				}
				s, err := svc.Sessions.Create(t.Context(), admin, request.Session{Name: fmt.Sprintf("job-%d", i), Image: testkit.Image,
					Type: cluster.Batch, StartupCommand: "exit 0", Resources: map[string]string{"cpu": "1", "mem": "128m"}})
				if err != nil {
					t.Errorf("create job %d: %v", i, err)
					return
				}
				ids[i] = s.ID
			}
		})
	}
	placed := `SELECT count(*) FROM kernels WHERE scheduled_at IS NOT NULL`
	c.UntilAll("placements have come", 200, func() int { return count(placed) })
	leader.Kill()
	since, before := time.Now(), count(placed)
	close(killed)
	c.Until("the standby places", func() bool { return count(placed) > before })
	t.Logf("killed after %d placements; the next came after %s", before, time.Since(since).Round(time.Millisecond))
	group.Wait()
	c.UntilAll("jobs have ended", jobs, func() int {
		return count(`SELECT count(*) FROM sessions WHERE result = 'SUCCESS' AND ended_at IS NOT NULL`)
	})
	require.Zero(t, count(`SELECT count(*) FROM kernels WHERE generation <> 1`), "nothing was placed again")
	require.Equal(t, jobs, count(`SELECT count(*) FROM session_events WHERE kernel_id IS NOT NULL AND to_status = 'SCHEDULED'`),
		"each was placed once")
	for _, id := range ids {
		s := c.Session(id)
		starts := 0
		for _, a := range c.Agents {
			starts += a.Starts(s.MainKernel().ID)
		}
		require.Equal(t, 1, starts, "containers of %s", s.Name)
	}
	c.Clean()
}
