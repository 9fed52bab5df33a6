package bench_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
)

// A simulated agent speaks the wire of an agent and runs nothing: a batch job ends well as soon as it is ordered. Thousands of them cost
// less than ten agents, so that what a manager needs for an agent can be told from what the agent needs itself.
type simulated struct {
	id      string
	manager string
	member  *membership.Member

	mu      sync.Mutex
	seen    int64                           // the newest desired state
	kernels map[string]*node.ObservedKernel // by id
	changed map[string]bool
	wake    chan struct{} // capacity 1
	dial    chan struct{} // capacity 1: the manager asks for the stream connection
}

// linger is how long a simulated agent gathers what it has to report, as agents do.
const linger = 25 * time.Millisecond

// joinTries is how often a simulated agent asks for its certificate: one among thousands may come while the disk is busy.
const joinTries = 5

// fleet are the simulated agents of one process.
type fleet struct {
	dir, manager string
	work         sync.WaitGroup
	ctx          context.Context
}

func runNodes(t *testing.T) map[string]func([]string) (any, error) {
	f := &fleet{dir: os.Getenv("BERTH_ROLE_DIR"), manager: os.Getenv("BERTH_ROLE_MANAGER"), ctx: t.Context()}
	t.Cleanup(f.work.Wait)
	return map[string]func([]string) (any, error){"add": f.add}
}

// add starts simulated agents: the number of the first one, then a join token for each.
func (f *fleet) add(args []string) (any, error) {
	first, err := strconv.Atoi(args[0])
	if err != nil {
		return nil, err
	}
	for i, token := range args[1:] {
		s := &simulated{id: agentID(first + i), manager: f.manager, kernels: map[string]*node.ObservedKernel{}, changed: map[string]bool{},
			wake: make(chan struct{}, 1), dial: make(chan struct{}, 1)}
		s.member, err = membership.Open(membership.Options{Dir: filepath.Join(f.dir, s.id), Name: s.id, Log: slog.New(slog.DiscardHandler),
			Clock: chassis.RealClock(), Token: func() (chassis.Secret, error) { return chassis.NewSecret(token), nil }})
		if err != nil {
			return nil, err
		}
		for tries := 1; ; tries++ {
			if err = s.member.EnsureJoined(f.ctx, f.manager); err == nil {
				break
			}
			if tries == joinTries {
				return nil, err
			}
		}
		f.work.Go(func() { s.keep(f.ctx, s.control) })
		f.work.Go(func() { s.keep(f.ctx, s.streams) })
	}
	return len(args) - 1, nil
}

// keep calls connect again while ctx lives.
func (s *simulated) keep(ctx context.Context, connect func(context.Context) error) {
	for ctx.Err() == nil {
		if err := connect(ctx); err != nil && ctx.Err() == nil {
			quiet().Warn("a simulated agent connects again", "agent", s.id, "error", err)
		}
		_ = chassis.Wait(ctx, chassis.RealClock(), time.Second)
	}
}

func (s *simulated) control(ctx context.Context) error {
	conn, err := grpc.NewClient("passthrough:///"+s.manager, grpc.WithTransportCredentials(credentials.NewTLS(s.member.TLS("h2"))),
		grpc.WithReadBufferSize(node.Buffer), grpc.WithWriteBufferSize(node.Buffer), grpc.WithSharedWriteBuffer(true),
		grpc.WithStaticStreamWindowSize(node.Window), grpc.WithStaticConnWindowSize(node.Window))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := node.NewNodeClient(conn).Session(ctx)
	if err != nil {
		return err
	}
	hello := &node.Hello{Version: node.Version, AgentId: s.id, BootId: "simulated", AgentVersion: "simulated", ClusterId: s.member.ClusterID()}
	if err := stream.Send(&node.Up{Kind: &node.Up_Hello{Hello: hello}}); err != nil {
		return err
	}
	down, err := stream.Recv()
	if err != nil {
		return err
	}
	if down.GetWelcome() == nil {
		return errors.New("no welcome")
	}
	var reading sync.WaitGroup
	defer reading.Wait()
	defer cancel(nil)
	reading.Go(func() {
		for {
			down, err := stream.Recv()
			if err != nil {
				cancel(err)
				return
			}
			s.take(down)
		}
	})
	return s.tell(ctx, stream, time.Duration(down.GetWelcome().GetHeartbeatMs())*time.Millisecond)
}

// take does what the manager says.
func (s *simulated) take(down *node.Down) {
	if down.GetStreams() != nil {
		select {
		case s.dial <- struct{}{}:
		default:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range down.GetAck().GetKernels() {
		if k := s.kernels[t.KernelId]; k != nil && k.Generation == t.Generation {
			delete(s.kernels, t.KernelId)
		}
	}
	d := down.GetDesired()
	if d == nil {
		return
	}
	s.seen = d.Revision
	for _, k := range d.Kernels {
		s.order(k)
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// order carries out the order of one kernel; s.mu is held.
func (s *simulated) order(k *node.DesiredKernel) {
	known := s.kernels[k.KernelId]
	now := time.Now().UnixMilli()
	if known == nil || known.Generation != k.Generation {
		known = &node.ObservedKernel{KernelId: k.KernelId, SessionId: k.SessionId, Generation: k.Generation, Phase: node.Phase_PHASE_RUNNING,
			StartedUnixMs: now, ContainerId: k.KernelId, Allocation: k.Spec.GetAllocation(), Batch: k.Spec.GetSessionType() == "batch"}
	}
	if known.Phase == node.Phase_PHASE_RUNNING && (k.Stop || known.Batch) {
		code := int32(0)
		known.Phase, known.ExitCode, known.EndedUnixMs, known.Reason = node.Phase_PHASE_ENDED, &code, now, "self-terminated"
		if k.Stop {
			known.Reason = k.StopReason
		}
	}
	s.kernels[k.KernelId], s.changed[k.KernelId] = known, true
}

// tell reports until the stream breaks.
func (s *simulated) tell(ctx context.Context, stream node.Node_SessionClient, beat time.Duration) error {
	if err := stream.Send(&node.Up{Kind: &node.Up_Facts{Facts: simulatedFacts(s.id)}}); err != nil {
		return err
	}
	revision := time.Now().UnixMilli()
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for full := true; ; {
		s.mu.Lock()
		o := &node.Observed{Full: full, Revision: revision, DesiredRevision: s.seen}
		for id, k := range s.kernels {
			if full || s.changed[id] {
				o.Kernels = append(o.Kernels, proto.Clone(k).(*node.ObservedKernel))
			}
		}
		clear(s.changed)
		s.mu.Unlock()
		if full || len(o.Kernels) > 0 {
			if err := stream.Send(&node.Up{Kind: &node.Up_Observed{Observed: o}}); err != nil {
				return err
			}
			revision++
		}
		full = false
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-s.wake:
			if err := chassis.Wait(ctx, chassis.RealClock(), linger); err != nil {
				return err
			}
		case now := <-tick.C:
			err := stream.Send(&node.Up{Kind: &node.Up_Heartbeat{Heartbeat: &node.Heartbeat{SentUnixMs: now.UnixMilli()}}})
			if err == nil { // agents measure as often as they say that they are alive
				err = stream.Send(&node.Up{Kind: &node.Up_Metrics{Metrics: &node.Metrics{AtUnixMs: now.UnixMilli(),
					Node: map[string]float64{"cpu_util": 12.5, "mem": 1 << 30, "cpu_used": 1, "net_rx": 1, "net_tx": 1, "disk": 1}}}})
			}
			if err != nil {
				return err
			}
		}
	}
}

func simulatedFacts(id string) *node.Facts {
	f := &node.Facts{Architecture: "x86_64", Hostname: id, Engine: "simulated", EngineOk: true, Revision: 1,
		Slots:     map[string]string{"cpu": strconv.Itoa(benchCores), "mem": strconv.FormatInt(benchMemory, 10)},
		SlotKinds: map[string]string{"cpu": "count", "mem": "bytes"},
		Devices:   []*node.Device{{Slot: "mem", Id: "root", Numa: -1, Capacity: benchMemory * 1000, Healthy: true}},
		Images: []*node.Image{{Reference: benchImage, Digest: "sha256:" + fmt.Sprintf("%064x", 1), Architecture: "x86_64", SizeBytes: 1,
			Labels: map[string]string{}}}}
	for i := range benchCores {
		f.Devices = append(f.Devices, &node.Device{Slot: "cpu", Id: strconv.Itoa(i), Numa: -1, Capacity: 1000, Healthy: true})
	}
	return f
}

// streams opens the connection for byte streams when the manager asks for it, and answers nothing.
func (s *simulated) streams(ctx context.Context) error {
	select {
	case <-s.dial:
	case <-ctx.Done():
		return nil
	}
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", s.manager)
	if err != nil {
		return err
	}
	conn := tls.Client(raw, s.member.TLS(node.ALPNStream))
	defer conn.Close()
	if err := conn.HandshakeContext(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	server := &http2.Server{ReadIdleTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}
	server.ServeConn(conn, &http2.ServeConnOpts{Context: ctx, Handler: http.NotFoundHandler()})
	return errors.New("the connection for streams ended")
}

// grow adds simulated agents until there are n, and waits until the manager knows them all.
func (c *controller) grow(b *testing.B, n int) {
	b.Helper()
	// Fewer than the join tokens that may be open at a time: each node that joins has the manager look at all of them.
	const atOnce = 50
	for c.grown < n {
		more := min(atOnce, n-c.grown)
		var tokens []string
		c.manager.ask(b, &tokens, "tokens", c.grown, more)
		c.nodes.ask(b, nil, append([]any{"add", c.grown}, anys(tokens)...)...)
		c.grown += more
	}
	c.until(b, n, `SELECT count(*) FROM agents WHERE status = 'ALIVE' AND devices <> '[]'`)
	c.importImages(b)
	require.Equal(b, n, c.grown)
}

func anys(list []string) (out []any) {
	for _, s := range list {
		out = append(out, s)
	}
	return out
}
