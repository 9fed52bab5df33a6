package appproxy_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/appproxy"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/tunnel"
)

// The whole way as the web console goes it: add, auth, warm-up, and the window that opens.
func TestFromLaunchToApp(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.m.template = func(proxy.LaunchRequest) (proxy.Circuit, error) { return labelled(1, "lab-1"), nil }
	b := s.browser()
	added := s.get(b, s.p.URL()+"/v2/proxy/start-token/s-1/add?app=jupyter&protocol=http&open_to_public=true"+
		"&allowed_client_ips=10.0.0.0/8,127.0.0.1"+
		"&envs=%7B%7D&args=null&unknown=x", "Origin", "https://console.example.org")
	require.Equal(t, 200, added.status)
	require.Equal(t, "*", added.header.Get("Access-Control-Allow-Origin"))
	require.EqualValues(t, 200, added.json(t)["code"])
	next := added.json(t)["url"].(string)
	require.True(t, strings.HasPrefix(next, s.p.URL()+"/v2/proxy/auth?"), next)
	require.NotContains(t, next, "unknown")
	require.Contains(t, next, "token=launch-token")
	require.NotContains(t, next, "start-token", "the address holds the token that is bound to it")
	require.Empty(t, s.m.launched, "nothing is published yet")

	got := s.get(b, next+"&permit_key=whatever", "Accept", "application/json")
	require.Equal(t, 200, got.status, got.body)
	require.Equal(t, "*", got.header.Get("Access-Control-Allow-Origin"))
	require.Equal(t, false, got.json(t)["reuse"])
	redirect := got.json(t)["redirect_url"].(string)
	require.True(t, strings.HasPrefix(redirect, s.url("lab-1.apps.localhost", "/setup?token=code-")), redirect)
	q := s.m.launched[0]
	require.NotEmpty(t, q.Attempt)
	q.Attempt = ""
	bound := s.m.bound[0]
	require.Equal(t, "start-token", bound.Token)
	bound.Token, bound.Attempt = q.Token, ""
	require.Equal(t, q, bound, "it is bound to what is launched")
	require.Equal(t, proxy.LaunchRequest{
		Proxy: "local", Token: "launch-token", Session: "s-1", App: "jupyter", Protocol: "http", Envs: "{}", Arguments: "null",
		Public: true, Allowed: "10.0.0.0/8,127.0.0.1", Client: loopbackAddr,
	}, q)

	// Before its visitor is in, the app is closed.
	app := s.url("lab-1.apps.localhost", "/lab?x=1")
	denied := s.get(b, app, "Accept", "text/html")
	require.Equal(t, 401, denied.status)
	require.Contains(t, denied.body, "berth app open mine jupyter")
	require.Contains(t, denied.header.Get("Content-Security-Policy"), "default-src 'none'")
	require.Equal(t, "no-ticket", s.get(b, app).json(t)["error_code"])

	// The console's page asks in the background first; the code must survive that.
	warm := s.get(b, redirect, "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "empty")
	require.Equal(t, 204, warm.status)
	require.Empty(t, warm.header.Values("Set-Cookie"))
	require.Equal(t, 204, s.get(b, redirect, "Accept", "*/*", "User-Agent", "Mozilla/5.0 (old)").status)
	require.Equal(t, 204, s.do(b, http.MethodHead, redirect, "").status)

	set := s.get(b, redirect, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document")
	require.Equal(t, 302, set.status, set.body)
	require.Equal(t, "/lab?x=1", set.header.Get("Location"))
	require.Equal(t, "no-store", set.header.Get("Cache-Control"))
	require.Len(t, set.header.Values("Set-Cookie"), 1)
	cookie := set.header.Get("Set-Cookie")
	for _, part := range []string{"berth-" + strings.ReplaceAll(uuid(1), "-", "") + "=", "HttpOnly", "SameSite=Lax", "Path=/", "Max-Age="} {
		require.Contains(t, cookie, part)
	}
	require.NotContains(t, cookie, "Domain")
	require.NotContains(t, cookie, "Secure", "there is no TLS")

	in := s.get(b, app, "Authorization", "Bearer the app's own")
	require.Equal(t, 200, in.status, in.body)
	require.Equal(t, "/lab?x=1", in.json(t)["path"])
	header := in.json(t)["header"].(map[string]any)
	require.NotContains(t, header, "Cookie", "the ticket does not reach the app")
	require.Equal(t, []any{"Bearer the app's own"}, header["Authorization"])

	// A page that is loaded again shows the used code again.
	require.Equal(t, 302, s.get(b, redirect, "Accept", "text/html").status)
	// Nobody else gets in with it.
	replay := s.get(s.browser(), redirect, "Accept", "text/html")
	require.Equal(t, 401, replay.status)
	require.Contains(t, replay.body, "used already")
	require.Empty(t, replay.header.Values("Set-Cookie"))

	again := s.get(b, next, "Accept", "application/json")
	require.Equal(t, true, again.json(t)["reuse"])
	person := s.get(b, next, "Accept", "text/html")
	require.Equal(t, http.StatusPermanentRedirect, person.status)
	require.Contains(t, person.header.Get("Location"), "/setup?token=")
	// Cookies of one circuit open no other, although they are sent to it.
	other := s.known(s.m.publish(labelled(2, "lab-2")))
	value, _, _ := strings.Cut(strings.SplitN(cookie, "=", 2)[1], ";")
	for _, name := range []string{"berth-" + strings.ReplaceAll(uuid(1), "-", ""), "berth-" + strings.ReplaceAll(uuid(2), "-", "")} {
		require.Equal(t, 401, s.get(s.browser(), s.url("lab-2.apps.localhost", "/"), "Cookie", name+"="+value).status)
	}
	// Two cookies of the name count as none.
	name := "berth-" + strings.ReplaceAll(uuid(1), "-", "")
	require.Equal(t, 200, s.get(s.browser(), app, "Cookie", name+"="+value).status)
	require.Equal(t, 401, s.get(s.browser(), app, "Cookie", name+"="+value+"; "+name+"=x").status)
	// Nor does its code, which stays good for its own.
	code := s.m.code(other.ID, "u2")
	require.Equal(t, 401, s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+code)).status)
	require.Equal(t, 302, s.get(s.browser(), s.url("lab-2.apps.localhost", "/setup?token="+code)).status)

	ended := s.get(b, s.p.URL()+"/v2/proxy/launch-token/s-1/delete")
	require.Equal(t, 200, ended.status)
	require.Equal(t, []proxy.CloseRequest{{Token: "launch-token", Session: "s-1"}}, s.m.closed)
	require.Equal(t, 200, s.get(b, s.p.URL()+"/v2/proxy/AKIA/s-1").status)
}

func TestLaunchThatFails(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.m.template = func(q proxy.LaunchRequest) (proxy.Circuit, error) {
		if q.ProxyPort == s.cfg.Ports.From {
			return s.ported(9, 0, "http"), nil
		}
		return proxy.Circuit{}, fault.Conflictf("the label %q is taken", q.Label).WithReason("label-taken").WithNext("choose another one")
	}
	b := s.browser()
	auth := s.p.URL() + "/v2/proxy/auth?session_id=s-1&app=jupyter&token="
	for _, accept := range []string{"application/json", "text/html"} {
		require.Equal(t, 401, s.get(b, auth+"another", "Accept", accept).status)
	}
	taken := s.get(b, auth+"launch-token&subdomain=Mine", "Accept", "application/json")
	require.Equal(t, 409, taken.status)
	require.Equal(t, "label-taken", taken.json(t)["error_code"])
	require.Equal(t, "choose another one", taken.json(t)["next"])
	require.Equal(t, "mine", s.m.launched[len(s.m.launched)-1].Label)
	for _, bad := range []string{"port=x", "port=70000", "mode=side", "app_port=-1"} {
		require.Equal(t, 400, s.get(b, auth+"launch-token&"+bad).status, bad)
	}
	require.Equal(t, 400, s.get(b, s.p.URL()+"/v2/proxy/auth?app=x").status)
	require.Equal(t, 400, s.get(b, s.p.URL()+"/v2/proxy/t/s/add").status)
	refused := s.get(b, s.p.URL()+"/v2/proxy/another/s-1/add?app=jupyter")
	require.Equal(t, []any{403, "bad-launch-token", "start the app again"},
		[]any{refused.status, refused.json(t)["error_code"], refused.json(t)["next"]})
	// A port that somebody else holds: the visitor is told, and so is doctor.
	stranger, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", s.cfg.Ports.From))
	require.NoError(t, err)
	held := s.get(b, fmt.Sprintf("%slaunch-token&port=%d", auth, s.cfg.Ports.From), "Accept", "application/json")
	require.Equal(t, 503, held.status)
	require.Equal(t, "port-taken", held.json(t)["error_code"])
	found := s.p.Findings()
	require.Len(t, found, 1)
	require.Contains(t, found[0].Object, uuid(9))
	require.NotEmpty(t, s.p.Status().Problem)
	// Who did not ask for that port gets the next one. What was there before may be served by other replicas; what the launch has
	// made is given back.
	s.m.publish(s.ported(12, 0, "http"))
	s.m.template = func(q proxy.LaunchRequest) (proxy.Circuit, error) {
		switch {
		case slices.Contains(q.Passed, uuid(10)):
			return s.ported(11, 1, "http"), nil
		case slices.Contains(q.Passed, uuid(12)):
			return s.ported(10, 0, "http"), nil
		}
		return s.ported(12, 0, "http"), nil
	}
	tries := len(s.m.launched)
	another := s.get(b, auth+"launch-token", "Accept", "application/json")
	require.Equal(t, 200, another.status, another.body)
	require.Contains(t, another.json(t)["redirect_url"], fmt.Sprintf(":%d/", s.cfg.Ports.From+1))
	require.Len(t, s.m.launched, tries+3)
	require.Equal(t, []any{[]string{uuid(12)}, ""}, []any{s.m.launched[tries+1].Passed, s.m.launched[tries+1].Unopened})
	require.Equal(t, []any{[]string{uuid(12), uuid(10)}, uuid(10)}, []any{s.m.launched[tries+2].Passed, s.m.launched[tries+2].Unopened})
	require.NoError(t, stranger.Close())
	s.eventually(func() bool { return len(s.p.Findings()) == 0 }, "the port is opened once it is free")
}

// A visitor whom another replica has let in need not wait for the news of it.
func TestAdmittedByAnotherReplica(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(s.ported(1, 0, "tcp")))
	address := fmt.Sprintf("127.0.0.1:%d", c.Port)
	s.eventually(func() bool {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		defer conn.Close()
		_, err = conn.Read(make([]byte, 1))
		return err != nil && s.m.seen(func() bool { return s.m.lookups > 0 })()
	}, "strangers are refused, after a look")
	began := time.Now()
	for range 50 {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		_ = conn.Close()
	}
	require.True(t, s.m.seen(func() bool { return s.m.lookups <= 2+int(time.Since(began)/time.Second) })(),
		"strangers cannot make it ask for each of them")
	s.m.mu.Lock()
	s.m.revision++
	c.Revision, c.Admitted = s.m.revision, []netip.Addr{loopbackAddr}
	s.m.circuits[c.ID] = c // nobody is told
	s.m.mu.Unlock()
	s.eventually(func() bool {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		defer conn.Close()
		if _, err := conn.Write([]byte("x")); err != nil {
			return false
		}
		_, err = conn.Read(make([]byte, 1))
		return err == nil
	}, "the address is let in")
}

// Apps that take their time to start keep nobody out of others.
func TestLaunchesThatHang(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	code := s.m.code(c.ID, "u1")
	s.m.mu.Lock()
	s.m.template = func(proxy.LaunchRequest) (proxy.Circuit, error) {
		return proxy.Circuit{}, fault.Conflictf("it did not start")
	}
	s.m.stuck, s.m.stuckAt = make(chan struct{}), proxy.PathLaunch
	s.m.mu.Unlock()
	var all sync.WaitGroup
	defer all.Wait()
	defer close(s.m.stuck)
	var refused atomic.Int32
	for n := range 40 {
		for range 6 {
			all.Go(func() {
				a := s.get(s.browser(), fmt.Sprintf("%s/v2/proxy/auth?token=launch-token&app=jupyter&session_id=s-%d", s.p.URL(), n), "Accept",
					"application/json")
				if a.status == 429 {
					refused.Add(1)
				}
			})
		}
	}
	s.eventually(func() bool { return refused.Load() == 40*6-32 }, "too many wait already")
	s.eventually(s.m.seen(func() bool { return s.m.asked == 32 }), "those who do not wait have been heard")
	require.Equal(t, 302, s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+code)).status)
}

// A port is one app's today and another's tomorrow, which browsers take for the same site: nothing that one leaves there serves in
// the place of the next. A host name is never given to others while it may be remembered.
func TestPortsLeaveNothingBehind(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) { c.TLS.SelfSigned, c.Ports.TLS = true, true })
	port, label := s.ported(1, 0, "http"), labelled(2, "lab-2")
	port.Public, label.Public = true, true
	port, label = s.known(s.m.publish(port)), s.known(s.m.publish(label))
	s.eventually(func() bool { return s.p.Status().PortsOpen == 1 }, "open")
	two := s.browser()
	two.Transport.(*http.Transport).ForceAttemptHTTP2 = true
	for name, b := range map[string]*http.Client{"HTTP/1.1": s.browser(), "HTTP/2": two} {
		base := fmt.Sprintf("https://127.0.0.1:%d", port.Port)
		page := s.get(b, base+"/page")
		require.Equal(t, 200, page.status, name)
		require.Equal(t, []string{"Cookie"}, page.header.Values("Vary"), name)
		worker := s.get(b, base+"/sw.js", "Service-Worker", "script")
		require.Equal(t, 403, worker.status, name)
		require.Equal(t, "no-service-workers", worker.json(t)["error_code"])
		require.Empty(t, s.get(b, s.url("lab-2.apps.localhost", "/page")).header.Values("Vary"), name)
		require.Equal(t, 200, s.get(b, s.url("lab-2.apps.localhost", "/sw.js"), "Service-Worker", "script").status, name)
	}
}

// Whoever tries codes without end keeps nobody else waiting.
func TestCodesWithoutEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) { c.TrustedProxies = []string{"127.0.0.1"} })
	s.known(s.m.publish(labelled(1, "lab-1")))
	s.m.mu.Lock()
	s.m.stuck, s.m.stuckAt = make(chan struct{}), proxy.PathRedeem
	s.m.mu.Unlock()
	setup := func(from string) answer {
		return s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token=x"), "X-Forwarded-For", from)
	}
	var all sync.WaitGroup
	var refused atomic.Int32
	for range 40 {
		all.Go(func() {
			if setup("192.0.2.1").status == 429 {
				refused.Add(1)
			}
		})
	}
	s.eventually(func() bool { return refused.Load() == 32 }, "one address has enough questions under way")
	all.Go(func() { setup("192.0.2.2") })
	s.eventually(s.m.seen(func() bool { return s.m.asked == 9 }), "another one is heard")
	close(s.m.stuck)
	all.Wait()
}

func TestSecretOfConf(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	body := `{"login_session_token":"x","kernel_host":"169.254.169.254","kernel_port":80,` +
		`"session":{"id":"s-1","access_key":"AK","user_uuid":"u"}}`
	for _, method := range []string{"POST", "PUT"} {
		require.Equal(t, 401, s.do(s.browser(), method, s.p.URL()+"/v2/conf", body).status)
		require.Equal(t, 401, s.do(s.browser(), method, s.p.URL()+"/v2/conf", body, "X-BackendAI-Token", "wrong").status)
		got := s.do(s.browser(), method, s.p.URL()+"/v2/conf", body, "X-BackendAI-Token", "a secret of sixteen characters")
		require.Equal(t, 200, got.status)
		require.Equal(t, "launch-token", got.json(t)["token"])
	}
	require.Equal(t, 400, s.do(s.browser(), "POST", s.p.URL()+"/v2/conf", "{}", "X-BackendAI-Token", "a secret of sixteen characters").status)
	none := newSite(t, func(c *appproxy.Config) { c.Secret = appproxy.DefaultConfig().Secret })
	require.Equal(t, 401, none.do(none.browser(), "POST", none.p.URL()+"/v2/conf", body, "X-BackendAI-Token", "").status)
}

// Which host a request names decides what answers; the API answers at its own alone.
func TestHosts(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	s.known(s.m.publish(labelled(1, "lab-1")))
	public := s.ported(2, 0, "http")
	public.Public = true
	s.known(s.m.publish(public))
	s.eventually(func() bool { return s.p.Status().PortsOpen == 1 }, "its port is open")
	b := s.browser()
	require.Equal(t, "v2", s.get(b, s.p.URL()+"/status").json(t)["api_version"])
	for host, want := range map[string]int{
		"": 200, "127.0.0.1": 200, "localhost": 200, "localhost.": 200, "LOCALHOST:9": 200, "apps.localhost": 200, "[::1]:80": 200,
		"evil.example.com": 421, "169.254.169.254": 421, "10.0.0.1": 421, "apps.localhost.evil.com": 421, "xapps.localhost": 421,
		"lab-1.apps.localhost": 401, "LAB-1.Apps.LocalHost:1": 401, "nobody.apps.localhost": 404, "a.lab-1.apps.localhost": 421,
		"_.apps.localhost": 421, ".apps.localhost": 421,
	} {
		at := s.get(b, s.p.URL()+"/status", "Host", host)
		require.Equal(t, want, at.status, host)
	}
	require.Equal(t, 200, s.get(b, s.p.URL()+"/healthz", "Host", "10.1.2.3").status, "load balancers ask by address")
	port := fmt.Sprintf("http://127.0.0.1:%d", public.Port)
	for host, want := range map[string]int{"": 200, "localhost": 200, "192.168.1.5:80": 200, "rebound.example.com": 421,
		"lab-1.apps.localhost": 421} {
		require.Equal(t, want, s.get(b, port+"/status", "Host", host).status, host)
	}
	require.Equal(t, "/v2/conf", s.do(b, "POST", port+"/v2/conf", "").json(t)["path"], "an app's port is the app's alone")
	require.Equal(t, 404, s.get(b, s.p.URL()+"/nothing").status)
	require.Contains(t, s.get(b, s.p.URL()+"/", "Accept", "text/html").body, "app proxy local")
}

// Unknown labels are looked for once a second at most, and found when their event is on its way.
func TestUnknownLabels(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	b := s.browser()
	began := time.Now()
	for range 20 {
		require.Equal(t, 404, s.get(b, s.url("nobody.apps.localhost", "/")).status)
	}
	s.m.mu.Lock()
	require.LessOrEqual(t, s.m.lookups, 1+int(time.Since(began)/time.Second))
	late := labelled(3, "late")
	late.Revision, late.Public = 99, true
	s.m.late[late.ID] = late
	s.m.mu.Unlock()
	first := s.do(b, "POST", s.url("late.apps.localhost", "/a?b=c"), "x")
	require.Equal(t, 307, first.status)
	require.Equal(t, "/a?b=c", first.header.Get("Location"))
	require.Equal(t, 200, s.get(b, s.url("late.apps.localhost", "/a?b=c")).status)
	late.ID, late.Label = uuid(4), "later"
	s.m.mu.Lock()
	s.m.late[late.ID] = late
	s.m.mu.Unlock()
	require.Equal(t, 503, s.get(b, s.url("later.apps.localhost", "//evil.example.com/")).status, "no redirect to elsewhere")
}

func TestSetupLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	for redirect, want := range map[string]string{
		"/tree?a=b": "/tree?a=b", "": "/", "//evil.example.com": "/", "https://evil.example.com/": "/", `/\evil.example.com`: "/",
		"javascript:alert(1)":   "/",
		"/a\r\nSet-Cookie: x=y": "/", "evil": "/", "/%0d%0ax": "/%0d%0ax", "/\t/evil": "/", "///evil.example.com": "/",
	} {
		got := s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+s.m.code(c.ID, "u")+"&redirect="+url.QueryEscape(redirect)))
		require.Equal(t, 302, got.status)
		require.Equal(t, want, got.header.Get("Location"), redirect)
	}
	// Without a code the page is the app's own.
	public := labelled(2, "own")
	public.Public = true
	s.known(s.m.publish(public))
	require.Equal(t, "/setup?x=1", s.get(s.browser(), s.url("own.apps.localhost", "/setup?x=1")).json(t)["path"])
	require.Equal(t, 204, s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+s.m.code(c.ID, "u")), "Sec-Purpose",
		"prefetch").status)
	away := labelled(5, "away")
	away.Targets = targets(1)
	s.known(s.m.publish(away))
	require.Equal(t, 502, s.get(s.browser(), s.url("away.apps.localhost", "/setup?token=x"), "Sec-Fetch-Mode", "no-cors").status,
		"the console tries again")
}

func (s *site) socket(label string, header http.Header) (*websocket.Conn, int, error) {
	s.t.Helper()
	c, resp, err := websocket.Dial(s.t.Context(), s.url(label+".apps.localhost", "/ws"),
		&websocket.DialOptions{HTTPClient: &http.Client{Transport: s.transport()}, HTTPHeader: header})
	status := 0
	if resp != nil {
		status = resp.StatusCode
	}
	if c != nil {
		s.t.Cleanup(func() { _ = c.CloseNow() })
	}
	return c, status, err
}

func TestSocketsAndRevocation(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	cookie := "berth-" + strings.ReplaceAll(c.ID, "-", "") + "=" + s.m.ticket(c.ID, 1)
	own := s.url("lab-1.apps.localhost", "")
	_, status, err := s.socket("lab-1", http.Header{"Origin": {"https://evil.example.com"}, "Cookie": {cookie}})
	require.Error(t, err)
	require.Equal(t, 403, status)
	_, status, err = s.socket("lab-1", http.Header{"Origin": {own, "https://evil.example.com"}, "Cookie": {cookie}})
	require.Error(t, err)
	require.Equal(t, 403, status)
	_, status, err = s.socket("lab-1", http.Header{"Origin": {own}})
	require.Error(t, err)
	require.Equal(t, 401, status)

	live := func() *websocket.Conn {
		ws, _, err := s.socket("lab-1", http.Header{"Origin": {own}, "Cookie": {cookie}})
		require.NoError(t, err)
		require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("hello")))
		_, text, err := ws.Read(t.Context())
		require.NoError(t, err)
		require.Equal(t, "hello", string(text))
		return ws
	}
	ends := func(ws *websocket.Conn, why string) {
		_, _, err := ws.Read(t.Context())
		require.Error(t, err, why)
	}
	ws := live()
	c.Epoch = 2
	c = s.known(s.m.publish(c))
	ends(ws, "tickets were revoked")
	_, status, _ = s.socket("lab-1", http.Header{"Origin": {own}, "Cookie": {cookie}})
	require.Equal(t, 401, status)
	cookie = "berth-" + strings.ReplaceAll(c.ID, "-", "") + "=" + s.m.ticket(c.ID, 2)
	ws = live()
	soon := time.Now().Add(300 * time.Millisecond)
	c.ExpiresAt = &soon
	c = s.known(s.m.publish(c))
	ends(ws, "its time is over")
	require.Equal(t, 410, s.get(s.browser(), own+"/", "Cookie", cookie).status)
	c.ExpiresAt = nil
	s.known(s.m.publish(c))
	ws = live()
	s.eventually(s.m.seen(func() bool { return s.m.activity[c.ID].BytesIn > 0 }), "activity is reported")
	s.m.revoke(c.ID)
	ends(ws, "the circuit is gone")
	require.Equal(t, 404, s.get(s.browser(), own+"/", "Cookie", cookie).status)
}

// A manager that takes its time with reports keeps no circuit alive that has expired.
func TestExpiryWhileTheManagerIsSlow(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := labelled(1, "lab-1")
	c.Public = true
	c = s.known(s.m.publish(c))
	s.m.mu.Lock()
	s.m.stuck, s.m.stuckAt = make(chan struct{}), proxy.PathActivity
	s.m.mu.Unlock()
	defer close(s.m.stuck)
	ws, _, err := s.socket("lab-1", http.Header{"Origin": {s.url("lab-1.apps.localhost", "")}})
	require.NoError(t, err)
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("hello")))
	_, _, err = ws.Read(t.Context())
	require.NoError(t, err)
	s.eventually(s.m.seen(func() bool { return s.m.asked == 1 }), "a report is on its way")
	now := time.Now()
	c.ExpiresAt = &now
	s.known(s.m.publish(c))
	_, _, err = ws.Read(t.Context())
	require.Error(t, err)
	require.True(t, s.m.seen(func() bool { return s.m.asked == 1 })(), "the same report is still on its way")
}

// While no manager answers, those who are in go on and keep their connections; afterwards everything is as the manager says.
func TestManagerAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	stays, goes := s.known(s.m.publish(labelled(1, "lab-1"))), s.known(s.m.publish(labelled(2, "lab-2")))
	cookie := func(c proxy.Circuit) string {
		return "berth-" + strings.ReplaceAll(c.ID, "-", "") + "=" + s.m.ticket(c.ID, 1)
	}
	ws, _, err := s.socket("lab-1", http.Header{"Cookie": {cookie(stays)}})
	require.NoError(t, err)
	code := s.m.code(stays.ID, "u")
	s.m.stop()
	s.eventually(func() bool { return !s.p.Status().Connected }, "it is noticed")
	require.Equal(t, 200, s.get(s.browser(), s.url("lab-1.apps.localhost", "/"), "Cookie", cookie(stays)).status)
	require.Equal(t, 200, s.get(s.browser(), s.url("lab-2.apps.localhost", "/"), "Cookie", cookie(goes)).status)
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("still")))
	_, _, err = ws.Read(t.Context())
	require.NoError(t, err)
	away := s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+code), "Accept", "text/html")
	require.Equal(t, 503, away.status)
	require.Contains(t, away.body, `http-equiv="refresh"`)
	unknown := s.get(s.browser(), s.url("nobody.apps.localhost", "/"))
	require.Equal(t, 503, unknown.status)
	require.Equal(t, "manager-away", unknown.json(t)["error_code"])
	require.Equal(t, true, s.get(s.browser(), s.p.URL()+"/healthz").json(t)["ok"])

	s.m.revoke(goes.ID)
	s.m.start()
	s.eventually(func() bool { return s.p.Status().Connected }, "it is back")
	require.Equal(t, 404, s.get(s.browser(), s.url("lab-2.apps.localhost", "/"), "Cookie", cookie(goes)).status)
	require.NoError(t, ws.Write(t.Context(), websocket.MessageText, []byte("still")))
	_, _, err = ws.Read(t.Context())
	require.NoError(t, err, "the connection of a circuit that stayed was never touched")
	require.Equal(t, 302, s.get(s.browser(), s.url("lab-1.apps.localhost", "/setup?token="+code)).status)
}

// A proxy that starts again knows nothing but what its manager tells; cookies go on.
func TestRestart(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	s.known(s.m.publish(s.ported(2, 3, "http")))
	cookie := "berth-" + strings.ReplaceAll(c.ID, "-", "") + "=" + s.m.ticket(c.ID, 1)
	ws, _, err := s.socket("lab-1", http.Header{"Cookie": {cookie}})
	require.NoError(t, err)
	require.NoError(t, s.group.Stop(t.Context()))
	_, _, err = ws.Read(t.Context())
	require.Error(t, err)
	s.start()
	require.Equal(t, 200, s.get(s.browser(), s.url("lab-1.apps.localhost", "/"), "Cookie", cookie).status)
	s.eventually(func() bool { return s.p.Status().PortsOpen == 1 }, "ports are open again")
}

// Ports are open exactly while their circuit is there, and a port's next circuit is not opened by the last one's cookie.
func TestPortsComeAndGo(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.ported(1, 0, "http")
	address := fmt.Sprintf("127.0.0.1:%d", a.Port)
	_, err := net.Dial("tcp", address)
	require.Error(t, err, "nothing listens on ports that nobody has")
	s.known(s.m.publish(a))
	s.eventually(func() bool { return s.p.Status().PortsOpen == 1 }, "open")
	b := s.browser()
	require.Equal(t, 302, s.get(b, "http://"+address+"/setup?token="+s.m.code(a.ID, "u")).status)
	require.Equal(t, 200, s.get(b, "http://"+address+"/").status)
	s.m.revoke(a.ID)
	s.eventually(func() bool { return s.p.Status().PortsOpen == 0 }, "closed")
	next := s.known(s.m.publish(s.ported(2, 0, "http")))
	s.eventually(func() bool { return s.p.Status().PortsOpen == 1 }, "open again")
	require.Equal(t, 401, s.get(b, "http://"+address+"/").status)
	require.Equal(t, 302, s.get(b, "http://"+address+"/setup?token="+s.m.code(next.ID, "u")).status)
	require.Equal(t, 200, s.get(b, "http://"+address+"/").status)
	outside := s.ported(3, 0, "http")
	outside.Port = s.cfg.Ports.To + 1
	s.known(s.m.publish(outside))
	s.eventually(func() bool { return len(s.p.Findings()) == 1 }, "a port that is not ours is not opened")
}

func echoes(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
	got := make([]byte, len(text))
	_, err = io.ReadFull(c, got)
	require.NoError(t, err)
	require.Equal(t, text, string(got))
}

// A raw app: the console's reply, a port for addresses that were let in, tunnels for tickets.
func TestRawApps(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.ported(1, 0, "tcp")
	s.m.template = func(proxy.LaunchRequest) (proxy.Circuit, error) { return c, nil }
	auth := s.p.URL() + "/v2/proxy/auth?session_id=s-1&app=sshd&protocol=tcp&token=launch-token"
	s.get(s.browser(), auth, "Accept", "application/json")
	address := fmt.Sprintf("127.0.0.1:%d", c.Port)
	stranger, err := net.Dial("tcp", address)
	require.NoError(t, err)
	_, err = stranger.Read(make([]byte, 1))
	require.Error(t, err, "an address that nobody let in")

	got := s.get(s.browser(), auth, "Accept", "application/json").json(t)
	require.Equal(t, false, got["reuse"], "never for raw apps")
	redirect := got["redirect_url"].(string)
	reply := s.get(s.browser(), redirect+"&do-not-redirect=true", "Origin", "https://console.example.org", "Sec-Fetch-Mode", "cors")
	require.Equal(t, 200, reply.status, reply.body)
	require.Equal(t, "*", reply.header.Get("Access-Control-Allow-Origin"))
	for _, field := range []string{"redirectURI", "redirect"} {
		u, err := url.Parse(reply.json(t)[field].(string))
		require.NoError(t, err)
		require.Equal(t, "localhost:45678", u.Host)
		require.Equal(t, "/start", u.Path)
		require.Equal(t, "true", u.Query().Get("directTCP"))
		require.Equal(t, "tcp", u.Query().Get("proto"))
		require.Equal(t, "tcp://"+address, u.Query().Get("gateway"))
	}
	require.NotContains(t, reply.json(t), "ticket")
	require.Equal(t, 401, s.get(s.browser(), redirect+"&do-not-redirect=true").status, "once")
	conn, err := net.Dial("tcp", address)
	require.NoError(t, err)
	defer conn.Close()
	echoes(t, conn, "let in")

	dial := func(ticket string) (net.Conn, error) {
		raw, err := net.Dial("tcp", s.p.Addr())
		require.NoError(t, err)
		return tunnel.Open(t.Context(), raw, "/v2/tunnel?circuit="+c.ID, http.Header{"Authorization": {"Berth " + ticket}})
	}
	_, err = dial("nonsense")
	require.True(t, fault.Is(err, fault.Unauthenticated), err)
	_, err = dial(s.m.ticket(uuid(2), 1))
	require.True(t, fault.Is(err, fault.Unauthenticated), err)
	through, err := dial(s.m.ticket(c.ID, 1))
	require.NoError(t, err)
	defer through.Close()
	echoes(t, through, "through the tunnel")

	ws, _, err := websocket.Dial(t.Context(), s.url("", "/v2/tunnel?circuit="+c.ID),
		&websocket.DialOptions{Subprotocols: []string{"berth-conn-1", "berth-ticket." + s.m.ticket(c.ID, 1)}})
	require.NoError(t, err)
	require.Equal(t, "berth-conn-1", ws.Subprotocol())
	nc := websocket.NetConn(t.Context(), ws, websocket.MessageBinary)
	echoes(t, nc, "through a socket")
	s.eventually(s.m.seen(func() bool { return s.m.activity[c.ID].BytesIn >= 40 }), "all of them are activity")

	s.m.revoke(c.ID)
	for _, live := range []net.Conn{conn, through, nc} {
		_ = live.SetReadDeadline(time.Now().Add(time.Minute))
		_, err = live.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, net.ErrClosed)
		var late net.Error
		require.False(t, errors.As(err, &late) && late.Timeout(), "it ended by itself")
	}
	_, err = dial(s.m.ticket(c.ID, 1))
	require.True(t, fault.Is(err, fault.NotFound), err)
}

// With a certificate, a raw app's own port takes whoever shows a ticket inside TLS.
// Whoever opens connections and says nothing keeps nobody else from the proxy.
func TestSilentHandshakes(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) { c.TLS.SelfSigned = true })
	base, err := url.Parse(s.p.URL())
	require.NoError(t, err)
	silent := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	var last net.Conn
	for range 1100 {
		last, err = silent.Dial("tcp", net.JoinHostPort("127.0.0.1", base.Port()))
		require.NoError(t, err)
		defer last.Close()
	}
	_, err = last.Read(make([]byte, 1))
	require.Error(t, err, "it has too many already")
	require.Equal(t, 200, s.get(s.browser(), s.p.URL()+"/healthz").status)
}

// Behind a balancer that passes TLS on everybody comes from one address.
func TestHandshakesBehindABalancer(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) {
		c.TLS.SelfSigned, c.TrustedProxies = true, []string{"127.0.0.3"}
	})
	base, err := url.Parse(s.p.URL())
	require.NoError(t, err)
	balancer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3)}}
	for range 200 {
		silent, err := balancer.Dial("tcp", net.JoinHostPort("127.0.0.1", base.Port()))
		require.NoError(t, err)
		defer silent.Close()
	}
	conn, err := tls.DialWithDialer(&balancer, "tcp", net.JoinHostPort("127.0.0.1", base.Port()), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	_ = conn.Close()
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) { c.TLS.SelfSigned, c.Ports.TLS = true, true })
	require.True(t, strings.HasPrefix(s.p.URL(), "https://"))
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	b := s.browser()
	set := s.get(b, s.url("lab-1.apps.localhost", "/setup?token="+s.m.code(c.ID, "u")))
	require.Equal(t, 302, set.status)
	require.True(t, strings.HasPrefix(set.header.Get("Set-Cookie"), "__Host-berth-"), set.header)
	require.Contains(t, set.header.Get("Set-Cookie"), "; Secure")
	require.Equal(t, 200, s.get(b, s.url("lab-1.apps.localhost", "/")).status)
	port := s.known(s.m.publish(s.ported(2, 0, "http")))
	raw := s.known(s.m.publish(s.ported(3, 1, "tcp")))
	s.eventually(func() bool { return s.p.Status().PortsOpen == 2 }, "ports are open")
	require.Equal(t, 401, s.get(b, fmt.Sprintf("https://127.0.0.1:%d/", port.Port)).status)
	require.Equal(t, 400, s.get(b, fmt.Sprintf("https://127.0.0.1:%d/", raw.Port)).status, "it speaks no HTTP")

	conn, err := tls.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", raw.Port), &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	through, err := tunnel.Open(t.Context(), conn, "/v2/tunnel?circuit="+raw.ID,
		http.Header{"Authorization": {"Berth " + s.m.ticket(raw.ID, 1)}})
	require.NoError(t, err)
	defer through.Close()
	echoes(t, through, "inside TLS")
	require.NotNil(t, s.p.Status().CertExpires)
	require.Empty(t, s.p.Findings())
	made := s.p.Status().CertExpires
	require.NoError(t, s.group.Stop(t.Context()))
	s.start()
	require.Equal(t, made, s.p.Status().CertExpires, "made once")
}

// A hidden upstream's fault reaches the visitor with its words.
func TestAppAway(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := labelled(1, "lab-1")
	c.Targets, c.Public = targets(1), true
	s.known(s.m.publish(c))
	got := s.get(s.browser(), s.url("lab-1.apps.localhost", "/"), "Accept", "text/html")
	require.Contains(t, []int{502, 503}, got.status)
	require.Contains(t, strings.ToLower(got.body), "does not listen")
	raw, err := net.Dial("tcp", s.p.Addr())
	require.NoError(t, err)
	_, err = tunnel.Open(t.Context(), raw, "/v2/tunnel?circuit="+c.ID, http.Header{"Authorization": {"Berth " + s.m.ticket(c.ID, 1)}})
	require.Equal(t, "app-away", fault.ReasonOf(err))
}

func TestPublicAndAllowed(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(c *appproxy.Config) { c.TrustedProxies = []string{"127.0.0.1"} })
	c := labelled(1, "open")
	c.Public, c.Allowed = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	s.known(s.m.publish(c))
	at := s.url("open.apps.localhost", "/")
	require.Equal(t, 403, s.get(s.browser(), at).status)
	require.Equal(t, 200, s.get(s.browser(), at, "X-Forwarded-For", "203.0.113.9").status, "a trusted proxy says who it is")
	require.Equal(t, 403, s.get(s.browser(), at, "X-Forwarded-For", "203.0.113.9, 198.51.100.1").status, "the last one counts")
}

func TestFindingsOverTheSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "berth-findings-") // names of sockets are at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := newSite(t, func(c *appproxy.Config) { c.SocketFile = dir + "/s" })
	found, err := appproxy.AskFindings(t.Context(), s.cfg)
	require.NoError(t, err)
	require.Empty(t, found)
	require.NoError(t, s.group.Stop(t.Context()))
	_, err = appproxy.AskFindings(t.Context(), s.cfg)
	require.True(t, fault.Is(err, fault.Unavailable))
}

// A manager says where the others are, and the proxy goes to one of them when its own is gone.
func TestProxyGoesToAnotherManager(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	c := s.known(s.m.publish(labelled(1, "lab-1")))
	other := newManager(t, s.m)
	other.publish(c)
	s.m.mu.Lock()
	s.m.tell(proxy.Event{Managers: []string{other.addr}})
	s.m.mu.Unlock()
	s.eventually(func() bool { return len(appproxy.Managers(s.p)) == 2 }, "it hears of the other manager")
	s.m.stop()
	s.eventually(func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.watches) == 1
	}, "it watches the other manager")
	s.eventually(func() bool { return s.p.Status().Connected }, "it is connected")
}
