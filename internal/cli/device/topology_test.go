package device_test

import (
	"encoding/json"
	"flag"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	wire "berth.dev/berth/api/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cli/device"
	"berth.dev/berth/internal/cluster"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := "testdata/" + name
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644)) //nolint:gosec // part of the repository
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the test with -update")
	require.Equal(t, string(want), got)
}

// four is the machine of the mock driver with 16 cores and memory on each of its two sockets, some minutes after its start.
func four(t *testing.T, age time.Duration) wire.Machine {
	t.Helper()
	text, err := os.ReadFile("../../agent/device/mock/testdata/four.toml")
	require.NoError(t, err)
	parsed, err := mock.Parse(text)
	require.NoError(t, err)
	now := time.Unix(1000, 0)
	driver, err := mock.New(parsed, func() time.Time { return now })
	require.NoError(t, err)
	now = now.Add(age)
	found, err := driver.Discover(t.Context())
	require.NoError(t, err)
	m := wire.Machine{Agent: "i-worker1", Status: "ALIVE", Schedulable: true, ResourceGroup: "default"}
	type told struct { // as managers keep it
		alloc.Device
		Problem string
		Memory  int64
	}
	var devices []told
	for i := range 16 {
		devices = append(devices, told{Device: alloc.Device{Slot: cluster.SlotCPU, ID: strconv.Itoa(i), NUMA: i / 8, Capacity: cluster.Milli,
			Healthy: true}})
	}
	for node := range 2 {
		devices = append(devices, told{Device: alloc.Device{Slot: cluster.SlotMem, ID: "node" + strconv.Itoa(node), NUMA: node,
			Capacity: cluster.Whole(64 << 30), Healthy: true}})
	}
	for _, d := range found {
		devices = append(devices, told{d.Device, d.Problem, d.Memory})
	}
	raw, err := json.Marshal(devices)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(raw, &m.Devices)) // as agents tell of them
	return m
}

func TestTopology(t *testing.T) {
	t.Parallel()
	m := four(t, 4*time.Minute) // GPU-2 is broken
	m.Sessions = []api.AgentSession{
		{Name: "train", User: "alice@x", Devices: map[string]map[string]string{"cpu": {"0": "1", "1": "1", "2": "1", "3": "1"},
			"mem": {"node0": "17179869184"}, "cuda.device": {"GPU-0": "1"}}},
		{Name: "half\x1b[2J", User: "bob@x", Devices: map[string]map[string]string{"cpu": {"4": "1"}, "mem": {"node0": "1073741824"},
			"cuda.shares": {"GPU-1": "0.5"}}},
		{Name: "quarter", Devices: map[string]map[string]string{"cpu": {"5": "1"}, "cuda.shares": {"GPU-1": "0.25"}}},
	}
	m.SessionCount = 4
	golden(t, "four.txt", device.Draw(m, nil))
	golden(t, "none.txt", device.Draw(wire.Machine{Agent: "i-new", Status: "LOST", ResourceGroup: "default"}, nil))

	// A machine whose devices say little.
	unknown := wire.Machine{Agent: "i-plain", Status: "ALIVE", Schedulable: true, ResourceGroup: "npu", Devices: []wire.Device{
		{Slot: "cpu", ID: "0", NUMA: -1, Capacity: 1000, Healthy: true}, {Slot: "cpu", ID: "1", NUMA: -1, Capacity: 1000, Healthy: true},
		{Slot: "warboy.device", ID: "npu0", NUMA: -1, Capacity: 1000, Healthy: true},
		{Slot: "warboy.device", ID: "npu1", NUMA: -1, Capacity: 1000, Healthy: true, Links: map[string]int{"npu0": wire.Switch}},
		{Slot: "warboy.device", ID: "npu2", NUMA: -1, Capacity: 1000, Healthy: true},
	}}
	text := device.Draw(unknown, nil)
	golden(t, "unknown.txt", text)
	require.NotContains(t, strings.ReplaceAll(text, "\n", ""), "\x1b")
}
