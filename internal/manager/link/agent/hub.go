package agent

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/link/h2"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/run"
)

const (
	// connectWait is how long a request waits for an agent that is just connecting.
	connectWait = 3 * time.Second
	// idleStreams is how long a connection stays open that no stream is on.
	idleStreams = 5 * time.Minute
	// maxStreams bounds the byte streams open to one agent.
	maxStreams = 1000
)

// hub holds the stream connections of agents, on which this manager is the HTTP/2 client. An agent has one while byte streams of it are
// in use, and for a while after: a connection costs more memory than all else that an idle agent does. Agents that do not know that
// they may be asked have theirs all the time.
type hub struct {
	log  *slog.Logger
	ask  func(cluster.AgentID) // has an agent dial; it does not block
	now  func() time.Time
	wait time.Duration  // connectWait, but for tests
	work sync.WaitGroup // closes retired connections

	mu    sync.Mutex
	conns map[cluster.AgentID]*streamConn
	// asked are agents whose connection is to come.
	asked map[cluster.AgentID]bool
	// retired connections finish what runs on them.
	retired map[*streamConn]struct{}
	change  chan struct{} // closed and replaced when a connection is added
	closed  bool
}

type streamConn struct {
	agent  cluster.AgentID
	http   *http.ClientConn
	raw    net.Conn
	member *member // nil where nobody watches the certificate
	// streams under way, when there last was one, and retired belong to the hub's lock.
	streams int
	used    time.Time
	retired bool
}

func newHub(log *slog.Logger, now func() time.Time, ask func(cluster.AgentID)) *hub {
	return &hub{log: log, now: now, ask: ask, wait: connectWait, conns: map[cluster.AgentID]*streamConn{}, asked: map[cluster.AgentID]bool{},
		retired: map[*streamConn]struct{}{}, change: make(chan struct{})}
}

// add takes a connection over. An older one of the same agent gets no new streams; those
// that are under way on it go on until they end or it breaks.
func (h *hub) add(ctx context.Context, agent cluster.AgentID, conn net.Conn, m *member) error {
	c, err := newStreamConn(ctx, agent, conn)
	if err != nil {
		return err
	}
	c.member = m
	return h.put(c)
}

// newStreamConn begins HTTP/2 as its client.
func newStreamConn(ctx context.Context, agent cluster.AgentID, conn net.Conn) (*streamConn, error) {
	cc, err := h2.NewClient(ctx, "agent "+string(agent), conn)
	if err != nil {
		return nil, err
	}
	return &streamConn{agent: agent, http: cc, raw: conn}, nil
}

// put makes a connection the agent's.
func (h *hub) put(c *streamConn) error {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		c.close()
		return errStopping
	}
	old := h.conns[c.agent]
	h.conns[c.agent], c.used = c, h.now()
	delete(h.asked, c.agent)
	close(h.change)
	h.change = make(chan struct{})
	if old != nil {
		h.retire(old)
	}
	h.mu.Unlock()
	// A connection that has broken meanwhile calls the hook at once, and the hook takes the lock.
	c.http.SetStateHook(func(cc *http.ClientConn) {
		if cc.Err() != nil {
			h.drop(c)
		}
	})
	h.log.Debug("agent stream connection open", "agent", c.agent, "remote", c.raw.RemoteAddr())
	return nil
}

// retire closes a connection once no stream runs on it; h.mu is held.
func (h *hub) retire(c *streamConn) {
	c.retired = true
	h.retired[c] = struct{}{}
	h.settle(c)
}

// settle closes a retired connection without streams; h.mu is held.
func (h *hub) settle(c *streamConn) {
	if c.retired && c.streams == 0 && !h.closed {
		delete(h.retired, c)
		h.work.Go(c.close) // closing calls the state hook, which takes h.mu
	}
}

// release gives back a stream that find counted.
func (h *hub) release(c *streamConn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c.streams--
	c.used = h.now()
	h.settle(c)
}

// want has an agent dial unless it has a connection that works, or is dialling.
func (h *hub) want(agent cluster.AgentID) {
	h.mu.Lock()
	c := h.conns[agent]
	dial := !h.closed && !h.asked[agent] && (c == nil || c.http.Err() != nil)
	if dial {
		h.asked[agent] = true
	}
	h.mu.Unlock()
	if dial {
		h.ask(agent)
	}
}

// wants tells whether an agent's connection is to come.
func (h *hub) wants(agent cluster.AgentID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[agent]
}

// unasked notes that nobody waits for an agent's connection any more: who wants it next asks again.
func (h *hub) unasked(agent cluster.AgentID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.asked, agent)
}

// closeIdle closes the connections that have not been used since then, of agents that may be asked for another one.
func (h *hub) closeIdle(since time.Time, asks func(cluster.AgentID) bool) {
	h.mu.Lock()
	var idle []*streamConn
	for _, c := range h.conns {
		if c.streams == 0 && c.used.Before(since) {
			idle = append(idle, c)
		}
	}
	h.mu.Unlock()
	idle = slices.DeleteFunc(idle, func(c *streamConn) bool { return !asks(c.agent) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range idle {
		if h.conns[c.agent] == c && c.streams == 0 { // still
			delete(h.conns, c.agent)
			h.retire(c)
		}
	}
}

func (c *streamConn) close() {
	c.member.leave()
	_ = c.http.Close()
	_ = c.raw.Close()
}

func (h *hub) drop(c *streamConn) {
	c.member.leave()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns[c.agent] == c {
		delete(h.conns, c.agent)
	}
}

func (h *hub) close() {
	h.mu.Lock()
	h.closed = true
	list := make([]*streamConn, 0, len(h.conns))
	for _, c := range h.conns {
		list = append(list, c)
	}
	clear(h.conns)
	for c := range h.retired {
		list = append(list, c)
	}
	h.mu.Unlock()
	for _, c := range list {
		c.close() // breaks what runs on it
	}
	h.work.Wait()
}

// find returns the agent's connection with one more stream counted on it, waiting a little
// for one that is being set up. release follows.
func (h *hub) find(ctx context.Context, agent cluster.AgentID) (*streamConn, error) {
	var limit *time.Timer
	for {
		c, change, err := h.take(agent)
		if c != nil || err != nil {
			return c, err
		}
		h.want(agent)
		if limit == nil {
			limit = time.NewTimer(h.wait)
			defer limit.Stop()
		}
		select {
		case <-change:
		case <-limit.C:
			h.unasked(agent)
			return nil, notConnected(agent)
		case <-ctx.Done():
			h.unasked(agent)
			return nil, context.Cause(ctx)
		}
	}
}

// holds reports whether the agent has a connection that works.
func (h *hub) holds(agent cluster.AgentID) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.conns[agent]
	return c != nil && c.http.Err() == nil
}

// take is one look of find; c is nil while the agent has no connection that works.
func (h *hub) take(agent cluster.AgentID) (c *streamConn, change <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c = h.conns[agent]
	switch {
	case h.closed:
		return nil, nil, errStopping
	case c == nil || c.http.Err() != nil:
		return nil, h.change, nil
	case c.streams >= maxStreams:
		return nil, nil, fault.Exhaustedf("agent %s has %d byte streams open, no more are possible", agent, maxStreams).
			WithNext("close terminals and downloads that are no longer used")
	}
	c.streams++
	return c, nil, nil
}

// served reports whether agents answer a path: what belongs to a kernel, to images, or to the agent's health.
func served(path string) bool {
	switch path {
	case node.StreamImages, node.StreamRemoveImage, node.StreamHealth:
		return true
	}
	return strings.HasPrefix(path, "/kernels/")
}

// RoundTrip sends a request (path /kernels/<id>/... or another that agents serve) to an agent. The caller closes the
// reply's body. An agent that is away is Unavailable; the request was then not sent.
func (l *Link) RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error) {
	if !served(req.URL.Path) {
		return nil, fault.New(fault.Internal, "agents serve no path %q", req.URL.Path)
	}
	ctx := req.Context()
	c, err := l.hub.find(ctx, agent)
	if err != nil {
		return nil, err
	}
	out := req.Clone(ctx)
	out.URL.Scheme, out.URL.Host, out.Host, out.RequestURI = "http", "agent", "agent", ""
	resp, err := c.http.RoundTrip(out)
	if err != nil {
		l.hub.release(c)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, fault.Unavailablef("the connection to agent %s broke", agent).WithReason("agent-not-connected").WithCause(err).
			WithNext("try again")
	}
	resp.Body = &countedBody{ReadCloser: resp.Body, release: func() { l.hub.release(c) }}
	return resp, nil
}

// countedBody gives its stream back when it is closed.
type countedBody struct {
	io.ReadCloser
	once    sync.Once
	release func()
}

func (b *countedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.release)
	return err
}

// Upgrade opens a full-duplex stream: one POST whose bodies flow both ways. It returns once
// the agent has answered 200; closing it ends both directions.
func (l *Link) Upgrade(ctx context.Context, agent cluster.AgentID, path string, header http.Header) (io.ReadWriteCloser, error) {
	return Upgrade(ctx, l.RoundTrip, agent, path, header)
}

// Upgrade is Link.Upgrade over any way to agents.
func Upgrade(ctx context.Context, roundTrip func(cluster.AgentID, *http.Request) (*http.Response, error),
	agent cluster.AgentID, path string, header http.Header,
) (io.ReadWriteCloser, error) {
	// The stream outlives the call but not the context.
	r, w := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, r)
	if err != nil {
		return nil, fault.Invalidf("the path %q cannot be used", path).WithCause(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := roundTrip(agent, req)
	if err != nil {
		_ = w.CloseWithError(err)
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		_ = w.CloseWithError(io.ErrClosedPipe)
		defer resp.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
		if json.Valid(text) { // the words of whoever refused, with their next step
			return nil, run.FaultOf(resp.StatusCode, text)
		}
		return nil, fault.New(kindOfStatus(resp.StatusCode), "agent %s refused the stream: %s", agent, strings.TrimSpace(string(text)))
	}
	return &duplex{ReadCloser: resp.Body, w: w}, nil
}

// duplex joins the two bodies of a stream.
type duplex struct {
	io.ReadCloser
	w *io.PipeWriter
}

func (d *duplex) Write(p []byte) (int, error) { return d.w.Write(p) }

// CloseWrite ends the direction to the agent only.
func (d *duplex) CloseWrite() error { return d.w.Close() }

func (d *duplex) Close() error {
	_ = d.w.Close()
	return d.ReadCloser.Close()
}

func kindOfStatus(code int) fault.Kind {
	switch code {
	case http.StatusNotFound:
		return fault.NotFound
	case http.StatusConflict:
		return fault.Conflict
	case http.StatusBadRequest:
		return fault.Invalid
	case http.StatusForbidden:
		return fault.Denied
	case http.StatusTooManyRequests, http.StatusRequestEntityTooLarge:
		return fault.Exhausted
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		return fault.Unavailable
	case http.StatusGatewayTimeout:
		return fault.Timeout
	}
	return fault.Internal
}
