package alloc_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// shares makes accelerators that can be cut, with what is used of each.
func shares(used ...cluster.Amount) ([]alloc.Device, alloc.Allocation) {
	var devices []alloc.Device
	taken := map[string]cluster.Amount{}
	for i, u := range used {
		id := fmt.Sprint("g", i)
		devices = append(devices, alloc.Device{Slot: "cuda.shares", ID: id, NUMA: -1, Model: "A100", Capacity: 1000, Healthy: true})
		taken[id] = u
	}
	return devices, alloc.Allocation{"cuda.shares": taken}
}

// A refusal is read by users and by the scheduler's explanation: kind, numbers, words and the next step.
func TestRefusals(t *testing.T) {
	t.Parallel()
	gpus, used := shares(700, 700)
	broken, _ := shares(0, 0)
	broken[0].Healthy, broken[1].Model = false, "T4"
	unique := map[cluster.SlotName]alloc.Rule{"mig": alloc.Unique, "cpu": alloc.Divisible}
	parts := []alloc.Device{{Slot: "mig", ID: "p0", Capacity: 1000, Healthy: true}, {Slot: "mig", ID: "p1", Capacity: 1000, Healthy: true}}
	for name, c := range map[string]struct {
		devices []alloc.Device
		used    alloc.Allocation
		slot    cluster.SlotName
		want    cluster.Amount
		policy  alloc.Policy
		kind    fault.Kind
		short   alloc.Short
		message string
	}{
		"busy": {
			gpus, used, "cuda.shares", 800, alloc.Policy{}, fault.Exhausted,
			alloc.Short{Slot: "cuda.shares", Want: 800, Free: 600, Total: 2000}, "slot cuda.shares: 0.8 asked for, 0.6 is free (0.2 missing)",
		},
		"fragmented": {
			gpus, used, "cuda.shares", 500, alloc.Policy{NoFragment: true}, fault.Exhausted,
			alloc.Short{Slot: "cuda.shares", Want: 500, Free: 600, Total: 2000, Fragmented: true},
			"slot cuda.shares: 0.5 asked for, 0.6 is free but spread over devices in parts that do not fit",
		},
		"fragmented to the last part": {
			gpus, used, "cuda.shares", 600, alloc.Policy{NoFragment: true}, fault.Exhausted,
			alloc.Short{Slot: "cuda.shares", Want: 600, Free: 600, Total: 2000, Fragmented: true},
			"slot cuda.shares: 0.6 asked for, 0.6 is free but spread over devices in parts that do not fit",
		},
		"all of a busy agent": {
			gpus, used, "cuda.shares", 2000, alloc.Policy{}, fault.Exhausted,
			alloc.Short{Slot: "cuda.shares", Want: 2000, Free: 600, Total: 2000}, "slot cuda.shares: 2 asked for, 0.6 is free (1.4 missing)",
		},
		"too much": {
			gpus, nil, "cuda.shares", 2010, alloc.Policy{}, fault.Invalid,
			alloc.Short{Slot: "cuda.shares", Want: 2010, Free: 2000, Total: 2000},
			"slot cuda.shares: 2.01 asked for, the whole agent has 2 (0.01 too much)",
		},
		"no such model": {
			broken, nil, "cuda.shares", 100, alloc.Policy{Models: []string{"A100"}}, fault.Invalid,
			alloc.Short{Slot: "cuda.shares", Want: 100}, "slot cuda.shares: 0.1 asked for, this agent has none",
		},
		"healthy ones alone": {
			broken, nil, "cuda.shares", 1500, alloc.Policy{}, fault.Invalid,
			alloc.Short{Slot: "cuda.shares", Want: 1500, Free: 1000, Total: 1000},
			"slot cuda.shares: 1.5 asked for, the whole agent has 1 (0.5 too much)",
		},
		"no whole quantum": {
			gpus, nil, "cuda.shares", 15, alloc.Policy{}, fault.Invalid,
			alloc.Short{Slot: "cuda.shares", Want: 15, Free: 2000, Total: 2000}, "slot cuda.shares: 0.015 is not a multiple of 0.01",
		},
		"two partitions": {
			parts, nil, "mig", 2000, alloc.Policy{Rules: unique}, fault.Invalid,
			alloc.Short{Slot: "mig", Want: 2000, Free: 2000, Total: 2000}, "slot mig: 2 asked for, exactly 1 is possible",
		},
		"no partition left": {
			parts, alloc.Allocation{"mig": {"p0": 1000, "p1": 1000}}, "mig", 1000, alloc.Policy{Rules: unique}, fault.Exhausted,
			alloc.Short{Slot: "mig", Want: 1000, Total: 2000}, "slot mig: 1 asked for, 0 is free (1 missing)",
		},
		"no such slot": {
			gpus, nil, "tpu", 1000, alloc.Policy{}, fault.Invalid, alloc.Short{Slot: "tpu", Want: 1000},
			"slot tpu: 1 asked for, this agent has none",
		},
	} {
		_, err := alloc.Fit(c.devices, c.used, cluster.Slots{c.slot: c.want}, c.policy)
		require.EqualError(t, err, c.message, name)
		require.Equal(t, c.kind, fault.KindOf(err), name)
		require.NotEmpty(t, fault.NextOf(err), name)
		s, ok := alloc.ShortOf(fmt.Errorf("place a kernel: %w", err))
		require.True(t, ok, name)
		require.Equal(t, c.short, s, name)
		require.Equal(t, max(0, c.want-c.short.Free), s.Missing(), name)
	}
	_, err := alloc.Fit(gpus, nil, cluster.Slots{"cuda.shares": -10}, alloc.Policy{})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	_, ok := alloc.ShortOf(errors.New("something else"))
	require.False(t, ok)
	_, ok = alloc.ShortOf(fault.Invalidf("without a shortfall"))
	require.False(t, ok)
	_, ok = alloc.ShortOf(nil)
	require.False(t, ok)
}

// An agent confirms what the manager chose, from what it has itself.
func TestCheckRefusesWhatTheAgentHasNot(t *testing.T) {
	t.Parallel()
	devices, used := shares(700, 0)
	devices[1].Healthy = false
	devices = append(devices, alloc.Device{Slot: cluster.SlotMem, ID: "g0", Capacity: cluster.Whole(64), Healthy: true})
	request := func(v cluster.Amount) cluster.Slots { return cluster.Slots{"cuda.shares": v} }
	choice := func(id string, v cluster.Amount) alloc.Allocation { return alloc.Allocation{"cuda.shares": {id: v}} }
	require.NoError(t, alloc.Check(devices, used, request(300), choice("g0", 300)))
	require.NoError(t, alloc.Check(devices, used, cluster.Slots{"cuda.shares": 300, "tpu": 0}, choice("g0", 300)), "zero asked for is nothing")
	require.NoError(t, alloc.Check(devices, used, nil, nil))
	require.NoError(t, alloc.Check(devices, used, request(0), choice("g1", 0)))
	for name, c := range map[string]struct {
		request cluster.Slots
		choice  alloc.Allocation
		message string
		short   alloc.Short
	}{
		"more than is left": {
			request(310), choice("g0", 310), `cuda.shares device "g0" has 0.3 free, 0.31 was chosen`,
			alloc.Short{Slot: "cuda.shares", Want: 310, Free: 300},
		},
		"unhealthy": {
			request(10), choice("g1", 10), `cuda.shares device "g1" has 0 free, 0.01 was chosen`,
			alloc.Short{Slot: "cuda.shares", Want: 10},
		},
		"below zero": {
			request(-10), choice("g0", -10), `cuda.shares device "g0" has 0.3 free, -0.01 was chosen`,
			alloc.Short{Slot: "cuda.shares", Want: -10, Free: 300},
		},
		"a little below zero": {
			request(-1), choice("g0", -1), `cuda.shares device "g0" has 0.3 free, -0.001 was chosen`,
			alloc.Short{Slot: "cuda.shares", Want: -1, Free: 300},
		},
		"unknown": {
			request(10), choice("g7", 10), `cuda.shares device "g7" is not a device of this agent`,
			alloc.Short{Slot: "cuda.shares", Want: 10},
		},
		"of another slot": {
			cluster.Slots{"tpu": 10}, alloc.Allocation{"tpu": {"g0": 10}}, `tpu device "g0" is not a device of this agent`,
			alloc.Short{Slot: "tpu", Want: 10},
		},
		"memory": {
			cluster.Slots{cluster.SlotMem: cluster.Whole(65)}, alloc.Allocation{cluster.SlotMem: {"g0": cluster.Whole(65)}},
			`mem device "g0" has 64 bytes free, 65 bytes was chosen`,
			alloc.Short{Slot: cluster.SlotMem, Want: cluster.Whole(65), Free: cluster.Whole(64)},
		},
	} {
		err := alloc.Check(devices, used, c.request, c.choice)
		require.EqualError(t, err, c.message, name)
		require.Equal(t, fault.Conflict, fault.KindOf(err), name)
		s, ok := alloc.ShortOf(err)
		require.True(t, ok, name)
		require.Equal(t, c.short, s, name)
	}
	for name, c := range map[string]struct {
		request cluster.Slots
		choice  alloc.Allocation
	}{
		"less than asked for": {request(300), choice("g0", 200)}, "more than asked for": {request(100), choice("g0", 200)},
		"nothing":       {request(100), nil},
		"not asked for": {nil, choice("g0", 100)},
	} {
		require.Equal(t, fault.Conflict, fault.KindOf(alloc.Check(devices, used, c.request, c.choice)), name)
	}
	over := alloc.Allocation{"cuda.shares": {"g0": 1300}}
	require.ErrorContains(t, alloc.Check(devices, over, request(10), choice("g0", 10)), "has 0 free", "more used than there is leaves nothing")
}

func TestAllocationsAsText(t *testing.T) {
	t.Parallel()
	a := alloc.Allocation{"mem": {"node0": 1000}, "cpu": {"10": 1000, "2": 1000}}
	require.Equal(t, `{"cpu":{"10":1000,"2":1000},"mem":{"node0":1000}}`, a.Text())
	require.Equal(t, "{}", alloc.Allocation{}.Text())
	require.Equal(t, "{}", alloc.Allocation(nil).Text())
	for _, text := range []string{"", "{}"} {
		got, err := alloc.Parse(text)
		require.NoError(t, err)
		require.Equal(t, alloc.Allocation{}, got)
	}
	got, err := alloc.Parse(a.Text())
	require.NoError(t, err)
	require.Equal(t, a, got)
	for _, text := range []string{"{", "[]", `{"cpu":1}`, `{"cpu":{"0":"1"}}`} {
		got, err := alloc.Parse(text)
		require.Error(t, err, text)
		require.Nil(t, got)
	}
	require.Equal(t, cluster.Slots{"cpu": 2000, "mem": 1000}, a.Totals())
}

func TestAllocationsAddAndSubtract(t *testing.T) {
	t.Parallel()
	a := alloc.Allocation{"cpu": {"0": 1000, "1": 500}, "mem": {"node0": 10}}
	b := alloc.Allocation{"cpu": {"1": 500}, "gpu": {"g": 1000}}
	require.Equal(t, alloc.Allocation{"cpu": {"0": 1000, "1": 1000}, "mem": {"node0": 10}, "gpu": {"g": 1000}}, a.Add(b))
	require.Equal(t, alloc.Allocation{"cpu": {"0": 1000}, "mem": {"node0": 10}, "gpu": {"g": -1000}}, a.Sub(b), "what reaches zero disappears")
	require.Equal(t, alloc.Allocation{}, a.Sub(a))
	require.Equal(t, alloc.Allocation{"cpu": {"0": 1000, "1": 500}, "mem": {"node0": 10}}, a, "the operands stay as they are")
	require.Equal(t, alloc.Allocation{"cpu": {"1": 500}, "gpu": {"g": 1000}}, b)
	require.Equal(t, b, alloc.Allocation(nil).Add(b))
}
