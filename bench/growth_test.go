package bench_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// memoryUse is what a process has in memory, in bytes.
type memoryUse struct {
	Heap       uint64 `json:"heap"`   // live, after a collection
	Stacks     uint64 `json:"stacks"` // of goroutines
	Private    uint64 `json:"private"`
	Goroutines uint64 `json:"goroutines"`
	Mallocs    uint64 `json:"mallocs"` // since the start
}

// memory measures this process; the name of a file asks for a profile of the heap and one of the goroutines besides.
func memory(args []string) (any, error) {
	for range 3 { // what pools keep needs two collections
		runtime.GC()
	}
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	use := memoryUse{Heap: m.HeapAlloc, Stacks: m.StackInuse, Goroutines: uint64(runtime.NumGoroutine()), Mallocs: m.Mallocs}
	text, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Private_Dirty:" {
			kib, err := strconv.ParseUint(f[1], 10, 64)
			if err != nil {
				return nil, err
			}
			use.Private = kib << 10
		}
	}
	for _, name := range []string{"heap", "goroutine"} {
		if len(args) == 0 {
			break
		}
		f, err := os.Create(args[0] + "." + name + ".pprof")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if err := pprof.Lookup(name).WriteTo(f, 0); err != nil {
			return nil, err
		}
	}
	return use, nil
}

// settings are the numbers that a variable lists.
func settings(b *testing.B, name string, def ...int) []int {
	b.Helper()
	text := os.Getenv("BERTH_BENCH_" + name)
	if text == "" {
		return def
	}
	var out []int
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		require.NoError(b, err, name)
		out = append(out, n)
	}
	return out
}

// BenchmarkAgents compares managers with few and many simulated agents: what a connected agent costs a manager in memory, and what
// CPU while nothing happens; and how quickly sessions pass, and at what cost of manager and database. The ratios are to the first number
// of agents. What is busy with sessions is told apart from what agents cost anyway, by what manager and database used while nothing
// happened: all processes share one machine, and the simulated agents take their part of it, too.
//
//	BERTH_BENCH_FLEETS      numbers of agents (100,1000)
//	BERTH_BENCH_SESSIONS    how many sessions (4000); BERTH_BENCH_CLIENTS at a time (64)
//	BERTH_BENCH_IDLE        for how many seconds the idle manager is watched (20)
//	BERTH_BENCH_PROFILE     a directory for profiles of the manager: its heap and its goroutines with all agents, and its CPU while
//	                        agents join, while nothing happens, and while sessions pass
func BenchmarkAgents(b *testing.B) {
	sessions, clients, idle := setting("SESSIONS", 4000), setting("CLIENTS", 64), time.Duration(setting("IDLE", 20))*time.Second
	var firstRate, firstCPU float64
	for _, n := range settings(b, "FLEETS", 100, 1000) {
		b.Run(fmt.Sprintf("agents=%d", n), func(b *testing.B) {
			c := newManager(b)
			c.nodes = c.newAgents(b, "nodes")
			c.grow(b, 1) // what the first one alone makes
			var alone, all memoryUse
			c.manager.ask(b, &alone, "memory")
			c.profile(b, fmt.Sprintf("joining-%d", n))
			began := time.Now()
			c.grow(b, n)
			b.ReportMetric(time.Since(began).Seconds(), "s/joined")
			quiescent(b, c)
			words := []any{"memory"}
			if dir := os.Getenv("BERTH_BENCH_PROFILE"); dir != "" {
				words = append(words, filepath.Join(dir, fmt.Sprintf("manager-%d", n)))
			}
			c.manager.ask(b, &all, words...)
			each := func(before, after uint64) float64 { return (float64(after) - float64(before)) / float64(n-1) }
			b.ReportMetric(each(alone.Heap, all.Heap)/1024, "heap-KiB/agent")
			b.ReportMetric(each(alone.Stacks, all.Stacks)/1024, "stacks-KiB/agent")
			b.ReportMetric(each(alone.Private, all.Private)/1024, "private-KiB/agent")
			b.ReportMetric(each(alone.Goroutines, all.Goroutines), "goroutines/agent")
			b.ReportMetric(float64(all.Private)/(1<<20), "private-MiB")

			c.profile(b, fmt.Sprintf("idle-%d", n))
			before := c.usage(b)
			pauseFor(b, idle)
			after := c.usage(b)
			resting := float64(after.manager-before.manager+after.postgres-before.postgres) / float64(idle)
			b.ReportMetric(100*(after.manager-before.manager).Seconds()/idle.Seconds(), "idle-manager-%")
			b.ReportMetric(100*(after.postgres-before.postgres).Seconds()/idle.Seconds(), "idle-postgres-%")

			c.run(b, "warm", min(1000, sessions), clients)
			c.profile(b, fmt.Sprintf("sessions-%d", n))
			before = c.usage(b)
			took := c.run(b, "run", sessions, clients)
			after = c.usage(b)
			m, pg := after.manager-before.manager, after.postgres-before.postgres
			rate, cpu := float64(sessions)/took.Seconds(), (ms(m+pg)-resting*ms(took))/float64(sessions)
			b.ReportMetric(cpu, "busy-cpu-ms/session")
			b.ReportMetric(rate, "sessions/s")
			b.ReportMetric(ms(m)/float64(sessions), "manager-cpu-ms/session")
			b.ReportMetric(ms(pg)/float64(sessions), "postgres-cpu-ms/session")
			b.ReportMetric(ms(after.agents-before.agents)/float64(sessions), "agents-cpu-ms/session")
			b.ReportMetric(float64(after.commits-before.commits)/float64(sessions), "tx/session")
			if c.counting {
				b.ReportMetric(float64(after.statements-before.statements)/float64(sessions), "statements/session")
				c.dearest(b)
			}
			if firstRate == 0 {
				firstRate, firstCPU = rate, cpu
			}
			b.ReportMetric(rate/firstRate, "of-first/rate")
			b.ReportMetric(cpu/firstCPU, "of-first/busy-cpu")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// profile begins another profile of the manager's CPU, where profiles are asked for.
func (c *controller) profile(b *testing.B, name string) {
	b.Helper()
	if dir := os.Getenv("BERTH_BENCH_PROFILE"); dir != "" {
		c.manager.ask(b, nil, "profile", filepath.Join(dir, "manager-"+name+".cpu.pprof"))
	}
}

// quiescent waits until the manager has stored what new agents said and does no more than it always does.
func quiescent(b *testing.B, c *controller) {
	b.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	last := time.Duration(-1)
	for time.Now().Before(deadline) {
		before := cpuOf(c.manager.cmd.Process.Pid, false)
		pauseFor(b, 6*time.Second) // more than a heartbeat
		used := cpuOf(c.manager.cmd.Process.Pid, false) - before
		if last >= 0 && used > last*8/10 {
			return
		}
		last = used
	}
}

func pauseFor(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.FailNow()
	}
}

// BenchmarkFlat runs sessions in rounds beside all that ended before, and compares late rounds with early ones: CPU of the manager and of
// the database, what the manager allocates, what it asks the database, and how many rows that reads. The last two do not depend on
// what else the machine does.
//
//	BERTH_BENCH_ROUNDS      how many rounds (20) of BERTH_BENCH_SESSIONS (500)
//	BERTH_BENCH_STATEMENTS  counts statements, as above
func BenchmarkFlat(b *testing.B) {
	rounds, sessions, clients := setting("ROUNDS", 20), setting("SESSIONS", 500), setting("CLIENTS", 16)
	c := newManager(b)
	c.nodes = c.newAgents(b, "nodes")
	c.grow(b, 4)
	c.run(b, "warm", sessions, clients)
	type point struct {
		manager, postgres, mallocs, statements, commits, rows, wal float64
		took                                                       time.Duration
		by                                                         map[string]float64 // rows, by the table or the index that they were read of
	}
	var points []point
	for i := range rounds {
		var m0, m1 memoryUse
		c.manager.ask(b, &m0, "memory")
		before, read := c.usage(b), c.rowsRead(b)
		prefix := fmt.Sprintf("round%d", i)
		took := c.pass(b, prefix, sessions, clients)
		after := c.usage(b)
		per := func(v float64) float64 { return v / float64(sessions) }
		rows, by := 0.0, c.rowsRead(b)
		for name := range by {
			by[name] = per(by[name] - read[name])
			rows += by[name]
		}
		c.verify(b, prefix, sessions)
		c.manager.ask(b, &m1, "memory")
		p := point{manager: per(ms(after.manager - before.manager)), postgres: per(ms(after.postgres - before.postgres)),
			mallocs: per(float64(m1.Mallocs - m0.Mallocs)), statements: per(float64(after.statements - before.statements)),
			commits: per(float64(after.commits - before.commits)), rows: rows, wal: per(float64(after.wal-before.wal)) / 1024, took: took, by: by}
		points = append(points, p)
		fmt.Printf("round %2d: manager %.3f ms, postgres %.3f ms, %.0f allocations, %.1f statements, %.2f transactions, %.0f rows, "+
			"%.1f KiB of log, heap %d KiB, %s\n",
			i, p.manager, p.postgres, p.mallocs, p.statements, p.commits, p.rows, p.wal, m1.Heap>>10, c.upkeep(b))
	}
	fifth := max(len(points)/5, 1)
	compare := func(what string, of func(point) float64) {
		var early, late float64
		for _, p := range points[fifth : 2*fifth] {
			early += of(p)
		}
		for _, p := range points[len(points)-fifth:] {
			late += of(p)
		}
		if early > 0 {
			b.ReportMetric(late/early, what+"-late/early")
		}
	}
	compare("manager-cpu", func(p point) float64 { return p.manager })
	compare("postgres-cpu", func(p point) float64 { return p.postgres })
	compare("allocations", func(p point) float64 { return p.mallocs })
	compare("statements", func(p point) float64 { return p.statements })
	compare("tx", func(p point) float64 { return p.commits })
	compare("rows", func(p point) float64 { return p.rows })
	last := points[len(points)-1].by
	for name, rows := range last {
		if early := points[fifth].by[name]; rows > early+1 {
			fmt.Printf("rows of %s: %.1f a session in round %d, %.1f in the last\n", name, early, fifth, rows)
		}
	}
	compare("wall", func(p point) float64 { return p.took.Seconds() })
	if c.counting {
		c.dearest(b)
	}
}

// rowsRead is how many rows the database has read so far, by the table that was read whole or the index that was used.
func (c *controller) rowsRead(b *testing.B) map[string]float64 {
	b.Helper()
	rows, err := c.db.Query(b.Context(), `SELECT relname::text, seq_tup_read::float8 FROM pg_stat_user_tables
		UNION ALL SELECT indexrelname::text, idx_tup_read::float8 FROM pg_stat_user_indexes`)
	require.NoError(b, err)
	out := map[string]float64{}
	var name string
	var n float64
	_, err = pgx.ForEachRow(rows, []any{&name, &n}, func() error { out[name] = n; return nil })
	require.NoError(b, err)
	return out
}

// upkeep says in words what the database has done for its tables so far.
func (c *controller) upkeep(b *testing.B) (words string) {
	b.Helper()
	require.NoError(b, c.db.QueryRow(b.Context(), `SELECT sum(autovacuum_count) || ' vacuums, ' || sum(autoanalyze_count) || ' analyzes, ' ||
		sum(n_dead_tup) || ' dead rows' FROM pg_stat_user_tables`).Scan(&words))
	return words
}
