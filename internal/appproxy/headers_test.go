package appproxy_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/fault"
)

// certificate writes one that an operator might have, and returns its files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"berth.localhost"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	cert, key = filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
	require.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	require.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), 0o600))
	return cert, key
}

// Every answer of the proxy itself keeps browsers from guessing its type and from telling others its address. Those by TLS tell browsers
// to come by TLS from then on, where the operator says so, and so do the answers of apps, whose own word about it does not count.
func TestHeadersOfOwnAnswers(t *testing.T) {
	t.Parallel()
	for name, hsts := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(c *appproxy.Config) {
				if c.HSTS = hsts; hsts {
					c.TLS.Cert, c.TLS.Key = certificate(t)
					c.URL = "https://berth.localhost"
				}
			})
			want := map[bool]string{true: "max-age=31536000"}[hsts]
			closed := s.known(s.m.publish(labelled(1, "closed")))
			open := labelled(2, "open")
			open.Public = true
			s.known(s.m.publish(open))
			away := labelled(3, "away")
			away.Public, away.Targets = true, targets(1)
			s.known(s.m.publish(away))
			base := s.url("", "")
			for _, two := range []bool{false, true} {
				c := s.browser()
				c.Transport.(*http.Transport).ForceAttemptHTTP2 = two
				if two && !hsts {
					continue // browsers speak HTTP/2 by TLS alone
				}
				for what, a := range map[string]answer{
					"page":               s.get(c, base+"/", "Accept", "text/html"),
					"status":             s.get(c, base+"/status"),
					"health":             s.get(c, base+"/healthz"),
					"no page":            s.get(c, base+"/nothing"),
					"launch refused":     s.get(c, base+"/v2/proxy/auth?app=x"),
					"older question":     s.get(c, base+"/v2/proxy/t/s"),
					"older ends":         s.get(c, base+"/v2/proxy/t/s/delete"),
					"conf without":       s.do(c, "POST", base+"/v2/conf", "{}"),
					"preflight":          s.do(c, "OPTIONS", base+"/v2/proxy/t/s/add", ""),
					"setup of a program": s.get(c, base+"/setup?token=x&circuit="+closed.ID),
					"setup":              s.get(c, s.url("closed.apps.localhost", "/setup?token=x")),
					"login needed":       s.get(c, s.url("closed.apps.localhost", "/"), "Accept", "text/html"),
					"no app":             s.get(c, s.url("none.apps.localhost", "/")),
					"app away":           s.get(c, s.url("away.apps.localhost", "/")),
					"app away, page":     s.get(c, s.url("away.apps.localhost", "/"), "Accept", "text/html"),
					"unknown host":       s.get(c, s.url("", "/"), "Host", "evil.example"),
					"no tunnel":          s.get(c, base+"/v2/tunnel?circuit="+closed.ID),
					"refused method":     s.do(c, "TRACE", base+"/", ""),
				} {
					require.Equal(t, []string{"nosniff"}, a.header.Values("X-Content-Type-Options"), what)
					require.Equal(t, []string{"no-referrer"}, a.header.Values("Referrer-Policy"), what)
					require.Equal(t, want, a.header.Get("Strict-Transport-Security"), what)
					if strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
						require.Contains(t, a.header.Get("Content-Security-Policy"), "frame-ancestors 'none'", what)
					}
				}
				app := s.get(c, s.url("open.apps.localhost", "/strict"))
				require.Equal(t, 200, app.status)
				require.Empty(t, app.header.Get("Referrer-Policy"), "an app's answers are its own")
				require.Equal(t, want, app.header.Get("Strict-Transport-Security"))
			}
			if hsts {
				return
			}
			raw, err := net.Dial("tcp", s.p.Addr())
			require.NoError(t, err)
			defer raw.Close()
			require.NoError(t, raw.SetDeadline(time.Now().Add(time.Minute)))
			_, err = io.WriteString(raw, "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n")
			require.NoError(t, err)
			text, err := io.ReadAll(raw)
			require.NoError(t, err)
			require.Contains(t, string(text), "X-Content-Type-Options: nosniff\r\n")
			require.Contains(t, string(text), "Referrer-Policy: no-referrer\r\n")
		})
	}
}

// HSTS holds for all ports of a host name and for a year, so that nothing which is known to break is taken.
func TestHSTSThatWouldShutAppsOut(t *testing.T) {
	t.Parallel()
	good := appproxy.DefaultConfig()
	good.HSTS, good.URL, good.Domain = true, "https://apps.example.org", "apps.example.org"
	good.TLS.Cert, good.TLS.Key = "/cert", "/key"
	good.Ports.Host = "ports.example.org"
	require.NoError(t, good.Validate())
	for words, change := range map[string]func(*appproxy.Config){
		"plain ports of apps.example.org":   func(c *appproxy.Config) { c.Ports.Host = "APPS.example.org" },
		"plain ports of x.apps.example.org": func(c *appproxy.Config) { c.Ports.Host = "x.apps.example.org" },
		"the name that visitors use":        func(c *appproxy.Config) { c.URL = "https://192.0.2.1" },
		"that browsers trust":               func(c *appproxy.Config) { c.TLS.Cert, c.TLS.Key, c.TLS.SelfSigned = "", "", true },
	} {
		c := good
		change(&c)
		err := c.Validate()
		require.True(t, fault.Is(err, fault.Invalid))
		require.ErrorContains(t, err, words)
		require.NotEmpty(t, fault.NextOf(err))
	}
	good.Ports.Host, good.Ports.TLS = "apps.example.org", true
	require.NoError(t, good.Validate())
	require.False(t, appproxy.DefaultConfig().HSTS)
}
