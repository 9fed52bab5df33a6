package simulation

import (
	"context"
	"crypto/rand"
	"encoding/binary"
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

// managerRole is one life of the manager: its use cases and loops on the database, and the real link to agents on simulated streams.
type managerRole struct {
	s      *sim
	ctx    context.Context
	cancel context.CancelFunc
	dead   atomic.Bool
	link   *agentlink.Link
	nouns  *nouns.Set
	loops  []reconcile.Work
	born   time.Time
	group  sync.WaitGroup
	// schedule has an item when the scheduling loop shall look.
	schedule chan struct{}
	// kill is what happens at the next transaction: 0 nothing, 1 the manager dies before it, 2 after it.
	kill atomic.Int32
	// restartAfter is how long it stays away then.
	restartAfter atomic.Int64

	mu    sync.Mutex
	conns map[*conn]*machine
	last  map[cluster.AgentID][]cluster.KernelObservation // the last report, for one that comes late
	told  map[cluster.AgentID]int                         // how many reports came
}

// simulatedClock tells the simulated time to code that runs outside of its bubble; it has no timers there.
type outsideClock struct {
	chassis.Clock
	now func() time.Time
}

func (c outsideClock) Now() time.Time { return c.now() }

func (s *sim) bootManager() error {
	m := &managerRole{s: s, schedule: make(chan struct{}, 1), conns: map[*conn]*machine{}, born: time.Now(),
		last: map[cluster.AgentID][]cluster.KernelObservation{}, told: map[cluster.AgentID]int{}}
	m.ctx, m.cancel = context.WithCancel(s.ctx)
	d := s.db.deps
	d.Clock = s.clock
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], s.plan.Seed)
	binary.LittleEndian.PutUint64(seed[8:], uint64(s.lives.Add(1)))
	d.IDs = tenancy.RandomIDs(mathrand.NewChaCha8(seed))
	err := s.db.do(time.Now(), func(ctx context.Context) error {
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
		var token int64
		err = s.db.store.Tx(ctx, func(ctx context.Context, tx *store.Tx) (err error) {
			token, err = tx.TakeLeadership(ctx, "simulation")
			return err
		})
		term := reconcile.NewTerm(s.db.store, token, "simulation")
		sweep := m.nouns.Reports.Loop(node.SweepConfig{Every: sweepEvery, Lease: lease, LostGrace: lostGrace})
		m.loops = []reconcile.Work{sched.Loops()[0].Begin(term), sweep.Begin(term)}
		return err
	})
	if err != nil {
		return fmt.Errorf("start the manager: %w", err)
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
	m.group.Go(func() { m.drive(m.loops[0], "schedule", m.schedule) })
	m.group.Go(func() { m.drive(m.loops[1], "sweep", nil) })
	m.group.Go(func() { m.link.RenewLeases(m.ctx) })
	s.mu.Lock()
	s.role = m
	s.mu.Unlock()
	s.note("the manager starts")
	return nil
}

// drive runs a loop as package reconcile does.
func (m *managerRole) drive(w reconcile.Work, name string, hints <-chan struct{}) {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	retry := chassis.Backoff{Min: 50 * time.Millisecond, Max: 2 * time.Second}
	for n := 0; ; n++ {
		select {
		case <-hints:
			if wait(m.ctx, 2*time.Millisecond) != nil {
				return
			}
		case <-timer.C:
		case <-m.ctx.Done():
			return
		}
		var rest time.Duration
		err := m.call(m.ctx, name, func(ctx context.Context) (err error) {
			rest, err = w.Pass(ctx)
			return err
		})
		if err != nil {
			if wait(m.ctx, retry.Next()) != nil {
				return
			}
			rest = 0
		} else {
			retry.Reset()
		}
		timer.Reset(rest + time.Duration(m.s.chance(1_000_000, name, n)))
	}
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
		_ = m.link.Session(&managerEnd{c: c, ctx: ctx})
		c.leaveManager()
		m.mu.Lock()
		delete(m.conns, c)
		m.mu.Unlock()
	})
}

var errDead = fault.Unavailablef("the manager was killed")

// call runs one use case or one pass of a loop, which is one transaction or a few: the database may be away, and the manager may be
// killed before or after it. What it wakes is woken a moment later.
func (m *managerRole) call(ctx context.Context, what string, fn func(ctx context.Context) error) error {
	if m.dead.Load() {
		return errDead
	}
	if err := m.s.outage(ctx, what); err != nil {
		return err
	}
	if m.dead.Load() {
		return errDead
	}
	if m.kill.Load() == 1 {
		m.die("before " + what)
		return errDead
	}
	var topics []string
	now := time.Now()
	err := m.s.db.do(now, func(ctx context.Context) error {
		err := fn(ctx)
		topics = m.s.db.wakes.Take()
		m.s.look(ctx, now, what)
		return err
	})
	m.s.announce()
	if m.kill.Load() == 2 {
		m.die("after " + what)
		return errDead
	}
	for _, topic := range topics {
		agent, isAgent := strings.CutPrefix(topic, "agent:")
		if !isAgent && topic != store.TopicSchedule && topic != store.TopicAll {
			continue
		}
		time.AfterFunc(time.Duration(m.s.chance(3_000_000, what, now.Sub(m.s.began), topic)), func() {
			switch {
			case m.dead.Load():
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
	return err
}

func (m *managerRole) die(when string) {
	if !m.dead.CompareAndSwap(false, true) {
		return
	}
	m.s.note("the manager is killed %s", when)
	m.s.mu.Lock()
	m.s.role = nil
	m.s.mu.Unlock()
	m.cancel()
	m.s.group.Go(func() {
		m.stop()
		if wait(m.s.ctx, time.Duration(m.restartAfter.Load())+time.Millisecond) == nil {
			m.s.must(m.s.bootManager())
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
	for _, w := range m.loops {
		if w.End != nil {
			w.End()
		}
	}
}

// sink is where the link's reports go, with the faults of messages.
type sink struct {
	r *node.Reports
	m *managerRole
}

func (k sink) Register(ctx context.Context, h cluster.NodeHello) (epoch int64, err error) {
	err = k.m.call(ctx, "register "+string(h.Agent), func(ctx context.Context) (err error) {
		epoch, err = k.r.Register(ctx, h)
		return err
	})
	return epoch, err
}

func (k sink) UpdateFacts(ctx context.Context, agent cluster.AgentID, epoch int64, f cluster.NodeFacts) error {
	return k.m.call(ctx, "facts "+string(agent), func(ctx context.Context) error { return k.r.UpdateFacts(ctx, agent, epoch, f) })
}

func (k sink) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) (acked []cluster.Tombstone, _ error) {
	observe := func(epoch int64, full bool, told map[cluster.KernelID]int64, list []cluster.KernelObservation) error {
		return k.m.call(ctx, "observe "+string(agent), func(ctx context.Context) (err error) {
			acked, err = k.r.Observe(ctx, agent, epoch, full, told, list)
			return err
		})
	}
	k.m.mu.Lock()
	k.m.told[agent]++
	n, old := k.m.told[agent], k.m.last[agent]
	k.m.last[agent] = list
	k.m.mu.Unlock()
	percent := int(k.m.s.reports.Load())
	hit := func(what string) bool { return k.m.s.chance(100, agent, n, what) < percent }
	if hit("lost before") {
		return nil, fault.Unavailablef("the report was lost")
	}
	if err := observe(epoch, full, told, list); err != nil {
		return nil, err
	}
	first := acked
	if hit("twice") {
		if err := observe(epoch, full, told, list); err != nil {
			return nil, err
		}
	}
	if len(old) > 0 && !full && hit("late") {
		if err := observe(epoch, false, nil, old); err != nil {
			return nil, err
		}
	}
	if hit("lost after") {
		return nil, fault.Unavailablef("the answer was lost")
	}
	return first, nil
}

func (k sink) Progress(ctx context.Context, agent cluster.AgentID, kernel cluster.KernelID, generation, current, total int64,
	message string) error {
	return k.m.call(ctx, "progress", func(ctx context.Context) error {
		return k.r.Progress(ctx, agent, kernel, generation, current, total, message)
	})
}

func (k sink) Desired(ctx context.Context, agent cluster.AgentID,
	told map[cluster.KernelID]int64) (list []cluster.DesiredKernel, err error) {
	err = k.m.call(ctx, "desired "+string(agent), func(ctx context.Context) (err error) {
		list, err = k.r.Desired(ctx, agent, told)
		return err
	})
	return list, err
}

func (k sink) Touch(ctx context.Context, agents []cluster.AgentID) error {
	return k.m.call(ctx, "touch", func(ctx context.Context) error { return k.r.Touch(ctx, agents) })
}

// Disconnected changes nothing: the agent's lease goes on.
func (k sink) Disconnected(context.Context, cluster.AgentID, int64) error { return nil }

func (k sink) Delivered(ctx context.Context, ages []cluster.OrdersAge) error {
	return k.m.call(ctx, "delivered", func(ctx context.Context) error { return k.r.Delivered(ctx, ages) })
}
