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
			told := func() bool {
				return count(t, c, `status = 'PENDING' AND status_data->'scheduler'->>'msg' LIKE '%quarantine: % sessions in a row %'`) == sessions
			}
			c.Until("those who wait are told", told)
			for probe := 1; probe <= cluster.MaxPlacements+1; probe++ {
				c.Pass(cluster.LastProbe)
				c.Until("a probe has failed", func() bool {
					trial := trialOf(t, c, agent.ID())
					return trial.Probes == probe && !trial.Probing && count(t, c, `status = 'PENDING'`) == sessions
				})
				c.Until("all are told again", told)
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

// TestOneOwnerCannotCloseTheAgentForOthers: sessions of one owner that always fail use up probes, and no more than one each while others
// wait. What failed of theirs is nobody else's to read.
func TestOneOwnerCannotCloseTheAgentForOthers(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Cores: 1})
	agent := c.Agents[0]
	c.Exec(`INSERT INTO users (id, username, email, domain_name, resource_policy)
		VALUES ('00000000-0000-4000-8000-00000000bad0', 'mallory', 'mallory@x', 'default', 'default')`)
	c.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy)
		VALUES ('AKIAMALLORY', '', '00000000-0000-4000-8000-00000000bad0', 'default')`)
	c.Exec(`INSERT INTO project_members (project_id, user_id) SELECT id, '00000000-0000-4000-8000-00000000bad0' FROM projects`)
	mallory, err := c.Nouns().Tenancy.ActorOfUser(t.Context(), c.Admin(), "mallory@x")
	require.NoError(t, err)
	mallory.AccessKey = "AKIAMALLORY"
	schedulable := func(on bool) {
		require.NoError(t, c.Nouns().Nodes.SetSchedulable(t.Context(), c.Admin(), []cluster.AgentID{agent.ID()}, on))
	}
	schedulable(false)
	for i := range 8 {
		made, err := c.Nouns().Sessions.Create(t.Context(), mallory, request.Session{Name: fmt.Sprintf("poison-%d", i), Image: testkit.Image,
			Resources: map[string]string{"cpu": "1", "mem": "128m"}})
		require.NoError(t, err)
		kernel := c.Session(made.ID).MainKernel().ID
		agent.Engine.Inject(fake.Fault{Method: fake.Create, Kernel: kernel, Err: errors.New("no such thing as merger-plans")})
	}
	innocent := c.Create(request.Session{Name: "innocent"})
	schedulable(true)
	c.Until("the agent is in quarantine", func() bool { return !trialOf(t, c, agent.ID()).Since.IsZero() })
	c.Until("who waits is told", func() bool {
		return count(t, c, `name = 'innocent' AND status_data->'scheduler'->>'msg' LIKE '%sessions in a row%'`) == 1
	})
	require.Zero(t, count(t, c, `name = 'innocent' AND status_data::text LIKE '%merger-plans%'`), "what failed is its owner's to know")
	for range 8 {
		probes := trialOf(t, c, agent.ID()).Probes
		c.Pass(cluster.FirstProbe)
		c.Until("a probe has come to its end", func() bool {
			trial := trialOf(t, c, agent.ID())
			return trial.Since.IsZero() || trial.Probes > probes
		})
		if trialOf(t, c, agent.ID()).Since.IsZero() {
			break
		}
	}
	c.Running(innocent)
}
