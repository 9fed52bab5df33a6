package agent_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/cudatest"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// startReal starts an agent with the drivers of this host, and with the GPUs of a source.
func (h *host) startReal(gpus cuda.Source) error {
	h.t.Helper()
	a, err := agent.New(h.cfg, agent.Deps{
		Runtime: h.engine.Runtime(h.cfg.Scope(), cluster.AgentID(h.cfg.ID)), RunnerPath: "/nonexistent/runner", Log: h.log, Times: h.times,
		GPUs: gpus,
	})
	if err != nil {
		return err
	}
	h.agent = a
	h.group, err = chassis.NewGroup(h.log, a.Services()...)
	require.NoError(h.t, err)
	require.NoError(h.t, h.group.Start(context.Background()))
	return nil
}

// small asks for little, whatever this machine has.
func small(i int) cluster.DesiredKernel {
	d := desired(i)
	d.Spec.Slots = cluster.Slots{cluster.SlotCPU: cluster.Whole(1), cluster.SlotMem: cluster.Whole(64 << 20)}
	d.Spec.Allocation = ""
	d.Spec.Env = map[string]string{"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"}
	return d
}

// TestNoGPUWithoutASlot: whatever an image and its user set, a kernel that got no GPU sees none, also where GPUs are not given out.
func TestNoGPUWithoutASlot(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*host) cuda.Source{
		"no helper": func(*host) cuda.Source { return nil },
		"off":       func(h *host) cuda.Source { h.cfg.CUDA.Enabled = cuda.Off; return cudatest.Eight() },
		"given out": func(*host) cuda.Source { return cudatest.Eight() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t)
			h := newHost(t, m)
			source := change(h)
			require.NoError(t, h.startReal(source))
			m.until("GPUs are offered or not", func() bool {
				return m.facts.EngineOK && m.facts.Capacity[slotGPU] == map[string]cluster.Amount{"given out": 8000}[name]
			})
			m.want(small(1))
			m.until("it runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
			spec, ok := h.engine.Spec(h.cfg.Scope(), cluster.AgentID(h.cfg.ID), kernelID(1))
			require.True(t, ok)
			require.Contains(t, spec.Env, "NVIDIA_VISIBLE_DEVICES=void", "engines' hooks read it from the container")
			require.Contains(t, spec.Env, "CUDA_VISIBLE_DEVICES=")
			require.Empty(t, spec.Devices)
			require.Empty(t, spec.CDI)
		})
	}
}

// TestAMachineOfAFile: what a file describes comes before what a look at this host would find; only who wants both is refused.
func TestAMachineOfAFile(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.cfg.MockDevices = filepath.Join("..", "..", "deploy", "devices", "mig-a100.toml")
	require.NoError(t, h.startReal(cudatest.Eight()))
	m.until("the cards of the file are offered", func() bool { return m.facts.EngineOK && m.facts.Capacity[slotGPU] == 1000 })

	h = newHost(t, newManager(t))
	h.cfg.MockDevices = filepath.Join("..", "..", "deploy", "devices", "mig-a100.toml")
	h.cfg.CUDA.Enabled = cuda.On
	err := h.startReal(cudatest.Eight())
	require.ErrorContains(t, err, "slot cuda.device is filled by two device drivers, cuda and mock")
}

func TestGPUsThatAreWanted(t *testing.T) {
	t.Parallel()
	h := newHost(t, newManager(t))
	h.cfg.CUDA.Enabled = cuda.On
	err := h.startReal(nil)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.ErrorContains(t, err, "helper")
}

// TestAHelperWithoutADriver: a helper that is installed on a host without NVIDIA's driver keeps no agent from starting.
func TestAHelperWithoutADriver(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	source := cudatest.Eight()
	source.Fail(errors.New("NVIDIA's library cannot be loaded"))
	require.NoError(t, h.startReal(source))
	m.until("it takes sessions", func() bool { return m.facts.EngineOK && m.facts.Capacity[slotGPU] == 0 })
	h.stop()
	h.cfg.CUDA.Enabled = cuda.On
	require.ErrorContains(t, h.startReal(source), "NVIDIA's library cannot be loaded")
}

// TestGPUsOfAHost: eight cards are offered, one is given to a kernel and measured, and a card that breaks is told at once: the next look
// would come in an hour.
func TestGPUsOfAHost(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	h := newHost(t, m)
	h.cfg.DeviceInterval = time.Hour
	h.cfg.CUDA.Libraries = []string{t.TempDir()}
	source := cudatest.Eight()
	require.NoError(t, h.startReal(source))
	m.until("eight cards are offered", func() bool { return m.facts.EngineOK && m.facts.Capacity[slotGPU] == cluster.Whole(8) })
	require.Equal(t, cluster.SlotCount, m.told().SlotKinds[slotGPU])
	d := small(1)
	d.Spec.Slots[slotGPU] = cluster.Whole(2)
	m.want(d)
	m.until("it runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
	a, err := alloc.Parse(m.of(kernelID(1)).Allocation)
	require.NoError(t, err)
	require.Len(t, a[slotGPU], 2)
	spec, ok := h.engine.Spec(h.cfg.Scope(), cluster.AgentID(h.cfg.ID), kernelID(1))
	require.True(t, ok)
	require.Contains(t, spec.Env, "CUDA_VISIBLE_DEVICES=0,1")
	require.GreaterOrEqual(t, len(spec.Devices), 4)
	m.until("its cards are measured", func() bool { return m.metrics[kernelID(1)]["cuda_mem_total"] == 160<<30 })

	source.Tell(nvmlwire.Event{UUID: cudatest.UUID(7), XID: 79})
	m.until("a card broke", func() bool { return m.facts.Capacity[slotGPU] == cluster.Whole(7) })
	require.Contains(t, m.told().Warnings,
		"device "+cudatest.UUID(7)+" of slot cuda.device is not given out: XID 79: the GPU has fallen off the bus")
}

// daemon stands in for nvidia-cuda-mps-control: a daemon without programs whose state is a file.
const daemon = `#!/bin/sh
file="$CUDA_MPS_PIPE_DIRECTORY/control"
if [ "$1" = -d ]; then echo "$CUDA_VISIBLE_DEVICES" >"$file"; exit; fi
[ -e "$file" ] || exit 1
read -r command
case "$command" in
quit) rm "$file" ;;
set_default_active_thread_percentage*) echo "${command##* }.0" ;;
esac
echo "$command" >>"$CUDA_MPS_LOG_DIRECTORY/../../../told"
`

// TestSharesOfAHost: a kernel with half a card gets the daemon of that card, which ends with it.
func TestSharesOfAHost(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: only root may start MPS")
	}
	m := newManager(t)
	h := newHost(t, m)
	h.cfg.CUDA.Fractions, h.cfg.CUDA.Libraries = true, []string{t.TempDir()}
	h.cfg.CUDA.MPSDir, h.cfg.CUDA.MPSControl = t.TempDir(), filepath.Join(t.TempDir(), "control")
	require.NoError(t, os.WriteFile(h.cfg.CUDA.MPSControl, []byte(daemon), 0o755))
	require.NoError(t, h.startReal(cudatest.Eight()))
	m.until("shares are offered", func() bool { return m.facts.EngineOK && m.facts.Capacity[cuda.SlotShares] == cluster.Whole(8) })
	d := small(1)
	d.Spec.Slots[cuda.SlotShares] = 500
	m.want(d)
	m.until("it runs", func() bool { return m.phase(kernelID(1)) == cluster.PhaseRunning })
	spec, ok := h.engine.Spec(h.cfg.Scope(), cluster.AgentID(h.cfg.ID), kernelID(1))
	require.True(t, ok)
	require.Contains(t, spec.Env, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=40704M")
	require.Contains(t, spec.Env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=50")
	var pipe string
	for _, mount := range spec.Mounts {
		if mount.Target == "/run/berth-mps" {
			require.True(t, mount.ReadOnly)
			pipe = mount.Source
		}
	}
	require.FileExists(t, filepath.Join(pipe, "control"))
	told, err := os.ReadFile(filepath.Join(h.cfg.CUDA.MPSDir, "told"))
	require.NoError(t, err)
	require.Contains(t, string(told), " 40704M\n")

	// Another agent on the same state finds the daemon.
	h.stop()
	require.NoError(t, h.startReal(cudatest.Eight()))
	m.want(stopped(1))
	m.until("it ends", func() bool { return m.phase(kernelID(1)) == cluster.PhaseEnded })
	require.NoDirExists(t, pipe)
}
