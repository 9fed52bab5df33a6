// Package feed follows changes of rows in PostgreSQL. It is the one place of the manager that turns hints ("look again") into work.
//
// A Follower remembers the snapshot of its last successful look. A look asks a Source, in one statement, for the present snapshot and
// for what became visible since the remembered one, and hands the ids to a Consumer, which reads the rows and takes them over. Nothing is
// missed, in whatever order transactions commit (decision 0006). The ids only say what to read: a row that changes again while the
// consumer reads is named again by the next look.
//
// A full comparison is the safety net below that. It is made when a follower begins, from time to time, and whenever the remembered
// snapshot may mean nothing any more (Reason).
package feed

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/chassis"
)

// Kind is a kind of object that changes.
type Kind string

// The kinds of objects that the sources of this package name.
const (
	KindSession Kind = "session"
	KindAgent   Kind = "agent"
	KindGroup   Kind = "group"
	KindQuota   Kind = "quota" // without id: some limit changed
	KindCircuit Kind = "circuit"
	KindEvent   Kind = "event"  // the id is the sequence number
	KindObject  Kind = "object" // the id is the sequence number in object_changes
	KindRights  Kind = "rights" // the id is a subject of rights_epochs
)

// Changes are the ids of changed objects by kind, each id once, in no order.
type Changes map[Kind][]string

// Server tells database servers, and lives of one server, from each other. Transaction numbers are compared within one life only:
// after a crash PostgreSQL may give numbers again that had been given to transactions which were lost.
type Server struct {
	Started time.Time
	// Recovered is when the server last began its statistics anew, which it does after every crash, also after one that the postmaster
	// survived. It comes with the answer itself, so it cannot be late as the count of connections can.
	Recovered time.Time
	// Connections is store.Store.Connections before the question: it differs after a crash that the postmaster survived.
	Connections int64
}

func (s Server) same(o Server) bool {
	return s.Started.Equal(o.Started) && s.Recovered.Equal(o.Recovered) && s.Connections == o.Connections
}

// Answer is what a source says.
type Answer struct {
	Snapshot string
	Server   Server
	Changes  Changes
	// TooMany says that Changes are not all.
	TooMany bool
}

// Source is asked what became visible since an earlier snapshot; "" stands for no earlier one, then there are no changes.
// It names at most that many changes. The snapshot that it returns must be that of the statement which looked for the changes.
type Source interface {
	ChangesSince(ctx context.Context, snapshot string, most int) (Answer, error)
}

// Consumer holds what is followed. Both methods read the present state of rows. When one fails, everything since the last
// successful look is handed over again, so both must stand being repeated.
type Consumer interface {
	// Apply takes over what changed. It is called by every look that makes no full comparison instead, also without changes.
	Apply(ctx context.Context, changes Changes) error
	// Compare takes over everything and returns how many objects differed.
	Compare(ctx context.Context, why Reason) (differences int, err error)
}

// Reason says why a full comparison was made.
type Reason string

// The reasons for a full comparison. Before Asked and Due the changes have been applied: what still differs was missed. All others
// come instead of the changes.
const (
	NotCompared Reason = ""
	First       Reason = "first look"
	Restarted   Reason = "the database server was started again"
	Recovered   Reason = "the database server recovered from a crash"
	Reconnected Reason = "connections to the database were lost"
	TooMany     Reason = "too many changes"
	Asked       Reason = "asked for"
	Due         Reason = "due"
)

// Missed reports whether what a comparison for this reason finds had been missed by looks.
func (r Reason) Missed() bool { return r == Asked || r == Due }

// Config says what a Follower does besides looking.
type Config struct {
	// Name is what is followed, for the log: "circuits".
	Name string
	// Log is told once when looks begin to fail and once when they succeed again; nil when whoever calls Look reports errors.
	Log *slog.Logger
	// Clock nil is the real one.
	Clock chassis.Clock
	// CompareEvery is the time between full comparisons; 0 makes none without another reason.
	CompareEvery time.Duration
	// CompareShare, if not 0, keeps full comparisons from taking more than one part in this many of the time.
	CompareShare int
	// MostChanges bounds what one look hands over; beyond it a full comparison is made. 0 means 50,000.
	MostChanges int

	// What follows is used by Run only.

	// Topics selects the hints; nil takes all.
	Topics func(topic string) bool
	// Hint is told of hints and reports whether rows must be looked at; nil looks at every hint. It gets store.TopicAll at
	// the beginning and with every tick, because hints may be lost.
	Hint func(topics []string) bool
	// Tick is the time between looks without any hint.
	Tick time.Duration
	// Retry is the time until a database that failed is asked again, whatever hints say; 0 means Tick.
	Retry time.Duration
}

const mostChanges = 50_000

// Follower follows the changes of one set of rows. It is safe for concurrent use; looks are made one after the other.
type Follower struct {
	cfg  Config
	gate chan struct{} // holds an item while a look is made

	restart, asked atomic.Bool
	begun          atomic.Bool

	// Of the look under way.
	snapshot   string // of the last successful look; "" before the first
	server     Server
	unsure     bool // the source could not be asked since
	failed     bool
	comparedAt time.Time
	compareAt  time.Time
}

// New makes a follower that has looked at nothing yet.
func New(cfg Config) *Follower {
	if cfg.Clock == nil {
		cfg.Clock = chassis.RealClock()
	}
	if cfg.MostChanges <= 0 {
		cfg.MostChanges = mostChanges
	}
	if cfg.Retry <= 0 {
		cfg.Retry = cfg.Tick
	}
	return &Follower{cfg: cfg, gate: make(chan struct{}, 1)}
}

// Report is what a look did.
type Report struct {
	// Compared says why everything was compared; NotCompared when it was not.
	Compared Reason
	// Differences is what the comparison found.
	Differences int
	// NextCompare is when the next comparison is due; zero is never.
	NextCompare time.Time
}

// Begun reports whether a look has succeeded yet.
func (f *Follower) Begun() bool { return f.begun.Load() }

// Restart forgets what was seen: the next look is a first one.
func (f *Follower) Restart() { f.restart.Store(true) }

// CompareSoon makes the next look compare everything.
func (f *Follower) CompareSoon() { f.asked.Store(true) }

// CompareEvery changes how often everything is compared. The next comparison is due that long from now.
func (f *Follower) CompareEvery(every time.Duration, share int) {
	f.gate <- struct{}{}
	defer func() { <-f.gate }()
	f.cfg.CompareEvery, f.cfg.CompareShare = every, share
	f.comparedAt = f.cfg.Clock.Now()
	f.compareAt = f.comparedAt.Add(every)
}

// Look brings the consumer up to date. After an error the next look begins where this one did.
func (f *Follower) Look(ctx context.Context, s Source, c Consumer) (Report, error) {
	select {
	case f.gate <- struct{}{}:
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
	defer func() { <-f.gate }()
	r, err := f.look(ctx, s, c)
	f.report(ctx, err)
	return r, err
}

func (f *Follower) look(ctx context.Context, s Source, c Consumer) (r Report, err error) {
	if f.restart.Swap(false) {
		f.snapshot = ""
	}
	asked := f.asked.Swap(false)
	defer func() {
		if err != nil && asked {
			f.asked.Store(true)
		}
	}()
	answer, err := s.ChangesSince(ctx, f.snapshot, f.cfg.MostChanges)
	if err != nil {
		f.unsure = f.unsure || ctx.Err() == nil
		return r, fmt.Errorf("ask what changed of %s: %w", f.cfg.Name, err)
	}
	began := f.cfg.Clock.Now()
	r.Compared = f.reason(&answer, asked, began)
	if r.Compared == NotCompared || r.Compared.Missed() {
		if err := c.Apply(ctx, answer.Changes); err != nil {
			return r, fmt.Errorf("take over what changed of %s: %w", f.cfg.Name, err)
		}
	}
	if r.Compared != NotCompared {
		if r.Differences, err = c.Compare(ctx, r.Compared); err != nil {
			return r, fmt.Errorf("compare all %s: %w", f.cfg.Name, err)
		}
		f.comparedAt = f.cfg.Clock.Now()
		f.compareAt = f.comparedAt.Add(max(f.cfg.CompareEvery, time.Duration(f.cfg.CompareShare)*f.comparedAt.Sub(began)))
	}
	// Only now: a look that failed half-way is made again from where it began.
	f.snapshot, f.server, f.unsure = answer.Snapshot, answer.Server, false
	f.begun.Store(true)
	if f.cfg.CompareEvery > 0 {
		r.NextCompare = f.compareAt
	}
	return r, nil
}

// reason decides whether everything is compared, and why.
func (f *Follower) reason(a *Answer, asked bool, now time.Time) Reason {
	switch {
	case f.snapshot == "":
		return First
	case !a.Server.Started.Equal(f.server.Started):
		return Restarted
	case !a.Server.Recovered.Equal(f.server.Recovered):
		return Recovered
	case !a.Server.same(f.server), f.unsure:
		return Reconnected
	case a.TooMany:
		return TooMany
	case asked:
		return Asked
	case f.cfg.CompareEvery > 0 && (!now.Before(f.compareAt) || now.Before(f.comparedAt)):
		return Due
	}
	return NotCompared
}

// report tells the log of the first failure in a row and of the success that ends it.
func (f *Follower) report(ctx context.Context, err error) {
	switch {
	case err != nil && ctx.Err() != nil: // the caller gave up
	case err != nil && !f.failed:
		f.failed = true
		if f.cfg.Log != nil {
			f.cfg.Log.Warn("cannot follow changes in the database; going on with what is known", "of", f.cfg.Name, "error", err)
		}
	case err == nil && f.failed:
		f.failed = false
		if f.cfg.Log != nil {
			f.cfg.Log.Info("changes in the database are followed again", "of", f.cfg.Name)
		}
	}
}
