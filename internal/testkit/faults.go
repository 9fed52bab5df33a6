package testkit

import (
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	agentlink "berth.dev/berth/internal/manager/link/agent"
)

// Faults stand between agents and managers. The zero value passes everything; all methods
// may be called at any time.
type Faults struct {
	mu    sync.Mutex
	rand  *rand.Rand
	conns map[*faultyConn]struct{}
	// lose, double and reorder are chances in percent.
	lose, double, reorder int
	delay                 time.Duration
}

// NewFaults returns faults whose choices follow from the seed.
func NewFaults(seed uint64) *Faults {
	return &Faults{rand: rand.New(rand.NewPCG(seed, 1)), conns: map[*faultyConn]struct{}{}}
}

// Messages makes so many percent of the reports get lost (and be tried again), arrive twice, and
// arrive again after newer ones; desired states get lost as often.
func (f *Faults) Messages(lose, double, reorder int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lose, f.double, f.reorder = lose, double, reorder
}

// Delay makes every read from an agent's connection take so much longer.
func (f *Faults) Delay(d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.delay = d
}

// Cut breaks every connection between agents and managers that is open now.
func (f *Faults) Cut() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.conns {
		_ = c.Conn.Close()
	}
}

// Heal ends all faults.
func (f *Faults) Heal() {
	f.Messages(0, 0, 0)
	f.Delay(0)
}

func (f *Faults) conn(c net.Conn) net.Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &faultyConn{Conn: c, f: f}
	f.conns[w] = struct{}{}
	return w
}

type faultyConn struct {
	net.Conn
	f *Faults
}

func (c *faultyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.f.mu.Lock()
	d := c.f.delay
	c.f.mu.Unlock()
	if d > 0 && err == nil {
		<-time.After(d)
	}
	return n, err
}

func (c *faultyConn) Close() error {
	c.f.mu.Lock()
	delete(c.f.conns, c)
	c.f.mu.Unlock()
	return c.Conn.Close()
}

func (f *Faults) sink(s agentlink.Sink) agentlink.Sink {
	return &faultySink{Sink: s, f: f, last: map[cluster.AgentID]report{}}
}

// faultySink loses, doubles and reorders what passes through it.
type faultySink struct {
	agentlink.Sink
	f *Faults

	mu   sync.Mutex
	last map[cluster.AgentID]report
}

type report struct {
	epoch int64
	full  bool
	told  map[cluster.KernelID]int64
	list  []cluster.KernelObservation
}

func (f *Faults) chance(percent int) bool { return percent > 0 && f.rand.IntN(100) < percent }

func (f *Faults) draw() (before, after, double, reorder bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.chance(f.lose), f.chance(f.lose), f.chance(f.double), f.chance(f.reorder)
}

func (s *faultySink) Observe(ctx context.Context, agent cluster.AgentID, epoch int64, full bool, told map[cluster.KernelID]int64,
	list []cluster.KernelObservation) ([]cluster.Tombstone, error) {
	before, after, double, reorder := s.f.draw()
	if before {
		return nil, fault.Unavailablef("a test lost the report")
	}
	acked, err := s.Sink.Observe(ctx, agent, epoch, full, told, list)
	if err != nil {
		return nil, err
	}
	if double {
		if _, err := s.Sink.Observe(ctx, agent, epoch, full, told, list); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	old, there := s.last[agent]
	s.last[agent] = report{epoch, full, told, list}
	s.mu.Unlock()
	if reorder && there && !old.full { // a full report is the first of its stream: nothing overtakes it
		if _, err := s.Sink.Observe(ctx, agent, old.epoch, false, nil, old.list); err != nil && fault.ReasonOf(err) != "stale-epoch" {
			return nil, err
		}
	}
	if after { // it was stored, but nobody heard
		return nil, fault.Unavailablef("a test lost the answer")
	}
	return acked, nil
}

func (s *faultySink) Desired(ctx context.Context, agent cluster.AgentID, told map[cluster.KernelID]int64) ([]cluster.DesiredKernel, error) {
	if before, _, _, _ := s.f.draw(); before {
		return nil, fault.Unavailablef("a test lost the desired state")
	}
	return s.Sink.Desired(ctx, agent, told)
}
