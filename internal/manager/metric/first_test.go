package metric_test

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/metric"
)

// Too many minutes of kernels go earlier than those of agents: hours stand for them all the same.
func TestHoursStandForMinutesOfKernelsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Agent(agent, 8, 16<<30)
	id, kernel := b.session("many")
	began := b.clock.Now()
	b.measure(kernel, 2*time.Hour, func(int) map[string]float64 { return map[string]float64{"cpu_util": 100} })
	metric.Write(t.Context(), b.rec)
	b.clock.Advance(10 * time.Minute)
	w := metric.Loops(metric.DefaultConfig(), b.clock.Now)[0].Begin(b.Term())
	for wait := time.Duration(0); wait != time.Minute; {
		var err error
		wait, err = w.Pass(t.Context())
		require.NoError(t, err)
	}
	_, err := b.Store.Pool().Exec(t.Context(), `DROP TABLE kernel_minutes_20260304`)
	require.NoError(t, err)
	h, err := b.all.OfSession(t.Context(), b.Admin, string(id), "", metric.Range{From: began, Step: 30 * time.Minute})
	require.Len(t, one(t, h, err), 2)
	h, err = b.all.OfAgent(t.Context(), b.Admin, agent, metric.Range{From: began, Step: 30 * time.Minute})
	require.Len(t, one(t, h, err), 4, "minutes of agents are still there")
}

// A day of 100 kernels among 2,000 is read by the index, and where minutes begin without a look at them.
func TestHistoryIsReadByIndex(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, q := range []string{
		`SELECT make_metric_day('2026-03-04T00:00:00Z')`,
		`INSERT INTO kernel_minutes (kernel_id, at, cpu) SELECT lpad(k::text, 32, '0')::uuid, '2026-03-04T00:00:00Z'::timestamptz
			+ m * interval '12 minutes', 1 FROM generate_series(1, 2000) k, generate_series(0, 99) m`,
		`ANALYZE kernel_minutes`,
	} {
		_, err := b.Store.Pool().Exec(t.Context(), q)
		require.NoError(t, err)
	}
	for query, args := range metric.Reads(b.clock.Now().Truncate(24*time.Hour), 100) {
		rows, err := b.Store.Pool().Query(t.Context(), "EXPLAIN "+query, args...)
		require.NoError(t, err)
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		plan := strings.Join(lines, "\n")
		require.NotContains(t, plan, "Seq Scan on kernel_")
		require.NotEmpty(t, plan)
	}
}
