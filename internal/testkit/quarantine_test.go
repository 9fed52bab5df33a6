package testkit_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// trialOf is what the manager holds against an agent.
func trialOf(t *testing.T, c *testkit.Cluster, id cluster.AgentID) (trial cluster.Trial) {
	t.Helper()
	var raw []byte
	require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT trial FROM agents WHERE id = $1`, string(id)).Scan(&raw))
	require.NoError(t, json.Unmarshal(raw, &trial))
	return trial
}

// count counts sessions by what a condition in SQL says of them.
func count(t *testing.T, c *testkit.Cluster, where string) (n int) {
	t.Helper()
	require.NoError(t, c.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions WHERE `+where).Scan(&n))
	return n
}

// TestAnAgentThatFailsEverySessionIsSetAside: the queue stays whole, the agent is tried with one session at a time, and the first one
// that starts opens it again.
func TestAnAgentThatFailsEverySessionIsSetAside(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"the engine's disk is full": fault.Exhaustedf("the disk of the container engine is full").WithReason(runtime.ReasonDisk),
		"nobody knows why":          errors.New("failed to set up container networking: could not find bridge docker0"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const sessions = 60
			c := testkit.New(t, testkit.Options{Cores: 64})
			agent := c.Agents[0]
			heal := agent.Engine.Inject(fake.Fault{Method: fake.Create, Err: err})
			var ids []cluster.SessionID
			for i := range sessions {
				ids = append(ids, c.Create(request.Session{Name: fmt.Sprintf("queued-%02d", i)}))
			}
			c.Until("the agent is in quarantine and holds nothing", func() bool {
				return !trialOf(t, c, agent.ID()).Since.IsZero() && count(t, c, `status = 'PENDING'`) == sessions
			})
			c.Until("those who wait are told", func() bool {
				return count(t, c, `status = 'PENDING' AND status_data->'scheduler'->>'msg' LIKE '%quarantine: % sessions in a row %'`) == sessions
			})
			for probe := 1; probe <= cluster.MaxPlacements+1; probe++ {
				c.Pass(cluster.LastProbe)
				c.Until("a probe has failed", func() bool {
					trial := trialOf(t, c, agent.ID())
					return trial.Probes == probe && !trial.Probing && count(t, c, `status = 'PENDING'`) == sessions
				})
			}
			require.Zero(t, count(t, c, `status = 'ERROR'`), "no session ends for the agent's failures")
			page, err := c.Nouns().Nodes.Get(t.Context(), c.Admin(), agent.ID())
			require.NoError(t, err)
			blocking, ok := cluster.Blocking(page.Conditions)
			require.True(t, ok)
			require.Equal(t, cluster.ConditionQuarantine, blocking.Type)
			require.WithinDuration(t, time.Now(), blocking.Since, time.Hour)

			heal()
			c.Pass(cluster.LastProbe)
			for _, id := range ids[:20] { // more would meet the limit of the owner's live sessions
				c.Running(id)
			}
			require.Zero(t, count(t, c, `status = 'ERROR'`))
			require.Equal(t, cluster.Trial{}, trialOf(t, c, agent.ID()))
		})
	}
}

// TestOneSessionCannotSetAgentsAside: what fails for reasons of its own ends after its attempts, and the agent goes on.
func TestOneSessionCannotSetAgentsAside(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{})
	heal := c.Agents[0].Engine.Inject(fake.Fault{Method: fake.Create, Err: errors.New("argument list too long")})
	require.Equal(t, cluster.Error, c.Ended(c.Create(request.Session{Name: "never-starts"})).Status)
	heal()
	c.Running(c.Create(request.Session{Name: "starts"}))
	c.Until("nothing is held against the agent", func() bool { return trialOf(t, c, c.Agents[0].ID()).Failures == nil })
}
