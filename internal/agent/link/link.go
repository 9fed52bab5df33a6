// Package link connects an agent to its manager: joining, the control stream with the desired
// state down and the observed state up, and the second connection over which the manager calls
// the agent's streams.
//
// It carries states, not events: what could not be sent is sent in its newest form after
// the next connect. It decides nothing about kernels; that is package keeper.
package link

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/meter"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
)

// Facts describe this node.
type Facts struct {
	cluster.NodeFacts
	Devices []Device
}

// Device is a device as the allocator knows it, with what people are told of it.
type Device struct {
	alloc.Device
	Memory  int64  // its own, in bytes; 0 when it has none or it is unknown
	Problem string // why it is not healthy, in words
}

// Options are what a link needs.
type Options struct {
	Managers []string // host:port of managers' agent ports; at least one
	Dir      string   // for the node's key and certificate
	Hello    cluster.NodeHello
	// Token returns the join token; an empty one, or os.ErrNotExist, when there is none.
	Token    func() (chassis.Secret, error)
	Keeper   *keeper.Keeper
	Ledger   *ledger.Ledger
	Meter    *meter.Meter
	Facts    func() Facts
	NewFacts <-chan struct{}
	Handler  http.Handler
	// Act carries out an action of the manager.
	Act func(ctx context.Context, verb string, body []byte) ([]byte, error)
	// Grants takes what a manager says about the grants of app proxies: the keys that verify them, circuits that ended, and app
	// proxies that were revoked.
	Grants func(keys [][]byte, ended []string, revoked []proxy.Revocation) error
	// Beat is told when a manager sent a heartbeat, by that manager's clock; nil: nobody wants to know.
	Beat  func(sent time.Time)
	Log   *slog.Logger
	Clock chassis.Clock
}

// Link is the agent's connection to its manager.
type Link struct {
	o        Options
	id       *membership.Member
	managers *membership.Managers
	dial     net.Dialer
	rev      int64

	connected atomic.Bool

	// The manager that the control stream is with; byte streams belong to the same one.
	mu     sync.Mutex
	home   string                  // "" before the first session
	asks   bool                    // that manager asks for the connection for byte streams; others want it all the time
	opened chan struct{}           // closed and replaced when a control stream opens
	leave  context.CancelCauseFunc // ends the stream connection
	wished chan struct{}           // capacity 1: the manager asks for the connection
}

// New opens the node's identity; nothing is dialed yet.
func New(o Options) (*Link, error) {
	id, err := membership.Open(membership.Options{Dir: o.Dir, Name: string(o.Hello.Agent), Token: o.Token, Log: o.Log, Clock: o.Clock})
	if err != nil {
		return nil, err
	}
	return &Link{
		o: o, id: id, rev: o.Clock.Now().UnixMilli(), opened: make(chan struct{}),
		wished: make(chan struct{}, 1), dial: membership.Dialer(),
		managers: membership.NewManagers(o.Managers, rand.Float64()),
	}, nil
}

// Connected reports whether the control stream is open.
func (l *Link) Connected() bool { return l.connected.Load() }

// Manager is the manager that the agent is connected to, or tries next.
func (l *Link) Manager() string { return l.managers.Present() }

// Member is the agent's membership of the cluster.
func (l *Link) Member() *membership.Member { return l.id }

const (
	retryMin = 100 * time.Millisecond
	retryMax = 5 * time.Second
	// steady is how long a connection must last to count as a success.
	steady = 10 * time.Second
)

// Run keeps the control stream open until ctx ends.
func (l *Link) Run(ctx context.Context) error {
	return l.managers.Keep(ctx, membership.Connect{
		Clock: l.o.Clock, Random: rand.Float64, Log: l.o.Log,
		To: func(ctx context.Context, addr string) (worked bool, err error) {
			if err := l.id.EnsureJoined(ctx, addr); err != nil {
				return false, err
			}
			return l.session(ctx, addr)
		},
	})
}

// RunStreams opens the connection for byte streams, to the manager that the control stream is with, whenever that asks for it, until
// ctx ends. The connection outlives the control stream, but not one that is with another manager.
func (l *Link) RunStreams(ctx context.Context) error { return l.runStreams(ctx, l.streams) }

func (l *Link) runStreams(ctx context.Context, serve func(ctx context.Context, addr string) error) error {
	return l.keep(ctx, "stream connection", func(ctx context.Context) error {
		ctx, leave := context.WithCancelCause(ctx)
		defer leave(nil)
		for {
			home, asks, opened := l.at(leave)
			var wished <-chan struct{}
			switch {
			case !l.connected.Load():
			case !asks:
				return serve(ctx, home)
			default:
				wished = l.wished
			}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-opened:
			case <-wished:
				if err := serve(ctx, home); !errors.Is(err, errEnded) {
					l.wish() // the manager still waits
					return err
				}
			}
		}
	})
}

// wish notes that the manager asks for a connection for byte streams. While one is open it is the next one that is asked for: the manager
// has lost the present one, or closed it, and this side is about to notice.
func (l *Link) wish() {
	select {
	case l.wished <- struct{}{}:
	default:
	}
}

var errMoved = errors.New("the agent is connected to another manager now")

// at is the manager of the last control stream, whether it asks for byte streams, and a channel that is closed when the next control
// stream opens. leave is called when that is with another manager.
func (l *Link) at(leave context.CancelCauseFunc) (home string, asks bool, opened <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leave = leave
	return l.home, l.asks, l.opened
}

// settle notes that a control stream of that version is open. What the manager of an earlier one asked for is forgotten.
func (l *Link) settle(addr string, version int32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.home != "" && l.home != addr && l.leave != nil {
		l.leave(errMoved)
	}
	l.home, l.asks = addr, version >= node.VersionStreams
	select {
	case <-l.wished:
	default:
	}
	l.connected.Store(true)
	close(l.opened)
	l.opened = make(chan struct{})
}

// keep calls f again and again, with growing pauses while it fails quickly. The same
// trouble is told once, not at every attempt.
func (l *Link) keep(ctx context.Context, what string, f func(context.Context) error) error {
	backoff := chassis.Backoff{Min: retryMin, Max: retryMax}
	last := ""
	for {
		began := l.o.Clock.Now()
		err := f(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if l.o.Clock.Now().Sub(began) > steady {
			backoff.Reset()
		}
		if err == nil {
			err = errors.New("the manager closed it")
		}
		if text := err.Error(); text != last {
			last = text
			l.o.Log.Warn("the "+what+" to the manager is down; trying again", "manager", l.Manager(), "err", err, "next", fault.NextOf(err))
		}
		wait := backoff.Next()
		wait = wait/2 + time.Duration(rand.Int64N(int64(wait/2)+1)) // many agents must not come back at once
		if err := chassis.Wait(ctx, l.o.Clock, wait); err != nil {
			return err
		}
	}
}

func (l *Link) dialer() grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) { return l.dial.DialContext(ctx, "tcp", addr) })
}

// session opens one control stream and works on it until it breaks. welcome says whether the manager took it.
func (l *Link) session(ctx context.Context, addr string) (welcome bool, err error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(l.id.TLS("h2"))), l.dialer(),
		grpc.WithReadBufferSize(node.Buffer), grpc.WithWriteBufferSize(node.Buffer), grpc.WithSharedWriteBuffer(true),
		grpc.WithStaticStreamWindowSize(node.Window), grpc.WithStaticConnWindowSize(node.Window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(32<<20)))
	if err != nil {
		return false, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	return l.Converse(ctx, addr, func(ctx context.Context) (node.Node_SessionClient, error) {
		return node.NewNodeClient(conn).Session(ctx)
	})
}

// Converse opens a control stream to the manager at addr and works on it until it breaks. welcome says whether the manager took it.
// Run calls it with streams of the network; a simulation brings its own.
func (l *Link) Converse(ctx context.Context, addr string,
	open func(context.Context) (node.Node_SessionClient, error)) (welcome bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := open(ctx)
	if err != nil {
		return false, fmt.Errorf("connect: %w", node.FaultOf(err))
	}
	h := l.o.Hello
	err = stream.Send(&node.Up{Kind: &node.Up_Hello{Hello: &node.Hello{
		Version: node.Version, AgentId: string(h.Agent), BootId: h.BootID, AgentVersion: h.Version, ClusterId: l.id.ClusterID(),
		HighestEpoch: l.o.Ledger.Epoch(), ResourceGroup: h.ResourceGroup, Region: h.Region,
	}}})
	if err != nil {
		return false, l.broken(stream, err)
	}
	late := l.o.Clock.AfterFunc(20*time.Second, func() { cancel(errors.New("the manager did not welcome this agent in time")) })
	down, err := stream.Recv()
	late.Stop()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return false, cause
		}
		return false, fmt.Errorf("greet the manager: %w", node.FaultOf(err))
	}
	w := down.GetWelcome()
	if w == nil {
		return false, errors.New("the manager's first message is not a welcome")
	}
	if w.GetVersion() < 1 || w.GetVersion() > node.Version {
		return false, fault.Invalidf("the manager speaks version %d of the control stream, this agent up to %d", w.GetVersion(), node.Version).
			WithNext("update the agent")
	}
	if err := l.o.Ledger.SetEpoch(w.GetEpoch()); err != nil {
		return false, err
	}
	l.o.Log.Info("connected to the manager", "addr", addr, "epoch", w.GetEpoch())
	l.settle(addr, w.GetVersion())
	s := &session{l: l, addr: addr, stream: stream, welcome: w, replies: make(chan *node.ActionReply, 8), applied: make(chan struct{}, 1)}
	s.heard.Store(l.o.Clock.Now().UnixNano())
	defer func() {
		l.connected.Store(false)
		l.o.Keeper.Disconnected()
		cancel(nil)
		s.group.Wait()
	}()
	s.group.Go(func() { cancel(s.receive(ctx)) })
	err = s.send(ctx)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return true, cause
	}
	return true, err
}

// broken finds out why a send failed: the status comes with the next receive.
func (l *Link) broken(stream node.Node_SessionClient, err error) error {
	if _, rerr := stream.Recv(); rerr != nil {
		err = rerr
	}
	return fmt.Errorf("control stream: %w", node.FaultOf(err))
}
