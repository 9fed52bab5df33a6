package forward

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// Engine serves connections. Run must run while it does: it enforces the deadlines.
type Engine struct {
	cfg    Config
	router Router
	dial   Dial
	clock  chassis.Clock
	log    *slog.Logger

	began  time.Time
	now    atomic.Int64 // of the last sweep, as of ticks: near enough for deadlines
	closes atomic.Int64 // calls of CloseCircuit and CloseTargets
	open   atomic.Int64 // upgraded and raw connections
	kept   atomic.Int64 // idle connections to apps

	connsMu  sync.Mutex
	conns    map[*visit]struct{}
	stopping bool
	running  sync.WaitGroup // visits

	groupsMu sync.RWMutex
	groups   map[string]*group
	ended    []proxy.CircuitActivity // of groups that are gone

	addresses tally
	byAddress *buckets[netip.Addr]
	byUser    *buckets[string]

	h2 *h2side
}

// New returns an engine without connections.
func New(cfg Config, router Router, dial Dial, clock chassis.Clock, log *slog.Logger) *Engine {
	e := &Engine{cfg: cfg, router: router, dial: dial, clock: clock, log: log,
		conns: map[*visit]struct{}{}, groups: map[string]*group{}, addresses: tally{m: map[netip.Addr]int{}},
		byAddress: newBuckets[netip.Addr](), byUser: newBuckets[string]()}
	e.began = clock.Now()
	e.now.Store(e.ticks())
	e.h2 = newH2(e)
	return e
}

// Run enforces deadlines until ctx ends; then it ends every connection and waits until they are over.
func (e *Engine) Run(ctx context.Context) error {
	tick := e.clock.NewTicker(e.sweepEvery())
	defer tick.Stop()
	tidied := e.now.Load()
	for {
		select {
		case <-ctx.Done():
			e.stop()
			return nil
		case <-tick.C():
			now := e.ticks()
			e.now.Store(now)
			e.sweep(now)
			if now-tidied >= int64(e.cfg.KeepUpstream)/4 {
				tidied = now
				e.tidy(now)
			}
		}
	}
}

// ticks is the time in nanoseconds as deadlines, rates and idleness count it: it goes on evenly when the machine's clock is set.
func (e *Engine) ticks() int64 {
	return e.began.UnixNano() + int64(e.clock.Now().Sub(e.began))
}

// sweepEvery is the time between two sweeps, and so how late a deadline may be noticed.
func (e *Engine) sweepEvery() time.Duration {
	every := 500 * time.Millisecond
	for _, d := range []time.Duration{e.cfg.HeaderTimeout, e.cfg.IdleTimeout, e.cfg.StallTimeout, e.cfg.ResponseTimeout, e.cfg.OpenIdle,
		e.cfg.Lifetime} {
		if d > 0 {
			every = min(every, d/4)
		}
	}
	return max(every, 5*time.Millisecond)
}

func (e *Engine) sweep(now int64) {
	e.connsMu.Lock()
	all := make([]*visit, 0, len(e.conns))
	for v := range e.conns {
		all = append(all, v)
	}
	e.connsMu.Unlock()
	for _, v := range all {
		v.check(now)
	}
}

func (e *Engine) stop() {
	e.connsMu.Lock()
	e.stopping = true
	all := make([]*visit, 0, len(e.conns))
	for v := range e.conns {
		all = append(all, v)
	}
	e.connsMu.Unlock()
	for _, v := range all {
		v.end("shutdown")
	}
	e.running.Wait()
	e.groupsMu.Lock()
	groups := e.groups
	e.groups = map[string]*group{}
	e.groupsMu.Unlock()
	for _, g := range groups {
		for _, m := range e.disband(g) {
			m.end("shutdown")
		}
	}
	e.h2.stop()
}

// ServeConn serves one visitor's connection, which it owns, until it is over. TLS is done; a *tls.Conn that negotiated h2, and
// clear connections that begin with HTTP/2's preface, are served as HTTP/2. ctx's end ends the connection.
func (e *Engine) ServeConn(ctx context.Context, conn net.Conn, l Listener) {
	defer e.survive(conn)
	h := &http1{listener: l}
	if err := e.enter(ctx, conn, &h.visit); err != nil {
		h.refuse(err)
		return
	}
	defer e.leave(&h.visit)
	if t, ok := conn.(*tls.Conn); ok && t.ConnectionState().NegotiatedProtocol == "h2" {
		e.h2.serve(&h.visit, conn, l)
		return
	}
	h.serve()
}

// ServeTCP joins a visitor's raw connection, which it owns and which was admitted, with the circuit's app until both
// directions have ended.
func (e *Engine) ServeTCP(ctx context.Context, conn net.Conn, c *circuit.Circuit) {
	e.serveRaw(ctx, conn, c, e.connectAny)
}

// Join is ServeTCP with a connection to one of the circuit's targets that is open already, which it owns too.
func (e *Engine) Join(ctx context.Context, conn, app net.Conn, c *circuit.Circuit, t proxy.TargetID) {
	taken := false
	e.serveRaw(ctx, conn, c, func(v *visit, c *circuit.Circuit) (*upstream, error) {
		v.aim(t)
		if now := e.current(c); now == nil || !now.Has(t) {
			return nil, closedMeanwhile()
		}
		taken = true
		return v.over(app, t)
	})
	if !taken {
		_ = app.Close()
	}
}

// serveRaw serves a raw connection; open gives the connection to the app.
func (e *Engine) serveRaw(ctx context.Context, conn net.Conn, c *circuit.Circuit, open func(*visit, *circuit.Circuit) (*upstream, error)) {
	defer e.survive(conn)
	v := new(visit)
	if err := e.enter(ctx, conn, v); err != nil {
		e.log.Debug("raw connection refused", "circuit", c.ID, "error", err)
		_ = conn.Close()
		return
	}
	defer e.leave(v)
	if err := e.joinRaw(v, c, open); err != nil {
		e.log.Debug("raw connection ended", "circuit", c.ID, "error", err)
	}
}

// survive recovers from a panic and ends the connection that caused it; the others go on. It is deferred first, so that it runs
// last, after everything the connection held was given back.
func (e *Engine) survive(conn net.Conn) {
	if p := recover(); p != nil {
		e.log.Error("a visitor's connection failed by a defect of this program", "remote", conn.RemoteAddr(), "panic", p, "stack",
			string(debug.Stack()))
		_ = conn.Close()
	}
}

// joinRaw connects a visit with the circuit's app and copies both ways until both have ended.
func (e *Engine) joinRaw(v *visit, c *circuit.Circuit, open func(*visit, *circuit.Circuit) (*upstream, error)) error {
	v.raw = true
	g, ok := e.join(c, v)
	if !ok {
		return tooManyConnections()
	}
	v.group = g
	if e.current(c) == nil {
		return closedMeanwhile()
	}
	g.requests.Add(1)
	u, err := open(v, c)
	if err != nil {
		return err
	}
	v.relay(&u.sock)
	return nil
}

// current is the circuit as the table has it now; nil when what c allowed is not allowed any more. It must be asked after the visit
// has joined the circuit's group: from then on CloseCircuit finds the visit.
func (e *Engine) current(c *circuit.Circuit) *circuit.Circuit {
	if e.cfg.Current == nil {
		return c
	}
	now := e.cfg.Current(c.ID)
	if now == nil || !c.Stands(now) || now.ExpiresAt != nil && !e.clock.Now().Before(*now.ExpiresAt) {
		return nil
	}
	return now
}

func closedMeanwhile() error {
	return fault.Unavailablef("the app was closed or moved meanwhile").WithReason("circuit-gone").WithNext("try again in a moment")
}

var errEnded = errors.New("the connection was ended")

// connect opens a connection to a target of the circuit; v's end ends it.
func (e *Engine) connect(v *visit, c *circuit.Circuit, t proxy.Target) (*upstream, error) {
	ctx, cancel := context.WithTimeout(v.ctx, e.cfg.DialTimeout)
	conn, err := e.dial(ctx, c, t)
	cancel()
	if err != nil {
		return nil, err
	}
	return v.over(conn, t.ID())
}

// over makes a connection to a target the app's side of the visit.
func (v *visit) over(conn net.Conn, t proxy.TargetID) (*upstream, error) {
	u := &upstream{target: t}
	u.sock.init(conn)
	if !v.use(&u.sock) {
		return nil, errEnded
	}
	return u, nil
}

// connectAny opens a connection for a visitor of whom only the address is known. c is the circuit that admitted it.
func (e *Engine) connectAny(v *visit, c *circuit.Circuit) (*upstream, error) {
	for range maxRoutes {
		closes := e.closes.Load()
		now := e.current(c)
		if now == nil {
			break
		}
		var key uint64
		if now.Several() {
			key = circuit.KeyOfAddress(v.remote.Addr())
		}
		t, ok := now.Pick(key)
		if !ok {
			return nil, Drained()
		}
		v.aim(t.ID())
		if e.closes.Load() == closes { // else the target may be gone
			return e.connect(v, now, t)
		}
	}
	return nil, closedMeanwhile()
}

// Drained says that all targets of a circuit have weight 0.
func Drained() error {
	return fault.Unavailablef("the app takes no new visitors at the moment").WithReason("drained").WithNext("try again in a moment")
}

// enter registers a visitor's connection.
func (e *Engine) enter(ctx context.Context, conn net.Conn, v *visit) error {
	v.e = e
	v.sock.init(conn)
	v.opened = e.now.Load()
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		ap := a.AddrPort()
		v.remote = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
	}
	most := e.cfg.ConnectionsPerAddress
	if !v.remote.IsValid() || e.Trusted(v.remote.Addr()) {
		most = 0 // everybody comes from there
	}
	if !e.addresses.enter(v.remote.Addr(), most) {
		return tooManyConnections()
	}
	v.ctx, v.cancel = context.WithCancel(ctx)
	e.connsMu.Lock()
	full := e.cfg.Connections > 0 && len(e.conns) >= e.cfg.Connections
	if full || e.stopping {
		e.connsMu.Unlock()
		e.addresses.leave(v.remote.Addr())
		v.cancel()
		return tooManyConnections()
	}
	e.conns[v] = struct{}{}
	e.running.Add(1)
	e.connsMu.Unlock()
	v.unwatch = context.AfterFunc(ctx, func() { v.end("shutdown") })
	return nil
}

func (e *Engine) leave(v *visit) {
	v.unwatch()
	v.cancel()
	if v.ended.Load() == nil {
		_ = v.sock.conn.Close() // says goodbye on TLS
	} else {
		v.sock.kill()
	}
	v.use(nil)
	if v.group != nil {
		v.group.leave(v)
	}
	e.addresses.leave(v.remote.Addr())
	e.connsMu.Lock()
	delete(e.conns, v)
	e.connsMu.Unlock()
	e.running.Done()
}

// Trusted reports whether an address is one of Config.Trusted: everybody comes from there.
func (e *Engine) Trusted(a netip.Addr) bool { return e.cfg.Trusted.Has(a) }

func tooManyConnections() error {
	return fault.Unavailablef("too many connections are open").WithReason("too-many-connections").
		WithNext("close some, or try again in a moment")
}
