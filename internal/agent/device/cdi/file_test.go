package cdi_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cdi"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const least = "slot = \"npu.device\"\nkind = \"vendor.com/npu\"\n"

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		`line 3: there is no key "colour"`:                      least + "colour = 1\n",
		`line 4: there is no key "metrics.shell"`:               least + "[metrics]\nshell = \"x\"\n",
		`line 3, column`:                                        least + "capacity = \"many\"\n",
		`slot = "" is not of the form family.name`:              "kind = \"vendor.com/npu\"\n",
		`slot = "npu" is not of the form`:                       "slot = \"npu\"\nkind = \"vendor.com/npu\"\n",
		`slot = "cuda.device" belongs to a driver of its own`:   "slot = \"cuda.device\"\nkind = \"nvidia.com/gpu\"\n",
		`count = "bytes" is neither count nor unique`:           least + "count = \"bytes\"\n",
		`kind = "npu" is not of the form vendor.com/class`:      "slot = \"npu.device\"\nkind = \"npu\"\n",
		`spec_dirs: "cdi" is no absolute path`:                  least + "spec_dirs = [\"cdi\"]\n",
		`names = "(" is no regular expression`:                  least + "names = \"(\"\n",
		`capacity = -1 is not between`:                          least + "capacity = -1\n",
		`capacity = 2 is not between`:                           least + "capacity = 2\ncount = \"unique\"\n",
		`memory:`:                                               least + "memory = \"much\"\n",
		`model and model_file are both given`:                   least + "model = \"a\"\nmodel_file = \"/sys/a\"\n",
		`sysfs: "/etc/x" is no path below /sys`:                 least + "sysfs = \"/etc/x\"\n",
		`sysfs: "/sys/../etc" is no path below /sys`:            least + "sysfs = \"/sys/../etc\"\n",
		`{1} is neither {name} nor a group of names`:            least + "sysfs = \"/sys/class/x{1}\"\n",
		`{2} is neither {name} nor a group of names`:            least + "names = \"x(.)\"\nsysfs = \"/sys/class/x{2}\"\n",
		`{host} is neither {name} nor`:                          least + "sysfs = \"/sys/class/{host}\"\n",
		`hca = true does not go with slot = "npu.device"`:       least + "hca = true\n",
		`hca = false does not go with slot = "rdma.hca"`:        "slot = \"rdma.hca\"\nkind = \"vendor.com/npu\"\n",
		`env: variable "A=B" cannot be set`:                     least + "[env]\n\"A=B\" = \"x\"\n",
		`metrics: the program "smi" is no absolute path`:        least + "[metrics]\ncommand = [\"smi\"]\n",
		`metrics: there is no command to run`:                   least + "[metrics]\nevery = \"1m\"\n",
		`metrics: every = "1s" is not a duration of 5s or more`: least + "[metrics]\ncommand = [\"/smi\"]\nevery = \"1s\"\n",
		`health: timeout = "5s" is not a duration of up to 4s`:  least + "[health]\ncommand = [\"/smi\"]\ntimeout = \"5s\"\n",
		`health.file and health.healthy go together`:            least + "[health]\nfile = \"/sys/x\"\n",
		`health.healthy = "(" is no regular expression`:         least + "[health]\nfile = \"/sys/x\"\nhealthy = \"(\"\n",
	} {
		_, err := cdi.Parse([]byte(text))
		require.ErrorContains(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}

func TestFilesAndDirectories(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), filepath.Join(t.TempDir(), "other.toml")
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	_, err := cdi.Read([]string{filepath.Join(dir, "none.toml")})
	require.ErrorContains(t, err, "a description of CDI devices cannot be read")
	require.Contains(t, fault.NextOf(err), "correct agent.cdi_devices")
	_, err = cdi.Read([]string{dir})
	require.ErrorContains(t, err, "no file in "+dir+" ends in .toml")
	write(filepath.Join(dir, "b.toml"), strings.Replace(least, "npu", "tpu", 1))
	write(filepath.Join(dir, "a.toml"), least)
	write(filepath.Join(dir, "notes.txt"), "nothing")
	write(other, strings.Replace(least, "npu", "ipu", 1))
	got, err := cdi.Read([]string{dir, other})
	require.NoError(t, err)
	var slots []cluster.SlotName
	for _, c := range got {
		slots = append(slots, c.Slot)
	}
	require.Equal(t, []cluster.SlotName{"npu.device", "tpu.device", "ipu.device"}, slots)
	write(other, least+strings.Repeat("# x\n", 1<<18))
	_, err = cdi.Read([]string{other})
	require.ErrorContains(t, err, other+": it is larger than")
	write(other, least+"colour = 1\n")
	_, err = cdi.Read([]string{dir, other})
	require.ErrorContains(t, err, other+`: line 3: there is no key "colour"`)
}

// TestNamesThatLeadElsewhere: what a device's name matches becomes a part of a path below /sys and of none above it.
func TestNamesThatLeadElsewhere(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.write("npu.yaml", "cdiVersion: 0.6.0\nkind: vendor.com/npu\ndevices:\n- {name: a..b, containerEdits: {env: [A=b]}}\n"+
		"- {name: all, containerEdits: {env: [A=b]}}\n")
	d := h.open(least + "names = \"a(.*)b|all\"\nsysfs = \"/sys/class/{1}/x\"\n")
	got := h.problems(d)
	require.Equal(t, "its name gives no path below /sys", got["a..b"])
	require.Contains(t, got, "all", "it is named")
	require.NotContains(t, h.problems(h.open(least)), "all", "it stands for the others")
}

// TestTheDocumentedClass keeps the example of docs/devices.md true.
func TestTheDocumentedClass(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../../docs/devices.md")
	require.NoError(t, err)
	_, section, ok := strings.Cut(string(page), "## Devices with a CDI specification")
	require.True(t, ok)
	section, _, _ = strings.Cut(section, "\n## ")
	examples := strings.Split(section, "```toml\n")[1:]
	require.Len(t, examples, 2)
	for _, example := range examples {
		text, _, ok := strings.Cut(example, "```")
		require.True(t, ok)
		_, err := cdi.Parse([]byte(text))
		require.NoError(t, err, text)
	}
}
