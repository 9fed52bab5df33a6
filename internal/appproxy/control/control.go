// Package control is a proxy's side of wire/proxy: it keeps a copy of the manager's circuits, follows every change, and asks
// what only the manager decides. While no manager answers the copy stays as it is: visitors with tickets go on.
package control

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
)

// Member is this process's membership of the cluster; *membership.Member is one.
type Member interface {
	EnsureJoined(ctx context.Context, addr string) error
	TLS(alpn string) *tls.Config
}

// Options are what a Client works with.
type Options struct {
	Managers *membership.Managers // any of them will do
	Member   Member
	// Instance is how the proxy announces itself; asked at every new watch.
	Instance func() proxy.Instance
	// Changed is told every new table, with the circuits whose connections must end, one call after the other.
	Changed func(t *circuit.Table, closed []circuit.Closed)
	Clock   chassis.Clock
	Random  func() float64 // from 0 to 1, for jitter
	Log     *slog.Logger
}

// The times of the connection.
const (
	silence      = 3 * proxy.Beat
	dialTimeout  = 10 * time.Second
	joinTimeout  = 30 * time.Second
	callTimeout  = 15 * time.Second
	startTimeout = 80 * time.Second // of a launch, which may start the app
	awaitLink    = 2 * time.Second  // how long a call waits for a manager
	maxSnapshot  = 1 << 20          // circuits
	maxReplySize = 1 << 20          // bytes
)

// Client is a proxy's connection to its managers. Run keeps it.
type Client struct {
	o     Options
	table atomic.Pointer[circuit.Table]

	apply  sync.Mutex // held while a table is replaced and told
	resets int        // snapshots so far; under apply

	mu      sync.Mutex
	link    *http2.ClientConn // nil while no manager is connected
	version int               // of the messages that the manager speaks; 0 before version 3
	state   State
	changed chan struct{} // closed and replaced when link or table change

	finder finder
}

// State tells how the client is doing.
type State struct {
	Connected bool      `json:"connected"`
	Manager   string    `json:"manager,omitempty"`
	Since     time.Time `json:"since"` // of being connected or not
	Error     string    `json:"error,omitempty"`
}

// New makes a client with an empty table.
func New(o Options) *Client {
	c := &Client{o: o, changed: make(chan struct{}), state: State{Since: o.Clock.Now(), Error: "not connected yet"}}
	empty, _ := (*circuit.Table)(nil).With(circuit.Change{})
	c.table.Store(empty)
	c.finder.client = c
	return c
}

// Table is the present table; never nil.
func (c *Client) Table() *circuit.Table { return c.table.Load() }

// State tells whether a manager is connected.
func (c *Client) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

// Run follows a manager until ctx ends.
func (c *Client) Run(ctx context.Context) error {
	return c.o.Managers.Keep(ctx, membership.Connect{
		Clock: c.o.Clock, Random: c.o.Random, Log: c.o.Log, To: c.follow,
		Lost: func(_ string, _ bool, err error) { c.disconnected(err) },
	})
}

func (c *Client) disconnected(err error) {
	c.mu.Lock()
	was := c.state
	c.state = State{Since: was.Since, Error: err.Error()}
	if was.Connected {
		c.state.Since = c.o.Clock.Now()
	}
	c.mu.Unlock()
	if was.Connected {
		c.o.Log.Warn("no manager is connected; visitors with tickets go on")
	}
}

// follow connects to one manager and applies what it says until the connection ends. synced reports whether a whole
// snapshot came.
func (c *Client) follow(ctx context.Context, addr string) (synced bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	conn, err := c.dial(ctx, addr)
	if err != nil {
		return false, err
	}
	// Closing the connection ends everything on it, whatever state it is in.
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() { stop(); _ = conn.Close() }()
	transport := &http2.Transport{MaxReadFrameSize: 256 << 10, DisableCompression: true}
	link, err := transport.NewClientConn(conn)
	if err != nil {
		return false, fmt.Errorf("speak HTTP/2 to the manager: %w", err)
	}
	defer c.unlink(link)
	quiet := c.o.Clock.AfterFunc(silence, func() {
		cancel(fault.New(fault.Timeout, "the manager said nothing for %s", silence))
	})
	defer quiet.Stop()
	resp, err := post(ctx, link, proxy.PathWatch, proxy.WatchRequest{Instance: c.o.Instance()})
	if err != nil {
		return false, cause(ctx, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReaderSize(resp.Body, 64<<10)
	w := watch{client: c, link: link, addr: addr}
	for {
		line, err := readLine(lines)
		if err != nil {
			return w.synced, cause(ctx, fmt.Errorf("follow the manager: %w", err))
		}
		quiet.Reset(silence)
		var e proxy.Event
		if err := json.Unmarshal(line, &e); err != nil {
			return w.synced, fmt.Errorf("read an event: %w", err)
		}
		if err := w.take(e); err != nil {
			return w.synced, err
		}
	}
}

func cause(ctx context.Context, err error) error {
	if why := context.Cause(ctx); why != nil {
		return why
	}
	return err
}

func readLine(r *bufio.Reader) ([]byte, error) {
	var long []byte
	for {
		part, err := r.ReadSlice('\n')
		if err == nil && long == nil {
			return part, nil
		}
		if len(long)+len(part) > proxy.MaxLine {
			return nil, errors.New("an event is too long")
		}
		long = append(long, part...)
		switch {
		case err == nil:
			return long, nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

func (c *Client) dial(ctx context.Context, addr string) (*tls.Conn, error) {
	joining, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	if err := c.o.Member.EnsureJoined(joining, addr); err != nil {
		return nil, fmt.Errorf("join the cluster: %w", err)
	}
	ctx, cancel = context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := membership.Dialer()
	raw, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fault.Unavailablef("the manager's agent port %s does not answer", addr).WithCause(err)
	}
	conn := tls.Client(raw, c.o.Member.TLS(proxy.ALPN))
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = raw.Close()
		return nil, fault.Unavailablef("the manager at %s does not accept the proxy", addr).WithCause(err)
	}
	if got := conn.ConnectionState().NegotiatedProtocol; got != proxy.ALPN {
		_ = conn.Close()
		return nil, fault.Unavailablef("the manager at %s knows no app proxies (it speaks %q)", addr, got).
			WithNext("bring manager and proxy to one version")
	}
	return conn, nil
}

// watch is what one connection has said so far.
type watch struct {
	client   *Client
	link     *http2.ClientConn
	addr     string
	version  int // of the manager
	snapshot circuit.Change
	synced   bool
}

// speaks notes the version of the connected manager.
func (c *Client) speaks(link *http2.ClientConn, version int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == link {
		c.version = version
	}
}

func (w *watch) take(e proxy.Event) error {
	if len(e.Managers) > 0 {
		w.client.o.Managers.Learn(e.Managers)
	}
	if e.Version > 0 {
		w.version = e.Version
		w.client.speaks(w.link, e.Version)
	}
	if !e.Snapshot {
		if len(e.Circuits) > 0 || len(e.Gone) > 0 || e.Keys != nil {
			if !w.synced {
				return errors.New("the manager began with something else than a snapshot")
			}
			w.client.change(circuit.Change{Put: e.Circuits, Gone: e.Gone, Keys: e.Keys})
		}
		return nil
	}
	w.snapshot.Put = append(w.snapshot.Put, e.Circuits...)
	if e.Keys != nil {
		w.snapshot.Keys = e.Keys
	}
	if len(w.snapshot.Put) > maxSnapshot {
		return fmt.Errorf("the snapshot has more than %d circuits", maxSnapshot)
	}
	if !e.Complete {
		return nil
	}
	w.snapshot.Reset = true
	w.client.change(w.snapshot)
	n := len(w.snapshot.Put)
	w.snapshot, w.synced = circuit.Change{}, true
	w.client.connected(w.link, w.addr, n)
	w.client.speaks(w.link, w.version)
	return nil
}

// change replaces the table.
func (c *Client) change(what circuit.Change) *circuit.Table {
	c.apply.Lock()
	defer c.apply.Unlock()
	return c.replace(what)
}

// snapshots counts them; a reply that was asked for before one may be older than it.
func (c *Client) snapshots() int {
	c.apply.Lock()
	defer c.apply.Unlock()
	return c.resets
}

// learn puts a circuit of a reply that was asked for when there had been so many snapshots. It reports whether it did: one
// that came meanwhile may know that the circuit is gone.
func (c *Client) learn(p proxy.Circuit, snapshots int) bool {
	c.apply.Lock()
	defer c.apply.Unlock()
	if c.resets != snapshots {
		return false
	}
	c.replace(circuit.Change{Put: []proxy.Circuit{p}})
	return true
}

// replace is change with c.apply held.
func (c *Client) replace(what circuit.Change) *circuit.Table {
	if what.Reset {
		c.resets++
	}
	next, closed := c.Table().With(what)
	c.table.Store(next)
	if c.o.Changed != nil {
		c.o.Changed(next, closed)
	}
	c.wake()
	return next
}

func (c *Client) connected(link *http2.ClientConn, addr string, circuits int) {
	c.mu.Lock()
	again := c.link == link // a further snapshot of the same watch
	if !again {
		c.link, c.state = link, State{Connected: true, Manager: addr, Since: c.o.Clock.Now()}
	}
	c.mu.Unlock()
	if again {
		return
	}
	c.wake()
	c.o.Log.Info("manager connected", "manager", addr, "circuits", circuits)
}

func (c *Client) unlink(link *http2.ClientConn) {
	c.mu.Lock()
	if c.link == link {
		c.link = nil
	}
	c.mu.Unlock()
	c.wake()
}

func (c *Client) wake() {
	c.mu.Lock()
	close(c.changed)
	c.changed = make(chan struct{})
	c.mu.Unlock()
}

// await waits until got says so; it is asked again after every change of link and table.
func (c *Client) await(ctx context.Context, got func() bool) error {
	for {
		c.mu.Lock()
		changed := c.changed
		c.mu.Unlock()
		if got() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// AwaitCircuit waits until the table holds a circuit, for those who know of it before its event is here; nil when ctx ends
// first.
func (c *Client) AwaitCircuit(ctx context.Context, id string, epoch int64) *circuit.Circuit {
	var found *circuit.Circuit
	_ = c.await(ctx, func() bool {
		found = c.Table().ByID(id)
		return found != nil && found.Epoch >= epoch
	}) // the result says the same
	return found
}

func post(ctx context.Context, link *http2.ClientConn, path string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, fault.Invalidf("ask the manager").WithCause(err)
	}
	if len(body) > proxy.MaxRequest {
		return nil, fault.Invalidf("a request of %d bytes is too long for the manager", len(body))
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://manager"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := link.RoundTrip(req)
	if err != nil {
		return nil, fault.Unavailablef("the manager does not answer").WithReason("manager-away").WithCause(err).WithNext("try again in a moment")
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what came says enough
	var f run.Failure
	if json.Unmarshal(text, &f) != nil || f.Msg == "" {
		return nil, fault.Unavailablef("the manager answers %s", resp.Status)
	}
	return nil, run.FaultOf(resp.StatusCode, text)
}

// call asks the connected manager; it waits a moment for one.
func (c *Client) call(ctx context.Context, path string, in, out any) error {
	timeout := callTimeout
	if path == proxy.PathLaunch {
		timeout = startTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var link *http2.ClientConn
	waiting, done := context.WithTimeout(ctx, awaitLink)
	err := c.await(waiting, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		link = c.link
		return link != nil
	})
	done()
	if err != nil {
		return fault.Unavailablef("no manager answers at the moment").WithReason("manager-away").WithNext("try again in a moment")
	}
	resp, err := post(ctx, link, path, in)
	if err != nil {
		if ctx.Err() != nil {
			return fault.New(fault.Timeout, "the manager did not answer in time").WithReason("manager-away").WithCause(err).
				WithNext("try again in a moment")
		}
		return err
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxReplySize)).Decode(out); err != nil {
		return fault.Unavailablef("the manager's answer cannot be read").WithCause(err)
	}
	return nil
}

// Launch publishes an app; its circuit is in the table when it returns.
func (c *Client) Launch(ctx context.Context, req proxy.LaunchRequest) (proxy.LaunchReply, *circuit.Circuit, error) {
	var reply proxy.LaunchReply
	snapshots := c.snapshots()
	if err := c.call(ctx, proxy.PathLaunch, req, &reply); err != nil {
		return reply, nil, err
	}
	if !c.learn(reply.Circuit, snapshots) {
		at := place{label: reply.Circuit.Label}
		if reply.Circuit.Mode == proxy.ModePort {
			at = place{port: reply.Circuit.Port}
		}
		if _, err := c.finder.find(ctx, at, true); err != nil {
			return reply, nil, err
		}
	}
	now := c.Table().ByID(reply.Circuit.ID)
	if now == nil {
		return reply, nil, fault.Conflictf("the app was published, and taken back at once").WithReason("circuit-gone").
			WithNext("see whether the session still runs, then open the app again")
	}
	return reply, now, nil
}

// Bind fixes what a launch token opens and returns the token that opens exactly that. Managers of earlier versions do not know it:
// the token itself is returned.
func (c *Client) Bind(ctx context.Context, req proxy.LaunchRequest) (string, error) {
	if !c.binds() {
		return req.Token, nil
	}
	var reply proxy.BindReply
	err := c.call(ctx, proxy.PathBind, req, &reply)
	return reply.Token, err
}

// binds reports whether the connected manager knows how to bind, or none is connected.
func (c *Client) binds() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link == nil || c.version >= proxy.VersionBind
}

// Redeem turns a one-time code into the right to be a visitor.
func (c *Client) Redeem(ctx context.Context, req proxy.RedeemRequest) (proxy.RedeemReply, error) {
	var reply proxy.RedeemReply
	err := c.call(ctx, proxy.PathRedeem, req, &reply)
	return reply, err
}

// Conf makes a launch token.
func (c *Client) Conf(ctx context.Context, req proxy.ConfRequest) (string, error) {
	var reply proxy.ConfReply
	err := c.call(ctx, proxy.PathConf, req, &reply)
	return reply.Token, err
}

// Close ends the circuits of a launch token's user at a session.
func (c *Client) Close(ctx context.Context, req proxy.CloseRequest) error {
	return c.call(ctx, proxy.PathClose, req, &struct{}{})
}

// Report tells what visitors did.
func (c *Client) Report(ctx context.Context, what []proxy.CircuitActivity) error {
	for len(what) > 0 {
		n := min(len(what), proxy.MaxCircuits)
		if err := c.call(ctx, proxy.PathActivity, proxy.Activity{Circuits: what[:n], At: c.o.Clock.Now()}, &struct{}{}); err != nil {
			return err
		}
		what = what[n:]
	}
	return nil
}
