package throttle

import (
	"net/netip"
	"sync"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// Limits bound what callers may hold open on one manager.
type Limits struct {
	// StreamsPerUser bounds the WebSockets and event streams of one user.
	StreamsPerUser int
	// WaitsPerUser bounds the requests of one user that wait for something: a session that starts, restarts or ends, its logs and files.
	WaitsPerUser int
	// PerAddress bounds both together for one client address; of IPv6 addresses, the /64 counts.
	PerAddress int
	// Total bounds both together for all. A tenth more is kept for superadministrators.
	Total int
}

// DefaultLimits returns the documented defaults.
func DefaultLimits() Limits {
	return Limits{StreamsPerUser: 100, WaitsPerUser: 500, PerAddress: 1000, Total: 4096}
}

// Validate checks the ranges.
func (l Limits) Validate() error {
	for _, v := range []struct {
		name       string
		value, top int
	}{
		{"streams_per_user", l.StreamsPerUser, 100_000}, {"waits_per_user", l.WaitsPerUser, 100_000},
		{"per_address", l.PerAddress, 1_000_000}, {"total", l.Total, 1_000_000},
	} {
		if v.value < 1 || v.value > v.top {
			return fault.Invalidf("manager.streams.%s is %d", v.name, v.value).WithNext("choose between 1 and %d", v.top)
		}
	}
	return nil
}

// Kind is how a request lasts.
type Kind int

// A stream is a WebSocket or an event stream; a wait is a request that waits for something.
const (
	Stream Kind = iota
	Wait
)

// Places counts what is held open.
type Places struct {
	limits Limits

	mu        sync.Mutex
	total     int
	byUser    map[userPlace]int
	byAddress map[netip.Addr]int
}

type userPlace struct {
	user cluster.UserID
	kind Kind
}

// NewPlaces counts nothing yet.
func NewPlaces(l Limits) *Places {
	return &Places{limits: l, byUser: map[userPlace]int{}, byAddress: map[netip.Addr]int{}}
}

// Take takes a place, or says which limit has been reached. The caller calls leave once.
func (p *Places) Take(a authz.Actor, from netip.Addr, kind Kind) (leave func(), err error) {
	from = clientaddr.Network(from)
	of := userPlace{a.UserID, kind}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.full(of, from, a.Superadmin()); err != nil {
		return nil, err
	}
	p.total++
	p.byUser[of]++
	if from.IsValid() {
		p.byAddress[from]++
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.total--
		drop(p.byUser, of)
		if from.IsValid() {
			drop(p.byAddress, from)
		}
	}, nil
}

func drop[K comparable](m map[K]int, key K) {
	if m[key]--; m[key] <= 0 {
		delete(m, key)
	}
}

// full says which limit another place would exceed; mu is held.
func (p *Places) full(of userPlace, from netip.Addr, superadmin bool) error {
	l := p.limits
	total := l.Total
	if superadmin {
		total += max(l.Total/10, 1)
	}
	var e *fault.Error
	switch {
	case of.kind == Stream && p.byUser[of] >= l.StreamsPerUser:
		e = fault.Exhaustedf("you have %d streams open (WebSockets and event streams), which is all that one user may have on a manager",
			l.StreamsPerUser).WithNext("close a stream, or ask an administrator to raise manager.streams.streams_per_user")
	case of.kind == Wait && p.byUser[of] >= l.WaitsPerUser:
		e = fault.Exhaustedf("you have %d requests waiting, which is all that one user may have on a manager", l.WaitsPerUser).
			WithNext("wait for some of them, or ask an administrator to raise manager.streams.waits_per_user")
	case from.IsValid() && p.byAddress[from] >= l.PerAddress:
		e = fault.Exhaustedf("%d streams and waiting requests come from address %s, which is all that one address may have on a manager",
			l.PerAddress, from).
			WithNext("close a stream; if a proxy stands there, ask an administrator to add it to manager.trusted_proxies or to raise " +
				"manager.streams.per_address")
	case p.total >= total:
		return fault.Unavailablef("this manager has %d streams and waiting requests open, which is all that it may have", total).
			WithNext("try again later, or ask an administrator to raise manager.streams.total")
	default:
		return nil
	}
	return e.WithReason(Reason)
}
