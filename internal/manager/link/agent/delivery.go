package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// deliveryPatience is how long orders may be on their way before the manager counts as unhealthy.
const deliveryPatience = 10 * time.Second

// delivery tells how far an agent has been told what it should do. Its times are of this machine's clock, as is their age: the Sink gets
// ages only.
type delivery struct {
	mu sync.Mutex
	// asked is when the first wake came that no look has taken up yet, looking when the need for the present look arose; zero: none.
	asked, looking time.Time
	// delivered is when the newest look began whose answer was handed to the stream; stored is the one that the Sink knows of.
	delivered, stored time.Time
}

// ask notes a wake.
func (d *delivery) ask(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.asked.IsZero() {
		d.asked = now
	}
}

// begin notes that a look begins, for the wakes so far.
func (d *delivery) begin(now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.looking = d.asked; d.looking.IsZero() {
		d.looking = now
	}
	d.asked = time.Time{}
}

// done notes that the agent was told what a query found that began then.
func (d *delivery) done(began time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.looking, d.delivered = time.Time{}, began
}

// since is when the oldest order was given that is still to be delivered; zero: none is known.
func (d *delivery) since() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.looking.IsZero() {
		return d.looking
	}
	return d.asked
}

// news is the newest delivery that the Sink does not know of.
func (d *delivery) news() (at time.Time, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.delivered, d.delivered.After(d.stored)
}

// store notes that the Sink knows of a delivery.
func (d *delivery) store(at time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stored = at
}

// tellDeliveries tells the Sink how far agents have been told what they should do.
func (l *Link) tellDeliveries(ctx context.Context) {
	var ages []cluster.OrdersAge
	var sessions []*session
	var ats []time.Time
	l.mu.Lock()
	for id, s := range l.sessions {
		if at, ok := s.delivery.news(); ok {
			ages = append(ages, cluster.OrdersAge{Agent: id, Age: max(time.Since(at), 0)})
			sessions, ats = append(sessions, s), append(ats, at)
		}
	}
	l.mu.Unlock()
	if len(ages) == 0 {
		return
	}
	if err := l.d.Sink.Delivered(ctx, ages); err != nil {
		if ctx.Err() == nil {
			l.log.Warn("cannot note how far agents were told what to do", "agents", len(ages), "error", err)
		}
		return
	}
	for i, s := range sessions {
		s.delivery.store(ats[i])
	}
}

// Delivering reports, as an error, that orders to agents have been waiting for long.
func (l *Link) Delivering(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var oldest time.Time
	var example cluster.AgentID
	waiting := 0
	for id, s := range l.sessions {
		since := s.delivery.since()
		if since.IsZero() || time.Since(since) < deliveryPatience {
			continue
		}
		if waiting++; oldest.IsZero() || since.Before(oldest) {
			oldest, example = since, id
		}
	}
	if waiting == 0 {
		return nil
	}
	text := fmt.Sprintf("orders to %d of %d agents", waiting, len(l.sessions))
	if waiting == 1 {
		text = "orders to agent " + string(example)
	}
	return fault.Unavailablef("%s have not been delivered since %s", text, oldest.UTC().Format(time.RFC3339)).
		WithNext("see whether the database and the agents answer")
}
