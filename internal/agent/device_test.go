package agent_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const slotGPU = cluster.SlotName("cuda.device")

// machine is a host with two GPUs, of which one breaks and one vanishes.
const machine = `
[slots]
"cuda.device" = "count"
[[devices]]
uuid = "GPU-0"
model = "A100"
numa = 0
slots = { "cuda.device" = "1" }
load = 50
[[devices]]
uuid = "GPU-1"
slots = { "cuda.device" = "1" }
[[faults]]
device = "GPU-1"
after = "3m"
for = "1m"
problem = "XID 79: it fell off the bus"
[[faults]]
device = "GPU-0"
after = "10m"
gone = true
`

// devicesOf reads the devices of reported facts by id.
func devicesOf(t *testing.T, f cluster.NodeFacts) map[string]alloc.Device {
	var list []alloc.Device
	require.NoError(t, json.Unmarshal(f.Devices, &list))
	out := map[string]alloc.Device{}
	for _, d := range list {
		out[d.ID] = d
	}
	return out
}

// TestDevicesAreWatched: what breaks, comes back and vanishes while the agent runs is reported over the open control stream,
// and kernels that run keep what they hold.
func TestDevicesAreWatched(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	described, err := mock.Parse([]byte(machine))
	require.NoError(t, err)
	var passed atomic.Int64
	gpus, err := mock.New(described, func() time.Time { return time.Unix(1000, 0).Add(time.Duration(passed.Load())) })
	require.NoError(t, err)
	h.drivers = append(h.drivers, gpus)
	h.cfg.DeviceInterval = 10 * time.Millisecond
	h.start()
	capacity := func(want int64) func() bool {
		return func() bool { return m.facts.EngineOK && m.facts.Capacity[slotGPU] == cluster.Whole(want) }
	}
	m.until("both GPUs are reported", capacity(2))
	facts := m.told()
	require.Equal(t, cluster.SlotCount, facts.SlotKinds[slotGPU])
	require.Equal(t, cluster.SlotBytes, facts.SlotKinds[cluster.SlotMem])
	require.Empty(t, facts.Warnings)
	require.Equal(t, alloc.Device{Slot: slotGPU, ID: "GPU-0", NUMA: 0, Model: "A100", Capacity: cluster.Whole(1), Healthy: true},
		devicesOf(t, facts)["GPU-0"])

	onGPU := func(i int, id string) cluster.DesiredKernel {
		d := desired(i)
		d.Spec.Slots[slotGPU] = cluster.Whole(1)
		d.Spec.Allocation = alloc.Allocation{
			cluster.SlotCPU: {"0": cluster.Whole(1)}, cluster.SlotMem: {"root": cluster.Whole(1 << 30)}, slotGPU: {id: cluster.Whole(1)},
		}.Text()
		return d
	}
	m.want(onGPU(1, "GPU-0"))
	m.until("a kernel with a GPU runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
	m.until("its GPU is measured", func() bool { return m.metrics[kernelID(1)]["cuda_util"] == 50 })

	passed.Store(int64(3 * time.Minute))
	m.until("one GPU broke", capacity(1))
	facts = m.told()
	require.Equal(t, []string{"device GPU-1 of slot cuda.device is not given out: XID 79: it fell off the bus"}, facts.Warnings)
	require.False(t, devicesOf(t, facts)["GPU-1"].Healthy)
	require.True(t, devicesOf(t, facts)["GPU-0"].Healthy)
	d := onGPU(2, "GPU-1")
	d.Spec.Allocation = alloc.Allocation{
		cluster.SlotCPU: {"1": cluster.Whole(1)}, cluster.SlotMem: {"root": cluster.Whole(1 << 30)}, slotGPU: {"GPU-1": cluster.Whole(1)},
	}.Text()
	m.want(d)
	m.until("a kernel that was placed before the manager knew ends", func() bool { return m.phase(kernelID(2)) == cluster.PhaseEnded })
	require.True(t, m.of(kernelID(2)).RetryElsewhere)

	passed.Store(int64(4 * time.Minute))
	m.until("it came back", capacity(2))
	require.Empty(t, m.told().Warnings)

	passed.Store(int64(10 * time.Minute))
	m.until("the other one vanished", capacity(1))
	require.False(t, devicesOf(t, m.told())["GPU-0"].Healthy, "it stays listed, because a kernel holds it")
	require.Equal(t, cluster.PhaseRunning, m.of(kernelID(1)).Phase)
	revision := m.told().Revision
	m.want(stopped(1))
	m.until("it ends", func() bool { return m.phase(kernelID(1)) == cluster.PhaseEnded })
	require.Equal(t, revision, m.told().Revision, "what did not change is not told again")
	require.Equal(t, 1, peek(m, func() int { return m.greetings }), "all of it over one control stream")

	// A new start forgets what is not there.
	h.stop()
	h.start()
	m.until("the vanished one is gone for good", func() bool { return m.facts.Revision > revision && m.facts.EngineOK })
	require.NotContains(t, devicesOf(t, m.told()), "GPU-0")
}

// TestMockDevices is the way from the configuration: a file describes the machine, a bad one keeps the agent from starting.
func TestMockDevices(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.cfg.MockDevices = filepath.Join(t.TempDir(), "machine.toml")
	deps := agent.Deps{Runtime: h.engine.Runtime(h.cfg.Scope(), "i-test"), RunnerPath: "/nonexistent/runner",
		Log: slog.New(slog.DiscardHandler)}
	_, err := agent.New(h.cfg, deps)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.NoError(t, os.WriteFile(h.cfg.MockDevices, []byte(machine+"colour = 1\n"), 0o600))
	_, err = agent.New(h.cfg, deps)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, `there is no key "faults.colour"`)
	require.NoError(t, os.WriteFile(h.cfg.MockDevices, []byte(machine), 0o600))
	h.agent, err = agent.New(h.cfg, deps)
	require.NoError(t, err)
	h.group, err = chassis.NewGroup(h.log, h.agent.Services()...)
	require.NoError(t, err)
	require.NoError(t, h.group.Start(t.Context()))
	m.until("this host's cores and the GPUs are reported", func() bool {
		return m.facts.Capacity[slotGPU] == cluster.Whole(2) && m.facts.Capacity[cluster.SlotCPU] > 0 && m.facts.Capacity[cluster.SlotMem] > 0
	})
}

// hostWithNPU describes a device by a specification: /dev/null under another name.
const hostWithNPU = "slot = \"npu.device\"\nkind = \"vendor.com/npu\"\nmodel = \"NPU-1\"\nspec_dirs = [\"%s\"]\n"

// TestCDIDevices is the way from the configuration: files describe devices, the engine is asked whether it injects them, and a bad file
// keeps the agent from starting.
func TestCDIDevices(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	specs, file := t.TempDir(), filepath.Join(t.TempDir(), "npu.toml")
	h.cfg.CDIDevices, h.cfg.DeviceInterval = []string{file}, 10*time.Millisecond
	deps := agent.Deps{Runtime: h.engine.Runtime(h.cfg.Scope(), "i-test"), RunnerPath: "/nonexistent/runner",
		Log: slog.New(slog.DiscardHandler)}
	_, err := agent.New(h.cfg, deps)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	text := fmt.Sprintf(hostWithNPU, specs)
	require.NoError(t, os.WriteFile(file, []byte(text+"colour = 1\n"), 0o600))
	_, err = agent.New(h.cfg, deps)
	require.ErrorContains(t, err, `there is no key "colour"`)
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	spec := "cdiVersion: 0.6.0\nkind: vendor.com/npu\ndevices:\n- name: npu0\n" +
		"  containerEdits: {deviceNodes: [{path: /dev/npu0, hostPath: /dev/null}]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(specs, "npu.yaml"), []byte(spec), 0o600))
	h.agent, err = agent.New(h.cfg, deps)
	require.NoError(t, err)
	h.group, err = chassis.NewGroup(h.log, h.agent.Services()...)
	require.NoError(t, err)
	require.NoError(t, h.group.Start(t.Context()))
	const slot = cluster.SlotName("npu.device")
	m.until("the device is reported", func() bool { return m.facts.Capacity[slot] == cluster.Whole(1) })
	require.Equal(t, alloc.Device{Slot: slot, ID: "npu0", NUMA: -1, Model: "NPU-1", Capacity: cluster.Whole(1), Healthy: true},
		devicesOf(t, m.told())["npu0"])
	broken := []byte(spec + "    hooks: [{hookName: prestart, path: /bin/x}]\n")
	require.NoError(t, os.WriteFile(filepath.Join(specs, "npu.yaml"), broken, 0o600))
	m.until("a specification that is broken gives nothing out", func() bool { return m.facts.Capacity[slot] == 0 })
	require.NoError(t, os.WriteFile(filepath.Join(specs, "npu.yaml"), []byte(spec), 0o600))
	m.until("it is well again", func() bool { return m.facts.Capacity[slot] == cluster.Whole(1) })
}

// TestAnEngineThatInjectsDevices: a device whose specification wants a hook is given out as soon as the engine says that it reads it.
func TestAnEngineThatInjectsDevices(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	specs, file := t.TempDir(), filepath.Join(t.TempDir(), "npu.toml")
	h := newHost(t, m)
	h.engine = fake.NewEngine(fake.Options{Info: runtime.Info{Name: "fake", Version: "28.2", CgroupVersion: 2, CDI: []string{specs}}})
	t.Cleanup(h.engine.Close)
	h.cfg.CDIDevices = []string{file}
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, hostWithNPU, specs), 0o600))
	spec := "cdiVersion: 0.6.0\nkind: vendor.com/npu\ndevices:\n- name: npu0\n" +
		"  containerEdits: {hooks: [{hookName: prestart, path: /bin/x}]}\n"
	require.NoError(t, os.WriteFile(filepath.Join(specs, "npu.yaml"), []byte(spec), 0o600))
	var err error
	h.agent, err = agent.New(h.cfg, agent.Deps{Runtime: h.engine.Runtime(h.cfg.Scope(), "i-test"), RunnerPath: "/nonexistent/runner",
		Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	h.group, err = chassis.NewGroup(h.log, h.agent.Services()...)
	require.NoError(t, err)
	require.NoError(t, h.group.Start(t.Context()))
	m.until("the engine told", func() bool { return m.facts.Capacity["npu.device"] == cluster.Whole(1) })
}
