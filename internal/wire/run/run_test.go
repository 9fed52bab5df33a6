package run_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/address"
	"berth.dev/berth/internal/wire/run"
)

func TestConsoleForms(t *testing.T) {
	t.Parallel()
	for _, c := range []run.Console{
		{Type: run.Stdout}, {Type: run.Stdout, Data: "a\n"}, {Type: run.Stderr, Data: `"`}, {Type: run.Stderr, Data: `\`},
		{Type: run.Log, Data: `\"`},
		{Type: run.Log, Data: `","`}, {Type: run.Stdout, Data: `\","\`}, {Type: run.HTML, Data: "<b>\u2028\xff\x00</b>"},
		{Type: run.Media, Mime: "image/png", Data: "iVBO"},
	} {
		r := run.StepResult{Status: run.StatusContinued, Console: []run.Console{c}}
		slow, err := json.Marshal(r)
		require.NoError(t, err)
		fast, err := json.Marshal(r.Wire())
		require.NoError(t, err)
		require.JSONEq(t, string(slow), string(fast))
		var out run.StepResult
		require.NoError(t, json.Unmarshal(fast, &out))
		c.Data = strings.ToValidUTF8(c.Data, "\uFFFD")
		require.Equal(t, []run.Console{c}, out.Console)
		spaced := bytes.ReplaceAll(fast, []byte(`[`), []byte("[ "))
		require.NoError(t, json.Unmarshal(spaced, &out))
	}
	for _, bad := range []string{`[]`, `["stdout"]`, `["stdout","a","b"]`, `["stdout","a\\","b"]`, `["stdout",1]`, `[1,"a"]`, `["media","a"]`,
		`{"a":"b"}`, `"a"`} {
		require.Error(t, json.Unmarshal([]byte(bad), &run.Console{}), bad)
	}
}

func TestConsoleShape(t *testing.T) {
	t.Parallel()
	in := []run.Console{{Type: run.Stdout, Data: "a\n"}, {Type: run.Media, Mime: "image/png", Data: "iVBO"}, {Type: run.HTML, Data: "<b>"}}
	b, err := json.Marshal(run.StepResult{RunID: "r", Status: run.StatusContinued, Console: in, Seq: 3})
	require.NoError(t, err)
	require.JSONEq(t, `{"runId":"r","status":"continued","exitCode":null,"options":null,"console":[["stdout","a\n"],["media",["image/png",`+
		`"iVBO"]],["html","<b>"]],"seq":3}`, string(b))
	var out run.StepResult
	require.NoError(t, json.Unmarshal(b, &out))
	require.Equal(t, in, out.Console)
	for _, bad := range []string{`[["stdout"]]`, `[["media","x"]]`, `[["media",["x"]]]`, `{}`, `[[1,2]]`} {
		require.Error(t, json.Unmarshal([]byte(`{"console":`+bad+`}`), &out), bad)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "config.json")
	good := run.Config{Version: run.Version, Token: strings.Repeat("x", 16), Dir: "/.berth", Env: map[string]string{"A": "b"}}
	require.NoError(t, run.WriteConfig(file, good))
	fi, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), fi.Mode().Perm(), "it holds a token")
	c, err := run.LoadConfig(file)
	require.NoError(t, err)
	require.Equal(t, good.WithDefaults(), c)
	require.Equal(t, "/.berth/run.sock", c.Socket)
	require.Equal(t, "/home/work", c.WorkDir)
	for name, change := range map[string]func(*run.Config){
		"version":     func(c *run.Config) { c.Version = 99 },
		"token":       func(c *run.Config) { c.Token = "short" },
		"dir":         func(c *run.Config) { c.Dir = "relative" },
		"socket":      func(c *run.Config) { c.Dir = "/" + strings.Repeat("d", 120) },
		"user":        func(c *run.Config) { c.User.UID = -1 },
		"session":     func(c *run.Config) { c.SessionType = "party" },
		"batch":       func(c *run.Config) { c.SessionType = "batch" },
		"environment": func(c *run.Config) { c.Env = map[string]string{"A=B": "c"} },
	} {
		bad := good
		change(&bad)
		require.NoError(t, run.WriteConfig(file, bad))
		_, err := run.LoadConfig(file)
		require.Error(t, err, name)
	}
	require.NoError(t, os.WriteFile(file, []byte(`{"version":1,"tokken":"x"}`), 0o600))
	_, err = run.LoadConfig(file)
	require.ErrorContains(t, err, "tokken")
	_, err = run.LoadConfig(file + ".missing")
	require.Error(t, err)
}

func FuzzReadFrame(f *testing.F) {
	var b bytes.Buffer
	require.NoError(f, run.WriteFrame(&b, run.Frame{Type: run.FrameStdin, Data: []byte("x")}))
	f.Add(b.Bytes())
	f.Add([]byte{3, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		r := bytes.NewReader(in)
		for {
			frame, err := run.ReadFrame(r)
			if err != nil {
				return
			}
			var back bytes.Buffer
			if err := run.WriteFrame(&back, frame); err != nil || back.Len() != 5+len(frame.Data) {
				t.Fatalf("%v, %d bytes", err, back.Len())
			}
		}
	})
}

func TestFrames(t *testing.T) {
	t.Parallel()
	require.Error(t, run.WriteFrame(io.Discard, run.Frame{Data: make([]byte, run.MaxFrame+1)}))
	_, err := run.ReadFrame(bytes.NewReader([]byte{1, 0, 0, 0, 2, 'x'}))
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	_, err = run.ReadFrame(bytes.NewReader(nil))
	require.Equal(t, io.EOF, err)
}

func TestFailuresKeepTheirKind(t *testing.T) {
	t.Parallel()
	for _, kind := range []fault.Kind{fault.Internal, fault.NotFound, fault.Conflict, fault.Denied, fault.Unauthenticated, fault.Invalid,
		fault.Exhausted, fault.Unavailable, fault.Timeout} {
		srv := address.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
			require.Equal(t, "/prefix/v1/hello", q.URL.Path)
			require.Equal(t, "Bearer tok", q.Header.Get("Authorization"))
			run.WriteFailure(w, fault.New(kind, "it broke").WithReason("why").WithNext("do this"))
		}))
		c := run.NewClient(run.Options{Transport: http.DefaultTransport, BaseURL: srv.URL + "/prefix/", Token: "tok"})
		_, err := c.Hello(context.Background())
		require.Equal(t, kind, fault.KindOf(err))
		require.Equal(t, "why", fault.ReasonOf(err))
		require.Equal(t, "do this", fault.NextOf(err))
		require.ErrorContains(t, err, "it broke")
		srv.Close()
		_, err = c.Hello(context.Background())
		require.Equal(t, fault.Unavailable, fault.KindOf(err))
		c.Close()
	}
}

// A runner of an earlier release is told apart from an app or a file that is not there.
func TestOlderRunnersAreNamed(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path == run.PathApps {
			run.WriteFailure(w, fault.NotFoundf("the runner has no GET /v1/apps").WithReason(run.ReasonNoRoute))
			return
		}
		run.WriteFailure(w, fault.NotFoundf("there is no such file").WithReason("file-not-found"))
	}))
	defer srv.Close()
	c := run.NewClient(run.Options{Transport: &http.Transport{DisableKeepAlives: true}, BaseURL: srv.URL})
	_, err := c.Apps(t.Context())
	require.Equal(t, fault.Conflict, fault.KindOf(err))
	require.Equal(t, run.ReasonTooOld, fault.ReasonOf(err))
	require.Contains(t, fault.NextOf(err), "restart the session for apps")
	_, err = c.Files(t.Context(), "x")
	require.Equal(t, fault.NotFound, fault.KindOf(err))
}

// A peer that answers more than any runner does is no runner.
func TestRepliesAreBounded(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"apps":[{"name":"`)
		for part, i := strings.Repeat("x", 1<<20), 0; i < run.MaxReply>>20; i++ {
			if _, err := io.WriteString(w, part); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, `"}]}`)
	}))
	defer srv.Close()
	_, err := run.NewClient(run.Options{Transport: &http.Transport{DisableKeepAlives: true}, BaseURL: srv.URL}).Apps(t.Context())
	require.Equal(t, fault.Unavailable, fault.KindOf(err))
}

// TestStreamGivesUp: a peer that never answers must not hold a caller longer than its context.
func TestStreamGivesUp(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		select {
		case <-hold:
		case <-q.Context().Done():
		}
	}))
	defer srv.Close()
	defer close(hold)
	c := run.NewClient(run.Options{Transport: &http.Transport{}, BaseURL: srv.URL})
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Exec(ctx, run.ExecStart{Argv: []string{"x"}})
	require.ErrorIs(t, err, context.DeadlineExceeded)
}

// TestVersion1 holds the messages of version 1 as they went over the wire when it was fixed: containers
// outlive agents, so a change that breaks them needs a new version.
func TestVersion1(t *testing.T) {
	t.Parallel()
	for file, value := range map[string]any{
		"config": &run.Config{}, "hello": &run.Hello{}, "step-request": &run.StepRequest{}, "step-result": &run.StepResult{},
		"batch-result": &run.BatchResult{}, "listing": &run.Listing{},
	} {
		old, err := os.ReadFile("testdata/v1-" + file + ".json")
		require.NoError(t, err)
		d := json.NewDecoder(bytes.NewReader(old))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(value), file)
		now, err := json.Marshal(value)
		require.NoError(t, err)
		require.JSONEq(t, string(old), string(now), file)
	}
}
