package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/agent"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

const (
	dialTimeout = 5 * time.Second
	// lookupTimeout bounds one question of who holds an agent.
	lookupTimeout = 5 * time.Second
	// maxStreams bounds the byte streams relayed to one manager, and those relayed for one.
	maxStreams = 4000
	// maxFailure bounds the failure that another manager tells, in bytes.
	maxFailure = 64 << 10
)

// Local are the agents that are connected to this manager; *agent.Link is it.
type Local interface {
	// Holds tells whether an agent's byte streams are here and work, or would as soon as one is opened; Await waits a moment for them to
	// work.
	Holds(agent cluster.AgentID) bool
	Await(ctx context.Context, agent cluster.AgentID) error
	RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error)
}

// Options are what a Relay needs.
type Options struct {
	// ID is this manager's.
	ID    string
	Local Local
	// Holder returns the id of the manager that an agent registered with last, "" when there is none.
	Holder func(ctx context.Context, agent cluster.AgentID) (string, error)
	// Find returns where a manager is; false when it does not announce itself.
	Find func(id string) (Presence, bool)
	// TLS is the client configuration towards other managers' agent ports.
	TLS func() *tls.Config
	Log *slog.Logger
}

// Relay reaches every agent of the cluster, whichever manager it is connected to. It is safe for concurrent use.
type Relay struct {
	o      Options
	dialer net.Dialer

	mu     sync.Mutex
	peers  map[string]*link   // by manager id
	links  map[*link]struct{} // peers, and those that finish what runs on them
	closed bool
	ctx    context.Context // of dials
	cancel context.CancelFunc
	work   sync.WaitGroup
}

// NewRelay makes a relay; nothing is dialed before the first request that needs it.
func NewRelay(o Options) *Relay {
	r := &Relay{o: o, peers: map[string]*link{}, links: map[*link]struct{}{}, dialer: net.Dialer{Timeout: dialTimeout}}
	r.ctx, r.cancel = context.WithCancel(context.Background()) // Stop ends it
	return r
}

// elsewhere is a failure to reach the manager that holds an agent. The agent has not seen the request.
type elsewhere struct {
	error
	// unsent says that there was no connection to that manager either, so the request's body is whole.
	unsent bool
}

func (e elsewhere) Unwrap() error { return e.error }

func unseen(err error) bool {
	var e elsewhere
	return errors.As(err, &e)
}

// repeatable reports whether a request can be sent again after err: its body is whole, or can be had again.
func repeatable(req *http.Request, err error) bool {
	var e elsewhere
	return errors.As(err, &e) && (e.unsent || req.Body == nil || req.Body == http.NoBody || req.GetBody != nil)
}

// RoundTrip sends a request to an agent, see agent.Link, through the manager that it is connected to. The caller
// closes the reply's body. An agent that cannot be reached is Unavailable. When the other manager is gone or has the agent no
// more, a request whose body can be sent again is tried once more: the agent may have moved.
func (r *Relay) RoundTrip(id cluster.AgentID, req *http.Request) (*http.Response, error) {
	resp, err := r.once(id, req)
	if err == nil || !repeatable(req, err) {
		return resp, err
	}
	ctx := req.Context()
	if !r.moved(ctx, id) {
		return nil, err
	}
	again := req.Clone(ctx)
	if req.GetBody != nil {
		if again.Body, err = req.GetBody(); err != nil {
			return nil, fault.New(fault.Internal, "read the request's body again").WithCause(err)
		}
	}
	return r.once(id, again)
}

// Upgrade opens a full-duplex stream to an agent; see agent.Upgrade. It looks for the agent twice, like RoundTrip.
func (r *Relay) Upgrade(ctx context.Context, id cluster.AgentID, path string, header http.Header) (io.ReadWriteCloser, error) {
	stream, err := agent.Upgrade(ctx, r.once, id, path, header)
	if err == nil || !unseen(err) || !r.moved(ctx, id) {
		return stream, err
	}
	return agent.Upgrade(ctx, r.once, id, path, header)
}

// moved waits a moment for an agent that may just be connecting to this manager. It reports whether to look again.
func (r *Relay) moved(ctx context.Context, id cluster.AgentID) bool {
	_ = r.o.Local.Await(ctx, id) // it may have connected to a third manager
	return ctx.Err() == nil
}

// once looks for the agent and sends the request there.
func (r *Relay) once(id cluster.AgentID, req *http.Request) (*http.Response, error) {
	if r.o.Local.Holds(id) {
		return r.o.Local.RoundTrip(id, req)
	}
	holder, err := r.holder(req.Context(), id)
	if err != nil {
		return nil, err
	}
	if holder == "" || holder == r.o.ID {
		gone := r.o.Local.Await(req.Context(), id) // it may be just connecting, to this manager or to another one
		if gone == nil {
			return r.o.Local.RoundTrip(id, req)
		}
		if holder, err = r.holder(req.Context(), id); err != nil || holder == "" || holder == r.o.ID {
			return nil, gone
		}
	}
	p, ok := r.o.Find(holder)
	if !ok {
		return nil, elsewhere{away(id, holder, nil), true}
	}
	l, err := r.link(p)
	if err != nil {
		return nil, err
	}
	return l.send(id, req)
}

// holder asks which manager an agent registered with last, "" for none.
func (r *Relay) holder(ctx context.Context, id cluster.AgentID) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	holder, err := r.o.Holder(ctx, id)
	if err != nil {
		return "", fault.Unavailablef("the manager of agent %s cannot be looked up", id).WithCause(err).WithNext("try again")
	}
	return holder, nil
}

func away(id cluster.AgentID, manager string, cause error) error {
	return fault.Unavailablef("agent %s is connected to manager %s, which does not answer", id, manager).WithReason("agent-not-connected").
		WithCause(cause).WithNext("try again in a moment: the agent connects to another manager")
}

var errStopping = fault.Unavailablef("this manager is stopping").WithNext("try again")

// link returns the way to a manager where its announcement says that it is.
func (r *Relay) link(p Presence) (*link, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, errStopping
	}
	l := r.peers[p.ID]
	if l != nil && l.addr == p.Agents {
		return l, nil
	}
	if l != nil {
		r.work.Go(l.retire) // what runs on it goes on
	}
	for id := range r.peers { // of managers that are gone for good
		if _, there := r.o.Find(id); !there && len(r.peers) >= maxManagers {
			r.work.Go(r.peers[id].retire)
			delete(r.peers, id)
		}
	}
	l = &link{r: r, id: p.ID, addr: p.Agents}
	r.peers[p.ID] = l
	r.links[l] = struct{}{}
	return l, nil
}

func (r *Relay) forget(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.links, l)
}

// Stop ends all connections to other managers and waits until they are over.
func (r *Relay) Stop(context.Context) error {
	r.cancel()
	r.mu.Lock()
	r.closed = true
	all := slices.Collect(maps.Keys(r.links))
	r.mu.Unlock()
	for _, l := range all {
		l.close()
	}
	r.work.Wait()
	return nil
}

// failed reads the failure that another manager tells instead of an agent's reply.
func failed(resp *http.Response) error {
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxFailure)) // what came says enough
	err := run.FaultOf(resp.StatusCode, text)
	if fault.ReasonOf(err) == "agent-not-connected" {
		return elsewhere{err, false}
	}
	return err
}

// meant marks a request with the agent it is for and the manager it is sent to.
func meant(req *http.Request, id cluster.AgentID, manager string) *http.Request {
	out := req.Clone(req.Context())
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", "agent", "agent", ""
	out.Header.Set(node.HeaderAgent, string(id))
	out.Header.Set(node.HeaderManager, manager)
	return out
}
