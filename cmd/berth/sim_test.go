package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// simulate runs berth sim on a workload, with the machines of deploy/devices beside it.
func simulate(t *testing.T, workload string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	deploy, err := filepath.Abs("../../deploy")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(deploy, filepath.Join(dir, "deploy")))
	file := filepath.Join(dir, "workload.yaml")
	require.NoError(t, os.WriteFile(file, []byte(workload), 0o600))
	var out strings.Builder
	c := newSim()
	c.SetOut(&out)
	c.SetArgs([]string{"--workload", file, "--placements", "-"})
	c.SilenceErrors, c.SilenceUsage = true, true
	err = c.Execute()
	return out.String(), err
}

// TestSimulatedMachines: the links of a machine that a file describes decide in a simulation, too.
func TestSimulatedMachines(t *testing.T) {
	t.Parallel()
	out, err := simulate(t, `
agents: [{name: dgx, cpu: 128, mem: 1024GiB, devices: deploy/devices/eight-a100.toml}]
jobs:
  - {name: one, user: ada, cpu: 1, gpus: 1}
  - {name: pair, user: ada, cpu: 1, gpus: 2, arrives: 1s}
  - {name: socket, user: ada, cpu: 1, gpus: 4, arrives: 2s}
`)
	require.NoError(t, err)
	require.Equal(t, "one,dgx,0\npair,dgx,2-3\nsocket,dgx,4-5-6-7\n", out,
		"the pair is joined by NVLink, and the four lie on the other socket")

	for want, workload := range map[string]string{
		"gpus and model stand in": "agents: [{name: a, gpus: 1, devices: deploy/devices/eight-a100.toml}]",
		"cards of two models":     "agents: [{name: a, devices: two.toml}]",
		"cannot be read":          "agents: [{name: a, devices: none.toml}]",
	} {
		if strings.Contains(workload, "two.toml") {
			two := filepath.Join(t.TempDir(), "two.toml")
			require.NoError(t, os.WriteFile(two, []byte(`[slots]
"cuda.device" = "count"
[[devices]]
uuid = "a"
model = "A"
slots = { "cuda.device" = "1" }
[[devices]]
uuid = "b"
model = "B"
slots = { "cuda.device" = "1" }
`), 0o600))
			workload = strings.Replace(workload, "two.toml", two, 1)
		}
		_, err := simulate(t, workload)
		require.ErrorContains(t, err, want)
		require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	}
}
