package bench_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// BenchmarkGang starts sessions of one kernel, of two kernels on two agents and of 16 on four, in turn and with engines in memory, and
// compares how long each takes to RUNNING. What is beyond the first is the price of placing a gang, giving it a network and bringing its
// kernels together.
func BenchmarkGang(b *testing.B) {
	const rounds = 20
	c := testkit.New(b, testkit.Options{Agents: 4, Cores: 64, Quiet: true})
	_, err := c.Store.Pool().Exec(b.Context(), `UPDATE keypair_resource_policies SET max_containers_per_session = 16`)
	require.NoError(b, err)
	sizes := []struct{ kernels, agents int }{{1, 1}, {2, 2}, {16, 4}}
	took := map[int][]time.Duration{}
	// As a user waits. Whoever asks again and again adds up to 10 ms, and makes the database slower.
	until := func(id cluster.SessionID, what session.Until, status cluster.Status) {
		b.Helper()
		state, late, err := c.Nouns().Sessions.Wait(b.Context(), c.Admin(), id, what, testkit.Patience)
		require.NoError(b, err)
		require.False(b, late)
		require.Equal(b, status, state.Status)
	}
	for n := 0; b.Loop(); n++ {
		for round := range rounds {
			for _, s := range sizes {
				// So many cores that no agent takes more kernels than it should.
				cpu := 64*s.agents/s.kernels - 1
				r := request.Session{Name: fmt.Sprintf("gang-%d-%d-%d", n, round, s.kernels), Image: testkit.Image, Type: cluster.Interactive,
					ClusterSize: s.kernels, ClusterMode: "multi-node", Resources: map[string]string{"cpu": fmt.Sprint(cpu), "mem": "128m"}}
				began := time.Now()
				made, err := c.Nouns().Sessions.Create(b.Context(), c.Admin(), r)
				require.NoError(b, err)
				until(made.ID, session.UntilStarted, cluster.Running)
				took[s.kernels] = append(took[s.kernels], time.Since(began))
				on := map[cluster.AgentID]bool{}
				for _, k := range c.Session(made.ID).Kernels {
					on[k.Agent] = true
				}
				require.Len(b, on, s.agents)
				_, err = c.Nouns().Sessions.Destroy(b.Context(), c.Admin(), string(made.ID), session.DestroyOptions{})
				require.NoError(b, err)
				until(made.ID, session.UntilEnded, cluster.Terminated)
			}
		}
	}
	one := median(took[1])
	b.ReportMetric(ms(one), "ms/one")
	b.ReportMetric(ms(median(took[2])), "ms/two")
	b.ReportMetric(ms(median(took[16])), "ms/sixteen")
	b.ReportMetric(median(took[2]).Seconds()/one.Seconds(), "two-of-one")
	b.ReportMetric(median(took[16]).Seconds()/one.Seconds(), "sixteen-of-one")
}
