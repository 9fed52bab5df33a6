package webserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/crypto/acme"

	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/webserver/upstream"
)

// Deps are what a web server gets from outside; all may be left out.
type Deps struct {
	// Managers is the way to the managers; nil makes one of Config.Managers.
	Managers *upstream.Managers
	// Console holds the files of the console, which is served where Config names no other web interface; nil: there is none.
	Console  fs.FS
	Clock    chassis.Clock
	Registry prometheus.Registerer
	Build    chassis.BuildInfo
	Log      *slog.Logger
}

// Server is the web server role.
type Server struct {
	cfg      Config
	log      *slog.Logger
	clock    chassis.Clock
	build    chassis.BuildInfo
	managers *upstream.Managers
	trusted  clientaddr.Trusted
	certs    *certs.Source // nil without TLS
	files    *files        // nil without a static directory
	ui       uiSettings
	logins   *logins
	places   places
	cross    *http.CrossOriginProtection
	http     *chassis.HTTPServer
	served   *prometheus.CounterVec
	open     atomic.Int64 // requests under way
	services []*chassis.Service
}

// New makes a web server. Nothing listens before its services run, and no manager need answer.
func New(cfg Config, d Deps) (_ *Server, err error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Clock == nil {
		d.Clock = chassis.RealClock()
	}
	s := &Server{cfg: cfg, log: d.Log, clock: d.Clock, build: d.Build, managers: d.Managers}
	s.places = places{all: cfg.Limits.Requests, each: cfg.Limits.PerAddress}
	if s.trusted, err = cfg.trusted(); err != nil {
		return nil, err
	}
	if s.managers == nil {
		if s.managers, err = upstream.Network(cfg.Managers, cfg.CAFingerprint); err != nil {
			return nil, err
		}
	}
	if s.ui, err = readUI(cfg); err != nil {
		return nil, err
	}
	switch {
	case cfg.StaticDir != "":
		if s.files, err = openFiles(cfg.StaticDir); err != nil {
			return nil, err
		}
	case d.Console != nil:
		s.files = &files{FS: d.Console, own: true}
	}
	s.cross = http.NewCrossOriginProtection()
	for _, o := range cfg.Origins {
		if err := s.cross.AddTrustedOrigin(strings.TrimSuffix(o, "/")); err != nil {
			return nil, fmt.Errorf("read webserver.origins: %w", err)
		}
	}
	s.logins = newLogins(s)
	s.served = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "berth_webserver_requests_total", Help: "Requests that were answered, by what they were for and the class of their status.",
	}, []string{"part", "class"})
	if d.Registry != nil {
		d.Registry.MustRegister(s.served, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_webserver_requests_open", Help: "Requests that are under way, WebSockets and event streams among them.",
		}, func() float64 { return float64(s.open.Load()) }))
	}
	return s, s.makeServices()
}

func (s *Server) makeServices() (err error) {
	names := []string{"localhost", "127.0.0.1", "::1"}
	if host, _, err := net.SplitHostPort(s.cfg.Listen); err == nil && host != "" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsUnspecified() {
			names = append(names, host)
		}
	}
	if name, err := os.Hostname(); err == nil && name != "" {
		names = append(names, name)
	}
	if s.certs, err = s.cfg.TLS.Open("webserver.tls", filepath.Join(s.cfg.StateDir, "tls"), names, s.clock, s.log); err != nil {
		return err
	}
	o := chassis.HTTPOptions{Listen: s.cfg.Listen, Handler: s, Log: s.log, Drain: 2 * time.Second}
	if s.certs != nil {
		// WebSockets need HTTP/1.1.
		o.TLS = s.certs.TLS()
		o.TLS.NextProtos = []string{"http/1.1", acme.ALPNProto}
		o.Configure = func(h *http.Server) { h.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){} }
	}
	s.http = chassis.NewHTTPServer("webserver-http", o)
	watch := chassis.NewService("webserver-logins", chassis.Hooks{Run: s.logins.watch})
	s.http.After("webserver-logins")
	s.services = []*chassis.Service{watch, s.http.Service}
	if c := s.cfg.TLS.ACME; c.Enabled && c.HTTPListen != "" {
		s.services = append(s.services, chassis.NewHTTPServer("webserver-acme", chassis.HTTPOptions{
			Listen: c.HTTPListen, Handler: s.certs.HTTP(http.HandlerFunc(toTLS)), Log: s.log, Drain: time.Second,
		}).Service)
	}
	return nil
}

// toTLS leads people who typed a name without https:// to the same name by TLS. Nothing but the page itself is led there.
func toTLS(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.URL.Path != "/" {
		http.Error(w, "TLS is required", http.StatusForbidden)
		return
	}
	http.Redirect(w, r, "https://"+host+"/", http.StatusMovedPermanently)
}

// Services are the parts of the role, to be run in one group. The names begin with "webserver-".
func (s *Server) Services() []*chassis.Service { return s.services }

// Addr is where the server listens; valid once the services run.
func (s *Server) Addr() string { return s.http.Addr() }

// URL is how browsers reach the server; valid once the services run.
func (s *Server) URL() string {
	if s.cfg.URL != "" {
		return strings.TrimSuffix(s.cfg.URL, "/")
	}
	scheme := "http"
	if s.certs != nil {
		scheme = "https"
	}
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		return scheme + "://" + s.Addr()
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + "://" + net.JoinHostPort(host, port)
}

// Fingerprint is that of a generated certificate authority; "" without one.
func (s *Server) Fingerprint() string {
	if s.certs == nil || !s.cfg.TLS.Generated {
		return ""
	}
	return s.certs.Fingerprint()
}

// Exposed reports whether other machines reach the server by plain HTTP, and nothing says that a reverse proxy adds TLS.
func (s *Server) Exposed() bool {
	host, _, err := net.SplitHostPort(s.cfg.Listen)
	ip := net.ParseIP(host)
	return err == nil && s.certs == nil && !strings.HasPrefix(s.cfg.URL, "https://") && host != "localhost" && (ip == nil || !ip.IsLoopback())
}

// Ready is an error while no manager answers.
func (s *Server) Ready(ctx context.Context) error { return s.managers.Ready(ctx) }
