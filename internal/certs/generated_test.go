package certs_test

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/pin"
	"berth.dev/berth/internal/certs"
	"berth.dev/berth/internal/chassis"
)

// clock is a clock that only Now of is moved by hand.
type clock struct {
	chassis.Clock
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func generated(t *testing.T, dir string, now time.Time) (*certs.Source, *clock) {
	t.Helper()
	c := &clock{Clock: chassis.RealClock(), now: now}
	s, err := certs.Config{Generated: true, Names: []string{"berth.test"}}.Open("manager.tls", dir, []string{"localhost", "127.0.0.1"}, c,
		slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return s, c
}

// serve answers the version probe with the certificate of a source and returns the address.
func serve(t *testing.T, s *certs.Source) string {
	t.Helper()
	h := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"version":"v8.20240915","manager":"24.09.12"}`))
	}))
	h.Listener = tls.NewListener(h.Listener, s.TLS()) // httptest's own TLS has a certificate of its own
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.Start()
	t.Cleanup(h.Close)
	return h.Listener.Addr().String()
}

func hello(t *testing.T, at, fingerprint string) error {
	t.Helper()
	c, err := api.New(api.Config{Endpoint: "https://" + at, Fingerprint: fingerprint})
	require.NoError(t, err)
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Hello(ctx)
	return err
}

// A generated authority outlives the process and its certificates; clients that pin it accept nobody else.
func TestGenerated(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "tls")
	s, moved := generated(t, dir, time.Now())
	require.Regexp(t, "^sha256:[0-9a-f]{64}$", s.Fingerprint())
	at := serve(t, s)
	require.NoError(t, hello(t, at, s.Fingerprint()))
	_, port, err := net.SplitHostPort(at)
	require.NoError(t, err)
	require.NoError(t, hello(t, "localhost:"+port, strings.ToUpper(s.Fingerprint())))
	require.Error(t, hello(t, at, ""), "the system's authorities do not know it")

	other, _ := generated(t, t.TempDir(), time.Now())
	require.ErrorIs(t, hello(t, at, other.Fingerprint()), pin.Err)
	require.ErrorIs(t, hello(t, serve(t, other), s.Fingerprint()), pin.Err)
	again, _ := generated(t, dir, time.Now())
	require.Equal(t, s.Fingerprint(), again.Fingerprint())
	require.NoError(t, hello(t, serve(t, again), s.Fingerprint()))

	before, err := s.TLS().GetCertificate(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	require.Contains(t, before.Leaf.DNSNames, "berth.test")
	require.Error(t, before.Leaf.VerifyHostname("example.org"))
	moved.mu.Lock()
	moved.now = before.Leaf.NotAfter.Add(-24 * time.Hour)
	moved.mu.Unlock()
	after, err := s.TLS().GetCertificate(&tls.ClientHelloInfo{})
	require.NoError(t, err)
	require.True(t, after.Leaf.NotAfter.After(before.Leaf.NotAfter), "it is renewed while the server runs")
	require.Equal(t, before.Certificate[1], after.Certificate[1])

	for _, name := range []string{certs.CAFile, "tls-ca.key"} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.EqualValues(t, 0o600, info.Mode().Perm(), name)
	}
	// A broken authority is told of, and not replaced: clients know the old one.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tls-ca.key"), []byte("junk"), 0o600))
	_, err = certs.Config{Generated: true}.Open("manager.tls", dir, nil, moved, slog.New(slog.DiscardHandler))
	require.Error(t, err)
}

// Files are read again when they change.
func TestFilesAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &clock{Clock: chassis.RealClock(), now: time.Now()}
	log := slog.New(slog.DiscardHandler)
	_, err := certs.SelfSigned(dir, []string{"one.test"}, c, log)
	require.NoError(t, err)
	cert, key := filepath.Join(dir, "selfsigned.crt"), filepath.Join(dir, "selfsigned.key")
	s, err := certs.Config{Cert: cert, Key: key}.Open("manager.tls", dir, nil, c, log)
	require.NoError(t, err)
	names := func() []string {
		leaf, err := s.TLS().GetCertificate(&tls.ClientHelloInfo{})
		require.NoError(t, err)
		return leaf.Leaf.DNSNames
	}
	require.Equal(t, []string{"one.test"}, names())
	_, err = certs.SelfSigned(dir, []string{"two.test"}, c, log)
	require.NoError(t, err)
	c.mu.Lock()
	c.now = c.now.Add(time.Minute)
	c.mu.Unlock()
	require.Equal(t, []string{"two.test"}, names())
	_, err = certs.Config{Cert: cert, Key: filepath.Join(dir, "none")}.Open("manager.tls", dir, nil, c, log)
	require.ErrorContains(t, err, "cannot be used")
}

func TestConfigOfCertificates(t *testing.T) {
	t.Parallel()
	acme := certs.ACMEConfig{Enabled: true}
	for name, c := range map[string]certs.Config{
		"a key alone": {Key: "/k"}, "a certificate alone": {Cert: "/c"}, "two ways": {Cert: "/c", Key: "/k", Generated: true},
		"ACME without a name": {ACME: acme}, "ACME for an address": {ACME: acme, Names: []string{"192.0.2.1"}},
		"ACME for a short name": {ACME: acme, Names: []string{"berth"}}, "a URL": {Generated: true, Names: []string{"https://berth.test"}},
		"a directory": {ACME: certs.ACMEConfig{Enabled: true, Directory: "http://x"}, Names: []string{"berth.example.org"}},
		"a wildcard":  {Generated: true, Names: []string{"*.example.org"}},
	} {
		require.ErrorContains(t, c.Validate("manager.tls"), "manager.tls", name)
	}
	for _, c := range []certs.Config{{}, {Cert: "/c", Key: "/k"}, {Generated: true, Names: []string{"192.0.2.1", "berth"}},
		{ACME: acme, Names: []string{"berth.example.org"}}} {
		require.NoError(t, c.Validate("manager.tls"))
	}
	require.False(t, certs.Config{}.On())
}
