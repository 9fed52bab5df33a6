package graphapi_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A global id of what belongs to others is as one of nothing: null, without an error that tells more.
func TestGlobalIDsOfOthersAreNothing(t *testing.T) {
	t.Parallel()
	f := fill(t)
	f.exec(`UPDATE images SET scope = 'user', owner_id = $1 WHERE id = $2`, string(f.admin.UserID), f.image)
	for _, id := range []string{
		node("ComputeSessionNode", string(f.session)), node("VirtualFolderNode", f.folder), node("VFolder", f.folder), node("AgentNode", "a1"),
		node("GroupNode", string(f.project())), node("UserNode", string(f.admin.UserID)), node("ImageNode", f.image),
		node("KernelNode", string(f.session)), node("UserV2", string(f.admin.UserID)), node("ComputeSessionNode", "nothing"),
		node("AgentNode", "' OR true --"), node("Nothing", f.folder), node("", ""), "", "%%%", strings.Repeat("A", 4000), f.folder,
	} {
		for who, want := range map[string]bool{"stranger": false, "superadmin": true} {
			got := f.answer(`query($id:ID!){node(id:$id){__typename id}}`, map[string]any{"id": id}, f.people[who])
			require.Empty(t, got.Errors, "%s as %s", id, who)
			if !want {
				require.Equal(t, "null", string(got.Data["node"]), "%s as %s", id, who)
			}
		}
	}
	served := 0
	for _, id := range []string{node("ComputeSessionNode", string(f.session)), node("VirtualFolderNode", f.folder), node("VFolder", f.folder),
		node("AgentNode", "a1"), node("GroupNode", string(f.project())), node("UserNode", string(f.admin.UserID)), node("ImageNode", f.image)} {
		got := f.answer(`query($id:ID!){node(id:$id){id}}`, map[string]any{"id": id}, f.admin)
		require.JSONEq(t, fmt.Sprintf(`{"id":%q}`, id), string(got.Data["node"]))
		served++
	}
	require.Equal(t, 7, served)
}

// What a filter of the newer interface holds is compared and never read as a filter.
func TestTextsOfFiltersAreNotRead(t *testing.T) {
	t.Parallel()
	f := fill(t)
	const users = `query($f:UserV2Filter){adminUsersV2(filter:$f){count}}`
	all := f.answer(users, nil, f.admin)
	require.JSONEq(t, `{"count":4}`, string(all.Data["adminUsersV2"]))
	texts := []string{`" | email != "`, `x") | (is_active == true`, `%`, `_`, `\`, `\"`, `' OR true --`, `]) | (email ilike "%"`, `$1`,
		`"; DROP TABLE users`}
	for _, text := range texts {
		for _, op := range []string{"equals", "iEquals", "contains", "startsWith", "iEndsWith"} {
			got := f.answer(users, map[string]any{"f": map[string]any{"email": map[string]any{op: text}}}, f.admin)
			require.Empty(t, got.Errors, "%s %s", op, text)
			require.JSONEq(t, `{"count":0}`, string(got.Data["adminUsersV2"]), "%s %s", op, text)
		}
		got := f.answer(users, map[string]any{"f": map[string]any{"email": map[string]any{"in": []string{text, "ada@x"}}}}, f.admin)
		require.JSONEq(t, `{"count":1}`, string(got.Data["adminUsersV2"]), text)
		got = f.answer(`query($s:AuditLogScope!){scopedAuditLogsV2(scope:$s){count}}`, map[string]any{"s": map[string]any{
			"entity": []any{map[string]any{"entityType": "SESSION", "entityId": text}}}}, f.admin)
		require.JSONEq(t, `{"count":0}`, string(got.Data["scopedAuditLogsV2"]), text)
		got = f.answer(`query($s:DomainScope!){domainProjectsV2(scope:$s){count}}`, map[string]any{"s": map[string]any{"domainName": text}},
			f.admin)
		require.JSONEq(t, `{"count":0}`, string(got.Data["domainProjectsV2"]), text)
		got = f.answer(`query($id:String!){agent_summary(agent_id:$id){id}}`, map[string]any{"id": text}, f.admin)
		require.Equal(t, "null", string(got.Data["agent_summary"]), text)
		got = f.answer(`query($g:String!){session_pending_queue(resource_group_id:$g){count}}`, map[string]any{"g": text}, f.admin)
		require.JSONEq(t, `{"count":0}`, string(got.Data["session_pending_queue"]), text)
	}

	// What is asked for otherwise is found.
	for filter, want := range map[string]int{
		`{"email":{"iContains":"ADA"}}`: 1, `{"NOT":[{"email":{"equals":"ada@x"}}]}`: 3,
		`{"OR":[{"email":{"equals":"ada@x"}},{"role":{"in":["ADMIN"]}}]}`:           2,
		`{"AND":[{"email":{"endsWith":"@x"}},{"domainName":{"equals":"default"}}]}`: 2, `{"email":{"in":[]}}`: 0,
		`{"email":{"iIn":["ADA@X"]}}`:   1,
		`{"role":{"notEquals":"USER"}}`: 2, `{"email":{"iNotIn":["ADA@X"]}}`: 3, `{"createdAt":{"after":"2000-01-01T00:00:00Z"}}`: 4,
		`{"uuid":{"equals":"` + string(f.admin.UserID) + `"}}`: 1, `{"uuid":{"notIn":["` + string(f.admin.UserID) + `"]}}`: 3,
		`{"status":{"in":["ACTIVE"]}}`: 4,
	} {
		got := f.answerJSON(users, `{"f":`+filter+`}`)
		require.Empty(t, got.Errors, filter)
		require.JSONEq(t, fmt.Sprintf(`{"count":%d}`, want), string(got.Data["adminUsersV2"]), filter)
	}

	// Too much of it is refused, not read.
	deep := strings.Repeat(`{"AND":[`, 40) + `{"email":{"equals":"x"}}` + strings.Repeat(`]}`, 40)
	wide := `{"OR":[` + strings.Repeat(`{"email":{"equals":"x"}},`, 200) + `{}]}`
	for name, filter := range map[string]string{"deep": deep, "wide": wide, "other fields": `{"containerUid":{"equals":1}}`,
		"no id": `{"uuid":{"equals":"x"}}`} {
		got := f.answerJSON(users, `{"f":`+filter+`}`)
		require.Len(t, got.Errors, 1, name)
		require.NotContains(t, got.Errors[0].Message, "the server failed", name)
	}
}

// Lists are paid for as long as they may be, also under many names.
func TestNewListsAreBounded(t *testing.T) {
	t.Parallel()
	f := fill(t)
	aliases := func(n int, field string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, " a%d: %s", i, field)
		}
		return "{" + b.String() + "}"
	}
	for query, want := range map[string]string{
		aliases(20, "agent_summary_list(limit:1000,offset:0){items{id status}}"):                                          "units of cost",
		aliases(45, "user_nodes(first:100){edges{node{id email username full_name status role domain_name created_at}}}"): "units of cost",
		aliases(49, "adminUsersV2(limit:100){edges{node{id basicInfo{email fullName} status{status}}}}"):                  "units of cost",
		aliases(60, "myClientIp{clientIp}"):                                        "queries in one operation",
		"{agent_summary_list(limit:1001,offset:0){items{id}}}":                     "1 to 1000 items",
		"{user_list(limit:101,offset:0){items{id}}}":                               "1 to 100 items",
		"{agent_summary_list(limit:-1,offset:0){items{id}}}":                       "1 to 1000 items",
		`{agent_summary_list(limit:1,offset:0,filter:"addr == \"x\""){items{id}}}`: "no field",
		`{agent_nodes(first:-1){count}}`:                                           "first is -1",
		`{user_nodes(before:"x"){count}}`:                                          "not paged backwards",
		`{image_nodes(scope_id:"system", after:"x"){count}}`:                       "not of this list",
	} {
		got := f.answer(query, nil, f.admin)
		require.NotEmpty(t, got.Errors, query)
		require.Contains(t, got.Errors[0].Message, want, query)
	}
}
