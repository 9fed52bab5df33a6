package e2e_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// web is the address of the cluster's web server.
func (p *platform) web() string {
	p.t.Helper()
	var status struct {
		Web string `json:"web"`
	}
	require.NoError(p.t, json.Unmarshal([]byte(p.must("status", "--json")), &status))
	require.NotEmpty(p.t, status.Web)
	return status.Web
}

// of is the value of a variable of client.env.
func (p *platform) of(name string) string {
	p.t.Helper()
	for _, kv := range p.env() {
		if value, ok := strings.CutPrefix(kv, name+"="); ok {
			return value
		}
	}
	p.t.Fatalf("client.env has no %s", name)
	return ""
}

// TestOfficialClientInSessionMode logs in by password, works with the cookie alone, and logs out.
func TestOfficialClientInSessionMode(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	email, password := p.of("BERTH_ADMIN_EMAIL"), p.of("BERTH_ADMIN_PASSWORD")
	o := newOfficial(t, []string{"BACKEND_ENDPOINT=" + p.web(), "BACKEND_ENDPOINT_TYPE=session"})

	r := o.run(email+"\nwrong\n", "login")
	require.NotZero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout+r.stderr, "User credential mismatch.")
	r = o.run("", "session", "list")
	require.Contains(t, r.stdout+r.stderr, "not logged in")

	r = o.run(email+"\n"+password+"\n", "login")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout+r.stderr, "Login succeeded.")
	require.Contains(t, o.must("config"), "session")
	r = o.run("", "run", "--rm", "python", "-c", "print(6*7)")
	require.Zero(t, r.code, r.stdout+r.stderr)
	require.Contains(t, r.stdout, "42", "cells run over a WebSocket through the web server")
	o.must("session", "create", "--name", "web-session", "-r", "cpu=1", "-r", "mem=256m", "python")
	s, ok := o.session("web-session")
	require.True(t, ok)
	require.Equal(t, "RUNNING", s.Status)
	o.write("up.txt", "bytes")
	o.must("session", "upload", "web-session", "up.txt")
	require.Contains(t, o.must("session", "ls", "web-session"), "up.txt")
	o.must("session", "destroy", "web-session")

	o.must("logout")
	r = o.run("", "session", "list")
	require.Contains(t, r.stdout+r.stderr, "not logged in")
	p.clean()
}

// TestOfficialJavaScriptClient is the client of npm through the web server.
func TestOfficialJavaScriptClient(t *testing.T) {
	t.Parallel()
	needEngine(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../scripts/npm-client.sh").Output()
	if err != nil && os.Getenv("CI") == "" {
		t.Skipf("the JavaScript client cannot be installed here (Node.js 18 and the npm registry, scripts/npm-client.sh): %v", err)
	}
	require.NoError(t, err, "scripts/npm-client.sh")
	p := up(t)
	cmd := exec.CommandContext(ctx, "node", filepath.Join("npmclient", "story.mjs"), p.web(), p.of("BERTH_ADMIN_EMAIL"),
		p.of("BERTH_ADMIN_PASSWORD"))
	cmd.Env = append(os.Environ(), "BERTH_NPM_MODULES="+strings.TrimSpace(string(out)))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	require.NoError(t, err, "%s%s", text, stderr.String())
	var got struct {
		Refused struct {
			Reason string `json:"fail_reason"`
		}
		LoggedIn bool
		Created  struct {
			Status string
		}
		List struct {
			Sessions struct {
				Items []struct{ Name, Status string }
			} `json:"compute_session_list"`
		}
		After   bool
		Version string
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	require.NoError(t, json.Unmarshal([]byte(lines[len(lines)-1]), &got), string(text))
	require.Equal(t, "User credential mismatch.", got.Refused.Reason)
	require.True(t, got.LoggedIn)
	require.Equal(t, "RUNNING", got.Created.Status)
	require.Len(t, got.List.Sessions.Items, 1, string(text))
	require.Equal(t, "from-npm", got.List.Sessions.Items[0].Name)
	require.False(t, got.After)
	require.Equal(t, "24.09.12", got.Version)
	p.clean()
}

// loginPage speaks the protocol of the wire as web interfaces do: it reads /config.toml, encodes the login, and asks through /func.
const loginPage = `<!doctype html><title>login</title><p id=out>nothing yet</p>
<script nonce="{{nonce}}">
const text = (s) => new TextEncoder().encode(s)
const base64 = (b) => btoa(String.fromCharCode(...new Uint8Array(b)))
async function encoded(endpoint, body) {
  const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
  const iv = [...crypto.getRandomValues(new Uint8Array(16))].map(n => letters[n % letters.length]).join("")
  const raw = text((btoa(endpoint) + iv + iv).slice(0, 32))
  const key = await crypto.subtle.importKey("raw", raw, "AES-CBC", false, ["encrypt"])
  return iv + ":" + base64(await crypto.subtle.encrypt({ name: "AES-CBC", iv: text(iv) }, key, text(JSON.stringify(body))))
}
async function ask(path, body, more) {
  const r = await fetch(endpoint + path, { method: body === undefined ? "GET" : "POST", body, credentials: "include",
    headers: { "Content-Type": "application/json", "X-BackendAI-Version": "v8.20240915", ...more } })
  return { status: r.status, body: await r.json().catch(() => null) }
}
let endpoint
async function story(user, password) {
  endpoint = /apiEndpoint = ['"]([^'"]*)['"]/.exec(await (await fetch("/config.toml")).text())[1]
  const graph = (query) => JSON.stringify({ query, variables: {} })
  const out = { hello: await ask("/func/"), before: await ask("/func/admin/gql", graph("query { user { email } }")) }
  out.login = await ask("/server/login", await encoded(endpoint, { username: user, password }),
    { "X-BackendAI-Encoded": "true" })
  out.check = await ask("/server/login-check", "")
  out.user = await ask("/func/admin/gql", graph("query { user { email role } }"))
  out.keypair = await ask("/func/admin/gql", graph("query { keypair { user_id resource_policy } }"))
  out.cookie = document.cookie
  return out
}
document.getElementById("out").textContent = "ready"
</script>
<script>document.getElementById("out").textContent = "an inline script ran without the nonce"</script>`

// TestLoginInTheBrowser is the login of a web interface in Chromium: an encoded body, requests through /func with the cookie alone, and
// a page of another origin that tries to use the cookie.
func TestLoginInTheBrowser(t *testing.T) {
	t.Parallel()
	needEngine(t)
	b := newBrowser(t)
	static := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(static, "index.html"), []byte(loginPage), 0o644))
	p := up(t, "BERTH_WEBSERVER__STATIC_DIR="+static)
	web, email := p.web(), p.of("BERTH_ADMIN_EMAIL")
	tab := b.page("login", "user")
	v := tab.open(web + "/start")
	require.Equal(t, 200, v.Status)
	require.Contains(t, v.Headers["content-security-policy"], "nonce-")
	tab.until(`document.getElementById("out").textContent === "ready"`)

	quoted, _ := json.Marshal([]string{email, p.of("BERTH_ADMIN_PASSWORD")})
	type answer struct {
		Status int
		Body   map[string]any
	}
	var got struct {
		Hello, Before, Login, Check, User, Keypair answer
		Cookie                                     string
	}
	tab.eval("story(..."+string(quoted)+")", &got)
	require.Equal(t, "v8.20240915", got.Hello.Body["version"])
	require.Equal(t, 401, got.Before.Status)
	require.Equal(t, true, got.Login.Body["authenticated"], "%v", got.Login)
	require.Equal(t, true, got.Check.Body["authenticated"])
	require.Contains(t, jsonText(t, got.User.Body), `"email":"`+email+`"`)
	require.Contains(t, jsonText(t, got.Keypair.Body), `"user_id":"`)
	require.Empty(t, got.Cookie, "scripts of the page do not see the cookie")
	tab.reload()
	tab.eval(`fetch("/server/login-check", {method: "POST"}).then(r => r.json())`, &got.Login.Body)
	require.Equal(t, true, got.Login.Body["authenticated"], "the login outlives a reload")

	// The same machine by another name is another site: its pages get nothing and change nothing, and a form gets no further.
	other := strings.Replace(web, "127.0.0.1", "localhost", 1)
	foreign := b.page("foreign", "user")
	require.Equal(t, 200, foreign.open(other+"/start").Status)
	var said string
	foreign.eval(`fetch("`+web+`/func/admin/gql", {method: "POST", credentials: "include", body: "{}"})
		.then(() => "read", () => "refused")`, &said)
	require.Equal(t, "refused", said)
	foreign.eval(`fetch("`+web+`/server/logout", {method: "POST", credentials: "include", mode: "no-cors", body: "{}"})
		.then(() => "sent")`, nil)
	tab.eval(`fetch("/server/login-check", {method: "POST"}).then(r => r.json())`, &got.Login.Body)
	require.Equal(t, true, got.Login.Body["authenticated"], "nobody else logs a user out")

	for _, desktop := range []bool{false, true} {
		loginByPage(t, tab, web, email, desktop)
	}
}

// loginByPage logs a command line in by a page of a browser that is logged in: the code is pasted, or comes by itself on a desktop.
func loginByPage(t *testing.T, tab *page, web, email string, desktop bool) {
	t.Helper()
	home := t.TempDir()
	opened := filepath.Join(home, "opened")
	require.NoError(t, os.WriteFile(filepath.Join(home, "xdg-open"), []byte("#!/bin/sh\nprintf %s \"$1\" >"+opened+".new && mv "+opened+
		".new "+opened+"\n"), 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, binary, "login", web, "--browser")
	cmd.Env = []string{"HOME=" + home, "PATH=" + home + ":" + os.Getenv("PATH"), "BERTH_STATE_DIR=" + home}
	if desktop {
		cmd.Env = append(cmd.Env, "DISPLAY=:0")
	}
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	said, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	address := ""
	if desktop {
		require.Eventually(t, func() bool {
			raw, err := os.ReadFile(opened)
			address = string(raw)
			return err == nil
		}, patience, 50*time.Millisecond)
	} else {
		lines := bufio.NewScanner(said)
		for address == "" && lines.Scan() {
			if line := strings.TrimSpace(lines.Text()); strings.HasPrefix(line, web) {
				address = line
			}
		}
	}
	go func() { _, _ = io.Copy(io.Discard, said) }() // it ends with the process
	require.Equal(t, 200, tab.open(address).Status)
	tab.eval(`document.querySelector("button").click()`, nil)
	if !desktop {
		tab.until(`document.getElementById("code") !== null`)
		var code string
		tab.eval(`document.getElementById("code").textContent`, &code)
		_, err = io.WriteString(stdin, code+"\n")
		require.NoError(t, err)
	}
	require.NoError(t, cmd.Wait())
	who := exec.CommandContext(ctx, binary, "whoami")
	who.Env = cmd.Env
	out, err := who.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), email)
}

func jsonText(t *testing.T, v any) string {
	t.Helper()
	raw, err := json.Marshal(v)
	require.NoError(t, err)
	return string(raw)
}

// TestAttackWebServer is a stranger before the web server of a real cluster.
func TestAttackWebServer(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	web := p.web()
	client := &http.Client{Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	send := func(method, path, body string, headers ...string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, web+path, strings.NewReader(body))
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
	login := func() string {
		t.Helper()
		resp, text := send("POST", "/server/login", jsonText(t, map[string]string{"username": p.of("BERTH_ADMIN_EMAIL"),
			"password": p.of("BERTH_ADMIN_PASSWORD")}))
		require.Contains(t, text, `"authenticated":true`)
		require.NotContains(t, text, p.of("BACKEND_SECRET_KEY"))
		return resp.Header.Get("X-BackendAI-SessionID")
	}
	token := login()
	mine := "Cookie: AIOHTTP_SESSION=" + token
	status := func(want int, method, path, body string, headers ...string) {
		t.Helper()
		resp, text := send(method, path, body, headers...)
		require.Equal(t, want, resp.StatusCode, "%s %s: %s", method, path, text)
	}
	status(200, "GET", "/func/auth", "", mine)
	for _, path := range []string{"/func/session", "/func/admin/gql", "/func/auth/logins", "/func/config/get"} {
		status(401, "POST", path, "{}")
		status(401, "POST", path, "{}", "Cookie: AIOHTTP_SESSION="+strings.Repeat("A", 64))
		status(401, "POST", path, "{}", mine, "X-BackendAI-SessionID: "+strings.Repeat("A", 64))
	}
	status(404, "POST", "/func/auth/logins/resume", `{"session_token":"`+token+`"}`)
	status(404, "POST", "/func/auth/authorize", `{}`)
	status(403, "POST", "/server/logout", "{}", mine, "Origin: https://evil.example")
	status(413, "POST", "/server/login", strings.Repeat("a", 100_000))
	// What the browser says of its address counts for nothing.
	_, text := send("GET", "/func/auth/my-ip", "", mine, "X-Forwarded-For: 203.0.113.9", "X-Real-IP: 203.0.113.9")
	require.Contains(t, text, `"127.0.0.1"`)
	// A login that ended elsewhere ends here, within a moment.
	second := login()
	resp, text := send("DELETE", "/func/auth/logins/all", "", "Cookie: AIOHTTP_SESSION="+second)
	require.Equal(t, 200, resp.StatusCode, text)
	require.Eventually(t, func() bool {
		resp, _ := send("GET", "/func/auth", "", mine)
		return resp.StatusCode == 401
	}, patience, 50*time.Millisecond)
	// Guessing is bounded by account and address together.
	var statuses []int
	for range 12 {
		resp, _ := send("POST", "/server/login", `{"username":"nobody@x.org","password":"guess"}`)
		statuses = append(statuses, resp.StatusCode)
	}
	require.Equal(t, 10, slices.Index(statuses, 429), "%v", statuses)
}

// TestLoginOfTheCommandLine logs in at the web server, works over it alone (cells, logs, files and SSH are streams), sees a login that an
// administrator ended, and logs out.
func TestLoginOfTheCommandLine(t *testing.T) {
	t.Parallel()
	needEngine(t)
	p := up(t)
	email, password := p.of("BERTH_ADMIN_EMAIL"), p.of("BERTH_ADMIN_PASSWORD")
	home := t.TempDir()
	berth := func(stdin string, args ...string) (string, int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, binary, args...)
		cmd.Env = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH"), "BERTH_STATE_DIR=" + home}
		cmd.Stdin = strings.NewReader(stdin)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState == nil {
			t.Fatalf("berth %v: %v", args, err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	must := func(stdin string, args ...string) string {
		t.Helper()
		out, code := berth(stdin, args...)
		require.Zero(t, code, "berth %v: %s", args, out)
		return out
	}
	out, code := berth("", "session", "list")
	require.NotZero(t, code)
	require.Contains(t, out, "berth login")
	out, code = berth(password, "login", p.of("BACKEND_ENDPOINT"), "--user", email, "--password-stdin")
	require.NotZero(t, code, "a manager took a login")
	require.Contains(t, out, "role webserver")
	_, code = berth("wrong", "login", p.web(), "--user", email, "--password-stdin")
	require.NotZero(t, code)

	require.Contains(t, must(password, "login", p.web(), "--user", email, "--password-stdin"), "logged in at "+p.web())
	require.Contains(t, must("", "whoami"), email)
	require.Contains(t, must("", "run", "python", "-c", "print(6*7)"), "42")
	must("", "session", "create", "python", "--name", "over-the-web")
	require.Contains(t, must("", "session", "exec", "over-the-web", "--", "hostname"), "main1")
	require.NoError(t, os.WriteFile(filepath.Join(home, "up.txt"), []byte("bytes"), 0o600))
	must("", "session", "upload", "over-the-web", filepath.Join(home, "up.txt"))
	require.Contains(t, must("", "session", "ls", "over-the-web"), "up.txt")
	require.Contains(t, must("", "ssh", "over-the-web", "--", "echo", "by ssh"), "by ssh")
	must("", "session", "rm", "over-the-web")
	var logins []struct{ Agent, ID string }
	require.NoError(t, json.Unmarshal([]byte(must("", "login", "list", "--json")), &logins))
	require.Len(t, logins, 1)
	require.Contains(t, logins[0].Agent, "berth/")

	must("", "login", "end", "all")
	require.Eventually(t, func() bool { _, code = berth("", "session", "list"); return code == 4 }, patience, 200*time.Millisecond)
	out, _ = berth("", "session", "list")
	require.Contains(t, out, "next: berth login")
	must(password, "login", "--password-stdin")
	must("", "session", "list")
	must("", "logout")
	_, code = berth("", "session", "list")
	require.NotZero(t, code)
	p.clean()
}
