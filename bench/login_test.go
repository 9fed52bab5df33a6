package bench_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit"
)

// BenchmarkLoginFlood compares the 99th percentile of signed requests while a thousand logins a second arrive with that of a quiet
// manager. The goal is twice at most. Clients and manager share this process and its processors, so the figure is an upper bound.
func BenchmarkLoginFlood(b *testing.B) {
	const asks, floodEach = 1500, time.Millisecond
	c := testkit.New(b, testkit.Options{Quiet: true})
	client := c.Client()
	p99 := func() time.Duration {
		took := make([]time.Duration, asks)
		for i := range took {
			began := time.Now()
			require.NoError(b, client.Get(b.Context(), "/auth/test", nil, nil))
			took[i] = time.Since(began)
		}
		slices.Sort(took)
		return took[asks*99/100]
	}
	for b.Loop() {
		p99()
		quiet := p99()
		ctx, stop := context.WithCancel(b.Context())
		var flood sync.WaitGroup
		sent := 0
		flood.Go(func() {
			tick := time.NewTicker(floodEach)
			defer tick.Stop()
			var under sync.WaitGroup
			defer under.Wait()
			places := make(chan struct{}, 500) // a client that waits for no answer is no client
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				select {
				case places <- struct{}{}:
				default:
					continue
				}
				sent++
				number := sent % 1000
				under.Go(func() {
					defer func() { <-places }()
					body := fmt.Sprintf(`{"username":"user%d@x.org","password":"guess"}`, number)
					r, err := http.NewRequestWithContext(ctx, http.MethodPost, client.Config().Endpoint+"/auth/authorize",
						bytes.NewReader([]byte(body)))
					if err != nil {
						return
					}
					r.Header.Set("Content-Type", "application/json")
					if resp, err := http.DefaultClient.Do(r); err == nil {
						_ = resp.Body.Close()
					}
				})
			}
		})
		began := time.Now()
		loud := p99()
		took := time.Since(began)
		stop()
		flood.Wait()
		b.ReportMetric(float64(sent)/took.Seconds(), "logins/s")
		b.ReportMetric(float64(quiet.Microseconds()), "quiet-p99-µs")
		b.ReportMetric(float64(loud.Microseconds()), "flood-p99-µs")
		b.ReportMetric(float64(loud)/float64(quiet), "ratio")
	}
}
