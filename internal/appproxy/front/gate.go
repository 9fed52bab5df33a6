package front

import (
	"net/netip"
	"sync"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
)

// A manager takes only so many questions at once from a proxy. Bounds of those under way keep some for everybody: a launch waits
// for its app as long as that takes, and what strangers ask is answered soon, but they may ask without end.
const (
	maxLaunches     = 64
	sessionLaunches = 4  // of one session
	visitorLaunches = 32 // of one network
	maxQuick        = 32 // other questions
	visitorQuick    = 8
)

// gate counts what is under way, in all and for each key.
type gate[K comparable] struct {
	mu   sync.Mutex
	all  int
	each map[K]int // none is kept at zero
}

// begin counts one more unless there are most already.
func (g *gate[K]) begin(k K, each, most int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.all >= most || g.each[k] >= each {
		return false
	}
	if g.each == nil {
		g.each = map[K]int{}
	}
	g.all++
	g.each[k]++
	return true
}

func (g *gate[K]) end(k K) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.all--
	if g.each[k]--; g.each[k] == 0 {
		delete(g.each, k)
	}
}

// launching asks for leave to launch an app; call done after it.
func (f *Front) launching(session string, from netip.Addr) (done func(), err error) {
	from = circuit.Network(from)
	if !f.sessions.begin(session, sessionLaunches, maxLaunches) {
		return nil, fault.Exhaustedf("too many apps are being started at the moment").WithReason("launches").
			WithNext("try again when those that you began are there")
	}
	if !f.launchers.begin(from, visitorLaunches, maxLaunches) {
		f.sessions.end(session)
		return nil, fault.Exhaustedf("too many apps are being started from your address").WithReason("launches").WithNext("try again in a moment")
	}
	return func() { f.launchers.end(from); f.sessions.end(session) }, nil
}

// asking asks for leave to put a quick question to the manager; call done after it.
func (f *Front) asking(from netip.Addr) (done func(), err error) {
	from = circuit.Network(from)
	if !f.askers.begin(from, visitorQuick, maxQuick) {
		return nil, fault.Exhaustedf("too many visitors ask at the moment").WithReason("questions").WithNext("try again in a moment")
	}
	return func() { f.askers.end(from) }, nil
}
