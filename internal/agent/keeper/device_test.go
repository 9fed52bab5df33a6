package keeper_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

const slotGPU = cluster.SlotName("cuda.device")

// twoGPUs is a machine whose second GPU breaks after a minute.
const twoGPUs = `
[slots]
"cuda.device" = "count"
[[devices]]
uuid = "GPU-0"
slots = { "cuda.device" = "1" }
nodes = ["/dev/null:/dev/mock0"]
[[devices]]
uuid = "GPU-1"
slots = { "cuda.device" = "1" }
cdi = "berth.dev/mock=1"
[[faults]]
device = "GPU-1"
after = "1m"
problem = "XID 79: it fell off the bus"
`

// gpus adds a driver of the described GPUs to a rig and returns what lets time pass for it.
func gpus(t *testing.T, r *rig) (advance func(time.Duration)) {
	m, err := mock.Parse([]byte(twoGPUs))
	require.NoError(t, err)
	var passed atomic.Int64
	d, err := mock.New(m, func() time.Time { return time.Unix(1000, 0).Add(time.Duration(passed.Load())) })
	require.NoError(t, err)
	r.drivers = append(r.drivers, d)
	return func(by time.Duration) {
		passed.Add(int64(by))
		_, err := r.devices.Refresh(t.Context())
		require.NoError(t, err)
	}
}

// onGPU asks for one GPU, the one of that id unless it is empty.
func onGPU(id string) func(*cluster.DesiredKernel) {
	return func(d *cluster.DesiredKernel) {
		d.Spec.Slots[slotGPU] = cluster.Whole(1)
		if id != "" {
			d.Spec.Allocation = alloc.Allocation{
				cluster.SlotCPU: {"0": cluster.Whole(1)}, cluster.SlotMem: {"root": cluster.Whole(1 << 30)}, slotGPU: {id: cluster.Whole(1)},
			}.Text()
		}
	}
}

func TestDevicesReachTheContainer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gpus(t, r)
	r.start()
	r.want(true, desired(1, onGPU(""), func(d *cluster.DesiredKernel) {
		d.Spec.Env = map[string]string{"BACKENDAI_MOCK_CUDA_DEVICES": "all", "A": "b"}
	}), desired(2, onGPU("")))
	for i := range 2 {
		r.awaitPhase(kernelID(i+1), 1, cluster.PhaseRunning)
	}
	got := map[string]runtime.Spec{}
	for i := range 2 {
		spec, ok := r.engine.Spec(scope, agent, kernelID(i+1))
		require.True(t, ok)
		require.Equal(t, int64(1<<30), spec.MemoryMax)
		require.Len(t, spec.CPUSet, 1)
		conf, err := run.LoadConfig(r.host.Path(kernelID(i+1), "private", "config.json"))
		require.NoError(t, err)
		id := conf.Env["BACKENDAI_MOCK_CUDA_DEVICES"]
		got[id] = spec
		require.Contains(t, spec.Env, "BACKENDAI_MOCK_CUDA_DEVICES="+id, "what the user sets does not count")
		require.Equal(t, "1", conf.Env["BACKENDAI_MOCK_CUDA_DEVICE_COUNT"])
	}
	require.Equal(t, []runtime.DeviceNode{{Source: "/dev/null", Target: "/dev/mock0", Permissions: "rwm"}}, got["GPU-0"].Devices)
	require.Empty(t, got["GPU-0"].CDI)
	require.Equal(t, []string{"berth.dev/mock=1"}, got["GPU-1"].CDI)
	require.Empty(t, got["GPU-1"].Devices)
}

func TestABrokenDeviceIsNotGivenOutAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	advance := gpus(t, r)
	r.start()
	r.want(true, desired(1, onGPU("GPU-1")))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	advance(time.Minute)
	k, ok := r.keeper.Find(kernelID(1))
	require.True(t, ok)
	require.Equal(t, cluster.PhaseRunning, k.Phase, "live kernels keep what they hold")
	require.Equal(t, cluster.Whole(1), k.Allocation[slotGPU]["GPU-1"])

	r.want(false, stopped(1))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	r.want(false, desired(2, onGPU("GPU-1")))
	o := r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	require.True(t, o.Failed)
	require.True(t, o.RetryElsewhere)
	require.Contains(t, o.Detail, `cuda.device device "GPU-1" has 0 free`)
	r.want(false, desired(3, onGPU("")))
	o = r.awaitPhase(kernelID(3), 1, cluster.PhaseRunning)
	require.Contains(t, o.Allocation, "GPU-0", "the agent itself chooses a healthy one")
}

// TestADeviceThatBreaksWhileAKernelIsMade: it was reserved, but no container gets it any more.
func TestADeviceThatBreaksWhileAKernelIsMade(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	advance := gpus(t, r)
	var broke atomic.Bool
	r.before = func(_ context.Context, _ cluster.KernelID, point string) error {
		if point == "reserve:after" && broke.CompareAndSwap(false, true) {
			advance(time.Minute)
		}
		return nil
	}
	r.start()
	r.want(true, desired(1, onGPU("GPU-1")))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, cluster.ReasonFailedToCreate, o.Reason)
	require.True(t, o.RetryElsewhere)
	require.Contains(t, o.Detail, "XID 79: it fell off the bus")
	require.Zero(t, r.engine.Starts(scope, agent, kernelID(1)))
}

// greedy is a driver that limits memory although that is not its business.
type greedy struct{ device.Driver }

func (g greedy) Grant(a alloc.Allocation) (device.Grant, error) {
	out, err := g.Driver.Grant(a)
	out.Memory = 1
	return out, err
}

func TestDriversThatContradictEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gpus(t, r)
	r.drivers[0] = greedy{r.drivers[0]}
	r.start()
	r.want(true, desired(1, onGPU("")))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.True(t, o.Failed)
	require.Contains(t, o.Detail, "drivers mem and mock both give a memory limit")
	require.Zero(t, r.engine.Starts(scope, agent, kernelID(1)))
}

// owned is a driver whose device files belong to groups.
type owned struct{ device.Driver }

func (o owned) Grant(a alloc.Allocation) (device.Grant, error) {
	out, err := o.Driver.Grant(a)
	if len(a[slotGPU]) > 0 {
		out.Groups = []int{44, 110}
	}
	return out, err
}

// TestGroupsOfDevicesReachTheUser: the session's user is in them, beside those that the manager names.
func TestGroupsOfDevicesReachTheUser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gpus(t, r)
	r.drivers[len(r.drivers)-1] = owned{r.drivers[len(r.drivers)-1]}
	r.start()
	first := desired(1, onGPU("GPU-0"), func(d *cluster.DesiredKernel) { d.Spec.ExtraGIDs = []int{7, 110} })
	r.want(true, first)
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning) // before the agent chooses cores for the second, which names none
	r.want(true, first, desired(2))
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	conf, err := run.LoadConfig(r.host.Path(kernelID(1), "private", "config.json"))
	require.NoError(t, err)
	require.Equal(t, []int{7, 110, 44}, conf.User.Groups)
	require.Equal(t, "7,110,44", conf.Env["ADDITIONAL_GIDS"])
	spec, ok := r.engine.Spec(scope, agent, kernelID(1))
	require.True(t, ok)
	require.Equal(t, []int{44, 110}, spec.Groups)
	conf, err = run.LoadConfig(r.host.Path(kernelID(2), "private", "config.json"))
	require.NoError(t, err)
	require.Empty(t, conf.User.Groups, "who has no device is in no group")
}

// blind is a driver that sometimes cannot look at the host.
type blind struct {
	device.Driver
	shut atomic.Bool
}

func (b *blind) Discover(ctx context.Context) ([]device.Device, error) {
	if b.shut.Load() {
		return nil, errors.New("the helper does not answer")
	}
	return b.Driver.Discover(ctx)
}

// TestADriverThatStaysSilentGivesNothingOut: one missed look means nothing, two mean that nobody knows.
func TestADriverThatStaysSilentGivesNothingOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gpus(t, r)
	b := &blind{Driver: r.drivers[0]}
	r.drivers[0] = b
	r.start()
	r.want(true)
	b.shut.Store(true)
	for i := range 2 {
		_, err := r.devices.Refresh(t.Context())
		require.ErrorContains(t, err, "the helper does not answer")
		r.want(false, desired(i, onGPU("")))
		o := r.await(kernelID(i), "decided", func(o cluster.KernelObservation) bool {
			return o.Phase == cluster.PhaseRunning || o.Phase == cluster.PhaseEnded
		})
		require.Equal(t, i == 0, o.Phase == cluster.PhaseRunning, "%+v", o)
	}
}
