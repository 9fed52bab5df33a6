//go:build cgo

package nvmlhelper

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"testing"
	"testing/fstest"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/testkit/await"
)

const gib = 1 << 30

// machine is NVIDIA's own mock of a DGX A100, with answers where the mock has none: eight cards on two NUMA nodes, two to a
// PCIe switch, without NVLink.
func machine() *dgxa100.Server {
	s := dgxa100.New()
	for i := range s.Devices {
		d := s.Devices[i].(*dgxa100.Device)
		d.UUID = fmt.Sprintf("GPU-%d", i)
		d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return pci(i), nvml.SUCCESS }
		d.GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED }
		d.GetTopologyCommonAncestorFunc = func(o nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			switch j := o.(*dgxa100.Device).Index; {
			case i/2 == j/2:
				return nvml.TOPOLOGY_MULTIPLE, nvml.SUCCESS
			case i/4 == j/4:
				return nvml.TOPOLOGY_NODE, nvml.SUCCESS
			}
			return nvml.TOPOLOGY_SYSTEM, nvml.SUCCESS
		}
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{Gpu: uint32(10 * i)}, nvml.SUCCESS
		}
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 40 * gib, Reserved: gib, Used: uint64(i) * gib}, nvml.SUCCESS
		}
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 61500, nvml.SUCCESS }
		d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 33, nvml.SUCCESS }
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
		d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
		d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	}
	return s
}

func device(s *dgxa100.Server, i int) *dgxa100.Device { return s.Devices[i].(*dgxa100.Device) }

func pci(i int) nvml.PciInfo {
	p := nvml.PciInfo{Bus: uint32(0x07 + i)}
	for n, b := range []byte(fmt.Sprintf("00000000:%02X:00.0", 0x07+i)) {
		p.BusId[n] = int8(b)
	}
	return p
}

// sysOf says the NUMA nodes of a machine's cards.
func sysOf() fstest.MapFS {
	out := fstest.MapFS{}
	for i := range 8 {
		out[fmt.Sprintf("bus/pci/devices/0000:%02x:00.0/numa_node", 0x07+i)] = &fstest.MapFile{Data: fmt.Appendf(nil, "%d\n", i/4)}
	}
	return out
}

func over(s *dgxa100.Server) *library { return newLibrary(s, sysOf(), io.Discard) }

func TestLookTellsEveryCard(t *testing.T) {
	t.Parallel()
	facts, err := over(machine()).Look()
	require.NoError(t, err)
	require.Equal(t, "550.54.15", facts.Driver)
	require.Equal(t, "12.4", facts.CUDA)
	require.Len(t, facts.GPUs, 8)
	require.Empty(t, facts.Problems)
	require.Equal(t, nvmlwire.GPU{
		UUID: "GPU-5", Model: "Mock NVIDIA A100-SXM4-40GB", PCI: "0000:0c:00.0", NUMA: 1, Minor: 5, Memory: 40 * gib, Capability: "8.0",
		Links: map[string]int{"GPU-0": 16, "GPU-1": 16, "GPU-2": 16, "GPU-3": 16, "GPU-4": 4, "GPU-6": 8, "GPU-7": 8},
	}, facts.GPUs[5])
}

func TestNVLinkIsNearerThanPCIe(t *testing.T) {
	t.Parallel()
	s := machine()
	// Card 0 is wired to card 3 by its third link; the first is down, and of the second it tells nothing. Cards 6 and 7 are wired to a
	// switch.
	device(s, 0).GetNvLinkStateFunc = func(n int) (nvml.EnableState, nvml.Return) {
		switch n {
		case 0:
			return nvml.FEATURE_DISABLED, nvml.SUCCESS
		case 1:
			return nvml.FEATURE_DISABLED, nvml.ERROR_NOT_SUPPORTED
		case 2:
			return nvml.FEATURE_ENABLED, nvml.SUCCESS
		}
		return nvml.FEATURE_DISABLED, nvml.ERROR_INVALID_ARGUMENT
	}
	device(s, 0).GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
		return nvml.NVLINK_DEVICE_TYPE_GPU, nvml.SUCCESS
	}
	device(s, 0).GetNvLinkRemotePciInfoFunc = func(int) (nvml.PciInfo, nvml.Return) { return pci(3), nvml.SUCCESS }
	for _, i := range []int{6, 7} {
		device(s, i).GetNvLinkStateFunc = func(int) (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
		device(s, i).GetNvLinkRemoteDeviceTypeFunc = func(int) (nvml.IntNvLinkDeviceType, nvml.Return) {
			return nvml.NVLINK_DEVICE_TYPE_SWITCH, nvml.SUCCESS
		}
	}
	facts, err := over(s).Look()
	require.NoError(t, err)
	require.Equal(t, 2, facts.GPUs[0].Links["GPU-3"])
	require.Equal(t, 2, facts.GPUs[3].Links["GPU-0"], "one side that tells the link is enough")
	require.Equal(t, 2, facts.GPUs[6].Links["GPU-7"])
	require.Equal(t, 4, facts.GPUs[0].Links["GPU-1"])
	require.Equal(t, 16, facts.GPUs[6].Links["GPU-0"], "a link to another card does not lead to the switch")
}

func TestWithoutTopologyTheNodesCount(t *testing.T) {
	t.Parallel()
	s := machine()
	for i := range s.Devices {
		device(s, i).GetTopologyCommonAncestorFunc = func(nvml.Device) (nvml.GpuTopologyLevel, nvml.Return) {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
	}
	sys := sysOf()
	delete(sys, "bus/pci/devices/0000:0e:00.0/numa_node")
	sys["bus/pci/devices/0000:0d:00.0/numa_node"] = &fstest.MapFile{Data: []byte("-1\n")}
	facts, err := newLibrary(s, sys, io.Discard).Look()
	require.NoError(t, err)
	require.Equal(t, map[string]int{"GPU-1": 8, "GPU-2": 8, "GPU-3": 8, "GPU-4": 16, "GPU-5": 16}, facts.GPUs[0].Links)
	require.Equal(t, -1, facts.GPUs[6].NUMA)
	require.Equal(t, -1, facts.GPUs[7].NUMA)
	require.Empty(t, facts.GPUs[7].Links, "unknown is not far")
}

func TestACardThatFailsAQuestionHasAProblem(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		breakIt func(*dgxa100.Device)
		problem string
	}{
		"memory": {func(d *dgxa100.Device) {
			d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_GPU_IS_LOST }
		}, "its memory could not be read: the GPU has fallen off the bus or does not answer (NVML error 15); next: see dmesg for XID " +
			"errors, and restart the host"},
		"minor": {func(d *dgxa100.Device) {
			d.GetMinorNumberFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, "its minor number could not be read"},
		"address": {func(d *dgxa100.Device) {
			d.GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) { return nvml.PciInfo{}, nvml.ERROR_UNKNOWN }
		}, "its PCI address could not be read"},
		"name": {func(d *dgxa100.Device) {
			d.GetNameFunc = func() (string, nvml.Return) { return "", nvml.ERROR_RESET_REQUIRED }
		}, "its name could not be read: the GPU needs a reset"},
		"capability": {func(d *dgxa100.Device) {
			d.GetCudaComputeCapabilityFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_TIMEOUT }
		}, "its compute capability could not be read"},
		"MIG mode": {func(d *dgxa100.Device) {
			d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_UNKNOWN }
		}, "its MIG mode could not be read"},
		"MIG instances": {func(d *dgxa100.Device) {
			d.MigMode = nvml.DEVICE_MIG_ENABLE
			d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
		}, "its MIG instances could not be read"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := machine()
			c.breakIt(device(s, 2))
			facts, err := over(s).Look()
			require.NoError(t, err)
			require.Len(t, facts.GPUs, 8)
			for i, g := range facts.GPUs {
				if i == 2 {
					require.Contains(t, g.Problem, c.problem)
				} else {
					require.Empty(t, g.Problem)
				}
			}
		})
	}
}

func TestWhatACardDoesNotHaveIsNoProblem(t *testing.T) {
	t.Parallel()
	s := machine()
	d := device(s, 0)
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	facts, err := over(s).Look()
	require.NoError(t, err)
	require.Empty(t, facts.GPUs[0].Problem)
	require.Zero(t, facts.GPUs[0].Memory)
	require.False(t, facts.GPUs[0].MIG)
}

func TestACardThatIsLostKeepsItsName(t *testing.T) {
	t.Parallel()
	s := machine()
	lost := nvml.SUCCESS
	good := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i == 1 && lost != nvml.SUCCESS {
			return nil, lost
		}
		return good(i)
	}
	l := over(s)
	before, err := l.Look()
	require.NoError(t, err)
	lost = nvml.ERROR_GPU_IS_LOST
	after, err := l.Look()
	require.NoError(t, err)
	require.Len(t, after.GPUs, 8)
	require.Contains(t, after.GPUs[1].Problem, "fallen off the bus")
	require.Empty(t, after.Problems)
	after.GPUs[1].Problem = ""
	require.Equal(t, before.GPUs[1], after.GPUs[1])
	// Another process has never seen it.
	fresh, err := over(s).Look()
	require.NoError(t, err)
	require.Len(t, fresh.GPUs, 7)
	require.Len(t, fresh.Problems, 1)
	require.Contains(t, fresh.Problems[0], "GPU 1 cannot be named: the GPU has fallen off the bus")
}

func TestALostCardIsNotNamedAfterAnotherThatIsThere(t *testing.T) {
	t.Parallel()
	s := machine()
	l := over(s)
	_, err := l.Look()
	require.NoError(t, err)
	// Card 7 is gone for good, the last place answers for nobody, and its old card is seen in the place before.
	good := s.DeviceGetHandleByIndexFunc
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		switch i {
		case 6:
			return good(7)
		case 7:
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return good(i)
	}
	facts, err := l.Look()
	require.NoError(t, err)
	require.Len(t, facts.GPUs, 7)
	require.Len(t, facts.Problems, 1)
}

// part makes a MIG instance, which the mock has none of.
func part(uuid, name string, a nvml.DeviceAttributes, gi, ci int) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return name, nvml.SUCCESS },
		GetAttributesFunc:        func() (nvml.DeviceAttributes, nvml.Return) { return a, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Used: 3 * gib}, nvml.SUCCESS
		},
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: 77, UsedGpuMemory: 2 * gib}}, nvml.SUCCESS
		},
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
	}
}

// cut puts a card into MIG mode with the given places; nil is an empty one.
func cut(d *dgxa100.Device, places ...*mock.Device) {
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return len(places), nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if places[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return places[i], nvml.SUCCESS
	}
}

var small = nvml.DeviceAttributes{GpuInstanceSliceCount: 1, ComputeInstanceSliceCount: 1, MemorySizeMB: 4864}

func TestMIGInstances(t *testing.T) {
	t.Parallel()
	s := machine()
	broken := part("MIG-c", "", small, 3, 0)
	broken.GetAttributesFunc = func() (nvml.DeviceAttributes, nvml.Return) { return nvml.DeviceAttributes{}, nvml.ERROR_UNKNOWN }
	half := nvml.DeviceAttributes{GpuInstanceSliceCount: 3, ComputeInstanceSliceCount: 1, MemorySizeMB: 19968}
	cut(device(s, 0), part("MIG-a", "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", small, 7, 0), nil, part("MIG-b", "NVIDIA A100", half, 1, 2), broken)
	cut(device(s, 1))
	facts, err := over(s).Look()
	require.NoError(t, err)
	require.True(t, facts.GPUs[0].MIG)
	require.Empty(t, facts.GPUs[0].Problem)
	require.Equal(t, []nvmlwire.Instance{
		{UUID: "MIG-a", Profile: "1g.5gb+me", Memory: 4864 << 20, GPUInstance: 7},
		{UUID: "MIG-b", Profile: "1c.3g.20gb", Memory: 19968 << 20, GPUInstance: 1, ComputeInstance: 2},
	}, facts.GPUs[0].Instances)
	require.Len(t, facts.Problems, 1)
	require.Contains(t, facts.Problems[0], "a MIG instance of GPU GPU-0 cannot be used: read its size")
	require.True(t, facts.GPUs[1].MIG, "a card in MIG mode without instances gives nothing")
	require.Empty(t, facts.GPUs[1].Instances)
	require.False(t, facts.GPUs[2].MIG)
}

func TestProfilesAreCalledAsNVIDIACallsThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		slices, mib uint64
		card        int64
		want        string
	}{
		{1, 4864, 40 * gib, "1g.5gb"},
		{2, 9856, 40 * gib, "2g.10gb"},
		{3, 19968, 40 * gib, "3g.20gb"},
		{7, 40192, 40 * gib, "7g.40gb"},
		{1, 9984, 81559 << 20, "1g.10gb"},
		{1, 20096, 81559 << 20, "1g.20gb"},
		{3, 40448, 81559 << 20, "3g.40gb"},
		{7, 81050, 81559 << 20, "7g.80gb"},
		{1, 11008, 94 * gib, "1g.12gb"},
		{1, 0, 94 * gib, ""},
		{1, 11008, 0, ""},
	} {
		a := nvml.DeviceAttributes{GpuInstanceSliceCount: uint32(c.slices), ComputeInstanceSliceCount: uint32(c.slices), MemorySizeMB: c.mib}
		require.Equal(t, c.want, profile("NVIDIA H100", a, c.card))
	}
}

func TestSampleMeasures(t *testing.T) {
	t.Parallel()
	s := machine()
	d := device(s, 3)
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: gib}, {Pid: 20, UsedGpuMemory: math.MaxUint64}, {Pid: 40, UsedGpuMemory: 5}},
			nvml.SUCCESS
	}
	d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: 2 * gib}}, nvml.SUCCESS
	}
	d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 30, UsedGpuMemory: math.MaxUint64}}, nvml.SUCCESS
	}
	var since []uint64
	d.GetProcessUtilizationFunc = func(after uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
		since = append(since, after)
		if len(since) > 1 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return []nvml.ProcessUtilizationSample{
			{Pid: 30, TimeStamp: 200, SmUtil: 60}, {Pid: 30, TimeStamp: 100, SmUtil: 10}, {Pid: 40, TimeStamp: 150, SmUtil: 4000}}, nvml.SUCCESS
	}
	l := over(s)
	got, err := l.Sample()
	require.NoError(t, err)
	require.Len(t, got.Uses, 8)
	require.Equal(t, nvmlwire.Use{
		UUID: "GPU-3", Utilisation: new(30.0), MemoryUsed: new(int64(3 * gib)), Power: new(61.5), Temperature: new(33.0),
		Processes: []nvmlwire.Process{
			{PID: 20, MemoryUnknown: true, Utilisation: new(0.0)},
			{PID: 30, Memory: 2 * gib, Utilisation: new(60.0)},
			{PID: 40, Memory: 5},
		},
	}, got.Uses[3])
	again, err := l.Sample()
	require.NoError(t, err)
	require.Equal(t, new(0.0), again.Uses[3].Processes[1].Utilisation)
	require.Equal(t, []uint64{0, 200}, since, "only what is new is asked for")
}

func TestWhatCannotBeMeasuredIsAbsent(t *testing.T) {
	t.Parallel()
	s := machine()
	d := device(s, 0)
	d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
	d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_UNKNOWN }
	d.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_NOT_SUPPORTED }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 5, UsedGpuMemory: 1}}, nvml.SUCCESS
	}
	d.GetProcessUtilizationFunc = func(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	device(s, 1).GetUUIDFunc = func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST }
	got, err := over(s).Sample()
	require.NoError(t, err)
	require.Len(t, got.Uses, 7)
	require.Equal(t, nvmlwire.Use{UUID: "GPU-0", Processes: []nvmlwire.Process{{PID: 5, Memory: 1}}}, got.Uses[0])
	require.Equal(t, "GPU-2", got.Uses[1].UUID)
}

func TestProgramsOfACutCardAreWithItsInstances(t *testing.T) {
	t.Parallel()
	s := machine()
	cut(device(s, 0), part("MIG-a", "A100 MIG 1g.5gb", small, 7, 0))
	device(s, 0).GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 77, UsedGpuMemory: 2 * gib}}, nvml.SUCCESS
	}
	got, err := over(s).Sample()
	require.NoError(t, err)
	require.Equal(t, nvmlwire.Use{UUID: "GPU-0", MemoryUsed: new(int64(0)), Power: new(61.5), Temperature: new(33.0)}, got.Uses[0])
	require.Equal(t, nvmlwire.Use{UUID: "MIG-a", MemoryUsed: new(int64(3 * gib)), Processes: []nvmlwire.Process{{PID: 77, Memory: 2 * gib}}},
		got.Uses[1])
}

func TestTheLibraryThatDoesNotStartIsAskedAgain(t *testing.T) {
	t.Parallel()
	for ret, words := range map[nvml.Return]string{
		nvml.ERROR_LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 could not be loaded",
		nvml.ERROR_DRIVER_NOT_LOADED: "next: run modprobe nvidia",
		nvml.ERROR_NO_PERMISSION:     "does not permit",
		nvml.ERROR_UNKNOWN:           "NVML error 999",
	} {
		s := machine()
		s.InitFunc = func() nvml.Return { return ret }
		l := over(s)
		_, err := l.Look()
		require.ErrorContains(t, err, "start NVIDIA's library")
		require.Contains(t, text(err), words)
		require.NotErrorIs(t, err, errStale)
		_, err = l.Sample()
		require.Contains(t, text(err), words)
		s.InitFunc = func() nvml.Return { return nvml.SUCCESS }
		_, err = l.Look()
		require.NoError(t, err)
		_, err = l.Sample()
		require.NoError(t, err)
		require.Len(t, s.InitCalls(), 1+2, "it is started once")
	}
}

func TestFailuresThatNeedANewProcess(t *testing.T) {
	t.Parallel()
	s := machine()
	s.InitFunc = func() nvml.Return { return nvml.ERROR_LIB_RM_VERSION_MISMATCH }
	_, err := over(s).Look()
	require.ErrorIs(t, err, errStale)
	require.Contains(t, text(err), "of different versions")
	s = machine()
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNINITIALIZED }
	_, err = over(s).Sample()
	require.ErrorIs(t, err, errStale)
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 0, nvml.ERROR_UNKNOWN }
	_, err = over(s).Sample()
	require.Error(t, err)
	require.NotErrorIs(t, err, errStale)
	s.DeviceGetCountFunc = func() (int, nvml.Return) { return 65, nvml.SUCCESS }
	_, err = over(s).Look()
	require.ErrorContains(t, err, "65 GPUs")
}

func TestWatchTellsXIDs(t *testing.T) {
	t.Parallel()
	s := machine()
	answers := make(chan func() (nvml.EventData, nvml.Return), 8)
	event := func(d nvml.Device, kind, data uint64) {
		answers <- func() (nvml.EventData, nvml.Return) {
			return nvml.EventData{Device: d, EventType: kind, EventData: data}, nvml.SUCCESS
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	freed := make(chan struct{})
	set := &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
			select {
			case a := <-answers:
				return a()
			case <-ctx.Done():
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		},
		FreeFunc: func() nvml.Return { close(freed); return nvml.SUCCESS },
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	for i := range s.Devices {
		device(s, i).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) {
			if i == 0 {
				return nvml.EventTypeClock, nvml.SUCCESS
			}
			return nvml.EventTypeXidCriticalError | nvml.EventTypeClock, nvml.SUCCESS
		}
		device(s, i).RegisterEventsFunc = func(kinds uint64, _ nvml.EventSet) nvml.Return {
			if i == 1 {
				return nvml.ERROR_GPU_IS_LOST
			}
			assert.EqualValues(t, nvml.EventTypeXidCriticalError, kinds)
			return nvml.SUCCESS
		}
	}
	var said bytes.Buffer
	l := newLibrary(s, sysOf(), &said)
	told, ended := make(chan nvmlwire.Event), make(chan struct{})
	go func() {
		defer close(ended)
		l.Watch(ctx, func(e nvmlwire.Event) { told <- e })
	}()
	_, err := l.Look() // nothing is watched before the library has started
	require.NoError(t, err)
	event(s.Devices[4], nvml.EventTypeXidCriticalError, 79)
	require.Equal(t, nvmlwire.Event{UUID: "GPU-4", XID: 79}, await.Value(t, told))
	event(s.Devices[4], nvml.EventTypeClock, 1)
	event(&mock.Device{}, nvml.EventTypeXidCriticalError, 13)
	answers <- func() (nvml.EventData, nvml.Return) { return nvml.EventData{}, nvml.ERROR_TIMEOUT }
	event(s.Devices[7], nvml.EventTypeXidCriticalError, 48)
	require.Equal(t, nvmlwire.Event{UUID: "GPU-7", XID: 48}, await.Value(t, told), "other events are left out")
	stop()
	await.Value(t, freed)
	await.Value(t, ended)
	require.Empty(t, said.String())
}

func TestEventsThatCannotBeWatchedAreSaid(t *testing.T) {
	t.Parallel()
	s := machine()
	l := over(s)
	require.NoError(t, l.ready())
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
	require.ErrorContains(t, l.watch(t.Context(), nil), "make a set of events")
	set := &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) { return nvml.EventData{}, nvml.ERROR_GPU_IS_LOST },
		FreeFunc: func() nvml.Return { return nvml.SUCCESS },
	}
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	for i := range s.Devices {
		device(s, i).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	}
	require.ErrorContains(t, l.watch(t.Context(), nil), "no GPU of this host tells its errors")
	device(s, 0).GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
	device(s, 0).RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	require.ErrorContains(t, l.watch(t.Context(), nil), "fallen off the bus")
	require.Len(t, set.FreeCalls(), 2)
}

func TestWithoutADriverEveryQuestionIsAnsweredInWords(t *testing.T) {
	t.Parallel()
	missing := newLibrary(nvml.New(nvml.WithLibraryPath("/nowhere/libnvidia-ml.so.1")), sysOf(), io.Discard)
	_, err := missing.Look()
	require.Contains(t, text(err), "start NVIDIA's library: libnvidia-ml.so.1 could not be loaded (NVML error 12); next: install")
	_, err = missing.Sample()
	require.Error(t, err)
}
