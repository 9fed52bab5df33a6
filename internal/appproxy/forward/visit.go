package forward

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/wire/proxy"
)

// phase is what a visit waits for; it decides what happens when the deadline passes.
type phase int64

const (
	phaseIdle   phase = iota + 1 // the next request; late: closed without an answer
	phaseHead                    // the rest of a head; late: 408
	phaseUpload                  // more of a request's body; late: 408
	phaseSend                    // the app to take it; late: 504
	phaseWait                    // the app's answer; late: 504
	phaseStream                  // more of the app's answer
	phaseStall                   // the visitor to read; late: ended
	phaseOpen                    // anything, upgraded or raw; late: ended
	phaseMask   = 15

	expired = -1
)

// visit is one visitor's connection.
type visit struct {
	e       *Engine
	sock    sock
	remote  netip.AddrPort
	opened  int64
	ctx     context.Context // ends with the visit
	cancel  context.CancelFunc
	unwatch func() bool
	group   *group // it belongs to; the visit's own goroutine sets it
	raw     bool   // a raw connection, let in by its address; set before it joins a group

	// state is the deadline in nanoseconds (0 for none) with the phase in its lowest bits, in one word so that they change
	// together. The sweep sets it to expired when it has acted on the deadline.
	state atomic.Int64
	half  atomic.Bool // one direction of an open connection has ended
	ended atomic.Pointer[string]

	mu     sync.Mutex
	up     *sock // the app's side in use
	struck bool  // the sweep has ended a wait for up: up must not be used again
	// target is where up leads or is being opened to; the zero value while the visit uses no target.
	target proxy.TargetID
}

// arm sets what the visit waits for from now on, and for how long at most (0 is without limit). When the sweep has just acted on
// the deadline before, the sockets' next operation fails.
func (v *visit) arm(p phase, d time.Duration) {
	s := int64(p)
	if d > 0 {
		s |= (v.e.now.Load() + int64(d)) &^ phaseMask
	}
	v.state.Store(s)
}

// check acts on a deadline that has passed; the sweep calls it.
func (v *visit) check(now int64) {
	s := v.state.Load()
	if s == expired {
		return
	}
	if l := v.e.cfg.Lifetime; l > 0 && now-v.opened > int64(l) {
		v.end("lifetime")
		return
	}
	p := phase(s & phaseMask)
	if at := s &^ phaseMask; at != 0 && at < now {
		v.expire(s)
		return
	}
	if (p == phaseWait || p == phaseStream) && v.sock.hungUp() {
		v.end("visitor gone")
	}
}

// expire ends the wait of state s as its phase wants, unless that wait is over already. The lock makes sure that the app's
// connection which is ended is the one that was waited for, not one that was put in its place since.
func (v *visit) expire(s int64) {
	v.mu.Lock()
	if !v.state.CompareAndSwap(s, expired) {
		v.mu.Unlock()
		return
	}
	end := false
	switch p := phase(s & phaseMask); {
	case p == phaseHead || p == phaseUpload:
		_ = v.sock.conn.SetReadDeadline(past)
	case (p == phaseWait || p == phaseSend) && v.up != nil:
		v.struck = true
		_ = v.up.conn.SetDeadline(past)
	default:
		end = true
	}
	v.mu.Unlock()
	if end {
		v.end("deadline")
	}
}

// end ends the visit at once; any goroutine may call it.
func (v *visit) end(reason string) {
	if !v.ended.CompareAndSwap(nil, &reason) {
		return
	}
	v.cancel()
	v.mu.Lock()
	up := v.up
	v.mu.Unlock()
	v.sock.kill()
	if up != nil {
		up.kill()
	}
}

// aim says which target the visit uses from now on; the zero value ends that.
func (v *visit) aim(t proxy.TargetID) {
	v.mu.Lock()
	v.target = t
	v.mu.Unlock()
}

// uses reports whether the visit uses one of some targets.
func (v *visit) uses(targets []proxy.TargetID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Contains(targets, v.target)
}

// use makes up the app's side of the visit; nil means none. The side before it is closed, unless part took it away. use fails and
// closes up when the visit has ended.
func (v *visit) use(up *sock) bool {
	v.mu.Lock()
	old := v.up
	v.up, v.struck = up, false
	v.arm(phaseIdle, 0) // the deadline before was not for up
	v.mu.Unlock()
	if old != nil && old != up {
		old.kill()
		old.release()
	}
	if up != nil && v.ended.Load() != nil {
		up.kill()
		return false
	}
	return true
}

// part takes the app's side away from the visit without closing it. It fails when the visit has ended or the sweep has ended a wait
// for that side.
func (v *visit) part() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.up, v.target = nil, proxy.TargetID{}
	v.arm(phaseIdle, 0)
	return !v.struck && v.ended.Load() == nil
}

// halfOpenFor bounds how long an open connection of which one direction has ended may be silent.
const halfOpenFor = 10 * time.Minute

// relay carries bytes both ways until both directions have ended. The end of one is passed on as a half-close.
func (v *visit) relay(up *sock) {
	v.e.open.Add(1)
	defer v.e.open.Add(-1)
	g := v.group
	g.open.Add(1)
	defer g.open.Add(-1)
	touch := func() {
		d := v.e.cfg.OpenIdle
		if v.half.Load() && (d == 0 || d > halfOpenFor) {
			d = halfOpenFor
		}
		v.arm(phaseOpen, d)
	}
	touch()
	direction := func(m *mover) {
		err := m.data(-1)
		if err == nil {
			err = m.flush()
		}
		m.src.release()
		var unread writeError
		if err == nil && m.dst.halfClose() == nil || errors.As(err, &unread) {
			// Who no longer reads may still have something to say: the other direction goes on to its own end.
			if !v.half.Swap(true) {
				touch()
			}
			return
		}
		up.kill()
		if err != nil {
			v.sock.reset()
		} else {
			v.sock.kill()
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		direction(&mover{dst: &v.sock, src: up, progress: func(_ waiting, moved int) {
			if moved > 0 {
				g.out.Add(int64(moved))
				touch()
			}
		}})
	}()
	direction(&mover{dst: up, src: &v.sock, progress: func(_ waiting, moved int) {
		if moved > 0 {
			g.sent(moved, v.e.now.Load())
			touch()
		}
	}})
	<-done
}
