package httpapi_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/tenancy"
)

// oracle is a scheduler that answers what it is told to.
type oracle struct {
	explanation session.Explanation
	plan        session.Explanation
	asked       []session.PlanRequest
}

func (o *oracle) Explain(_ context.Context, id cluster.SessionID) (session.Explanation, error) {
	e := o.explanation
	e.Session = id
	return e, nil
}

func (o *oracle) DryRun(_ context.Context, r session.PlanRequest) (session.Explanation, error) {
	o.asked = append(o.asked, r)
	return o.plan, nil
}

func (o *oracle) Status(context.Context) ([]session.GroupStatus, error) {
	return []session.GroupStatus{
		{
			Name: "default", Active: true, Scheduler: "fifo", Placement: "pack", Pending: 3,
			Reasons: map[string]int{"capacity": 2, "quota": 1}, Running: 1, Leader: true,
			LastPass: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Drift: 2,
		},
	}, nil
}

// user adds an active user to the domain and the project "default" and returns a site that signs as that user.
func (s *site) user(name, role string, member bool) *site {
	s.t.Helper()
	exec := func(sql string, args ...any) {
		_, err := s.store.Pool().Exec(s.t.Context(), sql, args...)
		require.NoError(s.t, err)
	}
	id, key := fmt.Sprintf("00000000-0000-4000-8000-%012x", []byte(name)[:4]), "AKIA"+fmt.Sprintf("%-16.16s", name+"AAAAAAAAAAAAAAAA")
	k, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	require.NoError(s.t, err)
	sealed, err := k.Seal("secret of "+seal.Secret(name), "keypair "+key)
	require.NoError(s.t, err)
	exec(
		`INSERT INTO users (id, username, email, domain_name, resource_policy, role) VALUES ($1, $2, $2 || '@x', 'default', 'default', $3)`,
		id, name, role,
	)
	exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, key, sealed, id)
	if member {
		exec(`INSERT INTO project_members (project_id, user_id) SELECT id, $1 FROM projects WHERE name = 'default'`, id)
	}
	other := *s
	other.admin = tenancy.Credentials{AccessKey: cluster.AccessKey(key), SecretKey: "secret of " + seal.Secret(name)}
	return &other
}

// admins is a site with an agent, a scheduler that answers, and people of all sorts.
type admins struct {
	*site
	oracle         *oracle
	owner, another *site
	nodes          *node.Reports
}

func newAdmins(t *testing.T) *admins {
	t.Helper()
	o := &oracle{
		explanation: session.Explanation{
			Group:     "default",
			Status:    cluster.Pending,
			Reason:    "capacity",
			Text:      "it asks for 2 cpu, the best agent a1 lacks 1 cpu now",
			Rejected:  map[string]int{"cpu": 1},
			Shortfall: cluster.Slots{cluster.SlotCPU: cluster.Whole(1)},
			Position:  2,
			Queue:     3,
			Estimate:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			Remedies:  []string{"ask for 1 cpu"},
			AsOf:      time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
		},
		plan: session.Explanation{Group: "default", Text: "it would start now", AsOf: time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC),
			Placements: []session.PlannedKernel{
				{Agent: "a1", Devices: map[cluster.SlotName]map[string]cluster.Amount{"cpu": {"0": cluster.Whole(1)}}},
			}},
	}
	s := newSite(t, func(d *nouns.Deps, _ *httpapi.Deps) { d.Explainer = o })
	a := &admins{site: s, oracle: o, owner: s.user("owner", "user", true), another: s.user("mallory", "user", false), nodes: s.nouns.Reports}
	python := []cluster.NodeImage{{Reference: "berth/python:1.0", Digest: managertest.Digest(1), Architecture: "x86_64", SizeBytes: 1}}
	require.NoError(t, s.nouns.Images.ImportOwn(t.Context(), python))
	epoch, err := a.nodes.Register(t.Context(), cluster.NodeHello{Agent: "a1", Version: "test"})
	require.NoError(t, err)
	require.NoError(t, a.nodes.UpdateFacts(t.Context(), "a1", epoch, cluster.NodeFacts{
		Revision: 1, Architecture: "x86_64", EngineOK: true, Engine: "fake",
		Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(8), cluster.SlotMem: cluster.Whole(16 << 30)},
		SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
		Images:    python,
	}))
	return a
}

const someSession = `{"name":"waits","image":"python","enqueueOnly":true,"config":{"resources":{"cpu":"2","mem":"256m"}}}`

func TestExplain(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	made := a.owner.call("POST", "/session", someSession)
	require.Equal(t, 201, made.status, made.body)
	var created api.CreatedSession
	made.into(t, &created)

	for who, target := range map[*site]string{a.owner: "/session/waits/explain", a.site: "/session/" + created.ID + "/explain"} {
		answer := who.call("GET", target, "")
		require.Equal(t, 200, answer.status, answer.body)
		require.JSONEq(
			t,
			`{"sessionId":"`+created.ID+`","sessionName":"waits","status":"PENDING","waits":true,"scalingGroup":"default","reason":"capacity",
			"msg":"it asks for 2 cpu, the best agent a1 lacks 1 cpu now","rejectedAgents":{"cpu":1},"shortfall":{"cpu":"1"},"position":2,"queue":3,
			"estimate":"2026-01-02T03:04:05+00:00","remedies":["ask for 1 cpu"],"asOf":"2026-01-02T03:00:00+00:00"}`,
			answer.body,
		)
	}
	require.Equal(t, 200, a.owner.call("GET", "/kernel/waits/explain", "").status)

	// Room elsewhere is told of groups that the owner may use, and of no others.
	a.oracle.explanation.Elsewhere = []string{"default", "hidden"}
	var advised api.Explanation
	a.owner.call("GET", "/session/waits/explain", "").into(t, &advised)
	require.Equal(t, []string{"ask for 1 cpu", "use resource group default, which has room"}, advised.Remedies)
	a.oracle.explanation.Elsewhere = nil

	a.another.call("GET", "/session/"+created.ID+"/explain", "").problem(t, 404, "object-not-found")
	a.another.call("GET", "/session/waits/explain", "").problem(t, 404, "object-not-found")
	a.site.send(a.site.request("GET", "/session/waits/explain", "", "")).problem(t, 401, "auth-failed")

	// What ended says why.
	require.Equal(t, 200, a.owner.call("DELETE", "/session/waits?forced=true", "").status)
	a.oracle.explanation = session.Explanation{Status: cluster.Cancelled}
	var e api.Explanation
	a.owner.call("GET", "/session/"+created.ID+"/explain", "").into(t, &e)
	require.False(t, e.Waits)
	require.Equal(t, "CANCELLED", e.Status)
	require.Equal(t, "it is CANCELLED (force-terminated)", e.Msg)
}

func TestDryRun(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	count := func() (n int) {
		require.NoError(t, a.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions`).Scan(&n))
		return n
	}
	_, err := a.store.Pool().Exec(t.Context(), `UPDATE keypair_resource_policies SET max_containers_per_session = 4`)
	require.NoError(t, err)

	answer := a.owner.call(
		"POST",
		"/session?dry_run=true",
		`{"name":"tried","image":"python","type":"batch","startupCommand":"true","starts_at":"1h","batch_timeout":"2h",
		"priority":3,"clusterSize":2,"is_preemptible":false,"config":{"resources":{"cpu":"2","mem":"256m"}}}`,
	)
	require.Equal(t, 200, answer.status, answer.body)
	require.JSONEq(t, `{"dryRun":true,"sessionName":"tried","waits":false,"scalingGroup":"default","reason":"","msg":"it would start now",
		"placements":[{"agent":"a1","devices":{"cpu":{"0":"1"}}}],"asOf":"2026-01-02T03:00:00+00:00"}`, answer.body)
	require.Len(t, a.oracle.asked, 1)
	r := a.oracle.asked[0]
	require.Equal(t, 3, r.Priority)
	require.Equal(t, 2*time.Hour, r.Lifetime)
	require.WithinDuration(t, time.Now().Add(time.Hour), r.StartsAt, time.Minute)
	require.False(t, r.Preemptible)
	require.True(t, r.SingleNode)
	require.Len(t, r.Kernels, 2)
	require.Equal(t, cluster.Whole(2), r.Kernels[1].Slots[cluster.SlotCPU])
	require.Equal(t, "berth/python:1.0", r.Kernels[0].Image)
	require.Equal(t, a.owner.admin.AccessKey, r.AccessKey)
	require.Zero(t, count(), "nothing was created")

	// The other spellings of the same.
	answer = a.owner.call(
		"POST", "/session?dryRun=true",
		`{"session_name":"tried","lang":"python","job_priority":7,"preemptible":"false","config":{"cluster_size":3,"resources":{"cpu":1}}}`,
	)
	require.Equal(t, 200, answer.status, answer.body)
	r = a.oracle.asked[1]
	require.Equal(t, 7, r.Priority)
	require.False(t, r.Preemptible)
	require.Len(t, r.Kernels, 3)
	a.oracle.asked = a.oracle.asked[:1]

	// Whatever a real create refuses is refused here, with the same words.
	for name, body := range map[string]string{
		"too big":         `{"name":"tried","image":"python","enqueueOnly":true,"fail_if_impossible":true,"config":{"resources":{"cpu":"999"}}}`,
		"unknown image":   `{"name":"tried","image":"no-such-image","enqueueOnly":true}`,
		"bad name":        `{"name":"-","image":"python","enqueueOnly":true}`,
		"too many":        `{"name":"tried","image":"python","enqueueOnly":true,"clusterSize":200}`,
		"priority":        `{"name":"tried","image":"python","enqueueOnly":true,"priority":101}`,
		"unknown project": `{"name":"tried","image":"python","enqueueOnly":true,"group":"nobody's"}`,
		"dependency":      `{"name":"tried","image":"python","enqueueOnly":true,"dependencies":["nobody"]}`,
		"agents":          `{"name":"tried","image":"python","enqueueOnly":true,"config":{"agent_list":["a1"]}}`,
	} {
		real, dry := a.owner.call("POST", "/session", body), a.owner.call("POST", "/session?dry_run=true", body)
		require.GreaterOrEqual(t, real.status, 400, name)
		require.Equal(t, real.status, dry.status, name)
		var x, y struct{ Type, Msg string }
		real.into(t, &x)
		dry.into(t, &y)
		require.Equal(t, x, y, name)
	}
	a.another.call("POST", "/session?dry_run=true", someSession).problem(t, 404, "object-not-found")
	require.Zero(t, count())
	require.Len(t, a.oracle.asked, 1)

	// A live session of the name answers as it would for a real create.
	require.Equal(t, 201, a.owner.call("POST", "/session", someSession).status)
	var e api.Explanation
	a.owner.call("POST", "/session?dry_run=true", someSession).into(t, &e)
	require.Contains(t, e.Msg, "used again")
	require.NotEmpty(t, e.Session)
	a.owner.call("POST", "/session?dry_run=true", `{"name":"waits","image":"python","reuseIfExists":false}`).
		problem(t, 400, "session-already-exists")
	require.Equal(t, 1, count())
}

func TestCordon(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	require.Equal(t, 201, a.owner.call("POST", "/session", someSession).status)
	_, err := a.store.Pool().Exec(t.Context(), `UPDATE kernels SET agent_id = 'a1', status = 'RUNNING'`)
	require.NoError(t, err)

	var work api.AgentWork
	answer := a.call("PATCH", "/resource/agents/a1", `{"schedulable":false}`)
	require.Equal(t, 200, answer.status, answer.body)
	answer.into(t, &work)
	require.False(t, work.Schedulable)
	require.Equal(t, 1, work.SessionCount, "a cordoned agent keeps its sessions")
	require.Equal(t, "waits", work.Sessions[0].Name)
	require.Equal(t, "owner@x", work.Sessions[0].User)
	a.call("GET", "/resource/agents/a1", "").into(t, &work)
	require.False(t, work.Schedulable)

	a.call("PATCH", "/resource/agents/a1", `{"scaling_group":"default"}`).problem(t, 400, "generic-bad-request")
	a.call("PATCH", "/resource/agents/a1", `{}`).problem(t, 400, "invalid-api-params")
	a.call("PATCH", "/resource/agents/nobody", `{"schedulable":true}`).problem(t, 404, "object-not-found")
	a.call("GET", "/resource/agents/nobody", "").problem(t, 404, "object-not-found")
	a.owner.call("PATCH", "/resource/agents/a1", `{"schedulable":true}`).problem(t, 403, "generic-forbidden")
	a.owner.call("GET", "/resource/agents/a1", "").problem(t, 403, "generic-forbidden")
	a.call("PATCH", "/resource/agents/a1", `{"schedulable":true}`).into(t, &work)
	require.True(t, work.Schedulable)

	_, err = a.store.Pool().Exec(t.Context(), `UPDATE kernels SET ended_at = now(), status = 'TERMINATED'`)
	require.NoError(t, err)
	a.call("PATCH", "/resource/agents/a1", `{"scaling_group":"nowhere"}`).problem(t, 404, "object-not-found")
}

func TestSchedulerPolicy(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	const path = "/scaling-groups/default/scheduler"
	require.JSONEq(
		t, `{"name":"default","is_active":true,"scheduler":"fifo","placement":"pack","scheduler_opts":{}}`, a.call("GET", path, "").body,
	)
	require.Equal(t, 200, a.owner.call("GET", path, "").status, "who may use a group may know how it schedules")
	a.another.call("GET", "/scaling-groups/nowhere/scheduler", "").problem(t, 404, "object-not-found")

	answer := a.call("PATCH", path, `{"scheduler":"lifo","scheduler_opts":{"pending_timeout":600}}`)
	require.Equal(t, 200, answer.status, answer.body)
	require.JSONEq(
		t, `{"name":"default","is_active":true,"scheduler":"lifo","placement":"pack","scheduler_opts":{"pending_timeout":600}}`,
		answer.body,
	)
	// A merge patch: what is not named stays, null removes.
	a.call("PATCH", path, `{"scheduler_opts":{"allowed_session_types":["batch"]}}`)
	require.JSONEq(
		t, `{"name":"default","is_active":true,"scheduler":"lifo","placement":"pack","scheduler_opts":{"allowed_session_types":["batch"]}}`,
		a.call("PATCH", path, `{"scheduler_opts":{"pending_timeout":null}}`).body,
	)

	// A policy's options go with it where the next one does not know them; a full set of options is taken as it is.
	for _, c := range []struct{ patch, want string }{
		{
			`{"scheduler":"fair-share","scheduler_opts":{"allowed_session_types":null,"config":{"half_life_days":3}}}`,
			`{"config":{"half_life_days":3}}`,
		},
		{`{"scheduler":"drf","scheduler_opts":{"config":{"ageing_seconds":60}}}`, `{"config":{"ageing_seconds":60}}`},
		{`{"scheduler":"fair-share"}`, `{"config":{"ageing_seconds":60}}`},
		{`{"scheduler":"lifo","scheduler_opts":{"agent_selection_strategy":"spread"}}`, `{"agent_selection_strategy":"spread"}`},
	} {
		var p api.SchedulerPolicy
		answer := a.call("PATCH", path, c.patch)
		require.Equal(t, 200, answer.status, answer.body)
		answer.into(t, &p)
		require.JSONEq(t, c.want, string(p.Options), c.patch)
	}
	require.Contains(t, a.call("PATCH", path, `{"scheduler_opts":{"config":{"luck":1}}}`).problem(t, 400, "invalid-api-params"), "luck")
	require.Contains(
		t, a.call("PATCH", path, `{"scheduler":"astrology"}`).problem(t, 400, "invalid-api-params"), "fifo", "the known ones are named",
	)
	a.call("PATCH", path, `{"scheduler_opts":[]}`).problem(t, 400, "invalid-api-params")
	a.call("PATCH", path, `{}`).problem(t, 400, "invalid-api-params")
	a.owner.call("PATCH", path, `{"scheduler":"fifo"}`).problem(t, 403, "generic-forbidden")
	a.call("PATCH", "/scaling-groups/nowhere/scheduler", `{"scheduler":"fifo"}`).problem(t, 404, "object-not-found")
	require.Contains(t, a.call("GET", path, "").body, `"lifo"`, "a refused change changes nothing")

	var st api.SchedulerStatus
	a.call("GET", "/manager/scheduler", "").into(t, &st)
	require.True(t, st.Leader)
	require.Equal(t, "2026-01-02T03:04:05+00:00", st.LastPass)
	require.Equal(t, 2, st.Drift)
	require.Len(t, st.Groups, 1)
	require.Equal(t, 3, st.Groups[0].Pending)
	require.Equal(t, map[string]int{"capacity": 2, "quota": 1}, st.Groups[0].Reasons)
	require.Equal(t, 1, st.Groups[0].AgentsAlive)
	require.Equal(t, "8", st.Groups[0].Capacity["cpu"])
	a.owner.call("GET", "/manager/scheduler", "").problem(t, 403, "generic-forbidden")
}

func TestWithoutAScheduler(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.call("GET", "/manager/scheduler", "").problem(t, 503, "service-unavailable")
	require.True(t, fault.Is(func() error { _, err := s.nouns.Sessions.SchedulerStatus(t.Context(), authz.Actor{}); return err }(),
		fault.Denied))
}

// What administrators of the described system do by hand happens by itself here; the requests tell how things are.
func TestUpkeepByHand(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	a.owner.call("POST", "/session", someSession).into(t, &struct{}{})
	var id string
	require.NoError(t, a.store.Pool().QueryRow(t.Context(), `SELECT id::text FROM sessions`).Scan(&id))
	const missing = "00000000-0000-4000-8000-000000000000"
	for _, prefix := range []string{"/session", "/kernel"} {
		answer := a.call("POST", prefix+"/_/sync-agent-registry", `{"agent":"a1"}`)
		require.Equal(t, 200, answer.status, answer.body)
		require.JSONEq(t, `{}`, answer.body)
		answer = a.owner.call("POST", prefix+"/_/transit-status", `{"ids":["`+strings.ReplaceAll(id, "-", "")+`","`+missing+`"]}`)
		require.Equal(t, 200, answer.status, answer.body)
		require.JSONEq(t, `{"session_status_map":{"`+id+`":"PENDING"}}`, answer.body)
	}
	a.call("POST", "/session/_/sync-agent-registry", `{"agent":"nobody"}`).problem(t, 404, "object-not-found")
	a.call("POST", "/session/_/sync-agent-registry", `{}`).problem(t, 400, "invalid-api-params")
	a.owner.call("POST", "/session/_/sync-agent-registry", `{"agent":"a1"}`).problem(t, 403, "generic-forbidden")
	stranger := a.user("passer-by", "user", false)
	require.JSONEq(t, `{"session_status_map":{}}`, stranger.call("POST", "/session/_/transit-status", `{"ids":["`+id+`"]}`).body)
	for _, ids := range []string{`[]`, `["x"]`, `["` + id + strings.Repeat(`","`+id, 100) + `"]`} {
		a.call("POST", "/session/_/transit-status", `{"ids":`+ids+`}`).problem(t, 400, "invalid-api-params")
	}

	require.Equal(t, 204, a.call("POST", "/manager/scheduler/trigger", `{"event":"schedule"}`).status)
	var one, other api.SchedulerStatus
	a.call("GET", "/manager/scheduler", "").into(t, &one)
	a.call("GET", "/manager/scheduler/status", "").into(t, &other)
	require.Equal(t, one.Groups, other.Groups)
	require.NotEmpty(t, other.Groups)
	a.owner.call("POST", "/manager/scheduler/trigger", "").problem(t, 403, "generic-forbidden")
	a.owner.call("GET", "/manager/scheduler/status", "").problem(t, 403, "generic-forbidden")
}
