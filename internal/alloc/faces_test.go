package alloc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	wholeCard cluster.SlotName = "cuda.device"
	shareSlot cluster.SlotName = "cuda.shares"
)

// twoFaced are cards that can be given out whole or in shares.
func twoFaced(n int) []alloc.Device {
	var out []alloc.Device
	for i := range n {
		for _, slot := range []cluster.SlotName{wholeCard, shareSlot} {
			out = append(out, alloc.Device{Slot: slot, ID: fmt.Sprintf("GPU-%d", i), NUMA: i % 2, Capacity: cluster.Milli, Healthy: true})
		}
	}
	return out
}

func TestACardIsGivenOutUnderOneSlotAtATime(t *testing.T) {
	t.Parallel()
	devices := twoFaced(2)
	used, err := alloc.Fit(devices, nil, cluster.Slots{shareSlot: 300}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{shareSlot: {"GPU-0": 300}}, used)

	whole, err := alloc.Fit(devices, used, cluster.Slots{wholeCard: cluster.Milli}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{wholeCard: {"GPU-1": cluster.Milli}}, whole, "the card that is shared stays shared")
	used = used.Add(whole)

	_, err = alloc.Fit(devices, used, cluster.Slots{wholeCard: cluster.Milli}, alloc.Policy{})
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "a card of which a share is held is not whole: %v", err)
	_, err = alloc.Fit(devices, used, cluster.Slots{shareSlot: 800}, alloc.Policy{})
	require.Equal(t, fault.Exhausted, fault.KindOf(err), "a card that is held whole has no shares: %v", err)
	more, err := alloc.Fit(devices, used, cluster.Slots{shareSlot: 700}, alloc.Policy{})
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{shareSlot: {"GPU-0": 700}}, more)

	for _, bad := range []alloc.Allocation{
		{wholeCard: {"GPU-0": cluster.Milli}}, // shares of it are held
		{shareSlot: {"GPU-1": 100}},           // it is held whole
	} {
		err := alloc.Check(devices, used, bad.Totals(), bad)
		require.Equal(t, fault.Conflict, fault.KindOf(err), "%v: %v", bad, err)
	}
	both := alloc.Allocation{wholeCard: {"GPU-0": cluster.Milli}, shareSlot: {"GPU-0": 100}}
	require.Error(t, alloc.Check(devices, nil, both.Totals(), both))
	require.NoError(t, alloc.Check(devices, used, more.Totals(), more))
}

func TestOneRequestOfBothSlotsGetsTwoCards(t *testing.T) {
	t.Parallel()
	request := cluster.Slots{wholeCard: cluster.Milli, shareSlot: 500}
	a, err := alloc.Fit(twoFaced(2), nil, request, alloc.Policy{})
	require.NoError(t, err)
	require.Len(t, a[wholeCard], 1)
	for id := range a[wholeCard] {
		require.NotContains(t, a[shareSlot], id)
	}
	_, err = alloc.Fit(twoFaced(1), nil, request, alloc.Policy{})
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	require.ErrorContains(t, err, "cuda.device and cuda.shares are the same cards")
}

// Cores and memory have ids of their own: core 0 is not memory 0.
func TestCoresAndMemoryAreNoCards(t *testing.T) {
	t.Parallel()
	devices := []alloc.Device{
		{Slot: cluster.SlotCPU, ID: "0", Capacity: cluster.Milli, Healthy: true},
		{Slot: cluster.SlotMem, ID: "0", Capacity: cluster.Whole(8), Healthy: true},
		{Slot: wholeCard, ID: "0", Capacity: cluster.Milli, Healthy: true},
		{Slot: "rocm.device", ID: "0", Capacity: cluster.Milli, Healthy: true}, // of another vendor
	}
	request := cluster.Slots{cluster.SlotCPU: cluster.Milli, cluster.SlotMem: cluster.Whole(8), wholeCard: cluster.Milli,
		"rocm.device": cluster.Milli}
	a, err := alloc.Fit(devices, nil, request, alloc.Policy{})
	require.NoError(t, err)
	require.NoError(t, alloc.Check(devices, nil, request, a))
}

func TestAnInstanceOfACardIsGivenOutAlone(t *testing.T) {
	t.Parallel()
	const slot cluster.SlotName = "cuda.1g.10gb-mig"
	devices := []alloc.Device{{Slot: slot, ID: "MIG-0", Capacity: cluster.Milli, Healthy: true},
		{Slot: slot, ID: "MIG-1", Capacity: cluster.Milli, Healthy: true}}
	_, err := alloc.Fit(devices, nil, cluster.Slots{slot: cluster.Whole(2)}, alloc.Policy{})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.ErrorContains(t, err, "exactly 1 is possible")
	_, err = alloc.Fit(devices, nil, cluster.Slots{slot: 500}, alloc.Policy{})
	require.Equal(t, fault.Invalid, fault.KindOf(err))
}

// Whatever is asked in whatever order, no card is ever given out under two slots, and what Fit chose passes Check.
func TestPropertyNoCardHasTwoSlots(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		devices := twoFaced(rapid.IntRange(1, 4).Draw(t, "cards"))
		used := alloc.Allocation{}
		var held []alloc.Allocation
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			if len(held) > 0 && rapid.Bool().Draw(t, "end") {
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				used = used.Sub(held[i])
				held = append(held[:i:i], held[i+1:]...)
				continue
			}
			request := cluster.Slots{}
			if rapid.Bool().Draw(t, "whole") {
				request[wholeCard] = cluster.Whole(rapid.Int64Range(1, 2).Draw(t, "cards asked"))
			}
			if len(request) == 0 || rapid.Bool().Draw(t, "mixed") {
				request[shareSlot] = cluster.Amount(rapid.Int64Range(1, 150).Draw(t, "share")) * alloc.Quantum
			}
			a, err := alloc.Fit(devices, used, request, alloc.Policy{NoFragment: rapid.Bool().Draw(t, "uncut")})
			if err != nil {
				continue
			}
			if err := alloc.Check(devices, used, request, a); err != nil {
				t.Fatalf("the choice %v beside %v is refused: %v", a, used, err)
			}
			used, held = used.Add(a), append(held, a)
			for id := range used[wholeCard] {
				if used[shareSlot][id] > 0 {
					t.Fatalf("card %s is given out twice: %v", id, used)
				}
			}
		}
	})
}

// A whole card and a partition of one are shared with nobody; of shares nothing is promised unless the driver says so.
func TestIsolationIsDemanded(t *testing.T) {
	t.Parallel()
	devices := twoFaced(3)
	for i := range devices {
		if devices[i].Slot == shareSlot && devices[i].ID == "GPU-2" {
			devices[i].Isolation = cluster.IsolationDriver
		}
	}
	ask := func(slot cluster.SlotName, amount cluster.Amount, demand cluster.Isolation) (alloc.Allocation, error) {
		return alloc.Fit(devices, nil, cluster.Slots{slot: amount}, alloc.Policy{Isolation: demand})
	}
	a, err := ask(shareSlot, 500, cluster.IsolationCooperative)
	require.NoError(t, err)
	require.Equal(t, alloc.Allocation{shareSlot: {"GPU-2": 500}}, a)
	_, err = ask(shareSlot, 500, cluster.IsolationHard)
	require.Error(t, err)
	_, err = ask(shareSlot, 1500, cluster.IsolationDriver)
	require.Error(t, err, "only one card offers it")
	_, err = ask(wholeCard, cluster.Whole(3), cluster.IsolationHard)
	require.NoError(t, err)
	_, err = ask(shareSlot, 2500, cluster.IsolationNone)
	require.NoError(t, err)
}
