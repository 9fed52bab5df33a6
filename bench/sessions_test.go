package bench_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// These benchmarks run manager, agents and engines in memory in this process over a real
// PostgreSQL; they need no container engine. Database time is not in the CPU figures.

// usage is the CPU time of this process so far.
func usage() time.Duration {
	var r syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &r) // cannot fail for oneself
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// heap is the live heap in bytes after a collection.
func heap() uint64 {
	runtime.GC()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// polls counts our own looks, which are not the platform's work.
var polls int64

// finish waits until all sessions have a status, one statement a look.
func finish(b *testing.B, c *testkit.Cluster, ids []cluster.SessionID, ok string) {
	b.Helper()
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = string(id)
	}
	c.Until("all sessions are "+ok, func() bool {
		n := 0
		polls++
		err := c.Store.Pool().QueryRow(b.Context(), `SELECT count(*) FROM sessions WHERE id = ANY($1::uuid[]) AND status = $2`, texts, ok).
			Scan(&n)
		return err == nil && n == len(ids)
	})
}

// wave brings n sessions to RUNNING and to their end.
func wave(b *testing.B, c *testkit.Cluster, n int, prefix string) (toRunning, toEnd time.Duration) {
	b.Helper()
	actor, svc := c.Admin(), c.Nouns()
	ids := make([]cluster.SessionID, n)
	began := time.Now()
	for i := range ids {
		s, err := svc.Sessions.Create(b.Context(), actor, request.Session{
			Name: fmt.Sprintf("%s-%04d", prefix, i), Image: testkit.Image, Type: cluster.Interactive,
			Resources: map[string]string{"cpu": "1", "mem": "128m"},
		})
		require.NoError(b, err)
		ids[i] = s.ID
	}
	finish(b, c, ids, "RUNNING")
	toRunning = time.Since(began)
	for _, id := range ids {
		_, err := svc.Sessions.Destroy(b.Context(), actor, string(id), session.DestroyOptions{})
		require.NoError(b, err)
	}
	finish(b, c, ids, "TERMINATED")
	return toRunning, time.Since(began)
}

func small(b *testing.B, cores int) *testkit.Cluster {
	c := testkit.New(b, testkit.Options{Agents: 2, Cores: cores, Quiet: true})
	_, err := c.Store.Pool().Exec(b.Context(), `UPDATE keypair_resource_policies SET max_concurrent_sessions = 1000000`)
	require.NoError(b, err)
	return c
}

// transactions counts what the database committed so far.
func transactions(b *testing.B, c *testkit.Cluster) int64 {
	b.Helper()
	var n int64
	_, err := c.Store.Pool().Exec(b.Context(), `SELECT pg_stat_force_next_flush()`)
	require.NoError(b, err)
	require.NoError(b, c.Store.Pool().QueryRow(b.Context(), `SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()`).
		Scan(&n))
	return n
}

// BenchmarkTwoHundred starts 200 sessions at once and ends them. The bar is 5 s for both.
func BenchmarkTwoHundred(b *testing.B) {
	c := small(b, 128)
	var up, all []time.Duration
	before := transactions(b, c)
	polls = 0
	for i := 0; b.Loop(); i++ {
		u, a := wave(b, c, 200, fmt.Sprintf("wave%d", i))
		up, all = append(up, u), append(all, a)
	}
	b.ReportMetric(float64(transactions(b, c)-before-polls)/float64(200*len(all)), "tx/session")
	b.ReportMetric(median(up).Seconds(), "s/200-running")
	b.ReportMetric(median(all).Seconds(), "s/200-ended")
	b.ReportMetric(slices.Max(all).Seconds()/5, "of-the-bar")
}

// BenchmarkTwoThousand runs 2,000 sessions in waves of 50 and compares the last fifth with the
// second: CPU and time per session and the live heap must stay flat.
func BenchmarkTwoThousand(b *testing.B) {
	for b.Loop() {
		c := small(b, 64)
		type point struct {
			cpu, took time.Duration
			heap      uint64
		}
		var points []point
		for fifth := range 5 {
			before, began := usage(), time.Now()
			for w := range 8 {
				wave(b, c, 50, fmt.Sprintf("soak%d-%d", fifth, w))
			}
			points = append(points, point{(usage() - before) / 400, time.Since(began) / 400, heap()})
		}
		early, late := points[1], points[4] // the first fifth warms up
		b.ReportMetric(ms(late.cpu), "cpu-ms/session")
		b.ReportMetric(ms(late.took), "wall-ms/session")
		b.ReportMetric(float64(late.cpu)/float64(early.cpu), "cpu-late/early")
		b.ReportMetric(float64(late.took)/float64(early.took), "wall-late/early")
		b.ReportMetric(float64(late.heap)/float64(early.heap), "heap-late/early")
		b.ReportMetric(float64(late.heap)/(1<<20), "heap-MiB")
	}
}
