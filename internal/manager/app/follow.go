package app

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// lookEvery is how often a manager looks for changes that no hint told of; a look reads only what changed.
	lookEvery = time.Second
	// compareEvery is how often all circuits are read, as the safety net of looks.
	compareEvery = time.Minute
)

// table is this manager's copy of all published circuits. A feed.Follower keeps it in step with the database.
type table struct {
	mu       sync.RWMutex
	rows     map[string]tableRow // never nil
	sessions map[string]int      // circuits by session
	watches  map[*Watch]struct{}
	ready    chan struct{} // closed after the first read
	read     sync.Once     // closes ready
}

type tableRow struct {
	proxy   string
	circuit proxy.Circuit // never changed, only replaced
}

func (t *table) init() {
	t.rows, t.sessions, t.watches, t.ready = map[string]tableRow{}, map[string]int{}, map[*Watch]struct{}{}, make(chan struct{})
}

// Watch hears of changes of one proxy's circuits. However late it takes them, it holds no more than their ids.
type Watch struct {
	// C has an item whenever Take may return something.
	C <-chan struct{}

	c       chan struct{}
	name    string
	all     *table
	pending map[string]struct{}
	// full: everything is to be told anew.
	full bool
	// told is when the grants of the circuits that were taken are to be renewed; renew is the earliest of them.
	told  map[string]time.Time
	renew time.Time
}

// Watch begins a watch of a proxy's circuits; the first Take is a snapshot. It waits until the circuits were read once. Close it.
func (s *Service) Watch(ctx context.Context, name string) (*Watch, error) {
	select {
	case <-s.table.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := make(chan struct{}, 1)
	w := &Watch{C: c, c: c, name: name, all: &s.table, pending: map[string]struct{}{}, told: map[string]time.Time{},
		full: true}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.table.watches[w] = struct{}{}
	w.kick()
	return w, nil
}

// Name is the app proxy whose circuits these are.
func (w *Watch) Name() string { return w.name }

// Close ends the watch.
func (w *Watch) Close() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	delete(w.all.watches, w)
}

func (w *Watch) kick() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Grant puts grants into circuits that Take returned, and has them renewed in time. It takes some 30 us for each circuit that has
// no grant yet: callers do it for a part at a time.
func (s *Service) Grant(ctx context.Context, w *Watch, circuits []proxy.Circuit) error {
	list := make([]*proxy.Circuit, len(circuits))
	for i := range circuits {
		list[i] = &circuits[i]
	}
	if err := s.grant(ctx, w.name, list...); err != nil {
		return fmt.Errorf("sign grants for app proxy %s: %w", w.name, err)
	}
	w.note(circuits)
	return nil
}

// note remembers when the grants that the watch hears of now are to be renewed.
func (w *Watch) note(circuits []proxy.Circuit) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	for _, c := range circuits {
		for _, t := range c.Targets {
			g, err := proxy.ReadGrant(t.Grant)
			if err != nil {
				continue // it was signed a moment ago
			}
			at := renewAt(g)
			w.told[c.ID] = at
			if w.renew.IsZero() || at.Before(w.renew) {
				w.renew = at
			}
		}
	}
}

// due marks the circuits whose grants are to be renewed; w.all.mu is held. Those that are due later than any can be were signed before
// the clock was put back.
func (w *Watch) due(now time.Time) {
	last := now.Add(proxy.GrantLife)
	if w.renew.IsZero() || now.Before(w.renew) && !w.renew.After(last) {
		return
	}
	w.renew = time.Time{}
	for id, at := range w.told {
		if !now.Before(at) || at.After(last) {
			w.pending[id] = struct{}{}
			delete(w.told, id) // Grant brings it back
		} else if w.renew.IsZero() || at.Before(w.renew) {
			w.renew = at
		}
	}
}

// Take returns the circuits that changed since the last Take as they are now, without grants, and the ids of those that are gone;
// full says that these are all circuits: what is not named is gone. Circuits whose grants are due for renewal are among those that
// changed.
func (w *Watch) Take(now time.Time) (circuits []proxy.Circuit, gone []string, full bool) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	w.due(now)
	if w.full {
		for _, r := range w.all.rows {
			if r.proxy == w.name {
				circuits = append(circuits, r.circuit)
			}
		}
		w.full, w.renew = false, time.Time{}
		clear(w.pending)
		clear(w.told)
		return circuits, nil, true
	}
	for id := range w.pending {
		if r, ok := w.all.rows[id]; ok && r.proxy == w.name {
			circuits = append(circuits, r.circuit)
		} else {
			gone = append(gone, id)
			delete(w.told, id)
		}
	}
	clear(w.pending)
	return circuits, gone, false
}

// apply replaces what changed: found are the rows of ids as they are now, an id without a row is gone. It tells the watches and
// returns how many rows differed, and which circuits are gone.
func (t *table) apply(ids []string, found map[string]tableRow) (changed int, gone []proxy.Circuit) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		old, had := t.rows[id]
		now, has := found[id]
		if !had && !has || had && has && old.circuit.Revision == now.circuit.Revision {
			continue
		}
		if !has {
			gone = append(gone, old.circuit)
		}
		changed++
		if had {
			if t.sessions[old.circuit.Session]--; t.sessions[old.circuit.Session] <= 0 {
				delete(t.sessions, old.circuit.Session)
			}
			delete(t.rows, id)
		}
		if has {
			t.rows[id] = now
			t.sessions[now.circuit.Session]++
		}
		for w := range t.watches {
			if had && old.proxy == w.name || has && now.proxy == w.name {
				w.pending[id] = struct{}{}
				w.kick()
			}
		}
	}
	return changed, gone
}

// concerns reports whether a hint is about circuits: about all of them, or about a session that has some.
func (t *table) concerns(topic string) bool {
	if topic == store.TopicCircuits {
		return true
	}
	id, ok := strings.CutPrefix(topic, store.SessionTopic(""))
	if !ok {
		return false
	}
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.sessions[id] > 0
}

// follow keeps the table up to date until ctx ends. While the database fails, app proxies keep what they have.
func (s *Service) follow(ctx context.Context) {
	f := feed.New(feed.Config{
		Name: "circuits", Log: s.d.Log, Clock: feed.ClockOf(s.d.Clock), CompareEvery: compareEvery,
		Topics: s.table.concerns, Tick: lookEvery,
	})
	f.Run(ctx, s.d.Store, feed.Circuits(s.d.Store), circuitReader{s})
}

// circuitReader reads circuits into the table; it satisfies feed.Consumer.
type circuitReader struct{ *Service }

// Apply reads the circuits that changed.
func (s circuitReader) Apply(ctx context.Context, changes feed.Changes) error {
	ids := changes[feed.KindCircuit]
	if len(ids) == 0 {
		return nil
	}
	found, err := s.readRows(ctx, ids)
	if err != nil {
		return err
	}
	_, gone := s.table.apply(ids, found)
	if s.grants.end(gone) {
		return s.readEnded(ctx)
	}
	return nil
}

// Compare reads all circuits.
func (s circuitReader) Compare(ctx context.Context, why feed.Reason) (differences int, err error) {
	found, err := s.readRows(ctx, nil)
	if err != nil {
		return 0, err
	}
	t := &s.table
	all := maps.Clone(found)
	t.mu.RLock()
	for id := range t.rows {
		all[id] = tableRow{}
	}
	t.mu.RUnlock()
	differences, gone := t.apply(slices.Collect(maps.Keys(all)), found)
	_ = s.grants.end(gone) // all are read now
	if err := s.readEnded(ctx); err != nil {
		return differences, err
	}
	// What was committed after the look's snapshot may be found here before the next look finds it. So this is no proof of a miss.
	if differences > 0 && why.Missed() {
		s.d.Log.Debug("a full comparison of circuits found changes before the next look did", "circuits", differences)
	}
	t.read.Do(func() { close(t.ready) })
	return differences, nil
}

func (s *Service) readRows(ctx context.Context, ids []string) (map[string]tableRow, error) {
	rows, err := published(ctx, s.d.Store.Queries, ids)
	if err != nil {
		return nil, err
	}
	out := make(map[string]tableRow, len(rows))
	for _, r := range rows {
		out[r.Circuit.ID] = tableRow{proxy: r.Circuit.Proxy, circuit: wireCircuit(r)}
	}
	return out, nil
}

// Lookup finds a circuit by what tells it from others, past the table: its event may be on the way (proxies).
func (s *Service) Lookup(ctx context.Context, name string, req proxy.LookupRequest) (proxy.LookupReply, error) {
	var label *string
	var port *int32
	switch {
	case req.Label != "":
		label = &req.Label
	case req.Port > 0 && req.Port <= 65535:
		n := int32(req.Port)
		port = &n
	default:
		return proxy.LookupReply{}, nil
	}
	id, err := s.d.Store.CircuitAt(ctx, name, label, port)
	if store.Missing(err) {
		return proxy.LookupReply{}, nil
	}
	if err != nil {
		return proxy.LookupReply{}, fmt.Errorf("look for a circuit of app proxy %s: %w", name, err)
	}
	rows, err := published(ctx, s.d.Store.Queries, []string{id})
	if err != nil || len(rows) == 0 {
		return proxy.LookupReply{}, err
	}
	c := wireCircuit(rows[0])
	if err := s.grant(ctx, name, &c); err != nil {
		return proxy.LookupReply{}, fmt.Errorf("sign a grant of circuit %s: %w", id, err)
	}
	return proxy.LookupReply{Circuit: &c}, nil
}

// Activity notes when visitors used circuits of a proxy, and with that their sessions (proxies).
func (s *Service) Activity(ctx context.Context, name string, a proxy.Activity) error {
	now := s.d.Clock()
	var ahead time.Duration // the proxy's clock is not ours
	if !a.At.IsZero() {
		ahead = a.At.Sub(now)
	}
	last := map[string]time.Time{}
	for _, c := range a.Circuits {
		id, ok := cluster.CanonicalUUID(c.ID)
		if !ok || c.LastAt.IsZero() {
			continue
		}
		at := c.LastAt.Add(-ahead)
		if at.After(now) {
			at = now
		}
		if at.After(last[id]) {
			last[id] = at
		}
	}
	if len(last) == 0 {
		return nil
	}
	ids, times := make([]string, 0, len(last)), make([]time.Time, 0, len(last))
	for id, at := range last {
		ids, times = append(ids, id), append(times, at)
	}
	var used []dbgen.CircuitsUsedRow
	err := s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
		used, err = tx.CircuitsUsed(ctx, ids, times, name)
		return err
	})
	if err != nil {
		return fmt.Errorf("note the use of circuits: %w", err)
	}
	for _, u := range used {
		s.d.Sessions.Uses().Touch(cluster.SessionID(u.SessionID), u.UsedAt)
	}
	return nil
}
