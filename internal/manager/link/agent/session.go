package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

const (
	helloTimeout = 10 * time.Second
	// supersedeWait is how long a new connection waits for the older one of its agent to let go.
	supersedeWait = 5 * time.Second
	// inboxSize and outboxSize bound what is read ahead of the Sink and written ahead of the agent.
	inboxSize  = 16
	outboxSize = 16
)

// session is one control stream of one agent. Two goroutines are its own: that of the call, which waits for the end, and read. ingest (to
// the Sink), push (desired state) and send run while there is something to store, to look at or to say. The first to fail ends all.
type session struct {
	link   *Link
	agent  cluster.AgentID
	remote string
	// version is what both sides of the stream speak.
	version int32
	log     *slog.Logger
	stream  grpc.BidiStreamingServer[node.Up, node.Down]

	ctx    context.Context
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when the stream is over
	ends   []func()      // what end calls, the last one first; of the call

	epoch    atomic.Int64                 // 0 until registered
	lastSeen atomic.Int64                 // unix nanoseconds on the link's clock
	sent     atomic.Pointer[sentRevision] // the newest desired state put on the wire
	// held are the kernels that are to run on the agent, as they were read last; never changed, only replaced.
	held atomic.Pointer[map[cluster.KernelID]bool]

	inbox     chan *node.Up
	out       chan *node.Down
	ingesting ingesting
	pushing   pushing
	sending   sending
	// delivery is what the agent was told of its desired state.
	delivery delivery

	mu      sync.Mutex
	actions map[string]chan *node.ActionReply
}

var errSuperseded = fault.Conflictf("a newer connection of this agent took over").WithReason("superseded")

// Session serves one control stream until either side ends it.
func (l *Link) Session(stream grpc.BidiStreamingServer[node.Up, node.Down]) error {
	err := l.serve(stream)
	if err != nil && stream.Context().Err() == nil && !errors.Is(err, io.EOF) {
		l.log.Info("control stream ended", "remote", remote(stream.Context()), "error", err)
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return grpcError(err)
}

// serve lets the session begin and end in goroutines of their own. That of the call waits as long as the agent is connected, and a stack
// that once was deep stays large.
func (l *Link) serve(stream grpc.BidiStreamingServer[node.Up, node.Down]) error {
	var s *session
	var err error
	aside(func() { s, err = l.begin(stream) })
	if err == nil {
		<-s.ctx.Done()
		err = context.Cause(s.ctx)
	}
	if s != nil {
		aside(func() { s.end(err) })
	}
	return err
}

// aside calls f in a goroutine of its own, and returns when f does.
func aside(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// begin makes the session of a stream and has the agent registered. A session that it returns must be ended, also where it fails.
func (l *Link) begin(stream grpc.BidiStreamingServer[node.Up, node.Down]) (*session, error) {
	state, ok := tlsState(stream.Context())
	if !ok {
		return nil, fault.New(fault.Unauthenticated, "no TLS")
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	// It is watched before its certificate is looked at, so that no end of the certificate is missed.
	watched := l.watch.add(state, cancel)
	agent, serial, err := l.auth.Agent(ctx, state)
	if err != nil {
		watched.leave()
		cancel(nil)
		return nil, err
	}
	s := newSession(l, agent, l.log.With("agent", agent), stream)
	s.remote, s.ctx, s.cancel = remote(ctx), ctx, cancel
	s.atEnd(func() { cancel(nil) })
	s.atEnd(watched.leave)
	s.atEnd(func() { close(s.done) })
	s.saw()
	// The reader may stay in Recv until the stream is closed by the call's return, so Stop waits for it, not we.
	l.work.Go(s.read)
	return s, s.begin(serial)
}

// begin has the agent registered, and all that the session does begun.
func (s *session) begin(serial string) error {
	l, ctx := s.link, s.ctx
	hello, err := s.hello()
	if err != nil {
		return err
	}
	s.version = min(hello.Version, node.Version)
	s.atEnd(func() { l.leave(s) })
	if err := l.enter(s); err != nil {
		return err
	}
	group, err := l.auth.ResourceGroup(ctx, s.agent)
	if err != nil {
		return err
	}
	if hello.ResourceGroup != "" && hello.ResourceGroup != group {
		s.log.Info("an agent asks for a resource group that its join token does not name; an administrator decides: "+
			"berth admin join-token create --resource-group, or berth agent move", "asked", hello.ResourceGroup, "token", group)
	}
	epoch, err := l.d.Sink.Register(ctx, cluster.NodeHello{
		Agent: s.agent, BootID: hello.BootId, Version: hello.AgentVersion, ResourceGroup: group, Region: hello.Region,
		Addr: s.remote, Serial: serial, HighestEpoch: hello.HighestEpoch,
	})
	if err != nil {
		return fmt.Errorf("register agent %s: %w", s.agent, err)
	}
	if l.d.Hold != nil {
		if err := l.d.Hold(ctx, s.agent, epoch); err != nil {
			return fmt.Errorf("note that agent %s is connected here: %w", s.agent, err)
		}
	}
	s.epoch.Store(epoch)
	s.atEnd(s.farewell)
	s.log.Info("agent connected", "remote", s.remote, "epoch", epoch, "version", hello.AgentVersion)
	s.atEnd(s.stopSending)
	s.startSending(&node.Down{Kind: &node.Down_Welcome{Welcome: &node.Welcome{
		Version: s.version, Epoch: epoch, LeaseMs: l.cfg.Lease.Milliseconds(), HeartbeatMs: l.cfg.Heartbeat.Milliseconds(),
	}}})
	if l.hub.wants(s.agent) {
		s.askForStreams()
	}
	s.atEnd(s.stopPushing)
	s.startPushing()
	s.atEnd(s.stopIngesting)
	s.startIngesting()
	return nil
}

// atEnd has end call f, before what it was told earlier.
func (s *session) atEnd(f func()) { s.ends = append(s.ends, f) }

// end undoes what begin did.
func (s *session) end(why error) {
	s.cancel(why)
	for _, f := range slices.Backward(s.ends) {
		f()
	}
}

func newSession(l *Link, agent cluster.AgentID, log *slog.Logger, stream grpc.BidiStreamingServer[node.Up, node.Down]) *session {
	return &session{
		link: l, agent: agent, log: log, stream: stream, done: make(chan struct{}),
		inbox: make(chan *node.Up, inboxSize), out: make(chan *node.Down, outboxSize),
		actions: map[string]chan *node.ActionReply{},
	}
}

// enter makes s the session of its agent and lets the older one end first, so that epochs
// are handed out in the order of connections.
func (l *Link) enter(s *session) error {
	l.mu.Lock()
	if l.stopping {
		l.mu.Unlock()
		return errStopping
	}
	old := l.sessions[s.agent]
	l.sessions[s.agent] = s
	l.mu.Unlock()
	if old == nil {
		return nil
	}
	old.cancel(errSuperseded)
	limit := time.NewTimer(supersedeWait)
	defer limit.Stop()
	select {
	case <-old.done:
	case <-limit.C: // its epoch fences what it may still do
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	return nil
}

func (l *Link) leave(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sessions[s.agent] == s {
		delete(l.sessions, s.agent)
	}
}

// farewell tells the Sink that the stream is over; the agent's lease goes on.
func (s *session) farewell() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), 5*time.Second)
	defer cancel()
	if err := s.link.d.Sink.Disconnected(ctx, s.agent, s.epoch.Load()); err != nil {
		s.log.Warn("cannot note that the agent disconnected", "error", err)
	}
	if s.link.d.Release != nil {
		if err := s.link.d.Release(ctx, s.agent, s.epoch.Load()); err != nil {
			s.log.Warn("cannot note that the agent is connected here no more", "error", err)
		}
	}
	s.log.Info("agent disconnected", "epoch", s.epoch.Load(), "why", context.Cause(s.ctx))
}

func (s *session) hello() (*node.Hello, error) {
	timer := time.NewTimer(helloTimeout)
	defer timer.Stop()
	var up *node.Up
	select {
	case up = <-s.inbox:
	case <-timer.C:
		return nil, fault.New(fault.Timeout, "agent %s did not say hello", s.agent)
	case <-s.ctx.Done():
		return nil, context.Cause(s.ctx)
	}
	h := up.GetHello()
	switch {
	case h == nil:
		return nil, fault.Invalidf("the first message of agent %s is no hello", s.agent)
	case h.Version < 1:
		return nil, fault.Invalidf("agent %s speaks version %d of the control stream", s.agent, h.Version).WithNext("upgrade the agent")
	case h.AgentId != string(s.agent):
		return nil, fault.Deniedf("the certificate belongs to agent %s, the hello to %q", s.agent, h.AgentId).WithReason("wrong-identity")
	case h.ClusterId != "" && h.ClusterId != s.link.d.ClusterID:
		return nil, fault.Deniedf("agent %s belongs to cluster %s, this is %s", s.agent, h.ClusterId, s.link.d.ClusterID).
			WithReason("wrong-cluster").WithNext("join this cluster with an empty state directory of the agent")
	}
	return h, nil
}

func (s *session) saw()             { s.lastSeen.Store(s.link.d.Clock.Now().UnixNano()) }
func (s *session) heard() time.Time { return time.Unix(0, s.lastSeen.Load()) }

func (s *session) wake() {
	s.delivery.ask(time.Now())
	s.look(false)
}

// read fills the inbox. A full inbox stops the reading, and by flow control the agent.
func (s *session) read() {
	for {
		up, err := s.stream.Recv()
		if err != nil {
			s.cancel(err)
			return
		}
		s.saw()
		switch k := up.Kind.(type) {
		case *node.Up_Heartbeat, nil:
			continue
		case *node.Up_ActionReply:
			s.reply(k.ActionReply)
			continue
		}
		select {
		case s.inbox <- up:
			s.wakeIngest()
		case <-s.ctx.Done():
			return
		}
	}
}

// sending is what send works with. An agent that nothing is to be told costs no goroutine here.
type sending struct {
	mu sync.Mutex
	// open says that the stream takes messages, busy that send runs, streams that the agent is to be asked for its stream connection.
	open, busy, streams bool
	beat                chassis.Timer

	// These are send's own.
	told    []string     // the managers that the agent knows of
	granted *node.Grants // what it was told about grants
}

// startSending sends the welcome and then what is put, with a heartbeat now and then.
func (s *session) startSending(welcome *node.Down) {
	s.out <- welcome // nothing may come before it
	w := &s.sending
	w.mu.Lock()
	w.open = true
	w.beat = s.link.d.Clock.AfterFunc(s.link.cfg.Heartbeat, s.beat)
	w.mu.Unlock()
	s.wakeSend()
}

// welcomed tells whether messages may be put.
func (w *sending) welcomed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}

// stopSending lets no more messages out. It does not wait: Send may hang in flow control until the call's return closes the stream.
func (s *session) stopSending() {
	w := &s.sending
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = false
	w.beat.Stop()
}

// wakeSend has what is in out sent.
func (s *session) wakeSend() {
	w := &s.sending
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open && !w.busy {
		w.busy = true
		s.link.work.Go(s.send)
	}
}

// asks tells whether the agent dials its stream connection when it is asked to.
func (s *session) asks() bool { return s.sending.welcomed() && s.version >= node.VersionStreams }

// askForStreams has the agent dial its stream connection.
func (s *session) askForStreams() {
	if !s.asks() {
		return
	}
	s.sending.mu.Lock()
	s.sending.streams = true
	s.sending.mu.Unlock()
	s.wakeSend()
}

// next takes the next message to send; nil ends send.
func (s *session) next() *node.Down {
	w := &s.sending
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		select {
		case m := <-s.out:
			return m
		default:
		}
		if w.streams {
			w.streams = false
			return &node.Down{Kind: &node.Down_Streams{Streams: &node.Streams{}}}
		}
	}
	w.busy = false
	return nil
}

// send is the only writer of the stream. With a heartbeat comes what else the agent is to know by then.
func (s *session) send() {
	w := &s.sending
	for m := s.next(); m != nil; m = s.next() {
		err := s.stream.Send(m)
		if err == nil && (m.GetHeartbeat() != nil || m.GetWelcome() != nil) {
			if managers := s.managers(); !slices.Equal(managers, w.told) {
				w.told = managers
				err = s.stream.Send(&node.Down{Kind: &node.Down_Managers{Managers: &node.Managers{Addresses: managers}}})
			}
			if err == nil && s.verifiesGrants() {
				err = s.tellGrants()
			}
		}
		if err != nil {
			s.cancel(fmt.Errorf("send: %w", err))
			return
		}
	}
}

// tellGrants tells what is new about grants. It belongs to send.
func (s *session) tellGrants() error {
	w := &s.sending
	g := s.grants()
	switch {
	case g == nil && w.granted == nil:
		s.beatIn(min(grantsSoon, s.link.cfg.Heartbeat))
	case g != nil && !sameGrants(g, w.granted):
		w.granted = g
		return s.stream.Send(&node.Down{Kind: &node.Down_Grants{Grants: g}})
	}
	return nil
}

// beatIn has the next heartbeat come after a time.
func (s *session) beatIn(after time.Duration) {
	w := &s.sending
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		w.beat.Reset(after)
	}
}

// beat sends a heartbeat and notices an agent that fell silent.
func (s *session) beat() {
	now := s.link.d.Clock.Now()
	if silence := now.Sub(s.heard()); silence > s.link.cfg.Lease {
		s.cancel(fault.New(fault.Timeout, "agent %s was silent for %s", s.agent, silence.Round(time.Second)))
		return
	}
	s.beatIn(s.link.cfg.Heartbeat)
	s.hurry() // what it finds missing has the next one come sooner
}

// hurry tells the agent at once what comes with heartbeats. Where the queue is full, or the welcome is to come, it is told soon.
func (s *session) hurry() {
	if !s.sending.welcomed() {
		return
	}
	select {
	case s.out <- heartbeat(s.link.d.Clock.Now()):
		s.wakeSend()
	default:
	}
}

func heartbeat(now time.Time) *node.Down {
	return &node.Down{Kind: &node.Down_Heartbeat{Heartbeat: &node.Heartbeat{SentUnixMs: now.UnixMilli()}}}
}

// versionManagers is the first version of the stream whose agents take the list of managers.
const versionManagers = 4

// managers is the list to tell the agent; nil when there is nothing to tell.
func (s *session) managers() []string {
	if s.link.d.Managers == nil || s.version < versionManagers {
		return nil
	}
	list := s.link.d.Managers()
	return list[:min(len(list), node.MaxManagers)]
}

func (s *session) put(m *node.Down) bool {
	select {
	case s.out <- m:
		s.wakeSend()
		return true
	case <-s.ctx.Done():
		return false
	}
}

const (
	// attemptTimeout bounds one attempt of retry.
	attemptTimeout = 30 * time.Second
	// maxDefects is how many attempts of retry in a row may fail while the database is there.
	maxDefects = 8
)

// retry calls fn until it succeeds, the session ends, or its failure cannot pass. While the database is away it goes on: an agent that
// connected again would only wait elsewhere.
func (s *session) retry(what string, fn func(ctx context.Context) error) bool {
	backoff := chassis.Backoff{Min: 50 * time.Millisecond, Max: time.Second}
	defects := 0
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(s.ctx, attemptTimeout)
		err := fn(ctx)
		if !fault.Is(err, fault.Unavailable) && ctx.Err() == nil {
			defects++
		}
		cancel()
		switch {
		case err == nil:
			return true
		case s.ctx.Err() != nil:
			return false
		case fault.ReasonOf(err) == "stale-epoch":
			s.cancel(errSuperseded)
			return false
		case defects == maxDefects:
			// The agent connects again and tells everything anew.
			s.cancel(fmt.Errorf("%s of agent %s: %w", what, s.agent, err))
			return false
		}
		wait := backoff.Next()
		if attempt&(attempt-1) == 0 { // the first ones, then ever fewer: an outage may last
			s.log.Warn("cannot "+what+" now", "error", err, "attempt", attempt, "retry_in", wait)
		}
		if chassis.Wait(s.ctx, chassis.RealClock(), wait) != nil {
			return false
		}
	}
}
