package follow_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/follow"
	"berth.dev/berth/internal/testkit/address"
)

func outage(t *testing.T) (o *follow.Outage, told func() []string) {
	t.Helper()
	var list []string
	return &follow.Outage{For: time.Minute, Pause: time.Millisecond, Tell: func(err error) {
		text := "over"
		if err != nil {
			text = "away"
		}
		list = append(list, text)
	}}, func() []string { return list }
}

func clientOf(t *testing.T, s *httptest.Server) *api.Client {
	t.Helper()
	c, err := api.New(api.Config{Endpoint: s.URL, AccessKey: "AKIA", SecretKey: "secret", Domain: "default"})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// A log that is followed goes on where it was when the manager breaks off, ends its reply in order although the session goes on, or
// refuses for a while: nothing is missing and nothing comes twice.
func TestFollowLogsOutlivesManagers(t *testing.T) {
	t.Parallel()
	const whole = "one\ntwo\nthree\nfour\nfive\n"
	ways := []string{"break", "end", "refuse", "break", "rest"}
	looks, turn := 0, 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /session/{s}/logs", func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("from"))
		way := ways[min(turn, len(ways)-1)]
		turn++
		switch way {
		case "refuse":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "rest":
			_, _ = io.WriteString(w, whole[from:])
		default:
			_, _ = io.WriteString(w, whole[from:from+5])
			w.(http.Flusher).Flush()
			if way == "break" {
				panic(http.ErrAbortHandler)
			}
		}
	})
	mux.HandleFunc("GET /session/{s}", func(w http.ResponseWriter, _ *http.Request) {
		looks++
		status := api.StatusRunning
		if turn >= len(ways) {
			status = api.StatusTerminated
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"status": status})
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	var out bytes.Buffer
	o, told := outage(t)
	require.NoError(t, follow.Logs(t.Context(), clientOf(t, s), "x", "", &out, o))
	require.Equal(t, whole, out.String())
	require.Equal(t, 2, looks)
	require.Equal(t, []string{"away", "over", "away", "over"}, told())
}

// The first contact is not waited for: a wrong address is told at once.
func TestFollowLogsFailsAtOnceInTheBeginning(t *testing.T) {
	t.Parallel()
	s := address.Serve(t, http.NotFoundHandler())
	s.Close()
	o, told := outage(t)
	require.Error(t, follow.Logs(t.Context(), clientOf(t, s), "x", "", io.Discard, o))
	require.Empty(t, told())
}

// breakingRun is a run behind a manager whose connections break after every result; results are forgotten when they are acknowledged.
type breakingRun struct {
	t *testing.T

	mu      sync.Mutex
	starts  int
	acked   int64
	results []api.ExecuteResult // Seq is the index + 1
	inputs  []string
	lose    bool // the next answer is lost with its connection
}

func (b *breakingRun) serve(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer conn.CloseNow()
	_, first, err := conn.Read(r.Context())
	if err != nil {
		return
	}
	var req api.ExecuteRequest
	if json.Unmarshal(first, &req) != nil || !req.Resume || req.RunID == nil {
		return
	}
	b.mu.Lock()
	if req.Mode != api.ModeContinue {
		b.starts++
	}
	next := b.results[min(req.From, int64(len(b.results)-1))]
	b.mu.Unlock()
	next.Seq = req.From + 1
	out, _ := json.Marshal(next)
	if conn.Write(r.Context(), websocket.MessageText, out) != nil || next.Status == api.ExecFinished {
		_ = conn.Close(websocket.StatusNormalClosure, "")
		return
	}
	for {
		_, m, err := conn.Read(r.Context())
		if err != nil {
			return
		}
		var said api.ExecuteMessage
		_ = json.Unmarshal(m, &said)
		b.mu.Lock()
		b.acked = max(b.acked, said.Ack)
		asks := next.Status == api.ExecWaitingInput
		done := !asks && b.acked >= next.Seq
		if said.Input != nil {
			if b.lose {
				b.lose = false
				b.mu.Unlock()
				// What was sent to a manager that died is asked again under the same number.
				again := next
				out, _ := json.Marshal(again)
				_ = conn.Write(r.Context(), websocket.MessageText, out)
				continue
			}
			b.inputs, done = append(b.inputs, *said.Input), true
		}
		b.mu.Unlock()
		if done {
			return // the connection breaks
		}
	}
}

// Code that outlives its connections: every result comes once, in order, the code is started once, and an answer that got lost is sent
// again without asking twice.
func TestExecuteThroughBrokenConnections(t *testing.T) {
	t.Parallel()
	zero := 0
	text := func(s string) []api.ConsoleItem { return []api.ConsoleItem{api.ConsoleText("stdout", s)} }
	b := &breakingRun{t: t, lose: true, results: []api.ExecuteResult{
		{Status: api.ExecContinued, Console: text("a")}, {Status: api.ExecWaitingInput, Console: text("name? ")},
		{Status: api.ExecContinued, Console: text("b")}, {Status: api.ExecContinued, Console: text("c")},
		{Status: api.ExecFinished, ExitCode: &zero, Console: text("d")},
	}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stream/session/{s}/execute", b.serve)
	s := httptest.NewServer(mux)
	defer s.Close()
	o, _ := outage(t)
	stream, runID, err := follow.Execute(t.Context(), clientOf(t, s), "x", api.Execute{Mode: api.ModeQuery, Code: "code"}, o)
	require.NoError(t, err)
	defer stream.Close()
	require.True(t, strings.HasPrefix(runID, api.ResumePrefix))
	var said strings.Builder
	asked := 0
	for r := range stream.Results() {
		for _, item := range r.Console {
			said.WriteString(item.Text())
		}
		if r.Status == api.ExecWaitingInput {
			asked++
			require.NoError(t, stream.SendInput(t.Context(), "Ada"))
		}
	}
	require.NoError(t, stream.Err())
	require.Equal(t, 1, asked)
	b.mu.Lock()
	defer b.mu.Unlock()
	require.Equal(t, []string{"Ada"}, b.inputs)
	require.Equal(t, 1, b.starts)
	require.Equal(t, "aname? bcd", strings.ReplaceAll(said.String(), "name? name? ", "name? "))
}
