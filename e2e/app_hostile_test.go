package e2e_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHostileVisitors sends to an app proxy what people with bad intentions send.
func TestHostileVisitors(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo := p.demo("demo")
	owner := newConsole(t, p.env())
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := *owner
			c.t = t
			app := c.launch(demo, "web", "mode="+mode)
			v := newVisitor(t, "").enters(app)
			hostileRequests(t, v, app)
		})
	}
	t.Run("names that nobody was given", func(t *testing.T) {
		c := *owner
		c.t = t
		app := c.launch(demo, "web", "mode=subdomain")
		v := newVisitor(t, "").enters(app)
		u, err := url.Parse(app.Base)
		require.NoError(t, err)
		label, domain, _ := strings.Cut(u.Hostname(), ".")
		for _, name := range []string{"nobody." + domain, "x" + label + "." + domain, label + ".evil." + domain, "a." + u.Hostname(), domain,
			"127.0.0.1", strings.Repeat("a", 63) + "." + domain} {
			v.shut(u.Scheme+"://127.0.0.1:"+u.Port()+"/headers", "Host: "+name+":"+u.Port())
		}
	})
	t.Run("upstreams come from nobody's request", func(t *testing.T) { upstreams(t, owner, demo) })
	t.Run("a dead session's circuit, and its port", func(t *testing.T) { deadSession(t, p, demo) })
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

// dial opens a raw connection to the circuit at base.
func dial(t *testing.T, base string) net.Conn {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	conn, err := net.Dial("tcp", "127.0.0.1:"+u.Port())
	require.NoError(t, err)
	if u.Scheme == "https" {
		conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}})
	}
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(patience)))
	return conn
}

// rawly sends bytes and returns everything that comes back until the proxy ends the connection.
func rawly(t *testing.T, base, text string) string {
	t.Helper()
	conn := dial(t, base)
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	if half, ok := conn.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	b, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
	return string(b)
}

func hostileRequests(t *testing.T, v *visitor, app published) {
	u, err := url.Parse(app.Base)
	require.NoError(t, err)
	var cookie string
	for _, c := range v.client.Jar.Cookies(u) {
		cookie += c.Name + "=" + c.Value + "; "
	}
	require.NotEmpty(t, cookie)
	cookie = strings.TrimSuffix(cookie, "; ")
	head := "Host: " + u.Host + "\r\nCookie: " + cookie + "\r\n"

	t.Run("a request that can be read in two ways is refused", func(t *testing.T) {
		tail := "GET /headers?smuggled HTTP/1.1\r\n" + head + "\r\n"
		for name, request := range map[string]string{
			"length and chunks": "POST /headers HTTP/1.1\r\n" + head +
				"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + tail,
			"two lengths":             "POST /headers HTTP/1.1\r\n" + head + "Content-Length: 0\r\nContent-Length: 90\r\n\r\n" + tail,
			"length with a sign":      "POST /headers HTTP/1.1\r\n" + head + "Content-Length: +0\r\n\r\n" + tail,
			"two codings":             "POST /headers HTTP/1.1\r\n" + head + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + tail,
			"hidden coding":           "POST /headers HTTP/1.1\r\n" + head + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + tail,
			"space before the colon":  "POST /headers HTTP/1.1\r\n" + head + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + tail,
			"folded line":             "POST /headers HTTP/1.1\r\n" + head + "X-A: b\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + tail,
			"bare line feeds":         "POST /headers HTTP/1.1\n" + strings.ReplaceAll(head, "\r", "") + "Content-Length: 0\n\n" + tail,
			"a null byte":             "GET /headers HTTP/1.1\r\n" + head + "X-A: a\x00b\r\n\r\n" + tail,
			"chunk size out of range": "POST /headers HTTP/1.1\r\n" + head + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n\r\n" + tail,
			"HTTP/1.0 with chunks":    "POST /headers HTTP/1.0\r\n" + head + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + tail,
			"two hosts":               "GET /headers HTTP/1.1\r\n" + head + "Host: localhost\r\n\r\n" + tail,
			"no host":                 "GET /headers HTTP/1.1\r\nCookie: " + cookie + "\r\n\r\n" + tail,
			"no HTTP":                 "SSH-2.0-OpenSSH_9.2\r\n" + tail,
		} {
			got := rawly(t, app.Base, request)
			require.NotContains(t, got, "smuggled", name)
			if got != "" {
				require.Regexp(t, `^HTTP/1\.[01] (400|501|505|408|421) `, got, name)
			}
		}
	})
	t.Run("targets that are not the app's", func(t *testing.T) {
		for _, line := range []string{
			"GET http://169.254.169.254/latest/meta-data/ HTTP/1.1", "GET http://127.0.0.1:22/ HTTP/1.1", "GET http://[::1]:6379/ HTTP/1.1",
			"CONNECT 169.254.169.254:80 HTTP/1.1", "CONNECT 127.0.0.1:22 HTTP/1.1", "OPTIONS * HTTP/1.1", "GET //169.254.169.254/ HTTP/1.1",
			"GET @169.254.169.254/ HTTP/1.1",
		} {
			got := rawly(t, app.Base, line+"\r\n"+head+"Connection: close\r\n\r\n")
			require.NotContains(t, got, "meta-data")
			require.NotContains(t, got, "SSH-")
			// A path that only looks like a host is the app's own business, and so is what it can do as a whole.
			if !strings.HasPrefix(line, "GET //") && !strings.HasPrefix(line, "OPTIONS") && got != "" {
				require.Regexp(t, `^HTTP/1\.[01] [45]`, got, line)
			}
		}
	})
	t.Run("hosts that are not the circuit's", func(t *testing.T) {
		hosts := []string{"evil.example.org", "metadata.google.internal", "localhost.evil.example.org", "a b", ""}
		if strings.HasSuffix(u.Hostname(), "localhost") {
			// On a port of its own an app answers to every literal address: the port decides, and addresses cannot be rebound
			// as names can.
			hosts = append(hosts, "169.254.169.254", "127.0.0.1:22", "[::1]")
		}
		for _, host := range hosts {
			got := rawly(t, app.Base, "GET /headers HTTP/1.1\r\nHost: "+host+"\r\nCookie: "+cookie+"\r\nConnection: close\r\n\r\n")
			require.NotContains(t, got, `"target"`, "host %q reaches the app", host)
		}
	})
	t.Run("pages of other origins", func(t *testing.T) {
		for _, origin := range []string{"https://evil.example.org", "null", "http://127.0.0.1:1", "http://evil.localhost",
			app.Base + ".evil.example.org"} {
			ws, err := v.socket(app.Base, origin)
			if err == nil {
				_ = ws.CloseNow()
			}
			require.Error(t, err, "a WebSocket from %s", origin)
			status, _, _ := v.send("POST", app.Base+"/headers", "x", "Origin: "+origin)
			require.Equal(t, 403, status, origin)
		}
		for _, site := range []string{"cross-site", "same-site"} {
			status, _, _ := v.get(app.Base+"/headers", "Sec-Fetch-Site: "+site, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image")
			require.Equal(t, 403, status, site)
			status, _, _ = v.get(app.Base+"/", "Sec-Fetch-Site: "+site, "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")
			require.Equal(t, 200, status, "a link from elsewhere may be followed")
		}
	})
	t.Run("tickets that are none", func(t *testing.T) {
		name, value, _ := strings.Cut(cookie, "=")
		payload, mac, _ := strings.Cut(value, ".")
		for _, forged := range []string{"", "x", payload, payload + ".", payload + "." + strings.Repeat("A", len(mac)), payload + "x." + mac,
			value + "x", strings.Repeat("a", 5000), value + "; " + name + "=x"} {
			newVisitor(t, "").shut(app.Base+"/headers", "Cookie: "+name+"="+forged)
		}
	})
	t.Run("huge heads", func(t *testing.T) {
		for _, request := range []string{
			"GET /headers?" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\n" + head + "\r\n",
			"GET /headers HTTP/1.1\r\n" + head + "X-Big: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
			"GET /headers HTTP/1.1\r\n" + head + strings.Repeat("X-Many: 1\r\n", 100_000) + "\r\n",
		} {
			conn := dial(t, app.Base)
			// The proxy may end the connection before it has all of it.
			go func() { _, _ = io.WriteString(conn, request) }()
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err == nil {
				require.Regexp(t, `^HTTP/1\.[01] (400|414|431) `, line)
			}
			_ = conn.Close()
		}
		v.sees(app.Base)
	})
	t.Run("slow heads are not waited for, and hinder nobody", func(t *testing.T) {
		const slow = 64
		var conns []net.Conn
		for range slow {
			conn := dial(t, app.Base)
			_, err := io.WriteString(conn, "GET /headers HTTP/1.1\r\nHost: "+u.Host+"\r\nX-Slow: ")
			require.NoError(t, err)
			conns = append(conns, conn)
		}
		v.sees(app.Base)
		stop := make(chan struct{})
		defer close(stop)
		go func() { // a byte a second keeps them from looking idle
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
					for _, c := range conns {
						_, _ = io.WriteString(c, "a")
					}
				}
			}
		}()
		for _, c := range conns {
			b, err := io.ReadAll(c)
			require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "a head that never ends is waited for")
			require.False(t, bytes.Contains(b, []byte(`"target"`)))
		}
		v.sees(app.Base)
	})
	t.Run("hostile redirects of the proxy itself", func(t *testing.T) {
		for _, path := range []string{"/setup?token=x&redirect=https://evil.example.org/", "/setup",
			"/setup?token=" + strings.Repeat("a", 10_000), "/v2/proxy/auth?token=x&redirect=https://evil.example.org"} {
			plain := *newVisitor(t, "").client
			plain.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
			resp, err := plain.Get(app.Base + path)
			require.NoError(t, err)
			_ = resp.Body.Close()
			require.NotContains(t, resp.Header.Get("Location"), "evil.example.org", path)
			require.Empty(t, resp.Header.Values("Set-Cookie"), path)
		}
	})
}

// upstreams tries to have the proxy connect to where no app is.
func upstreams(t *testing.T, owner *console, demo string) {
	c := *owner
	c.t = t
	var started struct {
		Token string `json:"token"`
		Addr  string `json:"wsproxy_addr"`
	}
	c.into(&started, 200, "POST", "/session/"+demo+"/start-service", `{"app":"web"}`)
	base := strings.TrimRight(started.Addr, "/")
	v := newVisitor(t, "")
	t.Run("the old configuration request has no secret", func(t *testing.T) {
		for _, header := range []string{"X-None: 1", "X-BackendAI-Token: guess", "Authorization: Bearer guess"} {
			status, text, _ := v.send("POST", base+"/v2/conf",
				`{"login_session_token":"x","kernel_host":"169.254.169.254","kernel_port":80,"session":{"id":"demo","user_uuid":"x","access_key":"x"}}`,
				"Content-Type: application/json", header)
			require.Contains(t, []int{400, 401, 403, 404}, status, text)
			require.NotContains(t, text, "token\":")
		}
	})
	t.Run("tokens are guessed", func(t *testing.T) {
		for _, token := range []string{"x", "00000000-0000-0000-0000-000000000000", url.PathEscape("../../status"), started.Token + "x"} {
			status, text, _ := v.get(base+"/v2/proxy/"+token+"/"+demo+"/add?app=web&protocol=http", "Accept: application/json")
			if status == 200 { // the first step may be only a way to the second
				var add struct {
					Code int    `json:"code"`
					URL  string `json:"url"`
				}
				require.NoError(t, json.Unmarshal([]byte(text), &add))
				if add.Code == 200 {
					status, text, _ = v.get(add.URL, "Accept: application/json")
				}
			}
			require.NotEqual(t, 200, status, "token %s: %s", token, text)
			require.NotContains(t, text, "setup?token")
		}
	})
	t.Run("parameters that would name another host are nothing", func(t *testing.T) {
		app := c.launch(demo, "web", "host=169.254.169.254", "kernel_host=169.254.169.254", "upstream=127.0.0.1:22",
			"redirect=//evil.example.org/")
		v := newVisitor(t, "").enters(app)
		v.sees(app.Base)
	})
	t.Run("ports that are no app's", func(t *testing.T) {
		for _, port := range []int{22, 2000, 2200, 5432, 65536, -1} {
			_, status, text := c.tryLaunch(demo, "web", fmt.Sprintf("app_port=%d", port))
			require.Contains(t, []int{400, 403, 404, 409, 422}, status, "port %d: %s", port, text)
		}
	})
}

// deadSession looks that nothing of a session's circuits outlives it: the address, the cookie, the port.
func deadSession(t *testing.T, p *platform, demo string) {
	doomed := p.demo("doomed")
	c := newConsole(t, p.env())
	byPort, byName := c.launch(doomed, "web", "mode=port"), c.launch(doomed, "web", "mode=subdomain")
	gateway := c.gateway(doomed, "echo")
	v := newVisitor(t, "").enters(byPort).enters(byName)
	v.sees(byPort.Base)
	v.sees(byName.Base)
	require.Equal(t, "x", echoes(t, gateway, "", "x"))
	stream := v.streams(byPort.Base)
	p.must("session", "rm", "--yes", "doomed")
	stream.ends()
	for _, base := range []string{byPort.Base, byName.Base} {
		v.eventually("the circuit is gone", func() bool {
			resp, err := v.client.Get(base + "/headers")
			if err != nil {
				return true // nobody listens on the port any more
			}
			_ = resp.Body.Close()
			return resp.StatusCode == 404 || resp.StatusCode == 410 || resp.StatusCode == 401
		})
	}
	v.eventually("the TCP port is closed", func() bool { return echoes(t, gateway, "", "x") == "" })

	// Whoever gets the port next has another circuit: the first visitor's cookie is worth nothing there.
	another := p.demo("next")
	u, err := url.Parse(byPort.Base)
	require.NoError(t, err)
	next, status, text := c.tryLaunch(another, "web", "mode=port", "port="+u.Port())
	require.Equal(t, 200, status, text)
	require.Equal(t, u.Port(), portOf(t, next.Base), "the wish for a free port is granted")
	v.shut(next.Base + "/headers")
	newVisitor(t, "").enters(next).sees(next.Base)
	// A port that is taken is nobody else's.
	_, status, _ = c.tryLaunch(demo, "web", "mode=port", "port="+u.Port(), "no_reuse=true")
	require.NotEqual(t, 200, status, "a port is given to two circuits")
	p.must("session", "rm", "--yes", "next")
}

func portOf(t *testing.T, base string) string {
	t.Helper()
	u, err := url.Parse(base)
	require.NoError(t, err)
	return u.Port()
}
