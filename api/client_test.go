package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/profile"
)

func client(t *testing.T, h http.HandlerFunc) *api.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c, err := api.New(api.Config{Endpoint: s.URL, AccessKey: vectorAccess, SecretKey: vectorSecret, Domain: "default", Group: "default"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func TestProblemsBecomeErrors(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(404)
		fmt.Fprint(
			w,
			`{"type":"https://api.backend.ai/probs/object-not-found","title":"No such session.","msg":"session x is gone",`+
				`"next":"berth session list","data":{"a":1}}`,
		)
	})

	_, err := c.SessionInfo(t.Context(), "x")

	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "session x is gone", e.Error())
	require.Equal(t, "object-not-found", e.Slug())
	require.Equal(t, "berth session list", e.Next)
	require.JSONEq(t, `{"a":1}`, string(e.Data))
	require.True(t, api.IsNotFound(err))
	require.False(t, api.IsDenied(err))
}

func TestErrorsThatAreNoProblems(t *testing.T) {
	t.Parallel()

	for body, want := range map[string]string{
		"404 page not found": "GET /session/x: the server answered 502 Bad Gateway: 404 page not found",
		"<html>nginx</html>": "GET /session/x: the server answered 502 Bad Gateway",
		"":                   "GET /session/x: the server answered 502 Bad Gateway",
		`{"foo":1}`:          `GET /session/x: the server answered 502 Bad Gateway: {"foo":1}`,
	} {
		c := client(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(502)
			fmt.Fprint(w, body)
		})
		_, err := c.SessionInfo(t.Context(), "x")
		require.EqualError(t, err, want)
	}
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	var stolen atomic.Bool
	thief := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { stolen.Store(true) }))
	defer thief.Close()
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, thief.URL, http.StatusTemporaryRedirect)
	})

	_, err := c.SessionInfo(t.Context(), "x")
	require.ErrorContains(t, err, "307")
	_, err = c.Execute(t.Context(), "x", api.Execute{Mode: api.ModeQuery})
	require.Error(t, err)
	require.False(t, stolen.Load())
}

func TestSessionNamesStayInTheirPlace(t *testing.T) {
	t.Parallel()
	var path atomic.Value
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		path.Store(r.RequestURI)
		fmt.Fprint(w, "{}")
	})

	for _, bad := range []string{"", ".", "..", "_"} {
		_, err := c.SessionInfo(t.Context(), bad)
		require.ErrorContains(t, err, "not the name or id")
	}
	_, err := c.SessionInfo(t.Context(), "../folders?x=1")
	require.NoError(t, err)
	require.Equal(t, "/session/..%2Ffolders%3Fx=1", path.Load())
}

func TestSafeRequestsSurviveARestart(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	t.Cleanup(s.Close)

	for name, tc := range map[string]struct {
		refused int32
		call    func(c *api.Client) error
		tries   int32
		ok      bool
	}{
		"get":             {2, func(c *api.Client) error { _, err := c.SessionInfo(t.Context(), "x"); return err }, 3, true},
		"get, never back": {9, func(c *api.Client) error { _, err := c.SessionInfo(t.Context(), "x"); return err }, 3, false},
		"post":            {1, func(c *api.Client) error { return c.InterruptSession(t.Context(), "x") }, 1, false},
		"delete": {1, func(c *api.Client) error {
			_, err := c.DestroySession(t.Context(), "x", api.DestroyOptions{})
			return err
		}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tries atomic.Int32
			transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if tries.Add(1) <= tc.refused {
					return nil, &net.OpError{Op: "dial", Net: network, Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
				}
				var d net.Dialer
				return d.DialContext(ctx, network, addr)
			}}
			t.Cleanup(transport.CloseIdleConnections)
			c, err := api.New(api.Config{Endpoint: s.URL}, api.WithTransport(transport))
			require.NoError(t, err)

			err = tc.call(c)

			require.Equal(t, tc.tries, tries.Load())
			if tc.ok {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, syscall.ECONNREFUSED)
			}
		})
	}
}

func TestContextsEndCalls(t *testing.T) {
	t.Parallel()
	c := client(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go cancel(why)

	_, err := c.SessionInfo(ctx, "x")

	require.ErrorIs(t, err, why)
}

func TestGraphQLErrors(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(
			w,
			`{"data":{"keypair":null},"errors":[{"message":"agent x does not exist","path":["agent"],`+
				`"extensions":{"type":"https://api.backend.ai/probs/object-not-found","next":"berth agent list"}},`+
				`{"message":"and more"}]}`,
		)
	})

	_, err := c.Keypair(t.Context())

	require.EqualError(t, err, "agent x does not exist; and more")
	require.True(t, api.IsNotFound(err))
	var e *api.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "berth agent list", e.Next)
}

func TestEventsAreResumed(t *testing.T) {
	t.Parallel()
	var connections atomic.Int32
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		switch connections.Add(1) {
		case 1:
			fmt.Fprint(
				w,
				"retry: 100\n\n:comment\nid: 7\nevent: session_started\ndata: {\"sessionName\":\"a\",\ndata: \"sessionId\":\"b\"}"+
					"\n\nid: 8\nevent: lost\ndata: half",
			)
		case 2:
			w.WriteHeader(503)
		case 3:
			fmt.Fprintf(
				w, "id: 9\r\nevent:session_terminated\r\ndata: {\"reason\":%q}\r\n\r\nevent: server_close\ndata: {}\n\n",
				r.Header.Get("Last-Event-ID"),
			)
		}
	})

	var names []string
	var last api.SessionEvent
	for e, err := range c.SessionEvents(t.Context(), api.EventFilter{Session: "a", After: "0"}) {
		require.NoError(t, err)
		names = append(names, e.ID+" "+e.Name)
		if last, err = e.Session(); err != nil {
			t.Fatal(err)
		}
	}

	require.Equal(t, []string{"7 session_started", "9 session_terminated"}, names)
	require.Equal(t, "7", last.Reason)
	require.EqualValues(t, 3, connections.Load())
}

func TestEventsEndOnRefusal(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(404) })
	n := 0

	for _, err := range c.TaskEvents(t.Context(), "x") {
		require.True(t, api.IsNotFound(err))
		n++
	}
	require.Equal(t, 1, n)
}

func TestEventsAreBounded(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "retry: 100\n\nevent: x\n")
		for range 3 {
			fmt.Fprintf(w, "data: %s\n", strings.Repeat("x", 500_000))
		}
		fmt.Fprint(w, "\n")
	})
	n := 0

	for _, err := range c.TaskEvents(t.Context(), "x") {
		require.ErrorContains(t, err, "larger than")
		n++
	}
	require.Equal(t, 1, n)
}

func TestExecuteStreamTellsWhyItEnded(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_, _, _ = conn.Read(r.Context())
		_ = conn.Write(
			r.Context(),
			websocket.MessageText,
			[]byte(
				`{"status":"continued","console":[["stdout","a"],["media",["image/png","x"]],["html","h"]],"exitCode":null,"options":null,"files":[]}`,
			),
		)
		_ = conn.Close(websocket.StatusGoingAway, "the manager stops")
	})

	s, err := c.Execute(t.Context(), "x", api.Execute{Mode: api.ModeQuery, Code: "1"})
	require.NoError(t, err)
	defer s.Close()
	r, err := s.Next(t.Context())
	require.NoError(t, err)
	require.Equal(t, []api.ConsoleItem{{"stdout", "a"}, {"media", []any{"image/png", "x"}}, {"html", "h"}}, r.Console)
	mime, data := r.Console[1].Media()
	require.Equal(
		t, []string{"stdout", "a", "", "image/png", "x"},
		[]string{r.Console[0].Kind(), r.Console[0].Text(), r.Console[1].Text(), mime, data},
	)
	_, err = s.Next(t.Context())
	require.ErrorContains(t, err, "the manager stops")
}

func TestRefusedUpgradesAreProblems(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(404)
		fmt.Fprint(
			w, `{"type":"https://api.backend.ai/probs/object-not-found","title":"No such session.","msg":"session x does not exist"}`,
		)
	})

	_, err := c.Execute(t.Context(), "x", api.Execute{Mode: api.ModeQuery})
	require.True(t, api.IsNotFound(err))
	require.EqualError(t, err, "session x does not exist")
	_, err = c.Exec(t.Context(), "x", api.Exec{Command: []string{"true"}}, api.ExecStreams{})
	require.True(t, api.IsNotFound(err))
	_, err = c.OpenPTY(t.Context(), "x")
	require.True(t, api.IsNotFound(err))
}

func TestPTYMessages(t *testing.T) {
	t.Parallel()
	c := client(t, func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_, b, _ := conn.Read(r.Context())
		_, resize, _ := conn.Read(r.Context())
		_ = conn.Write(r.Context(), websocket.MessageText, []byte(`{"type":"out","data":"aGk="}`))
		e, _ := json.Marshal(map[string]any{"type": "error", "data": string(b) + string(resize)})
		_ = conn.Write(r.Context(), websocket.MessageText, e)
		_ = conn.Close(websocket.StatusNormalClosure, "")
	})

	p, err := c.OpenPTY(t.Context(), "x")
	require.NoError(t, err)
	defer p.Close()
	require.NoError(t, p.Send(t.Context(), api.PTYMessage{Type: "stdin", Bytes: []byte("ls\n")}))
	require.NoError(t, p.Send(t.Context(), api.PTYMessage{Type: "resize", Size: api.TerminalSize{Rows: 24, Cols: 80}}))
	m, err := p.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, "hi", string(m.Bytes))
	m, err = p.Receive(t.Context())
	require.NoError(t, err)
	require.Equal(t, `{"type":"stdin","chars":"bHMK"}{"type":"resize","rows":24,"cols":80}`, m.Text)
	_, err = p.Receive(t.Context())
	require.ErrorIs(t, err, api.ErrStreamEnded)
}

func TestJSONText(t *testing.T) {
	t.Parallel()

	for in, want := range map[string]string{
		`"{\"cpu\":\"1\"}"`: `{"cpu":"1"}`, `{"cpu":"1"}`: `{"cpu":"1"}`, `null`: `null`, `""`: `null`, `"plain"`: `"plain"`,
	} {
		var v api.JSONText
		require.NoError(t, json.Unmarshal([]byte(in), &v))
		out, err := json.Marshal(v)
		require.NoError(t, err)
		require.Equal(t, want, string(out), in)
	}
	require.Equal(t, map[string]string{"a": "1", "b": "x"}, api.JSONText(`{"a":1,"b":"x"}`).Map())
}

func TestLoadConfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		d := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(d, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(d, "client.env"), []byte(text), 0o600))
		return d
	}
	file := write(
		"good",
		"export BACKEND_ENDPOINT=http://file:1/\nBACKEND_ACCESS_KEY='fa'\nBACKEND_SECRET_KEY=\"fs\"\n\n# more\nBACKEND_GROUP=team\n",
	)
	bad := write("bad", "nonsense\n")
	env := map[string]string{api.EnvEndpoint: "http://env:1,http://env:2", api.EnvAccessKey: "ea", api.EnvSecretKey: "hushhush"}
	get := func(m map[string]string) func(string) string { return func(k string) string { return m[k] } }

	c, err := api.LoadConfig(api.Lookup{Getenv: get(env)})
	require.NoError(t, err)
	require.Equal(
		t,
		api.Config{
			Endpoint: "http://env:1", Others: []string{"http://env:2"}, AccessKey: "ea", SecretKey: "hushhush", Domain: "default",
			Group: "default", Source: "the environment",
		},
		c,
	)

	c, err = api.LoadConfig(api.Lookup{Getenv: get(env), StateDir: file})
	require.NoError(t, err)
	require.Equal(t, "http://file:1", c.Endpoint)
	require.Equal(t, "team", c.Group)

	c, err = api.LoadConfig(
		api.Lookup{Getenv: get(map[string]string{api.EnvStateDir: file, api.EnvGroup: "mine"}),
			Endpoint: "https://other:2/, ,https://other:3,https://other:2"},
	)
	require.NoError(t, err)
	require.Equal(t, "https://other:2", c.Endpoint)
	require.Equal(t, []string{"https://other:3"}, c.Others)
	require.Equal(t, "fa", c.AccessKey)
	require.Equal(t, "mine", c.Group)

	many := ""
	for i := range 17 {
		many += fmt.Sprintf("http://many:%d,", i+1)
	}
	for name, l := range map[string]api.Lookup{
		"half an environment": {Getenv: get(map[string]string{api.EnvAccessKey: "ea", api.EnvStateDir: file})},
		"no file":             {Getenv: get(nil), StateDir: dir},
		"a bad file":          {Getenv: get(nil), StateDir: bad},
		"a bad endpoint":      {Getenv: get(nil), StateDir: file, Endpoint: "file:1"},
		"a bad one of two":    {Getenv: get(nil), StateDir: file, Endpoint: "http://a:1,file:1"},
		"too many":            {Getenv: get(nil), StateDir: file, Endpoint: many},
		"a password in it":    {Getenv: get(nil), StateDir: file, Endpoint: "http://a:b@c"},
	} {
		_, err := api.LoadConfig(l)
		require.Error(t, err, name)
		require.NotContains(t, err.Error(), "hushhush", name)
	}
	// Profiles: one that is named goes before the environment, the one in use after it.
	home := map[string]string{"XDG_CONFIG_HOME": dir, api.EnvStateDir: file}
	store := api.Lookup{Getenv: get(home)}.Profiles()
	require.NoError(t, store.Put("lab", profile.Values{api.EnvEndpoint: "https://lab/func", api.EnvLogin: "t", api.EnvGroup: "optics"}))
	from := func(l api.Lookup, more map[string]string) api.Config {
		for k, v := range home {
			more[k] = v
		}
		l.Getenv = get(more)
		c, err := api.LoadConfig(l)
		require.NoError(t, err)
		return c
	}
	require.Equal(t, "http://file:1", from(api.Lookup{}, map[string]string{}).Endpoint, "no profile is in use")
	c = from(api.Lookup{Profile: "lab"}, map[string]string{api.EnvEndpoint: "http://env:1"})
	require.Equal(t, api.Config{Endpoint: "https://lab/func", Login: "t", Domain: "default", Group: "optics", Profile: "lab",
		Source: "profile lab"}, c)
	require.Equal(t, "lab", from(api.Lookup{}, map[string]string{profile.Env: "lab"}).Profile)
	require.NoError(t, store.Use("lab"))
	require.Equal(t, "lab", from(api.Lookup{}, map[string]string{}).Profile)
	require.Equal(t, "http://env:1", from(api.Lookup{}, map[string]string{api.EnvEndpoint: "http://env:1"}).Endpoint)
	require.Equal(t, "http://file:1", from(api.Lookup{StateDir: file}, map[string]string{}).Endpoint)
	_, err = api.LoadConfig(api.Lookup{Getenv: get(home), Profile: "none"})
	require.ErrorIs(t, err, profile.ErrNone)

	require.Equal(t, "/var/lib/berth", api.Lookup{Getenv: get(nil), Root: true, Home: "/root"}.DefaultStateDir())
	require.Equal(t, "/home/a/.local/state/berth", api.Lookup{Getenv: get(nil), Home: "/home/a"}.DefaultStateDir())
}

func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	c := api.Config{SecretKey: "hunter2"}

	b, err := json.Marshal(map[string]any{"c": c, "s": c.SecretKey})
	require.NoError(t, err)
	require.NotContains(t, string(b)+fmt.Sprintf("%v %+v %#v %s", c, c, c, c.SecretKey), "hunter2")
}
