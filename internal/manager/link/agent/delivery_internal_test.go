package agent

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// TestDeliveryOfOrders: an order counts as waiting from the wake that it came with until a look that began later was handed to the stream.
func TestDeliveryOfOrders(t *testing.T) {
	t.Parallel()
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	d := &delivery{}
	require.Zero(t, d.since())
	_, ok := d.news()
	require.False(t, ok)

	d.ask(at(10))
	d.ask(at(11))
	require.Equal(t, at(10), d.since(), "the oldest order counts")
	d.begin(at(12))
	require.Equal(t, at(10), d.since(), "a look that has begun delivers nothing yet")
	d.ask(at(13)) // after the query of the look
	d.done(at(12))
	require.Equal(t, at(13), d.since(), "this one came too late for the look")
	news, ok := d.news()
	require.True(t, ok)
	require.Equal(t, at(12), news, "what the query saw, not when it was sent")

	d.begin(at(14))
	d.done(at(15)) // the first query failed, the second one began then
	require.Zero(t, d.since())
	d.store(at(12)) // an answer for the delivery before
	news, ok = d.news()
	require.True(t, ok)
	require.Equal(t, at(15), news)
	d.store(at(15))
	_, ok = d.news()
	require.False(t, ok, "the sink knows")

	d.begin(at(16)) // a look without a wake, at a resync
	require.Equal(t, at(16), d.since())
}

// noteSink is a sink that notes deliveries, as long as the database is there.
type noteSink struct {
	outageSink
	noted []cluster.OrdersAge
}

func (n *noteSink) Delivered(_ context.Context, ages []cluster.OrdersAge) error {
	if time.Now().Before(n.back) {
		return fault.Unavailablef("the database does not answer")
	}
	n.noted = append(n.noted, ages...)
	return nil
}

// TestUndeliveredOrdersAreUnhealthy: while the database is away nobody learns of deliveries, and after ten seconds the manager's health
// names the agent and since when it waits. Afterwards the age of what the agent was told is noted, once.
func TestUndeliveredOrdersAreUnhealthy(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		sink := &noteSink{outageSink: outageSink{each: time.Millisecond}}
		cfg := DefaultConfig()
		cfg.Resync = time.Hour
		l := &Link{cfg: cfg, d: Deps{Sink: sink, Clock: chassis.RealClock()}, log: slog.New(slog.DiscardHandler),
			sessions: map[cluster.AgentID]*session{}}
		s := newSession(l, "a1", l.log, nil)
		s.ctx, s.cancel = ctx, cancel
		l.sessions["a1"] = s
		l.sessions["a2"] = newSession(l, "a2", l.log, nil) // it has no orders
		ended := make(chan struct{})
		go func() { defer close(ended); s.push() }()
		defer func() { cancel(nil); <-ended }()
		<-s.out
		synctest.Wait()
		require.NoError(t, l.Delivering(ctx))
		l.tellDeliveries(ctx)
		require.Equal(t, []cluster.OrdersAge{{Agent: "a1", Age: 0}}, sink.noted)
		sink.noted = nil
		l.tellDeliveries(ctx)
		require.Empty(t, sink.noted, "there is no news")

		<-time.After(time.Minute) // quiet: no order waits
		require.NoError(t, l.Delivering(ctx))
		given := time.Now()
		sink.back = given.Add(time.Minute)
		s.wake()
		<-time.After(deliveryPatience - time.Second)
		require.NoError(t, l.Delivering(ctx), "orders may be on their way for a while")
		<-time.After(2 * time.Second)
		err := l.Delivering(ctx)
		require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
		require.ErrorContains(t, err, "orders to agent a1 have not been delivered since "+given.UTC().Format(time.RFC3339))
		l.sessions["a2"].wake()
		<-time.After(deliveryPatience)
		require.ErrorContains(t, l.Delivering(ctx), "orders to 2 of 2 agents have not been delivered since "+given.UTC().Format(time.RFC3339))
		delete(l.sessions, "a2")
		l.tellDeliveries(ctx)
		require.Empty(t, sink.noted)

		<-time.After(time.Until(sink.back))
		<-s.out
		synctest.Wait()
		require.NoError(t, l.Delivering(ctx))
		<-time.After(5 * time.Second)
		sink.back = time.Now().Add(time.Second)
		l.tellDeliveries(ctx) // the database is away again for a moment
		require.Empty(t, sink.noted)
		<-time.After(time.Second)
		l.tellDeliveries(ctx)
		require.Len(t, sink.noted, 1, "what could not be noted is noted later")
		require.Equal(t, cluster.AgentID("a1"), sink.noted[0].Agent)
		require.GreaterOrEqual(t, sink.noted[0].Age, 6*time.Second, "since its query began")
		require.Less(t, sink.noted[0].Age, time.Minute)
	})
}
