package rule_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
)

// The use of accelerators is measured in percent of one device, and counts against what the session holds: a tenth of a card that works
// all the time is busy, and eight cards of which each works a little are not.
func TestUseOfWhatIsHeld(t *testing.T) {
	t.Parallel()
	now := at(hour)
	for _, c := range []struct {
		name    string
		holds   cluster.Slots
		util    float64
		percent float64
		phase   rule.Phase
	}{
		{"one that works", cluster.Slots{"cuda.device": cluster.Whole(1)}, 80, 80, rule.Active},
		{"one that does not", cluster.Slots{"cuda.device": cluster.Whole(1)}, 5, 5, rule.Expired},
		{"eight that hardly do", cluster.Slots{"cuda.device": cluster.Whole(8)}, 40, 5, rule.Expired},
		{"eight that work", cluster.Slots{"cuda.device": cluster.Whole(8)}, 400, 50, rule.Active},
		{"a tenth that works", cluster.Slots{"cuda.shares": cluster.Milli / 10}, 8, 80, rule.Active},
		{"a tenth that does not", cluster.Slots{"cuda.shares": cluster.Milli / 10}, 0.5, 5, rule.Expired},
		{"both", cluster.Slots{"cuda.device": cluster.Whole(1), "cuda.shares": cluster.Milli / 2}, 75, 50, rule.Active},
		{"a partition of a card", cluster.Slots{"cuda.1g.10gb-mig": cluster.Whole(1)}, 60, 60, rule.Active},
	} {
		s := rule.Session{Type: cluster.Interactive, StartedAt: start, Kernels: []rule.Kernel{{ID: "k", Allocated: c.holds,
			Samples: samples(now, 10*minute, map[string]float64{"cuda_util": c.util})}}}
		v := rule.Judge(s, []rule.Checker{busyness(10*minute, rule.And, map[string]float64{"cuda_util": 10})}, now)[0]
		require.Equal(t, c.phase, v.Phase, "%s: %s", c.name, v.Why)
		require.InDelta(t, c.percent, *v.Figures[0].Percent, 1e-9, c.name)
	}
}
