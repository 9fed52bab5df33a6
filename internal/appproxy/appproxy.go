package appproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/appproxy/circuit"
	"berth.dev/berth/internal/appproxy/control"
	"berth.dev/berth/internal/appproxy/forward"
	"berth.dev/berth/internal/appproxy/front"
	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/proxy"
)

// Deps are what a proxy gets from outside; all may be left out but Log.
type Deps struct {
	// Dial and Member replace the way to agents and the membership; for tests.
	Dial   forward.Dial
	Member control.Member
	Clock  chassis.Clock
	Random func() float64
	Build  chassis.BuildInfo
	Log    *slog.Logger
}

// Proxy is the app proxy role.
type Proxy struct {
	cfg        Config
	d          Deps
	log        *slog.Logger
	member     *membership.Member // nil in tests
	managers   *membership.Managers
	client     *control.Client
	engine     *forward.Engine
	source     *certs.Source // nil without TLS
	ports      *ports
	handshakes handshakes
	secret     chassis.Secret
	started    atomic.Bool

	// Known once the shared listener is open.
	listener net.Listener
	at       addresses
	front    *front.Front

	services []*chassis.Service
}

// addresses are how visitors reach the proxy.
type addresses struct {
	base     *url.URL
	domain   *url.URL // scheme and host of the domain; nil without
	suffix   string   // "." and the domain
	baseHost string
	portHost string
	portTLS  bool
}

// New makes a proxy. Nothing listens before its services run, and no manager need answer.
func New(cfg Config, d Deps) (*Proxy, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	trusted, err := cfg.trusted()
	if err != nil {
		return nil, err
	}
	if d.Clock == nil {
		d.Clock = chassis.RealClock()
	}
	if d.Random == nil {
		d.Random = rand.Float64
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	p := &Proxy{cfg: cfg, d: d, log: d.Log}
	if p.secret, err = cfg.secret(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("open the app proxy's state: %w", err)
	}
	member := d.Member
	if member == nil {
		p.member, err = membership.Open(membership.Options{
			Dir: filepath.Join(cfg.StateDir, "node"), Name: proxy.NamePrefix + cfg.Name, Token: cfg.token, Log: d.Log, Clock: d.Clock,
		})
		if err != nil {
			return nil, err
		}
		member = p.member
	}
	if d.Dial == nil {
		p.d.Dial = p.dialer()
	}
	if err := p.loadCertificates(); err != nil {
		return nil, err
	}
	p.managers = membership.NewManagers(cfg.Managers, d.Random())
	p.client = control.New(control.Options{
		Managers: p.managers, Member: member, Instance: p.instance, Changed: p.changed, Clock: d.Clock, Random: d.Random, Log: d.Log,
	})
	engine := cfg.engine(trusted)
	engine.Current = func(id string) *circuit.Circuit { return p.client.Table().ByID(id) }
	p.engine = forward.New(engine, p.route, p.d.Dial, d.Clock, d.Log.With("part", "forward"))
	p.ports = newPorts(p)
	p.services = p.makeServices()
	return p, nil
}

func (p *Proxy) loadCertificates() (err error) {
	t := p.cfg.TLS
	switch {
	case t.Cert != "":
		p.source, err = certs.Files("appproxy.tls", t.Cert, t.Key, p.d.Clock, p.log)
	case t.SelfSigned:
		names := []string{"localhost", "127.0.0.1", "::1"}
		if u, err := origin(p.cfg.URL); err == nil && p.cfg.URL != "" {
			names = append(names, u.Hostname())
		}
		if p.cfg.Domain != "" {
			names = append(names, p.cfg.Domain, "*."+p.cfg.Domain)
		}
		if p.cfg.Ports.From > 0 {
			names = append(names, p.cfg.Ports.Host)
		}
		p.source, err = certs.SelfSigned(p.cfg.StateDir, names, p.d.Clock, p.log)
	case t.ACME.Enabled:
		p.source = certs.ACME(certs.Authority{Directory: t.ACME.Directory, Email: t.ACME.Email, Dir: filepath.Join(p.cfg.StateDir, "acme")},
			p.mayHaveCertificate, p.d.Clock, p.log)
	}
	return err
}

// mayHaveCertificate keeps strangers from making us ask an authority for names that nobody uses.
func (p *Proxy) mayHaveCertificate(host string) bool {
	if host == p.at.baseHost || p.at.portTLS && host == p.at.portHost {
		return true
	}
	label, ok := p.label(host)
	return ok && p.client.Table().ByLabel(label) != nil
}

// Services are the parts of the role, to be run in one group. The names begin with "appproxy-".
func (p *Proxy) Services() []*chassis.Service { return p.services }

func (p *Proxy) makeServices() []*chassis.Service {
	const listen, engine, ports, manager = "appproxy-listen", "appproxy-engine", "appproxy-ports", "appproxy-manager"
	services := []*chassis.Service{
		// The shared listener opens first, because everything else tells its address, and is served when the engine runs.
		chassis.NewService(listen, chassis.Hooks{Start: p.open, Stop: func(context.Context) error { return p.close() }}),
		chassis.NewService(engine, chassis.Hooks{Run: p.engine.Run}).After(listen),
		chassis.NewService(ports, chassis.Hooks{Run: p.ports.run}).After(engine),
		chassis.NewService("appproxy-shared", chassis.Hooks{Run: p.serveShared}).After(engine),
		chassis.NewService(manager, chassis.Hooks{Run: p.client.Run}).After(ports),
		chassis.NewService("appproxy-activity", chassis.Hooks{Run: p.report}).After(engine),
		chassis.NewService("appproxy-expiry", chassis.Hooks{Run: p.watchExpiry}).After(engine),
		p.local(),
	}
	if p.member != nil {
		services = append(services, chassis.NewService("appproxy-membership", chassis.Hooks{Run: func(ctx context.Context) error {
			return p.member.KeepRenewed(ctx, p.managers)
		}}))
	}
	if p.cfg.TLS.ACME.Enabled && p.cfg.TLS.ACME.HTTPListen != "" {
		services = append(services, chassis.NewHTTPServer("appproxy-http", chassis.HTTPOptions{
			Listen: p.cfg.TLS.ACME.HTTPListen, Handler: p.source.HTTP(nil), Log: p.log, Drain: time.Second,
		}).After(listen))
	}
	return services
}

// open opens the shared listener, and with it everything that tells its address comes to be known.
func (p *Proxy) open(ctx context.Context) error {
	var lc net.ListenConfig
	ln, err := lc.Listen(ctx, "tcp", p.cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", p.cfg.Listen, err)
	}
	p.listener = chassis.Crowded(ln)
	p.at = p.cfg.addresses(ln.Addr().String())
	p.front = front.New(front.Options{
		Name: p.cfg.Name, Build: p.d.Build.Version, Base: p.at.base, Manager: p.client, Address: p.address, Open: p.ports.ensure,
		Dial: p.dialFor, Join: p.join, Tunnel: p.engine.Tunnel, Secret: p.secret, TicketLife: p.cfg.TicketLife, Clock: p.d.Clock, Log: p.log,
	})
	p.started.Store(true)
	return nil
}

func (p *Proxy) close() error {
	if err := p.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// addresses are what visitors are told, given where the shared listener is.
func (c Config) addresses(listening string) addresses {
	scheme := "http"
	if c.TLS.on() {
		scheme = "https"
	}
	base, err := origin(c.URL)
	if c.URL == "" || err != nil {
		host, port, err := net.SplitHostPort(listening)
		if err != nil {
			host, port = listening, ""
		}
		// An address that means "all" reaches nobody from elsewhere; the node's name at least may.
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			host = strings.ToLower(c.node())
		}
		base = &url.URL{Scheme: scheme, Host: joinPort(host, port, scheme)}
	}
	a := addresses{base: base, baseHost: base.Hostname(), portHost: strings.ToLower(c.Ports.Host), portTLS: c.Ports.TLS}
	if c.Domain == "" {
		return a
	}
	a.suffix = "." + c.Domain
	if a.domain, err = origin(c.DomainURL); c.DomainURL == "" || err != nil {
		a.domain = &url.URL{Scheme: base.Scheme, Host: joinPort(c.Domain, base.Port(), base.Scheme)}
	}
	return a
}

// joinPort leaves out the scheme's own port, as browsers do in Origin.
func joinPort(host, port, scheme string) string {
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		if strings.Contains(host, ":") {
			return "[" + host + "]"
		}
		return host
	}
	return net.JoinHostPort(host, port)
}

// address is how visitors reach a circuit.
func (p *Proxy) address(c *circuit.Circuit) *url.URL {
	port := strconv.Itoa(c.Port)
	switch {
	case c.Mode == proxy.ModeSubdomain && p.at.domain != nil:
		u := *p.at.domain
		u.Host = c.Label + "." + u.Host
		return &u
	case c.Mode == proxy.ModePort && !c.HTTP():
		return &url.URL{Scheme: "tcp", Host: net.JoinHostPort(p.at.portHost, port)}
	case c.Mode == proxy.ModePort:
		scheme := "http"
		if p.at.portTLS {
			scheme = "https"
		}
		return &url.URL{Scheme: scheme, Host: joinPort(p.at.portHost, port, scheme)}
	}
	return &url.URL{Scheme: "https", Host: "invalid"} // a mode that this proxy does not serve
}

// instance is how the proxy announces itself.
func (p *Proxy) instance() proxy.Instance {
	i := proxy.Instance{
		Name: p.cfg.Name, Node: p.cfg.node(), Version: proxy.Version, Build: p.d.Build.Version, URL: p.at.base.String(),
		Domain: p.cfg.Domain, Prefer: proxy.Mode(p.cfg.Prefer),
	}
	if p.at.domain != nil {
		i.DomainURL = p.at.domain.String()
	}
	if p.cfg.Ports.From > 0 {
		i.PortHost, i.PortFrom, i.PortTo, i.PortTLS = p.cfg.Ports.Host, p.cfg.Ports.From, p.cfg.Ports.To, p.cfg.Ports.TLS
	}
	if i.Prefer == "" {
		i.Prefer = proxy.ModePort
		if i.Domain != "" {
			i.Prefer = proxy.ModeSubdomain
		}
	}
	return i
}

// changed acts on a new table: connections that lost their right end, listeners follow.
func (p *Proxy) changed(_ *circuit.Table, closed []circuit.Closed) {
	for _, c := range closed {
		switch {
		case len(c.From) > 0:
			p.engine.CloseAddresses(c.ID, c.From, c.Reason)
		case len(c.Targets) > 0:
			p.engine.CloseTargets(c.ID, c.Targets, c.Reason)
		default:
			p.engine.CloseCircuit(c.ID, c.Reason)
		}
	}
	p.ports.poke()
}

// dialFor connects to the target of a circuit that a visitor's address chooses.
func (p *Proxy) dialFor(ctx context.Context, c *circuit.Circuit, visitor netip.Addr) (net.Conn, proxy.TargetID, error) {
	var key uint64
	if c.Several() {
		key = circuit.KeyOfAddress(visitor)
	}
	t, ok := c.Pick(key)
	if !ok {
		return nil, proxy.TargetID{}, forward.Drained()
	}
	conn, err := p.d.Dial(ctx, c, t)
	return conn, t.ID(), err
}

// join carries a visitor's connection to one to the app; the engine counts it and ends it with its circuit.
func (p *Proxy) join(visitor, app net.Conn, c *circuit.Circuit, t proxy.TargetID) {
	p.engine.Join(context.Background(), visitor, app, c, t) // ends with the engine
}

// The pauses between two looks at expired circuits, and between two reports of activity.
const (
	expireEvery = time.Second
	reportEvery = 5 * time.Second
)

// report tells managers what visitors do.
func (p *Proxy) report(ctx context.Context) error {
	activity := p.d.Clock.NewTicker(reportEvery)
	defer activity.Stop()
	var kept pending
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-activity.C():
		}
		kept.add(p.engine.Activity())
		if len(kept.list()) == 0 || !p.client.State().Connected {
			continue
		}
		if err := p.client.Report(ctx, kept.list()); err != nil {
			p.log.Debug("activity is told later", "error", err)
			continue
		}
		kept = pending{}
	}
}

// watchExpiry ends the connections of circuits whose time is over, whatever managers do.
func (p *Proxy) watchExpiry(ctx context.Context) error {
	expire := p.d.Clock.NewTicker(expireEvery)
	defer expire.Stop()
	over := map[string]time.Time{}
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-expire.C():
			p.expire(over)
		}
	}
}

// expire ends connections once for each end that a circuit has had.
func (p *Proxy) expire(over map[string]time.Time) {
	now, table := p.d.Clock.Now(), p.client.Table()
	for id := range over {
		if table.ByID(id) == nil {
			delete(over, id)
		}
	}
	for _, c := range table.All() {
		if c.ExpiresAt == nil || now.Before(*c.ExpiresAt) || over[c.ID].Equal(*c.ExpiresAt) {
			continue
		}
		over[c.ID] = *c.ExpiresAt
		p.engine.CloseCircuit(c.ID, "expired")
	}
}

// pending is activity that no manager has been told yet.
type pending map[string]proxy.CircuitActivity

// maxPending bounds it; a manager that was away for so long learns the rest later from what goes on.
const maxPending = 100_000

func (k *pending) add(what []proxy.CircuitActivity) {
	if *k == nil {
		*k = pending{}
	}
	for _, a := range what {
		old, known := (*k)[a.ID]
		if !known && len(*k) >= maxPending {
			continue
		}
		a.Requests, a.BytesIn, a.BytesOut = a.Requests+old.Requests, a.BytesIn+old.BytesIn, a.BytesOut+old.BytesOut
		if old.LastAt.After(a.LastAt) {
			a.LastAt = old.LastAt
		}
		(*k)[a.ID] = a
	}
}

func (k pending) list() []proxy.CircuitActivity {
	out := make([]proxy.CircuitActivity, 0, len(k))
	for _, a := range k {
		out = append(out, a)
	}
	return out
}

// Ready is an error until a manager's circuits are known.
func (p *Proxy) Ready(context.Context) error {
	if s := p.client.State(); !s.Connected && p.client.Table().Keys() == nil {
		return fmt.Errorf("no manager has answered: %s", s.Error)
	}
	return nil
}

// Addr is where the shared listener is, URL how visitors reach it; valid once the services run.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// URL is the base that clients are told.
func (p *Proxy) URL() string { return p.at.base.String() }

// Name is the proxy's name.
func (p *Proxy) Name() string { return p.cfg.Name }
