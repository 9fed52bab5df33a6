package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/node"
)

// session is one open control stream.
type session struct {
	l       *Link
	addr    string // of the manager
	stream  node.Node_SessionClient
	welcome *node.Welcome
	replies chan *node.ActionReply
	applied chan struct{} // a full desired state was taken: it is answered with a full observed one
	heard   atomic.Int64  // when the manager last said something, unix ns
	beats   atomic.Bool   // this manager sends heartbeats, so its silence means something
	busy    atomic.Int32
	renewed time.Time // last attempt; send's own
	group   sync.WaitGroup
}

const (
	maxActions = 8
	// maxObserved bounds the kernels of one delta, maxLogs the logs in one message.
	maxObserved = 128
	maxLogs     = 3 << 20
)

// reportLinger is how long a step on the way of a kernel waits for the next before it is reported: the way from an order
// to a container takes a few milliseconds, and each report costs the manager a transaction. That a kernel runs waits no longer either,
// where others of its session are still on their way (Keeper.Pressing).
const reportLinger = 25 * time.Millisecond

// send is the only one who writes to the stream.
func (s *session) send(ctx context.Context) error {
	l := s.l
	if err := s.put(factsOf(l.o.Facts())); err != nil {
		return err
	}
	if err := s.sendAll(); err != nil {
		return err
	}
	beat := time.Duration(s.welcome.GetHeartbeatMs()) * time.Millisecond
	if beat <= 0 {
		beat = 5 * time.Second
	}
	tick := l.o.Clock.NewTicker(beat)
	defer tick.Stop()
	linger := l.o.Clock.NewTimer(reportLinger)
	defer linger.Stop()
	lingering := true
	for {
		var err error
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C():
			now := l.o.Clock.Now()
			lease := time.Duration(s.welcome.GetLeaseMs()) * time.Millisecond
			if silent := now.Sub(time.Unix(0, s.heard.Load())); s.beats.Load() && lease > 0 && silent > lease {
				return fmt.Errorf("the manager has been silent for %s", silent.Round(time.Second))
			}
			s.renew(ctx, now)
			err = s.put(&node.Up{Kind: &node.Up_Heartbeat{Heartbeat: &node.Heartbeat{SentUnixMs: now.UnixMilli()}}})
		case <-l.o.Keeper.Changed():
			if l.o.Keeper.Pressing() {
				err = s.sendChanges()
			} else if !lingering {
				lingering = true
				linger.Reset(reportLinger)
			}
		case <-linger.C():
			lingering = false
			err = s.sendChanges()
		case <-s.applied:
			err = s.sendAll()
		case <-l.o.NewFacts:
			err = s.put(factsOf(l.o.Facts()))
		case <-l.o.Meter.Ready():
			if sample, ok := l.o.Meter.Take(); ok {
				err = s.put(metricsOf(sample))
			}
		case r := <-s.replies:
			err = s.put(&node.Up{Kind: &node.Up_ActionReply{ActionReply: r}})
		}
		if err != nil {
			return err
		}
	}
}

// renewEvery is the pause between two attempts to renew the node certificate.
const renewEvery = 10 * time.Minute

// renew replaces the node certificate in time although the stream never breaks: after its
// expiry the agent could not come back without a join token.
func (s *session) renew(ctx context.Context, now time.Time) {
	if now.Before(s.l.id.RenewAt()) || now.Sub(s.renewed) < renewEvery {
		return
	}
	s.renewed = now
	s.group.Go(func() {
		if err := s.l.id.EnsureJoined(ctx, s.addr); err != nil && ctx.Err() == nil {
			s.l.o.Log.Warn("renew the node certificate", "err", err)
		}
	})
}

func (s *session) put(up *node.Up) error {
	if err := s.stream.Send(up); err != nil {
		if errors.Is(err, io.EOF) {
			return errors.New("the manager closed the control stream")
		}
		return fmt.Errorf("control stream: %w", node.FaultOf(err))
	}
	return nil
}

func (s *session) observed(full bool, kernels []*node.ObservedKernel) error {
	s.l.rev++
	return s.put(&node.Up{Kind: &node.Up_Observed{Observed: &node.Observed{
		Full: full, Revision: s.l.rev, DesiredRevision: s.l.o.Keeper.Revision(), Kernels: kernels}}})
}

// sendAll tells everything. Logs that would make the message too large follow in deltas; their
// kernels are told as still ending, because an end is told with its log or not at all.
func (s *session) sendAll() error {
	var out []*node.ObservedKernel
	var later []cluster.KernelID
	logs := 0
	for _, o := range s.l.o.Keeper.TakeAll() {
		tail := s.logTail(o)
		if logs+len(tail) > maxLogs {
			later = append(later, o.Kernel)
			o, tail = cluster.KernelObservation{Kernel: o.Kernel, Session: o.Session, Generation: o.Generation, Phase: cluster.PhaseTerminating,
				StartedAt: o.StartedAt, ContainerID: o.ContainerID, Allocation: o.Allocation, Batch: o.Batch}, ""
		}
		logs += len(tail)
		out = append(out, observedOf(o, tail))
	}
	if err := s.observed(true, out); err != nil {
		return err
	}
	if len(later) > 0 {
		s.l.o.Keeper.Retell(later...)
	}
	return nil
}

// sendChanges tells what changed.
func (s *session) sendChanges() error {
	kernels, progress := s.l.o.Keeper.TakeChanges(maxObserved)
	var out []*node.ObservedKernel
	logs := 0
	flush := func() error {
		err := s.observed(false, out)
		out, logs = nil, 0
		return err
	}
	for _, o := range kernels {
		tail := s.logTail(o)
		if len(out) > 0 && logs+len(tail) > maxLogs {
			if err := flush(); err != nil {
				return err
			}
		}
		logs += len(tail)
		out = append(out, observedOf(o, tail))
	}
	if len(out) > 0 {
		if err := flush(); err != nil {
			return err
		}
	}
	for _, p := range progress {
		if err := s.put(progressOf(p)); err != nil {
			return err
		}
	}
	return nil
}

func (s *session) logTail(o cluster.KernelObservation) string {
	if o.Phase != cluster.PhaseEnded {
		return ""
	}
	return s.l.o.Keeper.LogTail(o.Kernel)
}

// receive takes what the manager says until the stream breaks.
func (s *session) receive(ctx context.Context) error {
	for {
		down, err := s.stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return errors.New("the manager closed the control stream")
			}
			return fmt.Errorf("control stream: %w", node.FaultOf(err))
		}
		s.heard.Store(s.l.o.Clock.Now().UnixNano())
		switch m := down.GetKind().(type) {
		case *node.Down_Desired:
			if err := s.desired(m.Desired); err != nil {
				return err
			}
		case *node.Down_Ack:
			tombs := make([]cluster.Tombstone, 0, len(m.Ack.GetKernels()))
			for _, t := range m.Ack.GetKernels() {
				tombs = append(tombs, cluster.Tombstone{Kernel: cluster.KernelID(t.GetKernelId()), Generation: t.GetGeneration()})
			}
			s.l.o.Keeper.Ack(tombs)
		case *node.Down_Action:
			s.action(ctx, m.Action)
		case *node.Down_Managers:
			s.l.managers.Learn(m.Managers.GetAddresses())
		case *node.Down_Grants:
			if err := s.l.o.Grants(m.Grants.GetKeys(), m.Grants.GetEndedCircuits(), revocationsOf(m.Grants)); err != nil {
				s.l.o.Log.Error("the keys of grants are not kept for the next start", "err", err)
			}
		case *node.Down_Streams:
			s.l.wish()
		case *node.Down_Heartbeat:
			s.beats.Store(true)
			if sent := m.Heartbeat.GetSentUnixMs(); sent > 0 && s.l.o.Beat != nil {
				s.l.o.Beat(time.UnixMilli(sent))
			}
		}
	}
}

func (s *session) desired(d *node.Desired) error {
	if d.GetEpoch() < s.l.o.Ledger.Epoch() {
		return fault.Conflictf("a desired state of epoch %d came, epoch %d was seen before", d.GetEpoch(), s.l.o.Ledger.Epoch()).
			WithReason("stale-epoch")
	}
	if err := s.l.o.Ledger.SetEpoch(d.GetEpoch()); err != nil {
		return err
	}
	kernels := make([]cluster.DesiredKernel, 0, len(d.GetKernels()))
	for _, p := range d.GetKernels() {
		k, err := desiredOf(p)
		if err != nil {
			s.l.o.Log.Error("a desired kernel cannot be read", "kernel", p.GetKernelId(), "err", err)
			if k.Kernel == "" {
				continue
			}
			k.Spec = nil // the keeper answers for it with a named failure
		}
		kernels = append(kernels, k)
	}
	s.l.o.Keeper.SetDesired(d.GetFull(), d.GetRevision(), kernels)
	if !d.GetFull() {
		return nil
	}
	select {
	case s.applied <- struct{}{}:
	default:
	}
	return nil
}

// action starts one piece of imperative work; too many at a time are refused.
func (s *session) action(ctx context.Context, a *node.Action) {
	if s.busy.Add(1) > maxActions {
		s.busy.Add(-1)
		s.reply(ctx, a, nil, fault.Exhaustedf("the agent is busy with %d actions", maxActions))
		return
	}
	limit := time.Duration(a.GetDeadlineMs()) * time.Millisecond
	if limit <= 0 || limit > 10*time.Minute {
		limit = time.Minute
	}
	s.group.Go(func() {
		defer s.busy.Add(-1)
		actCtx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		body, err := s.l.o.Act(actCtx, a.GetVerb(), a.GetBody())
		s.reply(ctx, a, body, err)
	})
}

func (s *session) reply(ctx context.Context, a *node.Action, body []byte, err error) {
	r := &node.ActionReply{RequestId: a.GetRequestId(), Body: body}
	if err != nil {
		r.Error, r.ErrorKind = err.Error(), fault.KindOf(err).String()
	}
	select {
	case s.replies <- r:
	case <-ctx.Done():
	}
}

// errEnded says that a stream connection was open and is so no more.
var errEnded = errors.New("the connection ended")

// streams opens one connection on which the manager is the HTTP/2 client, and serves it until it breaks.
func (l *Link) streams(ctx context.Context, addr string) error {
	raw, err := l.dial.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	conn := tls.Client(raw, l.id.TLS(node.ALPNStream))
	shake, cancel := context.WithTimeout(ctx, 15*time.Second)
	err = conn.HandshakeContext(shake)
	cancel()
	if err == nil && conn.ConnectionState().NegotiatedProtocol != node.ALPNStream {
		err = errors.New("the manager does not speak " + node.ALPNStream)
	}
	if err != nil {
		_ = raw.Close()
		return fmt.Errorf("connect: %w", err)
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	closer := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer closer()
	srv := &http2.Server{
		MaxConcurrentStreams: 2000, ReadIdleTimeout: 15 * time.Second, PingTimeout: 15 * time.Second,
		MaxUploadBufferPerConnection: 4 << 20, MaxUploadBufferPerStream: 1 << 20,
	}
	// ServeConn returns when the connection is gone; handlers may outlive it a little, until they
	// notice that their context has ended.
	handlers := newDoor()
	srv.ServeConn(conn, &http2.ServeConnOpts{
		Context:    ctx,
		BaseConfig: &http.Server{ErrorLog: slog.NewLogLogger(l.o.Log.Handler(), slog.LevelDebug)},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !handlers.enter() {
				return
			}
			defer handlers.leave()
			defer func() {
				if p := recover(); p != nil {
					if p != http.ErrAbortHandler { //nolint:errorlint // the very value is compared
						l.o.Log.Error("a stream handler failed", "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
					}
					panic(http.ErrAbortHandler)
				}
			}()
			l.o.Handler.ServeHTTP(w, r)
		}),
	})
	stop()
	handlers.close()
	return errEnded
}

// door counts those inside; after close nobody enters any more.
type door struct {
	mu     sync.Mutex
	inside int
	closed bool
	empty  chan struct{}
}

func newDoor() *door { return &door{empty: make(chan struct{})} }

func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.inside++
	}
	return !d.closed
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inside--; d.closed && d.inside == 0 {
		close(d.empty)
	}
}

// close waits until all have left.
func (d *door) close() {
	d.mu.Lock()
	d.closed = true
	if d.inside == 0 {
		close(d.empty)
	}
	d.mu.Unlock()
	<-d.empty
}
