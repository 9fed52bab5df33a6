package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/testkit/address"
)

// tunnelEnd is an app proxy that lets everybody in who has the ticket; the app says hello, answers in capitals and ends when
// its visitor's direction ends.
type tunnelEnd struct {
	*httptest.Server
	ticket   atomic.Value
	status   atomic.Int32
	opened   atomic.Int32
	greeting string
}

func newTunnelEnd(t *testing.T) *tunnelEnd {
	e := &tunnelEnd{}
	e.ticket.Store("t0")
	e.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/base/v2/tunnel" || r.Header.Get("Upgrade") != api.TunnelProtocol {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		if r.Header.Get("Authorization") != "Berth "+e.ticket.Load().(string) || r.URL.Query().Get("circuit") != "c 1" {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"kind":"unauthenticated","msg":"the ticket is not valid any more","next":"log in again"}`)
			return
		}
		if s := e.status.Load(); s != 0 {
			w.WriteHeader(int(s))
			fmt.Fprintf(w, `{"kind":"unavailable","reason":%q,"msg":"it does not answer"}`, e.greeting)
			return
		}
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		e.opened.Add(1)
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: berth-conn/1\r\n\r\n"+e.greeting)
		b, _ := io.ReadAll(conn)
		_, _ = conn.Write([]byte(strings.ToUpper(string(b))))
	}))
	require.NoError(t, e.Listener.Close())
	e.Listener = address.Listen(t)
	t.Cleanup(e.Close)
	return e
}

// appManager answers tickets for end and, as its fallback, echoes over WebSocket.
type appManager struct {
	end     *tunnelEnd
	tickets atomic.Int32
	streams atomic.Int32
	life    time.Duration
	refuse  string // body of the problem
	status  int
}

func (m *appManager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method + " " + r.URL.Path {
	case "POST /session/lab/tickets":
		n := m.tickets.Add(1)
		if m.status != 0 {
			w.WriteHeader(m.status)
			fmt.Fprint(w, m.refuse)
			return
		}
		var body map[string]any
		_ = json.NewDecoder(r.Body).Decode(&body)
		if body["app"] != "sshd" && body["port"] != float64(8000) {
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(
				w,
				`{"type":"x/object-not-found","title":"No such app.","msg":"session lab has no app `+fmt.Sprint(body["app"])+
					`","next":"berth app list lab"}`,
			)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{
			"url": m.end.URL + "/base/", "circuit": "c 1", "ticket": fmt.Sprintf("t%d", n-1), "expires_at": time.Now().Add(m.life),
		})
	case "GET /stream/session/lab/tcpproxy":
		m.streams.Add(1)
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer conn.CloseNow()
		if r.URL.Query().Get("app") == "deaf" {
			_ = conn.Close(websocket.StatusTryAgainLater, "nothing listens on port 9")
			return
		}
		_, b, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		_ = conn.Write(r.Context(), websocket.MessageBinary, []byte(strings.ToUpper(string(b))))
		_ = conn.Close(websocket.StatusGoingAway, "")
	default:
		http.NotFound(w, r)
	}
}

func appClient(t *testing.T, tls bool) (*api.Client, *appManager) {
	t.Helper()
	m := &appManager{end: newTunnelEnd(t), life: time.Hour}
	s := httptest.NewServer(m)
	t.Cleanup(s.Close)
	tr := http.DefaultTransport.(*http.Transport).Clone()
	if tls {
		m.end.StartTLS()
		tr.TLSClientConfig = m.end.Client().Transport.(*http.Transport).TLSClientConfig
	} else {
		m.end.Start()
	}
	c, err := api.New(api.Config{Endpoint: s.URL, AccessKey: vectorAccess, SecretKey: vectorSecret}, api.WithTransport(tr))
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c, m
}

// exchange says something, ends its direction where it can, and reads what comes back.
func exchange(t *testing.T, conn net.Conn, text string) string {
	t.Helper()
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err := io.WriteString(conn, text)
	require.NoError(t, err)
	if h, ok := conn.(interface{ CloseWrite() error }); ok {
		require.NoError(t, h.CloseWrite())
	}
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(b)
}

func TestDialAppGoesThroughTheProxy(t *testing.T) {
	t.Parallel()
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, m := appClient(t, secure)
			m.end.greeting = "hello "

			for range 3 {
				conn, err := c.DialApp(t.Context(), "lab", "sshd", 0)
				require.NoError(t, err)
				require.Equal(t, "hello ABC", exchange(t, conn, "abc"))
			}

			require.EqualValues(t, 1, m.tickets.Load(), "the ticket is used again")
			require.EqualValues(t, 3, m.end.opened.Load())
			require.Zero(t, m.streams.Load())
		})
	}
}

func TestDialAppOutlivesItsContext(t *testing.T) {
	t.Parallel()
	c, m := appClient(t, false)
	for range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		conn, err := c.DialApp(ctx, "lab", "", 8000)
		require.NoError(t, err)
		cancel()
		require.Equal(t, "X", exchange(t, conn, "x"))
		m.status, m.refuse = 503, `{"type":"x/service-unavailable","title":"No.","error_code":"no-app-proxy"}`
		m.life = 0
		c, _ = api.New(c.Config()) // the second time, through the manager
	}
}

func TestTicketsAreRenewed(t *testing.T) {
	t.Parallel()
	c, m := appClient(t, false)
	conn, err := c.DialApp(t.Context(), "lab", "sshd", 0)
	require.NoError(t, err)
	exchange(t, conn, "x")

	m.end.ticket.Store("t1") // the first was revoked
	conn, err = c.DialApp(t.Context(), "lab", "sshd", 0)
	require.NoError(t, err)
	exchange(t, conn, "x")
	require.EqualValues(t, 2, m.tickets.Load())

	m.end.ticket.Store("never")
	_, err = c.DialApp(t.Context(), "lab", "sshd", 0)
	require.ErrorContains(t, err, "the ticket is not valid any more")
	require.EqualValues(t, 3, m.tickets.Load(), "a new ticket that is refused is not asked for again")

	// One that is about to end is not begun with.
	c, m = appClient(t, false)
	m.life = 5 * time.Second
	for i := range 2 {
		m.end.ticket.Store(fmt.Sprintf("t%d", i))
		conn, err := c.DialApp(t.Context(), "lab", "sshd", 0)
		require.NoError(t, err)
		exchange(t, conn, "x")
	}
	require.EqualValues(t, 2, m.tickets.Load())
}

func TestDialAppWithoutProxyGoesThroughTheManager(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(m *appManager){
		"none is connected": func(m *appManager) {
			m.status, m.refuse = 503, `{"type":"x/service-unavailable","title":"No.","msg":"no app proxy is connected","error_code":"no-app-proxy"}`
		},
		"a manager without tickets": func(m *appManager) { m.status, m.refuse = 404, "404 page not found" },
		"it cannot be reached":      func(m *appManager) { m.end.Close() },
		"it reaches no agent":       func(m *appManager) { m.end.status.Store(503) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, m := appClient(t, false)
			prepare(m)
			for range 2 {
				conn, err := c.DialApp(t.Context(), "lab", "sshd", 0)
				require.NoError(t, err)
				require.Equal(t, "ABC", exchange(t, conn, "abc"))
			}
			require.EqualValues(t, 2, m.streams.Load())
		})
	}
}

func TestDialAppThatCannotBe(t *testing.T) {
	t.Parallel()
	c, m := appClient(t, false)
	_, err := c.DialApp(t.Context(), "lab", "nope", 0)
	require.True(t, api.IsNotFound(err))
	require.ErrorContains(t, err, "no app nope")
	require.Zero(t, m.streams.Load())

	_, err = c.DialApp(t.Context(), "..", "nope", 0)
	require.Error(t, err)

	m.status, m.refuse = 503, `{"type":"x/service-unavailable","title":"No.","msg":"the agent is lost"}`
	_, err = c.DialApp(t.Context(), "lab", "sshd", 0)
	require.ErrorContains(t, err, "the agent is lost")
	require.Zero(t, m.streams.Load())

	// What the app refuses is not tried another way.
	m.status, m.end.greeting = 0, api.CodeAppRefused
	m.end.ticket.Store(fmt.Sprintf("t%d", m.tickets.Load()))
	m.end.status.Store(503)
	_, err = c.DialApp(t.Context(), "lab", "sshd", 0)
	require.ErrorContains(t, err, "it does not answer")
	require.Zero(t, m.streams.Load())
	m.status = 503

	// The refusal of a backend comes as an error of the connection, not as its end.
	m.refuse = `{"error_code":"no-app-proxy","title":"No."}`
	conn, err := c.DialApp(t.Context(), "lab", "deaf", 0)
	require.NoError(t, err)
	_, err = io.ReadAll(conn)
	require.ErrorContains(t, err, "nothing listens on port 9")
}

// TestDialAppBoundsTheReply talks to an app proxy that never ends its head.
func TestDialAppBoundsTheReply(t *testing.T) {
	t.Parallel()
	c, m := appClient(t, false)
	m.end.Close()
	l, err := net.Listen("tcp", m.end.Listener.Addr().String())
	require.NoError(t, err)
	defer l.Close()
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		_, _ = bufio.NewReader(conn).ReadString('\n')
		_, _ = conn.Write([]byte("HTTP/1.1 101 x\r\n"))
		for {
			if _, err := conn.Write([]byte("X-Pad: " + strings.Repeat("y", 500) + "\r\n")); err != nil {
				return
			}
		}
	}()
	conn, err := c.DialApp(t.Context(), "lab", "sshd", 0)
	require.NoError(t, err, "the manager's way is left")
	require.Equal(t, "ABC", exchange(t, conn, "abc"))
	require.EqualValues(t, 1, m.streams.Load())
}

func TestPublishApp(t *testing.T) {
	t.Parallel()
	var asked []string
	var proxy *httptest.Server
	proxy = address.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Empty(t, r.Header.Get("Authorization"))
		asked = append(asked, r.URL.String())
		switch {
		case strings.HasSuffix(r.URL.Path, "/add"):
			_ = json.NewEncoder(w).Encode(map[string]any{"code": 200, "url": proxy.URL + "/v2/proxy/auth?token=x"})
		case r.URL.Path == "/v2/proxy/auth":
			_ = json.NewEncoder(w).Encode(map[string]any{"redirect_url": "http://127.0.0.1:10200/setup?token=y", "reuse": true})
		default:
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"title":"No.","msg":"the launch token is used up"}`)
		}
	}))
	c, err := api.New(api.Config{Endpoint: "http://127.0.0.1:1", AccessKey: vectorAccess, SecretKey: vectorSecret})
	require.NoError(t, err)
	got, err := c.PublishApp(t.Context(), api.Launch{Token: "a/b", Proxy: proxy.URL + "/"}, "id", api.Publish{
		App: "jupyter", Protocol: "http", Public: true, Allowed: []string{"10.0.0.0/8", "::1"}, Mode: "port", Port: 8070, ProxyPort: 10201,
	})
	require.NoError(t, err)
	require.Equal(t, api.Published{URL: "http://127.0.0.1:10200/setup?token=y", Reuse: true}, got)
	require.Equal(
		t,
		"/v2/proxy/a%2Fb/id/add?allowed_client_ips=10.0.0.0%2F8%2C%3A%3A1&app=jupyter&app_port=8070"+
			"&mode=port&open_to_public=true&port=10201&protocol=http",
		asked[0],
	)

	proxy.Close()
	_, err = c.PublishApp(t.Context(), api.Launch{Token: "a", Proxy: proxy.URL}, "id", api.Publish{App: "x"})
	require.True(t, api.IsProxyUnreachable(err))
}
