package scheduler

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler/quota"
)

// waitingFor is a session of one kernel.
func waitingFor(id string, slots cluster.Slots) Session {
	return Session{ID: cluster.SessionID(id), Kernels: []Kernel{{ID: cluster.KernelID(id), Slots: slots}},
		Owner: Owner{AccessKey: "bob", User: "bob", Project: "p", Domain: "d"}}
}

// TestRequestsThatNobodyMakesAreForgotten: what was asked for is remembered while sessions wait for it, and then for as many as maxIdle
// others; the newest stay.
func TestRequestsThatNobodyMakesAreForgotten(t *testing.T) {
	t.Parallel()
	c := NewCluster()
	require.NoError(t, c.SetGroup(Group{Name: "g"}))
	c.SetAgent("g", Agent{ID: "a", Alive: true, Schedulable: true,
		Devices: []alloc.Device{{Slot: cluster.SlotCPU, ID: "0", Capacity: cluster.Whole(1), Healthy: true}}})
	ask := func(n int) cluster.Slots { return cluster.Slots{cluster.SlotCPU: cluster.Whole(int64(n + 2))} }
	pass := func() {
		_, err := c.Pass("g", time.Unix(1000, 0), Work{})
		require.NoError(t, err)
	}
	c.Enqueue("g", waitingFor("stays", ask(0)))
	pass()
	known := len(c.shapes)
	for n := 1; n <= 2*maxIdle; n++ {
		c.Enqueue("g", waitingFor("passes", ask(n)))
		pass()
		require.Contains(t, c.groups["g"].search.cache, c.shapes[c.sessions["passes"].waiting.lane.kind.units[0].shape.key])
		c.Remove("passes")
		require.LessOrEqual(t, len(c.shapes), known+maxIdle)
		require.LessOrEqual(t, len(c.idle), maxIdle)
		require.LessOrEqual(t, len(c.groups["g"].search.cache), known+maxIdle)
		require.Len(t, c.kinds, 1, "kinds are forgotten at once")
		require.Len(t, c.groups["g"].queue.kinds, 1)
	}
	require.Equal(t, known+maxIdle, len(c.shapes))
	newest := waitingFor("newest", ask(2*maxIdle))
	c.Enqueue("g", newest)
	require.Equal(t, known+maxIdle, len(c.shapes), "it is remembered")
	c.Remove("newest")
	c.Enqueue("g", waitingFor("oldest", ask(1)))
	require.Equal(t, known+maxIdle+1, len(c.shapes), "it is new again")
	require.Contains(t, c.shapes, c.sessions["stays"].waiting.lane.kind.units[0].shape.key)
}

// TestALessonNeedsArrivals: the strategy learns what is typical after enough arrivals that it can describe, and then anew when they have
// grown by half, each time counting from nothing.
func TestALessonNeedsArrivals(t *testing.T) {
	t.Parallel()
	c := NewCluster()
	require.NoError(t, c.SetGroup(Group{Name: "g", Placement: "least-fragmentation"}))
	l := c.groups["g"].search.strategy.(*leastFragmentation)
	n := 0
	arrive := func(times int, slots cluster.Slots) {
		for range times {
			n++
			c.Enqueue("g", waitingFor(fmt.Sprint("s", n), slots))
		}
		_, err := c.Pass("g", time.Unix(1000, 0), Work{})
		require.NoError(t, err)
	}
	cpu := cluster.Slots{cluster.SlotCPU: 1000}
	// Nobody knows how to pack requests for two kinds of accelerators, or for more than an agent may have.
	arrive(20, cluster.Slots{"cuda.device": 1000, "rocm.device": 1000})
	arrive(20, cluster.Slots{"cuda.device": cluster.Whole(1000)})
	require.Zero(t, l.arrivals)
	require.Zero(t, l.workload.Len())
	arrive(firstLesson-1, cpu)
	require.Equal(t, []int{firstLesson - 1, 0}, []int{l.arrivals, l.learnt})
	arrive(1, cpu)
	require.Equal(t, []int{0, firstLesson}, []int{l.arrivals, l.learnt})
	arrive(firstLesson-1, cpu)
	require.Equal(t, []int{firstLesson - 1, firstLesson}, []int{l.arrivals, l.learnt})
	arrive(1, cpu)
	require.Equal(t, []int{0, 2 * firstLesson}, []int{l.arrivals, l.learnt})
	arrive(firstLesson, cpu)
	arrive(3*firstLesson/2-1, cpu)
	require.Equal(t, []int{3*firstLesson/2 - 1, 3 * firstLesson}, []int{l.arrivals, l.learnt}, "by half of what it knows")
	arrive(1, cpu)
	require.Equal(t, []int{0, 9 * firstLesson / 2}, []int{l.arrivals, l.learnt})
}

// TestTheLeastThatIsKeptIsTold: with the smallest amount there is.
func TestTheLeastThatIsKeptIsTold(t *testing.T) {
	t.Parallel()
	at := &quota.Node{Path: "d/train"}
	for kept, text := range map[cluster.Amount]string{
		0: "d/train limit 1 cpu, 0 cpu in use, and it asks for 2 cpu, more than the whole limit",
		1: "d/train limit 1 cpu, 0 cpu in use, 0.001 cpu kept for those who wait for what they are guaranteed, and it asks for 2 cpu, " +
			"more than the whole limit",
	} {
		e := explainLevel(&quota.Excess{Room: quota.Room{Node: at, Limit: 1000, Kept: kept}, Slot: cluster.SlotCPU, Asked: 2000})
		require.Equal(t, text, e.Text)
		require.Equal(t, cluster.Slots{cluster.SlotCPU: 1000 + kept}, e.Shortfall)
	}
	e := explainLevel(&quota.Excess{Room: quota.Room{Node: at, Limit: 1000, Used: 999}, Slot: cluster.SlotCPU, Asked: 1000})
	require.Equal(t, []string{"ask for 0.001 cpu at most", "wait until sessions in d/train end", "ask for a higher limit of d/train"},
		e.Remedies)
}
