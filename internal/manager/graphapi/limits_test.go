package graphapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi"
)

// bomb doubles its fields with each level of fragments, in less than a kilobyte.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("{compute_session_list(limit:100,offset:0){items{...F0}}}")
	for i := range levels {
		fmt.Fprintf(&b, "fragment F%d on ComputeSession{dependencies{...F%d}dependencies{...F%d}}", i, i+1, i+1)
	}
	fmt.Fprintf(&b, "fragment F%d on ComputeSession{id}", levels)
	return b.String()
}

// flat doubles without nesting: only the number of fields grows.
func flat(levels int) string {
	var b strings.Builder
	b.WriteString("{compute_session_list(limit:1,offset:0){items{...F0}}}")
	for i := range levels {
		fmt.Fprintf(&b, "fragment F%d on ComputeSession{...F%d ...F%d}", i, i+1, i+1)
	}
	fmt.Fprintf(&b, "fragment F%d on ComputeSession{id name}", levels)
	return b.String()
}

func TestDocumentsThatAskForTooMuchAreRefused(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	aliases := func(n int, field string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, " a%d: %s", i, field)
		}
		return "{" + b.String() + "}"
	}
	for name, c := range map[string]struct{ query, want string }{
		"fragments that double": {bomb(14), "levels of nested fields"},
		"flat ones":             {flat(24), "fields with its fragments"},
		"aliases of a list":     {aliases(1500, "compute_session_list(limit:1,offset:0){total_count}"), "token limit"},
		"fewer of them":         {aliases(300, "compute_session_list(limit:1,offset:0){total_count}"), "queries in one operation"},
		"aliases of a member":   {"{agent_list(limit:1,offset:0){items" + aliases(400, "id") + "}}", "aliases with its fragments"},
		"a wide page": {"{agent_list(limit:100,offset:0){items" + aliases(200, "compute_containers{id status}") + "}}",
			"units of cost"},
		"a cycle":            {"{agent_list(limit:1,offset:0){...A}} fragment A on AgentList{...A}", "Cannot spread fragment"},
		"two lists as one":   {"{a: agents{id} a: images{id}}", "conflict because"},
		"very many tokens":   {"{" + strings.Repeat("agents{id}", 4000) + "}", "token limit"},
		"a name to compare":  {"{" + strings.Repeat("x", 90_000) + "}", "Cannot query field"},
		"thousands of names": {"{agents{" + strings.Repeat(" idd", 700) + "}}", "Cannot query field"},
	} {
		errs := d.ask(c.query, nil, nil)
		require.NotEmpty(t, errs, name)
		require.LessOrEqual(t, len(errs), 20, name)
		require.Contains(t, errs[0], c.want, name)
	}
	require.Less(t, len(bomb(14)), 1100, "the attack of the review was a kilobyte")
	// What refused all these answers the next question.
	require.Empty(t, d.ask("{agents{id}}", nil, nil))
}

// TestTheWidestQueryOfClientsFits asks for what the largest page of the official console and command line asks.
func TestTheWidestQueryOfClientsFits(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const query = `query($limit:Int!,$offset:Int!,$filter:String,$order:String,$ak:String,$group_id:String,$status:String){
		compute_session_list(limit:$limit,offset:$offset,filter:$filter,order:$order,access_key:$ak,group_id:$group_id,status:$status){
			items{id main_kernel_id tag name type priority image architecture registry cluster_template cluster_mode cluster_size domain_name
				group_name group_id agent_ids agents user_email full_name user_id access_key created_user_email created_user_id status
				status_info status_data status_changed status_history created_at terminated_at starts_at scheduled_at startup_command
				result callback_url resource_opts scaling_group service_ports mounts vfolder_mounts occupying_slots occupied_slots
				requested_slots num_queries abusing_reports idle_checks dependencies{id name status}
				containers{id idx role hostname kernel_id cluster_idx local_rank cluster_role cluster_hostname session_id image architecture
					registry status status_changed status_info status_data created_at terminated_at starts_at scheduled_at agent agent_addr
					container_id resource_opts occupied_slots live_stat last_stat preopen_ports}}
			total_count}}`
	require.Empty(t, d.ask(query, map[string]any{"limit": 100, "offset": 0}, nil))
}

type spender struct{ left int }

func (s *spender) Spend(_ context.Context, _ string, amount, limit int) bool {
	s.left -= amount
	return s.left >= 0 && amount <= limit
}

// limited makes a handler with a configuration of its own; answer sends a request to it.
func limited(t *testing.T, budget graphapi.Budget, change func(*graphapi.Config)) (
	answer func(ctx context.Context, body string) (int, string)) {
	t.Helper()
	d := newDesk(t)
	cfg := graphapi.DefaultConfig()
	change(&cfg)
	h := graphapi.New(graphapi.Deps{
		Nouns: d.world.Set, Log: d.world.Deps.Log, Budget: budget, Config: &cfg,
		Actor: func(context.Context) (authz.Actor, bool) { return d.admin, true },
		Fail: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error()+"; "+fault.NextOf(err), 400+int(fault.KindOf(err)))
		},
	})
	return func(ctx context.Context, body string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "POST", "/admin/gql", strings.NewReader(body)))
		return w.Code, w.Body.String()
	}
}

func TestRequestsAreBoundedInBytes(t *testing.T) {
	t.Parallel()
	answer := limited(t, nil, func(c *graphapi.Config) { c.MaxQueryBytes, c.MaxVariablesBytes = 10_000, 10_000 })
	pad := strings.Repeat(" ", 10_000)
	for body, want := range map[string]string{
		`{"query":"{agents{id}` + pad + `}"}`:                      "the query is 10012 bytes long; at most 10000 are allowed",
		`{"query":"{agents{id}}","variables":{"a":"` + pad + `"}}`: "the variables are 10008 bytes long; at most 10000 are allowed",
		`{"query":"` + pad + pad + pad + pad + `"}`:                "the body is not a GraphQL request",
	} {
		status, text := answer(t.Context(), body)
		require.Equal(t, 400+int(fault.Invalid), status)
		require.Contains(t, text, want)
	}
}

func TestCostIsCountedByUser(t *testing.T) {
	t.Parallel()
	answer := limited(t, &spender{left: 100}, func(*graphapi.Config) {})
	status, text := answer(t.Context(), `{"query":"{agents{id}}"}`)
	require.Equal(t, 200, status, text)
	status, text = answer(t.Context(), `{"query":"{agents{id}}"}`)
	require.Equal(t, 400+int(fault.Exhausted), status)
	require.Contains(t, text, "your GraphQL requests cost more than 3000000 units in a minute; this one costs 70")
}

// TestTheWorkEndsWhenTheClientLeaves sends requests whose clients have gone.
func TestTheWorkEndsWhenTheClientLeaves(t *testing.T) {
	t.Parallel()
	answer := limited(t, nil, func(*graphapi.Config) {})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	body, err := json.Marshal(map[string]any{"query": "{agents{id} images{id} keypairs{access_key}}"})
	require.NoError(t, err)
	_, text := answer(ctx, string(body))
	require.NotContains(t, text, `"access_key":"`, "nothing was read for it")
}
