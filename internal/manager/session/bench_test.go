package session_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// BenchmarkCreateSession measures how fast requests are accepted; compare runs on one machine only.
func BenchmarkCreateSession(b *testing.B) {
	for _, clients := range []int{1, 8} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			w := managertest.New(b)
			w.Agent("a1", 1<<30, 1<<50)
			var n atomic.Int64
			b.ResetTimer()
			var all sync.WaitGroup
			for range clients {
				all.Go(func() {
					for {
						i := n.Add(1)
						if i > int64(b.N) {
							return
						}
						_, err := w.Sessions.Create(b.Context(), w.Admin, request.Session{Name: fmt.Sprintf("bench-%d", i), Image: "python"})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "creates/s")
		})
	}
}

// BenchmarkLife measures one session's life on the manager's side: create, place, run, destroy, end.
func BenchmarkLife(b *testing.B) {
	w := managertest.New(b)
	w.Agent("a1", 1<<30, 1<<50)
	b.ResetTimer()
	for i := range b.N {
		id := w.Create(fmt.Sprintf("bench-%d", i)).ID
		w.Place(id, "a1")
		for _, p := range []cluster.Phase{cluster.PhasePreparing, cluster.PhaseCreating, cluster.PhaseRunning} {
			w.Report(id, "a1", p)
		}
		_, err := w.Sessions.Destroy(b.Context(), w.Admin, string(id), session.DestroyOptions{})
		require.NoError(b, err)
		w.Report(id, "a1", cluster.PhaseEnded, managertest.Ended(0, "x"))
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lives/s")
}
