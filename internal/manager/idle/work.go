package idle

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/session"
)

// Measurements take what agents measure of themselves and of their kernels.
type Measurements interface {
	Put(ctx context.Context, agent cluster.AgentID, node map[string]float64, kernels map[cluster.KernelID]map[string]float64)
}

// forgetAgent is how long the last measurements of an agent that tells nothing are kept.
const forgetAgent = time.Hour

// Work notes sessions whose kernels work as used, and passes measurements on. Its methods may be called concurrently.
type Work struct {
	next  Measurements // nil: nobody else wants them
	uses  *session.Uses
	clock func() time.Time

	mu   sync.Mutex
	last map[cluster.AgentID]measured
}

type measured struct {
	at      time.Time
	kernels map[cluster.KernelID]map[string]float64
}

// NewWork returns a Work; next may be nil.
func NewWork(next Measurements, uses *session.Uses, clock func() time.Time) *Work {
	return &Work{next: next, uses: uses, clock: clock, last: map[cluster.AgentID]measured{}}
}

// Put looks at one batch of an agent.
func (w *Work) Put(ctx context.Context, agent cluster.AgentID, node map[string]float64, kernels map[cluster.KernelID]map[string]float64) {
	now := w.clock()
	w.mu.Lock()
	before := w.last[agent]
	for id, m := range w.last {
		if now.Sub(m.at) > forgetAgent {
			delete(w.last, id)
		}
	}
	w.last[agent] = measured{now, kernels}
	w.mu.Unlock()
	for id, values := range kernels {
		earlier := rule.Reading{}
		if old, ok := before.kernels[id]; ok {
			earlier = rule.Reading{At: before.at, Values: old}
		}
		if rule.Works(earlier, rule.Reading{At: now, Values: values}) {
			w.uses.Worked(id, now)
		}
	}
	if w.next != nil {
		w.next.Put(ctx, agent, node, kernels)
	}
}
