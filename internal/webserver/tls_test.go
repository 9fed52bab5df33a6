package webserver_test

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/webserver"
)

// With TLS of its own the server gives cookies for TLS alone, tells the managers so, takes encoded bodies of its https:// address, and
// passes WebSockets.
func TestTLS(t *testing.T) {
	t.Parallel()
	m := newManager(t)
	cfg := webserver.DefaultConfig()
	cfg.Managers, cfg.StateDir, cfg.Listen, cfg.TLS.Generated = []string{m.URL}, t.TempDir(), "127.0.0.1:0", true
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
	require.True(t, strings.HasPrefix(s.URL(), "https://127.0.0.1:"), s.URL())
	require.NotEmpty(t, s.Fingerprint())
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	post := func(path, body string, headers ...string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(http.MethodPost, s.URL()+path, strings.NewReader(body))
		require.NoError(t, err)
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			r.Header.Set(name, value)
		}
		resp, err := client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		raw, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		return resp, string(raw)
	}
	resp, text := post("/server/login", encode(loginBody("a@x"), "ABCDEFGHIJKLMNOP", s.URL()), "X-BackendAI-Encoded: true")
	require.Contains(t, text, `"authenticated":true`)
	require.Equal(t, "HTTP/1.1", resp.Proto)
	cookies := resp.Cookies()
	require.Len(t, cookies, 1)
	require.True(t, cookies[0].Secure)
	require.Empty(t, resp.Header.Get("Strict-Transport-Security"), "no browser trusts a certificate that the server made")
	_, text = post("/func/session", "{}", "Cookie: AIOHTTP_SESSION="+cookies[0].Value, "Origin: "+s.URL())
	require.Contains(t, text, "/session")
	r, _ := m.last(t)
	require.Equal(t, "https", r.Header.Get("X-Forwarded-Proto"))
	plain := "Origin: http" + strings.TrimPrefix(s.URL(), "https")
	resp, _ = post("/func/session", "{}", "Cookie: AIOHTTP_SESSION="+cookies[0].Value, plain)
	require.Equal(t, http.StatusForbidden, resp.StatusCode, "the same name by plain HTTP is another origin")

	m.serve = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	host := strings.TrimPrefix(s.URL(), "https://")
	conn, err := tls.Dial("tcp", host, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	_, err = io.WriteString(conn, "GET /func/stream/session/x/pty HTTP/1.1\r\nHost: "+host+
		"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nCookie: AIOHTTP_SESSION="+cookies[0].Value+"\r\n\r\n")
	require.NoError(t, err)
	first := make([]byte, 32)
	_, err = io.ReadFull(conn, first)
	require.NoError(t, err)
	require.Contains(t, string(first), "101 Switching Protocols")
}
