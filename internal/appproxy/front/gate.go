package front

import (
	"net/netip"
	"sync"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
)

// A manager answers a bounded number of questions of one proxy at the same time. Launches may take long, because they wait for
// their app; questions of strangers are short, but there may be very many. Each kind has a bound of its own here, so that
// neither can use up what the other needs.
const (
	maxLaunches     = 64
	sessionLaunches = 4  // of one session
	visitorLaunches = 32 // of one network
	maxQuick        = 32 // other questions
	visitorQuick    = 8
)

// gate bounds how many calls are under way, in all and for each key.
type gate[K comparable] struct {
	mu   sync.Mutex
	all  int
	each map[K]int // none is kept at zero
}

// begin enters one more call unless the bound is reached.
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

// launching enters a launch; done must be called after it.
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

// asking enters a short question to the manager; done must be called after it.
func (f *Front) asking(from netip.Addr) (done func(), err error) {
	from = circuit.Network(from)
	if !f.askers.begin(from, visitorQuick, maxQuick) {
		return nil, fault.Exhaustedf("too many visitors ask at the moment").WithReason("questions").WithNext("try again in a moment")
	}
	return func() { f.askers.end(from) }, nil
}
