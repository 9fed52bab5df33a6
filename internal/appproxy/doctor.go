package appproxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
)

// Finding is something that an operator should look at.
type Finding struct {
	Warning bool   `json:"warning,omitempty"`
	Kind    string `json:"kind"`
	Object  string `json:"object"`
	Problem string `json:"problem"`
	Next    string `json:"next,omitempty"`
}

// Status is how a proxy is doing.
type Status struct {
	Name        string     `json:"name"`
	URL         string     `json:"url"`
	Domain      string     `json:"domain,omitempty"`
	Ports       string     `json:"ports,omitempty"` // from-to
	Circuits    int        `json:"circuits"`
	PortsOpen   int        `json:"ports_open"`
	Connections int        `json:"connections"`
	Connected   bool       `json:"manager_connected"`
	Problem     string     `json:"problem,omitempty"`
	CertExpires *time.Time `json:"certificate_expires_at,omitempty"`
}

// The times after which something is worth a finding.
const (
	awayTooLong   = 30 * time.Second
	expiresSoon   = 14 * 24 * time.Hour
	socketTimeout = 10 * time.Second
	maxSocketPath = 107
)

// Status tells how the proxy is doing.
func (p *Proxy) Status() Status {
	s := Status{Name: p.cfg.Name, Domain: p.cfg.Domain, Circuits: p.client.Table().Len(), Connections: p.engine.Live().Connections}
	if p.started.Load() {
		s.URL = p.URL()
	}
	if p.cfg.Ports.From > 0 {
		s.Ports = fmt.Sprintf("%d-%d", p.cfg.Ports.From, p.cfg.Ports.To)
	}
	state := p.client.State()
	s.Connected = state.Connected
	var problems map[int]string
	s.PortsOpen, problems = p.ports.state()
	switch {
	case !state.Connected:
		s.Problem = "no manager: " + state.Error
	case len(problems) > 0:
		s.Problem = fmt.Sprintf("%d apps have no listener", len(problems))
	}
	if p.source != nil {
		if at, ok := p.source.Expires(); ok {
			s.CertExpires = &at
		}
	}
	return s
}

// Findings names managers that do not answer, circuits without a listener, and certificates that end or cannot be got.
func (p *Proxy) Findings() []Finding {
	out := []Finding{}
	now := p.d.Clock.Now()
	if s := p.client.State(); !s.Connected && now.Sub(s.Since) > awayTooLong {
		out = append(out, Finding{
			Kind: "app proxy", Object: p.cfg.Name, Problem: "no manager answers since " + s.Since.Format(time.RFC3339) + ": " + s.Error,
			Next: "see whether a manager runs at " + strings.Join(p.cfg.Managers, " or ") + "; apps that are open go on meanwhile",
		})
	}
	_, problems := p.ports.state()
	held := make([]int, 0, len(problems))
	for port := range problems {
		held = append(held, port)
	}
	slices.Sort(held)
	for _, port := range held {
		object := fmt.Sprintf("port %d", port)
		if c := p.client.Table().ByPort(port); c != nil {
			object += fmt.Sprintf(" (app %s of session %s, circuit %s)", c.App, c.Session, c.ID)
		}
		out = append(out, Finding{
			Kind: "app proxy", Object: object, Problem: "the circuit has no listener: " + problems[port],
			Next: fmt.Sprintf("find who holds it with: ss -ltnp 'sport = :%d'; end that program, or change appproxy.ports", port),
		})
	}
	if p.source == nil {
		return out
	}
	for _, m := range p.source.Missing() {
		out = append(out, Finding{
			Kind: "certificate", Object: m.Host,
			Problem: "the authority gave no certificate since " + m.Since.Format(time.RFC3339) + ": " + m.Problem,
			Next:    "see that the name leads here from the internet, on port 443 or 80, and that the authority of appproxy.tls.acme can be reached",
		})
	}
	at, ok := p.source.Expires()
	switch left := at.Sub(now); {
	case !ok:
	case left <= 0:
		out = append(out, Finding{Kind: "certificate", Object: p.cfg.Name,
			Problem: "the app proxy's certificate expired at " + at.Format(time.RFC3339),
			Next:    "renew the files of appproxy.tls; they are read again by themselves"})
	case left < expiresSoon:
		out = append(out, Finding{Warning: true, Kind: "certificate", Object: p.cfg.Name,
			Problem: "the app proxy's certificate expires at " + at.Format(time.RFC3339),
			Next:    "renew the files of appproxy.tls; they are read again by themselves"})
	}
	return out
}

// local answers doctor on this host.
func (p *Proxy) local() *chassis.Service {
	path := p.cfg.SocketPath()
	if len(path) > maxSocketPath {
		return chassis.NewService("appproxy-local", chassis.Hooks{Start: func(context.Context) error {
			p.log.Warn("doctor cannot ask this proxy: the path of its socket is too long", "path", path, "next", "set appproxy.socket_file")
			return nil
		}})
	}
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(v) // a caller that left needs no answer
	}
	mux.HandleFunc("GET /findings", func(w http.ResponseWriter, _ *http.Request) { answer(w, p.Findings()) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { answer(w, p.Status()) })
	return chassis.NewHTTPServer("appproxy-local", chassis.HTTPOptions{Listen: "unix:" + path, Handler: mux, Log: p.log,
		Drain: time.Second}).Service
}

// AskFindings asks the proxy of this configuration, which runs on this host, for its findings. It is Unavailable when none does.
func AskFindings(ctx context.Context, cfg Config) ([]Finding, error) {
	ctx, cancel := context.WithTimeout(ctx, socketTimeout)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", cfg.SocketPath())
		},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://appproxy/findings", nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fault.Unavailablef("the app proxy does not answer at %s", cfg.SocketPath()).WithCause(err).WithNext("start it")
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fault.New(fault.Internal, "the app proxy answers %s", resp.Status).WithNext("look at its log")
	}
	var out []Finding
	return out, json.Unmarshal(body, &out)
}
