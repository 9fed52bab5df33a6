package history_test

import (
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/history"
)

var update = flag.Bool("update", false, "write the golden file anew")

// TestWire keeps the form in JSON: what was not measured is absent, what is zero is told, and a kernel without points has an empty list.
func TestWire(t *testing.T) {
	t.Parallel()
	h := history.History{From: "2026-01-31T08:00:00+00:00", Until: "2026-01-31T08:02:00+00:00", StepSeconds: 60, Series: []history.Series{
		{KernelID: "k1", Hostname: "main1", Agent: "i-a100-3", Points: []history.Point{
			{At: "2026-01-31T08:00:00+00:00", CPU: new(0.0), Mem: new(1048576.0), IORead: new(1.5), IOWrite: new(2.0), NetRx: new(3.0),
				NetTx: new(4.0), Devices: map[string]float64{"cuda_util": 12.5}},
			{At: "2026-01-31T08:01:00+00:00"},
		}},
		{Points: []history.Point{}},
	}}
	got, err := json.MarshalIndent(h, "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))                    //nolint:gosec // part of the repository
		require.NoError(t, os.WriteFile("testdata/history.json", got, 0o644)) //nolint:gosec // part of the repository
	}
	want, err := os.ReadFile("testdata/history.json")
	require.NoError(t, err, "run the test with -update")
	require.Equal(t, string(want), string(got))
	var back history.History
	require.NoError(t, json.Unmarshal(want, &back))
	require.Equal(t, h, back)
}
