package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cuda"
	"berth.dev/berth/internal/agent/device/cuda/cudatest"
	"berth.dev/berth/internal/agent/device/cuda/nvmlwire"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

func TestRung(t *testing.T) {
	t.Parallel()
	a100 := []string{"8.0", "8.0"}
	for name, c := range map[string]struct {
		p    cuda.Probe
		want cluster.Isolation
	}{
		"a cut card":              {cuda.Probe{Driver: "615.10", MIG: true, CgroupV2: true, Limits: true}, cuda.Hard},
		"the newest of all":       {cuda.Probe{Driver: "615.10", Capabilities: a100, CgroupV2: true, Limits: true}, cuda.ByDriver},
		"a driver without limits": {cuda.Probe{Driver: "580.65.06", Capabilities: a100, CgroupV2: true, Limits: true}, cuda.Cooperative},
		"cgroup v1":               {cuda.Probe{Driver: "615.10", Capabilities: a100, Limits: true}, cuda.Cooperative},
		"an old toolkit":          {cuda.Probe{Driver: "615.10", Capabilities: a100, CgroupV2: true}, cuda.Cooperative},
		"no MPS":                  {cuda.Probe{Driver: "615.10", Capabilities: a100, CgroupV2: true, Limits: true, MPS: "no program"}, cuda.None},
		"an old card":             {cuda.Probe{Driver: "580.65.06", Capabilities: []string{"6.1", "8.0"}}, cuda.None},
		"an unknown card":         {cuda.Probe{Driver: "580.65.06", Capabilities: []string{""}}, cuda.None},
		"no card":                 {cuda.Probe{Driver: "580.65.06"}, cuda.None},
	} {
		require.Equal(t, c.want, cuda.Rung(c.p), name)
	}
}

// TestWithheldShares: shares are given out with the isolation that the operator asks for, or not at all, and whole cards all the same.
func TestWithheldShares(t *testing.T) {
	t.Parallel()
	one := cudatest.UUID(1)
	for name, c := range map[string]struct {
		change func(*cuda.Options)
		want   string
	}{
		"MPS":        {func(*cuda.Options) {}, ""},
		"not enough": {func(o *cuda.Options) { o.Config.Isolation = "driver" }, `its shares have isolation "cooperative" here`},
		"no MPS": {func(o *cuda.Options) { o.Shares = nil },
			`isolation "none" here, and agent.cuda.isolation asks for "cooperative"; MPS cannot`},
		"not permitted": {func(o *cuda.Options) { o.Shares, o.Config.Isolation = nil, "none" }, "agent.cuda.allow_time_slicing is not set"},
		"time slicing": {func(o *cuda.Options) {
			o.Shares, o.Config.Isolation, o.Config.AllowTimeSlicing = nil, "none", true
		}, ""},
		"MPS hangs": {func(o *cuda.Options) {
			o.Shares = shares{problem: map[string]string{one: "a program of MPS does not end"}}
		},
			"a program of MPS does not end"},
	} {
		h := open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) {
			o.Config.Fractions = true
			c.change(o)
		})
		got := h.problems(t, cuda.SlotShares)[one]
		if c.want == "" {
			require.Empty(t, got, name)
			continue
		}
		require.Contains(t, got, c.want, name)
		if name == "MPS hangs" {
			require.Empty(t, h.problems(t, cuda.SlotShares)[cudatest.UUID(2)])
			continue
		}
		require.Empty(t, h.problems(t, cuda.SlotDevice)[one], name)
		_, err := h.d.Grant(alloc.Allocation{cuda.SlotShares: {one: 500}})
		require.True(t, fault.Is(err, fault.Conflict), "%s: %v", name, err)
	}
	h := open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) { o.Config.Fractions = true })
	for _, d := range h.devices(t) {
		require.Equal(t, map[cluster.SlotName]cluster.Isolation{cuda.SlotShares: "cooperative"}[d.Slot], d.Isolation,
			"sessions may demand an isolation")
	}
	h.Change(func(f *nvmlwire.Facts) { f.GPUs[1].Memory = 1 << 30 })
	require.Contains(t, h.problems(t, cuda.SlotShares)[one], "too little memory")
}

func TestGrantOfShares(t *testing.T) {
	t.Parallel()
	h := open(t, cudatest.Eight(), func(h *host, o *cuda.Options) {
		o.Config.Fractions, o.Config.Reserve = true, 1<<30
		h.engine = runtime.Info{CDI: []string{"/var/run/cdi"}}
	})
	one, four := cudatest.UUID(1), cudatest.UUID(4)
	g, err := h.d.Grant(alloc.Allocation{cuda.SlotShares: {four: 250, one: 500}})
	require.NoError(t, err)
	require.Equal(t, device.Grant{
		CDI:    []string{"berth.dev/gpu=" + one, "berth.dev/gpu=" + four},
		Mounts: []runtime.Mount{{Source: "/run/berth/mps/" + one + "+" + four, Target: "/run/berth-mps", ReadOnly: true}},
		Env: map[string]string{
			"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": one + "," + four, "CUDA_GLOBAL_DEVICE_IDS": "0:1,1:4",
			"CUDA_RESOURCE_VIRTUALIZED": "1", "CUDA_MPS_PIPE_DIRECTORY": "/run/berth-mps",
			"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=40448M,1=20224M", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50",
			"TF_MIN_GPU_MULTIPROCESSOR_COUNT": "4",
		},
	}, g)
	require.NoError(t, g.Validate())

	// A driver that limits control groups is told the same limit, whatever the image says.
	h.Change(func(f *nvmlwire.Facts) { f.Driver = "615.20.03" })
	var names []string
	for i := range 8 {
		names = append(names, cudatest.UUID(i))
	}
	h.put(t, "/var/run/cdi/nvidia.yaml", nvidiaSpec("apply-cuda-memory-limits", names...))
	h.engine.CgroupVersion = 2
	h.devices(t)
	g, err = h.d.Grant(alloc.Allocation{cuda.SlotShares: {one: 10}})
	require.NoError(t, err)
	require.Equal(t, []string{"nvidia.com/gpu=" + one}, g.CDI)
	require.Equal(t, "808", g.Env["NVIDIA_GPU_MEMORY_LIMIT"])
	require.Equal(t, "808", g.Env["NVIDIA_GPU_MEMORY_REQUEST"])
	require.Equal(t, "0=808M", g.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"])
	require.Equal(t, "1", g.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])

	// Programs that take turns get nothing that would hold them.
	h = open(t, cudatest.Eight(), func(_ *host, o *cuda.Options) {
		o.Config.Fractions, o.Shares, o.Config.Isolation, o.Config.AllowTimeSlicing = true, nil, "none", true
	})
	g, err = h.d.Grant(alloc.Allocation{cuda.SlotShares: {one: 500}})
	require.NoError(t, err)
	require.NotContains(t, g.Env, "CUDA_MPS_PIPE_DIRECTORY")
	require.Equal(t, one, g.Env["CUDA_VISIBLE_DEVICES"])
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, cuda.DefaultConfig().Validate())
	for want, change := range map[string]func(*cuda.Config){
		"agent.cuda.enabled":            func(c *cuda.Config) { c.Enabled = "yes" },
		"agent.cuda.inject":             func(c *cuda.Config) { c.Inject = "" },
		"agent.cuda.isolation is":       func(c *cuda.Config) { c.Isolation = "hard" },
		"agent.cuda.allow_time_slicing": func(c *cuda.Config) { c.AllowTimeSlicing = true },
		"agent.cuda.reserve":            func(c *cuda.Config) { c.Reserve = -1 },
		"agent.cuda.mask":               func(c *cuda.Config) { c.Mask = []string{"0,1"} },
		"agent.cuda.profiles":           func(c *cuda.Config) { c.Profiles = []string{"MIG 1g.10gb"} },
		"agent.cuda.spec_dir":           func(c *cuda.Config) { c.SpecDir = "cdi" },
		"agent.cuda.mps_dir":            func(c *cuda.Config) { c.MPSDir = "/" },
		"agent.cuda.libraries":          func(c *cuda.Config) { c.Libraries = []string{"lib"} },
		"agent.cuda.mps_control":        func(c *cuda.Config) { c.MPSControl = "" },
		"a list of agent.cuda":          func(c *cuda.Config) { c.Mask = make([]string, 600) },
	} {
		c := cuda.DefaultConfig()
		change(&c)
		err := c.Validate()
		require.ErrorContains(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
	var m cuda.Memory
	require.NoError(t, m.UnmarshalText([]byte("1.5g")))
	require.Equal(t, cuda.Memory(3<<29), m)
	text, err := m.MarshalText()
	require.NoError(t, err)
	require.Equal(t, "1610612736", string(text))
}

func TestSample(t *testing.T) {
	t.Parallel()
	s := cudatest.Eight()
	s.Cut(7, "1g.10gb")
	owners := map[int]cluster.KernelID{11: "a", 12: "a", 21: "b", 22: "b", 31: "d"}
	h := open(t, s, func(_ *host, o *cuda.Options) {
		o.Config.Fractions = true
		o.Owner = func(pid int) (cluster.KernelID, bool) { id, ok := owners[pid]; return id, ok }
	})
	ten, twenty := 10.0, 20.0
	h.Measure(func(m *nvmlwire.Sample) {
		m.Uses[2].Processes = []nvmlwire.Process{{PID: 11, Memory: 1 << 30, Utilisation: &ten}, {PID: 12, Memory: 1 << 30, Utilisation: &twenty},
			{PID: 21, Memory: 3 << 30, Utilisation: &ten}, {PID: 22, Memory: 1 << 30},
			{PID: 31, MemoryUnknown: true, Utilisation: &ten}, {PID: 99, Memory: 5 << 30, Utilisation: &ten}}
		m.Uses[4].Power, m.Uses[4].Temperature = nil, nil
	})
	shares := func(id int, amount cluster.Amount) alloc.Allocation {
		return alloc.Allocation{cuda.SlotShares: {cudatest.UUID(id): amount}}
	}
	u, err := h.d.Sample(t.Context(), map[cluster.KernelID]alloc.Allocation{
		"whole": whole(3, 5), "partly": whole(3, 4), "mig": {"cuda.1g.10gb-mig": {cudatest.Instance(7, 0): 1000}},
		"a": shares(2, 500), "b": shares(2, 250), "c": shares(2, 250), "d": shares(2, 250), "idle": shares(0, 500), "unseen": shares(1, 500),
		"none": {cluster.SlotCPU: {"0": 1000}},
	})
	require.NoError(t, err)
	const size = 80 << 30
	card := map[string]float64{"cuda_util": 30, "cuda_mem": 3 << 30, "cuda_mem_total": size, "cuda_power": 63, "cuda_temperature": 33}
	require.Equal(t, card, u.Devices[device.Ref{Slot: cuda.SlotDevice, ID: cudatest.UUID(3)}])
	require.Equal(t, card, u.Devices[device.Ref{Slot: cuda.SlotShares, ID: cudatest.UUID(3)}])
	require.Equal(t, map[string]float64{"cuda_mem": 1 << 30, "cuda_mem_total": 10 << 30},
		u.Devices[device.Ref{Slot: "cuda.1g.10gb-mig", ID: cudatest.Instance(7, 0)}], "what is unknown is absent")
	require.Len(t, u.Devices, 15)
	half, quarter := float64(40704<<20), float64(20352<<20)
	require.Equal(t, map[cluster.KernelID]map[string]float64{
		"whole": {"cuda_util": 80, "cuda_mem": 8 << 30, "cuda_mem_total": 2 * size, "cuda_power": 128, "cuda_temperature": 35},
		// What one of two cards does not tell is not told of both.
		"partly": {"cuda_util": 70, "cuda_mem": 7 << 30, "cuda_mem_total": 2 * size},
		"mig":    {"cuda_mem": 1 << 30, "cuda_mem_total": 10 << 30},
		"a":      {"cuda_util": 30, "cuda_mem": 2 << 30, "cuda_mem_total": half},
		"b":      {"cuda_mem": 4 << 30, "cuda_mem_total": quarter},
		"c":      {"cuda_util": 0, "cuda_mem": 0, "cuda_mem_total": quarter},
		"d":      {"cuda_util": 10, "cuda_mem_total": quarter},
		"idle":   {"cuda_util": 0, "cuda_mem_total": half},
		"unseen": {"cuda_mem_total": half},
	}, u.Kernels)
	gone := errors.New("the helper does not answer")
	h.Fail(gone)
	_, err = h.d.Sample(t.Context(), nil)
	require.ErrorIs(t, err, gone)
}
