package control

import (
	"context"
	"sync"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
)

// Bounds of look-ups: whoever asks for names that do not exist costs the manager at most so much.
const (
	maxFlights    = 16
	maxMissing    = 4096
	missingLife   = time.Second
	lookupTimeout = 8 * time.Second
)

// place is what a look-up asks for; one of the two is set.
type place struct {
	label string
	port  int
}

// finder asks the manager for circuits that the table does not have: one question a place at a time, and none for a
// second after the answer was no.
type finder struct {
	client *Client

	mu      sync.Mutex
	flights map[place]*flight
	missing map[place]time.Time // until when
}

type flight struct {
	done  chan struct{}
	found *circuit.Circuit
	err   error
}

// Lookup asks for the circuit of a label or a port that the table does not have; nil when there is none.
func (c *Client) Lookup(ctx context.Context, label string, port int) (*circuit.Circuit, error) {
	return c.finder.find(ctx, place{label, port}, false)
}

// Refresh asks for the present circuit of a port whatever the table has.
func (c *Client) Refresh(ctx context.Context, port int) (*circuit.Circuit, error) {
	return c.finder.find(ctx, place{"", port}, true)
}

func (c *Client) at(p place) *circuit.Circuit {
	if p.label != "" {
		return c.Table().ByLabel(p.label)
	}
	return c.Table().ByPort(p.port)
}

func (f *finder) find(ctx context.Context, p place, fresh bool) (*circuit.Circuit, error) {
	if found := f.client.at(p); found != nil && !fresh {
		return found, nil
	}
	now := f.client.o.Clock.Now()
	f.mu.Lock()
	if until, ok := f.missing[p]; ok && now.Before(until) && !fresh {
		f.mu.Unlock()
		return nil, nil
	}
	fl := f.flights[p]
	if fl == nil {
		if len(f.flights) >= maxFlights {
			f.mu.Unlock()
			return nil, fault.Exhaustedf("too many unknown apps are asked for at once").WithReason("lookups").WithNext("try again in a moment")
		}
		fl = &flight{done: make(chan struct{})}
		if f.flights == nil {
			f.flights = map[place]*flight{}
		}
		f.flights[p] = fl
		go f.fly(p, fl) // bounded by lookupTimeout; apart from ctx, because others wait for it too
	}
	f.mu.Unlock()
	select {
	case <-fl.done:
		return fl.found, fl.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (f *finder) fly(p place, fl *flight) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()
	for learnt := false; !learnt && fl.err == nil; {
		var reply proxy.LookupReply
		snapshots := f.client.snapshots()
		fl.err = f.client.call(ctx, proxy.PathLookup, proxy.LookupRequest{Proxy: f.client.o.Instance().Name, Label: p.label, Port: p.port},
			&reply)
		learnt = reply.Circuit == nil || f.client.learn(*reply.Circuit, snapshots)
	}
	if fl.err == nil {
		fl.found = f.client.at(p) // the table knows better what is gone meanwhile
	}
	f.mu.Lock()
	delete(f.flights, p)
	if fl.err == nil && fl.found == nil {
		f.miss(p)
	}
	f.mu.Unlock()
	close(fl.done)
}

// miss remembers that there is nothing; f.mu is held.
func (f *finder) miss(p place) {
	now := f.client.o.Clock.Now()
	if len(f.missing) >= maxMissing {
		for old, until := range f.missing {
			if !now.Before(until) {
				delete(f.missing, old)
			}
		}
	}
	if f.missing == nil || len(f.missing) >= maxMissing {
		f.missing = map[place]time.Time{}
	}
	f.missing[p] = now.Add(missingLife)
}
