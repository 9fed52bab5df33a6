package session

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
)

const (
	// subscriberBuffer is how many events a slow reader may be behind before it is dropped.
	subscriberBuffer = 1024
	// maxSubscribers bounds the readers of one manager.
	maxSubscribers = 10_000
	eventPage      = 1000
	// resync is the time between looks without any hint.
	resync = 10 * time.Second
	// eventsRetry is how often a database that fails is asked for events.
	eventsRetry = time.Second
	// eventsCompare is how often the newest events, compareEvents of them, are compared with those that were spread.
	eventsCompare = time.Minute
	compareEvents = 500
	// rememberEvents is how many of the last spread events are remembered, so that none is spread twice.
	rememberEvents = 4096
)

// hub tells waiters that a session changed and spreads events to subscribers. It follows the events' table (feed) once for all
// subscribers, and not at all while there are none.
type hub struct {
	store *store.Store
	// changed is told of every session that changed, "" standing for all, before waiters are; may be nil.
	changed func(cluster.SessionID)

	// every is the time between looks without any hint.
	every time.Duration

	// events is followed while there are subscribers.
	events *feed.Follower

	mu      sync.Mutex
	waiters map[cluster.SessionID]map[chan struct{}]struct{}
	subs    map[*subscriber]struct{}
	// joining is how many callers of subscribe wait for their first look.
	joining int
	known   recentEvents
	stopped bool
}

type hubEvent struct {
	Event
	object authz.Object // the session
}

// subscriber gets every event; it is dropped (c is closed) when it does not keep up.
type subscriber struct {
	c chan hubEvent
	// objects is nil for readers of sessions alone.
	objects *objectQueue
}

func newHub(s *store.Store, log *slog.Logger, every time.Duration) *hub {
	h := &hub{store: s, every: every, waiters: map[cluster.SessionID]map[chan struct{}]struct{}{}, subs: map[*subscriber]struct{}{}}
	h.events = feed.New(feed.Config{
		Name: "events", Log: log, CompareEvery: eventsCompare, Tick: every, Retry: eventsRetry, Hint: h.hint,
		Topics: func(topic string) bool {
			return topic == store.TopicEvents || strings.HasPrefix(topic, "session:")
		},
	})
	return h
}

// run serves until ctx ends; then all subscribers are dropped.
func (h *hub) run(ctx context.Context) {
	defer h.stop()
	h.events.Run(ctx, h.store, feed.Events(h.store), h)
}

// hint passes hints on to those who wait, and reports whether somebody wants events that may be there.
func (h *hub) hint(topics []string) (look bool) {
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
	h.mu.Lock()
	defer h.mu.Unlock()
	return events && len(h.subs) > 0
}

func (h *hub) stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.drop()
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
func (h *hub) subscribe(ctx context.Context, objects bool) (*subscriber, error) {
	h.mu.Lock()
	if h.stopped {
		h.mu.Unlock()
		return nil, fault.Unavailablef("the manager is stopping")
	}
	if len(h.subs)+h.joining >= maxSubscribers {
		h.mu.Unlock()
		return nil, fault.Unavailablef("too many readers of events").WithNext("try again later")
	}
	if len(h.subs)+h.joining == 0 {
		h.events.Restart() // nobody wants what happened meanwhile
	}
	h.joining++
	h.mu.Unlock()
	// What is visible by now goes to the others alone. Waiters of sessions must not wait for the database, so the lock is not held.
	_, err := h.events.Look(ctx, feed.Events(h.store), h)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.joining--
	if err != nil {
		return nil, fmt.Errorf("find the newest events: %w", err)
	}
	if h.stopped {
		return nil, fault.Unavailablef("the manager is stopping")
	}
	s := &subscriber{c: make(chan hubEvent, subscriberBuffer)}
	if objects {
		s.objects = newObjectQueue()
	}
	h.subs[s] = struct{}{}
	return s, nil
}

func (h *hub) unsubscribe(s *subscriber) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.subs, s)
}

// Apply spreads the events that became visible (feed.Consumer).
func (h *hub) Apply(ctx context.Context, changes feed.Changes) error {
	seqs, err := numbers(changes[feed.KindEvent])
	if err != nil {
		return err
	}
	if err := h.read(ctx, seqs); err != nil {
		return err
	}
	if seqs, err = numbers(changes[feed.KindObject]); err != nil {
		return err
	}
	return h.readObjects(ctx, seqs)
}

func numbers(ids []string) ([]int64, error) {
	seqs := make([]int64, len(ids))
	for i, id := range ids {
		seq, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read the number of event %q: %w", id, err)
		}
		seqs[i] = seq
	}
	return seqs, nil
}

// Compare spreads those of the newest events that were not (feed.Consumer). The first time it only remembers them.
func (h *hub) Compare(ctx context.Context, why feed.Reason) (differences int, err error) {
	newest, err := h.store.NewestEventSeqs(ctx, compareEvents)
	if err != nil {
		return 0, fmt.Errorf("find the newest events: %w", err)
	}
	h.mu.Lock()
	if why != feed.First && !why.Missed() { // what changed of other objects is not known
		for s := range h.subs {
			s.objects.resync()
		}
	}
	if why == feed.First {
		h.known = recentEvents{}
		if len(newest) == compareEvents { // what is older was never remembered
			h.known.floor = newest[len(newest)-1]
		}
		for _, seq := range slices.Backward(newest) {
			h.known.add(seq)
		}
		h.mu.Unlock()
		return 0, nil
	}
	missing := slices.DeleteFunc(newest, func(seq int64) bool { return seq <= h.known.floor || h.known.has(seq) })
	if len(missing) == compareEvents {
		// Even more may be missing. Readers are told to resume where they were.
		h.drop()
		for _, seq := range slices.Backward(missing) {
			h.known.add(seq)
		}
		missing = nil
	}
	h.mu.Unlock()
	return len(missing), h.read(ctx, missing)
}

// read reads events by their numbers and spreads them.
func (h *hub) read(ctx context.Context, seqs []int64) error {
	slices.Sort(seqs)
	for page := range slices.Chunk(seqs, eventPage) {
		rows, err := h.store.EventsBySeq(ctx, page)
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		h.spread(rows)
	}
	return nil
}

func (h *hub) spread(rows []dbgen.EventsBySeqRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range rows {
		if h.known.has(r.Seq) {
			continue
		}
		h.known.add(r.Seq)
		e := eventOf(dbgen.EventsOfSessionAfterRow(r))
		for s := range h.subs {
			select {
			case s.c <- e:
			default:
				close(s.c)
				delete(h.subs, s)
			}
		}
	}
}

// drop ends all subscriptions; mu is held.
func (h *hub) drop() {
	for s := range h.subs {
		close(s.c)
		delete(h.subs, s)
	}
}

// recentEvents are the numbers of the events that were spread last, and of those that are older than all subscriptions.
type recentEvents struct {
	floor int64 // a comparison leaves out this number and all lower ones
	set   map[int64]struct{}
	ring  []int64 // in the order in which they came
	next  int     // where the oldest is replaced
}

func (r *recentEvents) has(seq int64) bool {
	_, ok := r.set[seq]
	return ok
}

func (r *recentEvents) add(seq int64) {
	if r.set == nil {
		r.set = map[int64]struct{}{}
	}
	if len(r.ring) < rememberEvents {
		r.ring = append(r.ring, seq)
	} else {
		delete(r.set, r.ring[r.next])
		r.ring[r.next] = seq
		r.next = (r.next + 1) % rememberEvents
	}
	r.set[seq] = struct{}{}
}

func eventOf(r dbgen.EventsOfSessionAfterRow) hubEvent {
	e := hubEvent{
		Event: Event{
			Seq: r.Seq, Name: cluster.EventName(r.Event), SessionID: cluster.SessionID(r.SessionID), SessionName: r.SessionName,
			OwnerAccessKey: cluster.AccessKey(r.AccessKey), Reason: cluster.Reason(r.Reason), Detail: r.Detail, Status: cluster.Status(r.ToStatus),
			ExitCode: store.Int(r.ExitCode), At: r.At.UTC(),
		},
		object: authz.Object{Owner: cluster.UserID(r.UserID), OwnerRole: authz.Role(r.OwnerRole), Domain: r.DomainName,
			Project: cluster.ProjectID(r.ProjectID)},
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
