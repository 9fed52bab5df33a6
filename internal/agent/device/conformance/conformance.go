// Package conformance holds the tests that every device.Driver must pass: one per sentence of the contract. Only tests
// import it.
package conformance

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// patience bounds every wait; only a broken driver ever takes so long.
const patience = 30 * time.Second

// Fixture is one driver over a host with at least two healthy devices, and what can be done to that host.
type Fixture struct {
	Driver device.Driver
	// Break breaks one device, and nothing else, and returns it; Vanish takes one away. Nil where a host has no such device.
	Break, Vanish func() device.Ref
	// Shared are device files inside that every container with devices of this driver gets: those that control all of them.
	Shared []string
	// Hides are variables that every container gets, also one without devices, so that its image does not take some by itself.
	Hides []string
}

// Run runs the suite; open is called once for every test.
func Run(t *testing.T, open func(t *testing.T) Fixture) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			t.Cleanup(cancel)
			fix := open(t)
			c.run(&world{T: t, ctx: ctx, d: fix.Driver, fix: fix})
		})
	}
}

var cases = []struct {
	name string
	run  func(w *world)
}{
	{"it has a name and slots, which never change", named},
	{"devices are well formed", wellFormed},
	{"links lead both ways", linked},
	{"two looks at the same host are equal", repeatable},
	{"answers are the caller's to change", independent},
	{"an inventory takes the devices", inventoried},
	{"every device can be granted", grants},
	{"a grant of nothing is empty", grantsNothing},
	{"disjoint allocations share no device", disjoint},
	{"a device that is not the driver's is refused", refusesStrangers},
	{"an amount that is not above zero is refused", refusesAmounts},
	{"a sample tells of its devices and of the kernels asked for, in numbers", samples},
	{"a sample changes nothing that another one tells", samplesTwice},
	{"a broken device is listed with its problem", breaks},
	{"a device that vanished is not listed", vanishes},
	{"calls end with their context", cancelled},
	{"calls may come at the same time", concurrent},
}

// world is one test with its driver.
type world struct {
	*testing.T
	ctx context.Context
	d   device.Driver
	fix Fixture
}

func (w *world) discover() []device.Device {
	w.Helper()
	found, err := w.d.Discover(w.ctx)
	require.NoError(w, err)
	return found
}

// all returns the healthy devices; there must be some.
func (w *world) all() []device.Device {
	w.Helper()
	out := slices.DeleteFunc(w.discover(), func(d device.Device) bool { return !d.Healthy })
	require.GreaterOrEqual(w, len(out), 2, "the host of this test has too few healthy devices")
	return out
}

func whole(devices ...device.Device) alloc.Allocation {
	out := alloc.Allocation{}
	for _, d := range devices {
		if out[d.Slot] == nil {
			out[d.Slot] = map[string]cluster.Amount{}
		}
		out[d.Slot][d.ID] = d.Capacity
	}
	return out
}

func named(w *world) {
	require.NotEmpty(w, w.d.Name())
	kinds := w.d.Kinds()
	require.NotEmpty(w, kinds)
	for slot, kind := range kinds {
		require.NotEmpty(w, slot)
		require.Contains(w, []cluster.SlotKind{cluster.SlotCount, cluster.SlotBytes, cluster.SlotUnique}, kind)
	}
	was := maps.Clone(kinds)
	kinds["somebody.else"] = cluster.SlotCount
	require.Equal(w, was, w.d.Kinds())
}

func wellFormed(w *world) {
	seen := map[device.Ref]bool{}
	kinds := w.d.Kinds()
	for _, d := range w.discover() {
		ref := device.Ref{Slot: d.Slot, ID: d.ID}
		require.NotEmpty(w, d.ID)
		require.Contains(w, kinds, d.Slot)
		require.False(w, seen[ref], "%v is listed twice", ref)
		seen[ref] = true
		require.Positive(w, d.Capacity, "%v", ref)
		require.GreaterOrEqual(w, d.NUMA, -1, "%v", ref)
		require.GreaterOrEqual(w, d.Memory, int64(0), "%v", ref)
		require.Equal(w, d.Healthy, d.Problem == "", "%v: a problem is told of a broken device, and only of one: %q", ref, d.Problem)
	}
}

func linked(w *world) {
	by := map[device.Ref]device.Device{}
	for _, d := range w.discover() {
		by[device.Ref{Slot: d.Slot, ID: d.ID}] = d
	}
	for ref, d := range by {
		for id, class := range d.Links {
			require.NotEqual(w, d.ID, id, "a device is no neighbour of itself")
			require.Positive(w, class)
			if other, ok := by[device.Ref{Slot: ref.Slot, ID: id}]; ok {
				require.Equal(w, class, other.Links[d.ID], "from %s to %s and back", d.ID, id)
			}
		}
	}
}

func repeatable(w *world) {
	require.Equal(w, w.discover(), w.discover())
}

func independent(w *world) {
	first := w.discover()
	second := w.discover()
	for i := range first {
		first[i].ID = "changed"
		for id := range first[i].Links {
			first[i].Links[id] = -1
		}
	}
	require.Equal(w, second, w.discover())
}

func inventoried(w *world) {
	v, err := device.NewInventory(w.d)
	require.NoError(w, err)
	changed, err := v.Refresh(w.ctx)
	require.NoError(w, err)
	require.True(w, changed)
	require.Equal(w, w.discover(), v.Devices())
	changed, err = v.Refresh(w.ctx)
	require.NoError(w, err)
	require.False(w, changed)
}

func grants(w *world) {
	for _, d := range w.all() {
		g, err := w.d.Grant(whole(d))
		require.NoError(w, err)
		require.NoError(w, g.Validate())
		again, err := w.d.Grant(whole(d))
		require.NoError(w, err)
		require.Equal(w, g, again)
		require.False(w, empty(g), "device %s of slot %s gives a container nothing", d.ID, d.Slot)
	}
	byID := map[string]device.Device{} // hardware that fills several slots is given out once
	for _, d := range w.all() {
		byID[d.ID] = d
	}
	g, err := w.d.Grant(whole(slices.Collect(maps.Values(byID))...))
	require.NoError(w, err)
	require.NoError(w, g.Validate())
}

func empty(g device.Grant) bool {
	return len(g.Env) == 0 && len(g.Nodes) == 0 && len(g.CDI) == 0 && len(g.Mounts) == 0 && len(g.Groups) == 0 && len(g.CPUSet) == 0 &&
		g.Memory == 0
}

func grantsNothing(w *world) {
	for _, a := range []alloc.Allocation{nil, {}, {"somebody.else": {"x": cluster.Milli}}} {
		g, err := w.d.Grant(a)
		require.NoError(w, err)
		require.Equal(w, w.fix.Hides, slices.Sorted(maps.Keys(g.Env)))
		g.Env = nil
		require.True(w, empty(g), "%+v", g)
	}
}

func disjoint(w *world) {
	all := w.all()
	one, other := all[0], all[1]
	require.NotEqual(w, one.ID, other.ID)
	a, err := w.d.Grant(whole(one))
	require.NoError(w, err)
	b, err := w.d.Grant(whole(other))
	require.NoError(w, err)
	for _, n := range a.Nodes {
		if slices.Contains(w.fix.Shared, n.Target) {
			continue
		}
		require.NotContains(w, b.Nodes, n)
	}
	for _, name := range a.CDI {
		require.NotContains(w, b.CDI, name)
	}
	for _, core := range a.CPUSet {
		require.NotContains(w, b.CPUSet, core)
	}
}

func refusesStrangers(w *world) {
	for slot := range w.d.Kinds() {
		_, err := w.d.Grant(alloc.Allocation{slot: {"no such device": cluster.Milli}})
		require.Error(w, err, "slot %s", slot)
	}
}

func refusesAmounts(w *world) {
	for _, amount := range []cluster.Amount{0, -1} {
		a := whole(w.all()[0])
		for _, devices := range a {
			for id := range devices {
				devices[id] = amount
			}
		}
		_, err := w.d.Grant(a)
		require.Error(w, err, "%v", a)
	}
}

func samples(w *world) {
	all := w.all()
	held := map[cluster.KernelID]alloc.Allocation{"k1": whole(all[0]), "k2": {"somebody.else": {"x": cluster.Milli}}}
	u, err := w.d.Sample(w.ctx, held)
	require.NoError(w, err)
	number := func(values map[string]float64) {
		for name, v := range values {
			require.NotEmpty(w, name)
			require.False(w, math.IsNaN(v) || math.IsInf(v, 0) || v < 0, "%s is %v", name, v)
		}
	}
	number(u.Node)
	known := map[device.Ref]bool{}
	for _, d := range all {
		known[device.Ref{Slot: d.Slot, ID: d.ID}] = true
	}
	for ref, values := range u.Devices {
		require.True(w, known[ref], "%v is no device of this driver", ref)
		number(values)
	}
	for id, values := range u.Kernels {
		require.Contains(w, held, id)
		number(values)
	}
	require.NotEmpty(w, u.Kernels["k1"], "nothing is told of a kernel that has a device")
	require.Empty(w, u.Kernels["k2"], "something is told of a kernel that has none")
}

func samplesTwice(w *world) {
	held := map[cluster.KernelID]alloc.Allocation{"k1": whole(w.all()[0])}
	first, err := w.d.Sample(w.ctx, held)
	require.NoError(w, err)
	_, err = w.d.Sample(w.ctx, nil)
	require.NoError(w, err)
	again, err := w.d.Sample(w.ctx, held)
	require.NoError(w, err)
	names := func(m map[string]float64) []string { return slices.Sorted(maps.Keys(m)) }
	require.Equal(w, names(first.Node), names(again.Node))
	require.Equal(w, names(first.Kernels["k1"]), names(again.Kernels["k1"]))
}

func breaks(w *world) {
	if w.fix.Break == nil {
		w.Skip("SKIPPED: devices of this driver do not break")
	}
	before := w.discover()
	ref := w.fix.Break()
	after := w.discover()
	require.Len(w, after, len(before))
	broken := 0
	for i, d := range after {
		if d.ID != ref.ID {
			require.Equal(w, before[i], d)
			continue
		}
		broken++
		require.False(w, d.Healthy)
		require.NotEmpty(w, d.Problem)
	}
	require.Positive(w, broken)
	wellFormed(w)
}

func vanishes(w *world) {
	if w.fix.Vanish == nil {
		w.Skip("SKIPPED: devices of this driver do not vanish")
	}
	before := w.discover()
	ref := w.fix.Vanish()
	want := slices.DeleteFunc(before, func(d device.Device) bool { return d.ID == ref.ID })
	require.Less(w, len(want), len(w.discover())+1)
	var ids, have []string
	for _, d := range want {
		ids = append(ids, d.ID)
	}
	for _, d := range w.discover() {
		have = append(have, d.ID)
	}
	require.Equal(w, ids, have)
	wellFormed(w)
}

func cancelled(w *world) {
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	done := make(chan struct{})
	go func() { // ends with the calls, or with the test that fails
		defer close(done)
		_, _ = w.d.Discover(ctx)
		_, _ = w.d.Sample(ctx, nil)
	}()
	select {
	case <-done:
	case <-w.ctx.Done():
		require.FailNow(w, "a call goes on although its context has ended")
	}
	require.NotEmpty(w, w.discover(), "a call that was given up spoils nothing")
}

func concurrent(w *world) {
	all := w.all()
	var group sync.WaitGroup
	errs := make(chan error, 12)
	for range 4 {
		group.Go(func() { _, err := w.d.Discover(w.ctx); errs <- err })
		group.Go(func() { _, err := w.d.Grant(whole(all[0])); errs <- err })
		group.Go(func() {
			_, err := w.d.Sample(w.ctx, map[cluster.KernelID]alloc.Allocation{"k": whole(all[1])})
			errs <- err
		})
	}
	group.Wait()
	close(errs)
	for err := range errs {
		require.NoError(w, err)
	}
}
