package graphapi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/graphapi"
	"berth.dev/berth/internal/manager/managertest"
)

// ask is a way to send a query as the administrator, and one to run SQL.
func ask(t *testing.T) (query func(text string, vars map[string]any) map[string]any, exec func(sql string, args ...any)) {
	t.Helper()
	w := managertest.New(t)
	h := graphapi.New(graphapi.Deps{Nouns: w.Set, Log: w.Deps.Log, Actor: func(context.Context) (authz.Actor, bool) { return w.Admin, true },
		Fail: func(_ http.ResponseWriter, _ *http.Request, err error) { t.Error(err) }})
	query = func(text string, vars map[string]any) map[string]any {
		t.Helper()
		body, err := json.Marshal(map[string]any{"query": text, "variables": vars})
		require.NoError(t, err)
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/admin/gql", strings.NewReader(string(body)))
		r.Header.Set("Content-Type", "application/json")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var out struct {
			Data   map[string]any
			Errors []any
		}
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &out), w.Body.String())
		require.Empty(t, out.Errors, w.Body.String())
		return out.Data
	}
	return query, func(sql string, args ...any) {
		t.Helper()
		_, err := w.Store.Pool().Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
}

func TestPresetsAreKept(t *testing.T) {
	t.Parallel()
	query, _ := ask(t)
	const create = `mutation($name: String!, $input: CreateResourcePresetInput!) {
		create_resource_preset(name: $name, props: $input) { ok msg resource_preset { id name resource_slots shared_memory } } }`
	made := query(create, map[string]any{"name": "tiny", "input": map[string]any{
		"resource_slots": `{"cpu": 0.5, "mem": "512m"}`, "shared_memory": "64m",
	}})["create_resource_preset"].(map[string]any)
	require.Equal(t, true, made["ok"], made["msg"])
	p := made["resource_preset"].(map[string]any)
	require.JSONEq(t, `{"cpu":"0.5","mem":"536870912"}`, p["resource_slots"].(string))
	require.EqualValues(t, 64<<20, p["shared_memory"])

	for _, slots := range []string{`{`, `[]`, `null`, `{"cpu":"1"}`, `{"cpu":{},"mem":"1g"}`, `{"cpu":"-1","mem":"1g"}`} {
		bad := query(create, map[string]any{"name": "bad", "input": map[string]any{
			"resource_slots": slots,
		}})["create_resource_preset"].(map[string]any)
		require.Equal(t, false, bad["ok"], slots)
		require.NotEmpty(t, bad["msg"])
		require.Nil(t, bad["resource_preset"])
	}
	done := query(`mutation($id: UUID!, $props: ModifyResourcePresetInput!) { modify_resource_preset(id: $id, props: $props) { ok msg } }`,
		map[string]any{"id": p["id"], "props": map[string]any{
			"resource_slots": `{"cpu": "1", "mem": 1073741824}`,
		}})["modify_resource_preset"].(map[string]any)
	require.Equal(t, true, done["ok"], done["msg"])
	one := query(
		`query($name: String!) { resource_preset(name: $name) { name resource_slots shared_memory scaling_group_name } none: `+
			`resource_preset(name: "x") { name } }`,
		map[string]any{"name": "tiny"},
	)
	require.Nil(t, one["none"])
	require.JSONEq(t, `{"cpu":"1","mem":"1073741824"}`, one["resource_preset"].(map[string]any)["resource_slots"].(string))
	require.Equal(
		t, true,
		query(`mutation { delete_resource_preset(name: "tiny") { ok msg } }`, nil)["delete_resource_preset"].(map[string]any)["ok"],
	)
	require.Equal(
		t, false,
		query(`mutation { delete_resource_preset(name: "tiny") { ok msg } }`, nil)["delete_resource_preset"].(map[string]any)["ok"],
	)
	require.Equal(t, false, query(`mutation { delete_resource_preset { ok msg } }`, nil)["delete_resource_preset"].(map[string]any)["ok"])
	require.Len(t, query(`{ resource_presets { name resource_slots shared_memory } }`, nil)["resource_presets"], 4)
}

func TestIdleChecksOfSessions(t *testing.T) {
	t.Parallel()
	query, exec := ask(t)
	running, waiting := uuid.NewString(), uuid.NewString()
	for id, status := range map[string]string{running: "RUNNING", waiting: "PENDING"} {
		exec(
			`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots,
				started_at)
			SELECT $1::uuid, $2, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', $2, '{}', now() FROM keypairs k,
				projects p`,
			id,
			status,
		)
	}
	list := query(
		`{ compute_session_list(limit: 10, offset: 0) { items { name idle_checks } } }`, nil,
	)["compute_session_list"].(map[string]any)["items"].([]any)
	require.Len(t, list, 2)
	for _, item := range list {
		s := item.(map[string]any)
		var checks map[string]struct {
			Remaining *float64 `json:"remaining"`
			Kind      string   `json:"remaining_time_type"`
			Extra     any      `json:"extra"`
		}
		require.NoError(t, json.Unmarshal([]byte(s["idle_checks"].(string)), &checks))
		if s["name"] == "PENDING" {
			require.Empty(t, checks)
			continue
		}
		require.Len(t, checks, 1)
		require.Equal(t, "expire_after", checks["network_timeout"].Kind)
		require.InDelta(t, 3600, *checks["network_timeout"].Remaining, 60)
	}
	require.NotEmpty(
		t, query(`query($id: UUID!) { session: compute_session(id: $id) { id idle_checks } }`, map[string]any{"id": running})["session"],
	)
}
