package scheduler_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/scheduler"
)

func TestClaimEndsWhenItsSessionStarts(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	victim := job(0, 0, 0, ask(4, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	pass(t, c, now)
	at := now.Add(time.Hour)
	c.Enqueue("g", job(1, 50, 0, ask(2, 1)))
	require.Len(t, pass(t, c, at)[0].Preempt, 1)
	c.Enqueue("g", job(2, 10, 0, ask(2, 2)))
	c.Remove("s00")
	require.Equal(t, []string{"s01", "s02"}, started(pass(t, c, at)), "what s01 does not need is free")
}

func TestVictimsGoToTheFirstInTheQueue(t *testing.T) {
	t.Parallel()
	c := filled(t, preempting(""), "a")
	victim := job(0, 0, 0, ask(4, 1))
	victim.Preemptible = true
	c.Enqueue("g", victim)
	pass(t, c, now)
	c.Enqueue("g", job(1, 50, 0, ask(4, 1)))
	c.Enqueue("g", job(2, 60, 0, ask(4, 2)))
	require.Empty(t, pass(t, c, now), "s00 is too young")
	got := pass(t, c, now.Add(time.Hour))
	require.Len(t, got, 1)
	require.Equal(t, cluster.SessionID("s02"), got[0].Session)
}

func TestReservationKeepsDevicesThatEndThen(t *testing.T) {
	t.Parallel()
	c := filled(t, scheduler.Group{})
	c.SetAgent("g", withGPUs(agent("a", 8, 16), "cuda.device", 2))
	gpus := func(n cluster.Amount) cluster.Slots {
		s := ask(1, 1)
		s["cuda.device"] = n * 1000
		return s
	}
	c.Enqueue("g", job(0, 10, time.Hour, gpus(1)))
	pass(t, c, now)
	c.Enqueue("g", job(1, 10, 0, gpus(2)))
	c.Enqueue("g", job(2, 10, time.Hour+time.Second, gpus(1)))
	require.Empty(t, pass(t, c, now), "s02 would end a second too late")
	c.Enqueue("g", job(3, 10, time.Hour, gpus(1)))
	require.Equal(t, []string{"s03"}, started(pass(t, c, now)), "s03 ends just in time")
}
