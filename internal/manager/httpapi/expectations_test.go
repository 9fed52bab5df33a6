package httpapi_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/session"
)

// These tests hold what the official clients expect beyond the shape of single answers.

func (c *cell) session(id cluster.SessionID) *session.Session {
	c.t.Helper()
	actor, _, err := c.nouns.Tenancy.Authenticate(c.t.Context(), c.admin.AccessKey)
	require.NoError(c.t, err)
	s, err := c.nouns.Sessions.Find(c.t.Context(), actor, string(id), "")
	require.NoError(c.t, err)
	return s
}

func (c *cell) awaitStatus(id cluster.SessionID, want cluster.Status) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.session(id).Status == want }, patience, 2*time.Millisecond, "session becomes %s", want)
}

// calls sends a request that waits.
func (c *cell) calls(method, target, body string) <-chan answer {
	out := make(chan answer, 1)
	go func() { out <- c.call(method, target, body) }()
	return out
}

func (c *cell) answered(answers <-chan answer) answer {
	c.t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(patience):
		c.t.Fatal("no answer")
		return answer{}
	}
}

// TestEventsOfOtherObjects: a user that is made is told of to whoever asked for objects, and the parameter needs all sessions.
func TestEventsOfOtherObjects(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	live, err := c.events(t.Context(), "/events/session?sessionName=&objects=true", nil)
	require.NoError(t, err)
	c.user("eve", "user", true)
	e := next(t, live)
	// A connection that was made late says to look again, which may tell of all before.
	for n := 0; n < 20 && e["event"] == api.ObjectsResync; n++ {
		c.user(fmt.Sprint("eve", n), "user", true)
		e = next(t, live)
	}
	require.Equal(t, "object_changed", e["event"])
	require.Contains(t, e["data"], `"kind":"made"`)
	c.call("GET", "/events/session?sessionName=one&objects=true", "").problem(t, 400, "invalid-api-params")
}

func TestEventsOfASessionThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	eve := c.user("eve", "user", true)
	// The answer's head is there before the session is.
	live, err := c.events(t.Context(), "/events/session?sessionName=comes-later&scope=session", nil)
	require.NoError(t, err)
	const create = `{"name":"comes-later","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"1","mem":"256m"}}}`
	require.Equal(t, 201, eve.call("POST", "/session", create).status) // somebody else's
	require.Equal(t, 201, c.call("POST", "/session", create).status)
	id := c.begin("comes-later")
	e := next(t, live)
	require.Equal(t, "session_enqueued", e["event"])
	require.Contains(t, e["data"], string(id))
	require.Equal(t, 200, c.call("DELETE", "/session/comes-later?forced=true&wait=0", "").status)
	var last map[string]string
	for e := range live {
		last = e
		require.True(t, e["event"] == "server_close" || strings.Contains(e["data"], string(id)), e)
	}
	require.Equal(t, "server_close", last["event"])
	// Whoever resumes a stream knows that the session was there.
	c.call("GET", "/events/session?sessionName=no-such-one&after=1", "").problem(t, 404, "object-not-found")
	c.call("GET", "/events/session?sessionName=no-such-one&follow=false", "").problem(t, 404, "object-not-found")
	c.call("GET", "/events/session?sessionId=00000000-0000-4000-8000-000000000000", "").problem(t, 404, "object-not-found")
}

// TestEventsOfOthersAreNotToldByName: whoever waits for a name learns neither that somebody else has such a session nor what becomes of it.
func TestEventsOfOthersAreNotToldByName(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	eve := &cell{site: c.user("eve", "user", true)}
	const create = `{"name":"secret-name","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"1","mem":"256m"}}}`
	var streams []<-chan map[string]string
	ctx, cancel := context.WithCancel(t.Context())
	follow := func() {
		for _, owner := range []string{"", "&owner_access_key=" + string(c.admin.AccessKey)} {
			live, err := eve.events(ctx, "/events/session?sessionName=secret-name"+owner, nil)
			require.NoError(t, err)
			streams = append(streams, live)
		}
	}
	follow() // before it is there
	require.Equal(t, 201, c.call("POST", "/session", create).status)
	follow() // and while it is
	require.Equal(t, 200, c.call("DELETE", "/session/secret-name?wait=0", "").status)
	own, err := eve.events(ctx, "/events/session?sessionName=own-name", nil)
	require.NoError(t, err)
	require.Equal(t, 201, eve.call("POST", "/session", strings.ReplaceAll(create, "secret-name", "own-name")).status)
	require.Contains(t, next(t, own)["data"], "own-name", "what came later is there")
	cancel()
	for _, live := range streams {
		for e := range live {
			t.Errorf("eve was told %v", e)
		}
	}
	a := eve.call("PUT", "/session/secret-name/lease?owner_access_key="+string(c.admin.AccessKey), `{"seconds":60}`)
	a.problem(t, 404, "object-not-found")
	eve.call("DELETE", "/session/secret-name?forced=true&owner_access_key="+string(c.admin.AccessKey), "").problem(t, 404, "object-not-found")
}

func TestDestroyAnswersWhenTheContainersAreGone(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	httpapi.HoldDestroy(c.api, patience)
	ended := func(o *cluster.KernelObservation) { o.ExitCode = new(int) }
	for name, query := range map[string]string{"gracefully": "", "by-force": "?forced=true"} {
		id := c.running(name)
		answers := c.calls("DELETE", "/session/"+name+query, "")
		require.Eventually(t, func() bool {
			st := c.session(id).Status
			return st.Final() || st == cluster.Terminating
		}, patience, 2*time.Millisecond)
		require.Empty(t, answers, "its container is still there")
		c.report(c.session(id), cluster.PhaseEnded, ended)
		a := c.answered(answers)
		require.Equal(t, 200, a.status, a.body)
		var reply api.DestroyedSession
		a.into(t, &reply)
		require.Equal(t, "terminated", reply.Stats["status"], name)
	}
	id := c.running("in-a-hurry")
	a := c.call("DELETE", "/session/in-a-hurry?wait=0", "")
	require.Contains(t, a.body, `"status":"terminating"`)
	a = c.call("DELETE", "/session/"+string(id)+"?recursive=true&forced=true&wait=1", "")
	require.Contains(t, a.body, `"status":"terminating"`, "the wait is bounded")
	c.call("POST", "/session", `{"name":"still-waits","image":"python","enqueueOnly":true}`)
	require.Contains(t, c.call("DELETE", "/session/still-waits", "").body, `"status":"cancelled"`)
}

func TestFailedSessionsAreDestroyed(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	id := c.running("breaks-soon")
	c.report(c.session(id), cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.Failed, o.Detail = true, "it broke" })
	require.Equal(t, cluster.Error, c.session(id).Status)
	require.Contains(t, c.call("DELETE", "/session/"+string(id), "").problem(t, 403, "generic-forbidden"), "force")
	for _, ref := range []string{"breaks-soon", string(id)} {
		a := c.call("DELETE", "/session/"+ref+"?forced=true", "")
		require.Equal(t, 200, a.status, a.body)
		require.Contains(t, a.body, `"status":"terminated"`)
	}
	require.Equal(t, cluster.Error, c.session(id).Status, "why it failed stays known")
	c.user("eve", "user", true).call("DELETE", "/session/breaks-soon?forced=true", "").problem(t, 404, "object-not-found")
}

func TestABlockingCreateOfABatchSessionAnswersAtItsEnd(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	const body = `{"name":"%s","image":"python","type":"batch","startupCommand":"true","config":{"resources":{"cpu":"1","mem":"256m"}}}`
	answers := c.calls("POST", "/session", strings.Replace(body, "%s", "job-one", 1))
	id := c.begin("job-one")
	require.Empty(t, answers, "the job runs")
	c.report(c.session(id), cluster.PhaseEnded, func(o *cluster.KernelObservation) { o.Batch, o.ExitCode = true, new(int) })
	a := c.answered(answers)
	require.Equal(t, 201, a.status, a.body)
	require.Contains(t, a.body, `"status":"TERMINATED"`)

	// Of one that runs already, so that no machine is too slow to have it run before the wait is over.
	two := strings.Replace(body, "%s", "job-two", 1)
	require.Equal(t, 201, c.call("POST", "/session?enqueueOnly=true", two).status)
	c.begin("job-two")
	require.Contains(t, c.call("POST", "/session?maxWaitSeconds=1", two).body, `"status":"RUNNING"`, "it is there when the wait is over")
}

func TestWhatNoAgentCouldRunWaits(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	const body = `{"name":"giant-one","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"1000","mem":"256m"}}`
	msg := c.call("POST", "/session", body+`,"fail_if_impossible":true}`)
	require.Contains(t, msg.problem(t, 400, "invalid-api-params"), "no agent could ever run")
	require.Contains(t, msg.body, `"error_code":"api_generic_invalid-parameters"`)
	require.Contains(t, msg.body, `"berth_code":"invalid-api-params"`)
	a := c.call("POST", "/session", body+"}")
	require.Equal(t, 201, a.status, a.body)
	require.Contains(t, a.body, `"status":"PENDING"`)
	a = c.call("POST", "/session?maxWaitSeconds=1", strings.Replace(body, "giant-one", "giant-two", 1)+`,"enqueueOnly":false}`)
	require.Contains(t, a.body, `"status":"TIMEOUT"`)
}

// TestNewerCodesOfRefusedCreates: clients from 25.x on look for the newer code when a cluster takes no sessions.
func TestNewerCodesOfRefusedCreates(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	require.Equal(t, 204, c.call("PUT", "/manager/status", `{"status":"frozen"}`).status)
	const body = `{"name":"refused","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"1","mem":"256m"}}}`
	eve := c.user("eve", "user", true)
	a := eve.call("POST", "/session", body)
	a.problem(t, 503, "server-frozen")
	require.Contains(t, a.body, `"error_code":"session_create_unavailable"`)
	require.Equal(t, 204, c.call("PUT", "/manager/status", `{"status":"running"}`).status)
	require.Equal(t, 201, eve.call("POST", "/session", body).status)
}

func TestStatusHistoryHasTheNamesOfStatuses(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	id := c.running("with-history")
	a := c.call("GET", "/session/with-history/status-history", "")
	var flat map[string]any
	a.into(t, &flat)
	for _, name := range []string{"PENDING", "SCHEDULED", "RUNNING"} {
		require.IsType(t, "", flat[name], name)
	}
	var typed api.StatusHistory
	a.into(t, &typed)
	require.Equal(t, flat["RUNNING"], typed.Reached["RUNNING"])
	require.NotEmpty(t, typed.Moves)
	require.NotNil(t, typed.Result["preparing"], "as the command line reads it")
	require.NotEmpty(t, id)
}

func TestReferencesThatListsPutTogether(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	a := c.call("POST", "/session", `{"name":"full-name","image":"local/berth/python:1.0","enqueueOnly":true}`)
	require.Equal(t, 201, a.status, a.body)
	c.call("POST", "/session", `{"name":"wrong-name","image":"local/berth/python:9"}`).problem(t, 404, "object-not-found")
	c.call("POST", "/session", `{"name":"wrong-name","image":"elsewhere/berth/python:1.0"}`).problem(t, 404, "object-not-found")
}

func TestEveryContainerHasItsExitCodeAndLog(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	_, err := c.store.Pool().Exec(t.Context(), `UPDATE keypair_resource_policies SET max_containers_per_session = 2`)
	require.NoError(t, err)
	a := c.call("POST", "/session", `{"name":"two-of-them","image":"python","type":"batch","startupCommand":"true","enqueueOnly":true,`+
		`"clusterSize":2,"config":{"resources":{"cpu":"1","mem":"256m"}}}`)
	require.Equal(t, 201, a.status, a.body)
	id := c.begin("two-of-them")
	s := c.session(id)
	var list []cluster.KernelObservation
	for i, k := range s.Kernels {
		list = append(list, cluster.KernelObservation{Kernel: k.ID, Session: id, Generation: k.Generation, Phase: cluster.PhaseEnded,
			ContainerID: "c", Batch: true, ExitCode: new(i * 3), LogTail: "said by " + k.ClusterHostname})
	}
	_, err = c.nodes.Observe(t.Context(), testAgent, c.epoch, false, nil, list)
	require.NoError(t, err)
	c.awaitStatus(id, cluster.Terminated)
	var info api.SessionInfo
	c.call("GET", "/session/"+string(id), "").into(t, &info)
	require.Len(t, info.Kernels, 2)
	for i, k := range info.Kernels {
		require.NotNil(t, k.ExitCode, k.Hostname)
		require.Equal(t, 3*i, *k.ExitCode)
		require.Contains(t, c.call("GET", "/session/"+string(id)+"/logs?kernel_id="+k.ID, "").body, "said by "+k.Hostname)
	}
}

// as sends a signed request of a client of another version.
func (s *site) as(version, method, target, body string) answer {
	s.t.Helper()
	r := s.request(method, target, "application/json", body)
	r.Header.Set("X-BackendAI-Version", version)
	api.SignRequest(r, string(s.admin.AccessKey), s.admin.SecretKey.Reveal(), time.Now())
	return s.send(r)
}

func TestFoldersInTheTrashAreOutOfTheWay(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	for range 2 {
		require.Equal(t, 204, s.call("DELETE", "/folders", `{"id":"`+s.made(`{"name":"again"}`)+`"}`).status)
	}
	a := s.call("GET", "/folders/again", "")
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, "delete-pending")
	id := s.made(`{"name":"again"}`)
	require.Contains(t, s.call("GET", "/folders/again", "").body, id)
	require.Equal(t, 1, strings.Count(s.as("v7.20230615", "GET", "/folders", "").body, `"name":"again"`))
	require.Equal(t, 3, strings.Count(s.as("v8.20240315", "GET", "/folders", "").body, `"name":"again"`))
}

func TestOwnersWriteIntoTheirReadOnlyFolders(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	s.made(`{"name":"kept","permission":"ro"}`)
	for _, ask := range [][2]string{{"request-upload", `{"path":"a.txt","size":5}`}, {"mkdir", `{"path":["a"]}`},
		{"move-file", `{"src":"a.txt","dst":"b.txt"}`}} {
		a := s.call("POST", "/folders/kept/"+ask[0], ask[1])
		require.Less(t, a.status, http.StatusMultipleChoices, "%s: %s", ask[0], a.body)
	}
}
