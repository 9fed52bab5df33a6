// Package data is the agent's data port: the way of app proxies to what listens inside kernels.
//
// It is open at two places. The unix socket is for app proxies of the same host and user: they are lent the app's own socket, and
// connections live on without this process. The TCP port is for app proxies elsewhere, told by their node certificates: the
// bytes pass through here. Both serve one route, node.StreamPort with the upgrade of package wire/tunnel. What is lent ends as
// what is carried does: with its kernel, its circuit, or its app proxy's certificates.
//
// A certificate opens nothing by itself. Every request shows a grant that a manager signed for this app proxy, kernel,
// generation and port (proxy.Grant, decision 21); anything else is refused.
package data

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
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth.dev/berth/internal/agent/keeper"
	"berth.dev/berth/internal/agent/runners"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

// Options are what a data port needs.
type Options struct {
	Find    func(cluster.KernelID) (keeper.Kernel, bool)
	Runners *runners.Pool
	Member  *membership.Member
	// Grants decides which grants are obeyed.
	Grants *Grants
	// Dir holds the unix socket; nothing else is in it.
	Dir string
	// Listen is the host:port of the TCP port; "" or Off opens none. Advertise is what app proxies are told: host:port or a
	// host alone; "" is the address by which this host reaches Manager (host:port).
	Listen, Advertise, Manager string
	Registry                   prometheus.Registerer // may be nil
	Log                        *slog.Logger
	Clock                      chassis.Clock
}

// Off as Options.Listen opens no TCP port.
const Off = "off"

// Bounds of either place.
const (
	// maxWaiting are connections that have not asked for anything yet, or for nothing that they got.
	maxWaiting = 1024
	// maxOpen are tunnels that are being opened or whose bytes pass through this process.
	maxOpen = 8192
	// maxLent are sockets that app proxies of this host were lent; each takes two descriptors here. Bytes of further ones pass
	// through this process.
	maxLent    = 32768
	headWait   = 5 * time.Second
	idleWait   = 30 * time.Second
	maxHead    = 8 << 10
	sweepEvery = 2 * time.Second
)

// Port is the data port of one agent.
type Port struct {
	o       Options
	metrics *metrics
	socket  net.Listener
	tcp     net.Listener // nil without a TCP port
	servers []*http.Server

	mu      sync.Mutex
	tunnels map[*passage]struct{}
	open    int
	lent    int
	stopped bool
	work    sync.WaitGroup
}

// passage is a tunnel that can be ended here: its bytes pass through this process, or its socket is lent.
type passage struct {
	kernel     cluster.KernelID
	generation int64
	grant      proxy.Grant
	loan       *tunnel.Loan
}

// New returns a data port; Service opens it.
func New(o Options) *Port {
	return &Port{o: o, metrics: newMetrics(o.Registry), tunnels: map[*passage]struct{}{}}
}

// Service is the port as a part of a process.
func (p *Port) Service(name string) *chassis.Service {
	return chassis.NewService(name, chassis.Hooks{Start: p.start, Run: p.run, Stop: p.stop})
}

// Socket is the path of the unix socket.
func (p *Port) Socket() string { return filepath.Join(p.o.Dir, node.DataSocketName) }

// Address is where app proxies elsewhere reach the TCP port; "" when there is none or no way to tell. Valid once started.
func (p *Port) Address(ctx context.Context) string {
	if p.tcp == nil {
		return ""
	}
	_, port, err := net.SplitHostPort(p.tcp.Addr().String())
	if err != nil {
		return ""
	}
	switch host, advertised, err := net.SplitHostPort(p.o.Advertise); {
	case p.o.Advertise != "" && err != nil:
		return net.JoinHostPort(p.o.Advertise, port)
	case p.o.Advertise != "":
		return net.JoinHostPort(host, advertised)
	}
	if a, ok := p.tcp.Addr().(*net.TCPAddr); ok && !a.IP.IsUnspecified() {
		return a.String()
	}
	// Asking for a route sends nothing.
	c, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "udp", p.o.Manager)
	if err != nil {
		return ""
	}
	defer c.Close()
	host, _, err := net.SplitHostPort(c.LocalAddr().String())
	if err != nil {
		return ""
	}
	return net.JoinHostPort(host, port)
}

func (p *Port) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(p.o.Dir, 0o700); err != nil {
		return fmt.Errorf("open the data port: %w", err)
	}
	if err := os.Chmod(p.o.Dir, 0o700); err != nil {
		return fmt.Errorf("open the data port: %w", err)
	}
	if err := os.Remove(p.Socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("open the data port: %w", err)
	}
	socket, err := chassis.ListenUnix(p.Socket())
	if err != nil {
		return fmt.Errorf("open the data port: %w", err)
	}
	p.socket = newListener(socket, func(c net.Conn) error { return samePeer(c, os.Getuid()) }, p.o.Log)
	p.servers = append(p.servers, p.server())
	if p.o.Listen == "" || p.o.Listen == Off {
		return nil
	}
	l, err := (&net.ListenConfig{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second,
		Count: 4}}).Listen(ctx, "tcp", p.o.Listen)
	if err != nil {
		_ = p.socket.Close()
		return fault.Unavailablef("the data port %s cannot be opened", p.o.Listen).WithCause(err).
			WithNext("set agent.data_listen to a free address, or to %q", Off)
	}
	p.tcp = newListener(l, nil, p.o.Log)
	p.servers = append(p.servers, p.server())
	return nil
}

func (p *Port) server() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+node.StreamPort, p.serve)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		run.WriteFailure(w, fault.NotFoundf("the data port has no route %s %s", r.Method, r.URL.Path))
	})
	return &http.Server{
		Handler: mux, ReadHeaderTimeout: headWait, ReadTimeout: headWait, WriteTimeout: headWait + 10*time.Second, IdleTimeout: idleWait,
		MaxHeaderBytes: maxHead, ErrorLog: slog.NewLogLogger(p.o.Log.Handler(), slog.LevelDebug), ConnState: settle,
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
}

func (p *Port) run(ctx context.Context) error {
	ended := make(chan error, 2)
	p.work.Go(func() { ended <- p.servers[0].Serve(p.socket) })
	if p.tcp != nil {
		conf := p.o.Member.ServeTLS(proxy.NamePrefix, node.ALPNData)
		p.work.Go(func() { ended <- p.servers[1].Serve(tls.NewListener(p.tcp, conf)) })
	}
	tick := p.o.Clock.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-ended:
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("serve the data port: %w", err)
		case <-tick.C():
			p.sweep()
		case <-p.o.Grants.changes():
			p.sweep()
		}
	}
}

// stop ends the tunnels whose bytes pass through this process. Sockets that are lent stay open, and are their borrowers' alone.
func (p *Port) stop(ctx context.Context) error {
	p.mu.Lock()
	p.stopped = true
	for t := range p.tunnels {
		t.loan.Release()
	}
	p.mu.Unlock()
	for _, s := range p.servers {
		_ = s.Close()
	}
	// A server that never served does not know its listener.
	_ = p.socket.Close()
	if p.tcp != nil {
		_ = p.tcp.Close()
	}
	_ = os.Remove(p.Socket())
	done := make(chan struct{})
	go func() { p.work.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the data port's connections to end: %w", ctx.Err())
	}
}

// sweep ends tunnels of kernels and circuits that have ended, and of app proxies that were revoked. The end of an app does not
// always close its connection.
func (p *Port) sweep() {
	p.mu.Lock()
	list := make([]*passage, 0, len(p.tunnels))
	for t := range p.tunnels {
		list = append(list, t)
	}
	p.mu.Unlock()
	for _, t := range list {
		k, ok := p.o.Find(t.kernel)
		if !ok || k.Generation != t.generation || k.Serving() != nil || p.o.Grants.over(t.grant) != "" {
			t.loan.TakeBack()
		}
	}
}

func (p *Port) serve(w http.ResponseWriter, r *http.Request) {
	if err := p.tunnel(w, r); err != nil {
		p.metrics.refused.WithLabelValues(fault.KindOf(err).String()).Inc()
		run.WriteFailure(w, err)
	}
}

// tunnel opens a tunnel and answers r; when it returns an error, r has no answer yet.
func (p *Port) tunnel(w http.ResponseWriter, r *http.Request) error {
	if !tunnel.Asked(r) {
		return fault.Invalidf("this call takes an upgrade to %s", tunnel.Protocol).WithReason("no-upgrade")
	}
	port, err := runners.Port(r.PathValue("port"))
	if err != nil {
		return err
	}
	if !p.enter() {
		return fault.Exhaustedf("%d connections to apps are open through this agent", maxOpen).WithReason("too-many-connections").
			WithNext("close some of them, or let the app proxy run on the agent's host")
	}
	defer p.leave()
	caller, err := callerOf(r)
	if err != nil {
		return err
	}
	id, _ := cluster.CanonicalUUID(r.PathValue("id"))
	grant, err := p.o.Grants.admit(r.Header.Get(proxy.HeaderGrant), p.o.Member.ClusterID(),
		request{kernel: cluster.KernelID(id), port: port, proxy: caller, now: p.o.Clock.Now()})
	if err != nil {
		p.o.Log.Warn("a connection to an app was refused", "kernel", id, "port", port, "proxy", caller, "remote", r.RemoteAddr,
			"reason", fault.ReasonOf(err))
		return err
	}
	k, ok := p.o.Find(grant.Kernel)
	if !ok {
		return fault.NotFoundf("the session is not on this agent any more").WithReason("kernel-not-found")
	}
	if grant.Generation != k.Generation {
		return refused("other-generation")
	}
	if err := k.Serving(); err != nil {
		return err
	}
	conn, err := p.o.Runners.Connect(r.Context(), k.ID, k.Token, port)
	if err != nil {
		return err
	}
	t := &passage{kernel: k.ID, generation: k.Generation, grant: grant, loan: tunnel.NewLoan(conn)}
	if !p.keep(t) {
		t.loan.Release()
		return fault.Unavailablef("this agent is stopping")
	}
	if why := p.o.Grants.over(grant); why != "" { // it ended before the sweep knew of this tunnel
		t.loan.TakeBack()
		p.drop(t)
		return refused(why)
	}
	lendable := r.TLS == nil && p.lend()
	in, out, lent, err := tunnel.Lend(w, r, t.loan, lendable)
	if lent {
		p.metrics.done(false, 0, 0)
		p.work.Go(func() { // not in this handler, which holds more memory
			t.loan.Wait()
			p.drop(t)
			p.returned()
		})
		return nil
	}
	if lendable {
		p.returned()
	}
	p.drop(t)
	if err != nil {
		p.o.Log.Debug("a tunnel was not opened", "kernel", k.ID, "port", port, "err", err)
		return nil // the caller has left, or knows already
	}
	p.metrics.done(r.TLS != nil, in, out)
	return nil
}

// enter counts a tunnel that begins; every call is followed by one of leave.
func (p *Port) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open >= maxOpen || p.stopped {
		return false
	}
	p.open++
	p.work.Add(1) // the server does not wait for what was taken over from it
	p.metrics.open.Inc()
	return true
}

func (p *Port) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.metrics.open.Dec()
	p.work.Done()
}

// lend counts a socket that is lent; false means that too many are. returned counts it back.
func (p *Port) lend() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lent >= maxLent {
		return false
	}
	p.lent++
	p.metrics.lent.Inc()
	return true
}

func (p *Port) returned() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lent--
	p.metrics.lent.Dec()
}

func (p *Port) keep(t *passage) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.tunnels[t] = struct{}{}
	return true
}

func (p *Port) drop(t *passage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.tunnels, t)
}
