package mock_test

import (
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	whole = cluster.SlotName("cuda.device")
	parts = cluster.SlotName("cuda.shares")
)

// clock is a machine's time.
type clock struct{ passed atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1000, 0).Add(time.Duration(c.passed.Load())) }
func (c *clock) advance(d time.Duration) { c.passed.Add(int64(d)) }

func open(t *testing.T) (*mock.Driver, *clock) {
	m, err := mock.Read("testdata/four.toml")
	require.NoError(t, err)
	c := &clock{}
	d, err := mock.New(m, c.now)
	require.NoError(t, err)
	return d, c
}

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) conformance.Fixture {
		d, c := open(t)
		return conformance.Fixture{Driver: d,
			Break:  func() device.Ref { c.advance(3 * time.Minute); return device.Ref{Slot: whole, ID: "GPU-2"} },
			Vanish: func() device.Ref { c.advance(10 * time.Minute); return device.Ref{Slot: whole, ID: "GPU-3"} },
		}
	})
}

func TestDevices(t *testing.T) {
	t.Parallel()
	d, _ := open(t)
	require.Equal(t, map[cluster.SlotName]cluster.SlotKind{whole: cluster.SlotCount, parts: cluster.SlotCount}, d.Kinds())
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 8, "every card fills both slots")
	require.Equal(t, device.Device{Memory: 80 << 30, Device: alloc.Device{
		Slot: whole, ID: "GPU-1", NUMA: 0, PCI: "0000:0f:00.0", Model: "A100-SXM4-80GB", Capacity: cluster.Whole(1), Healthy: true,
		Links: map[string]int{"GPU-0": alloc.DistanceFast, "GPU-2": alloc.DistanceFar, "GPU-3": alloc.DistanceFar},
	}}, found[1])
	require.Equal(t, parts, found[4].Slot)
	require.Equal(t, "GPU-0", found[4].ID)
}

func TestGrant(t *testing.T) {
	t.Parallel()
	d, _ := open(t)
	g, err := d.Grant(alloc.Allocation{whole: {"GPU-3": cluster.Whole(1), "GPU-0": cluster.Whole(1)}})
	require.NoError(t, err)
	require.Equal(t, device.Grant{
		Env:   map[string]string{"BACKENDAI_MOCK_CUDA_DEVICES": "GPU-0,GPU-3", "BACKENDAI_MOCK_CUDA_DEVICE_COUNT": "2"},
		Nodes: []runtime.DeviceNode{{Source: "/dev/null", Target: "/dev/mock0", Permissions: "rwm"}},
		CDI:   []string{"berth.dev/mock=3"},
	}, g)
	_, err = d.Grant(alloc.Allocation{whole: {"GPU-0": cluster.Whole(2)}})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestHealthFollowsTheClock(t *testing.T) {
	t.Parallel()
	d, c := open(t)
	health := func() map[string]string {
		found, err := d.Discover(t.Context())
		require.NoError(t, err)
		out := map[string]string{}
		for _, x := range found {
			out[x.ID] = x.Problem
		}
		return out
	}
	require.Equal(t, map[string]string{"GPU-0": "", "GPU-1": "", "GPU-2": "", "GPU-3": ""}, health())
	c.advance(3*time.Minute - 1)
	require.Empty(t, health()["GPU-2"])
	c.advance(1)
	require.Equal(t, "XID 48: double-bit error", health()["GPU-2"])
	c.advance(2 * time.Minute)
	require.Empty(t, health()["GPU-2"], "it lasts two minutes")
	c.advance(5 * time.Minute)
	require.NotContains(t, health(), "GPU-3")
}

func TestLoadFollowsWhatKernelsHave(t *testing.T) {
	t.Parallel()
	d, c := open(t)
	held := map[cluster.KernelID]alloc.Allocation{
		"half": {parts: {"GPU-0": 500}}, "quarter": {parts: {"GPU-0": 250}}, "broken": {whole: {"GPU-2": 1000}},
	}
	u, err := d.Sample(t.Context(), held)
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"cuda_util": 60, "cuda_mem": 0.75 * 80 * (80 << 30) / 100, "cuda_mem_total": 80 << 30},
		u.Devices[device.Ref{Slot: whole, ID: "GPU-0"}])
	require.Equal(t, 40.0, u.Kernels["half"]["cuda_util"])
	require.Equal(t, 20.0, u.Kernels["quarter"]["cuda_util"])
	require.Equal(t, float64(20<<30), u.Kernels["quarter"]["cuda_mem_total"])
	require.Zero(t, u.Devices[device.Ref{Slot: whole, ID: "GPU-1"}]["cuda_util"], "nobody has it")
	require.NotEmpty(t, u.Kernels["broken"])
	c.advance(3 * time.Minute)
	u, err = d.Sample(t.Context(), held)
	require.NoError(t, err)
	require.Empty(t, u.Kernels["broken"], "what a broken device does is unknown")
	require.NotContains(t, u.Devices, device.Ref{Slot: whole, ID: "GPU-2"})
}

// TestPowerFollowsTheLoad: with power and temperature in the file they follow the utilisation; without them they are not known.
func TestPowerFollowsTheLoad(t *testing.T) {
	t.Parallel()
	m, err := mock.Parse([]byte(`
[slots]
"cuda.device" = "count"
[[devices]]
uuid = "a"
slots = { "cuda.device" = "1" }
load = 80
power = { idle = 50, full = 400 }
temperature = { idle = 30, full = 80 }
[[devices]]
uuid = "b"
slots = { "cuda.device" = "1" }
`))
	require.NoError(t, err)
	d, err := mock.New(m, time.Now)
	require.NoError(t, err)
	u, err := d.Sample(t.Context(), nil)
	require.NoError(t, err)
	a, b := device.Ref{Slot: whole, ID: "a"}, device.Ref{Slot: whole, ID: "b"}
	require.Equal(t, map[string]float64{"cuda_util": 0, "cuda_power": 50, "cuda_temperature": 30}, u.Devices[a])
	require.Equal(t, map[string]float64{"cuda_util": 0}, u.Devices[b])
	u, err = d.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": {whole: {"a": 1000}}})
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"cuda_util": 80, "cuda_power": 330, "cuda_temperature": 70}, u.Devices[a])
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	const head = "[slots]\n\"cuda.device\" = \"count\"\n"
	gpu := func(more string) string {
		return head + "[[devices]]\nuuid = \"a\"\nslots = { \"cuda.device\" = \"1\" }\n" + more
	}
	for want, text := range map[string]string{
		`line 6: there is no key "devices.colour"`:               gpu("colour = \"red\"\n"),
		`line 1: there is no key "formats"`:                      "formats = 1\n",
		`line 6, column`:                                         gpu("numa = \"zero\"\n"),
		`NUMA node -2 is below zero`:                             gpu("numa = -2\n"),
		`used twice`:                                             gpu("[[devices]]\nuuid = \"a\"\nslots = { \"cuda.device\" = \"1\" }\n"),
		`not among the machine's slots`:                          head + "[[devices]]\nuuid = \"a\"\nslots = { \"rocm.device\" = \"1\" }\n",
		`it fills no slot`:                                       head + "[[devices]]\nuuid = \"a\"\n",
		`has no capacity`:                                        head + "[[devices]]\nuuid = \"a\"\nslots = { \"cuda.device\" = \"0\" }\n",
		`is counted as "pieces"`:                                 "[slots]\n\"cuda.device\" = \"pieces\"\n",
		`slot "cuda" is not of the form family.name`:             "[slots]\ncuda = \"count\"\n",
		`"/etc/passwd" is not a path below /dev`:                 gpu("nodes = [\"/etc/passwd:/dev/x\"]\n"),
		`"/dev/../etc/passwd" is not a path below /dev`:          gpu("nodes = [\"/dev/../etc/passwd\"]\n"),
		`is not a device name of the form vendor/class=name`:     gpu("cdi = \"gpu 0\"\n"),
		`a load of 120 percent`:                                  gpu("load = 120\n"),
		`power from 5 to 1 does not rise`:                        gpu("power = { idle = 5, full = 1 }\n"),
		`temperature from NaN to 1 does not rise`:                gpu("temperature = { idle = nan, full = 1 }\n"),
		`a load of NaN percent`:                                  gpu("load = nan\n"),
		`"b" are not two devices`:                                gpu("[[links]]\nbetween = [\"a\", \"b\"]\nclass = \"far\"\n"),
		`class "rope" is not one of far, node, nvlink`:           gpu("[[links]]\nbetween = [\"a\", \"a\"]\nclass = \"rope\"\n"),
		`there is no device "b"`:                                 gpu("[[faults]]\ndevice = \"b\"\nafter = \"1s\"\ngone = true\n"),
		`after = "soon" is not a duration`:                       gpu("[[faults]]\ndevice = \"a\"\nafter = \"soon\"\ngone = true\n"),
		`for = "-1s" is not a duration`:                          gpu("[[faults]]\ndevice = \"a\"\nafter = \"1s\"\nfor = \"-1s\"\ngone = true\n"),
		`neither which problem the device has nor that it is go`: gpu("[[faults]]\ndevice = \"a\"\nafter = \"1s\"\n"),
	} {
		_, err := mock.Parse([]byte(text))
		require.Error(t, err, "%s", want)
		require.Contains(t, err.Error(), want)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

func TestFileIsBounded(t *testing.T) {
	t.Parallel()
	_, err := mock.Read("testdata/none.toml")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	big := filepath.Join(t.TempDir(), "big.toml")
	require.NoError(t, os.WriteFile(big, make([]byte, 1<<20+1), 0o600))
	_, err = mock.Read(big)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	require.Contains(t, err.Error(), "larger than")
}

// TestTheDocumentedMachine keeps the example of docs/devices.md true.
func TestTheDocumentedMachine(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/devices.md")
	require.NoError(t, err)
	_, example, ok := strings.Cut(string(page), "```toml\n")
	require.True(t, ok)
	example, _, ok = strings.Cut(example, "```")
	require.True(t, ok)
	m, err := mock.Parse([]byte(example))
	require.NoError(t, err)
	require.Len(t, m.Devices, 2)
	require.Len(t, m.Links, 1)
	require.Len(t, m.Faults, 1)
}
