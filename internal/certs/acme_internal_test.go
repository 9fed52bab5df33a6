package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/testkit/testserver"
)

// authorityRig is a whole ACME authority for which every name leads to this machine, and a listener for visitors.
type authorityRig struct {
	*authority
	server *httptest.Server
	roots  *x509.CertPool
	at     string // of the listener
	away   atomic.Bool
	asked  atomic.Int64 // requests to the authority
	orders atomic.Int64 // of them those that order a certificate
}

func newAuthorityRig(t *testing.T, dir string, may func(string) bool) *authorityRig {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	issuer := testserver.StartACME(t, l.Addr().(*net.TCPAddr).Port)
	r := &authorityRig{at: l.Addr().String(), roots: x509.NewCertPool()}
	pages := issuer.Handler()
	r.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.asked.Add(1)
		if q.URL.Path == "/order-plz" {
			r.orders.Add(1)
		}
		if r.away.Load() {
			http.Error(w, `{"type":"urn:ietf:params:acme:error:rateLimited","detail":"too many today"}`, http.StatusForbidden)
			return
		}
		pages.ServeHTTP(w, q)
	}))
	t.Cleanup(r.server.Close)
	r.authority = newAuthority(Authority{Directory: r.server.URL + "/dir", Dir: dir}, may, chassis.RealClock(), slog.New(slog.DiscardHandler))
	r.manager.Client.HTTPClient = r.server.Client()
	conf := (&Source{get: r.get, protos: []string{"acme-tls/1"}}).TLS()
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = tls.Server(conn, conf).Handshake()
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-served })
	r.roots.AddCert(issuer.Root)
	return r
}

// visit shakes hands as a browser that trusts the authority.
func (r *authorityRig) visit(t *testing.T, host string) error {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{RootCAs: r.roots, ServerName: host, NextProtos: []string{"h2"}}}
	conn, err := d.DialContext(context.Background(), "tcp", r.at)
	if err == nil {
		_ = conn.Close()
	}
	return err
}

// Each host gets its own certificate from an authority that proves the name; strangers' names are not asked for; what was got
// outlives the process and the authority.
func TestACME(t *testing.T) {
	dir := t.TempDir()
	ours := func(host string) bool { return host == "lab.apps.test" || host == "apps.test" }
	r := newAuthorityRig(t, dir, ours)
	require.NoError(t, r.visit(t, "lab.apps.test"))
	require.NoError(t, r.visit(t, "apps.test"))
	require.Empty(t, r.missing())

	// Of what was ordered the client still looks for traces, in the background.
	require.EqualValues(t, 2, r.orders.Load())
	require.NoError(t, r.visit(t, "LAB.apps.test"), "names have no case")
	require.Error(t, r.visit(t, "stranger.apps.test"))
	require.Error(t, r.visit(t, "lab.example.org"))
	require.EqualValues(t, 2, r.orders.Load(), "nobody was asked")
	require.Empty(t, r.missing(), "strangers' names are nobody's trouble")

	again := newAuthorityRig(t, dir, ours)
	again.away.Store(true)
	again.roots = r.roots
	require.NoError(t, again.visit(t, "lab.apps.test"))
	require.Zero(t, again.asked.Load())
}

// What the authority refuses is told of by host, until a certificate came or the host is gone.
func TestACMEMissing(t *testing.T) {
	gone := atomic.Bool{}
	r := newAuthorityRig(t, t.TempDir(), func(host string) bool { return host == "a.apps.test" || host == "b.apps.test" && !gone.Load() })
	r.away.Store(true)
	require.Error(t, r.visit(t, "a.apps.test"))
	require.Error(t, r.visit(t, "b.apps.test"))
	require.Error(t, r.visit(t, "c.apps.test"))
	missing := (&Source{missing: r.missing}).Missing()
	require.Len(t, missing, 2)
	require.Equal(t, "a.apps.test", missing[0].Host)
	require.Contains(t, missing[0].Problem, "too many today")
	require.Equal(t, "b.apps.test", missing[1].Host)

	gone.Store(true)
	require.Len(t, r.missing(), 1)
	r.note("a.apps.test", nil)
	require.Empty(t, r.missing())
}
