package graphapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
)

// desk asks GraphQL on a database of its own, as whoever actor is.
type desk struct {
	t       testing.TB
	store   *store.Store
	world   *managertest.World
	actor   authz.Actor
	admin   authz.Actor
	handler http.Handler
}

type oracle struct{ session.Explainer }

func (oracle) Explain(_ context.Context, id cluster.SessionID) (session.Explanation, error) {
	return session.Explanation{Session: id, Status: cluster.Pending, Reason: "quota", Text: "it is over a limit", Position: 1, Queue: 1,
		Shortfall: cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}, Remedies: []string{"end a session"}}, nil
}

func newDesk(t testing.TB, change ...func(*nouns.Deps)) *desk {
	t.Helper()
	w := managertest.New(t, append([]func(*nouns.Deps){func(d *nouns.Deps) { d.Explainer = oracle{} }}, change...)...)
	d := &desk{t: t, store: w.Store, world: w, admin: w.Admin}
	d.actor = d.admin
	d.handler = graphapi.New(
		graphapi.Deps{
			Nouns: w.Set, Log: w.Deps.Log, Fail: func(w http.ResponseWriter, _ *http.Request, err error) { http.Error(w, err.Error(), 400) },
			Actor: func(context.Context) (authz.Actor, bool) { return d.actor, true },
		},
	)
	return d
}

// post sends a request.
func (d *desk) post(query string, vars map[string]any) (body string, code int) {
	d.t.Helper()
	sent, err := json.Marshal(map[string]any{"query": query, "variables": vars})
	require.NoError(d.t, err)
	w := httptest.NewRecorder()
	ctx := context.WithValue(d.t.Context(), counted{}, true)
	d.handler.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/admin/gql", strings.NewReader(string(sent))))
	return w.Body.String(), w.Code
}

// ask sends a request and reads its data; errs are the messages of its errors.
func (d *desk) ask(query string, vars map[string]any, into any) (errs []string) {
	d.t.Helper()
	body, _ := d.post(query, vars)
	var reply struct {
		Data   json.RawMessage
		Errors []struct{ Message string }
	}
	require.NoError(d.t, json.Unmarshal([]byte(body), &reply), body)
	for _, e := range reply.Errors {
		errs = append(errs, e.Message)
	}
	if p, ok := into.(*partial); ok {
		if len(reply.Data) > 0 {
			require.NoError(d.t, json.Unmarshal(reply.Data, p.into))
		}
		return errs
	}
	if into != nil {
		require.Empty(d.t, errs)
		require.NoError(d.t, json.Unmarshal(reply.Data, into))
	}
	return errs
}

// partial takes what ask was answered beside errors.
type partial struct{ into any }

type outcome struct {
	OK  bool
	Msg string
}

// do runs a mutation that answers ok and msg.
func (d *desk) do(field, query string, vars map[string]any) outcome {
	d.t.Helper()
	var out map[string]outcome
	d.ask(query, vars, &out)
	require.Contains(d.t, out, field)
	return out[field]
}

// The mutations of this test are spelled as the official client spells them.
const (
	createGroup = `mutation($name: String!, $input: CreateScalingGroupInput!){create_scaling_group(name:$name, ` +
		`props:$input){ok msg scaling_group{name scheduler}}}`
	modifyGroup = `mutation($name: String!, $input: ModifyScalingGroupInput!){modify_scaling_group(name:$name, props:$input){ok msg}}`
	deleteGroup = `mutation($name: String!){delete_scaling_group(name:$name){ok msg}}`
	forDomain   = `mutation($scaling_group: String!, $domain: ` +
		`String!){associate_scaling_group_with_domain(scaling_group:$scaling_group, domain:$domain){ok msg}}`
	notForDomain = `mutation($scaling_group: String!, $domain: ` +
		`String!){disassociate_scaling_group_with_domain(scaling_group:$scaling_group, domain:$domain){ok ` +
		`msg}}`
	noDomain   = `mutation($domain: String!){disassociate_all_scaling_groups_with_domain(domain:$domain){ok msg}}`
	forProject = `mutation($scaling_group: String!, $user_group: ` +
		`UUID!){associate_scaling_group_with_user_group(scaling_group:$scaling_group, ` +
		`user_group:$user_group){ok msg}}`
	notForGroup = `mutation($scaling_group: String!, $user_group: ` +
		`String!){disassociate_scaling_group_with_user_group(scaling_group:$scaling_group, ` +
		`user_group:$user_group){ok msg}}`
	forKeypair = `mutation($scaling_group: String!, $k: ` +
		`String!){associate_scaling_group_with_keypair(scaling_group:$scaling_group, access_key:$k){ok msg}}`
	modifyAgent  = `mutation($id: String!, $props: ModifyAgentInput!){modify_agent(id:$id, props:$props){ok msg}}`
	modifyPolicy = `mutation($name: String!, $input: ` +
		`ModifyKeyPairResourcePolicyInput!){modify_keypair_resource_policy(name:$name, props:$input){ok msg}}`
)

func TestResourceGroups(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var made struct {
		R struct {
			OK    bool
			Msg   string
			Group *struct{ Name, Scheduler string } `json:"scaling_group"`
		} `json:"create_scaling_group"`
	}
	d.ask(
		createGroup,
		map[string]any{
			"name": "gpus",
			"input": map[string]any{
				"description": "with GPUs", "driver": "static", "scheduler": "drf", "driver_opts": "{}", "scheduler_opts": "{}",
				"wsproxy_api_token": "very secret",
			},
		},
		&made,
	)
	require.True(t, made.R.OK, made.R.Msg)
	require.Equal(t, "drf", made.R.Group.Scheduler)
	var sealed []byte
	require.NoError(
		t, d.store.Pool().QueryRow(t.Context(), `SELECT wsproxy_api_token_sealed FROM resource_groups WHERE name = 'gpus'`).Scan(&sealed),
	)
	require.NotEmpty(t, sealed)
	require.NotContains(t, string(sealed), "very secret")
	d.ask(createGroup, map[string]any{"name": "gpus", "input": map[string]any{"driver": "static", "scheduler": "fifo"}}, &made)
	require.False(t, made.R.OK)
	require.Contains(t, made.R.Msg, "exists already")
	for name, input := range map[string]map[string]any{
		"a b": {
			"driver": "static", "scheduler": "fifo",
		}, "x/y": {
			"driver": "static", "scheduler": "fifo",
		}, "": {
			"driver": "static", "scheduler": "fifo",
		},
		"driver": {"driver": "cloud", "scheduler": "fifo"}, "order": {"driver": "static", "scheduler": "astrology"},
		"opts": {
			"driver": "static", "scheduler": "fifo", "scheduler_opts": `{"luck":1}`,
		}, "text": {
			"driver": "static", "scheduler": "fifo", "scheduler_opts": "[",
		},
		"proxy": {"driver": "static", "scheduler": "fifo", "wsproxy_addr": "file:///etc/passwd"},
	} {
		d.ask(createGroup, map[string]any{"name": name, "input": input}, &made)
		require.False(t, made.R.OK, name)
	}

	modify := func(input map[string]any) outcome {
		return d.do("modify_scaling_group", modifyGroup, map[string]any{"name": "gpus", "input": input})
	}
	require.True(
		t, modify(map[string]any{"scheduler": "fair-share", "scheduler_opts": `{"config":{"half_life_days":3}}`, "is_active": false}).OK,
	)
	require.Contains(t, modify(map[string]any{"scheduler_opts": `{"pending_timeout":"soon"}`}).Msg, "pending_timeout")
	require.True(t, modify(map[string]any{"description": "still", "is_active": true}).OK)
	var seen struct {
		G struct {
			Scheduler string
			Opts      string `json:"scheduler_opts"`
			Active    bool   `json:"is_active"`
		} `json:"scaling_group"`
	}
	d.ask(`{scaling_group(name:"gpus"){scheduler scheduler_opts is_active}}`, nil, &seen)
	require.Equal(t, "fair-share", seen.G.Scheduler)
	require.JSONEq(t, `{"config":{"half_life_days":3},"allowed_session_types":["interactive","batch","inference"],"pending_timeout":0,
		"agent_selection_strategy":"concentrated","agent_selector_config":{},"enforce_spreading_endpoint_replica":false,
		"allow_fractional_resource_fragmentation":true,"route_cleanup_target_statuses":["unhealthy"]}`, seen.G.Opts,
		"what is not named stays, what was never said has its default")
	require.True(t, modify(map[string]any{"scheduler": "drf", "scheduler_opts": `{"config":{"half_life_days":3,"num_retries_to_skip":1}}`}).OK,
		"options of other orders are taken")
	require.Contains(t, modify(map[string]any{"scheduler_opts": `{"config":{"luck":1}}`}).Msg, "luck")
	require.True(t, seen.G.Active)

	allowed := func(who authz.Actor) bool {
		groups, err := d.world.Resources.AllowedGroups(t.Context(), who, "")
		require.NoError(t, err)
		for _, g := range groups {
			if g.Name == "gpus" {
				return true
			}
		}
		return false
	}
	project := string(d.admin.Projects[0])
	require.False(t, allowed(d.admin))
	for field, step := range map[string][2]string{
		"domain":  {forDomain, notForDomain},
		"project": {forProject, notForGroup},
	} {
		vars := map[string]any{"scaling_group": "gpus", "domain": "default", "user_group": project}
		word := map[string]string{"domain": "scaling_group_with_domain", "project": "scaling_group_with_user_group"}[field]
		require.True(t, d.do("associate_"+word, step[0], vars).OK, field)
		require.True(t, d.do("associate_"+word, step[0], vars).OK, "twice is fine")
		require.True(t, allowed(d.admin), field)
		require.True(t, d.do("disassociate_"+word, step[1], vars).OK, field)
		require.False(t, allowed(d.admin), field)
		require.Contains(t, d.do("disassociate_"+word, step[1], vars).Msg, "not associated", field)
	}
	require.True(
		t,
		d.do(
			"associate_scaling_group_with_keypair", forKeypair, map[string]any{"scaling_group": "gpus", "k": string(d.admin.AccessKey)},
		).OK,
	)
	require.True(t, allowed(d.admin))
	require.Contains(
		t, d.do("associate_scaling_group_with_domain", forDomain, map[string]any{"scaling_group": "gpus", "domain": "nowhere"}).Msg,
		"No such domain",
	)
	require.Contains(
		t, d.do("associate_scaling_group_with_domain", forDomain, map[string]any{"scaling_group": "nowhere", "domain": "default"}).Msg,
		"No such scaling group",
	)
	require.Contains(
		t, d.do("associate_scaling_group_with_user_group", forProject, map[string]any{"scaling_group": "gpus", "user_group": "x"}).Msg,
		"UUID",
	)
	require.True(t, d.do("disassociate_all_scaling_groups_with_domain", noDomain, map[string]any{"domain": "default"}).OK)

	remove := func(name string) outcome {
		return d.do("delete_scaling_group", deleteGroup, map[string]any{"name": name})
	}
	require.Contains(t, remove("default").Msg, "stays")
	require.True(t, remove("gpus").OK)
	require.Contains(t, remove("gpus").Msg, "No such scaling group")

	d.actor.Role = "user"
	for _, m := range []struct {
		field, query string
		vars         map[string]any
	}{
		{"create_scaling_group", createGroup, map[string]any{"name": "mine", "input": map[string]any{"driver": "static", "scheduler": "fifo"}}},
		{"modify_scaling_group", modifyGroup, map[string]any{"name": "default", "input": map[string]any{"scheduler": "lifo"}}},
		{"delete_scaling_group", deleteGroup, map[string]any{"name": "default"}},
		{"associate_scaling_group_with_domain", forDomain, map[string]any{"scaling_group": "default", "domain": "default"}},
		{"disassociate_all_scaling_groups_with_domain", noDomain, map[string]any{"domain": "default"}},
		{"modify_agent", modifyAgent, map[string]any{"id": "a1", "props": map[string]any{"schedulable": false}}},
		{"modify_keypair_resource_policy", modifyPolicy, map[string]any{"name": "default", "input": map[string]any{
			"max_concurrent_sessions": 1000,
		}}},
	} {
		got := d.do(m.field, m.query, m.vars)
		require.False(t, got.OK, m.field)
		require.Contains(t, got.Msg, "superadmin", m.field)
	}
}

func TestAgentsAndPolicies(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	_, err := d.world.Reports.Register(t.Context(), cluster.NodeHello{Agent: "a1", Version: "test"})
	require.NoError(t, err)

	require.True(t, d.do("modify_agent", modifyAgent, map[string]any{"id": "a1", "props": map[string]any{"schedulable": false}}).OK)
	var seen struct {
		Agent struct{ Schedulable bool }
	}
	d.ask(`{agent(agent_id:"a1"){schedulable}}`, nil, &seen)
	require.False(t, seen.Agent.Schedulable)
	require.Contains(
		t, d.do("modify_agent", modifyAgent, map[string]any{"id": "nobody", "props": map[string]any{"schedulable": true}}).Msg,
		"No such agent",
	)
	var made map[string]any
	d.ask(createGroup, map[string]any{"name": "gpus", "input": map[string]any{"driver": "static", "scheduler": "fifo"}}, &made)
	require.True(
		t,
		d.do(
			"modify_agent", modifyAgent, map[string]any{"id": "a1", "props": map[string]any{"scaling_group": "gpus", "schedulable": true}},
		).OK,
	)
	a, err := d.world.Nodes.Get(t.Context(), d.admin, "a1")
	require.NoError(t, err)
	require.Equal(t, "gpus", a.ResourceGroup)
	require.True(t, a.Schedulable)

	modify := func(input map[string]any) outcome {
		return d.do("modify_keypair_resource_policy", modifyPolicy, map[string]any{"name": "default", "input": input})
	}
	require.True(
		t,
		modify(
			map[string]any{
				"total_resource_slots": `{"cpu":"4","mem":"8g","cuda.device":"Infinity"}`, "max_concurrent_sessions": 5,
				"max_containers_per_session": 8,
			},
		).OK,
	)
	require.True(t, modify(map[string]any{"max_priority": 50}).OK)
	for name, input := range map[string]map[string]any{
		"slots": {
			"total_resource_slots": `{"cpu":"many"}`,
		}, "list": {
			"total_resource_slots": `{"cpu":[]}`,
		}, "text": {
			"total_resource_slots": `x`,
		},
		"negative": {"max_concurrent_sessions": -1}, "containers": {"max_containers_per_session": 0}, "priority": {"max_priority": 101},
		"default": {"default_for_unspecified": "SOME"}, "idle": {"idle_timeout": -1},
	} {
		require.False(t, modify(input).OK, name)
	}
	var policy struct {
		P struct {
			Slots      string `json:"total_resource_slots"`
			Sessions   int    `json:"max_concurrent_sessions"`
			Containers int    `json:"max_containers_per_session"`
			Priority   *int   `json:"max_priority"`
		} `json:"keypair_resource_policy"`
		All []struct{ Name string } `json:"keypair_resource_policies"`
	}
	d.ask(
		`{keypair_resource_policy{total_resource_slots max_concurrent_sessions max_containers_per_session max_priority} `+
			`keypair_resource_policies{name}}`,
		nil, &policy,
	)
	require.JSONEq(t, `{"cpu":"4","mem":"8589934592"}`, policy.P.Slots)
	require.Equal(t, 5, policy.P.Sessions)
	require.Equal(t, 8, policy.P.Containers)
	require.Equal(t, 50, *policy.P.Priority)
	require.Len(t, policy.All, 1)
}

func TestExplanation(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	nodes := d.world.Reports
	python := []cluster.NodeImage{{Reference: "berth/python:1.0", Digest: managertest.Digest(1), Architecture: "x86_64", SizeBytes: 1}}
	require.NoError(t, d.world.Images.ImportOwn(t.Context(), python))
	epoch, err := nodes.Register(t.Context(), cluster.NodeHello{Agent: "a1", Version: "test"})
	require.NoError(t, err)
	require.NoError(
		t,
		nodes.UpdateFacts(t.Context(), "a1", epoch, cluster.NodeFacts{Revision: 1, Architecture: "x86_64", EngineOK: true, Engine: "fake",
			Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(8), cluster.SlotMem: cluster.Whole(16 << 30)},
			SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes},
			Images:    python}),
	)
	made, err := d.world.Sessions.Create(t.Context(), d.admin, request.Session{Name: "waits", Image: "python"})
	require.NoError(t, err)

	const query = `query($id: UUID!){compute_session(id:$id){name explanation{reason msg position queue shortfall remedies estimate}}}`
	var seen struct {
		S struct {
			E *struct {
				Reason, Msg, Shortfall string
				Remedies               []string
				Estimate               *string
			} `json:"explanation"`
		} `json:"compute_session"`
	}
	d.ask(query, map[string]any{"id": string(made.ID)}, &seen)
	require.Equal(t, "quota", seen.S.E.Reason)
	require.JSONEq(t, `{"cpu":"2"}`, seen.S.E.Shortfall)
	require.Equal(t, []string{"end a session"}, seen.S.E.Remedies)
	require.Nil(t, seen.S.E.Estimate)
	_, err = d.store.Pool().Exec(t.Context(), `UPDATE sessions SET status = 'RUNNING' WHERE id = $1`, string(made.ID))
	require.NoError(t, err)
	seen.S.E = nil
	d.ask(query, map[string]any{"id": string(made.ID)}, &seen)
	require.Nil(t, seen.S.E, "what runs waits for nothing")
}
