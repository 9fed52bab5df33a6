package cli

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

func circuitOf(id, session, app string) map[string]any {
	return map[string]any{
		"id": id, "app": app, "protocol": "http", "session_id": firstID, "session_name": session, "mode": "port",
		"url": "http://127.0.0.1:1020" + id, "created_at": "2026-11-20T08:00:00Z",
	}
}

func TestAppList(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	shared := circuitOf("1", "mylab", "jupyter")
	shared["shared_users"], shared["allowed_client_ips"] = []string{"ada@example.com"}, []string{"10.0.0.0/8"}
	raw := circuitOf("2", "mylab", "sshd")
	raw["protocol"], raw["mode"] = "tcp", "subdomain"
	b.apps.circuits = []map[string]any{shared, raw}

	o := b.do(t, "", "app", "list", "mylab")
	require.Equal(t, ""+
		"APP      PROTOCOL  PORTS  STATE    ORIGIN     PUBLISHED\n"+
		"sshd     tcp       2200   ready    intrinsic\n"+
		"jupyter  http      8888   stopped  declared   http://127.0.0.1:10201 (ada@example.com from 10.0.0.0/8)\n"+
		"vscode   http      8180   missing  declared\n"+
		"db       tcp       5432   ready    declared\n", o.out)
	require.Equal(t, "vscode: the image has no program code-server\n", o.err)
	require.Contains(t, b.do(t, "", "app", "list", "mylab", "--json").out, `"circuits": [`)

	o = b.do(t, "", "app", "list")
	require.Equal(t, "SESSION  APP      URL                     FOR                              EXPIRES\n"+
		"mylab    jupyter  http://127.0.0.1:10201  ada@example.com from 10.0.0.0/8\n"+
		"mylab    sshd     by berth port-forward   you\n", o.out)
	b.apps.circuits = nil
	require.Equal(t, "nothing is published; berth app open SESSION APP publishes an app\n", b.do(t, "", "app", "list").err)
}

func TestAppOpen(t *testing.T) {
	t.Parallel()
	b := withLab(t)

	o := b.do(t, "", "app", "open", "mylab")
	require.Equal(t, 2, o.code)
	require.Contains(t, o.err, "say which app of session mylab: db, jupyter, sshd, vscode\n  next: berth app list mylab")
	b.apps.list = b.apps.list[:2]
	o = b.do(t, "", "app", "open", "mylab")
	require.Equal(t, outcome{b.apps.proxy.URL + "/setup?token=once\n", "jupyter: starting\n", 0}, o)
	require.Equal(t, []string{"jupyter"}, b.apps.started)
	require.Empty(t, b.started.runs, "there is no desktop")

	b.env["DISPLAY"], b.started.have = ":0", []string{"xdg-open"}
	o = b.do(t, "", "app", "open", "mylab", "8888", "--public", "--allow", "10.0.0.0/8,::1", "--mode", "subdomain", "--subdomain", "mine")
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "opened in the browser")
	require.Equal(t, [][]string{{"/usr/bin/xdg-open", b.apps.proxy.URL + "/setup?token=once"}}, b.started.runs)
	require.Equal(
		t, "allowed_client_ips=10.0.0.0%2F8%2C%3A%3A1&app=jupyter&mode=subdomain&open_to_public=true&protocol=http&subdomain=mine",
		b.apps.added[1],
	)

	o = b.do(t, "", "app", "open", "mylab", "jupyter", "--json", "--no-browser")
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(o.out), &got))
	require.Equal(t, firstID, got["session"])
	require.Len(t, b.started.runs, 1)

	o = b.do(t, "", "app", "open", "mylab", "sshd")
	require.Equal(t, "127.0.0.1:10300\n", o.out)
	require.Contains(t, o.err, "berth port-forward mylab sshd")
}

func TestAppsThatAreInstalled(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	o := b.do(t, "", "app", "open", "mylab", "tensorboard")
	require.Equal(t, 3, o.code)
	require.Contains(t, o.err, "open app tensorboard of session mylab: the session has no program for app tensorboard")
	require.Contains(t, o.err, "next: pip install --user tensorboard")

	board := declared("tensorboard", "http", api.AppStopped, 6006)
	board.Origin = api.AppInstalled
	b.apps.list = append(b.apps.list[:2], board)
	o = b.do(t, "", "app", "open", "mylab", "--no-browser")
	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, []string{"jupyter"}, b.apps.started, "a session is for what its image declares")
	o = b.do(
		t, "", "app", "open", "mylab", "tensorboard", "--no-browser", "--arg", "--logdir=/a b=c", "--arg", "--quick", "--arg", "-x=1",
		"--arg", "-x=2", "--env", "A=b=c",
	)
	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, []string{`{"--logdir":["/a b=c"],"--quick":null,"-x":["1","2"]}`, `{"A":"b=c"}`}, b.apps.how)

	for args, want := range map[string]string{
		"--arg ": "names no argument", "--arg =x": "names no argument", "--env A": "is not NAME=VALUE", "--env =x": "is not NAME=VALUE",
	} {
		flag, value, _ := strings.Cut(args, " ")
		o = b.do(t, "", "app", "open", "mylab", "tensorboard", flag, value)
		require.Equal(t, 2, o.code, args)
		require.Contains(t, o.err, want)
	}
	b.apps.list[2].State = api.AppReady
	o = b.do(t, "", "app", "open", "mylab", "tensorboard", "--arg", "--logdir=x")
	require.Equal(t, 1, o.code)
	require.Contains(
		t, o.err, "app tensorboard of session mylab runs already, so it takes no arguments\n  next: berth app stop mylab tensorboard",
	)
	b.apps.list = append(b.apps.list[:1], b.apps.list[2])
	require.Equal(t, 0, b.do(t, "", "app", "open", "mylab", "--no-browser").code, "it is the only one")
}

func TestAProgramThatWasBusyIsOpenedAsWhatItIs(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	busy := declared("port-8501", "tcp", api.AppReady, 8501)
	busy.Origin = api.AppNoticed
	b.apps.list = append(b.apps.list, busy)
	o := b.do(t, "", "app", "open", "mylab", "8501", "--no-browser", "--mode", "subdomain")
	require.Equal(t, outcome{b.apps.proxy.URL + "/setup?token=once\n", "", 0}, o)
	require.Contains(t, b.apps.added[0], "protocol=http")
}

func TestAppsThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"open", "nolab", "jupyter"}, 3, "berth: there is no session nolab; running: mylab\n  next: berth session list\n"},
		{[]string{
			"open", "mylab", "9999",
		}, 1, "berth: nothing listens on port 9999 of session mylab\n  next: start the program in the session, then look with " +
			"berth app list mylab\n"},
		{[]string{
			"open", "mylab", "nope",
		}, 1, "berth: session mylab has no app nope; it has: db, jupyter, sshd, vscode\n  next: berth app list mylab\n"},
		{[]string{"open", "mylab", "vscode"}, 1, "berth: app vscode of session mylab cannot be started: the image has no program code-server\n"},
		{[]string{"open", "mylab", "jupyter", "--allow", "localhost"}, 2, "--allow \"localhost\" is no address and no prefix"},
		{[]string{"open", "mylab", "jupyter", "--mode", "path"}, 2, "--mode is port or subdomain"},
		{[]string{"open", "mylab", "jupyter", "--subdomain", "x", "--proxy-port", "10200"}, 2, "--subdomain does not go with a port"},
		{[]string{"stop", "mylab", "sshd"}, 1, "app sshd belongs to every session and cannot be stopped\n  next: berth app close mylab sshd"},
		{[]string{"close", "mylab", "jupyter"}, 1, "app jupyter of session mylab is not published\n  next: berth app open mylab jupyter"},
		{[]string{"share", "mylab", "jupyter"}, 2, "nothing is to change"},
		{[]string{"share", "mylab", "jupyter", "--public", "--private"}, 2, "public"},
	} {
		o := b.do(t, "", append([]string{"app"}, tc.args...)...)
		require.Contains(t, o.err, tc.want, tc.args)
		require.Equal(t, tc.code, o.code, tc.args)
	}
	b.apps.noProxy = true
	o := b.do(t, "", "app", "open", "mylab", "jupyter")
	require.Contains(t, o.err, "no app proxy is connected\n  next: berth port-forward mylab jupyter reaches it without one")
	require.Equal(t, 5, o.code)
	b.apps.noProxy = false
	b.apps.proxy.Close()
	o = b.do(t, "", "app", "open", "mylab", "jupyter")
	require.Contains(t, o.err, "next: berth port-forward mylab jupyter reaches the app through the manager")
	require.Equal(t, 5, o.code)

	require.Equal(t, 0, b.do(t, "", "session", "rm", "mylab").code)
	o = b.do(t, "", "app", "open", firstID, "jupyter")
	require.Contains(t, o.err, "session mylab has ended: it is TERMINATED")
}

func TestAppsAreStoppedSharedAndClosed(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	require.Equal(t, outcome{"", "app jupyter of session mylab is stopped\n", 0}, b.do(t, "", "app", "stop", "mylab", "jupyter"))
	require.Equal(t, []string{"jupyter"}, b.apps.stopped)

	first := circuitOf("1", "mylab", "jupyter")
	first["shared_users"] = []string{"bob@example.com"}
	b.apps.circuits = []map[string]any{first, circuitOf("2", "mylab", "db")}
	o := b.do(
		t, "", "app", "share", "mylab", "jupyter", "--user", "ada@example.com,bob@example.com", "--project", "physics", "--expire", "2h",
		"--allow", "192.0.2.7",
	)
	require.Equal(
		t,
		outcome{
			"http://127.0.0.1:10201\n",
			"open to ada@example.com, bob@example.com, project physics from 192.0.2.7, until 2026-11-20 10:05 UTC\n", 0,
		},
		o,
	)
	require.Equal(t, []map[string]any{{
		"shared_users": []any{"bob@example.com", "ada@example.com"}, "shared_projects": []any{"physics"},
		"allowed_client_ips": []any{"192.0.2.7"}, "expires_at": "2026-11-20T10:05:00Z",
	}}, b.apps.changes)
	o = b.do(t, "", "app", "share", "mylab", "jupyter", "--private", "--revoke", "--allow", "any")
	require.Equal(t, 0, o.code, o.err)
	require.Equal(
		t,
		map[string]any{
			"public": false, "shared_users": []any{}, "shared_projects": []any{}, "allowed_client_ips": []any{}, "revoke_tickets": true,
		},
		b.apps.changes[1],
	)

	// Somebody else's app is opened by its circuit alone.
	b.apps.circuits = append(
		b.apps.circuits,
		map[string]any{
			"id": "3", "app": "board", "session_id": "ffff", "session_name": "theirs", "protocol": "http",
			"created_at": "2026-11-20T08:00:00Z",
		},
	)
	require.Equal(t, "http://apps.test/setup?token=shared\n", b.do(t, "", "app", "open", "theirs", "board").out)

	require.Equal(t, "http://127.0.0.1:10201 is closed (app jupyter)\n", b.do(t, "", "app", "close", "mylab", "jupyter").err)
	require.Equal(t, "http://127.0.0.1:10202 is closed (app db)\n", b.do(t, "", "app", "close", "mylab").err)
	require.Contains(t, b.do(t, "", "app", "close", "mylab").err, "nothing of session mylab is published")
}

// lines collects what a verb prints and tells when a line has come.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
	news chan struct{}
}

func newLines() *lines { return &lines{news: make(chan struct{}, 1)} }

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Write(p)
	select {
	case l.news <- struct{}{}:
	default:
	}
	return len(p), nil
}

// wait returns the text once it has n lines.
func (l *lines) wait(t *testing.T, n int) []string {
	t.Helper()
	deadline := time.After(time.Minute)
	for {
		l.mu.Lock()
		text := l.text.String()
		l.mu.Unlock()
		if strings.Count(text, "\n") >= n {
			return strings.Split(text, "\n")
		}
		select {
		case <-l.news:
		case <-deadline:
			require.FailNow(t, "too few lines", text)
		}
	}
}

// during runs a verb that goes on until Ctrl-C, and body beside it.
func (b *bench) during(t *testing.T, n int, body func(lines []string), args ...string) outcome {
	t.Helper()
	out := newLines()
	done := make(chan outcome, 1)
	go func() { done <- b.doWith(t, strings.NewReader(""), out, args...) }()
	body(out.wait(t, n))
	b.signals <- interrupt{}
	return <-done
}

type interrupt struct{}

func (interrupt) Signal()        {}
func (interrupt) String() string { return "interrupt" }

func exchange(t *testing.T, addr, text string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetDeadline(time.Now().Add(30*time.Second)))
	_, err = io.WriteString(conn, text)
	require.NoError(t, err)
	require.NoError(t, conn.(*net.TCPConn).CloseWrite())
	b, err := io.ReadAll(conn)
	require.NoError(t, err)
	return string(b)
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, busy, _ := net.SplitHostPort(taken.Addr().String())

	o := b.during(t, 3, func(lines []string) {
		require.True(t, strings.HasSuffix(lines[0], " -> db"), lines[0])
		require.True(t, strings.HasSuffix(lines[1], " -> sshd:2200"), lines[1])
		local, what, _ := strings.Cut(lines[2], " -> ")
		require.Equal(t, busy, what)
		require.NotEqual(t, "127.0.0.1:"+busy, local, "another port is taken")
		for range 3 {
			for _, l := range lines[:3] {
				addr, _, _ := strings.Cut(l, " -> ")
				require.Equal(t, "HELLO", exchange(t, addr, "hello"))
			}
		}
		b.apps.mu.Lock()
		require.Equal(t, 3, b.apps.tickets)
		b.apps.mu.Unlock()

		// After a restart everything has to be asked for anew; the address stays.
		b.apps.mu.Lock()
		b.apps.ticket = "ticket-2"
		b.apps.mu.Unlock()
		addr, _, _ := strings.Cut(lines[0], " -> ")
		require.Equal(t, "AGAIN", exchange(t, addr, "again"))

		// Without its proxy the manager carries the bytes.
		b.apps.proxy.Close()
		require.Equal(t, "manager MORE", exchange(t, addr, "more"))
	}, "port-forward", "mylab", "db:0", "2200:0", busy)
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "nothing is known to listen on port "+busy+" of session mylab yet\n")
	require.Contains(t, o.err, "no longer forwarding\n")
}

func TestPortForwardEndsWithItsSession(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	out := newLines()
	done := make(chan outcome, 1)
	go func() { done <- b.doWith(t, strings.NewReader(""), out, "port-forward", "mylab", "db:0") }()
	addr, _, _ := strings.Cut(out.wait(t, 1)[0], " -> ")
	require.Equal(t, 0, b.do(t, "", "session", "rm", "mylab").code)
	b.mu.Lock()
	delete(b.sessions, firstID)
	b.mu.Unlock()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	defer conn.Close()
	o := <-done
	require.Equal(t, 1, o.code)
	require.Contains(t, o.err, "connect to db: session "+firstID+" does not exist\n")
	require.Contains(t, o.err, "berth: session mylab has ended\n")
}

func TestPortsThatCannotBeForwarded(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	_, busy, _ := net.SplitHostPort(taken.Addr().String())
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{
			"mylab", "db:" + busy,
		}, 1, "port " + busy + " of this machine is taken\n  next: berth port-forward SESSION db:0 takes a free one\n"},
		{[]string{"mylab", "nope"}, 1, "session mylab has no app nope; it has: db, jupyter, sshd, vscode"},
		{[]string{"mylab", "70000"}, 2, "ports go from 1 to 65535"},
		{[]string{"mylab", "db:x"}, 2, "the local port is a number"},
		{[]string{"mylab", ":80"}, 2, "no port and no app is named"},
		{[]string{"mylab", "vscode:0"}, 1, "cannot be started"},
		{[]string{"mylab", "db:0", "--address", "192.0.2.1"}, 2, "--address is an address of this machine"},
		{[]string{"nolab", "db"}, 3, "there is no session nolab; running: mylab"},
		{[]string{"mylab"}, 2, "it takes: berth port-forward"},
	} {
		o := b.do(t, "", append([]string{"port-forward"}, tc.args...)...)
		require.Contains(t, o.err, tc.want, tc.args)
		require.Equal(t, tc.code, o.code, tc.args)
	}
}

func TestConsoleIsServedHere(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	const site = "https://console.example.org"
	o := b.during(t, 1, func(lines []string) {
		base := lines[0]
		client := &http.Client{Transport: &http.Transport{}}
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		ask := func(method, address, body string, header ...string) (int, string, http.Header) {
			r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
			require.NoError(t, err)
			for i := 0; i < len(header); i += 2 {
				if header[i] == "Host" {
					r.Host = header[i+1]
				}
				r.Header.Set(header[i], header[i+1])
			}
			resp, err := client.Do(r)
			require.NoError(t, err)
			defer resp.Body.Close()
			text, err := io.ReadAll(resp.Body)
			require.NoError(t, err)
			return resp.StatusCode, string(text), resp.Header
		}
		code, page, _ := ask("GET", base, "")
		require.Equal(t, 200, code)
		require.Contains(t, page, `<a href="open?app=jupyter&amp;session=`+firstID+`"`)
		root := base[:strings.LastIndex(strings.TrimRight(base, "/"), "/")+1]
		for _, bad := range []string{root, root + "conf", root + "x/conf", base + "nothing"} {
			code, _, _ := ask("GET", bad, "")
			require.Equal(t, 404, code, bad)
		}
		code, _, _ = ask("GET", base, "", "Host", "evil.example")
		require.Equal(t, 421, code, "names that lead here are not ours")
		code, _, _ = ask("PUT", base+"conf", "{}", "Origin", "https://evil.example")
		require.Equal(t, 403, code)
		code, _, h := ask("OPTIONS", base+"conf", "", "Origin", site)
		require.Equal(t, 204, code)
		require.Equal(t, site, h.Get("Access-Control-Allow-Origin"))
		code, text, _ := ask("PUT", base+"conf", `{"endpoint":"x"}`, "Origin", site)
		require.Equal(t, 200, code)
		var conf struct {
			Token string `json:"token"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &conf))
		code, _, _ = ask("GET", base+"proxy/wrong/"+firstID+"/add?app=jupyter&protocol=http", "", "Origin", site)
		require.Equal(t, 401, code)
		code, text, _ = ask("GET", base+"proxy/"+conf.Token+"/"+firstID+"/add?app=nope", "", "Origin", site)
		require.Equal(t, 404, code)
		require.Contains(t, text, "the session has no app nope")
		code, text, _ = ask("GET", base+"proxy/"+conf.Token+"/"+firstID+"/add?app=jupyter&protocol=http", "", "Origin", site)
		require.Equal(t, 200, code)
		var added struct {
			Code int    `json:"code"`
			URL  string `json:"url"`
		}
		require.NoError(t, json.Unmarshal([]byte(text), &added))

		// The app's port lets in whoever follows the address, once.
		appBase := added.URL[:strings.LastIndex(added.URL, "/")]
		code, _, _ = ask("GET", appBase+"/", "")
		require.Equal(t, 403, code)
		code, _, h = ask("GET", added.URL, "")
		require.Equal(t, 303, code)
		cookie, _, _ := strings.Cut(h.Get("Set-Cookie"), ";")
		code, _, _ = ask("GET", added.URL, "")
		require.Equal(t, 403, code, "a code works once")
		code, text, _ = ask("GET", appBase+"/tree?a=b", "", "Cookie", cookie+"; mine=1")
		require.Equal(t, 200, code)
		require.Equal(
			t, "GET /tree?a=b host="+strings.TrimPrefix(appBase, "http://")+" cookie=mine=1", text, "our cookie does not reach the app",
		)
		code, _, _ = ask("POST", appBase+"/", "", "Cookie", cookie, "Origin", "http://127.0.0.1:1")
		require.Equal(t, 403, code)
		code, _, _ = ask("GET", appBase+"/", "", "Cookie", cookie, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors")
		require.Equal(t, 403, code)

		code, text, _ = ask("GET", base+"open?session="+firstID+"&app=db", "")
		require.Equal(t, 200, code)
		require.Equal(t, "HELLO", exchange(t, strings.TrimSpace(strings.TrimPrefix(text, "connect to ")), "hello"))
		code, _, _ = ask("GET", base+"proxy/"+conf.Token+"/"+firstID+"/delete", "")
		require.Equal(t, 200, code)
		_, err := net.Dial("tcp", strings.TrimPrefix(appBase, "http://"))
		require.Error(t, err)
	}, "console", "--local", "--port", "0", "--origin", site+"/")
	require.Equal(t, 0, o.code, o.err)
	require.Contains(t, o.err, "no longer serving\n")

	o = b.do(t, "", "console")
	require.Equal(t, 1, o.code)
	require.Contains(t, o.err, "is the address of a manager, which has no console")
	o = b.do(t, "", "console", "--no-browser", "--endpoint", "https://berth.example.org/func")
	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, "https://berth.example.org\n", o.out)
	require.Equal(t, 2, b.do(t, "", "console", "--port", "1").code, "a port is for one that is served here")
	require.Equal(t, 2, b.do(t, "", "console", "--local", "--origin", "console.example.org").code)
}

func TestNotebook(t *testing.T) {
	t.Parallel()
	b := setup(t)
	file := t.TempDir() + "/a.ipynb"
	require.NoError(t, writeFile(file, "{}"))

	o := b.do(t, "", "notebook", file, "-r", "cpu=2")
	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, b.apps.proxy.URL+"/setup?redirect=%2Ftree%2Fa.ipynb&token=once\n", o.out)
	require.Contains(t, o.err, "session notebook goes on; berth session rm notebook ends it\n")
	require.Equal(t, map[string]string{"cpu": "2"}, b.creates[0].Config.Resources)
	require.Equal(t, "python", b.creates[0].Image)
	require.Equal(t, map[string]string{"a.ipynb": "{}"}, b.uploads)

	o = b.do(t, "", "notebook")
	require.Contains(t, o.err, "session notebook lives already and is used again\n")

	// What is in the session may hold work.
	kept := t.TempDir() + "/a.txt.ipynb"
	require.NoError(t, writeFile(kept, "new"))
	for _, bad := range []string{"missing.ipynb", t.TempDir()} {
		require.NotEqual(t, 0, b.do(t, "", "notebook", bad).code)
	}
	require.Len(t, b.creates, 2, "bad files make no sessions")
	b.apps.list = b.apps.list[2:]
	o = b.do(t, "", "notebook")
	require.Contains(t, o.err, "the image of session notebook has no Jupyter: its apps are db, vscode")
}

func TestAppNamesComplete(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	require.Equal(t, "mylab\n:4\n", b.do(t, "", "__complete", "app", "open", "my").out)
	require.Equal(t, "jupyter\n:4\n", b.do(t, "", "__complete", "port-forward", "mylab", "j").out)
}

// TestAppsOfOneKernel: --kernel leads every verb about apps to that kernel, and without it the main one is meant.
func TestAppsOfOneKernel(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	main, sub := circuitOf("1", "mylab", "jupyter"), circuitOf("2", "mylab", "jupyter")
	main["kernel"], sub["kernel"] = "main1", "sub1"
	b.apps.circuits = []map[string]any{main, sub}

	require.Contains(t, b.do(t, "", "app", "list", "mylab").out, "declared   http://127.0.0.1:10201\n")
	require.Contains(t, b.do(t, "", "app", "list", "--kernel", "sub1", "mylab").out, "declared   http://127.0.0.1:10202\n")
	require.Contains(t, b.do(t, "", "app", "list").out, "mylab:sub1  jupyter  http://127.0.0.1:10202")
	o := b.do(t, "", "app", "list", "--kernel", "sub1")
	require.Equal(t, 2, o.code)
	require.Contains(t, o.err, "--kernel needs a session")

	require.Equal(t, 0, b.do(t, "", "app", "open", "--no-browser", "--kernel", "sub1", "mylab", "jupyter").code)
	require.Equal(t, 1, b.called("POST /session/"+firstID+":sub1/start-service"))
	require.Contains(
		t, b.do(t, "", "app", "open", "--kernel", "sub1", "mylab", "nope").err,
		"kernel sub1 of session mylab has no app nope; it has: db, jupyter, sshd, vscode\n  next: berth app list --kernel sub1 mylab",
	)
	require.Equal(t, "app jupyter of kernel sub1 of session mylab is stopped\n", b.do(t, "", "app", "stop", "--kernel", "sub1", "mylab",
		"jupyter").err)
	require.Equal(t, 1, b.called("POST /session/"+firstID+":sub1/shutdown-service"))
	require.Equal(t, 0, b.do(t, "", "app", "share", "--kernel", "sub1", "mylab", "jupyter", "--public").code)
	require.Nil(t, main["public"], "the other kernel's stays")
	require.Equal(t, true, sub["public"])
	require.Equal(t, "http://127.0.0.1:10201 is closed (app jupyter)\n", b.do(t, "", "app", "close", "mylab", "jupyter").err)
	require.Equal(t, "http://127.0.0.1:10202 is closed (app jupyter)\n", b.do(t, "", "app", "close", "--kernel", "sub1", "mylab").err)
	require.Contains(t, b.do(t, "", "app", "close", "--kernel", "sub1", "mylab").err, "nothing of kernel sub1 of session mylab is published")

	o = b.during(t, 1, func(lines []string) {
		addr, _, _ := strings.Cut(lines[0], " -> ")
		require.Equal(t, "HELLO", exchange(t, addr, "hello"))
	}, "port-forward", "--kernel", "sub1", "mylab", "db:0")
	require.Equal(t, 0, o.code, o.err)
	require.Equal(t, 1, b.called("POST /session/"+firstID+":sub1/tickets"))
}
