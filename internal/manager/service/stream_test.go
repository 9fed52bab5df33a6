package service_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/service"
)

// fakeStreams answers for agents.
type fakeStreams struct {
	handler http.Handler
	mu      sync.Mutex
	asked   []string
}

func (f *fakeStreams) RoundTrip(agent cluster.AgentID, req *http.Request) (*http.Response, error) {
	f.mu.Lock()
	f.asked = append(f.asked, string(agent)+" "+req.Method+" "+req.URL.RequestURI())
	f.mu.Unlock()
	rec := httptest.NewRecorder()
	f.handler.ServeHTTP(rec, req)
	return rec.Result(), nil
}

func (f *fakeStreams) Upgrade(context.Context, cluster.AgentID, string, http.Header) (io.ReadWriteCloser, error) {
	return nil, errors.New("no streams here")
}

func TestRunnersLogsAndCommitsGoThroughTheAgent(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /kernels/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "live "+r.URL.Query().Get("follow"))
	})
	mux.HandleFunc("POST /kernels/{id}/runner/v1/step", func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
	mux.HandleFunc("POST /kernels/{id}/commit", func(w http.ResponseWriter, r *http.Request) {
		var req struct{ Reference string }
		_ = json.NewDecoder(r.Body).Decode(&req)
		_, _ = io.WriteString(w, `{"message":"copying"}`+"\n"+`{"image":{"reference":"`+req.Reference+`"}}`+"\n")
	})
	f := &fakeStreams{handler: mux}
	w := newWorld(t, func(d *service.Deps) { d.Streams = f })
	w.agent("a1", 8, 16*gib)
	ctx := t.Context()
	id := w.create("stream").ID
	_, err := w.svc.Runner(ctx, w.admin, "stream", "")
	require.Equal(t, "existing-session-not-running", fault.ReasonOf(err))
	logs, err := w.svc.SessionLogs(ctx, w.admin, "stream", "", "", true)
	require.NoError(t, err)
	require.Equal(t, "", readAll(t, logs), "a waiting session has no log")
	w.place(id, "a1")
	w.report(id, "a1", cluster.PhaseRunning)

	logs, err = w.svc.SessionLogs(ctx, w.admin, "stream", "", "", true)
	require.NoError(t, err)
	require.Equal(t, "live true", readAll(t, logs))
	r, err := w.svc.Runner(ctx, w.admin, "stream", "")
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: r}).Post("http://runner/v1/step?x=1", "text/plain", strings.NewReader("code"))
	require.NoError(t, err)
	require.Equal(t, "code", readAll(t, resp.Body))
	soon(t, "queries are counted", func() bool { return w.session(id).NumQueries == 1 })

	task, err := w.svc.CommitSession(ctx, w.admin, "stream", "", "My Result.tar.gz")
	require.NoError(t, err)
	states, err := w.svc.TaskEvents(ctx, w.admin, task.ID)
	require.NoError(t, err)
	var last service.Task
	for s := range states {
		last = s
	}
	require.Equal(t, "done", last.Status)
	require.Equal(t, "berth/commit-stream:my-result", last.Message)
	status, _, err := w.svc.CommitStatus(ctx, w.admin, "stream", "")
	require.NoError(t, err)
	require.Equal(t, "ready", status)
	f.mu.Lock()
	require.Equal(t, "a1 POST /kernels/"+string(r.Kernel.ID)+"/runner/v1/step?x=1", f.asked[1])
	f.mu.Unlock()
	_, err = w.svc.TaskEvents(ctx, w.admin, "00000000-0000-4000-8000-00000000abcd")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
}

func readAll(t testing.TB, r io.ReadCloser) string {
	t.Helper()
	defer r.Close()
	b, err := io.ReadAll(r)
	require.NoError(t, err)
	return string(b)
}

func TestCallbacksAreDelivered(t *testing.T) {
	t.Parallel()
	type body struct{ Type, Event, Session_id, When string }
	got := make(chan body, 100)
	var failures sync.Map
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var b body
		_ = json.NewDecoder(r.Body).Decode(&b)
		if _, again := failures.LoadOrStore(b.Event, true); !again && b.Event == "enqueued" {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		got <- b
	}))
	t.Cleanup(server.Close)
	w := newWorld(t, func(d *service.Deps) { d.Callbacks.AllowPrivate = true })
	w.agent("a1", 8, 16*gib)
	id := w.running("call-me", "a1", batch("true"), func(r *service.CreateSession) { r.CallbackURL = server.URL + "/hook" })
	zero := 0
	w.report(id, "a1", cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &zero })
	seen := map[string]bool{}
	for len(seen) < 5 {
		select {
		case b := <-got:
			require.Equal(t, "session_lifecycle", b.Type)
			require.Equal(t, string(id), b.Session_id)
			_, err := time.Parse(time.RFC3339Nano, b.When)
			require.NoError(t, err)
			seen[b.Event] = true
		case <-time.After(30 * time.Second):
			t.Fatalf("only %v came", seen)
		}
	}
	require.Equal(t, map[string]bool{"enqueued": true, "scheduled": true, "started": true, "success": true, "terminated": true}, seen)
	soon(t, "callbacks are forgotten", func() bool {
		var n int
		require.NoError(t, w.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM callbacks`).Scan(&n))
		return n == 0
	})
}

func TestCallbacksStayOutside(t *testing.T) {
	t.Parallel()
	var p service.CallbackPolicy
	for ip, ok := range map[string]bool{"93.184.216.34": true, "2606:4700::1": true, "127.0.0.1": false, "10.1.2.3": false, "::1": false, "169.254.169.254": false,
		"::ffff:169.254.169.254": false, "fe80::1": false, "0.0.0.0": false, "224.0.0.1": false, "100.64.0.1": false, "fd00:ec2::254": false, "::ffff:10.0.0.1": false} {
		require.Equal(t, ok, p.Check(netip.MustParseAddr(ip)) == nil, ip)
	}
	p.Allowed = []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	require.NoError(t, p.Check(netip.MustParseAddr("10.1.2.3")))
	require.Error(t, p.Check(netip.MustParseAddr("10.2.2.3")))
	p.AllowPrivate = true
	require.NoError(t, p.Check(netip.MustParseAddr("127.0.0.1")))
	require.Error(t, p.Check(netip.MustParseAddr("169.254.169.254")), "metadata services are never allowed")

	// A private address is refused when connecting, at once and for good.
	called := make(chan struct{}, 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { called <- struct{}{} }))
	t.Cleanup(server.Close)
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	w.create("outside", func(r *service.CreateSession) { r.CallbackURL = server.URL })
	soon(t, "the callback is given up", func() bool {
		var n int
		require.NoError(t, w.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM callbacks`).Scan(&n))
		return n == 0
	})
	require.Empty(t, called)
}

func TestSlowReadersAreDroppedAndResume(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 64, 64*gib)
	ctx := t.Context()
	id := w.create("events").ID
	slow, err := w.svc.Events(ctx, w.admin, service.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	// Another reader tells how far the hub is: when it has everything (or was dropped itself), the slow one was dropped.
	fast, err := w.svc.Events(ctx, w.admin, service.EventFilter{Sessions: true, After: 1 << 40})
	require.NoError(t, err)
	w.exec(`INSERT INTO session_events (session_id, event) SELECT $1, 'session_started' FROM generate_series(1, 3000)`, string(id))
	w.store.Wake("events") // as a commit would
	for i := range 3000 {
		if _, ok := <-fast; !ok {
			require.Greater(t, i, 1000)
			break
		}
	}
	var last int64
	n := 0
	for e := range slow {
		require.Greater(t, e.Seq, last)
		last = e.Seq
		n++
	}
	require.Less(t, n, 3000, "the reader was dropped")
	rest, err := w.svc.Events(ctx, w.admin, service.EventFilter{Session: "events", Sessions: true, After: last})
	require.NoError(t, err)
	for range 3000 - n {
		e := <-rest
		require.Greater(t, e.Seq, last)
		last = e.Seq
	}
	_, err = w.svc.DestroySession(ctx, w.admin, "events", service.DestroyOptions{})
	require.NoError(t, err)
	require.Equal(t, cluster.SessionCancelled, (<-rest).Name)
}

func TestDotfilesAndSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.agent("a1", 8, 16*gib)
	ctx := t.Context()
	mine, domain := service.DotfileScope{}, service.DotfileScope{Domain: "default"}
	require.NoError(t, w.svc.CreateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "644", Data: "set nu"}))
	require.NoError(t, w.svc.CreateDotfile(ctx, w.admin, domain, cluster.Dotfile{Path: ".vimrc", Perm: "644", Data: "set ai"}))
	require.NoError(t, w.svc.CreateDotfile(ctx, w.admin, domain, cluster.Dotfile{Path: ".config/x", Perm: "600", Data: "y"}))
	require.Error(t, w.svc.CreateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "644"}))
	for _, path := range []string{"/etc/passwd", "../x", "a/../../x", "", ".", "a//b", ".ssh/authorized_keys", "x\x00"} {
		require.Error(t, w.svc.CreateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: path, Perm: "644"}), path)
	}
	require.Error(t, w.svc.CreateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: ".big", Perm: "644", Data: strings.Repeat("x", 70_000)}))
	require.Error(t, w.svc.CreateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: ".perm", Perm: "4755"}))
	require.NoError(t, w.svc.SetBootstrapScript(ctx, w.admin, "echo hi"))
	id := w.create("dots").ID
	w.place(id, "a1")
	desired, err := w.nodes.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Equal(t, []cluster.Dotfile{{Path: ".config/x", Perm: "600", Data: "y"}, {Path: ".vimrc", Perm: "644", Data: "set nu"}}, desired[0].Spec.Dotfiles)
	require.Equal(t, "echo hi", desired[0].Spec.BootstrapScript)
	require.NoError(t, w.svc.UpdateDotfile(ctx, w.admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "600", Data: "z"}))
	f, err := w.svc.GetDotfile(ctx, w.admin, mine, ".vimrc")
	require.NoError(t, err)
	require.Equal(t, "z", f.Data)
	require.NoError(t, w.svc.DeleteDotfile(ctx, w.admin, mine, ".vimrc"))
	require.True(t, fault.Is(w.svc.DeleteDotfile(ctx, w.admin, mine, ".vimrc"), fault.NotFound))

	text := "maintenance at noon"
	require.NoError(t, w.svc.SetAnnouncement(ctx, w.admin, true, &text))
	on, message, err := w.svc.Announcement(ctx)
	require.NoError(t, err)
	require.True(t, on)
	require.Equal(t, text, message)
	require.NoError(t, w.svc.SetManagerStatus(ctx, w.admin, "frozen"))
	frozen, err := w.svc.Frozen(ctx)
	require.NoError(t, err)
	require.True(t, frozen)
	require.Error(t, w.svc.SetManagerStatus(ctx, w.admin, "melted"))
	slots, err := w.svc.ResourceSlots(ctx)
	require.NoError(t, err)
	require.Equal(t, "cpu", slots[0].Name)
	require.Equal(t, cluster.SlotBytes, slots[1].Kind)
}
