package webterm_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/proc"
	"berth.dev/berth/internal/runner/terminal"
	"berth.dev/berth/internal/runner/webterm"
	"berth.dev/berth/internal/wire/run"
	"berth.dev/berth/internal/wire/tunnel"
)

var table = sync.OnceValue(proc.NewTable)

// site is a server with its clients' way to it.
type site struct {
	t      testing.TB
	client *http.Client
}

func start(t testing.TB, change ...func(*terminal.Config)) *site {
	cfg := terminal.Config{Shell: "/bin/sh", Dir: "/", Env: []string{"PATH=/usr/bin:/bin", "TERM=xterm", "PS1=", "ENV="}, Table: table(),
		Scrollback: 64 << 10, Max: 2}
	for _, c := range change {
		c(&cfg)
	}
	set := terminal.NewSet(cfg)
	srv := webterm.New(webterm.Config{Terminals: set, Title: "a <b>", Log: slog.New(slog.DiscardHandler)})
	require.Equal(t, "ttyd", srv.Name())
	require.Equal(t, tunnel.PortTerminal, srv.Port())
	require.Equal(t, run.AppHTTP, srv.Protocol())
	dir, err := os.MkdirTemp("/tmp", "bw")
	require.NoError(t, err)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() { srv.Serve(ctx, conn) })
		}
	})
	tr := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", l.Addr().String())
	}}
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		l.Close()
		cancel()
		served.Wait() // whatever the clients did, everything ends
		set.Hangup()
		os.RemoveAll(dir)
	})
	return &site{t: t, client: &http.Client{Transport: tr, Timeout: time.Minute}}
}

func (s *site) get(method, path string, header http.Header) (*http.Response, string) {
	q, err := http.NewRequest(method, "http://terminal.test"+path, nil)
	require.NoError(s.t, err)
	q.Header = header
	r, err := s.client.Do(q)
	require.NoError(s.t, err)
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	require.NoError(s.t, err)
	return r, string(b)
}

// tab is a page's connection.
type tab struct {
	t      testing.TB
	ctx    context.Context
	c      *websocket.Conn
	replay bool
	seen   strings.Builder
	last   string // the latest text message
}

func (s *site) open(query string, header http.Header) (*tab, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	s.t.Cleanup(cancel)
	//nolint:bodyclose // the library closes it
	c, _, err := websocket.Dial(ctx, "ws://terminal.test/ws"+query, &websocket.DialOptions{HTTPClient: s.client, HTTPHeader: header})
	if err != nil {
		return nil, err
	}
	s.t.Cleanup(func() { c.CloseNow() })
	c.SetReadLimit(1 << 20)
	return &tab{t: s.t, ctx: ctx, c: c}, nil
}

func (s *site) tab(query string) *tab {
	v, err := s.open(query, nil)
	require.NoError(s.t, err)
	require.True(s.t, v.next(), "the first message")
	var begin struct{ Begin, Replay bool }
	require.NoError(s.t, json.Unmarshal([]byte(v.last), &begin))
	require.True(s.t, begin.Begin)
	v.replay = begin.Replay
	return v
}

// next reads a message; it reports whether it was a text.
func (v *tab) next() bool {
	kind, b, err := v.c.Read(v.ctx)
	require.NoError(v.t, err, "after %q", v.seen.String())
	if kind == websocket.MessageText {
		v.last = string(b)
		return true
	}
	v.seen.Write(b)
	return false
}

func (v *tab) until(text string) {
	v.t.Helper()
	for !strings.Contains(v.seen.String(), text) {
		v.next()
	}
}

func (v *tab) types(text string) {
	require.NoError(v.t, v.c.Write(v.ctx, websocket.MessageBinary, []byte(text)))
}

func (v *tab) says(text string) {
	require.NoError(v.t, v.c.Write(v.ctx, websocket.MessageText, []byte(text)))
}

func TestPage(t *testing.T) {
	t.Parallel()
	s := start(t)
	r, text := s.get("GET", "/", nil)
	require.Equal(t, 200, r.StatusCode)
	policy := r.Header.Get("Content-Security-Policy")
	require.Contains(t, policy, "default-src 'none'")
	require.Contains(t, policy, "frame-ancestors 'none'")
	require.Contains(t, policy, "script-src 'self';")
	require.Equal(t, "DENY", r.Header.Get("X-Frame-Options"))
	require.Contains(t, text, "<title>a &lt;b&gt;</title>")
	_, again := s.get("GET", "/", nil)
	require.NotEqual(t, text, again, "the nonce is new each time")
	for _, part := range strings.Split(text, `"`) { // relative, so that it works wherever it is
		if strings.Contains(part, "/") && !strings.Contains(part, "<") && !strings.HasPrefix(part, "./") && !strings.Contains(part, "width=") {
			t.Errorf("the page refers to %q", part)
		}
	}
	for _, name := range []string{"xterm.mjs", "xterm.css", "addon-fit.mjs", "page.mjs", "page.css"} {
		r, plain := s.get("GET", "/"+name, nil)
		require.Equal(t, 200, r.StatusCode, name)
		require.Empty(t, r.Header.Get("Content-Encoding"))
		require.Equal(t, "nosniff", r.Header.Get("X-Content-Type-Options"))
		p, packed := s.get("GET", "/"+name, http.Header{"Accept-Encoding": {"br, gzip"}})
		if p.Header.Get("Content-Encoding") == "gzip" {
			z, err := gzip.NewReader(strings.NewReader(packed))
			require.NoError(t, err)
			b, err := io.ReadAll(z)
			require.NoError(t, err)
			packed = string(b)
		}
		require.Equal(t, plain, packed, name)
		require.NotContains(t, plain, "sourceMappingURL")
		r, body := s.get("GET", "/"+name, http.Header{"If-None-Match": {r.Header.Get("ETag")}})
		require.Equal(t, 304, r.StatusCode)
		require.Empty(t, body)
	}
	for _, path := range []string{"/page.html", "/LICENSE-xterm", "/assets/xterm.mjs", "/../webterm.go", "/xterm.mjs.gz", "/nothing"} {
		r, _ := s.get("GET", path, nil)
		require.Equal(t, 404, r.StatusCode, path)
	}
	r, _ = s.get("POST", "/", nil)
	require.Equal(t, 405, r.StatusCode)
	r, text = s.get("HEAD", "/", nil)
	require.Equal(t, 200, r.StatusCode)
	require.Empty(t, text)
	r, _ = s.get("GET", "/ws", nil) // no upgrade
	require.Equal(t, http.StatusUpgradeRequired, r.StatusCode)
}

func TestForeignPages(t *testing.T) {
	t.Parallel()
	s := start(t)
	for _, origin := range []string{"http://evil.test", "https://terminal.test.evil.test", "null", "http://terminal.test:81"} {
		_, err := s.open("", http.Header{"Origin": {origin}})
		require.Error(t, err, origin)
	}
	v, err := s.open("", http.Header{"Origin": {"https://terminal.test"}}) // TLS ended at the proxy
	require.NoError(t, err)
	v.next()
}

func TestSameShell(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := s.tab("?rows=31&cols=97")
	require.False(t, v.replay)
	v.types("kept=here; stty size; echo first-$((1+1))\n")
	v.until("31 97")
	v.until("first-2")
	v.says(`{"rows":12,"cols":34}`)
	v.types("stty size\n")
	v.until("12 34")
	// Both at once see and type into the same.
	w := s.tab("?rows=40&cols=120")
	require.True(t, w.replay)
	w.until("first-2")
	w.types("stty size; echo $kept-$((2+2))\n")
	w.until("40 120")
	w.until("here-4")
	v.until("here-4")
	v.c.CloseNow()
	w.c.CloseNow()
	// Reloaded.
	v = s.tab("?rows=40&cols=120")
	v.until("here-4")
	other := s.tab("?terminal=second")
	require.False(t, other.replay)
	other.types("echo -$kept-$((3+3))\n")
	other.until("--6")
	// No more than there may be, in words.
	third, err := s.open("?terminal=third", nil)
	require.NoError(t, err)
	require.True(t, third.next())
	require.Contains(t, third.last, "2 terminals already")
	_, _, err = third.c.Read(third.ctx)
	require.Equal(t, websocket.StatusTryAgainLater, websocket.CloseStatus(err))
	long, err := s.open("?terminal="+strings.Repeat("x", 65), nil)
	require.NoError(t, err)
	require.True(t, long.next())
	require.Contains(t, long.last, "refused")
}

func TestEndOfShell(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := s.tab("")
	v.types("exit 7\n")
	for !v.next() {
	}
	require.JSONEq(t, `{"end":{"code":7}}`, v.last)
	_, _, err := v.c.Read(v.ctx)
	require.Equal(t, websocket.StatusNormalClosure, websocket.CloseStatus(err))
	v = s.tab("")
	require.False(t, v.replay, "a new shell")
}

func TestNoShell(t *testing.T) {
	t.Parallel()
	s := start(t, func(c *terminal.Config) { c.Shell = "" })
	v, err := s.open("", nil)
	require.NoError(t, err)
	require.True(t, v.next())
	require.Contains(t, v.last, "no shell")
}

// TestBadPages: what no page says ends the connection, not the shell.
func TestBadPages(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, spoil := range map[string]func(v *tab){
		"text": func(v *tab) { v.says("rubbish") },
		"size": func(v *tab) { v.says(`{"rows":99999}`) },
		"large": func(v *tab) {
			_ = v.c.Write(v.ctx, websocket.MessageBinary, bytes.Repeat([]byte("x"), 300<<10)) // it may be cut off half way
		},
	} {
		v := s.tab("")
		spoil(v)
		for {
			if _, _, err := v.c.Read(v.ctx); err != nil {
				require.NotErrorIs(t, err, context.DeadlineExceeded, name)
				break
			}
		}
	}
}

// TestUnread: neither a page that reads nothing nor a program that reads nothing holds up anything else for ever.
func TestUnread(t *testing.T) {
	t.Parallel()
	s := start(t)
	v := s.tab("")
	v.types("stty raw -echo; echo started; sleep 600\n")
	v.until("started")
	for range 8 { // more than the terminal takes
		v.types(strings.Repeat("x", 32<<10))
	}
	v.says(`{"rows":12,"cols":34}`) // listening goes on
	v.c.CloseNow()

	other := s.tab("?terminal=other")
	other.types("yes\n")
	other.until("y\r\ny\r\n")
	// What was not acknowledged is bounded; acknowledging lets the program go on.
	read := other.seen.Len()
	for read < 3<<20 {
		kind, b, err := other.c.Read(other.ctx)
		require.NoError(t, err)
		require.Equal(t, websocket.MessageBinary, kind)
		if read += len(b); read > 512<<10 {
			word, err := json.Marshal(map[string]int{"read": read})
			require.NoError(t, err)
			other.says(string(word))
		}
	}
}
