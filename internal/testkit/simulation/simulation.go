// Package simulation runs a cluster in one process on simulated time: the manager's use cases, loops and link on a real PostgreSQL, the
// agents' keepers, ledgers and links on engines in memory, and between them a network that is slow, cut and partitioned. Seeds decide about
// load and faults; after every transaction the promises of the platform are checked. docs/proving-ground.md tells what it covers.
//
// Only tests import it.
package simulation

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"berth.dev/berth/internal/agent/runtime/fake"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// Violation is a promise that was broken.
type Violation struct {
	At   time.Duration
	Rule string
	Text string
}

func (v *Violation) String() string { return fmt.Sprintf("at %s: %s: %s", stamp(v.At), v.Rule, v.Text) }

// Result is what became of one run.
type Result struct {
	Violation *Violation // nil when every promise held
	// History is what happened, a line an event.
	History []string
	// Lasted is the simulated time, Calls the number of the manager's transactions and passes.
	Lasted time.Duration
	Calls  int
	// Ended counts sessions by how they ended.
	Ended map[string]int
}

// sim is one run of a plan.
type sim struct {
	plan   Plan
	db     *Database
	log    *slog.Logger
	dir    string
	vault  *managertest.Vault
	ctx    context.Context
	cancel context.CancelFunc
	group  sync.WaitGroup
	began  time.Time
	seats  []*seat
	hosts  []*machine

	election election
	reports  atomic.Int64 // percent of reports that suffer

	mu         sync.Mutex
	history    []string
	violation  *Violation
	announced  bool
	broken     chan struct{} // closed with the first violation
	out        chan struct{} // the database is away until it is closed; nil while it answers
	refuses    bool
	trouble    map[string]time.Time        // when a part last had a fault; zero while it has one
	sessions   map[int][]cluster.SessionID // by the event that asked for them
	created    map[cluster.SessionID]bool  // the owner was told so
	asked      map[cluster.SessionID]bool  // the owner was told that it ends
	epochs     map[cluster.AgentID]int64   // the newest stream of each agent
	reported   map[cluster.AgentID]report  // the newest report of each agent
	published  map[string]target           // circuits that somebody was told of
	stale      []staleWrite
	calls      int
	checks     checks
	troubleNow map[string]int
}

// everything is the part of faults that are of no single agent.
const everything = "all"

// Run runs a plan in a bubble of simulated time.
func Run(t *testing.T, db *Database, p Plan) (r Result) {
	t.Helper()
	dir, err := os.MkdirTemp(fastDir(), "berth-sim-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	// The database's clock must be near the real one: some times are compared with it.
	start := time.Now().Add(-12 * time.Hour).Truncate(time.Second)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(start))
		s := &sim{plan: p, db: db, log: slog.New(slog.DiscardHandler), dir: dir, vault: &managertest.Vault{}, began: start,
			broken: make(chan struct{}), trouble: map[string]time.Time{}, troubleNow: map[string]int{}, sessions: map[int][]cluster.SessionID{},
			created: map[cluster.SessionID]bool{}, asked: map[cluster.SessionID]bool{}, epochs: map[cluster.AgentID]int64{},
			reported: map[cluster.AgentID]report{}, published: map[string]target{},
			checks: newChecks()}
		s.ctx, s.cancel = context.WithCancel(context.Background())
		r = s.run()
	})
	return r
}

// fastDir is a directory in memory where there is one: ledgers are written durably.
func fastDir() string {
	if st, err := os.Stat("/dev/shm"); err == nil && st.IsDir() {
		return "/dev/shm"
	}
	return ""
}

// clock is the simulated time, also for code outside of the bubble, where it stands still.
func (s *sim) clock() time.Time { return s.db.now }

func (s *sim) since() time.Duration { return time.Since(s.began) }

// note adds a line to the history.
func (s *sim) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, fmt.Sprintf("%9s  ", stamp(s.since()))+fmt.Sprintf(format, args...))
}

// fail notes the first broken promise, also from outside of the bubble; announce then ends the run.
func (s *sim) fail(at time.Duration, rule, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.violation == nil {
		s.violation = &Violation{at, rule, fmt.Sprintf(format, args...)}
	}
}

// announce ends the run when a promise was broken. It belongs into the bubble, as the channel does.
func (s *sim) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.violation != nil && !s.announced {
		s.announced = true
		close(s.broken)
	}
}

// must ends the run when the simulation itself fails.
func (s *sim) must(err error) {
	if err != nil && s.ctx.Err() == nil {
		s.fail(s.since(), "the simulation works", "%v", err)
		s.announce()
	}
}

// addresses are those of all managers.
func (s *sim) addresses() (out []string) {
	for _, p := range s.seats {
		out = append(out, p.address())
	}
	return out
}

// seatOf is the manager that a fault is about.
func (s *sim) seatOf(e Event) *seat {
	n := 0
	if m, _ := s.election.leader(time.Now()); m != nil {
		n = m.seat.n
	}
	if e.N >= 2 {
		n++
	}
	return s.seats[n%len(s.seats)]
}

func (s *sim) run() Result {
	defer func() {
		for _, h := range s.hosts {
			h.engine.Close()
		}
	}()
	s.must(s.db.reset(time.Now()))
	for i := range s.plan.Agents {
		h, err := s.newMachine(i)
		s.must(err)
		s.hosts = append(s.hosts, h)
	}
	for i := range s.plan.Managers {
		s.seats = append(s.seats, &seat{s: s, n: i})
	}
	// The others start when there is an authority for certificates and every agent has one.
	s.must(s.seats[0].boot())
	if m := s.seats[0].manager(); m != nil {
		for _, h := range s.hosts {
			s.must(h.join(m))
		}
	}
	for _, p := range s.seats[1:] {
		s.must(p.boot())
	}
	for _, h := range s.hosts {
		s.must(h.boot())
	}
	if s.untilAfter(5*time.Second) && s.events() {
		s.note("all faults end")
		s.heal()
		s.settle()
	}
	s.cancel()
	s.heal()
	for _, h := range s.hosts {
		h.kill()
	}
	for _, p := range s.seats {
		if m := p.manager(); m != nil {
			m.stop()
		}
	}
	s.group.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return Result{Violation: s.violation, History: s.history, Lasted: s.since(), Calls: s.calls, Ended: s.checks.ended()}
}

// untilAfter lets time go by; false when a promise was broken meanwhile.
func (s *sim) untilAfter(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		synctest.Wait()
		return s.fine()
	case <-s.broken:
		return false
	}
}

func (s *sim) fine() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.violation == nil
}

// events plays the plan.
func (s *sim) events() bool {
	order := make([]int, 0, len(s.plan.Events))
	for i := range s.plan.Events {
		order = append(order, i)
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(s.plan.Events[a].At - s.plan.Events[b].At) })
	start := s.since()
	last := time.Duration(0)
	for _, i := range order {
		e := s.plan.Events[i]
		if e.Kind == "" {
			continue
		}
		if !s.untilAfter(max(0, start+e.At-s.since())) {
			return false
		}
		s.note("#%d %s", i, strings.TrimSpace(e.String()))
		s.play(i, e)
		last = max(last, e.At+e.For)
	}
	return s.untilAfter(max(0, start+min(last, active)+5*time.Second-s.since()))
}

func (s *sim) play(i int, e Event) {
	switch e.Kind {
	case Create, Batch, Gang:
		s.group.Go(func() { s.create(i, e) })
		return
	case Destroy, DestroyForced:
		s.group.Go(func() { s.destroy(e.N, e.Kind == DestroyForced) })
		return
	case Publish:
		s.group.Go(func() { s.publish(e.N) })
		return
	}
	if e.ofManager() {
		s.playManager(s.seatOf(e), e)
		return
	}
	h := s.hosts[e.Agent%len(s.hosts)]
	lines := func(do func(*line)) func() {
		return func() {
			for i := range h.lines {
				do(&h.lines[i])
			}
		}
	}
	switch e.Kind {
	case Cut:
		s.cut(h)
	case Partition:
		s.during(h.id, e.For, lines((*line).block), lines((*line).free))
	case PartitionUp:
		s.during(h.id, e.For, lines(func(l *line) { l.up.block() }), lines(func(l *line) { l.up.free() }))
	case PartitionDown:
		s.during(h.id, e.For, lines(func(l *line) { l.down.block() }), lines(func(l *line) { l.down.free() }))
	case Slow:
		d := time.Duration(e.N) * time.Millisecond
		s.during(h.id, e.For, lines(func(l *line) { l.slow(d) }), lines(func(l *line) { l.slow(0) }))
	case Reports:
		s.during(everything, e.For, func() { s.reports.Store(int64(e.N)) }, func() { s.reports.Store(0) })
	case KillAgent:
		s.killAgent(h, e)
	case SuspendAgent:
		s.during(h.id, e.For, h.frozen.block, h.frozen.free)
	case DatabaseRefuses, DatabaseHangs:
		s.during(everything, e.For, func() { s.takeDatabase(e.Kind == DatabaseRefuses) }, s.giveDatabase)
	case EngineFails:
		s.touchTrouble(h.id)
		h.engine.Inject(fake.Fault{Method: fake.Start, Err: fault.Unavailablef("the engine stumbled"), After: e.N > 0, Times: 1})
	case EngineHangs:
		back := func() {}
		s.during(h.id, e.For, func() { back = h.engine.Inject(fake.Fault{Method: fake.Start, Hang: true}) }, func() { back() })
	case EngineLost:
		s.during(h.id, e.For, h.engine.Lose, h.engine.Restore)
	case DiskFull:
		s.during(h.id, e.For, func() { h.full.Store(true) }, func() { h.full.Store(false) })
	case DiskSlow:
		s.during(h.id, e.For, func() { h.slow.Store(int64(e.N) * int64(time.Millisecond)) }, func() { h.slow.Store(0) })
	case ClockStep:
		s.touchTrouble(h.id)
		h.step.Add(int64(e.N) * int64(time.Second))
	}
}

// playManager plays a fault of one manager. Where there is another one, the cluster is held to its promises meanwhile, after the time
// that everybody needs to notice.
func (s *sim) playManager(p *seat, e Event) {
	part := everything
	if len(s.seats) > 1 {
		part = p.name()
		s.touchTrouble(everything)
	}
	switch e.Kind {
	case KillManager:
		if m := p.manager(); m != nil {
			m.restartAfter.Store(int64(e.For))
			m.kill.Store(int32(1 + e.N%2))
			s.during(part, e.For+time.Second, func() {}, func() {})
		}
	case SuspendManager:
		s.during(part, e.For, p.frozen.block, p.frozen.free)
	case CutDatabase:
		s.during(part, e.For, p.database.block, p.database.free)
	case IsolateManager:
		lines := func(do func(*line)) func() {
			return func() {
				for _, h := range s.hosts {
					do(&h.lines[p.n])
				}
			}
		}
		s.during(part, e.For, lines((*line).block), lines((*line).free))
	}
}

// during makes a fault last for a while, at most until all faults end.
func (s *sim) during(part string, d time.Duration, begin, end func()) {
	end = sync.OnceFunc(end)
	s.mu.Lock()
	s.troubleNow[part]++
	s.mu.Unlock()
	begin()
	s.group.Go(func() {
		_ = wait(s.ctx, min(d, max(0, active-s.since())))
		end()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.trouble[part] = time.Now()
		if s.unmanaged() {
			s.trouble[everything] = time.Now()
		}
		s.troubleNow[part]--
	})
}

// unmanaged reports whether every manager has a fault, which excuses the cluster although a single one does not. The caller holds mu.
func (s *sim) unmanaged() bool {
	for _, p := range s.seats {
		if s.troubleNow[p.name()] == 0 {
			return false
		}
	}
	return true
}

func (s *sim) touchTrouble(part string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trouble[part] = time.Now()
}

// calm is for how long a part and what all share have had no fault.
func (s *sim) calm(part string, now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmanaged() {
		return 0
	}
	out := time.Duration(math.MaxInt64)
	for _, p := range []string{part, everything} {
		if s.troubleNow[p] > 0 {
			return 0
		}
		if at, ok := s.trouble[p]; ok {
			out = min(out, now.Sub(at))
		}
	}
	m, since := s.election.leader(now)
	if m == nil {
		return 0
	}
	return min(out, now.Sub(since))
}

func (s *sim) cut(h *machine) {
	s.touchTrouble(h.id)
	for _, p := range s.seats {
		m := p.manager()
		if m == nil {
			continue
		}
		m.mu.Lock()
		for c, of := range m.conns {
			if of == h {
				c.cut()
			}
		}
		m.mu.Unlock()
	}
}

func (s *sim) killAgent(h *machine, e Event) {
	p := h.process()
	if p == nil {
		return
	}
	p.onDeath = func() {
		s.during(h.id, e.For, func() {}, func() {})
		s.group.Go(func() {
			h.kill()
			if wait(s.ctx, e.For) == nil {
				s.must(h.boot())
			}
		})
	}
	p.killAt.Store(int64(e.N))
}

func (s *sim) takeDatabase(refuses bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out == nil {
		s.out, s.refuses = make(chan struct{}), refuses
	}
}

func (s *sim) giveDatabase() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.out != nil {
		close(s.out)
		s.out = nil
	}
}

// outage is passed before every use of the database.
func (s *sim) outage(ctx context.Context, p *seat, what string) error {
	if err := p.database.pass(ctx); err != nil {
		return err
	}
	for {
		s.mu.Lock()
		out, refuses := s.out, s.refuses
		s.mu.Unlock()
		if out == nil {
			return ctx.Err()
		}
		if refuses {
			return fault.Unavailablef("PostgreSQL does not answer")
		}
		select {
		case <-out: // those who waited go on one after the other
			if err := wait(ctx, time.Duration(s.chance(int(5*time.Millisecond), "outage", p.n, what))); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// heal ends all faults. Processes that are away come back by themselves.
func (s *sim) heal() {
	s.giveDatabase()
	s.reports.Store(0)
	for _, p := range s.seats {
		p.frozen.free()
		p.database.free()
		if m := p.manager(); m != nil {
			m.kill.Store(0)
		}
	}
	for _, h := range s.hosts {
		for i := range h.lines {
			h.lines[i].free()
			h.lines[i].slow(0)
		}
		h.frozen.free()
		h.full.Store(false)
		h.slow.Store(0)
		h.engine.Restore()
		if p := h.process(); p != nil {
			p.killAt.Store(0)
		}
	}
}

// create asks for a session, again and again while no manager can take it: only what was acknowledged counts.
func (s *sim) create(i int, e Event) {
	r := request.Session{Name: fmt.Sprintf("session-%d", i), Type: cluster.Interactive, Image: imageName,
		Resources: map[string]string{"cpu": fmt.Sprint(e.Cores), "mem": "128m"}}
	if e.batch() {
		r.Type, r.StartupCommand = cluster.Batch, fmt.Sprintf("print(1); sleep %.3f; exit 0", e.For.Seconds())
	}
	if e.Kind == Gang {
		r.ClusterSize, r.ClusterMode = e.N, "multi-node"
	}
	s.insist(fmt.Sprint("create ", i), func(ctx context.Context, m *managerRole) (acknowledge func(), err error) {
		got, err := m.nouns.Sessions.Create(ctx, s.db.owners[e.Owner].actor, r)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.Contains(s.sessions[i], got.ID) {
			s.sessions[i] = append(s.sessions[i], got.ID)
		}
		return func() { s.created[got.ID] = true }, nil
	})
}

// destroy asks for the end of what an event of the plan made, by force where it is between two states.
func (s *sim) destroy(of int, forced bool) {
	s.mu.Lock()
	ids := slices.Clone(s.sessions[of])
	s.mu.Unlock()
	for _, id := range ids {
		s.insist(fmt.Sprint("destroy ", of, id), func(ctx context.Context, m *managerRole) (acknowledge func(), err error) {
			_, err = m.nouns.Sessions.Destroy(ctx, s.db.owners[0].actor, string(id), session.DestroyOptions{Forced: forced})
			if fault.Is(err, fault.Denied) || fault.Is(err, fault.NotFound) {
				return func() {}, nil // it has ended, or its owner would have to use force
			}
			return func() { s.asked[id] = true }, err
		})
	}
}

// The patience of users: how long they wait for an answer, and how long a manager goes on with a request that came in.
const (
	userPatience   = 10 * time.Second
	requestTimeout = 30 * time.Second
)

// insist tries a user's request for a while, at any manager that runs; users stop trying. A request whose answer did not come may be
// carried out all the same, even later.
func (s *sim) insist(what string, fn func(ctx context.Context, m *managerRole) (acknowledge func(), err error)) {
	for try := range 20 {
		if m := s.someManager(what, try); m != nil {
			done, err := s.ask(what, m, fn)
			if done || s.ctx.Err() != nil {
				return
			}
			if err != nil && !fault.Is(err, fault.Unavailable) && !fault.Is(err, fault.Conflict) && !errors.Is(err, context.DeadlineExceeded) {
				s.must(fmt.Errorf("a request is refused: %w", err))
				return
			}
		}
		if wait(s.ctx, time.Second+time.Duration(s.chance(int(time.Second), what, try))) != nil {
			return
		}
	}
}

// ask makes one attempt at a request; err is nil without being done when no answer came.
func (s *sim) ask(what string, m *managerRole, fn func(ctx context.Context, m *managerRole) (func(), error)) (done bool, err error) {
	type answer struct {
		acknowledge func()
		err         error
	}
	answers := make(chan answer, 1)
	s.group.Go(func() {
		limit, cancel := context.WithTimeout(s.ctx, requestTimeout)
		defer cancel()
		var a answer
		a.err = m.call(limit, what, func(ctx context.Context) (err error) {
			a.acknowledge, err = fn(ctx, m)
			return err
		})
		answers <- a
	})
	patience := time.NewTimer(userPatience)
	defer patience.Stop()
	select {
	case a := <-answers:
		if a.err != nil {
			return false, a.err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		a.acknowledge()
		return true, nil
	case <-patience.C:
		return false, nil
	}
}

// someManager is one that a user's request reaches; nil: none runs.
func (s *sim) someManager(what string, try int) *managerRole {
	n := s.chance(len(s.seats), "some manager", what) + try
	for i := range s.seats {
		if m := s.seats[(n+i)%len(s.seats)].manager(); m != nil {
			return m
		}
	}
	return nil
}

// settle ends every session and waits until nothing is left.
func (s *sim) settle() {
	if !s.untilAfter(30 * time.Second) {
		return
	}
	s.mu.Lock()
	var live []int
	for i := range s.sessions {
		live = append(live, i)
	}
	s.mu.Unlock()
	slices.Sort(live)
	end := s.since() + bound
	for {
		for _, i := range live {
			if !s.plan.Events[i].batch() {
				s.destroy(i, false)
			}
		}
		if !s.untilAfter(10 * time.Second) {
			return
		}
		rule, why := s.left()
		if why == "" {
			return
		}
		if s.since() > end {
			s.fail(s.since(), rule, "%s", why)
			return
		}
	}
}
