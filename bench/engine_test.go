// Package bench measures speed beside a peer in the same run and prints ratios; it asserts
// nothing. `make bench` runs it with the real engine and a built bin/berth.
package bench_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

const (
	image  = "berth/python:3.11"
	rounds = 15
	lives  = 40 // processor time is counted in hundredths of a second
)

// platform is a cluster on an empty state directory.
type platform struct {
	b   *testing.B
	bin string
	dir string
}

func up(b *testing.B) *platform {
	b.Helper()
	if os.Getenv("BERTH_BENCH") == "" {
		b.Skip("needs a container engine and bin/berth: run make bench")
	}
	// BERTH_BENCH_BIN names another build, to compare two.
	bin, err := filepath.Abs(cmp.Or(os.Getenv("BERTH_BENCH_BIN"), filepath.Join("..", "bin", "berth")))
	require.NoError(b, err)
	dir, err := os.MkdirTemp("", "berth-bench-")
	require.NoError(b, err)
	require.NoError(b, os.Chmod(dir, 0o755))
	p := &platform{b: b, bin: bin, dir: dir}
	b.Cleanup(func() {
		_ = p.cmd("down", "--sessions").Run()
		_ = os.RemoveAll(dir)
	})
	p.must("up", "--detach", "--ports", "auto")
	return p
}

func (p *platform) cmd(args ...string) *exec.Cmd {
	c := exec.Command(p.bin, args...)
	c.Env = append(os.Environ(), "BERTH_STATE_DIR="+p.dir, "NO_COLOR=1")
	return c
}

func (p *platform) must(args ...string) string {
	p.b.Helper()
	out, err := p.cmd(args...).Output()
	if e, ok := err.(*exec.ExitError); ok {
		require.NoError(p.b, err, "berth %s: %s", strings.Join(args, " "), e.Stderr)
	}
	require.NoError(p.b, err)
	return string(out)
}

func (p *platform) client() *api.Client {
	p.b.Helper()
	cfg, err := api.LoadConfig(api.Lookup{StateDir: p.dir, Getenv: func(string) string { return "" }})
	require.NoError(p.b, err)
	c, err := api.New(cfg)
	require.NoError(p.b, err)
	p.b.Cleanup(c.Close)
	return c
}

// create waits until the session runs, as the official client does.
func create(b *testing.B, c *api.Client, name string) api.CreatedSession {
	b.Helper()
	s, err := c.CreateSession(b.Context(), api.CreateSession{Name: name, Image: image,
		Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "256m"}}})
	require.NoError(b, err)
	require.Equal(b, "RUNNING", s.Status)
	return s
}

func container(b *testing.B, session string) string {
	b.Helper()
	out, err := exec.Command("docker", "ps", "-aq", "--no-trunc", "--filter", "label=berth.session="+session).Output()
	require.NoError(b, err)
	return strings.TrimSpace(string(out))
}

func timed(fn func()) time.Duration {
	began := time.Now()
	fn()
	return time.Since(began)
}

func median(d []time.Duration) time.Duration {
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func run(b *testing.B, args ...string) {
	b.Helper()
	out, err := exec.Command(args[0], args[1:]...).CombinedOutput()
	require.NoError(b, err, "%s: %s", strings.Join(args, " "), out)
}

// gone waits until the engine no longer knows the container.
func gone(b *testing.B, id string) {
	b.Helper()
	for exec.Command("docker", "inspect", id).Run() == nil {
		if b.Context().Err() != nil {
			b.Fatal("container stays: ", id)
		}
	}
}

// limits are what a container of docker run gets that is compared with a session.
var limits = []string{"--cpuset-cpus", "0", "--memory", "256m", "--memory-swap", "256m", "--pids-limit", "4096", "--network", "bridge"}

// BenchmarkSession compares a session's start with docker run and its end with docker rm -f, in turn.
func BenchmarkSession(b *testing.B) {
	p := up(b)
	c := p.client()
	var start, peerStart, answer, end, peerEnd []time.Duration
	for i := range rounds + 1 {
		peer := timed(func() { run(b, append(append([]string{"docker", "run", "--rm"}, limits...), image, "true")...) })
		var s api.CreatedSession
		ours := timed(func() { s = create(b, c, fmt.Sprintf("bench-%d", i)) })
		id := container(b, s.ID)
		var answered time.Duration
		total := timed(func() {
			answered = timed(func() {
				_, err := c.DestroySession(b.Context(), s.Name, api.DestroyOptions{NoWait: true})
				require.NoError(b, err)
			})
			gone(b, id)
		})
		name := fmt.Sprintf("berth-bench-peer-%d", i)
		run(b, append(append([]string{"docker", "run", "-d", "--name", name}, limits...), image, "sleep", "1000")...)
		peerTotal := timed(func() { run(b, "docker", "rm", "-f", name); gone(b, name) })
		if i == 0 {
			continue // warm-up
		}
		start, peerStart = append(start, ours), append(peerStart, peer)
		answer, end, peerEnd = append(answer, answered), append(end, total), append(peerEnd, peerTotal)
	}
	b.ReportMetric(ms(median(start)), "start-ms")
	b.ReportMetric(ms(median(peerStart)), "docker-run-ms")
	b.ReportMetric(float64(median(start))/float64(median(peerStart)), "start/docker-run")
	b.ReportMetric(ms(median(answer)), "destroy-answer-ms")
	b.ReportMetric(ms(median(end)), "gone-ms")
	b.ReportMetric(ms(median(peerEnd)), "docker-rm-ms")
}

// cell runs a cell as the official client does.
func cell(b *testing.B, c *api.Client, session, code string) {
	b.Helper()
	r, err := c.Poll(b.Context(), session, "", api.Execute{Mode: "query", Code: code})
	for err == nil && r.Status == "continued" {
		r, err = c.Poll(b.Context(), session, r.RunID, api.Execute{Mode: "continue"})
	}
	require.NoError(b, err)
	require.Equal(b, "finished", r.Status)
}

// BenchmarkFirstCell measures from the request for a session to the answer of its first cell, beside docker run, in turn. created-ms is
// the part until the session runs.
func BenchmarkFirstCell(b *testing.B) {
	p := up(b)
	c := p.client()
	var created, first, peers []time.Duration
	for i := range rounds + 1 {
		peer := timed(func() { run(b, append(append([]string{"docker", "run", "--rm"}, limits...), image, "true")...) })
		var s api.CreatedSession
		begun := time.Now()
		start := timed(func() { s = create(b, c, fmt.Sprintf("bench-first-%d", i)) })
		cell(b, c, s.Name, "6*7")
		answered := time.Since(begun)
		id := container(b, s.ID)
		_, err := c.DestroySession(b.Context(), s.Name, api.DestroyOptions{NoWait: true})
		require.NoError(b, err)
		gone(b, id)
		if i == 0 {
			continue // warm-up
		}
		created, first, peers = append(created, start), append(first, answered), append(peers, peer)
	}
	b.ReportMetric(ms(median(created)), "created-ms")
	b.ReportMetric(ms(median(first)), "first-answer-ms")
	b.ReportMetric(ms(slices.Min(first)), "best-answer-ms")
	b.ReportMetric(ms(median(peers)), "docker-run-ms")
	b.ReportMetric(float64(median(first))/float64(median(peers)), "answer/docker-run")
}

// BenchmarkJobs submits batch sessions that run `true` and waits until all have succeeded, beside as many `docker run` of the
// same limits, four at a time, which is what two cores take. Both launch real processes in real containers.
func BenchmarkJobs(b *testing.B) {
	const jobs, lanes = 80, 4
	b.Setenv("BERTH_AGENT__CPU_OVERCOMMIT", "8")
	p := up(b)
	c := p.client()
	spread := func(job func(i int)) time.Duration {
		return timed(func() {
			var g sync.WaitGroup
			for l := range lanes {
				g.Go(func() {
					for i := l; i < jobs; i += lanes {
						job(i)
					}
				})
			}
			g.Wait()
		})
	}
	batch := func(prefix string, n int) {
		ids := make([]string, n)
		for i := range n {
			s, err := c.CreateSession(b.Context(), api.CreateSession{Name: fmt.Sprintf("%s-%d", prefix, i), Image: image, Type: "batch",
				StartupCommand: "true",
				EnqueueOnly:    true, Config: api.SessionConfig{Resources: map[string]string{"cpu": "1", "mem": "128m"}}})
			require.NoError(b, err)
			ids[i] = s.ID
		}
		for _, id := range ids {
			s, err := c.Session(b.Context(), id)
			for ; err == nil && s.Status != "TERMINATED"; s, err = c.Session(b.Context(), id) {
				require.NotContains(b, []string{"ERROR", "CANCELLED"}, s.Status)
				wait(b, 20*time.Millisecond)
			}
			require.NoError(b, err)
			require.Equal(b, "SUCCESS", s.Result)
		}
	}
	batch("warm", 4)
	ours := timed(func() { batch("job", jobs) })
	peer := spread(func(int) {
		out, err := exec.Command("docker", "run", "--rm", "--memory", "128m", "--memory-swap", "128m", "--pids-limit", "4096", image, "true").
			CombinedOutput()
		if err != nil {
			b.Errorf("docker run: %v: %s", err, out)
		}
	})
	b.ReportMetric(jobs/ours.Seconds(), "jobs/s")
	b.ReportMetric(jobs/peer.Seconds(), "docker-runs/s")
	b.ReportMetric(peer.Seconds()/ours.Seconds(), "of-docker-run")
}

// directCells runs a cell in an ipykernel through its own Python client, inside the same container, for every line
// that it reads, and prints how many milliseconds the cell took.
const directCells = `
import sys, time
from jupyter_client import KernelManager
km = KernelManager(); km.start_kernel(); kc = km.client(); kc.start_channels(); kc.wait_for_ready()
for _ in sys.stdin:
    t = time.perf_counter(); kc.execute_interactive("1+1", store_history=False, output_hook=lambda m: None)
    print((time.perf_counter() - t) * 1000, flush=True)
kc.stop_channels(); km.shutdown_kernel(now=True)
`

// directKernel starts directCells in a container; its function runs one cell.
func directKernel(b *testing.B, container string) func() time.Duration {
	b.Helper()
	peer := exec.Command("docker", "exec", "-i", container, "python3", "-c", directCells)
	orders, err := peer.StdinPipe()
	require.NoError(b, err)
	answers, err := peer.StdoutPipe()
	require.NoError(b, err)
	require.NoError(b, peer.Start())
	b.Cleanup(func() { _ = orders.Close(); _ = peer.Wait() })
	lines := bufio.NewScanner(answers)
	return func() time.Duration {
		_, err := orders.Write([]byte("\n"))
		require.NoError(b, err)
		require.True(b, lines.Scan(), "the direct kernel ended")
		took, err := strconv.ParseFloat(lines.Text(), 64)
		require.NoError(b, err)
		return time.Duration(took * float64(time.Millisecond))
	}
}

// BenchmarkCell compares a code cell through the manager with a direct ipykernel: in pairs, one right after the other
// and in changing order, because a machine that gets slower meanwhile must slow both down. added-ms is the median of
// the pairs' differences.
func BenchmarkCell(b *testing.B) {
	p := up(b)
	c := p.client()
	s := create(b, c, "bench-cell")
	ours := func() time.Duration {
		return timed(func() { cell(b, c, s.Name, "1+1") })
	}
	direct := directKernel(b, container(b, s.ID))
	var cells, peers, added []time.Duration
	const warm, pairs = 50, 1000
	for i := range warm + pairs {
		var cell, peer time.Duration
		if i%2 == 0 {
			peer, cell = direct(), ours()
		} else {
			cell, peer = ours(), direct()
		}
		if i >= warm {
			cells, peers, added = append(cells, cell), append(peers, peer), append(added, cell-peer)
		}
	}
	b.ReportMetric(ms(median(cells)), "cell-ms")
	b.ReportMetric(ms(median(peers)), "direct-ms")
	b.ReportMetric(ms(median(added)), "added-ms")
}

// processes are the platform's own: berth and its children.
func (p *platform) processes() []int {
	p.b.Helper()
	var status struct {
		Pid int `json:"pid"`
	}
	require.NoError(p.b, json.Unmarshal([]byte(p.must("status", "--json")), &status))
	pids := []int{status.Pid}
	for i := 0; i < len(pids); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pids[i]))
		for _, t := range tasks {
			children, _ := os.ReadFile(t)
			for _, child := range strings.Fields(string(children)) {
				pid, err := strconv.Atoi(child)
				require.NoError(p.b, err)
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func pss(pids []int) (kb int) {
	for _, pid := range pids {
		f, err := os.Open(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			continue // it has just ended
		}
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if rest, ok := strings.CutPrefix(lines.Text(), "Pss:"); ok {
				n, _ := strconv.Atoi(strings.Fields(rest)[0])
				kb += n
			}
		}
		f.Close()
	}
	return kb
}

// cpu is the user and system time of the processes and of their dead children, in clock ticks of 10 ms.
func cpu(pids []int) (ticks int) {
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		for _, field := range strings.Fields(rest)[11:13] {
			n, _ := strconv.Atoi(field)
			ticks += n
		}
	}
	return ticks
}

// wait lets time pass: what is measured here is what happens while nothing is asked.
func wait(b *testing.B, d time.Duration) {
	ctx, cancel := context.WithTimeout(b.Context(), d)
	defer cancel()
	<-ctx.Done()
}

// BenchmarkIdle reports what a cluster without sessions costs, and a warm start.
func BenchmarkIdle(b *testing.B) {
	p := up(b)
	var warm []time.Duration
	for range 5 {
		p.must("down")
		warm = append(warm, timed(func() { p.must("up", "--detach") }))
	}
	b.ReportMetric(ms(median(warm)), "up-warm-ms")

	const window = 20 * time.Second
	wait(b, 10*time.Second)
	pids := p.processes()
	before := cpu(pids)
	wait(b, window)
	used := time.Duration(cpu(pids)-before) * 10 * time.Millisecond
	b.ReportMetric(100*used.Seconds()/window.Seconds(), "idle-cpu-%")
	b.ReportMetric(float64(pss(pids))/1024, "idle-pss-MiB")
}

// BenchmarkLife reports the CPU time of all our processes for one session's life.
func BenchmarkLife(b *testing.B) {
	p := up(b)
	c := p.client()
	life := func(i int) {
		s := create(b, c, fmt.Sprintf("bench-life-%d", i))
		_, err := c.Poll(b.Context(), s.Name, "", api.Execute{Mode: "query", Code: "1+1"})
		require.NoError(b, err)
		id := container(b, s.ID)
		_, err = c.DestroySession(b.Context(), s.Name, api.DestroyOptions{NoWait: true})
		require.NoError(b, err)
		gone(b, id)
	}
	life(0)
	pids := p.processes()
	// What the idle platform burns meanwhile belongs to no session; both figures are reported.
	const window = 10 * time.Second
	before := cpu(pids)
	wait(b, window)
	idle := float64(cpu(pids)-before) * 0.01 / window.Seconds()
	before = cpu(pids)
	each := make([]int, len(pids))
	for i, pid := range pids {
		each[i] = cpu([]int{pid})
	}
	took := timed(func() {
		for i := range lives {
			life(i + 1)
		}
	})
	for i, pid := range pids {
		title, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		b.Logf("%.1f ms a session: %.80s", float64(cpu([]int{pid})-each[i])*10/lives, strings.ReplaceAll(string(title), "\x00", " "))
	}
	used := float64(cpu(pids)-before) * 0.01
	b.ReportMetric(used/lives, "gross-cpu-s/session")
	b.ReportMetric((used-idle*took.Seconds())/lives, "cpu-s/session")
}
