package sim_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/sim"
)

var update = flag.Bool("update", false, "write the golden files")

// Every workload in testdata under every order and two placements; the simulator's own ledger
// fails the run on any over-allocation, torn gang or broken quota.
func TestGolden(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.yaml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		for _, order := range scheduler.Orders() {
			for _, placement := range []string{"pack", "spread", "least-fragmentation"} {
				name := strings.TrimSuffix(filepath.Base(file), ".yaml") + "-" + order + "-" + placement
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					first, again := run(t, file, order, placement), run(t, file, order, placement)
					require.Equal(t, first, again, "the same seed gave another simulation")
					golden := filepath.Join("testdata", "golden", name+".json")
					if *update {
						require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
						require.NoError(t, os.WriteFile(golden, []byte(first), 0o644))
					}
					want, err := os.ReadFile(golden)
					require.NoError(t, err, "write it with -update and read it")
					require.Equal(t, string(want), first)
				})
			}
		}
	}
}

func run(t *testing.T, file, order, placement string) string {
	t.Helper()
	f, err := os.Open(file)
	require.NoError(t, err)
	defer f.Close()
	w, err := sim.ReadWorkload(f, file, 7, nil)
	require.NoError(t, err)
	w.Group.Order, w.Group.Placement = order, placement
	report, err := sim.Run(w, sim.Options{})
	require.NoError(t, err)
	require.Zero(t, report.Waiting, "a job starved")
	raw, err := json.MarshalIndent(report, "", "  ")
	require.NoError(t, err)
	return string(raw) + "\n"
}

// A wide gang behind an endless stream of small work starts within the stated bound.
func TestNoStarvation(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString("agents: [{name: a, count: 4, cpu: 4, mem: 16GiB}]\njobs:\n")
	b.WriteString("  - {name: small, user: ada, count: 400, every: 1m, runs: 15m, declares: 15m, cpu: 1, mem: 1GiB}\n")
	b.WriteString("  - {name: wide, user: ben, arrives: 1h, runs: 10m, declares: 10m, kernels: 4, cpu: 4, mem: 1GiB}\n")
	w, err := sim.ReadWorkload(strings.NewReader(b.String()), "workload", 1, nil)
	require.NoError(t, err)
	report, err := sim.Run(w, sim.Options{})
	require.NoError(t, err)
	for _, u := range report.Users {
		if u.Name == "ben" {
			require.LessOrEqual(t, u.MeanWait, (15 * time.Minute).Seconds(), "everything that ran when it came has ended by then")
			require.Positive(t, u.Received)
		}
	}
}

// Random workloads keep every promise and give the same trace twice.
func TestRandomWorkloads(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		w := &sim.Workload{}
		for i := range rapid.IntRange(1, 6).Draw(rt, "nodes") {
			w.Nodes = append(
				w.Nodes,
				sim.Node{
					Name:  fmt.Sprint("n", i),
					CPU:   rapid.Int64Range(1, 16).Draw(rt, "cpu") * 500,
					Mem:   rapid.Int64Range(1, 64).Draw(rt, "mem") * 512,
					GPUs:  rapid.IntRange(0, 4).Draw(rt, "gpus"),
					Model: rapid.SampledFrom([]string{"A", "B"}).Draw(rt, "model"),
				},
			)
		}
		for i := range rapid.IntRange(1, 60).Draw(rt, "jobs") {
			j := sim.Job{
				Name:     fmt.Sprint("j", i),
				User:     rapid.SampledFrom([]string{"ada", "ben", "cyd"}).Draw(rt, "user"),
				Priority: rapid.IntRange(0, 2).Draw(rt, "priority"),
				Arrives: time.Duration(
					rapid.IntRange(0, 300).Draw(rt, "arrives"),
				) * time.Second,
				Runs: time.Duration(rapid.IntRange(0, 200).Draw(rt, "runs")) * time.Second,
				Kernels: rapid.IntRange(1, 3).
					Draw(rt, "kernels"),
				SingleNode:  rapid.Bool().Draw(rt, "single"),
				Preemptible: rapid.Bool().Draw(rt, "preemptible"),
				CPU:         rapid.Int64Range(0, 8).Draw(rt, "cpu") * 250,
				Mem:         rapid.Int64Range(0, 16).Draw(rt, "mem") * 256,
			}
			if rapid.Bool().Draw(rt, "declares") {
				j.Declares = j.Runs + time.Second
			}
			if g := rapid.IntRange(0, 3).Draw(rt, "gpus"); g > 0 {
				j.GPUs, j.Milli = g, 1000
				if g == 1 {
					j.Milli = rapid.Int64Range(1, 100).Draw(rt, "milli") * 10
				}
				if rapid.Bool().Draw(rt, "picky") {
					j.Models = []string{"A"}
				}
			}
			w.Jobs = append(w.Jobs, j)
		}
		w.Group.Order = rapid.SampledFrom(scheduler.Orders()).Draw(rt, "order")
		w.Group.Placement = rapid.SampledFrom(scheduler.Placements()).Draw(rt, "placement")
		w.Group.Preemption.Enabled = rapid.Bool().Draw(rt, "preemption")
		w.Group.Preemption.VictimScope = "resource-group"
		w.Group.Preemption.Reschedule = rapid.Bool().Draw(rt, "reschedule")
		w.Quotas = map[scheduler.Scope]scheduler.Quota{
			{Kind: scheduler.ScopeUser, ID: "ada"}: {Name: "ada", Sessions: rapid.IntRange(1, 4).Draw(rt, "quota"), Private: -1},
		}
		opt := sim.Options{Until: time.Hour}
		first, err := sim.Run(w, opt)
		require.NoError(rt, err)
		again, err := sim.Run(w, opt)
		require.NoError(rt, err)
		require.Equal(rt, first.Trace, again.Trace)
	})
}

func TestReadRefusesNonsense(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"unknown field":   "agents: [{name: a, cores: 3}]",
		"bad memory":      "agents: [{name: a, cpu: 1, mem: lots}]",
		"unnamed job":     "jobs: [{cpu: 1}]",
		"part of many":    "jobs: [{name: j, gpus: 1.5}]",
		"two scopes":      "quotas: [{user: a, project: b}]",
		"unknown order":   "scheduler: coin",
		"unknown option":  "scheduler_opts: {luck: 3}",
		"negative time":   "jobs: [{name: j, runs: -3s}]",
		"priority":        "jobs: [{name: j, priority: 101}]",
		"not a document":  "[",
		"too many agents": "agents: [{name: a, count: 1000000}]",
	} {
		_, err := sim.ReadWorkload(strings.NewReader(text), name, 0, nil)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	for name, text := range map[string]string{
		"no header":     "",
		"a column less": "name,cpu_milli,memory_mib,num_gpu\n",
		"not a number":  "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,many,1,0,0\n",
		"below zero":    "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,-1,1,0,0\n",
		"parts of two":  "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np,1,1,2,500\n",
	} {
		_, err := sim.ReadPods(strings.NewReader(text), name)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	_, err := sim.ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\na,1,1,0,\na,1,1,0,\n"), "twice")
	require.True(t, fault.Is(err, fault.Invalid), err)
}

// In order, each request is placed or refused at once and one line is written for each.
func TestInOrder(t *testing.T) {
	t.Parallel()
	nodes, err := sim.ReadNodes(strings.NewReader("sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1024,2,P100\nn1,4000,1024,1,T4\n"), "nodes")
	require.NoError(t, err)
	pods, err := sim.ReadPods(strings.NewReader("seq,name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,arrived_gpu_milli\n"+
		"0,a,1000,10,1,500,T4,0\n1,b,1000,10,2,1000,,0\n2,c,1000,10,1,600,T4|G2,0\n3,d,1000,10,1,500,,0\n"+
		"4,e,6000,10,0,0,,0\n5,f,7000,10,0,0,,0\n"), "pods")
	require.NoError(t, err)
	report, err := sim.Run(
		&sim.Workload{Nodes: nodes, Jobs: pods, Group: scheduler.Group{Placement: "least-fragmentation"}},
		sim.Options{InOrder: true, History: pods},
	)
	require.NoError(t, err)
	require.Equal(t, "a,n1,0\nb,n0,0-1\nc,,\nd,n1,0\ne,n0,\nf,,\n", report.Placements())
	require.Equal(t, 2, report.Refused)
}
