package feed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/store"
)

var errDown = errors.New("the database is down")

// database is a model of PostgreSQL: rows, transactions that commit in any order, and crashes after which transaction numbers of
// transactions that did not commit are given again.
type database struct {
	rows    map[string]row // also of what is gone
	open    []*transaction
	next    uint64
	started time.Time
	// connections is what store.Store.Connections returns.
	connections int64
	version     int
	// down is how many of the next questions and reads fail.
	down int
	// during is called between the question and the reads of a look.
	during func()
	asked  int
}

type row struct {
	value   int // 0: gone
	changed uint64
}

type transaction struct {
	number uint64
	writes map[string]int
}

func newDatabase() *database {
	return &database{rows: map[string]row{}, next: 700, started: time.Unix(1000, 0)}
}

func (d *database) begin() {
	d.open = append(d.open, &transaction{d.next, map[string]int{}})
	d.next++
}

// write changes a row that no other open transaction has changed, as row locks would have it.
func (d *database) write(n int, id string, gone bool) {
	for i, t := range d.open {
		if _, held := t.writes[id]; held && i != n {
			return
		}
	}
	d.version++
	d.open[n].writes[id] = d.version
	if gone {
		d.open[n].writes[id] = 0
	}
}

func (d *database) end(n int, commit bool) {
	t := d.open[n]
	d.open = slices.Delete(d.open, n, n+1)
	if commit {
		for id, v := range t.writes {
			d.rows[id] = row{v, t.number}
		}
	}
}

// crash loses what is open and gives the numbers again that no committed row carries. Without restart the postmaster lives on.
func (d *database) crash(restart bool) {
	d.open = nil
	last := uint64(699)
	for _, r := range d.rows {
		last = max(last, r.changed)
	}
	d.next = last + 1
	d.connections += 2 // lost and made again
	if restart {
		d.started = d.started.Add(time.Minute)
		d.connections -= 2 // this reason alone must do
	}
}

func (d *database) snapshot() string {
	xmin, running := d.next, []string{}
	for _, t := range d.open {
		xmin = min(xmin, t.number)
		running = append(running, strconv.FormatUint(t.number, 10))
	}
	return fmt.Sprintf("%d:%d:%s", xmin, d.next, strings.Join(running, ","))
}

// sees is pg_visible_in_snapshot.
func sees(snapshot string, number uint64) (visible bool, xmin uint64) {
	parts := strings.Split(snapshot, ":")
	xmin, _ = strconv.ParseUint(parts[0], 10, 64)
	xmax, _ := strconv.ParseUint(parts[1], 10, 64)
	return number < xmin || number < xmax && !slices.Contains(strings.Split(parts[2], ","), strconv.FormatUint(number, 10)), xmin
}

func (d *database) fails() bool {
	if d.down > 0 {
		d.down--
		return true
	}
	return false
}

// ChangesSince implements Source by the condition of the real queries.
func (d *database) ChangesSince(_ context.Context, snapshot string, most int) (Answer, error) {
	d.asked++
	if d.fails() {
		return Answer{}, errDown
	}
	a := Answer{Snapshot: d.snapshot(), Server: Server{Started: d.started, Connections: d.connections}}
	ids := []string{}
	for id, r := range d.rows {
		if snapshot == "" {
			break
		}
		if visible, xmin := sees(snapshot, r.changed); r.changed >= xmin && !visible && len(ids) <= most {
			ids = append(ids, id)
		}
	}
	if len(ids) > 0 {
		a.Changes = Changes{KindCircuit: ids}
	}
	a.TooMany = len(ids) > most
	if d.during != nil {
		d.during()
	}
	return a, nil
}

// holder is a consumer that holds the values of rows.
type holder struct {
	db       *database
	rows     map[string]int
	compared []Reason
	applied  int
}

func (h *holder) read(id string) {
	delete(h.rows, id)
	if v := h.db.rows[id].value; v != 0 {
		h.rows[id] = v
	}
}

// Apply may fail half-way.
func (h *holder) Apply(_ context.Context, changes Changes) error {
	for _, id := range changes[KindCircuit] {
		if h.db.fails() {
			return errDown
		}
		h.read(id)
	}
	h.applied++
	return nil
}

// Compare may fail half-way.
func (h *holder) Compare(_ context.Context, why Reason) (differences int, err error) {
	before := maps.Clone(h.rows)
	for id := range h.db.rows {
		if h.db.fails() {
			return 0, errDown
		}
		h.read(id)
	}
	for id := range before {
		if before[id] != h.rows[id] {
			differences++
		}
	}
	for id := range h.rows {
		if _, had := before[id]; !had {
			differences++
		}
	}
	h.compared = append(h.compared, why)
	return differences, nil
}

// TestAfterALookTheConsumerHoldsWhatTheDatabaseHolds: in whatever order transactions begin, commit, roll back or are lost in
// crashes, and whatever fails, a look that succeeds leaves the consumer with every row that was not written while it read.
func TestAfterALookTheConsumerHoldsWhatTheDatabaseHolds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		db := newDatabase()
		h := &holder{db: db, rows: map[string]int{}}
		now := time.Unix(5000, 0)
		f := New(Config{Name: "rows", Clock: ClockOf(func() time.Time { return now }), MostChanges: rapid.IntRange(1, 4).Draw(t, "most")})
		step := func(written map[string]bool) {
			steps := []string{"begin", "write", "write", "write", "commit", "commit", "roll back", "crash"}
			switch n := len(db.open); rapid.SampledFrom(steps).Draw(t, "step") {
			case "begin":
				db.begin()
			case "write":
				if n > 0 {
					id := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "row")
					db.write(rapid.IntRange(0, n-1).Draw(t, "by"), id, rapid.IntRange(0, 3).Draw(t, "gone") == 0)
				}
			case "commit":
				if n > 0 {
					i := rapid.IntRange(0, n-1).Draw(t, "which")
					for id := range db.open[i].writes {
						written[id] = true
					}
					db.end(i, true)
				}
			case "roll back":
				if n > 0 {
					db.end(rapid.IntRange(0, n-1).Draw(t, "which"), false)
				}
			case "crash":
				if rapid.IntRange(0, 3).Draw(t, "really") == 0 {
					db.crash(rapid.Bool().Draw(t, "restart"))
				}
			}
		}
		look := func() {
			written := map[string]bool{} // while the look was made
			db.during = func() {
				for range rapid.IntRange(0, 2).Draw(t, "during") {
					step(written)
				}
				if rapid.IntRange(0, 4).Draw(t, "reads fail") == 0 {
					db.down = 1
				}
			}
			if rapid.IntRange(0, 8).Draw(t, "question fails") == 0 {
				db.down = 1
			}
			_, err := f.Look(context.Background(), db, h)
			db.during, db.down = nil, 0
			if err != nil {
				require.ErrorIs(t, err, errDown)
				return
			}
			for id, r := range db.rows {
				if !written[id] {
					require.Equal(t, r.value, h.rows[id], "row %s", id)
				}
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 3).Draw(t, "look") == 0 {
				look()
			} else {
				step(map[string]bool{})
			}
		}
		_, err := f.Look(context.Background(), db, h)
		require.NoError(t, err)
		want := map[string]int{}
		for id, r := range db.rows {
			if r.value != 0 {
				want[id] = r.value
			}
		}
		require.Equal(t, want, h.rows)
	})
}

// TestNumbersThatAreGivenAgain: without the comparison after a crash this change would be missed.
func TestNumbersThatAreGivenAgain(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"server": true, "backends only": false} {
		db := newDatabase()
		h := &holder{db: db, rows: map[string]int{}}
		f := New(Config{Name: "rows"})
		look := func() Report {
			r, err := f.Look(t.Context(), db, h)
			require.NoError(t, err)
			return r
		}
		db.begin()
		db.end(0, false)
		require.Equal(t, First, look().Compared)
		require.Equal(t, NotCompared, look().Compared)
		db.crash(restart)
		db.begin() // has the number of the one that was rolled back, which the snapshot calls visible
		db.write(0, "a", false)
		db.end(0, true)
		visible, _ := sees("701:701:", db.rows["a"].changed)
		require.True(t, visible)
		require.Contains(t, []Reason{Restarted, Reconnected}, look().Compared, name)
		require.Len(t, h.rows, 1)
		require.Equal(t, NotCompared, look().Compared)
	}
}

// TestReasonsForComparisons: when everything is compared, and when changes are applied before that.
func TestReasonsForComparisons(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	h := &holder{db: db, rows: map[string]int{}}
	now := time.Unix(5000, 0)
	f := New(Config{Name: "rows", Clock: ClockOf(func() time.Time { return now }), CompareEvery: time.Minute, MostChanges: 2})
	change := func(ids ...string) {
		db.begin()
		for _, id := range ids {
			db.write(0, id, false)
		}
		db.end(0, true)
	}
	look := func(want Reason, applied int, differences int) {
		t.Helper()
		r, err := f.Look(t.Context(), db, h)
		require.NoError(t, err)
		require.Equal(t, want, r.Compared)
		require.Equal(t, applied, h.applied)
		require.Equal(t, differences, r.Differences)
	}
	require.False(t, f.Begun())
	change("a")
	look(First, 0, 1)
	require.True(t, f.Begun())
	change("b", "c")
	look(NotCompared, 1, 0)
	change("b", "c", "d")
	look(TooMany, 1, 3)
	change("b")
	f.CompareSoon()
	look(Asked, 2, 0)
	look(NotCompared, 3, 0)
	now = now.Add(time.Minute)
	h.rows["b"] = -1 // somebody's mistake
	look(Due, 4, 1)
	look(NotCompared, 5, 0)
	now = now.Add(-time.Hour)
	look(Due, 6, 0)
	f.Restart()
	look(First, 6, 0)

	// What was asked for is not forgotten when a look fails, and a failed question makes the next look compare.
	f.CompareSoon()
	db.down = 1
	_, err := f.Look(t.Context(), db, h)
	require.ErrorIs(t, err, errDown)
	look(Reconnected, 6, 0)
	look(NotCompared, 7, 0)
	f.CompareSoon()
	change("a")
	db.during = func() { db.down = 1 }
	_, err = f.Look(t.Context(), db, h)
	require.ErrorIs(t, err, errDown)
	db.during = nil
	look(Asked, 8, 0)

	f.CompareEvery(time.Hour, 0)
	now = now.Add(time.Hour - time.Second)
	look(NotCompared, 9, 0)
	now = now.Add(time.Second)
	look(Due, 10, 0)
}

// TestComparisonsTakeTheirShare: what takes long is made less often.
func TestComparisonsTakeTheirShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase()
		h := &holder{db: db, rows: map[string]int{}}
		f := New(Config{Name: "rows", CompareEvery: time.Minute, CompareShare: 50})
		r, err := f.Look(t.Context(), db, slowHolder{h})
		require.NoError(t, err)
		require.Equal(t, time.Now().Add(50*5*time.Second), r.NextCompare)
	})
}

type slowHolder struct{ *holder }

func (h slowHolder) Compare(ctx context.Context, why Reason) (int, error) {
	return 0, chassis.Wait(ctx, chassis.RealClock(), 5*time.Second)
}

// TestOneLookAtATime: a look that waits for another one ends with its context.
func TestOneLookAtATime(t *testing.T) {
	t.Parallel()
	db := newDatabase()
	f := New(Config{Name: "rows"})
	inside, leave := make(chan struct{}), make(chan struct{})
	db.during = func() { close(inside); <-leave }
	ended := make(chan error)
	h := &holder{db: db, rows: map[string]int{}}
	go func() {
		_, err := f.Look(context.Background(), db, h)
		ended <- err
	}()
	<-inside
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Look(ctx, db, h)
	require.ErrorIs(t, err, context.Canceled)
	close(leave)
	require.NoError(t, <-ended)
}

// runner is a Run under a clock that the test advances.
type runner struct {
	hints chan struct{}
	stop  func()

	mu    sync.Mutex
	db    *database
	log   bytes.Buffer
	heard []string
	// wanted is what Hint answers.
	wanted bool
}

// ChangesSince implements Source.
func (r *runner) ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.db.ChangesSince(ctx, snapshot, most)
}

func (r *runner) asked() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.db.asked
}

func (r *runner) topics() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.heard)
}

func (r *runner) set(wanted bool, down int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wanted, r.db.down = wanted, down
}

func run(t *testing.T) *runner {
	r := &runner{db: newDatabase(), hints: make(chan struct{}, 1), wanted: true}
	f := New(Config{
		Name: "rows", Log: slog.New(slog.NewTextHandler(&r.log, nil)), Tick: 10 * time.Second, Retry: time.Second,
		Hint: func(topics []string) bool {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.heard = append(r.heard, topics...)
			return r.wanted
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.run(ctx, r.hints, func() []string { return []string{"one"} }, r, &holder{db: r.db, rows: map[string]int{}})
	}()
	r.stop = func() { cancel(); <-ended }
	synctest.Wait()
	return r
}

func (r *runner) hint() {
	r.hints <- struct{}{}
	synctest.Wait()
}

// wait advances the clock of the test's bubble.
func wait(t *testing.T, d time.Duration) {
	require.NoError(t, chassis.Wait(t.Context(), chassis.RealClock(), d))
	synctest.Wait()
}

// TestRunLooksForHintsAndTicks: and not when the hints are about something else.
func TestRunLooksForHintsAndTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		require.Equal(t, 1, r.asked())
		require.Equal(t, []string{store.TopicAll}, r.topics())
		r.hint()
		require.Equal(t, 2, r.asked())
		require.Equal(t, []string{store.TopicAll, "one"}, r.topics())
		wait(t, 10*time.Second)
		require.Equal(t, 3, r.asked())
		require.Equal(t, []string{store.TopicAll, "one", store.TopicAll}, r.topics())
		r.set(false, 0)
		r.hint()
		wait(t, time.Minute)
		require.Equal(t, 3, r.asked())
		r.stop()
		require.Empty(t, r.log.String())
	})
}

// TestAFailingDatabaseIsAskedSeldom: hints are heard meanwhile, and the log has one line for the failure and one for its end.
func TestAFailingDatabaseIsAskedSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := run(t)
		defer r.stop()
		r.set(true, 5)
		for range 100 {
			r.hint()
		}
		require.Equal(t, 2, r.asked())
		require.Len(t, r.topics(), 101, "whoever waits for hints is told while the database fails")
		wait(t, time.Second)
		require.Equal(t, 3, r.asked())
		wait(t, 2*time.Second)
		require.Equal(t, 5, r.asked())
		r.set(false, 1) // what was wanted before is looked at all the same
		wait(t, time.Hour)
		require.Equal(t, 7, r.asked())
		r.stop()
		require.Equal(t, 1, strings.Count(r.log.String(), "cannot follow changes"), r.log.String())
		require.Equal(t, 1, strings.Count(r.log.String(), "followed again"), r.log.String())
	})
}

// TestStoppingIsNoFailure: a look that ends with its context is not reported.
func TestStoppingIsNoFailure(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	f := New(Config{Name: "rows", Log: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithCancel(t.Context())
	db := newDatabase()
	db.during = func() { cancel(); db.down = 1 }
	db.rows["a"] = row{1, 1}
	_, err := f.Look(ctx, db, &holder{db: db, rows: map[string]int{}})
	require.Error(t, err)
	require.Empty(t, log.String())
}
