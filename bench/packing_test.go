package bench_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkPacking places the published openb lists with `berth sim --in-order` and lets an
// independent judge verify every placement and give the figures, ours beside the judge's own
// FGD on the very same arrivals. BERTH_OPENB names the judge's binary, BERTH_OPENB_DATA the
// folder of its lists, BERTH_OPENB_SEEDS how many seeds from 42 on (default 10),
// BERTH_OPENB_LISTS other list files (comma separated) than the three published ones.
func BenchmarkPacking(b *testing.B) {
	judge, data := os.Getenv("BERTH_OPENB"), os.Getenv("BERTH_OPENB_DATA")
	if judge == "" || data == "" {
		b.Skip("set BERTH_OPENB to the judge of packing and BERTH_OPENB_DATA to its lists")
	}
	berth, err := filepath.Abs("../bin/berth")
	require.NoError(b, err)
	seeds := 10
	if s := os.Getenv("BERTH_OPENB_SEEDS"); s != "" {
		seeds, err = strconv.Atoi(s)
		require.NoError(b, err)
	}
	lists := []string{"default", "gpushare40", "multigpu20"}
	for i, l := range lists {
		lists[i] = filepath.Join(data, "openb_pod_list_"+l+".csv")
	}
	if s := os.Getenv("BERTH_OPENB_LISTS"); s != "" {
		lists = strings.Split(s, ",")
	}
	nodes := filepath.Join(data, "openb_node_list_gpu_node.csv")
	for _, list := range lists {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(list), "openb_pod_list_"), ".csv")
		for _, learnt := range []bool{true, false} {
			label := name + "/history"
			if !learnt {
				label = name + "/arrivals"
			}
			b.Run(label, func(b *testing.B) {
				for b.Loop() {
					var ours, fgd [2]float64
					var cpu time.Duration
					pods := 0
					for seed := 42; seed < 42+seeds; seed++ {
						order := filepath.Join(b.TempDir(), "order.csv")
						flags := []string{"-list", list, "-nodes", nodes, "-seed", strconv.Itoa(seed)}
						require.NoError(b, os.WriteFile(order, ask(b, nil, judge, append([]string{"order"}, flags...)...), 0o600))
						args := []string{"sim", "--nodes", nodes, "--pods", order, "--in-order", "--placements", "-"}
						if learnt {
							args = append(args, "--history", list)
						}
						run := exec.Command(berth, args...)
						var out, words bytes.Buffer
						run.Stdout, run.Stderr = &out, &words
						require.NoError(b, run.Run(), words.String())
						used := run.ProcessState.SysUsage().(*syscall.Rusage)
						cpu += time.Duration(used.Utime.Nano() + used.Stime.Nano())
						pods += bytes.Count(out.Bytes(), []byte("\n"))
						at := figures(b, ask(b, out.Bytes(), judge, append([]string{"check"}, flags...)...))
						base := figures(b, ask(b, nil, judge, append([]string{"run", "-policy", "FGD"}, flags...)...))
						for i := range ours {
							ours[i] += at[i] / float64(seeds)
							fgd[i] += base[i] / float64(seeds)
						}
					}
					b.ReportMetric(ours[0], "%at100")
					b.ReportMetric(ours[1], "%at130")
					b.ReportMetric(ours[0]-fgd[0], "over-FGD-at100")
					b.ReportMetric(ours[1]-fgd[1], "over-FGD-at130")
					b.ReportMetric(float64(cpu.Microseconds())/float64(pods)/1000, "cpu-ms/pod")
					b.ReportMetric(0, "ns/op")
				}
			})
		}
	}
}

// ask runs the judge and returns what it prints; what it says on the side (refusals per class) is logged.
func ask(b *testing.B, in []byte, judge string, args ...string) []byte {
	b.Helper()
	cmd := exec.Command(judge, args...)
	var words bytes.Buffer
	cmd.Stdin, cmd.Stderr = bytes.NewReader(in), &words
	out, err := cmd.Output()
	require.NoError(b, err, words.String())
	if args[0] == "check" {
		b.Log(strings.Join(args[len(args)-2:], " "), strings.ReplaceAll(strings.TrimSpace(words.String()), "\n", "; "))
	}
	return out
}

// figures are the allocations at 100 and 130 % of the first line: what,seed,80,90,95,100,110,120,130.
func figures(b *testing.B, out []byte) [2]float64 {
	b.Helper()
	line, _, _ := strings.Cut(string(out), "\n")
	f := strings.Split(line, ",")
	require.Len(b, f, 9, line)
	var at [2]float64
	for i, col := range []int{5, 8} {
		_, err := fmt.Sscan(f[col], &at[i])
		require.NoError(b, err)
	}
	return at
}
