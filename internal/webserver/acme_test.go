package webserver_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/testkit/testserver"
	"berth.dev/berth/internal/webserver"
)

// TestMain has this process trust the servers of package httptest, as the system's authorities: the ACME client asks for those.
func TestMain(m *testing.M) {
	os.Exit(trusting(m.Run))
}

func trusting(run func() int) int {
	dir, err := os.MkdirTemp("", "berth-webserver")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	file := filepath.Join(dir, "root.pem")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	if err := os.WriteFile(file, text, 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := os.Setenv("SSL_CERT_FILE", file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return run()
}

// With ACME the server gets a certificate for its name when the first browser comes, by the handshake that proves the name, and for no
// other name. It serves logins with it, whose cookies are for TLS alone.
func TestACME(t *testing.T) {
	t.Parallel()
	var pages http.Handler
	asked := make(chan string, 1000)
	authority := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path
		pages.ServeHTTP(w, r)
	}))
	t.Cleanup(authority.Close)
	m := newManager(t)
	const name = "berth.example.org"
	cfg := webserver.DefaultConfig()
	cfg.Managers, cfg.StateDir, cfg.Listen = []string{m.URL}, t.TempDir(), "127.0.0.1:0"
	cfg.TLS.ACME.Enabled, cfg.TLS.ACME.Directory, cfg.TLS.Names = true, authority.URL+"/dir", []string{name}
	s, err := webserver.New(cfg, webserver.Deps{})
	require.NoError(t, err)
	group, err := chassis.NewGroup(slog.New(slog.DiscardHandler), s.Services()...)
	require.NoError(t, err)
	require.NoError(t, group.Start(t.Context()))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, group.Stop(ctx))
	})
	at, err := url.Parse(s.URL())
	require.NoError(t, err)
	require.Equal(t, "https", at.Scheme)
	port, err := strconv.Atoi(at.Port())
	require.NoError(t, err)
	issuer := testserver.StartACME(t, port)
	pages = issuer.Handler()
	roots := x509.NewCertPool()
	roots.AddCert(issuer.Root)
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", at.Port()))
		}}}
	post := func(host string) (*http.Response, error) {
		return client.Post("https://"+host+"/server/login", "application/json", strings.NewReader(loginBody("a@x")))
	}
	_, err = post("stranger.example.org")
	require.Error(t, err)
	require.Empty(t, asked, "nobody asks for strangers' names")
	resp, err := post(name)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, []string{name}, resp.TLS.PeerCertificates[0].DNSNames)
	require.Len(t, resp.Cookies(), 1)
	require.True(t, resp.Cookies()[0].Secure)
	require.NotEmpty(t, asked)
}
