package agent

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

// maxDelta bounds the kernels of one Observe call that is not full.
const maxDelta = 500

// batch is what several messages of an agent amount to together.
type batch struct {
	facts    *node.Facts
	kernels  map[string]*node.ObservedKernel
	seen     bool // there was an Observed
	full     bool
	desired  int64 // the newest desired state the agent had seen
	progress map[string]*node.Progress
	metrics  *node.Metrics
}

// ingesting is what ingest works with. A connected agent that reports nothing costs no goroutine here.
type ingesting struct {
	mu sync.Mutex
	// open says that reports are stored; asked that one came, or is due; busy that ingest runs.
	open, asked, busy bool
	work              sync.WaitGroup
	due               chassis.Timer // facts that wait; nil: none ever did

	// lastFull is ingest's own: the newest full report.
	lastFull int64
}

// startIngesting has reports stored, those that came already first.
func (s *session) startIngesting() {
	w := &s.ingesting
	w.lastFull = -1
	s.gate().begin()
	w.mu.Lock()
	w.open = true
	w.mu.Unlock()
	s.wakeIngest()
}

// stopIngesting returns when ingest has ended; s.ctx must be over.
func (s *session) stopIngesting() {
	w := &s.ingesting
	w.mu.Lock()
	w.open = false
	if w.due != nil {
		w.due.Stop()
	}
	w.mu.Unlock()
	w.work.Wait()
}

// wakeIngest has what is in inbox stored, and facts that are due.
func (s *session) wakeIngest() {
	w := &s.ingesting
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked = true
	if w.open && !w.busy {
		w.busy = true
		w.work.Go(s.ingest)
	}
}

// turn tells ingest whether to look again.
func (w *ingesting) turn() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = w.asked && w.open
	w.asked = false
	return w.busy
}

// wakeIn has ingest run after some time, for facts that wait.
func (s *session) wakeIn(wait time.Duration) {
	w := &s.ingesting
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.open:
	case w.due == nil:
		w.due = s.link.d.Clock.AfterFunc(wait, s.wakeIngest)
	default:
		w.due.Reset(wait)
	}
}

// gate decides when facts of the agent are stored.
func (s *session) gate() *factsGate { return &s.link.claims.agent(s.agent).gate }

// ingest passes reports to the Sink while there are any. While one batch is being stored the next gathers, so that a busy agent costs few
// transactions.
func (s *session) ingest() {
	for s.ingesting.turn() {
		for more := true; more; {
			var b *batch
			b, more = s.gather()
			if !s.takeIn(b) {
				return // the session is over
			}
		}
	}
}

// gather merges what the inbox holds; more says that there may be more than that.
func (s *session) gather() (b *batch, more bool) {
	b = &batch{kernels: map[string]*node.ObservedKernel{}, progress: map[string]*node.Progress{}}
	for range inboxSize {
		select {
		case up := <-s.inbox:
			b.add(up, &s.ingesting.lastFull)
		default:
			return b, false
		}
	}
	return b, true
}

// takeIn stores a batch and the facts that are due; false ends the session.
func (s *session) takeIn(b *batch) bool {
	if s.ctx.Err() != nil {
		return false
	}
	facts, wait := s.gate().take(b.facts, s.link.d.Clock.Now())
	if facts != nil && !s.report(facts, s.gate()) {
		return false
	}
	if wait > 0 {
		s.wakeIn(wait)
	}
	return s.store(b)
}

// add merges a message. The newest word about a kernel wins; of two words the higher
// generation, then the higher phase is the newest, whatever order they came in.
func (b *batch) add(up *node.Up, lastFull *int64) {
	switch k := up.Kind.(type) {
	case *node.Up_Facts:
		if b.facts == nil || k.Facts.GetRevision() >= b.facts.GetRevision() {
			b.facts = k.Facts
		}
	case *node.Up_Observed:
		o := k.Observed
		b.seen = true
		if o.Full && o.Revision > *lastFull {
			*lastFull = o.Revision
			b.full = true
			b.desired = o.DesiredRevision
			// What only earlier messages named is gone from the agent by now, but their final
			// words must not be lost: a full report names tombstones too.
			clear(b.kernels)
		} else if !b.full {
			b.desired = max(b.desired, o.DesiredRevision)
		}
		for _, kernel := range o.Kernels {
			if old := b.kernels[kernel.KernelId]; old == nil || !older(kernel, old) {
				b.kernels[kernel.KernelId] = kernel
			}
		}
	case *node.Up_Progress:
		b.progress[k.Progress.KernelId] = k.Progress
	case *node.Up_Metrics:
		b.metrics = k.Metrics
	}
}

func older(a, b *node.ObservedKernel) bool {
	if a.Generation != b.Generation {
		return a.Generation < b.Generation
	}
	return a.Phase < b.Phase
}

// store hands a batch to the Sink, but for its facts; false ends the session.
func (s *session) store(b *batch) bool {
	sink, epoch := s.link.d.Sink, s.epoch.Load()
	if b.seen && !s.observe(b, epoch) {
		return false
	}
	for _, p := range b.progress {
		// Progress only extends a deadline and comes again; losing one is nothing.
		ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
		err := sink.Progress(ctx, s.agent, cluster.KernelID(p.KernelId), p.Generation, p.Current, p.Total, p.Message)
		cancel()
		if err != nil && s.ctx.Err() == nil {
			s.log.Debug("pull progress not stored", "kernel", p.KernelId, "error", err)
		}
	}
	if b.metrics != nil && s.link.d.Live != nil {
		node, kernels := s.measured(b.metrics)
		ctx, cancel := context.WithTimeout(s.ctx, 2*time.Second)
		s.link.d.Live.Put(ctx, s.agent, node, kernels)
		cancel()
	}
	return true
}

// measured is what an agent may say of itself and of the kernels that are to be on it; the rest is left out. Idle checks end sessions
// by these figures, so no agent tells those of another one's kernels.
func (s *session) measured(m *node.Metrics) (map[string]float64, map[cluster.KernelID]map[string]float64) {
	kernels := make(map[cluster.KernelID]map[string]float64)
	held := s.held.Load()
	for _, k := range m.Kernels {
		id := cluster.KernelID(k.KernelId)
		if held != nil && (*held)[id] && metrics(k.Values) {
			kernels[id] = k.Values
		}
	}
	if !metrics(m.Node) {
		return nil, kernels
	}
	return m.Node, kernels
}

// metrics reports whether these can be measurements of one node or kernel.
func metrics(values map[string]float64) bool {
	for name := range values {
		if len(name) > maxName {
			return false
		}
	}
	return len(values) <= maxMetrics
}

func (s *session) observe(b *batch, epoch int64) bool {
	list := make([]cluster.KernelObservation, 0, len(b.kernels))
	for _, id := range slices.Sorted(maps.Keys(b.kernels)) {
		if o, ok := observationOf(b.kernels[id]); ok {
			list = append(list, o)
			continue
		}
		s.log.Warn("ignoring a report about a kernel that cannot be one", "kernel", id)
	}
	// Taken now: the report may wait long to be stored, and what the agent is told meanwhile is not in it.
	var told map[cluster.KernelID]int64
	if sent := s.sent.Load(); sent != nil && b.desired >= sent.revision {
		told = sent.kernels
	}
	for first := true; first || len(list) > 0; first = false {
		part := list
		if !b.full {
			part = list[:min(len(list), maxDelta)]
		}
		list = list[len(part):]
		var acked []cluster.Tombstone
		ok := s.retry("store what was observed", func(ctx context.Context) (err error) {
			acked, err = s.link.d.Sink.Observe(ctx, s.agent, epoch, b.full, told, part)
			return err
		})
		if !ok {
			return false
		}
		if len(acked) == 0 {
			continue
		}
		ack := &node.Ack{}
		for _, t := range acked {
			ack.Kernels = append(ack.Kernels, &node.Tombstone{KernelId: string(t.Kernel), Generation: t.Generation})
		}
		if !s.put(&node.Down{Kind: &node.Down_Ack{Ack: ack}}) {
			return false
		}
	}
	return true
}
