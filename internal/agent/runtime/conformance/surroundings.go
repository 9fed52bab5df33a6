package conformance

import (
	"net"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/fault"
)

// devicesAreInside gives a container /dev/null under two names, one of them without the permission to write.
func devicesAreInside(w *world) {
	spec := w.spec(w.kernel(), "devices", "/dev/first", "/dev/second", "/dev/mem")
	spec.Devices = []runtime.DeviceNode{
		{Source: "/dev/zero", Target: "/dev/first", Permissions: "rwm"}, {Source: "/dev/null", Target: "/dev/second", Permissions: "r"},
	}
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.NotEmpty(w, o.ID)
	if !w.fix.Real {
		return // a fake container has no files to look at; that it was made is what a fake can promise
	}
	o = w.untilExited(spec.Identity.Kernel)
	text := w.wholeLog(spec.Identity.Kernel, runtime.LogOptions{})
	require.Zero(w, o.ExitCode, text)
	lines := strings.Split(strings.TrimSpace(text), "\n")
	require.Equal(w, []string{"/dev/first is device 1:5", "/dev/second is device 1:3", "/dev/mem is not there"}, lines)
}

func devicesMissing(w *world) {
	spec := w.spec(w.kernel(), "wait")
	spec.Devices = []runtime.DeviceNode{{Source: "/dev/berth-not-there", Target: "/dev/x", Permissions: "rwm"}}
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonDevice, fault.ReasonOf(err))
	require.Contains(w, err.Error(), "/dev/berth-not-there")
	spec.Devices = nil
	spec.CDI = []string{"berth.test/none=0"}
	_, err = w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.NotFound, fault.KindOf(err), "%v", err)
	require.Equal(w, runtime.ReasonDevice, fault.ReasonOf(err))
	require.Contains(w, err.Error(), "berth.test/none=0")
	require.NoError(w, w.rt.Remove(w.ctx, spec.Identity.Kernel))
	for _, bad := range []runtime.DeviceNode{
		{Source: "dev/null", Target: "/dev/x", Permissions: "rwm"}, {Source: "/dev/null", Target: "/dev/../x", Permissions: "rwm"},
		{Source: "/dev/null", Target: "/dev/x"}, {Source: "/dev/null", Target: "/dev/x", Permissions: "rwx"},
	} {
		spec.CDI, spec.Devices = nil, []runtime.DeviceNode{bad}
		_, err = w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.Invalid, fault.KindOf(err), "%+v: %v", bad, err)
	}
}

func devicesByCDI(w *world) {
	if w.fix.CDI == "" {
		w.Skip("SKIPPED: the engine knows no CDI device")
	}
	spec := w.spec(w.kernel(), "wait")
	spec.CDI = []string{w.fix.CDI}
	o, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	require.Equal(w, runtime.PhaseRunning, o.Phase)
}

// groupsAreGiven gives a container two groups; that of root and numbers that are none are refused.
func groupsAreGiven(w *world) {
	for _, bad := range [][]int{{0}, {44, -1}, {1 << 31}, make([]int, 65)} {
		spec := w.spec(w.kernel(), "wait")
		spec.Groups = bad
		_, err := w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.Invalid, fault.KindOf(err), "%v: %v", bad, err)
	}
	spec := w.spec(w.kernel(), "facts")
	spec.Groups = []int{44, 4711}
	_, err := w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	if !w.fix.Real {
		return // a fake container has no processes
	}
	o := w.untilExited(spec.Identity.Kernel)
	text := w.wholeLog(spec.Identity.Kernel, runtime.LogOptions{})
	require.Zero(w, o.ExitCode, text)
	for line := range strings.Lines(text) {
		if list, ok := strings.CutPrefix(line, "status Groups:"); ok {
			require.Subset(w, strings.Fields(list), []string{"44", "4711"})
			return
		}
	}
	require.Fail(w, "the container does not tell its groups", text)
}

func networksAreJoined(w *world) {
	cases := [][]runtime.Network{{{Name: runtime.NetworkDefault}}}
	if w.fix.Network != "" {
		cases = append(cases, []runtime.Network{{Name: w.fix.Network}}, []runtime.Network{{Name: runtime.NetworkDefault}, {Name: w.fix.Network}})
	}
	for _, networks := range cases {
		spec := w.spec(w.kernel(), "networks")
		spec.Networks = networks
		_, err := w.rt.Ensure(w.ctx, spec)
		require.NoError(w, err, "%v", networks)
		if !w.fix.Real {
			continue // a fake container has no interfaces
		}
		o := w.untilExited(spec.Identity.Kernel)
		text := w.wholeLog(spec.Identity.Kernel, runtime.LogOptions{})
		require.Zero(w, o.ExitCode, text)
		interfaces := strings.Fields(text)
		require.Contains(w, interfaces, "lo")
		require.Len(w, slices.DeleteFunc(interfaces, func(name string) bool { return !strings.HasPrefix(name, "eth") }), len(networks), text)
	}
	if w.fix.Real && w.fix.Network == "" {
		w.Log("SKIPPED in part: the engine cannot make a second network")
	}
}

func networksMissing(w *world) {
	for _, networks := range [][]runtime.Network{
		{{Name: "berth-test-not-there"}}, {{Name: runtime.NetworkDefault}, {Name: "berth-test-not-there"}},
	} {
		spec := w.spec(w.kernel(), "wait")
		spec.Networks = networks
		_, err := w.rt.Ensure(w.ctx, spec)
		require.Equal(w, fault.NotFound, fault.KindOf(err), "%v: %v", networks, err)
		require.Equal(w, runtime.ReasonNetwork, fault.ReasonOf(err), "%v", err)
		require.Contains(w, err.Error(), "berth-test-not-there")
	}
}

// hostNetwork: a container in the network of its host says so after a restart of the agent, has the host's interfaces, and is in no other
// network.
func hostNetwork(w *world) {
	spec := w.spec(w.kernel(), "networks")
	spec.Networks = []runtime.Network{{Name: runtime.NetworkHost}}
	_, err := w.rt.Ensure(w.ctx, spec)
	require.Equal(w, fault.Invalid, fault.KindOf(err), "its labels do not say so: %v", err)
	spec.Identity.HostNetwork, spec.Identity.Address = true, ""
	both := spec
	both.Networks = []runtime.Network{{Name: runtime.NetworkHost}, {Name: runtime.NetworkDefault}}
	_, err = w.rt.Ensure(w.ctx, both)
	require.Equal(w, fault.Invalid, fault.KindOf(err), "%v", err)
	before, err := net.Interfaces()
	require.NoError(w, err)
	_, err = w.rt.Ensure(w.ctx, spec)
	require.NoError(w, err)
	list, err := w.rt.List(w.ctx)
	require.NoError(w, err)
	i := slices.IndexFunc(list, func(o runtime.Observed) bool { return o.Identity.Kernel == spec.Identity.Kernel })
	require.GreaterOrEqual(w, i, 0)
	require.Equal(w, spec.Identity, list[i].Identity)
	if !w.fix.Real {
		return // a fake container has no interfaces
	}
	w.untilExited(spec.Identity.Kernel)
	after, err := net.Interfaces()
	require.NoError(w, err)
	seen := strings.Fields(w.wholeLog(spec.Identity.Kernel, runtime.LogOptions{}))
	for _, i := range after { // others come and go with other containers
		if slices.ContainsFunc(before, func(b net.Interface) bool { return b.Index == i.Index && b.Name == i.Name }) {
			require.Contains(w, seen, i.Name)
		}
	}
}
