package forward

import (
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/wire/proxy"
)

// member is something live that belongs to a circuit and ends with it.
type member interface {
	end(reason string)
	// uses reports whether it uses one of some targets of the circuit.
	uses(targets []proxy.TargetID) bool
}

// group is what is live of one circuit: the connections of visitors that use it, and those kept to its app.
type group struct {
	id     string
	mu     sync.Mutex
	closed bool // no longer in the engine's table: a new group has to be made
	live   map[member]struct{}
	apps   int         // how many of live are connections of HTTP/2's transports to the app, which are not visitors
	idle   []*upstream // in the order in which they became idle

	rate     bucket
	lastAt   atomic.Int64 // when a visitor last sent something, in ticks
	requests atomic.Int64
	in, out  atomic.Int64
	// open counts upgraded and raw connections, such as SSH and WebSockets: as long as there is one the circuit is in use.
	open atomic.Int64
}

// sent counts n bytes from a visitor at time now.
func (g *group) sent(n int, now int64) {
	if n > 0 {
		g.in.Add(int64(n))
		if g.lastAt.Load() != now {
			g.lastAt.Store(now)
		}
	}
}

// activity empties a group's counters; ok is false when no visitor sent anything and none holds a connection open.
func (e *Engine) activity(g *group) (a proxy.CircuitActivity, ok bool) {
	in, open := g.in.Swap(0), g.open.Load() > 0
	if in == 0 && !open {
		return a, false
	}
	ago := time.Duration(e.ticks() - g.lastAt.Load())
	if open {
		ago = 0
	}
	return proxy.CircuitActivity{ID: g.id, LastAt: e.clock.Now().Add(-ago).UTC(),
		Requests: g.requests.Swap(0), BytesIn: in, BytesOut: g.out.Swap(0)}, true
}

// join puts m into the circuit's group. It fails when there are too many.
func (e *Engine) join(c *circuit.Circuit, m member) (*group, bool) {
	most := e.cfg.ConnectionsPerCircuit
	if c.Limits.Connections > 0 {
		most = c.Limits.Connections
	}
	for {
		g := e.group(c.ID)
		g.mu.Lock()
		if g.closed {
			g.mu.Unlock()
			continue
		}
		if most > 0 && len(g.live)-g.apps >= most {
			g.mu.Unlock()
			return nil, false
		}
		g.live[m] = struct{}{}
		g.mu.Unlock()
		return g, true
	}
}

func (g *group) leave(m member) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, here := g.live[m]; !here {
		return
	}
	if _, app := m.(*dialed); app {
		g.apps--
	}
	delete(g.live, m)
}

// group finds or makes a circuit's group.
func (e *Engine) group(id string) *group {
	e.groupsMu.RLock()
	g := e.groups[id]
	e.groupsMu.RUnlock()
	if g != nil {
		return g
	}
	e.groupsMu.Lock()
	defer e.groupsMu.Unlock()
	if g = e.groups[id]; g == nil {
		g = &group{id: id, live: map[member]struct{}{}}
		e.groups[id] = g
	}
	return g
}

// CloseCircuit ends all live connections of a circuit at once: requests, upgraded and raw ones, and those kept to its app.
// Call it after the table has been replaced: requests that are being admitted meanwhile are asked about again.
func (e *Engine) CloseCircuit(id, reason string) {
	// Requests that joined before this line are found below. Those that join later see the new number and ask the Router again.
	e.closes.Add(1)
	e.groupsMu.Lock()
	g := e.groups[id]
	delete(e.groups, id)
	e.groupsMu.Unlock()
	if g == nil {
		return
	}
	live := e.disband(g)
	e.log.Debug("circuit closed", "circuit", id, "reason", reason, "connections", len(live))
	for _, m := range live {
		m.end(reason)
	}
}

// CloseAddresses ends the raw connections (ServeTCP) to a circuit that come from some addresses, and no others. Like
// CloseCircuit it is called after the table has been replaced.
func (e *Engine) CloseAddresses(id string, from []netip.Addr, reason string) {
	e.groupsMu.RLock()
	g := e.groups[id]
	e.groupsMu.RUnlock()
	if g == nil {
		return
	}
	var out []*visit
	g.mu.Lock()
	for m := range g.live {
		if v, ok := m.(*visit); ok && v.raw && slices.Contains(from, v.remote.Addr().WithZone("")) {
			out = append(out, v)
		}
	}
	g.mu.Unlock()
	e.log.Debug("addresses are let in no more", "circuit", id, "reason", reason, "connections", len(out))
	for _, v := range out {
		v.end(reason)
	}
}

// CloseTargets ends the connections of a circuit that use some of its targets, and no others: those of visitors, and those
// kept for further requests. Like CloseCircuit it is called after the table has been replaced.
func (e *Engine) CloseTargets(id string, targets []proxy.TargetID, reason string) {
	e.closes.Add(1) // see CloseCircuit
	e.groupsMu.RLock()
	g := e.groups[id]
	e.groupsMu.RUnlock()
	if g == nil {
		return
	}
	var out []member
	var idle []*upstream
	g.mu.Lock()
	for m := range g.live {
		if m.uses(targets) {
			out = append(out, m)
		}
	}
	g.idle = slices.DeleteFunc(g.idle, func(u *upstream) bool {
		gone := slices.Contains(targets, u.target)
		if gone {
			idle = append(idle, u)
		}
		return gone
	})
	g.mu.Unlock()
	e.log.Debug("targets are gone", "circuit", id, "reason", reason, "targets", len(targets), "connections", len(out))
	for _, m := range out {
		m.end(reason)
	}
	for _, u := range idle {
		u.sock.kill()
		e.kept.Add(-1)
	}
}

// disband closes a group that was removed from the engine's groups, and returns its members.
func (e *Engine) disband(g *group) []member {
	g.mu.Lock()
	g.closed = true
	live := make([]member, 0, len(g.live))
	for m := range g.live {
		live = append(live, m)
	}
	idle := g.idle
	g.idle = nil
	g.mu.Unlock()
	for _, u := range idle {
		u.sock.kill()
		e.kept.Add(-1)
	}
	if a, ok := e.activity(g); ok {
		e.groupsMu.Lock()
		if len(e.ended) < proxy.MaxCircuits {
			e.ended = append(e.ended, a)
		}
		e.groupsMu.Unlock()
	}
	return live
}

// Activity returns what visitors of each circuit have sent and got since the last call. Circuits without an upgraded or raw connection
// on which no byte came from a visitor are left out; idle connections for further requests are no use.
func (e *Engine) Activity() []proxy.CircuitActivity {
	e.groupsMu.Lock()
	all := e.ended
	e.ended = nil
	groups := make([]*group, 0, len(e.groups))
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	e.groupsMu.Unlock()
	for _, g := range groups {
		if a, ok := e.activity(g); ok {
			all = append(all, a)
		}
	}
	return all
}

// Counts says how many connections are open.
type Counts struct {
	Connections int // of visitors
	Open        int // upgraded and raw ones among them
	Upstream    int // connections to apps that are kept for further requests
}

// Live counts what is open now.
func (e *Engine) Live() Counts {
	e.connsMu.Lock()
	defer e.connsMu.Unlock()
	return Counts{Connections: len(e.conns), Open: int(e.open.Load()), Upstream: int(e.kept.Load())}
}

// upstream is a connection to an app on which requests follow each other.
type upstream struct {
	sock   sock
	target proxy.TargetID
	since  int64 // when it became idle
	used   bool  // has answered before
}

// idleUpstream takes the connection to a target that was used last. Those that were not used for more than a second, or
// whose loss cannot be made good (careful), are checked first.
func (e *Engine) idleUpstream(g *group, target proxy.TargetID, careful bool) *upstream {
	for {
		g.mu.Lock()
		i := len(g.idle) - 1
		for i >= 0 && g.idle[i].target != target {
			i--
		}
		if i < 0 {
			g.mu.Unlock()
			return nil
		}
		u := g.idle[i]
		g.idle = slices.Delete(g.idle, i, i+1)
		g.mu.Unlock()
		e.kept.Add(-1)
		if (careful || e.now.Load()-u.since > int64(time.Second)) && !u.sock.quiet() {
			u.sock.kill()
			continue
		}
		return u
	}
}

// keepUpstream puts a connection back, or closes it when there are enough.
func (e *Engine) keepUpstream(g *group, u *upstream) {
	u.sock.release()
	u.used, u.since = true, e.now.Load()
	g.mu.Lock()
	if keep := !g.closed && len(g.idle) < e.cfg.MaxIdleUpstream; keep {
		g.idle = append(g.idle, u)
		g.mu.Unlock()
		e.kept.Add(1)
		return
	}
	g.mu.Unlock()
	u.sock.kill()
}

// tidy closes connections to apps that were not used for KeepUpstream, and removes empty groups.
func (e *Engine) tidy(now int64) {
	e.groupsMu.RLock()
	groups := make([]*group, 0, len(e.groups))
	for _, g := range e.groups {
		groups = append(groups, g)
	}
	e.groupsMu.RUnlock()
	oldest := now - int64(e.cfg.KeepUpstream)
	for _, g := range groups {
		g.mu.Lock()
		n, _ := slices.BinarySearchFunc(g.idle, oldest, func(u *upstream, t int64) int { return int(min(max(u.since-t, -1), 1)) })
		old := slices.Clone(g.idle[:n])
		g.idle = slices.Delete(g.idle, 0, n)
		empty := len(g.idle) == 0 && len(g.live) == 0 && g.in.Load() == 0 && g.rate.full.Load() < now
		if empty {
			g.closed = true
		}
		g.mu.Unlock()
		for _, u := range old {
			u.sock.kill()
			e.kept.Add(-1)
		}
		if empty {
			e.groupsMu.Lock()
			if e.groups[g.id] == g {
				delete(e.groups, g.id)
			}
			e.groupsMu.Unlock()
		}
	}
}
