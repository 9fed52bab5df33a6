package keeper_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// sharing is a driver of one device that several kernels share by something that is made on the host, and that outlives the agent.
type sharing struct {
	mu       sync.Mutex
	prepared map[cluster.KernelID]bool
	calls    []string
	fail     error
	released func(cluster.KernelID)
}

const slotPart = cluster.SlotName("cuda.shares")

func newSharing() *sharing { return &sharing{prepared: map[cluster.KernelID]bool{}} }

func (s *sharing) Name() string { return "sharing" }
func (s *sharing) Kinds() map[cluster.SlotName]cluster.SlotKind {
	return map[cluster.SlotName]cluster.SlotKind{slotPart: cluster.SlotCount}
}
func (s *sharing) Discover(context.Context) ([]device.Device, error) {
	return []device.Device{{Device: alloc.Device{Slot: slotPart, ID: "a", NUMA: -1, Capacity: cluster.Whole(1), Healthy: true}}}, nil
}
func (s *sharing) Grant(alloc.Allocation) (device.Grant, error) { return device.Grant{}, nil }
func (s *sharing) Sample(context.Context, map[cluster.KernelID]alloc.Allocation) (device.Usage, error) {
	return device.NewUsage(), nil
}

func (s *sharing) Prepare(_ context.Context, id cluster.KernelID, a alloc.Allocation) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a[slotPart]["a"] == 0 {
		return nil
	}
	s.calls = append(s.calls, "prepare")
	if s.fail != nil {
		return s.fail
	}
	s.prepared[id] = true
	return nil
}

func (s *sharing) Release(_ context.Context, id cluster.KernelID) error {
	s.mu.Lock()
	had, released := s.prepared[id], s.released
	delete(s.prepared, id)
	if had {
		s.calls = append(s.calls, "release")
	}
	s.mu.Unlock()
	if had && released != nil {
		released(id)
	}
	return nil
}

func (s *sharing) Prepared() []cluster.KernelID {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.prepared))
}

func (s *sharing) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

// onPart asks for half of the device.
func onPart(d *cluster.DesiredKernel) { d.Spec.Slots[slotPart] = 500 }

// TestDevicesArePrepared: what drivers make is there before the container, and goes after it.
func TestDevicesArePrepared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newSharing()
	r.drivers = []device.Driver{s}
	r.before = func(_ context.Context, id cluster.KernelID, point string) error {
		if point == "create:before" && id == kernelID(1) && !slices.Contains(s.Prepared(), id) {
			return errors.New("a container without its devices")
		}
		return nil
	}
	r.start()
	r.want(true, desired(1, onPart), desired(2))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseRunning)
	require.Equal(t, []cluster.KernelID{kernelID(1)}, s.Prepared())
	r.want(false, stopped(1), stopped(2))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	r.awaitPhase(kernelID(2), 1, cluster.PhaseEnded)
	r.eventually("nothing is left of it", func() bool { return len(s.Prepared()) == 0 })
	require.Equal(t, []string{"prepare", "release"}, s.called())
}

// TestDevicesThatCannotBePrepared end the kernel with words, and no container is made.
func TestDevicesThatCannotBePrepared(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newSharing()
	s.fail = errors.New("the daemon does not start")
	r.drivers = []device.Driver{s}
	r.start()
	r.want(true, desired(1, onPart))
	o := r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.True(t, o.Failed)
	require.Contains(t, o.Detail, "prepare devices of driver sharing: the daemon does not start")
	require.Zero(t, r.engine.Starts(scope, agent, kernelID(1)))
}

// slow is an engine whose containers do not end when they are asked to, but only when they are killed.
type slow struct {
	runtime.Runtime
	stop func(ctx context.Context, id cluster.KernelID, grace time.Duration) error
}

func (s slow) Stop(ctx context.Context, id cluster.KernelID, grace time.Duration) error {
	return s.stop(ctx, id, grace)
}

// TestProgramsAreDrainedBeforeTheyAreKilled: a container that does not end within its grace is killed only when its programs have let go of
// the device.
func TestProgramsAreDrainedBeforeTheyAreKilled(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newSharing()
	drained := make(chan struct{})
	s.released = func(cluster.KernelID) { close(drained) }
	r.drivers = []device.Driver{s}
	var graces []time.Duration
	r.wrap = func(rt runtime.Runtime) runtime.Runtime {
		return slow{rt, func(ctx context.Context, id cluster.KernelID, grace time.Duration) error {
			graces = append(graces, grace)
			select {
			case <-drained:
			case <-ctx.Done():
				return ctx.Err()
			}
			return rt.Stop(ctx, id, 0)
		}}
	}
	r.start()
	r.want(true, desired(1, onPart))
	r.awaitPhase(kernelID(1), 1, cluster.PhaseRunning)
	d := stopped(1)
	d.Force = true // no grace
	r.want(false, d)
	r.awaitPhase(kernelID(1), 1, cluster.PhaseEnded)
	require.Equal(t, []time.Duration{10 * time.Second}, graces, "the engine kills later than the driver drains")
	require.Equal(t, []string{"prepare", "release"}, s.called())
}

// TestDevicesThatNobodyKnows: what an agent made whose ledger is lost is taken back after two looks.
func TestDevicesThatNobodyKnows(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := newSharing()
	s.prepared[kernelID(9)] = true
	r.drivers = []device.Driver{s}
	r.start()
	require.Equal(t, []cluster.KernelID{kernelID(9)}, s.Prepared())
	r.want(true)
	r.eventually("it was released", func() bool { return len(s.Prepared()) == 0 })
}
