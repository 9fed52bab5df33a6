package device_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/device"
)

var update = flag.Bool("update", false, "write the golden file anew")

// TestWire keeps the form in JSON: what is not known is absent, what is zero is told.
func TestWire(t *testing.T) {
	t.Parallel()
	type all struct {
		Top     device.Top
		Machine device.Machine
	}
	told := all{
		device.Top{Total: 1, AsOf: "2026-01-31T08:00:00+00:00", Sessions: []device.Session{{
			ID: "s1", Name: "train", User: "a@x", Status: "RUNNING",
			Kernels: []device.Kernel{
				{ID: "k1", Hostname: "main1", Status: "RUNNING", Agent: "i-1", Slots: map[string]string{"cpu": "2", "cuda.shares": "0.5"},
					Use: map[string]float64{"cpu_util": 0}, Why: "one GPU on NUMA node 0", Devices: []device.Held{
						{Slot: "cuda.shares", ID: "GPU-0", Amount: "0.5", Model: "A100", PCI: "0000:07:00.0", NUMA: new(0), Healthy: new(true),
							Use: map[string]float64{"cuda_util": 0}},
						{Slot: "cuda.shares", ID: "GPU-9", Amount: "0.5"}}},
				{ID: "k2", Hostname: "sub1", Status: "PULLING", Slots: map[string]string{}, Devices: []device.Held{}},
			}}}},
		device.Machine{Agent: "i-1", Status: "ALIVE", Schedulable: true, ResourceGroup: "default", Sessions: []api.AgentSession{},
			Devices: []device.Device{{Slot: "cuda.device", ID: "GPU-0", Model: "A100", NUMA: -1, Capacity: 1000, Healthy: false,
				Problem: "XID 79: it fell off the bus", Memory: 80 << 30, Isolation: "hard",
				Links: map[string]int{"GPU-1": device.Fast}}}},
	}
	got, err := json.MarshalIndent(told, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))                   //nolint:gosec // part of the repository
		require.NoError(t, os.WriteFile("testdata/device.json", got, 0o644)) //nolint:gosec // part of the repository
	}
	want, err := os.ReadFile("testdata/device.json")
	require.NoError(t, err, "run the test with -update")
	require.Equal(t, string(want), string(got))
	var back all
	require.NoError(t, json.Unmarshal(want, &back))
	require.Equal(t, told, back)
}
