package cdi_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/cdi"
	"berth.dev/berth/internal/agent/device/conformance"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const slot = cluster.SlotName("gaudi2.device")

// gaudi describes two accelerators whose host is below.
const gaudi = `
slot = "gaudi2.device"
kind = "habana.ai/gaudi"
names = "hl([0-9]+)"
sysfs = "/sys/class/accel/accel{1}/device"
model = "HL-225"
memory = "96g"
ignore_hooks = ["update-ldcache"]
env = { HABANA_VISIBLE_DEVICES = "{names}", HABANA_COUNT = "{count}" }
[metrics]
command = ["/usr/bin/hl-smi", "--metrics"]
[health]
file = "/sys/class/accel/accel{1}/device/status"
healthy = "^Operational"
`

const specification = `
cdiVersion: 0.7.0
kind: habana.ai/gaudi
containerEdits:
  env: [HABANA_DRIVER=1.20]
  deviceNodes: [{path: /dev/shared-control}]
  mounts:
  - {hostPath: /usr/lib/habana, containerPath: /usr/lib/habana, options: [ro, nosuid, nodev, bind]}
  hooks:
  - {hookName: createContainer, path: /usr/bin/vendor-hook, args: [vendor-hook, update-ldcache]}
devices:
- name: hl0
  containerEdits:
    env: [HL_FIRST=hl0]
    deviceNodes: [{path: /dev/accel/accel0, hostPath: /dev/null, permissions: rw}]
    additionalGids: [0, 110]
- name: hl1
  containerEdits:
    deviceNodes: [{path: /dev/accel/accel1, hostPath: /dev/zero}]
    mounts: [{hostPath: /var/lib/hl1, containerPath: /var/lib/hl, options: [rw]}]
    additionalGids: [44, 110]
- name: all
  containerEdits:
    deviceNodes: [{path: /dev/accel/accel0}, {path: /dev/accel/accel1}]
`

// host is everything that a driver sees.
type host struct {
	t    *testing.T
	dir  string // of specifications
	sys  fstest.MapFS
	mu   sync.Mutex
	out  map[string]string // by program
	runs map[string]int
	fail error
	now  time.Time
	dirs []string        // of the engine
	gone map[string]bool // paths that the host lacks
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir(), sys: fstest.MapFS{}, runs: map[string]int{}, now: time.Unix(1000, 0), gone: map[string]bool{},
		out: map[string]string{"/usr/bin/hl-smi": "hl0 util 40\nhl0 temperature 61\n{\"device\":\"hl1\",\"util\":10,\"mem\":1024}\n"}}
	for i, way := range []string{"pci0000:00/0000:00:01.0/0000:01:00.0", "pci0000:80/0000:80:01.0/0000:81:00.0"} {
		n := string(rune('0' + i))
		h.sys["devices/"+way+"/status"] = &fstest.MapFile{Data: []byte("Operational\n")}
		h.sys["devices/"+way+"/numa_node"] = &fstest.MapFile{Data: []byte(n + "\n")}
		h.sys["class/accel/accel"+n+"/device"] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../../devices/" + way)}
		h.sys["bus/pci/devices/"+filepath.Base(way)] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../../devices/" + way)}
	}
	h.write("habana.yaml", specification)
	return h
}

func (h *host) write(name, text string) {
	require.NoError(h.t, os.WriteFile(filepath.Join(h.dir, name), []byte(text), 0o600))
}

func (h *host) run(ctx context.Context, args []string) ([]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.runs[args[0]]++
	if h.fail != nil {
		return nil, h.fail
	}
	return []byte(h.out[args[0]]), ctx.Err()
}

// open makes the driver of a description over this host; the description's directories of specifications are this host's.
func (h *host) open(text string) *cdi.Driver {
	c, err := cdi.Parse([]byte(text))
	require.NoError(h.t, err)
	if len(c.SpecDirs) == 0 {
		c.SpecDirs = []string{h.dir}
	}
	d, err := cdi.New(c, cdi.Options{Sys: h.sys, EngineDirs: func() []string { return h.dirs }, Run: h.run,
		Exists: func(p string) bool { return !h.gone[p] },
		Now:    func() time.Time { h.mu.Lock(); defer h.mu.Unlock(); return h.now }})
	require.NoError(h.t, err)
	return d
}

// problems returns what a look finds, by id.
func (h *host) problems(d *cdi.Driver) map[string]string {
	h.t.Helper()
	found, err := d.Discover(h.t.Context())
	require.NoError(h.t, err)
	out := map[string]string{}
	for _, x := range found {
		require.Equal(h.t, x.Healthy, x.Problem == "")
		out[x.ID] = x.Problem
	}
	return out
}

func both() alloc.Allocation {
	return alloc.Allocation{slot: {"hl1": cluster.Whole(1), "hl0": cluster.Whole(1)}}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, engine := range map[string]bool{"edits": false, "names": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conformance.Run(t, func(t *testing.T) conformance.Fixture {
				h := newHost(t)
				if engine {
					h.dirs = []string{h.dir}
				}
				return conformance.Fixture{Driver: h.open(gaudi), Shared: []string{"/dev/shared-control"},
					Break: func() device.Ref {
						h.sys["devices/pci0000:80/0000:80:01.0/0000:81:00.0/status"] = &fstest.MapFile{Data: []byte("In reset\n")}
						return device.Ref{Slot: slot, ID: "hl1"}
					},
					Vanish: func() device.Ref {
						h.write("habana.yaml", strings.Replace(specification, "name: hl1", "name: other", 1))
						return device.Ref{Slot: slot, ID: "hl1"}
					}}
			})
		})
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(gaudi)
	require.Equal(t, "cdi:gaudi2.device", d.Name())
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []device.Device{
		{Memory: 96 << 30, Device: alloc.Device{Slot: slot, ID: "hl0", NUMA: 0, PCI: "0000:01:00.0", Model: "HL-225",
			Capacity: cluster.Whole(1), Healthy: true}},
		{Memory: 96 << 30, Device: alloc.Device{Slot: slot, ID: "hl1", NUMA: 1, PCI: "0000:81:00.0", Model: "HL-225",
			Capacity: cluster.Whole(1), Healthy: true}},
	}, found)
}

// TestEditsWithoutTheEngine: the driver gives what the specification says, all of it together.
func TestEditsWithoutTheEngine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(gaudi)
	h.problems(d)
	g, err := d.Grant(both())
	require.NoError(t, err)
	require.Equal(t, device.Grant{
		Env: map[string]string{"HABANA_DRIVER": "1.20", "HL_FIRST": "hl0", "HABANA_VISIBLE_DEVICES": "hl0,hl1", "HABANA_COUNT": "2"},
		Nodes: []runtime.DeviceNode{{Source: "/dev/shared-control", Target: "/dev/shared-control", Permissions: "rwm"},
			{Source: "/dev/null", Target: "/dev/accel/accel0", Permissions: "rw"}, {Source: "/dev/zero", Target: "/dev/accel/accel1",
				Permissions: "rwm"}},
		Mounts: []runtime.Mount{{Source: "/usr/lib/habana", Target: "/usr/lib/habana", ReadOnly: true},
			{Source: "/var/lib/hl1", Target: "/var/lib/hl"}},
		Groups: []int{44, 110},
	}, g)
	g.Env["HL_FIRST"] = "changed"
	again, err := d.Grant(both())
	require.NoError(t, err)
	require.Equal(t, "hl0", again.Env["HL_FIRST"], "a grant is the caller's to change")
}

func TestNamesForTheEngine(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.dirs = []string{"/etc/cdi", h.dir}
	h.write("habana.yaml", strings.Replace(specification, "update-ldcache", "enable-everything", 1))
	d := h.open(gaudi)
	require.Equal(t, map[string]string{"hl0": "", "hl1": ""}, h.problems(d), "the engine runs hooks")
	g, err := d.Grant(both())
	require.NoError(t, err)
	require.Equal(t, device.Grant{CDI: []string{"habana.ai/gaudi=hl0", "habana.ai/gaudi=hl1"},
		Env: map[string]string{"HABANA_VISIBLE_DEVICES": "hl0,hl1", "HABANA_COUNT": "2"}}, g)
	// An engine that has not answered yet, or that reads other directories, knows none of them.
	h.dirs = []string{"/etc/cdi"}
	for _, problem := range h.problems(d) {
		require.Contains(t, problem, "its specification wants the hook createContainer /usr/bin/vendor-hook enable-everything to run")
		require.Contains(t, problem, "ignore_hooks")
	}
	_, err = d.Grant(both())
	require.ErrorContains(t, err, "enable-everything")
}

func TestRunDirectoriesAreOne(t *testing.T) {
	t.Parallel()
	require.True(t, cdi.SameDir("/var/run/cdi", "/run/cdi/"))
	require.True(t, cdi.SameDir("/etc/cdi", "/etc/cdi"))
	require.False(t, cdi.SameDir("/var/cdi", "/cdi"))
	require.False(t, cdi.SameDir("/etc/cdi", "/run/cdi"))
}

// TestWhatOnlyAnEngineCanGive: each device that needs more than a container without CDI can have is broken, with words.
func TestWhatOnlyAnEngineCanGive(t *testing.T) {
	t.Parallel()
	for want, edit := range map[string]string{
		"wants the hook prestart /bin/x to run":                   `hooks: [{hookName: prestart, path: /bin/x}]`,
		"wants a class of Intel RDT":                              `intelRdt: {closID: a}`,
		"moves the network interface eth7 into containers":        `netDevices: [{hostInterfaceName: eth7, name: eth1}]`,
		`the device file "/dev/../etc/shadow" as "/dev/x"`:        `deviceNodes: [{path: /dev/x, hostPath: /dev/../etc/shadow}]`,
		`the device file "dev/x" as "dev/x"`:                      `deviceNodes: [{path: dev/x}]`,
		"gives the device file /dev/x in a way that needs":        `deviceNodes: [{path: /dev/x, permissions: none}]`,
		"gives the device file /dev/p in a way that needs":        `deviceNodes: [{path: /dev/p, type: p}]`,
		`mounts "/usr/../etc" at "/x"`:                            `mounts: [{hostPath: /usr/../etc, containerPath: /x}]`,
		`mounts "/" at "/x"`:                                      `mounts: [{hostPath: /, containerPath: /x}]`,
		`mounts "/usr" at "/"`:                                    `mounts: [{hostPath: /usr, containerPath: /}]`,
		"mounts a tmpfs at /x":                                    `mounts: [{hostPath: tmpfs-, containerPath: /x, type: tmpfs}]`,
		"mounts /x with the option noexec":                        `mounts: [{hostPath: /usr, containerPath: /x, options: [noexec]}]`,
		"wants the group 4294967295":                              `additionalGids: [4294967295]`,
		"the device file /dev/absent of its specification is not": `deviceNodes: [{path: /dev/absent}]`,
		"the file /usr/absent of its specification is not":        `mounts: [{hostPath: /usr/absent, containerPath: /x}]`,
		`variable "A B" cannot be set`:                            `env: ["A B=c"]`,
		"its description is refused":                              `env: ["=c"]`,
	} {
		h := newHost(t)
		h.gone["/dev/absent"], h.gone["/usr/absent"] = true, true
		edit = strings.Replace(edit, "tmpfs-", "/tmpfs", 1)
		h.write("habana.yaml", "cdiVersion: 1.1.0\nkind: habana.ai/gaudi\ndevices:\n"+
			"- {name: hl0, containerEdits: {"+edit+"}}\n- {name: hl1, containerEdits: {env: [A=b]}}\n")
		d := h.open(gaudi)
		got := h.problems(d)
		require.Contains(t, got["hl0"], want)
		require.Empty(t, got["hl1"], "the other one works: %s", want)
		_, err := d.Grant(alloc.Allocation{slot: {"hl0": cluster.Whole(1)}})
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", want, err)
	}
}

// TestHostileSpecifications: what cannot be read, or is broken and speaks of the kind, is named; of other kinds it is left alone.
func TestHostileSpecifications(t *testing.T) {
	t.Parallel()
	many := "cdiVersion: 0.6.0\nkind: habana.ai/gaudi\ndevices:\n" + strings.Repeat("- {name: hl1, containerEdits: {env: [A=b]}}\n", 1025)
	for want, damage := range map[string]func(h *host){
		"is refused: it is no specification": func(h *host) { h.write("bad.json", `{"kind": "habana.ai/gaudi",`) },
		`field colour not found`:             func(h *host) { h.write("bad.yaml", "kind: habana.ai/gaudi\ncolour: red\n") },
		"is refused: it is larger than 1048576 bytes": func(h *host) {
			h.write("bad.yaml", "kind: habana.ai/gaudi\n"+strings.Repeat("# x\n", 1<<18))
		},
		"is refused: its version is refused": func(h *host) { h.write("bad.yaml", "cdiVersion: 9.9.9\nkind: habana.ai/gaudi\n") },
		"an entry of its edits is empty": func(h *host) {
			h.write("bad.yaml", "kind: habana.ai/gaudi\ncontainerEdits: {mounts: [null]}\n")
		},
		"describes device hl1 twice":              func(h *host) { h.write("bad.yaml", strings.Join(strings.SplitAfter(many, "\n")[:5], "")) },
		"it describes 1025 devices, at most 1024": func(h *host) { h.write("bad.yaml", many) },
		`"../hl1" cannot name a device`: func(h *host) {
			h.write("bad.yaml", strings.Replace(specification, "name: hl1", "name: ../hl1", 1))
		},
		"bad.yaml cannot be read: openat bad.yaml: too": func(h *host) { h.link("bad.yaml", "bad.yaml") },
		"path escapes from parent":                      func(h *host) { h.link("../../etc/passwd", "bad.json") },
		"bad.json cannot be read: openat":               func(h *host) { h.link("nowhere", "bad.json") },
		"bad.json cannot be read: it is no file":        func(h *host) { h.pipe("bad.json") },
	} {
		h := newHost(t)
		d := h.open(gaudi)
		damage(h)
		_, err := d.Discover(t.Context())
		require.ErrorContains(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
	h := newHost(t)
	d := h.open(gaudi)
	h.write("other.json", `{"kind": "somebody.else/x",`)
	h.write("other.yaml", "kind: somebody.else/x\ncolour: red\n"+strings.Repeat("# x\n", 1<<18))
	h.write("notes.txt", "habana.ai/gaudi {")
	require.NoError(t, os.Mkdir(filepath.Join(h.dir, "directory.json"), 0o700))
	require.Len(t, h.problems(d), 2, "files of others are not ours to judge")
}

func (h *host) link(target, name string) {
	require.NoError(h.t, os.Symlink(target, filepath.Join(h.dir, name)))
}

func TestTwoFilesDescribeOneDevice(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(gaudi)
	h.write("other.json", `{"cdiVersion": "0.6.0", "kind": "habana.ai/gaudi", "devices": [
		{"name": "hl1", "containerEdits": {"env": ["A=b"]}}]}`)
	got := h.problems(d)
	require.Empty(t, got["hl0"])
	require.Contains(t, got["hl1"], "two specifications describe it, "+h.dir+"/habana.yaml and "+h.dir+"/other.json")
	// Of two directories the later one counts.
	later := t.TempDir()
	require.NoError(t, os.Rename(filepath.Join(h.dir, "other.json"), filepath.Join(later, "other.json")))
	c, err := cdi.Parse([]byte(gaudi))
	require.NoError(t, err)
	c.SpecDirs = []string{h.dir, later, filepath.Join(later, "absent")}
	d, err = cdi.New(c, cdi.Options{Sys: h.sys, Run: h.run, Exists: func(string) bool { return true }, Now: time.Now})
	require.NoError(t, err)
	require.Equal(t, map[string]string{"hl0": "", "hl1": ""}, h.problems(d))
	g, err := d.Grant(alloc.Allocation{slot: {"hl1": cluster.Whole(1)}})
	require.NoError(t, err)
	require.Equal(t, "b", g.Env["A"])
	require.Empty(t, g.Nodes)
}

// TestSpecificationsThatChange: devices come and go with the looks, and what kernels hold stays the same.
func TestSpecificationsThatChange(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(gaudi)
	v, err := device.NewInventory(d)
	require.NoError(t, err)
	refresh := func() map[string]string {
		t.Helper()
		_, err := v.Refresh(t.Context())
		require.NoError(t, err)
		out := map[string]string{}
		for _, x := range v.Devices() {
			out[x.ID] = x.Problem
		}
		return out
	}
	require.Equal(t, map[string]string{"hl0": "", "hl1": ""}, refresh())
	one := alloc.Allocation{slot: {"hl0": cluster.Whole(1)}}
	before, err := v.Grant(one)
	require.NoError(t, err)
	h.sys["class/accel/accel2/device/status"] = &fstest.MapFile{Data: []byte("Operational\n")}
	h.write("habana.yaml", specification+"- name: hl2\n  containerEdits: {env: [A=b]}\n")
	require.Equal(t, map[string]string{"hl0": "", "hl1": "", "hl2": ""}, refresh(), "an added one appears")
	after, err := v.Grant(one)
	require.NoError(t, err)
	require.Equal(t, before, after)
	h.write("habana.yaml", strings.Replace(specification, "name: hl1", "name: elsewhere", 1))
	require.Equal(t, map[string]string{"hl0": "", "hl1": "it is not there any more", "hl2": "it is not there any more"}, refresh())
	after, err = v.Grant(one)
	require.NoError(t, err)
	require.Equal(t, before, after)
	delete(h.sys, "class/accel/accel0/device")
	require.Contains(t, refresh()["hl0"], "/sys/class/accel/accel0/device is not there")
	require.NoError(t, os.RemoveAll(h.dir))
	require.Equal(t, "it is not there any more", refresh()["hl0"])
}

func TestMetricsAreCached(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(gaudi)
	held := map[cluster.KernelID]alloc.Allocation{"k": both()}
	sample := func() device.Usage {
		t.Helper()
		h.problems(d)
		u, err := d.Sample(t.Context(), held)
		require.NoError(t, err)
		return u
	}
	u := sample()
	require.Equal(t, map[string]float64{"gaudi2_util": 40, "gaudi2_temperature": 61, "gaudi2_mem_total": 96 << 30},
		u.Devices[device.Ref{Slot: slot, ID: "hl0"}])
	require.Equal(t, map[string]float64{"gaudi2_util": 50, "gaudi2_temperature": 61, "gaudi2_mem": 1024, "gaudi2_mem_total": 192 << 30},
		u.Kernels["k"], "amounts are sums, a temperature is that of the hottest")
	h.now = h.now.Add(29 * time.Second)
	sample()
	require.Equal(t, 1, h.runs["/usr/bin/hl-smi"])
	h.now = h.now.Add(time.Second)
	h.fail = errors.New("exit status 3")
	u = sample()
	require.Equal(t, 2, h.runs["/usr/bin/hl-smi"])
	require.Equal(t, 40.0, u.Devices[device.Ref{Slot: slot, ID: "hl0"}]["gaudi2_util"], "not old yet")
	h.now = h.now.Add(time.Minute + 1)
	u = sample()
	require.Equal(t, map[string]float64{"gaudi2_mem_total": 96 << 30}, u.Devices[device.Ref{Slot: slot, ID: "hl0"}], "unknown is not zero")
	h.fail = nil
	require.Equal(t, 50.0, sample().Kernels["k"]["gaudi2_util"])
}

func TestHealthCommand(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	d := h.open(strings.Replace(gaudi, "[health]", "[health]\ncommand = [\"/usr/bin/hl-health\"]\nevery = \"1m\"", 1))
	h.out["/usr/bin/hl-health"] = "hl0 ok\nhl1   too hot\x1b[31m\nhl7 ok\n"
	require.Equal(t, map[string]string{"hl0": "", "hl1": "too hot [31m"}, h.problems(d))
	h.out["/usr/bin/hl-health"] = "hl0 ok\n"
	h.now = h.now.Add(59 * time.Second)
	require.Equal(t, "too hot [31m", h.problems(d)["hl1"])
	h.now = h.now.Add(time.Second)
	require.Equal(t, map[string]string{"hl0": "", "hl1": "the health command says nothing of it"}, h.problems(d))
	h.now, h.fail = h.now.Add(time.Minute), errors.New("exit status 1")
	for range 2 {
		_, err := d.Discover(t.Context())
		require.ErrorContains(t, err, "ask for the health of devices: run /usr/bin/hl-health: exit status 1")
	}
	require.Equal(t, 4, h.runs["/usr/bin/hl-health"], "what failed is tried again with the next look")
}

func TestAdaptersLieBesideAccelerators(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	for addr, class := range map[string]string{"0000:02:00.0": "0x020700", "0000:03:00.0": "0x030200", "0000:04:00.0": "0x120000"} {
		way := "pci0000:00/0000:00:01.0/" + addr
		if addr == "0000:04:00.0" {
			way = "pci0000:00/0000:00:02.0/" + addr
		}
		h.sys["devices/"+way+"/class"] = &fstest.MapFile{Data: []byte(class + "\n")}
		h.sys["bus/pci/devices/"+addr] = &fstest.MapFile{Mode: fs.ModeSymlink, Data: []byte("../../../devices/" + way)}
	}
	h.sys["devices/pci0000:00/0000:00:01.0/0000:02:00.0/numa_node"] = &fstest.MapFile{Data: []byte("0\n")}
	h.sys["class/infiniband/mlx5_0/device"] = &fstest.MapFile{Mode: fs.ModeSymlink,
		Data: []byte("../../../devices/pci0000:00/0000:00:01.0/0000:02:00.0")}
	h.sys["class/infiniband/mlx5_0/hca_type"] = &fstest.MapFile{Data: []byte("MT4129\n")}
	h.write("rdma.yaml", "cdiVersion: 0.6.0\nkind: nvidia.com/rdma\ndevices:\n"+
		"- {name: mlx5_0, containerEdits: {deviceNodes: [{path: /dev/infiniband/uverbs0}]}}\n")
	d := h.open("slot = \"rdma.hca\"\nkind = \"nvidia.com/rdma\"\nhca = true\ncapacity = 8\n" +
		"sysfs = \"/sys/class/infiniband/{name}/device\"\n" +
		"model_file = \"/sys/class/infiniband/{name}/hca_type\"\n")
	found, err := d.Discover(t.Context())
	require.NoError(t, err)
	require.Equal(t, []device.Device{{Device: alloc.Device{Slot: "rdma.hca", ID: "mlx5_0", NUMA: 0, PCI: "0000:02:00.0", Model: "MT4129",
		Capacity: cluster.Whole(8), Healthy: true, Links: map[string]int{"0000:03:00.0": alloc.DistanceSwitch}}}}, found)
}
