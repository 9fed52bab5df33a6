package cuda_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/cudatest"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// host is a driver over a made-up host.
type host struct {
	*cudatest.Source
	root   string
	engine runtime.Info
	d      *cuda.Driver
	// changed counts the cards that broke between two looks.
	changed chan struct{}
}

// shares is MPS that works without doing anything.
type shares struct{ problem map[string]string }

func (shares) Ready() error              { return nil }
func (shares) Dir(cards []string) string { return "/run/berth/mps/" + strings.Join(cards, "+") }
func (shares) Prepare(context.Context, cluster.KernelID, map[string]cuda.Limit) error {
	return nil
}
func (shares) Release(context.Context, cluster.KernelID) error { return nil }
func (shares) Keep(context.Context)                            {}
func (shares) Prepared() []cluster.KernelID                    { return nil }
func (s shares) Problem(card string) string                    { return s.problem[card] }

// open makes a host; change may change its configuration, and what else it has.
func open(t *testing.T, s *cudatest.Source, change func(*host, *cuda.Options)) *host {
	t.Helper()
	h := &host{Source: s, root: s.Host(t), changed: make(chan struct{}, 16)}
	o := cuda.Options{Config: cuda.DefaultConfig(), Source: s, Root: h.root, Log: slog.New(slog.DiscardHandler), Shares: shares{},
		Engine:  func(context.Context) (runtime.Info, error) { return h.engine, nil },
		Changed: func() { h.changed <- struct{}{} }}
	if change != nil {
		change(h, &o)
	}
	require.NoError(t, o.Config.Validate())
	var err error
	h.d, err = cuda.New(t.Context(), o)
	require.NoError(t, err)
	_, err = h.d.Discover(t.Context())
	require.NoError(t, err)
	return h
}

// put writes a file of the host.
func (h *host) put(t *testing.T, file, text string) {
	t.Helper()
	file = filepath.Join(h.root, file)
	require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
}

func (h *host) devices(t *testing.T) []device.Device {
	t.Helper()
	out, err := h.d.Discover(t.Context())
	require.NoError(t, err)
	return out
}

// problems are the problems of the devices of a slot, by id; "" of healthy ones.
func (h *host) problems(t *testing.T, slot cluster.SlotName) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, d := range h.devices(t) {
		if d.Slot == slot {
			out[d.ID] = d.Problem
		}
	}
	return out
}

var controls = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*host, *cuda.Options){
		"device files": nil,
		"specification": func(h *host, o *cuda.Options) {
			h.engine = runtime.Info{CDI: []string{"/etc/cdi", "/var/run/cdi"}}
		},
		"shares": func(h *host, o *cuda.Options) {
			h.engine = runtime.Info{CDI: []string{"/var/run/cdi"}}
			o.Config.Fractions = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) conformance.Fixture {
				h := open(t, cudatest.Eight(), change)
				return conformance.Fixture{
					Driver: h.d, Shared: controls, Hides: []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"},
					Break: func() device.Ref {
						h.Tell(nvmlwire.Event{UUID: cudatest.UUID(2), XID: 79})
						return device.Ref{Slot: cuda.SlotDevice, ID: cudatest.UUID(2)}
					},
					Vanish: func() device.Ref {
						h.Change(func(f *nvmlwire.Facts) { f.GPUs = f.GPUs[:7] })
						return device.Ref{Slot: cuda.SlotDevice, ID: cudatest.UUID(7)}
					},
				}
			})
		})
	}
	t.Run("instances of MIG", func(t *testing.T) {
		t.Parallel()
		conformance.Run(t, func(t *testing.T) conformance.Fixture {
			s := cudatest.Eight()
			s.Cut(0, "1g.10gb", "1g.10gb", "2g.20gb")
			h := open(t, s, func(h *host, _ *cuda.Options) { h.engine = runtime.Info{CDI: []string{"/var/run/cdi"}} })
			return conformance.Fixture{Driver: h.d, Hides: []string{"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"}}
		})
	})
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Cut(1, "1g.10gb", "1g.10gb", "3g.40gb")
	s.Cut(2, "1g.10gb")
	h := open(t, s, func(_ *host, o *cuda.Options) {
		o.Config.Fractions = true
		o.Config.Mask = []string{cudatest.UUID(7), cudatest.Instance(1, 1)}
	})
	require.Equal(t, map[cluster.SlotName]cluster.SlotKind{"cuda.device": "count", "cuda.shares": "count", "cuda.1g.10gb-mig": "unique",
		"cuda.3g.40gb-mig": "unique"}, h.d.Kinds())
	ids := map[cluster.SlotName][]string{}
	found := map[string]device.Device{}
	for _, d := range h.devices(t) {
		ids[d.Slot] = append(ids[d.Slot], d.ID)
		found[string(d.Slot)+" "+d.ID] = d
		require.Equal(t, cluster.Whole(1), d.Capacity)
		require.True(t, d.Healthy, d.Problem)
	}
	whole := []string{cudatest.UUID(0), cudatest.UUID(3), cudatest.UUID(4), cudatest.UUID(5), cudatest.UUID(6)}
	require.Equal(t, map[cluster.SlotName][]string{
		"cuda.device": whole, "cuda.shares": whole, "cuda.1g.10gb-mig": {cudatest.Instance(1, 0), cudatest.Instance(2, 0)},
		"cuda.3g.40gb-mig": {cudatest.Instance(1, 2)},
	}, ids, "a card that is cut gives its instances and not itself; what is masked is not given out")
	require.Equal(t, map[string]int{cudatest.Instance(1, 2): alloc.DistanceSibling}, found["cuda.1g.10gb-mig "+cudatest.Instance(1, 0)].Links)
	card := found["cuda.device "+cudatest.UUID(4)]
	require.Equal(t, alloc.DistanceFast, card.Links[cudatest.UUID(0)])
	require.NotContains(t, card.Links, cudatest.UUID(7))
	require.Equal(t, 1, card.NUMA)
	require.Equal(t, int64(80<<30), card.Memory)
	require.Equal(t, "0000:27:00.0", card.PCI)

	// What is cut anew while the agent runs fills the slots that it has; others are for its next start.
	h.Cut(0, "1g.10gb", "7g.80gb")
	require.Contains(t, h.problems(t, "cuda.1g.10gb-mig"), cudatest.Instance(0, 0))
	require.Empty(t, h.problems(t, "cuda.7g.80gb-mig"))
	require.Len(t, h.d.Kinds(), 4)
}

func TestProfilesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) { o.Config.Profiles = []string{"1g.10gb", "1g.10gb+me"} })
	require.Equal(t, map[cluster.SlotName]cluster.SlotKind{"cuda.device": "count", "cuda.1g.10gb-mig": "unique",
		"cuda.1g.10gb+me-mig": "unique"}, h.d.Kinds())
}

func TestASourceThatCannotLook(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Fail(errors.New("no driver"))
	o := cuda.Options{Config: cuda.DefaultConfig(), Source: s, Root: t.TempDir(), Log: slog.New(slog.DiscardHandler)}
	d, err := cuda.New(t.Context(), o)
	require.NoError(t, err, "it may come")
	found, err := d.Discover(t.Context())
	require.NoError(t, err, "a host that never had GPUs is not warned about again and again")
	require.Empty(t, found)
	s.Fail(nil)
	found, err = d.Discover(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, found, "the driver was loaded meanwhile")
	s.Fail(errors.New("no driver"))
	_, err = d.Discover(t.Context())
	require.ErrorContains(t, err, "no driver", "of GPUs that were there it is told")
	o.Config.Enabled = cuda.On
	_, err = cuda.New(t.Context(), o)
	require.ErrorContains(t, err, "no driver")
	s.Fail(nil)
	s.Change(func(f *nvmlwire.Facts) { f.GPUs = nil })
	_, err = cuda.New(t.Context(), o)
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

func TestFactsThatCannotBeTrue(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*nvmlwire.Facts){
		"path":   func(f *nvmlwire.Facts) { f.GPUs[0].UUID = "../../etc" },
		"twice":  func(f *nvmlwire.Facts) { f.GPUs[1].UUID = f.GPUs[0].UUID },
		"memory": func(f *nvmlwire.Facts) { f.GPUs[0].Memory = -1 },
		"driver": func(f *nvmlwire.Facts) { f.Driver = "580/../x" },
		"profile": func(f *nvmlwire.Facts) {
			f.GPUs[0].MIG, f.GPUs[0].Instances = true, []nvmlwire.Instance{{UUID: "MIG-1", Profile: "a b"}}
		},
		"many": func(f *nvmlwire.Facts) { f.GPUs = make([]nvmlwire.GPU, nvmlwire.MaxGPUs+1) },
	} {
		h := open(t, cudatest.Eight(), nil)
		h.Change(change)
		_, err := h.d.Discover(t.Context())
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
}

// TestACardOfWhichLittleIsKnown takes nothing from the others.
func TestACardOfWhichLittleIsKnown(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) { o.Config.Fractions = true })
	h.Change(func(f *nvmlwire.Facts) {
		f.Problems = []string{"a card does not tell its name"}
		f.GPUs[0] = nvmlwire.GPU{UUID: f.GPUs[0].UUID, NUMA: -1, Minor: -1, Problem: "it does not answer"}
		f.GPUs[1].Minor = -1
	})
	got := h.problems(t, cuda.SlotShares)
	require.Equal(t, "it does not answer", got[cudatest.UUID(0)])
	require.Contains(t, got[cudatest.UUID(1)], "device file")
	require.Empty(t, got[cudatest.UUID(2)])
	require.Len(t, got, 8)
}

// TestNothingIsGivenToWhoAskedForNothing: an image that sets NVIDIA_VISIBLE_DEVICES=all does not reach a card, on no host.
func TestNothingIsGivenToWhoAskedForNothing(t *testing.T) {
	t.Parallel()
	want := map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}
	h := open(t, cudatest.Eight(), nil)
	for _, d := range []device.Driver{h.d, cuda.Shield{}} {
		g, err := d.Grant(alloc.Allocation{cluster.SlotCPU: {"0": 1000}})
		require.NoError(t, err)
		require.Equal(t, device.Grant{Env: want}, g)
	}
	v, err := device.NewInventory(cuda.Shield{})
	require.NoError(t, err)
	_, err = v.Refresh(t.Context())
	require.NoError(t, err)
	require.Empty(t, v.Devices())
}

func whole(ids ...int) alloc.Allocation {
	out := alloc.Allocation{cuda.SlotDevice: {}}
	for _, i := range ids {
		out[cuda.SlotDevice][cudatest.UUID(i)] = cluster.Whole(1)
	}
	return out
}

func TestGrantByDeviceFiles(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), nil)
	g, err := h.d.Grant(whole(5, 1))
	require.NoError(t, err)
	require.NoError(t, g.Validate())
	var nodes, mounts []string
	for _, n := range g.Nodes {
		require.Equal(t, n.Source, n.Target)
		nodes = append(nodes, n.Source)
	}
	for _, m := range g.Mounts {
		require.True(t, m.ReadOnly)
		mounts = append(mounts, m.Source+" "+m.Target)
	}
	require.Equal(t, append(controls[:3:3], "/dev/nvidia1", "/dev/nvidia5"), nodes)
	const lib = "/usr/lib/x86_64-linux-gnu/"
	require.Contains(t, mounts, lib+"libcuda.so.580.65.06 "+lib+"libcuda.so.1")
	require.Contains(t, mounts, lib+"libcuda.so.580.65.06 /usr/lib64/libcuda.so")
	require.Contains(t, mounts, lib+"libnvidia-ptxjitcompiler.so.580.65.06 "+lib+"libnvidia-ptxjitcompiler.so.580.65.06")
	require.Contains(t, mounts, "/usr/bin/nvidia-smi /usr/bin/nvidia-smi")
	require.NotContains(t, strings.Join(mounts, " "), "glcore", "what draws is left out")
	require.Equal(t, map[string]string{"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": "0,1", "CUDA_GLOBAL_DEVICE_IDS": "0:1,1:5",
		"CUDA_RESOURCE_VIRTUALIZED": "0"}, g.Env)

	s := cudatest.Eight()
	s.Cut(3, "1g.10gb", "1g.10gb")
	h = open(t, s, nil)
	g, err = h.d.Grant(alloc.Allocation{"cuda.1g.10gb-mig": {cudatest.Instance(3, 1): cluster.Whole(1)}})
	require.NoError(t, err)
	nodes = nil
	for _, n := range g.Nodes {
		nodes = append(nodes, n.Source)
	}
	require.Equal(t, append(controls[:3:3], "/dev/nvidia3", "/dev/nvidia-caps/nvidia-cap32", "/dev/nvidia-caps/nvidia-cap33"), nodes)
	require.Equal(t, cudatest.Instance(3, 1), g.Env["CUDA_VISIBLE_DEVICES"])
	require.NoError(t, os.RemoveAll(filepath.Join(h.root, "proc")))
	h.devices(t)
	_, err = h.d.Grant(alloc.Allocation{"cuda.1g.10gb-mig": {cudatest.Instance(3, 1): cluster.Whole(1)}})
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
}

// TestGrantByOurSpecification: an engine that knows CDI and has no specification of NVIDIA's gets ours, which is written whole
// or not at all.
func TestGrantByOurSpecification(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Cut(3, "1g.10gb")
	h := open(t, s, func(h *host, o *cuda.Options) {
		h.engine = runtime.Info{CDI: []string{"/etc/cdi", "/var/run/cdi"}}
		o.Config.Mask = []string{cudatest.UUID(6)}
	})
	g, err := h.d.Grant(whole(0, 4))
	require.NoError(t, err)
	require.NoError(t, g.Validate())
	require.Equal(t, []string{"berth.dev/gpu=" + cudatest.UUID(0), "berth.dev/gpu=" + cudatest.UUID(4)}, g.CDI)
	require.Empty(t, g.Nodes)
	require.Empty(t, g.Mounts)
	require.Equal(t, "void", g.Env["NVIDIA_VISIBLE_DEVICES"])

	file := filepath.Join(h.root, "var/run/cdi/berth.dev-gpu.json")
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var spec specs.Spec
	require.NoError(t, json.Unmarshal(b, &spec))
	require.Equal(t, "berth.dev/gpu", spec.Kind)
	require.Equal(t, "0.5.0", spec.Version)
	require.Len(t, spec.Devices, 9, "all of the host, whatever this agent gives out")
	require.Len(t, spec.ContainerEdits.DeviceNodes, 3)
	require.NotEmpty(t, spec.ContainerEdits.Mounts)
	require.Equal(t, cudatest.Instance(3, 0), spec.Devices[8].Name)
	require.Len(t, spec.Devices[8].ContainerEdits.DeviceNodes, 3)
	left, err := os.ReadDir(filepath.Dir(file))
	require.NoError(t, err)
	require.Len(t, left, 1, "nothing half written stays")

	// What does not change is not written again; what somebody damaged is.
	before, err := os.Stat(file)
	require.NoError(t, err)
	h.devices(t)
	after, err := os.Stat(file)
	require.NoError(t, err)
	require.True(t, os.SameFile(before, after))
	require.NoError(t, os.WriteFile(file, []byte("{"), 0o644))
	h.devices(t)
	again, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, b, again)

	// An engine that reads other directories gets device files.
	h.engine = runtime.Info{CDI: []string{"/etc/cdi"}}
	h.devices(t)
	g, err = h.d.Grant(whole(0))
	require.NoError(t, err)
	require.Empty(t, g.CDI)
	require.NotEmpty(t, g.Nodes)
}

// nvidiaSpec is one of NVIDIA's toolkit for these names.
func nvidiaSpec(hook string, names ...string) string {
	text := "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ncontainerEdits:\n  hooks:\n  - hookName: createRuntime\n    args: [nvidia-cdi-hook, " +
		hook + "]\ndevices:\n"
	for _, n := range names {
		text += "- name: " + n + "\n  containerEdits:\n    deviceNodes:\n    - path: /dev/nvidia0\n"
	}
	return text
}

func TestGrantByNVIDIAsSpecification(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range 8 {
		names = append(names, cudatest.UUID(i))
	}
	h := open(t, cudatest.Eight(), func(h *host, _ *cuda.Options) {
		h.engine = runtime.Info{CDI: []string{"/etc/cdi", "/var/run/cdi"}}
		h.put(t, "/etc/cdi/nvidia.yaml", nvidiaSpec("update-ldcache", append(names, "0", "all")...))
		h.put(t, "/etc/cdi/other.json", `{"kind":"other.com/gpu","devices":[{"name":"nvidia.com/gpu"}]}`)
		h.put(t, "/etc/cdi/README", "nvidia.com/gpu")
	})
	g, err := h.d.Grant(whole(2))
	require.NoError(t, err)
	require.Equal(t, []string{"nvidia.com/gpu=" + cudatest.UUID(2)}, g.CDI)
	require.NoFileExists(t, filepath.Join(h.root, "var/run/cdi/berth.dev-gpu.json"))

	// One that names fewer devices is out of date: ours takes its place.
	h.put(t, "/etc/cdi/nvidia.yaml", nvidiaSpec("update-ldcache", names[:7]...))
	h.devices(t)
	g, err = h.d.Grant(whole(2))
	require.NoError(t, err)
	require.Equal(t, []string{"berth.dev/gpu=" + cudatest.UUID(2)}, g.CDI)
	h.put(t, "/etc/cdi/nvidia.yaml", "kind: [nvidia.com/gpu")
	h.devices(t)
	g, err = h.d.Grant(whole(2))
	require.NoError(t, err)
	require.Equal(t, []string{"berth.dev/gpu=" + cudatest.UUID(2)}, g.CDI)
}

func TestGrantsThatAreRefused(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Cut(0, "1g.10gb", "2g.20gb")
	h := open(t, s, func(_ *host, o *cuda.Options) { o.Config.Fractions = true })
	one, two := cudatest.UUID(1), cudatest.UUID(2)
	for name, a := range map[string]alloc.Allocation{
		"a card that is cut":       whole(0),
		"half a card":              {cuda.SlotDevice: {one: 500}},
		"too many shares":          {cuda.SlotShares: {one: 1010}},
		"half an instance":         {"cuda.1g.10gb-mig": {cudatest.Instance(0, 0): 500}},
		"another profile":          {"cuda.1g.10gb-mig": {cudatest.Instance(0, 1): 1000}},
		"a card twice":             {cuda.SlotDevice: {one: 1000}, cuda.SlotShares: {one: 500}},
		"shares and a whole card":  {cuda.SlotDevice: {two: 1000}, cuda.SlotShares: {one: 500}},
		"shares and an instance":   {"cuda.1g.10gb-mig": {cudatest.Instance(0, 0): 1000}, cuda.SlotShares: {one: 500}},
		"an instance as a card":    {cuda.SlotDevice: {cudatest.Instance(0, 0): 1000}},
		"a card that is not there": {cuda.SlotDevice: {"GPU-x": 1000}},
	} {
		_, err := h.d.Grant(a)
		require.Equal(t, device.ReasonGrant, fault.ReasonOf(err), "%s: %v", name, err)
	}
}

// TestXIDs: a fatal error breaks a card until it is reset, in which it is not listed; an error of a program does not.
func TestXIDs(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) { o.Config.Fractions = true })
	two := cudatest.UUID(2)
	for _, xid := range []uint64{13, 31, 43, 45, 63, 94} {
		h.Tell(nvmlwire.Event{UUID: two, XID: xid})
		require.Empty(t, h.problems(t, cuda.SlotDevice)[two], "XID %d", xid)
	}
	h.Tell(nvmlwire.Event{UUID: two, XID: 79})
	h.Tell(nvmlwire.Event{UUID: two, XID: 48})
	for range 2 {
		require.Equal(t, "XID 79: the GPU has fallen off the bus", h.problems(t, cuda.SlotDevice)[two])
	}
	require.Equal(t, "XID 79: the GPU has fallen off the bus", h.problems(t, cuda.SlotShares)[two])
	require.Empty(t, h.problems(t, cuda.SlotDevice)[cudatest.UUID(3)])
	u, err := h.d.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{"k": whole(2)})
	require.NoError(t, err)
	require.NotContains(t, u.Devices, device.Ref{Slot: cuda.SlotDevice, ID: two}, "what a broken card does is unknown")
	require.NotContains(t, u.Kernels, cluster.KernelID("k"))
	var all []nvmlwire.GPU
	h.Change(func(f *nvmlwire.Facts) { all, f.GPUs = f.GPUs, append(f.GPUs[:2:2], f.GPUs[3:]...) })
	require.NotContains(t, h.problems(t, cuda.SlotDevice), two)
	h.Change(func(f *nvmlwire.Facts) { f.GPUs = all })
	require.Empty(t, h.problems(t, cuda.SlotDevice)[two], "it was reset")
	for _, xid := range []uint64{48, 62, 64, 74, 92, 95, 119, 120} {
		h := open(t, cudatest.Eight(), nil)
		h.Tell(nvmlwire.Event{UUID: two, XID: xid})
		require.Contains(t, h.problems(t, cuda.SlotDevice)[two], "XID ", "%d", xid)
	}
}

// TestXIDOfAnInstance: an instance breaks with its card.
func TestXIDOfAnInstance(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Cut(0, "1g.10gb", "1g.10gb")
	h := open(t, s, nil)
	h.Tell(nvmlwire.Event{UUID: cudatest.Instance(0, 1), XID: 48})
	got := h.problems(t, "cuda.1g.10gb-mig")
	require.Contains(t, got[cudatest.Instance(0, 0)], "XID 48")
	require.Contains(t, got[cudatest.Instance(0, 1)], "XID 48")
}

// TestABrokenCardIsToldAtOnce: nobody waits for the next look.
func TestABrokenCardIsToldAtOnce(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- h.d.Run(ctx) }()
	h.Tell(nvmlwire.Event{UUID: cudatest.UUID(2), XID: 13})
	h.Tell(nvmlwire.Event{UUID: cudatest.UUID(2), XID: 79})
	await.Value(t, h.changed)
	require.Contains(t, h.problems(t, cuda.SlotDevice)[cudatest.UUID(2)], "XID 79")
	cancel()
	require.ErrorIs(t, await.Value(t, done), context.Canceled)
	require.Empty(t, h.changed)
}
