package app

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/proxy"
)

const (
	// lookEvery is how often a manager looks for changes that no hint told of; a look reads only what changed.
	lookEvery = time.Second
	// compareEvery is how often all circuits are read, as the safety net of looks.
	compareEvery = time.Minute
)

// table is this manager's copy of all published circuits. It follows the database by transaction numbers (decision 0006):
// a look reads what became visible since the snapshot of the one before, in any order of commits.
type table struct {
	mu       sync.RWMutex
	rows     map[string]tableRow // never nil
	sessions map[string]int      // circuits by session
	watches  map[*Watch]struct{}
	ready    chan struct{} // closed after the first read

	// Of the follower alone.
	snapshot   string
	comparedAt time.Time
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
}

// Watch begins a watch of a proxy's circuits; the first Take is a snapshot. It waits until the circuits were read once. Close it.
func (s *Service) Watch(ctx context.Context, name string) (*Watch, error) {
	select {
	case <-s.table.ready:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c := make(chan struct{}, 1)
	w := &Watch{C: c, c: c, name: name, all: &s.table, pending: map[string]struct{}{}, full: true}
	s.table.mu.Lock()
	defer s.table.mu.Unlock()
	s.table.watches[w] = struct{}{}
	w.kick()
	return w, nil
}

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

// Take returns the circuits that changed since the last Take as they are now, and the ids of those that are gone. full
// says that these are all circuits: what is not named is gone.
func (w *Watch) Take() (circuits []proxy.Circuit, gone []string, full bool) {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if w.full {
		for _, r := range w.all.rows {
			if r.proxy == w.name {
				circuits = append(circuits, r.circuit)
			}
		}
		w.full = false
		clear(w.pending)
		return circuits, nil, true
	}
	for id := range w.pending {
		if r, ok := w.all.rows[id]; ok && r.proxy == w.name {
			circuits = append(circuits, r.circuit)
		} else {
			gone = append(gone, id)
		}
	}
	clear(w.pending)
	return circuits, gone, false
}

// apply replaces what changed: found are the rows of ids as they are now, an id without a row is gone. It tells the watches and
// returns how many rows differed.
func (t *table) apply(ids []string, found map[string]tableRow) (changed int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range ids {
		old, had := t.rows[id]
		now, has := found[id]
		if !had && !has || had && has && old.circuit.Revision == now.circuit.Revision {
			continue
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
	return changed
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

// follow keeps the table up to date until ctx ends.
func (s *Service) follow(ctx context.Context) {
	wakes := s.d.Store.Wakes(s.table.concerns)
	defer wakes.Close()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	failed := false
	for {
		err := s.lookOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failed {
			s.d.Log.Warn("cannot read the circuits; app proxies keep what they have", "error", err)
		}
		failed = err != nil
		select {
		case <-wakes.C:
			wakes.Take()
			if !failed {
				continue
			}
			select { // a failing database is asked once a tick
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// lookOnce looks once: at what changed, or at everything when it is time for that.
func (s *Service) lookOnce(ctx context.Context) error {
	t := &s.table
	// Taken before the rows are read: what becomes visible in between is read again next time.
	snapshot, err := s.d.Store.LookAtCircuits(ctx)
	if err != nil {
		return fmt.Errorf("take a snapshot: %w", err)
	}
	now := s.d.Clock()
	first := t.snapshot == ""
	everything := first || now.Sub(t.comparedAt) >= compareEvery || now.Before(t.comparedAt)
	var ids []string
	if !first {
		if ids, err = s.d.Store.CircuitsChanged(ctx, t.snapshot); err != nil {
			return fmt.Errorf("read what changed of circuits: %w", err)
		}
	}
	if len(ids) > 0 {
		found, err := s.readRows(ctx, ids)
		if err != nil {
			return err
		}
		t.apply(ids, found)
	}
	if everything {
		found, err := s.readRows(ctx, nil)
		if err != nil {
			return err
		}
		all := maps.Clone(found)
		t.mu.RLock()
		for id := range t.rows {
			all[id] = tableRow{}
		}
		t.mu.RUnlock()
		list := make([]string, 0, len(all))
		for id := range all {
			list = append(list, id)
		}
		// What committed after the snapshot may be found here first; that is no miss, so it is not called one.
		if n := t.apply(list, found); n > 0 && !first {
			s.d.Log.Debug("a full comparison of circuits found changes before the next look did", "circuits", n)
		}
		t.comparedAt = now
	}
	t.snapshot = snapshot
	if first {
		close(t.ready)
	}
	return nil
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
