package manager

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/acme"

	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager/httpapi"
)

// maxFound bounds the addresses of the host that a generated certificate is for.
const maxFound = 32

// openTLS prepares the certificate of the API; nil means plain HTTP.
func (m *Manager) openTLS() (*certs.Source, error) {
	return m.cfg.TLS.Open("manager.tls", filepath.Join(m.cfg.StateDir, "tls"), m.cfg.names(), m.deps.Clock, m.log)
}

// names are the host names and addresses by which clients may reach the API.
func (c Config) names() []string {
	out := []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil && name != "" {
		out = append(out, name)
	}
	host, _, err := net.SplitHostPort(c.Listen)
	ip := net.ParseIP(host)
	if err != nil || host != "" && (ip == nil || !ip.IsUnspecified()) {
		if host != "" {
			out = append(out, host)
		}
		return out
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return out
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() && len(out) < maxFound {
			out = append(out, n.IP.String())
		}
	}
	return out
}

// apiServer is the listener of the API.
func (m *Manager) apiServer(h http.Handler, source *certs.Source) *chassis.HTTPServer {
	o := chassis.HTTPOptions{Listen: m.cfg.Listen, Handler: h, Log: m.log, Drain: 2 * time.Second,
		Configure: func(s *http.Server) { s.WriteTimeout = 0 }}
	if source != nil {
		// WebSockets and held bodies need HTTP/1.1.
		o.TLS = source.TLS()
		o.TLS.NextProtos = []string{"http/1.1", acme.ALPNProto}
		o.Configure = func(s *http.Server) {
			s.WriteTimeout, s.TLSNextProto = 0, map[string]func(*http.Server, *tls.Conn, http.Handler){}
		}
	}
	return chassis.NewHTTPServer("manager-api", o)
}

// Inside serves the API to other roles of this process on a listener of it. The addresses of its connections are those of the clients for
// whom they were opened.
func (m *Manager) Inside(ln net.Listener) *chassis.Service {
	server := httpapi.NewServer(m.handler, m.log)
	return chassis.NewService("manager-inside", chassis.Hooks{
		Run: func(ctx context.Context) error {
			stop := context.AfterFunc(ctx, func() { _ = server.Close() })
			defer stop()
			if err := server.Serve(ln); ctx.Err() == nil {
				return err
			}
			return ctx.Err()
		},
	}).After("sessions", "api-streams")
}

// onlyTLS answers requests of clients on the port of ACME's challenges. It does not lead them to the API: a client that sent a key or a
// password in the clear is to notice.
func onlyTLS(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.WriteHeader(http.StatusForbidden)
	// A caller that left needs no answer.
	_ = json.NewEncoder(w).Encode(map[string]string{"type": "https://berth.dev/problems/tls-required", "title": "TLS is required",
		"msg": "this port serves certificate challenges alone; send requests of the API to its https:// address"})
}

// Transport is how clients reach the API, once it listens.
type Transport struct {
	// URL is what clients are told, "" where the address decides.
	URL string
	TLS bool
	// Fingerprint is that of a generated authority; clients pin it.
	Fingerprint string
	// Exposed says that plain HTTP is served on an address that other machines reach, and nobody said that this is meant.
	Exposed bool
}

// Transport tells how clients reach the API; valid once it runs.
func (m *Manager) Transport() Transport {
	t := Transport{URL: m.cfg.URL, TLS: m.certs != nil}
	if t.TLS {
		t.Fingerprint = m.certs.Fingerprint()
		if t.URL == "" && len(m.cfg.TLS.Names) > 0 && !m.cfg.TLS.Generated {
			if _, port, err := net.SplitHostPort(m.APIAddr()); err == nil {
				t.URL = "https://" + net.JoinHostPort(m.cfg.TLS.Names[0], port)
			}
		}
		return t
	}
	host, _, err := net.SplitHostPort(m.APIAddr())
	ip := net.ParseIP(host)
	t.Exposed = err == nil && (ip == nil || !ip.IsLoopback()) && !m.cfg.PlainHTTP
	return t
}
