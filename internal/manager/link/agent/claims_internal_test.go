package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// TestFactsAreTakenAtARate: a burst is taken as it comes, then one report in an interval, the newest, with words about the others.
func TestFactsAreTakenAtARate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	var g factsGate
	facts := func(n int64) *node.Facts { return &node.Facts{Revision: n} }
	for n := range int64(factsBurst) {
		ready, wait := g.take(facts(n), now)
		require.Equal(t, n, ready.GetRevision())
		require.Zero(t, wait)
	}
	for n := range int64(1000) {
		ready, wait := g.take(facts(100+n), now)
		require.Nil(t, ready)
		require.Equal(t, factsEvery, wait)
	}
	ready, wait := g.take(nil, now.Add(factsEvery-time.Second))
	require.Nil(t, ready)
	require.Equal(t, time.Second, wait)
	ready, _ = g.take(nil, now.Add(factsEvery))
	require.EqualValues(t, 1099, ready.GetRevision(), "the newest")
	require.Contains(t, g.words(), "999 reports")
	require.Empty(t, g.words(), "said once")
	ready, wait = g.take(nil, now.Add(factsEvery))
	require.Nil(t, ready)
	require.Zero(t, wait, "nothing waits")
	now = now.Add(time.Hour)
	for n := range int64(factsBurst) {
		ready, _ := g.take(facts(n), now)
		require.NotNil(t, ready, "who was quiet has a burst again, no more")
	}
	ready, _ = g.take(facts(1), now)
	require.Nil(t, ready)
	ready, _ = g.take(nil, now.Add(-time.Hour))
	require.NotNil(t, ready, "a clock that was put back holds nothing up")
}

// TestAnAgentBringsUpFewNames: reports with ever new names end, by agent.
func TestAnAgentBringsUpFewNames(t *testing.T) {
	t.Parallel()
	for what, report := range map[string]func(n int) *node.Facts{
		"slots":   func(n int) *node.Facts { return &node.Facts{Slots: map[string]string{fmt.Sprint("s", n): "1"}} },
		"devices": func(n int) *node.Facts { return &node.Facts{Devices: []*node.Device{{Slot: fmt.Sprint("s", n)}}} },
		"models": func(n int) *node.Facts {
			return &node.Facts{Devices: []*node.Device{{Slot: "cuda", Model: fmt.Sprint("m", n)}}}
		},
		"archs": func(n int) *node.Facts { return &node.Facts{Architecture: fmt.Sprint("a", n)} },
	} {
		var known claims
		admitted := 0
		for n := range 10_000 {
			if err := known.admit("evil", report(n)); err != nil {
				require.True(t, fault.Is(err, fault.Exhausted))
				require.Contains(t, fault.NextOf(err), "certificate revoke")
				break
			}
			admitted++
		}
		require.GreaterOrEqual(t, admitted, maxArchs, what)
		require.LessOrEqual(t, admitted, maxModels, what)
		require.NoError(t, known.admit("evil", report(0)), "%s: what it had before is no new name", what)
		require.NoError(t, known.admit(cluster.AgentID("good"), report(9_999)), "%s: another agent", what)
	}
}
