package device_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/devicetest"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestMergeRefusesContradictions(t *testing.T) {
	t.Parallel()
	node := func(target string) device.Grant {
		return device.Grant{Nodes: []runtime.DeviceNode{{Source: "/dev/null", Target: target, Permissions: "rw"}}}
	}
	mount := device.Grant{Mounts: []runtime.Mount{{Source: "/run/x", Target: "/dev/x"}}}
	for want, pair := range map[string][2]device.Grant{
		"variable A":          {{Env: map[string]string{"A": "1"}}, {Env: map[string]string{"A": "1"}}},
		"path /dev/x":         {node("/dev/x"), mount},
		"CDI device v.com/c=": {{CDI: []string{"v.com/c=0"}}, {CDI: []string{"v.com/c=0"}}},
		"cores":               {{CPUSet: []int{1}}, {CPUSet: []int{2}}},
		"a memory limit":      {{Memory: 1}, {Memory: 2}},
	} {
		_, err := device.Merge(device.Part{Driver: "one", Grant: pair[0]}, device.Part{Driver: "two", Grant: pair[1]})
		require.True(t, fault.Is(err, fault.Conflict), "%s: %v", want, err)
		require.Equal(t, device.ReasonGrant, fault.ReasonOf(err))
		require.Contains(t, err.Error(), "drivers one and two both give "+want)
	}
	got, err := device.Merge(
		device.Part{Driver: "one", Grant: device.Grant{CPUSet: []int{1}, Env: map[string]string{"A": "1"}, Groups: []int{44, 110}}},
		device.Part{Driver: "two", Grant: device.Grant{Memory: 5, Env: map[string]string{"B": "2"}, CDI: []string{"v.com/c=0"},
			Groups: []int{39, 44}}},
		device.Part{Driver: "three", Grant: mount}, device.Part{Driver: "four", Grant: node("/dev/y")})
	require.NoError(t, err)
	require.Equal(t, device.Grant{Env: map[string]string{"A": "1", "B": "2"}, Nodes: node("/dev/y").Nodes, CDI: []string{"v.com/c=0"},
		Mounts: mount.Mounts, Groups: []int{39, 44, 110}, CPUSet: []int{1}, Memory: 5}, got, "one group may own devices of two drivers")
}

func TestGrantsThatNoContainerCanHave(t *testing.T) {
	t.Parallel()
	for name, g := range map[string]device.Grant{
		"variable":    {Env: map[string]string{"A=B": "x"}},
		"value":       {Env: map[string]string{"A": "x\x00y"}},
		"node":        {Nodes: []runtime.DeviceNode{{Source: "dev/null", Target: "/dev/null", Permissions: "r"}}},
		"permissions": {Nodes: []runtime.DeviceNode{{Source: "/dev/null", Target: "/dev/null", Permissions: "rx"}}},
		"no letters":  {Nodes: []runtime.DeviceNode{{Source: "/dev/null", Target: "/dev/null"}}},
		"cdi":         {CDI: []string{"nvidia"}},
		"mount":       {Mounts: []runtime.Mount{{Source: "/a/../b", Target: "/c"}}},
		"root":        {Mounts: []runtime.Mount{{Source: "/a", Target: "/"}}},
		"core":        {CPUSet: []int{-1}},
		"order":       {CPUSet: []int{2, 1}},
		"twice":       {CPUSet: []int{1, 1}},
		"memory":      {Memory: -1},
		"root group":  {Groups: []int{0, 44}},
		"group order": {Groups: []int{110, 44}},
		"group twice": {Groups: []int{44, 44}},
	} {
		require.True(t, fault.Is(g.Validate(), fault.Invalid), name)
		_, err := device.Merge(device.Part{Driver: "one", Grant: g})
		require.True(t, fault.Is(err, fault.Invalid), name)
	}
}

// fake is a driver that does as it is told.
type fake struct {
	name  string
	kinds map[cluster.SlotName]cluster.SlotKind
	found []device.Device
	err   error
	grant device.Grant
	usage device.Usage
}

func (f *fake) Name() string                                      { return f.name }
func (f *fake) Kinds() map[cluster.SlotName]cluster.SlotKind      { return f.kinds }
func (f *fake) Discover(context.Context) ([]device.Device, error) { return f.found, f.err }
func (f *fake) Grant(alloc.Allocation) (device.Grant, error)      { return f.grant, f.err }
func (f *fake) Sample(context.Context, map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	return f.usage, f.err
}

const slot = cluster.SlotName("x.device")

func gpu(id string) device.Device {
	return device.Device{Device: alloc.Device{Slot: slot, ID: id, NUMA: -1, Capacity: cluster.Whole(1), Healthy: true}}
}

func problems(v *device.Inventory) map[string]string {
	out := map[string]string{}
	for _, d := range v.Devices() {
		out[d.ID] = d.Problem
		if d.Healthy != (d.Problem == "") {
			out[d.ID] = "inconsistent"
		}
	}
	return out
}

func TestRefresh(t *testing.T) {
	t.Parallel()
	f := &fake{name: "x", kinds: map[cluster.SlotName]cluster.SlotKind{slot: cluster.SlotCount}, found: []device.Device{gpu("a"), gpu("b")}}
	v, err := device.NewInventory(append(devicetest.Host(2, 1<<30), f)...)
	require.NoError(t, err)
	look := func(want bool) {
		t.Helper()
		changed, err := v.Refresh(t.Context())
		require.Equal(t, want, changed)
		require.Equal(t, f.err == nil, err == nil, "%v", err)
	}
	look(true)
	look(false)
	require.Len(t, v.Allocatable(), 5)
	require.Empty(t, v.Warnings())
	holds := alloc.Allocation{slot: {"b": cluster.Milli}}
	require.NoError(t, v.Usable(holds))

	f.found = f.found[:1]
	look(true)
	require.Equal(t, "it is not there any more", problems(v)["b"], "it stays listed, so that whoever holds it still counts")
	require.Equal(t, []string{"device b of slot x.device is not given out: it is not there any more"}, v.Warnings())
	err = v.Usable(holds)
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.Equal(t, "device-unhealthy", fault.ReasonOf(err))
	require.Error(t, alloc.Check(v.Allocatable(), nil, cluster.Slots{slot: cluster.Milli}, holds))

	f.found = []device.Device{gpu("a"), gpu("b")}
	f.found[0].Healthy = false
	look(true)
	require.Equal(t, "", problems(v)["b"], "it came back")
	require.Equal(t, "its driver does not say why", problems(v)["a"])
	f.found[0].Healthy = true
	look(true)

	f.err = errors.New("no answer")
	look(true) // a warning
	require.Equal(t, "", problems(v)["a"], "one failed look means nothing")
	require.Equal(t, []string{"device driver x cannot look at the host: no answer"}, v.Warnings())
	look(true)
	require.Equal(t, "its driver cannot look at it: no answer", problems(v)["a"])
	require.Equal(t, "", problems(v)["0"], "other drivers' devices are as they were")
	require.Len(t, v.Warnings(), 1)
	look(false)
	f.err = nil
	look(true)
	require.Equal(t, "", problems(v)["a"])
}

func TestAnswersThatCannotBeTrue(t *testing.T) {
	t.Parallel()
	foreign, unnamed, negative := gpu("a"), gpu(""), gpu("a")
	foreign.Slot, negative.Capacity = cluster.SlotCPU, -1
	for name, found := range map[string][]device.Device{
		"foreign": {foreign}, "unnamed": {unnamed}, "twice": {gpu("a"), gpu("a")}, "negative": {negative}, "many": make([]device.Device, 4097),
	} {
		f := &fake{name: "x", kinds: map[cluster.SlotName]cluster.SlotKind{slot: cluster.SlotCount}, found: found}
		v, err := device.NewInventory(f)
		require.NoError(t, err)
		_, err = v.Refresh(t.Context())
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		require.Empty(t, v.Devices(), name)
	}
}

func TestTwoDriversOfOneSlot(t *testing.T) {
	t.Parallel()
	_, err := device.NewInventory(append(devicetest.Host(1, 1<<30),
		&fake{name: "x", kinds: map[cluster.SlotName]cluster.SlotKind{"cpu": "count"}})...)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	_, err = device.NewInventory(&fake{name: "x"}, &fake{name: "x"})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestGrantOfAll(t *testing.T) {
	t.Parallel()
	f := &fake{name: "x", kinds: map[cluster.SlotName]cluster.SlotKind{slot: cluster.SlotCount},
		grant: device.Grant{CDI: []string{"v.com/x=a"}}}
	v, err := device.NewInventory(append(devicetest.Host(4, 1<<30), f)...)
	require.NoError(t, err)
	g, err := v.Grant(alloc.Allocation{cluster.SlotCPU: {"3": cluster.Milli}, cluster.SlotMem: {"root": cluster.Whole(1 << 20)},
		slot: {"a": cluster.Milli}})
	require.NoError(t, err)
	require.Equal(t, device.Grant{Env: map[string]string{}, CDI: []string{"v.com/x=a"}, CPUSet: []int{3}, Memory: 1 << 20}, g)
	f.grant.Memory = 7
	_, err = v.Grant(alloc.Allocation{cluster.SlotMem: {"root": cluster.Whole(1 << 20)}})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = v.Grant(alloc.Allocation{"rocm.device": {"a": cluster.Milli}})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}

// TestSampleLeavesOutWhoFails: one driver that fails takes nothing from the others.
func TestSampleLeavesOutWhoFails(t *testing.T) {
	t.Parallel()
	f := &fake{name: "x", kinds: map[cluster.SlotName]cluster.SlotKind{slot: cluster.SlotCount}, err: errors.New("no answer")}
	v, err := device.NewInventory(append(devicetest.Host(4, 1<<30), f)...)
	require.NoError(t, err)
	u := v.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": {cluster.SlotMem: {"root": cluster.Whole(5)}}})
	require.Equal(t, 5.0, u.Kernels["k"]["mem_total"])
	require.Positive(t, u.Node["cpu_used"])
	f.err, f.usage = nil, device.NewUsage()
	f.usage.Kernels["k"] = map[string]float64{"x_util": 3}
	u = v.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": {cluster.SlotMem: {"root": cluster.Whole(5)}}})
	require.Equal(t, map[string]float64{"x_util": 3, "mem_total": 5}, u.Kernels["k"])
}

// TestMergeKeepsEverything: what drivers give without contradiction arrives whole, in any order of drivers.
func TestMergeKeepsEverything(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 5).Draw(t, "drivers")
		var parts, reversed []device.Part
		want := map[string]string{}
		for i := range n {
			name := string(rune('A' + i))
			want[name] = rapid.StringMatching(`[a-z]{0,4}`).Draw(t, "value")
			parts = append(parts, device.Part{Driver: name, Grant: device.Grant{Env: map[string]string{name: want[name]},
				CDI: []string{"v.com/c=" + name}}})
			reversed = append([]device.Part{parts[i]}, reversed...)
		}
		a, err := device.Merge(parts...)
		if err != nil || len(a.CDI) != n || math.Abs(float64(len(a.Env)-n)) > 0 {
			t.Fatalf("%+v %v", a, err)
		}
		b, err := device.Merge(reversed...)
		if err != nil || len(b.CDI) != n {
			t.Fatalf("%+v %v", b, err)
		}
		for name, value := range want {
			if a.Env[name] != value || b.Env[name] != value {
				t.Fatalf("%s: %q %q, want %q", name, a.Env[name], b.Env[name], value)
			}
		}
	})
}
