package simulation

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"berth.dev/berth/internal/wire/node"
)

// chance is a number from 0 to below n that follows from the seed and from what is decided.
func (s *sim) chance(n int, what ...any) int {
	h := fnv.New64a()
	fmt.Fprint(h, s.plan.Seed, what)
	return int((h.Sum64() >> 11) % uint64(n))
}

// way is one direction of the network between an agent and the manager.
type way struct {
	mu      sync.Mutex
	blocked chan struct{} // closed when the partition ends; nil when there is none
	waiting int           // how many have come since it began
	extra   time.Duration
}

// seed is the seed of a stream of random numbers that follows from what it is for.
func (s *sim) seed(what ...any) (out [32]byte) {
	return sha256.Sum256(fmt.Append(nil, s.plan.Seed, what))
}

// line is the network between one agent and one manager.
type line struct{ up, down way }

// block lets nothing pass in either direction until free.
func (l *line) block() { l.up.block(); l.down.block() }
func (l *line) free()  { l.up.free(); l.down.free() }

// slow delays every message in both directions.
func (l *line) slow(d time.Duration) { l.up.slow(d); l.down.slow(d) }

// block lets nothing pass until free.
func (w *way) block() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocked == nil {
		w.blocked, w.waiting = make(chan struct{}), 0
	}
}

func (w *way) free() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.blocked != nil {
		close(w.blocked)
		w.blocked = nil
	}
}

func (w *way) slow(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.extra = d
}

// pass waits until a partition is over, as TCP does by sending again. Those who waited go on one after the other, in the order in which
// they came: at the same instant Go would choose.
func (w *way) pass(ctx context.Context) error {
	for {
		w.mu.Lock()
		blocked := w.blocked
		if blocked != nil {
			w.waiting++
		}
		place := w.waiting
		w.mu.Unlock()
		if blocked == nil {
			return nil
		}
		select {
		case <-blocked:
			if err := wait(ctx, time.Duration(place)*10*time.Microsecond); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *way) latency() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.extra
}

var errReset = status.Error(codes.Unavailable, "the connection was reset")

// conn is one control stream. Messages keep their order and arrive after a delay; what is under way when the connection breaks is lost.
//
// Each end has a life of its own: an end that is left is noticed by the other when the network lets that through.
type conn struct {
	s              *sim
	id             string
	up, down       *half
	agent, manager context.Context // of the ends
	endAgent       context.CancelFunc
	endManager     context.CancelFunc
}

// half is one direction of a stream.
type half struct {
	c     *conn
	way   *way
	name  string
	queue chan parcel
	from  context.Context // of the end that sends
	to    context.Context // of the end that receives
	mu    sync.Mutex
	last  time.Time
}

type parcel struct {
	at  time.Time
	msg any
}

func (s *sim) newConn(id string, up, down *way) *conn {
	c := &conn{s: s, id: id}
	c.agent, c.endAgent = context.WithCancel(s.ctx)
	c.manager, c.endManager = context.WithCancel(s.ctx)
	c.up = &half{c: c, way: up, name: "up", queue: make(chan parcel, 512), from: c.agent, to: c.manager}
	c.down = &half{c: c, way: down, name: "down", queue: make(chan parcel, 512), from: c.manager, to: c.agent}
	return c
}

// leaveAgent closes the agent's end, leaveManager the manager's.
func (c *conn) leaveAgent()   { c.leave(c.endAgent, c.endManager, c.up) }
func (c *conn) leaveManager() { c.leave(c.endManager, c.endAgent, c.down) }

func (c *conn) leave(own, other context.CancelFunc, through *half) {
	own()
	c.s.group.Go(func() {
		if wait(c.s.ctx, through.way.latency()+time.Millisecond) == nil && through.way.pass(c.s.ctx) == nil {
			other()
		}
	})
}

// cut breaks both ends at once.
func (c *conn) cut() {
	c.endAgent()
	c.endManager()
}

// put sends a message; a full queue stops the sender, as flow control does.
func (h *half) put(ctx context.Context, msg any) error {
	h.mu.Lock()
	// The delay differs from message to message, so that hardly ever two things happen at the same instant. It follows from when a message
	// is sent, not from how many came before: goroutines that send at the same instant do so in any order, and no history may depend on it.
	sent := h.c.s.since().Truncate(time.Millisecond)
	at := time.Now().Add(h.way.latency() + 200*time.Microsecond + time.Duration(h.c.s.chance(800_000, h.c.id, h.name, sent)))
	if !at.After(h.last) {
		at = h.last.Add(time.Microsecond)
	}
	h.last = at
	h.mu.Unlock()
	select {
	case h.queue <- parcel{at, msg}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-h.from.Done():
		return errReset
	}
}

func (h *half) take(ctx context.Context) (any, error) {
	var p parcel
	select {
	case p = <-h.queue: // what has come is read before the end of the connection, as on TCP
	default:
		select {
		case p = <-h.queue:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-h.to.Done():
			return nil, errReset
		}
	}
	if d := time.Until(p.at); d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		case <-h.to.Done():
			return nil, errReset
		}
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(h.to, cancel)
	defer stop()
	if err := h.way.pass(both); err != nil {
		return nil, errReset
	}
	return p.msg, nil
}

// agentEnd is the agent's end of a stream.
type agentEnd struct {
	grpc.ClientStream
	c    *conn
	ctx  context.Context
	proc *process
}

func (e *agentEnd) Context() context.Context { return e.ctx }

func (e *agentEnd) Send(m *node.Up) error {
	if err := e.proc.enter(e.ctx); err != nil {
		return err
	}
	return e.c.up.put(e.ctx, m)
}

func (e *agentEnd) Recv() (*node.Down, error) {
	m, err := e.c.down.take(e.ctx)
	if err == nil {
		err = e.proc.enter(e.ctx)
	}
	if err != nil {
		return nil, err
	}
	down := m.(*node.Down)
	if d := down.GetDesired(); d != nil {
		e.proc.host.ordered(d)
	}
	return down, nil
}

// managerEnd is the manager's end.
type managerEnd struct {
	grpc.ServerStream
	c    *conn
	ctx  context.Context
	role *managerRole
}

func (e *managerEnd) Context() context.Context { return e.ctx }

func (e *managerEnd) Send(m *node.Down) error {
	if err := e.role.enter(e.ctx); err != nil {
		return err
	}
	return e.c.down.put(e.ctx, m)
}

func (e *managerEnd) Recv() (*node.Up, error) {
	m, err := e.c.up.take(e.ctx)
	if err == nil {
		err = e.role.enter(e.ctx)
	}
	if err != nil {
		return nil, err
	}
	return m.(*node.Up), nil
}

// dialTimeout is after how long a connection that gets no answer is given up.
const dialTimeout = 10 * time.Second

// connect opens a stream from an agent to a manager: it needs both directions.
func (s *sim) connect(ctx context.Context, p *process, to *seat) (*conn, error) {
	h := p.host
	h.dials++
	l := &h.lines[to.n]
	limit, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for _, w := range []*way{&l.up, &l.down} {
		if err := wait(limit, w.latency()+time.Millisecond+time.Duration(s.chance(int(time.Millisecond), h.id, "dial", h.dials))); err != nil {
			return nil, err
		}
		if err := w.pass(limit); err != nil {
			return nil, err
		}
	}
	// A process that is stopped accepts nothing; its machine does, and the stream waits.
	if err := to.frozen.pass(limit); err != nil {
		return nil, err
	}
	m := to.manager()
	if m == nil {
		return nil, errors.New("connection refused")
	}
	c := s.newConn(fmt.Sprint(h.id, "/", h.dials), &l.up, &l.down)
	m.accept(c, h)
	return c, nil
}

// wait lets simulated time go by.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
