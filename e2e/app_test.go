package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	grpcstatus "google.golang.org/grpc/status"

	"berth.dev/berth/api"
)

// seen is what the web demo says about a request: see e2e/webdemo.
type seen struct {
	PID     int                 `json:"pid"`
	Method  string              `json:"method"`
	Host    string              `json:"host"`
	Target  string              `json:"target"`
	Remote  string              `json:"remote"`
	Headers map[string][]string `json:"headers"`
	Body    string              `json:"body"`
}

// visitor is somebody with a jar of cookies of their own, as a browser has.
type visitor struct {
	t      testing.TB
	client *http.Client
}

// newVisitor makes a visitor whose connections come from the address from ("" for the usual one). Names below localhost lead
// to this machine, as they do in browsers. Certificates are not checked: these clusters sign their own.
func newVisitor(t testing.TB, from string) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = dialerFrom(from)
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &visitor{t, &http.Client{Jar: jar, Transport: transport, Timeout: patience}}
}

func dialerFrom(from string) func(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: patience}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, port, err := net.SplitHostPort(address)
		if err == nil && (host == "localhost" || strings.HasSuffix(host, ".localhost")) {
			address = net.JoinHostPort("127.0.0.1", port)
		}
		return d.DialContext(ctx, network, address)
	}
}

// get fetches a page with the given headers ("Name: value"), following redirects.
func (v *visitor) get(address string, headers ...string) (status int, body string, header http.Header) {
	v.t.Helper()
	return v.send("GET", address, "", headers...)
}

func (v *visitor) send(method, address, body string, headers ...string) (status int, text string, header http.Header) {
	v.t.Helper()
	r, err := http.NewRequestWithContext(v.t.Context(), method, address, strings.NewReader(body))
	require.NoError(v.t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		r.Header.Add(name, value)
		if name == "Host" {
			r.Host = value
		}
	}
	resp, err := v.client.Do(r)
	require.NoError(v.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	require.NoError(v.t, err)
	return resp.StatusCode, string(b), resp.Header
}

// sees fetches /headers of the web demo at base.
func (v *visitor) sees(base string, headers ...string) (s seen) {
	v.t.Helper()
	status, body, _ := v.get(base+"/headers", headers...)
	require.Equal(v.t, 200, status, body)
	require.NoError(v.t, json.Unmarshal([]byte(body), &s), body)
	return s
}

// shut asserts that an address shows nothing of the app behind it.
func (v *visitor) shut(address string, headers ...string) {
	v.t.Helper()
	status, body, _ := v.get(address, headers...)
	require.Contains(v.t, []int{401, 403, 404, 421}, status, "%s: %.500s", address, body)
	require.NotContains(v.t, body, `"target":`, "%s shows the app", address)
}

// eventually asserts that a condition comes true within the story's patience.
func (v *visitor) eventually(what string, ok func() bool) {
	v.t.Helper()
	require.Eventually(v.t, ok, patience, 50*time.Millisecond, what)
}

// published is an app that somebody launched, as the wire tells of it.
type published struct {
	Enter string // the address with a one-time code
	Reuse bool
	Base  string // scheme, host and port of the circuit, without a slash at the end
}

// launch publishes an app of the session of that id along the way of the web console: start-service, the proxy's add, its auth.
func (c *console) launch(session, app string, query ...string) published {
	c.t.Helper()
	p, status, text := c.tryLaunch(session, app, query...)
	require.Equal(c.t, 200, status, "launch %s: %s", app, text)
	return p
}

// tryLaunch is launch that may fail: status and text are of the first answer that was not 200.
func (c *console) tryLaunch(session, app string, query ...string) (p published, status int, text string) {
	c.t.Helper()
	var started struct {
		Token string `json:"token"`
		Addr  string `json:"wsproxy_addr"`
	}
	body, _ := json.Marshal(map[string]string{"app": app})
	if status, text = c.try("POST", "/session/"+session+"/start-service", string(body)); status != 200 {
		return p, status, text
	}
	require.NoError(c.t, json.Unmarshal([]byte(text), &started), text)
	require.NotEmpty(c.t, started.Token, text)
	q := url.Values{"app": {app}, "protocol": {"http"}}
	for _, pair := range query {
		name, value, _ := strings.Cut(pair, "=")
		q.Set(name, value)
	}
	v := newVisitor(c.t, "")
	var add struct {
		Code int    `json:"code"`
		URL  string `json:"url"`
	}
	if status, text, _ = v.get(strings.TrimRight(started.Addr, "/") + "/v2/proxy/" + started.Token + "/" + session + "/add?" +
		q.Encode()); status != 200 {
		return p, status, text
	}
	require.NoError(c.t, json.Unmarshal([]byte(text), &add), text)
	require.Equal(c.t, 200, add.Code, text)
	var auth struct {
		Redirect string `json:"redirect_url"`
		Reuse    bool   `json:"reuse"`
	}
	if status, text, _ = v.get(add.URL, "Accept: application/json"); status != 200 {
		return p, status, text
	}
	require.NoError(c.t, json.Unmarshal([]byte(text), &auth), text)
	u, err := url.Parse(auth.Redirect)
	require.NoError(c.t, err, text)
	require.NotEmpty(c.t, u.Host, text)
	return published{Enter: auth.Redirect, Reuse: auth.Reuse, Base: u.Scheme + "://" + u.Host}, 200, ""
}

// enters makes somebody a visitor of an app, by its one-time code.
func (v *visitor) enters(p published) *visitor {
	v.t.Helper()
	status, body, _ := v.get(p.Enter)
	require.Equal(v.t, 200, status, "enter the app: %.500s", body)
	return v
}

// circuitRow is a circuit as the platform lists it.
type circuitRow struct {
	ID             string   `json:"id"`
	App            string   `json:"app"`
	Mode           string   `json:"mode"`
	URL            string   `json:"url"`
	Public         bool     `json:"public"`
	SharedUsers    []string `json:"shared_users"`
	SharedProjects []string `json:"shared_projects"`
}

func (c *console) circuits(session string) (rows []circuitRow) {
	c.t.Helper()
	c.into(&rows, 200, "GET", "/apps/circuits?session="+session, "")
	return rows
}

// circuit finds the row of what launch published.
func (c *console) circuit(session string, p published) circuitRow {
	c.t.Helper()
	for _, r := range c.circuits(session) {
		if strings.HasPrefix(r.URL+"/", p.Base+"/") {
			return r
		}
	}
	c.t.Fatalf("no circuit of %s in %+v", p.Base, c.circuits(session))
	return circuitRow{}
}

// try is send without an opinion about the answer.
func (c *console) try(method, target, body string) (status int, text string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, c.endpoint+target, strings.NewReader(body))
	require.NoError(c.t, err)
	r.Header.Set("Content-Type", "application/json")
	api.SignRequest(r, c.access, c.token, time.Now())
	resp, err := http.DefaultClient.Do(r)
	require.NoError(c.t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(c.t, err)
	return resp.StatusCode, string(b)
}

// demo starts a session of the web demo.
func (p *platform) demo(name string) (id string) { p.t.Helper(); return p.session("web-demo", name) }

// session starts a small session, waits until it runs and an app proxy can be asked, and returns its id.
func (p *platform) session(image, name string) (id string) {
	p.t.Helper()
	p.must("session", "create", image, "--name", name, "-r", "cpu=1", "-r", "mem=512m")
	p.eventually("an app proxy is connected", func() bool {
		status, _ := newConsole(p.t, p.env()).try("GET", "/scaling-groups/default/wsproxy-version", "")
		return status == 200
	})
	return p.sessions()[name].ID
}

// modes are the ways in which a circuit can be told from others, as a launch asks for them.
var modes = []string{"port", "subdomain"}

// TestApps walks through what apps do with HTTP, behind both kinds of circuits.
func TestApps(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo := p.demo("demo")
	c := newConsole(t, p.env())
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			c := newConsole(t, p.env())
			app := c.launch(demo, "web", "mode="+mode)
			v := newVisitor(t, "").enters(app)
			httpWalk(t, v, app)
		})
	}
	t.Run("launching again leads to the same circuit", func(t *testing.T) {
		c := newConsole(t, p.env())
		one, two := c.launch(demo, "web"), c.launch(demo, "web")
		require.Equal(t, one.Base, two.Base)
		require.NotEqual(t, one.Enter, two.Enter)
		require.True(t, two.Reuse)
	})
	t.Run("raw TCP on a port of its own, from one's own address alone", func(t *testing.T) {
		c := newConsole(t, p.env())
		gateway := c.gateway(demo, "echo")
		require.Equal(t, "over and out", echoes(t, gateway, "", "over and out"))
		require.Empty(t, echoes(t, gateway, "127.0.0.7", "over and out"), "an address that was not let in is answered")
	})
	t.Run("gRPC", func(t *testing.T) {
		c := newConsole(t, p.env())
		calls(t, c.launch(demo, "rpc", "protocol=grpc", "mode=port"))
	})
	t.Run("an app that becomes ready late is waited for", func(t *testing.T) {
		c := newConsole(t, p.env())
		newVisitor(t, "").enters(c.launch(demo, "late"))
	})
	t.Run("apps that do not start say why", func(t *testing.T) {
		for app, word := range map[string]string{"failing": "told to fail", "nothing": "nothing", "no-such-app": "no-such-app"} {
			status, text := c.try("POST", "/session/demo/start-service", `{"app":"`+app+`"}`)
			require.GreaterOrEqual(t, status, 400, app)
			require.Contains(t, text, word, app)
		}
	})
	t.Run("an app that never becomes ready is not waited for without end, and visitors are told", func(t *testing.T) {
		c := newConsole(t, p.env())
		app := c.launch(demo, "never")
		status, text, _ := newVisitor(t, "").get(app.Enter)
		require.Contains(t, []int{502, 503, 504}, status, text)
		require.Contains(t, text, "8099", "where nothing answers")
		require.Contains(t, p.must("app", "list", "demo"), "starting")
		c.send(204, "POST", "/session/demo/shutdown-service", `{"service_name":"never"}`)
	})
	t.Run("a port that a program opens later is noticed", func(t *testing.T) {
		p.must("session", "exec", "demo", "--", "sh", "-c", "webdemo --http 8765 >/dev/null 2>&1 &")
		p.eventually("the port is listed", func() bool {
			_, text := c.try("GET", "/stream/session/demo/apps", "")
			return strings.Contains(text, "8765")
		})
	})
	t.Run("berth app open prints an address that opens the app", func(t *testing.T) {
		require.Contains(t, p.must("app", "list", "demo"), "web")
		out := p.must("app", "open", "demo", "web", "--no-browser")
		status, body, _ := newVisitor(t, "").get(strings.TrimSpace(out[strings.Index(out, "http"):]))
		require.Equal(t, 200, status)
		require.Contains(t, body, "It works")
	})
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

// httpWalk goes through what a visitor and an app can say to each other.
func httpWalk(t *testing.T, v *visitor, app published) {
	base, err := url.Parse(app.Base)
	require.NoError(t, err)
	t.Run("a page", func(t *testing.T) {
		status, body, _ := v.get(app.Base + "/")
		require.Equal(t, 200, status)
		require.Contains(t, body, "It works")
	})
	t.Run("the app sees the visitor's own headers and none of ours", func(t *testing.T) {
		s := v.sees(app.Base, "X-Mine: one", "X-Mine: two", "Cookie: mine=1", "X-Forwarded-For: 6.6.6.6", "X-BackendAI-Token: forged",
			"Authorization: Bearer of-the-app", "Connection: X-Hop", "X-Hop: no")
		require.Equal(t, base.Host, s.Host)
		require.Equal(t, []string{"one", "two"}, s.Headers["X-Mine"])
		if onPort := !strings.HasSuffix(base.Hostname(), ".localhost"); onPort {
			require.NotContains(t, s.Headers, "Cookie", "nobody knows which app on which port set it")
		} else {
			require.Equal(t, []string{"mine=1"}, s.Headers["Cookie"])
		}
		require.Equal(t, []string{"Bearer of-the-app"}, s.Headers["Authorization"])
		require.Equal(t, []string{"127.0.0.1"}, s.Headers["X-Forwarded-For"])
		require.Equal(t, []string{base.Scheme}, s.Headers["X-Forwarded-Proto"])
		require.Equal(t, []string{base.Host}, s.Headers["X-Forwarded-Host"])
		for _, name := range []string{"X-Backendai-Token", "X-Hop"} {
			require.NotContains(t, s.Headers, name)
		}
	})
	t.Run("paths and queries arrive as they were sent", func(t *testing.T) {
		r, err := http.NewRequest("GET", app.Base+"/headers", nil)
		require.NoError(t, err)
		r.URL.RawQuery = "a=%2F;b&c=%zz&&d"
		resp, err := v.client.Do(r)
		require.NoError(t, err)
		defer resp.Body.Close()
		var s seen
		require.NoError(t, json.NewDecoder(resp.Body).Decode(&s))
		require.Equal(t, "/headers?a=%2F;b&c=%zz&&d", s.Target)
	})
	t.Run("two cookies of one name", func(t *testing.T) {
		_, _, header := v.get(app.Base + "/cookies?domain=localhost&name=berth-0123&name=__Host-berth-0123")
		set := strings.Join(header.Values("Set-Cookie"), "\n")
		require.Contains(t, set, "twin=first")
		require.Contains(t, set, "twin=second")
		require.NotContains(t, set, "forged", "an app sets a cookie in the platform's name")
		require.NotContains(t, strings.ToLower(set), "domain=localhost", "an app sets a cookie for its neighbours")
	})
	t.Run("headers of one hop end at the proxy", func(t *testing.T) {
		_, _, header := v.get(app.Base + "/hop")
		require.Equal(t, "yes", header.Get("X-Arrives"))
		require.Empty(t, header.Get("X-Private-Hop"))
		require.Empty(t, header.Get("Keep-Alive"))
	})
	t.Run("uploads", func(t *testing.T) {
		var got struct {
			Bytes    int64 `json:"bytes"`
			Declared int64 `json:"declared"`
		}
		for _, body := range []io.Reader{bytes.NewReader(make([]byte, 5<<20)), io.LimitReader(zeros{}, 5<<20)} { // with a length, in chunks
			resp, err := v.client.Post(app.Base+"/upload", "application/octet-stream", body)
			require.NoError(t, err)
			require.NoError(t, json.NewDecoder(resp.Body).Decode(&got))
			_ = resp.Body.Close()
			require.Equal(t, int64(5<<20), got.Bytes)
		}
	})
	t.Run("downloads", func(t *testing.T) {
		for _, query := range []string{"n=33554433", "n=33554433&chunked=1"} {
			resp, err := v.client.Get(app.Base + "/bytes?" + query)
			require.NoError(t, err)
			n, err := io.Copy(io.Discard, resp.Body)
			_ = resp.Body.Close()
			require.NoError(t, err)
			require.Equal(t, int64(33554433), n)
		}
	})
	t.Run("trailers", func(t *testing.T) {
		resp, err := v.client.Get(app.Base + "/trailers")
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.NotEmpty(t, resp.Trailer.Get("X-Sum"))
		require.Equal(t, []string{"one", "two"}, resp.Trailer.Values("X-Twice"))
	})
	t.Run("events come when they happen", func(t *testing.T) {
		resp, err := v.client.Get(app.Base + "/sse?every=50")
		require.NoError(t, err)
		defer resp.Body.Close()
		lines := bufio.NewScanner(resp.Body)
		for lines.Scan() && lines.Text() != "data: 3" {
		}
		require.Equal(t, "data: 3", lines.Text(), "the stream has no end, so it was not waited for")
	})
	t.Run("WebSocket", func(t *testing.T) {
		ws, err := v.socket(app.Base, app.Base)
		require.NoError(t, err)
		defer func() { _ = ws.CloseNow() }()
		ws.SetReadLimit(2 << 20)
		for _, n := range []int{0, 5, 126, 70_000, 1 << 20} {
			m := bytes.Repeat([]byte("x"), n)
			require.NoError(t, ws.Write(t.Context(), websocket.MessageBinary, m))
			_, got, err := ws.Read(t.Context())
			require.NoError(t, err)
			require.Len(t, got, n)
		}
		require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("close please")))
		_, _, err = ws.Read(t.Context())
		require.Equal(t, websocket.StatusCode(4001), websocket.CloseStatus(err))
	})
	t.Run("a redirect of the app is the app's", func(t *testing.T) {
		noFollow := *v.client
		noFollow.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		resp, err := noFollow.Get(app.Base + "/redirect?to=" + url.QueryEscape("/elsewhere?x=1"))
		require.NoError(t, err)
		_ = resp.Body.Close()
		require.Equal(t, 302, resp.StatusCode)
		require.Equal(t, "/elsewhere?x=1", resp.Header.Get("Location"))
	})
	t.Run("broken replies break one request only", func(t *testing.T) {
		for _, kind := range []string{"two-lengths", "length-and-chunk", "no-http", "bad-header", "switch", "big-head&n=4194304"} {
			resp, err := v.client.Get(app.Base + "/raw?kind=" + kind)
			if err == nil {
				_ = resp.Body.Close()
				require.Equal(t, http.StatusBadGateway, resp.StatusCode, kind)
			}
			v.sees(app.Base)
		}
		_, body, header := v.get(app.Base + "/raw?kind=two-replies")
		require.Equal(t, "hello", body)
		require.Empty(t, header.Get("Set-Cookie"))
		require.Equal(t, base.Host, v.sees(app.Base).Host, "the second reply answered the next request")
		resp, err := v.client.Get(app.Base + "/cut")
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		require.Error(t, err, "half a body looks whole")
	})
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// socket opens the web demo's WebSocket echo with the visitor's cookies, as a page of origin would.
func (v *visitor) socket(base, origin string) (*websocket.Conn, error) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.t.Context(), patience)
	defer cancel()
	client := *v.client
	client.Timeout = 0
	// The library hands ws addresses to the client as http ones, so the jar's cookies come along.
	ws, resp, err := websocket.Dial(ctx, strings.Replace(base, "http", "ws", 1)+"/ws",
		&websocket.DialOptions{HTTPClient: &client, HTTPHeader: http.Header{"Origin": {origin}}})
	if resp != nil && resp.Body != nil && err != nil {
		_ = resp.Body.Close()
	}
	return ws, err
}

// gateway publishes a TCP app and returns the host and port of its circuit, along the way of the web console: by that its
// address is let in.
func (c *console) gateway(session, app string, query ...string) string {
	c.t.Helper()
	p := c.launch(session, app, append([]string{"protocol=tcp"}, query...)...)
	at := p.Enter
	if strings.Contains(at, "?") {
		at += "&do-not-redirect=true"
	} else {
		at += "?do-not-redirect=true"
	}
	status, text, _ := newVisitor(c.t, "").get(at)
	require.Equal(c.t, 200, status, text)
	var reply struct {
		RedirectURI string `json:"redirectURI"`
	}
	require.NoError(c.t, json.Unmarshal([]byte(text), &reply), text)
	u, err := url.Parse(reply.RedirectURI)
	require.NoError(c.t, err, text)
	gateway, err := url.Parse(u.Query().Get("gateway"))
	require.NoError(c.t, err, text)
	require.Equal(c.t, "tcp", gateway.Scheme, text)
	_, err = strconv.Atoi(gateway.Port())
	require.NoError(c.t, err, text)
	return gateway.Host
}

// calls makes unary and streaming calls to the web demo's gRPC service.
func calls(t *testing.T, app published) {
	t.Helper()
	v := newVisitor(t, "")
	status, text, _ := v.get(app.Enter + "&do-not-redirect=true") // gRPC has no page to go to
	require.Equal(t, 200, status, text)
	u, err := url.Parse(app.Base)
	require.NoError(t, err)
	jar := v.client.Jar.Cookies(u)
	require.Len(t, jar, 1)
	secure := insecure.NewCredentials()
	if u.Scheme == "https" {
		secure = credentials.NewTLS(&tls.Config{InsecureSkipVerify: true})
	}
	cc, err := grpc.NewClient("passthrough:///"+u.Host, grpc.WithTransportCredentials(secure))
	require.NoError(t, err)
	defer func() { _ = cc.Close() }()
	client := grpc_testing.NewTestServiceClient(cc)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = client.EmptyCall(ctx, &grpc_testing.Empty{})
	require.Error(t, err, "a call without a ticket")

	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Berth "+jar[0].Value, "cookie", jar[0].Name+"="+jar[0].Value+"; mine=1",
		"x-mine", "one")
	var header, trailer metadata.MD
	payload := &grpc_testing.Payload{Body: bytes.Repeat([]byte("x"), 1<<20)}
	reply, err := client.UnaryCall(ctx, &grpc_testing.SimpleRequest{Payload: payload}, grpc.Header(&header), grpc.Trailer(&trailer))
	require.NoError(t, err)
	require.Equal(t, payload.GetBody(), reply.GetPayload().GetBody())
	require.Equal(t, []string{"one"}, header.Get("x-seen-x-mine"))
	require.Equal(t, []string{"one"}, trailer.Get("x-trailer-x-mine"))
	require.Empty(t, header.Get("x-seen-authorization"), "the app sees a ticket")
	require.Equal(t, []string{"mine=1"}, header.Get("x-seen-cookie"))
	_, err = client.UnaryCall(ctx, &grpc_testing.SimpleRequest{ResponseStatus: &grpc_testing.EchoStatus{Code: 9, Message: "not now"}})
	require.Equal(t, codes.FailedPrecondition, grpcstatus.Code(err))
	stream, err := client.FullDuplexCall(ctx)
	require.NoError(t, err)
	for range 20 { // one after the other: nothing may be held back until the end
		require.NoError(t, stream.Send(&grpc_testing.StreamingOutputCallRequest{Payload: &grpc_testing.Payload{Body: []byte("ping")}}))
		m, err := stream.Recv()
		require.NoError(t, err)
		require.Equal(t, "ping", string(m.GetPayload().GetBody()))
	}
	require.NoError(t, stream.CloseSend())
	_, err = stream.Recv()
	require.ErrorIs(t, err, io.EOF)
}

// echoes sends text to an echo, ends its direction, and returns everything that came back; "" also when the connection broke.
func echoes(t *testing.T, address, from, text string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := dialerFrom(from)(ctx, "tcp", address)
	if err != nil {
		return ""
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, text)
	_ = conn.(*net.TCPConn).CloseWrite()
	b, _ := io.ReadAll(conn)
	return string(b)
}
