package session

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

const (
	// subscriberBuffer is how many events a slow reader may be behind before it is dropped.
	subscriberBuffer = 1024
	// maxSubscribers bounds the readers of one manager.
	maxSubscribers = 10_000
	eventPage      = 1000
	// gapMemory is how long a missing number is looked for: numbers are given before commit, so a
	// number may appear after higher ones, or never when its transaction failed.
	gapMemory = 30 * time.Second
	maxGaps   = 5000
	// resync is the safety net below the hints.
	resync = 10 * time.Second
)

// hub tells waiters that a session changed and spreads events to subscribers. It reads the
// events' table once for all subscribers, and not at all while there are none.
type hub struct {
	store *store.Store
	log   *slog.Logger
	// changed is told of every session that changed, "" standing for all, before waiters are; may be nil.
	changed func(cluster.SessionID)

	mu      sync.Mutex
	waiters map[cluster.SessionID]map[chan struct{}]struct{}
	subs    map[*subscriber]struct{}
	last    int64
	gaps    map[int64]time.Time
	stopped bool
}

type hubEvent struct {
	Event
	object authz.Object // the session
}

// subscriber gets every event; it is dropped (c is closed) when it does not keep up.
type subscriber struct {
	c     chan hubEvent
	floor int64 // events up to this number are older than the subscription
}

func newHub(s *store.Store, log *slog.Logger) *hub {
	return &hub{store: s, log: log, waiters: map[cluster.SessionID]map[chan struct{}]struct{}{}, subs: map[*subscriber]struct{}{}, gaps: map[int64]time.Time{}}
}

// run serves until ctx ends; then all subscribers are dropped.
func (h *hub) run(ctx context.Context) {
	w := h.store.Wakes(func(topic string) bool {
		return topic == store.TopicEvents || strings.HasPrefix(topic, "session:")
	})
	defer w.Close()
	tick := time.NewTicker(resync)
	defer tick.Stop()
	defer h.stop()
	for {
		topics := []string{store.TopicAll}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-w.C:
			topics = w.Take()
		}
		events := false
		for _, t := range topics {
			switch id, session := strings.CutPrefix(t, "session:"); {
			case session:
				h.wake(cluster.SessionID(id))
			case t == store.TopicAll:
				h.wakeAll()
				events = true
			default:
				events = true
			}
		}
		if !events {
			continue
		}
		if err := h.tail(ctx); err != nil && ctx.Err() == nil {
			h.log.Warn("could not read events; trying again", "error", err)
		}
	}
}

func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	for s := range h.subs {
		close(s.c)
		delete(h.subs, s)
	}
}

// watch returns a channel that gets an item after the session changed. Call cancel.
func (h *hub) watch(id cluster.SessionID) (c <-chan struct{}, cancel func()) {
	ch := make(chan struct{}, 1)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiters[id] == nil {
		h.waiters[id] = map[chan struct{}]struct{}{}
	}
	h.waiters[id][ch] = struct{}{}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.waiters[id], ch)
		if len(h.waiters[id]) == 0 {
			delete(h.waiters, id)
		}
	}
}

func (h *hub) wake(id cluster.SessionID) {
	if h.changed != nil {
		h.changed(id)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	signal(h.waiters[id])
}

func (h *hub) wakeAll() {
	if h.changed != nil {
		h.changed("")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, w := range h.waiters {
		signal(w)
	}
}

func signal(set map[chan struct{}]struct{}) {
	for c := range set {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// subscribe starts with the next event. Call unsubscribe.
func (h *hub) subscribe(ctx context.Context) (*subscriber, error) {
	// Asked before locking: waiters must not wait for the database.
	last, err := h.store.LastEventSeq(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the newest event: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, fault.Unavailablef("the manager is stopping")
	}
	if len(h.subs) >= maxSubscribers {
		return nil, fault.Unavailablef("too many readers of events").WithNext("try again later")
	}
	if len(h.subs) == 0 {
		h.last = last
		clear(h.gaps)
	}
	s := &subscriber{c: make(chan hubEvent, subscriberBuffer), floor: last}
	h.subs[s] = struct{}{}
	return s, nil
}

func (h *hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, s)
}

// tail reads what is new and spreads it.
func (h *hub) tail(ctx context.Context) error {
	for {
		h.mu.Lock()
		idle := len(h.subs) == 0
		last := h.last
		gaps := make([]int64, 0, len(h.gaps))
		for g, since := range h.gaps {
			if time.Since(since) > gapMemory {
				delete(h.gaps, g)
				continue
			}
			gaps = append(gaps, g)
		}
		h.mu.Unlock()
		if idle {
			return nil
		}
		rows, err := h.store.EventsAfter(ctx, last, gaps, eventPage)
		if err != nil {
			return err
		}
		h.spread(rows)
		if len(rows) < eventPage {
			return nil
		}
	}
}

func (h *hub) spread(rows []dbgen.EventsAfterRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range rows {
		delete(h.gaps, r.Seq)
		if r.Seq > h.last {
			for g := h.last + 1; g < r.Seq && len(h.gaps) < maxGaps; g++ {
				h.gaps[g] = time.Now()
			}
			h.last = r.Seq
		}
		if r.Event == "" {
			continue
		}
		e := eventOf(dbgen.EventsOfSessionAfterRow(r))
		for s := range h.subs {
			if e.Seq <= s.floor {
				continue
			}
			select {
			case s.c <- e:
			default:
				close(s.c)
				delete(h.subs, s)
			}
		}
	}
}

func eventOf(r dbgen.EventsOfSessionAfterRow) hubEvent {
	e := hubEvent{
		Event: Event{
			Seq: r.Seq, Name: cluster.EventName(r.Event), SessionID: cluster.SessionID(r.SessionID), SessionName: r.SessionName,
			OwnerAccessKey: cluster.AccessKey(r.AccessKey), Reason: cluster.Reason(r.Reason), Detail: r.Detail, Status: cluster.Status(r.ToStatus),
			ExitCode: store.Int(r.ExitCode), At: r.At.UTC(),
		},
		object: authz.Object{Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.OwnerRole), Domain: r.DomainName},
	}
	if r.KernelID != nil {
		e.Kernel = cluster.KernelID(*r.KernelID)
	}
	if r.ClusterRole != nil {
		e.ClusterRole = *r.ClusterRole
	}
	if r.ClusterIdx != nil {
		e.ClusterIdx = int(*r.ClusterIdx)
	}
	return e
}
