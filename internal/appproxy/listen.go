package appproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// handshakeTimeout bounds a TLS handshake, maxHandshakes how many there are at once, eachHandshakes how many from one address:
// who only connects and says nothing keeps nobody else out.
const (
	handshakeTimeout = 10 * time.Second
	maxHandshakes    = 1024
	eachHandshakes   = 64
)

// serveShared serves the base URL and the domain.
func (p *Proxy) serveShared(ctx context.Context) error {
	var conf *tls.Config
	if p.source != nil {
		conf = p.source.TLS()
	}
	return p.accept(ctx, p.listener, func(ctx context.Context, conn net.Conn) {
		p.serveHTTP(ctx, conn, forward.Listener{}, conf)
	})
}

// accept hands every connection to serve until ctx ends; then it waits for all of them.
func (p *Proxy) accept(ctx context.Context, ln net.Listener, serve func(context.Context, net.Conn)) error {
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	pause := 5 * time.Millisecond
	for {
		conn, err := ln.Accept()
		if err == nil {
			pause = 5 * time.Millisecond
			all.Go(func() { serve(ctx, conn) })
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return ctx.Err()
		}
		// No descriptors are left, for example: whoever is connected goes on.
		p.log.Warn("a connection could not be taken", "listener", ln.Addr().String(), "error", err)
		timer := p.d.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
		timer.Stop()
		pause = min(2*pause, time.Second)
	}
}

// serveHTTP takes TLS off, if there is any, and gives the rest to the engine.
func (p *Proxy) serveHTTP(ctx context.Context, conn net.Conn, l forward.Listener, conf *tls.Config) {
	if conf != nil {
		secured := p.handshake(ctx, conn, conf)
		if secured == nil {
			return
		}
		conn, l.TLS = secured, true
	}
	p.engine.ServeConn(ctx, conn, l)
}

// handshake returns nil when the connection is over.
func (p *Proxy) handshake(ctx context.Context, conn net.Conn, conf *tls.Config) *tls.Conn {
	from, most := circuit.Network(remoteOf(conn)), eachHandshakes
	if p.engine.Trusted(from) {
		most = maxHandshakes
	}
	if !p.handshakes.begin(from, most) {
		_ = conn.Close()
		return nil
	}
	defer p.handshakes.end(from)
	secured := tls.Server(conn, conf)
	limited, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	if err := secured.HandshakeContext(limited); err != nil {
		p.log.Debug("TLS handshake failed", "remote", conn.RemoteAddr(), "error", err)
		_ = conn.Close()
		return nil
	}
	if certs.Challenge(secured) {
		_ = secured.Close()
		return nil
	}
	return secured
}

// handshakes counts those under way.
type handshakes struct {
	mu   sync.Mutex
	all  int
	each map[netip.Addr]int // by network; none is kept at zero
}

// begin counts one more, unless its network has most of them or there are too many in all.
func (h *handshakes) begin(from netip.Addr, most int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= maxHandshakes || h.each[from] >= most {
		return false
	}
	if h.each == nil {
		h.each = map[netip.Addr]int{}
	}
	h.all++
	h.each[from]++
	return true
}

func (h *handshakes) end(from netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if h.each[from]--; h.each[from] == 0 {
		delete(h.each, from)
	}
}

// ports keeps one listener for every port that a circuit has, and none else.
type ports struct {
	p    *Proxy
	wake chan struct{}

	mu       sync.Mutex
	ctx      context.Context // of run; nil while it does not run
	open     map[int]net.Listener
	problems map[int]string    // ports that cannot be opened
	asked    map[int]time.Time // of open ones: when the manager was last asked who is let in
	all      sync.WaitGroup
}

func newPorts(p *Proxy) *ports {
	return &ports{p: p, wake: make(chan struct{}, 1), open: map[int]net.Listener{}, problems: map[int]string{}, asked: map[int]time.Time{}}
}

// poke asks for a look at the table.
func (o *ports) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// gather is how long news are gathered before the listeners follow, retryEvery when a port that a stranger holds is tried
// again.
const (
	gather     = 10 * time.Millisecond
	retryEvery = 5 * time.Second
)

// run lets the listeners follow the table until ctx ends.
func (o *ports) run(ctx context.Context) error {
	o.mu.Lock()
	o.ctx = ctx
	o.mu.Unlock()
	retry := o.p.d.Clock.NewTicker(retryEvery)
	defer retry.Stop()
	defer o.shut()
	for {
		o.follow()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-retry.C():
		case <-o.wake:
			timer := o.p.d.Clock.NewTimer(gather)
			select {
			case <-timer.C():
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

func (o *ports) shut() {
	o.mu.Lock()
	o.ctx = nil
	for port := range o.open {
		o.drop(port)
	}
	o.mu.Unlock()
	o.all.Wait()
}

// follow makes the listeners those that the table wants.
func (o *ports) follow() {
	table := o.p.client.Table()
	o.mu.Lock()
	defer o.mu.Unlock()
	for port := range o.open {
		if table.ByPort(port) == nil {
			o.drop(port)
		}
	}
	for port := range o.problems {
		if table.ByPort(port) == nil {
			delete(o.problems, port)
		}
	}
	for _, port := range table.Ports() {
		_ = o.listen(port) // told in the log and by doctor
	}
}

// drop stops listening; connections that are open end with their circuit, not here. o.mu is held.
func (o *ports) drop(port int) {
	_ = o.open[port].Close() // nothing is written there
	delete(o.open, port)
	delete(o.asked, port)
}

// ensure opens the port of a circuit that has just been published, before its visitor comes.
func (o *ports) ensure(c *circuit.Circuit) error {
	if c.Port == 0 || c.Label != "" {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.listen(c.Port)
}

// listen opens a port unless it is open; o.mu is held.
func (o *ports) listen(port int) error {
	if o.open[port] != nil || o.ctx == nil {
		return nil
	}
	cfg := o.p.cfg.Ports
	fail := func(words string, err error) error {
		if o.problems[port] != words {
			o.p.log.Warn("the port of an app cannot be opened", "port", port, "error", words)
		}
		o.problems[port] = words
		return fault.Unavailablef("port %d of the app proxy cannot be opened", port).WithReason("port-taken").WithCause(err).
			WithNext("end the program that holds it, or open the app with another port")
	}
	if port < cfg.From || port > cfg.To {
		return fail("it is not among appproxy.ports", nil)
	}
	var lc net.ListenConfig
	ln, err := lc.Listen(o.ctx, "tcp", net.JoinHostPort(cfg.Bind, strconv.Itoa(port)))
	if err != nil {
		return fail(err.Error(), err)
	}
	delete(o.problems, port)
	ln = chassis.Crowded(ln)
	o.open[port] = ln
	ctx := o.ctx // connections outlive the listener, but not the role
	o.all.Go(func() {
		_ = o.p.accept(ctx, ln, func(ctx context.Context, conn net.Conn) { o.serve(ctx, conn, port) }) // ends with the listener
	})
	return nil
}

// serve serves one connection to a port.
func (o *ports) serve(ctx context.Context, conn net.Conn, port int) {
	p := o.p
	c := p.client.Table().ByPort(port)
	if c == nil {
		_ = conn.Close()
		return
	}
	l := forward.Listener{Port: port}
	if c.HTTP() {
		var conf *tls.Config
		if p.cfg.Ports.TLS {
			conf = p.source.TLS()
		}
		p.serveHTTP(ctx, conn, l, conf)
		return
	}
	v := c.AdmitConn(remoteOf(conn), p.d.Clock.Now())
	if v.Reason == "address-not-admitted" && o.mayAsk(port) {
		// Another replica may have let it in just now, and the news is on its way.
		if now, err := p.client.Refresh(ctx, port); err == nil && now != nil && !now.HTTP() {
			c, v = now, now.AdmitConn(remoteOf(conn), p.d.Clock.Now())
		}
	}
	if v.Decision == circuit.Pass {
		p.engine.ServeTCP(ctx, conn, c)
		return
	}
	if v.Reason == "address-not-admitted" && p.source != nil {
		// Whoever has a ticket shows it inside TLS, in a request for a tunnel.
		conf := p.source.TLS()
		conf.NextProtos = []string{"http/1.1"}
		p.serveHTTP(ctx, conn, l, conf)
		return
	}
	p.log.Debug("raw connection refused", "circuit", c.ID, "remote", conn.RemoteAddr(), "reason", v.Reason)
	_ = conn.Close()
}

// askEvery is how often strangers on one port make the manager be asked.
const askEvery = time.Second

func (o *ports) mayAsk(port int) bool {
	now := o.p.d.Clock.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if at, ok := o.asked[port]; ok && now.Sub(at) < askEvery || o.open[port] == nil {
		return false
	}
	o.asked[port] = now
	return true
}

func remoteOf(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// state lists the open ports and those that cannot be opened.
func (o *ports) state() (open int, problems map[int]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	problems = map[int]string{}
	for port, words := range o.problems {
		problems[port] = words
	}
	return len(o.open), problems
}
