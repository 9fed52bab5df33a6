package metric

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
)

// Measurements take what agents measure of themselves and of their kernels; link/agent calls them.
type Measurements interface {
	Put(ctx context.Context, agent cluster.AgentID, node map[string]float64, kernels map[cluster.KernelID]map[string]float64)
}

const (
	// writeEvery is the pause between two looks for minutes that are over, writeBatch how many one statement takes.
	writeEvery = 5 * time.Second
	writeBatch = 1000
	// maxWaiting bounds what waits for the database, in rows: an hour of 1,000 kernels. The oldest are dropped.
	maxWaiting = 60_000
	// forgetAfter is how long counters of what is not measured any more are kept.
	forgetAfter = 2 * stale
	// lastWrite bounds the writing at the end.
	lastWrite = 5 * time.Second
)

// row is a minute that is over.
type row struct {
	Kernel  string             `json:"kernel_id,omitempty"`
	Agent   string             `json:"agent_id,omitempty"`
	At      time.Time          `json:"at"`
	CPU     *float64           `json:"cpu"`
	Mem     *float64           `json:"mem"`
	IORead  *float64           `json:"io_read"`
	IOWrite *float64           `json:"io_write"`
	NetRx   *float64           `json:"net_rx"`
	NetTx   *float64           `json:"net_tx"`
	Devices map[string]float64 `json:"devices"`
}

// gathering is the minutes in the making of kernels, or of agents.
type gathering struct {
	agents bool
	spans  map[string]*span
}

// Recorder gathers what agents measure into minutes and writes those that are over, and passes all on. The minute that runs is lost with
// the process, and what the database does not take for an hour is lost, too; both leave gaps, never zeros. Put may be called concurrently.
type Recorder struct {
	next  Measurements // nil: nobody else wants them
	store *store.Store
	clock chassis.Clock
	log   *slog.Logger

	mu              sync.Mutex
	kernels, agents gathering
	waiting         []row
	dropped         int // since the last write that succeeded

	// Run's own.
	made    time.Time // the last day whose tables are known to be there
	failing bool
}

// NewRecorder makes a recorder; next may be nil.
func NewRecorder(next Measurements, st *store.Store, clock chassis.Clock, log *slog.Logger) *Recorder {
	return &Recorder{next: next, store: st, clock: clock, log: log, kernels: gathering{spans: map[string]*span{}},
		agents: gathering{agents: true, spans: map[string]*span{}}}
}

// Put takes one batch of an agent.
func (r *Recorder) Put(ctx context.Context, agent cluster.AgentID, own map[string]float64,
	kernels map[cluster.KernelID]map[string]float64,
) {
	now := r.clock.Now().UTC()
	r.mu.Lock()
	r.gather(r.agents, string(agent), now, own)
	for id, values := range kernels {
		if text, ok := cluster.CanonicalUUID(string(id)); ok {
			r.gather(r.kernels, text, now, values)
		}
	}
	r.mu.Unlock()
	if r.next != nil {
		r.next.Put(ctx, agent, own, kernels)
	}
}

// gather adds to the minute of one of them; the caller holds mu.
func (r *Recorder) gather(of gathering, id string, now time.Time, values map[string]float64) {
	minute := now.Truncate(Minute)
	s := of.spans[id]
	if s == nil || s.minute.Before(minute) {
		r.finish(of, id, s)
		s = next(s, minute)
		of.spans[id] = s
	}
	s.add(now, values)
}

// finish has a minute wait to be written, once; the caller holds mu.
func (r *Recorder) finish(of gathering, id string, s *span) {
	if s == nil || s.told {
		return
	}
	s.told = true
	v := s.values()
	if v.empty() {
		return
	}
	one := row{At: s.minute, CPU: v.CPU, Mem: v.Mem, IORead: v.IORead, IOWrite: v.IOWrite, NetRx: v.NetRx, NetTx: v.NetTx, Devices: v.Devices}
	if of.agents {
		one.Agent = id
	} else {
		one.Kernel = id
	}
	if len(r.waiting) == maxWaiting {
		r.waiting = r.waiting[1:]
		r.dropped++
	}
	r.waiting = append(r.waiting, one)
}

// Run writes minutes that are over until ctx ends.
func (r *Recorder) Run(ctx context.Context) error {
	tick := r.clock.NewTicker(writeEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
			defer cancel()
			r.write(last)
			return ctx.Err()
		case <-tick.C():
			r.write(ctx)
		}
	}
}

// write writes what is over. What cannot be written waits for the next time.
func (r *Recorder) write(ctx context.Context) {
	now := r.clock.Now().UTC()
	r.mu.Lock()
	for _, of := range []gathering{r.kernels, r.agents} {
		for id, s := range of.spans {
			if s.minute.Before(now.Truncate(Minute)) {
				r.finish(of, id, s)
			}
			if now.Sub(s.minute) > forgetAfter {
				delete(of.spans, id)
			}
		}
	}
	r.mu.Unlock()
	for batch := r.take(); len(batch) > 0; batch = r.take() {
		if err := r.insert(ctx, batch); err != nil {
			r.giveBack(batch)
			if !r.failing && ctx.Err() == nil {
				r.log.Warn("the history of use cannot be written; it waits", "error", err)
			}
			r.failing = true
			return
		}
	}
	if r.failing {
		r.failing = false
		r.mu.Lock()
		lost := r.dropped
		r.dropped = 0
		r.mu.Unlock()
		r.log.Info("the history of use is written again", "minutes_lost", lost)
	}
}

// take takes the oldest rows that wait.
func (r *Recorder) take() []row {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := min(len(r.waiting), writeBatch)
	batch := slices.Clone(r.waiting[:n])
	r.waiting = r.waiting[n:]
	return batch
}

// giveBack has rows wait again; the oldest are dropped where there are too many.
func (r *Recorder) giveBack(batch []row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := slices.Concat(batch, r.waiting)
	over := max(0, len(all)-maxWaiting)
	r.waiting, r.dropped = all[over:], r.dropped+over
}

// insert writes rows. The tables of their days are made if need be.
func (r *Recorder) insert(ctx context.Context, batch []row) error {
	for _, b := range batch {
		if day := b.At.Truncate(24 * time.Hour); day.After(r.made) {
			if err := r.store.MakeMetricDay(ctx, day); err != nil {
				return fmt.Errorf("make the tables of a day: %w", err)
			}
			r.made = day
		}
	}
	kernels, agents := []row{}, []row{}
	for _, b := range batch {
		if b.Agent != "" {
			agents = append(agents, b)
		} else {
			kernels = append(kernels, b)
		}
	}
	for _, part := range []struct {
		rows []row
		add  func(context.Context, json.RawMessage) error
	}{{kernels, r.store.AddKernelMinutes}, {agents, r.store.AddAgentMinutes}} {
		if len(part.rows) == 0 {
			continue
		}
		raw, err := json.Marshal(part.rows)
		if err != nil {
			return fmt.Errorf("encode minutes: %w", err)
		}
		if err := part.add(ctx, raw); err != nil {
			return fmt.Errorf("write minutes: %w", err)
		}
	}
	return nil
}
