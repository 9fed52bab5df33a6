package simulation

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	agentlink "berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/manager/link/ca"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session/scheduling"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
	wirenode "berth.dev/berth/internal/wire/node"
)

// The times of the simulated cluster: the documented defaults, with a slower sweep, which costs transactions.
const (
	lease      = 30 * time.Second
	lostGrace  = 5 * time.Minute
	sweepEvery = 10 * time.Second
)

// seat is a place where a manager runs, with its way to the database. It outlives the manager's processes.
type seat struct {
	s        *sim
	n        int
	frozen   way // blocked while the process is stopped
	database way // blocked while this manager alone cannot reach the database

	mu    sync.Mutex
	role  *managerRole // nil while no process runs
	lives int
}

func (p *seat) name() string { return fmt.Sprintf("manager %d", p.n) }

// address is what agents know the manager by.
func (p *seat) address() string { return fmt.Sprintf("manager-%d:1", p.n) }

func (p *seat) manager() *managerRole {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.role
}

// managerRole is one life of a manager: its use cases and loops on the database, and the real link to agents on simulated streams.
type managerRole struct {
	s      *sim
	seat   *seat
	ctx    context.Context
	cancel context.CancelFunc
	dead   atomic.Bool
	// random is what ids are made of; it begins anew with each call, so that ids do not depend on the order of calls.
	random mathrand.ChaCha8
	life   int // which process of the seat it is
	link   *agentlink.Link
	nouns  *nouns.Set
	loops  []reconcile.Loop
	group  sync.WaitGroup
	// schedule has an item when the scheduling loop shall look.
	schedule chan struct{}
	// kill is what happens at the next transaction: 0 nothing, 1 the manager dies before it, 2 after it.
	kill atomic.Int32
	// restartAfter is how long it stays away then.
	restartAfter atomic.Int64

	mu    sync.Mutex
	conns map[*conn]*machine
	calls map[string]int                                  // by what was called
	last  map[cluster.AgentID][]cluster.KernelObservation // the last report, for one that comes late
	told  map[cluster.AgentID]int                         // how many reports came
	asked map[cluster.AgentID]int                         // how often the desired state was read
}

// outsideClock tells the simulated time to code that runs outside of its bubble; it has no timers there.
type outsideClock struct {
	chassis.Clock
	now func() time.Time
}

func (c outsideClock) Now() time.Time { return c.now() }

// boot starts a manager.
func (p *seat) boot() error {
	s := p.s
	m := &managerRole{s: s, seat: p, schedule: make(chan struct{}, 1), conns: map[*conn]*machine{}, calls: map[string]int{},
		last: map[cluster.AgentID][]cluster.KernelObservation{}, told: map[cluster.AgentID]int{},
		asked: map[cluster.AgentID]int{}}
	m.ctx, m.cancel = context.WithCancel(s.ctx)
	p.lives++
	m.life = p.lives
	d := s.db.deps
	d.Clock = s.clock
	d.IDs = tenancy.RandomIDs(&m.random)
	err := s.db.do(time.Now(), func(context.Context) error {
		var err error
		clock := outsideClock{chassis.RealClock(), s.clock}
		planner := scheduling.NewPlanner(s.db.store, clock)
		d.Explainer = planner
		if m.nouns, err = nouns.New(d); err != nil {
			return err
		}
		sched, err := scheduling.New(scheduling.DefaultConfig(), scheduling.Deps{Store: s.db.store, Clock: clock, Planner: planner, Log: s.log})
		if err != nil {
			return err
		}
		sweep := m.nouns.Reports.Loop(node.SweepConfig{Every: sweepEvery, Lease: lease, LostGrace: lostGrace})
		m.loops = []reconcile.Loop{sched.Loops()[0], sweep}
		return nil
	})
	if err != nil {
		return fmt.Errorf("start %s: %w", p.name(), err)
	}
	cfg := agentlink.DefaultConfig()
	cfg.Listen, cfg.Lease = "127.0.0.1:0", lease
	m.link, err = agentlink.New(cfg, agentlink.Deps{ClusterID: "simulation", Sink: sink{m.nouns.Reports, m}, Vault: s.vault,
		Clock: chassis.RealClock(), Random: rand.Reader, Log: s.log})
	if err != nil {
		return err
	}
	// The port is opened and never listened on: the simulation hands in streams.
	if err := m.link.Start(m.ctx); err != nil {
		return err
	}
	m.group.Go(m.campaign)
	m.group.Go(func() { m.link.RenewLeases(m.ctx) })
	p.mu.Lock()
	p.role = m
	p.mu.Unlock()
	s.note("%s starts", p.name())
	return nil
}

// enter is passed before everything that the manager does to its surroundings: a stopped process waits there, a dead one goes no further.
// The context may end while the process is stopped; that is noticed when it goes on.
func (m *managerRole) enter(ctx context.Context) error {
	if err := m.seat.frozen.pass(m.ctx); err != nil || m.dead.Load() {
		return errDead
	}
	return ctx.Err()
}

func (m *managerRole) token(id string) (wirenode.JoinToken, error) {
	who, err := ca.NodeOf(id)
	if err != nil {
		return wirenode.JoinToken{}, err
	}
	token, _, err := m.link.Authority().NewToken(m.ctx, ca.TokenRequest{Node: who, By: "simulation"})
	return token, err
}

// accept serves the manager's end of a stream.
func (m *managerRole) accept(c *conn, h *machine) {
	m.mu.Lock()
	m.conns[c] = h
	m.mu.Unlock()
	ctx := peer.NewContext(c.manager, &peer.Peer{Addr: &net.UnixAddr{Name: h.id}, AuthInfo: credentials.TLSInfo{State: h.tls}})
	m.group.Go(func() {
		_ = m.link.Session(&managerEnd{c: c, ctx: ctx, role: m})
		c.leaveManager()
		m.mu.Lock()
		delete(m.conns, c)
		m.mu.Unlock()
	})
}

var errDead = fault.Unavailablef("the manager was killed")

// call runs one use case or one pass of a loop, which is one transaction or a few: the database may be away, and the manager may be
// stopped or killed before or after it. What it wakes is woken a moment later.
func (m *managerRole) call(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if err := m.enter(ctx); err != nil {
		return err
	}
	if err := m.s.outage(ctx, m.seat, what); err != nil {
		return err
	}
	if err := m.enter(ctx); err != nil {
		return err
	}
	if m.kill.Load() == 1 {
		m.die("before " + what)
		return errDead
	}
	var topics []string
	now := time.Now()
	err := m.s.db.do(now, func(ctx context.Context) error {
		m.calls[what]++
		m.random.Seed(m.s.seed(m.seat.n, m.life, what, m.calls[what]))
		err := fn(ctx)
		topics = m.s.db.wakes.Take()
		m.s.look(ctx, now)
		return err
	})
	m.s.announce()
	m.s.wake(topics, m.seat.name()+what, now)
	if m.kill.Load() == 2 {
		m.die("after " + what)
	}
	if gone := m.enter(m.ctx); gone != nil {
		return gone
	}
	return err
}

// wake tells every manager what a transaction changed, each a moment later: PostgreSQL does, whatever became of who made the change.
func (s *sim) wake(topics []string, what string, now time.Time) {
	for _, topic := range topics {
		agent, isAgent := strings.CutPrefix(topic, "agent:")
		if !isAgent && topic != store.TopicSchedule && topic != store.TopicAll {
			continue
		}
		for _, p := range s.seats {
			time.AfterFunc(time.Duration(s.chance(3_000_000, what, now.Sub(s.began), topic, p.n)), func() {
				m := p.manager()
				switch {
				case m == nil:
				case isAgent:
					m.link.Wake(cluster.AgentID(agent))
				default:
					select {
					case m.schedule <- struct{}{}:
					default:
					}
				}
			})
		}
	}
}

func (m *managerRole) die(when string) {
	if !m.dead.CompareAndSwap(false, true) {
		return
	}
	m.s.note("%s is killed %s", m.seat.name(), when)
	m.seat.mu.Lock()
	m.seat.role = nil
	m.seat.mu.Unlock()
	m.cancel()
	m.s.group.Go(func() {
		m.stop()
		if wait(m.s.ctx, time.Duration(m.restartAfter.Load())+time.Millisecond) == nil {
			m.s.must(m.seat.boot())
		}
	})
}

// stop waits until nothing of a dead manager is left.
func (m *managerRole) stop() {
	m.dead.Store(true)
	m.cancel()
	m.mu.Lock()
	for c := range m.conns {
		c.leaveManager()
	}
	m.mu.Unlock()
	m.group.Wait()
	_ = m.link.Stop(context.Background())
}
