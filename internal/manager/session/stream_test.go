package session_test

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
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/operation"
	"berth.dev/berth/internal/manager/operation/callback"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
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
		_, _ = io.WriteString(w, `{"message":"copying"}`+"\n"+`{"image":{"reference":"`+req.Reference+`","id":"`+
			managertest.Digest(5)+`"}}`+"\n")
	})
	f := &fakeStreams{handler: mux}
	w := managertest.New(t, func(d *nouns.Deps) { d.Streams = f })
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	id := w.Create("stream").ID
	_, err := w.Sessions.Runner(ctx, w.Admin, "stream", "")
	require.Equal(t, "existing-session-not-running", fault.ReasonOf(err))
	logs, err := w.Sessions.Logs(ctx, w.Admin, "stream", "", session.LogOptions{Follow: true})
	require.NoError(t, err)
	require.Equal(t, "", readAll(t, logs), "a waiting session has no log")
	w.Place(id, "a1")
	w.Report(id, "a1", cluster.PhaseRunning)

	logs, err = w.Sessions.Logs(ctx, w.Admin, "stream", "", session.LogOptions{Follow: true})
	require.NoError(t, err)
	require.Equal(t, "live true", readAll(t, logs))
	r, err := w.Sessions.Runner(ctx, w.Admin, "stream", "")
	require.NoError(t, err)
	resp, err := (&http.Client{Transport: r}).Post("http://runner/v1/step?x=1", "text/plain", strings.NewReader("code"))
	require.NoError(t, err)
	require.Equal(t, "code", readAll(t, resp.Body))
	managertest.Soon(t, "queries are counted", func() bool { return w.Session(id).NumQueries == 1 })

	task, err := w.Sessions.Commit(ctx, w.Admin, "stream", "", "My Result.tar.gz")
	require.NoError(t, err)
	states, err := w.Operations.TaskEvents(ctx, w.Admin, task)
	require.NoError(t, err)
	var last operation.Task
	for s := range states {
		last = s
	}
	require.Equal(t, "done", last.Status)
	require.Equal(t, "local/"+string(w.Admin.UserID)+"/stream:my-result", last.Message)
	status, _, err := w.Sessions.CommitStatus(ctx, w.Admin, "stream", "")
	require.NoError(t, err)
	require.Equal(t, "ready", status)
	f.mu.Lock()
	require.Equal(t, "a1 POST /kernels/"+string(r.Kernel.ID)+"/runner/v1/step?x=1", f.asked[1])
	f.mu.Unlock()
	_, err = w.Operations.TaskEvents(ctx, w.Admin, "00000000-0000-4000-8000-00000000abcd")
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
	w := managertest.New(t, func(d *nouns.Deps) { d.Callbacks.AllowPrivate = true })
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Running("call-me", "a1", managertest.Batch("true"), func(r *request.Session) { r.CallbackURL = server.URL + "/hook" })
	zero := 0
	w.Report(id, "a1", cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, &zero })
	seen := map[string]bool{}
	for len(seen) < 5 {
		select {
		case b := <-got:
			require.Equal(t, "session_lifecycle", b.Type)
			require.Equal(t, string(id), b.Session_id)
			_, err := time.Parse(time.RFC3339Nano, b.When)
			require.NoError(t, err)
			seen[b.Event] = true
		case <-time.After(time.Minute):
			t.Fatalf("only %v came", seen)
		}
	}
	require.Equal(t, map[string]bool{"enqueued": true, "scheduled": true, "started": true, "success": true, "terminated": true}, seen)
	managertest.Soon(t, "callbacks are forgotten", func() bool {
		var n int
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM callbacks`).Scan(&n))
		return n == 0
	})
}

func TestCallbacksStayOutside(t *testing.T) {
	t.Parallel()
	var p callback.Policy
	for ip, ok := range map[string]bool{"93.184.216.34": true, "2606:4700::1": true, "127.0.0.1": false, "10.1.2.3": false, "::1": false,
		"169.254.169.254":        false,
		"::ffff:169.254.169.254": false, "fe80::1": false, "0.0.0.0": false, "224.0.0.1": false, "100.64.0.1": false, "fd00:ec2::254": false,
		"::ffff:10.0.0.1": false} {
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
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Create("outside", func(r *request.Session) { r.CallbackURL = server.URL })
	managertest.Soon(t, "the callback is given up", func() bool {
		var n int
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM callbacks`).Scan(&n))
		return n == 0
	})
	require.Empty(t, called)
}

func TestSlowReadersAreDroppedAndResume(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	ctx := t.Context()
	id := w.Create("events").ID
	slow, err := w.Sessions.Events(ctx, w.Admin, session.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	// Another reader tells how far the hub is: when it has everything (or was dropped itself), the slow one was dropped.
	fast, err := w.Sessions.Events(ctx, w.Admin, session.EventFilter{Sessions: true, After: 1 << 40})
	require.NoError(t, err)
	w.Exec(`INSERT INTO session_events (session_id, event) SELECT $1, 'session_started' FROM generate_series(1, 3000)`, string(id))
	w.Store.Wake("events") // as a commit would
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
	rest, err := w.Sessions.Events(ctx, w.Admin, session.EventFilter{Session: "events", Sessions: true, After: last})
	require.NoError(t, err)
	for range 3000 - n {
		e := <-rest
		require.Greater(t, e.Seq, last)
		last = e.Seq
	}
	_, err = w.Sessions.Destroy(ctx, w.Admin, "events", session.DestroyOptions{})
	require.NoError(t, err)
	require.Equal(t, cluster.SessionCancelled, (<-rest).Name)
}

func TestDotfilesAndSettings(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	ctx := t.Context()
	mine, domain := tenancy.DotfileScope{}, tenancy.DotfileScope{Domain: "default"}
	require.NoError(t, w.Tenancy.CreateDotfile(ctx, w.Admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "644", Data: "set nu"}))
	require.NoError(t, w.Tenancy.CreateDotfile(ctx, w.Admin, domain, cluster.Dotfile{Path: ".vimrc", Perm: "644", Data: "set ai"}))
	require.NoError(t, w.Tenancy.CreateDotfile(ctx, w.Admin, domain, cluster.Dotfile{Path: ".config/x", Perm: "600", Data: "y"}))
	require.Error(t, w.Tenancy.CreateDotfile(ctx, w.Admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "644"}))
	for _, path := range []string{"/etc/passwd", "../x", "a/../../x", "", ".", "a//b", ".ssh/authorized_keys", "x\x00"} {
		require.Error(t, w.Tenancy.CreateDotfile(ctx, w.Admin, mine, cluster.Dotfile{Path: path, Perm: "644"}), path)
	}
	require.Error(t, w.Tenancy.CreateDotfile(ctx, w.Admin, mine,
		cluster.Dotfile{Path: ".big", Perm: "644", Data: strings.Repeat("x", 70_000)}))
	require.Error(t, w.Tenancy.CreateDotfile(ctx, w.Admin, mine, cluster.Dotfile{Path: ".perm", Perm: "4755"}))
	require.NoError(t, w.Tenancy.SetBootstrapScript(ctx, w.Admin, "echo hi"))
	id := w.Create("dots").ID
	w.Place(id, "a1")
	desired, err := w.Reports.Desired(ctx, "a1", nil)
	require.NoError(t, err)
	require.Equal(t, []cluster.Dotfile{{Path: ".config/x", Perm: "600", Data: "y"}, {Path: ".vimrc", Perm: "644", Data: "set nu"}},
		desired[0].Spec.Dotfiles)
	require.Equal(t, "echo hi", desired[0].Spec.BootstrapScript)
	require.NoError(t, w.Tenancy.UpdateDotfile(ctx, w.Admin, mine, cluster.Dotfile{Path: ".vimrc", Perm: "600", Data: "z"}))
	f, err := w.Tenancy.GetDotfile(ctx, w.Admin, mine, ".vimrc")
	require.NoError(t, err)
	require.Equal(t, "z", f.Data)
	require.NoError(t, w.Tenancy.DeleteDotfile(ctx, w.Admin, mine, ".vimrc"))
	require.True(t, fault.Is(w.Tenancy.DeleteDotfile(ctx, w.Admin, mine, ".vimrc"), fault.NotFound))

	text := "maintenance at noon"
	require.NoError(t, w.Operations.SetAnnouncement(ctx, w.Admin, true, &text))
	on, message, err := w.Operations.Announcement(ctx)
	require.NoError(t, err)
	require.True(t, on)
	require.Equal(t, text, message)
	require.NoError(t, w.Operations.SetManagerStatus(ctx, w.Admin, "frozen"))
	frozen, err := w.Operations.Frozen(ctx)
	require.NoError(t, err)
	require.True(t, frozen)
	require.Error(t, w.Operations.SetManagerStatus(ctx, w.Admin, "melted"))
	slots, err := w.Resources.Slots(ctx)
	require.NoError(t, err)
	require.Equal(t, "cpu", slots[0].Name)
	require.Equal(t, cluster.SlotBytes, slots[1].Kind)
}
