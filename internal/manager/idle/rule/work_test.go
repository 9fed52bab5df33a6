package rule_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/idle/rule"
)

// What a kernel does that counts as use of its session.
func TestWorks(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	type values = map[string]float64
	for name, c := range map[string]struct {
		before, now values
		passed      time.Duration
		works       bool
	}{
		"nothing is known":              {nil, nil, 0, false},
		"an interpreter waits":          {nil, values{"cpu_util": 0.8, "mem": 1 << 30}, 0, false},
		"training at full CPU":          {nil, values{"cpu_util": 100}, 0, true},
		"training on a full host":       {nil, values{"cpu_util": 3, "cpu_want": 98}, 0, true},
		"an interpreter waits on one":   {nil, values{"cpu_util": 0.8, "cpu_want": 20}, 0, false},
		"an accelerator works":          {nil, values{"cpu_util": 1, "cuda_util": 40}, 0, true},
		"an accelerator waits":          {nil, values{"cuda_util": 0, "cuda_mem": 1 << 34}, 0, false},
		"a download":                    {values{"net_rx": 0, "net_tx": 0}, values{"net_rx": 10 << 20, "net_tx": 1 << 10}, 5 * time.Second, true},
		"a browser tab asks now and on": {values{"net_rx": 0, "net_tx": 0}, values{"net_rx": 4 << 10, "net_tx": 4 << 10}, 5 * time.Second, false},
		"a disk is read":                {values{"io_read": 1 << 30}, values{"io_read": 2 << 30}, 5 * time.Second, true},
		"totals began anew":             {values{"io_read": 2 << 30}, values{"io_read": 1 << 30}, 5 * time.Second, false},
		"a total that was not known":    {values{}, values{"io_read": 1 << 40}, 5 * time.Second, false},
		"a first total says nothing":    {nil, values{"io_read": 1 << 40, "net_rx": 1 << 40}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := rule.Reading{Values: c.before}
			if c.passed > 0 {
				before.At = at.Add(-c.passed)
			}
			require.Equal(t, c.works, rule.Works(before, rule.Reading{At: at, Values: c.now}))
		})
	}
}
