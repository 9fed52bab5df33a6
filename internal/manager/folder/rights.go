package folder

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/wire/storage"
)

// Tokens for clients of storage proxies live for hours; the rights that they rest on may end at any time. Therefore a token carries the
// epochs of its user, its folder and the user's own permission for it, and every manager tells every storage proxy which epochs
// changed (link/storage pushes what this file follows).

const (
	// rightsEvery is how often a manager looks for changed epochs that no hint told of, rightsCompare how often all are read.
	rightsEvery   = time.Second
	rightsCompare = 10 * time.Minute
)

// entitled decides about a token by decide, and returns the epochs on which that decision rests.
func (s *Service) entitled(ctx context.Context, a authz.Actor, ref string, decide func(ref string) (place, error)) (place,
	*storage.TokenRights, error) {
	p, err := decide(ref)
	if err != nil {
		return place{}, nil, err
	}
	projects := make([]string, len(a.Projects))
	for i, id := range a.Projects {
		projects[i] = string(id)
	}
	row, err := s.d.Store.EpochsFor(ctx, dbgen.EpochsForParams{UserID: string(a.UserID), FolderID: string(p.ID), Role: string(a.Role),
		DomainName: a.Domain, Projects: projects})
	switch {
	case err != nil:
		return place{}, nil, fmt.Errorf("read the epochs of folder %s: %w", p.Name, err)
	case !row.Same:
		return place{}, nil, fault.Deniedf("the rights of %s have just changed", a.Email).WithNext("try again")
	case row.Young:
		// The change may lie between the decision and the epochs. What is decided now rests on these epochs, or on newer ones.
		if p, err = decide(string(p.ID)); err != nil {
			return place{}, nil, err
		}
	}
	return p, &storage.TokenRights{User: string(a.UserID), UserEpoch: row.UserEpoch, FolderEpoch: row.FolderEpoch,
		ShareEpoch: row.ShareEpoch}, nil
}

// Rights is a manager's copy of the epochs that changed lately. A feed.Follower keeps it in step with the database.
type Rights struct {
	store *store.Store
	clock func() time.Time
	log   *slog.Logger

	mu      sync.Mutex
	epochs  map[string]int64
	asOf    time.Time // of the last successful look; zero before the first
	watches map[*RightsWatch]struct{}
}

// NewRights makes an empty copy; Follow fills it.
func NewRights(s *store.Store, clock func() time.Time, log *slog.Logger) *Rights {
	return &Rights{store: s, clock: clock, log: log, epochs: map[string]int64{}, watches: map[*RightsWatch]struct{}{}}
}

// take takes over epochs and returns how many differed. all says that others are no longer of interest.
func (r *Rights) take(found map[string]int64, all bool, now time.Time) (differences int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.asOf.IsZero() {
		for w := range r.watches {
			w.kick()
		}
	}
	r.asOf = now
	for subject, n := range found {
		if n <= r.epochs[subject] {
			continue
		}
		differences++
		r.epochs[subject] = n
		for w := range r.watches {
			w.pending[subject] = struct{}{}
			w.kick()
		}
	}
	if all {
		maps.DeleteFunc(r.epochs, func(subject string, _ int64) bool { _, still := found[subject]; return !still })
	}
	return differences
}

// RightsWatch hears of changed epochs. However late it takes them, it holds no more than their subjects.
type RightsWatch struct {
	c       chan struct{}
	of      *Rights
	pending map[string]struct{}
}

// Watch begins a watch; the first Take returns all epochs that changed lately. Close it.
func (r *Rights) Watch() *RightsWatch {
	c := make(chan struct{}, 1)
	w := &RightsWatch{c: c, of: r}
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.all()
	w.of.watches[w] = struct{}{}
	return w
}

// all makes everything pending; the lock is held.
func (w *RightsWatch) all() {
	w.pending = make(map[string]struct{}, len(w.of.epochs))
	for subject := range w.of.epochs {
		w.pending[subject] = struct{}{}
	}
	w.kick()
}

func (w *RightsWatch) kick() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// Changed has an item whenever Take may return something.
func (w *RightsWatch) Changed() <-chan struct{} { return w.c }

// Close ends the watch.
func (w *RightsWatch) Close() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	delete(w.of.watches, w)
}

// Restart makes the next Take return all epochs.
func (w *RightsWatch) Restart() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	w.all()
}

// Take returns at most most epochs that were not taken yet. When there are no more, asOf is when that was last true of the database;
// it is zero while there are more, and before the database was read.
func (w *RightsWatch) Take(most int) (epochs map[string]int64, asOf time.Time) {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	epochs = make(map[string]int64, min(most, len(w.pending)))
	for subject := range w.pending {
		if len(epochs) == most {
			return epochs, time.Time{}
		}
		if n, ok := w.of.epochs[subject]; ok {
			epochs[subject] = n
		}
		delete(w.pending, subject)
	}
	return epochs, w.of.asOf
}

// Follow keeps the copy of epochs up to date until ctx ends. While the database fails it gets old, and storage proxies hear that.
func (r *Rights) Follow(ctx context.Context) error {
	f := feed.New(feed.Config{
		Name: "rights", Log: r.log, Clock: feed.ClockOf(r.clock), CompareEvery: rightsCompare, Tick: rightsEvery,
		Topics: func(topic string) bool { return topic == store.TopicRights },
	})
	f.Run(ctx, r.store, feed.Rights(r.store), rightsReader{r})
	return nil
}

// rightsReader reads epochs into the copy; it satisfies feed.Consumer.
type rightsReader struct{ *Rights }

// Apply reads the epochs that changed.
func (r rightsReader) Apply(ctx context.Context, changes feed.Changes) error {
	now := r.clock()
	found := map[string]int64{}
	for subjects := range slices.Chunk(changes[feed.KindRights], storage.MaxEpochs) {
		rows, err := r.store.RightsEpochs(ctx, subjects)
		if err != nil {
			return err
		}
		for _, row := range rows {
			found[row.Subject] = row.Epoch
		}
	}
	r.take(found, false, now)
	return nil
}

// Compare reads all epochs that a token may be older than.
func (r rightsReader) Compare(ctx context.Context, _ feed.Reason) (differences int, err error) {
	now := r.clock()
	rows, err := r.store.RecentRights(ctx, now.Add(-storage.RightsKept))
	if err != nil {
		return 0, err
	}
	found := make(map[string]int64, len(rows))
	for _, row := range rows {
		found[row.Subject] = row.Epoch
	}
	// What was committed after the look's snapshot may be found here first. So differences are no proof of a miss.
	r.take(found, true, now)
	return 0, r.store.ForgetRights(ctx)
}
