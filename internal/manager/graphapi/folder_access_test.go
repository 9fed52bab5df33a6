package graphapi_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/authz"
)

// Every field of folders, asked by everybody who may come by: a value for those who may, null or a refusal for others.
func TestWhoMayAskWhatAboutFolders(t *testing.T) {
	t.Parallel()
	d := newFolderDesk(t)
	people := map[string]authz.Actor{"superadmin": d.admin}
	for _, p := range []struct {
		name   string
		role   authz.Role
		member bool
	}{{
		"owner", authz.RoleUser, false,
	}, {
		"reader", authz.RoleUser, false,
	}, {
		"member", authz.RoleUser, true,
	}, {
		"stranger", authz.RoleUser, false,
	}, {
		"manager", authz.RoleAdmin, false,
	},
		{"foreign", authz.RoleAdmin, false}, {"monitor", authz.RoleMonitor, false}} {
		people[p.name] = d.person(p.name, p.role, p.member)
	}
	_, err := d.store.AddDomain(t.Context(), "elsewhere", nil)
	require.NoError(t, err)
	foreign := people["foreign"]
	foreign.Domain = "elsewhere"
	people["foreign"] = foreign
	d.exec(`UPDATE users SET domain_name = 'elsewhere' WHERE id = $1`, foreign.UserID)
	d.actor = people["owner"]
	_, id := d.create("data")
	d.exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'ro')`, id, people["reader"].UserID)

	const everybody = "owner reader member stranger manager foreign monitor superadmin"
	const seers = "owner reader manager monitor superadmin"
	folder, scope, volume := `"`+id+`"`, `"user:`+string(people["owner"].UserID)+`"`, `"local:volume1"`
	covered := map[string]bool{}
	n := 0
	for _, c := range []struct {
		field string
		ask   string // of a query, or a mutation when it begins with that word; NEW is a new name
		who   string // gets a value, or one that contains has
		has   string
	}{
		{"node", `{x:node(id:"` + globalFolder(id) + `"){id}}`, seers, ""},
		{"vfolder", `{x:vfolder(id:` + folder + `){id}}`, seers, ""},
		{"vfolder_node", `{x:vfolder_node(id:` + folder + `){id}}`, seers, ""},
		{"vfolder_node", `{x:vfolder_node(id:` + folder + `, permission:"read_content"){id}}`, "owner reader manager superadmin", ""},
		{"vfolder_node", `{x:vfolder_node(id:` + folder + `, permission:"write_content"){id}}`, "owner manager superadmin", ""},
		{"vfolder_node", `{x:vfolder_node(id:` + folder + `, permission:"delete_vfolder"){id}}`, "owner manager superadmin", ""},
		{"vfolderV2", `{x:vfolderV2(vfolderId:` + folder + `){id}}`, seers, ""},
		{"vfolder_list", `{x:vfolder_list(limit:9, offset:0){items{name}}}`, seers, "data"},
		{"vfolder_own_list", `{x:vfolder_own_list(limit:9, offset:0){items{name}}}`, "owner", "data"},
		{"vfolder_invited_list", `{x:vfolder_invited_list(limit:9, offset:0){items{name}}}`, "reader", "data"},
		{"vfolder_project_list", `{x:vfolder_project_list(limit:9, offset:0){items{name}}}`, "", "data"},
		{"vfolder_nodes", `{x:vfolder_nodes{edges{node{name}}}}`, seers, "data"},
		{"vfolder_nodes", `{x:vfolder_nodes(filter:"name == \"data\"", first:0){count}}`, seers, `"count":1`},
		{"vfolder_nodes", `{x:vfolder_nodes(permission:"update_attribute"){edges{node{name}}}}`, "owner manager superadmin", "data"},
		{
			"quota_scope", `{x:quota_scope(storage_host_name:` + volume + `, quota_scope_id:` + scope + `){id}}`,
			"owner manager monitor superadmin", "",
		},
		{
			"set_quota_scope",
			`mutation{x:set_quota_scope(storage_host_name:` + volume + `, quota_scope_id:` + scope + `,
				props:{hard_limit_bytes:5}){quota_scope{id}}}`,
			"superadmin", "",
		},
		{
			"set_quota_scope",
			`mutation{x:set_quota_scope(storage_host_name:` + volume + `, quota_scope_id:` + scope + `, props:{}){quota_scope{id}}}`,
			"superadmin", "",
		},
		{
			"unset_quota_scope",
			`mutation{x:unset_quota_scope(storage_host_name:` + volume + `, quota_scope_id:` + scope + `){quota_scope{id}}}`, "superadmin",
			"",
		},
		{"storage_volume", `{x:storage_volume(id:` + volume + `){id performance_metric}}`, "monitor superadmin", ""},
		{"storage_volume", `{x:storage_volume(id:` + volume + `){id performance_metric}}`, "superadmin", "iops"},
		{"storage_volume_list", `{x:storage_volume_list(limit:9, offset:0){items{id}}}`, "monitor superadmin", ""},
		{"vfolder_host_permissions", `{x:vfolder_host_permissions{vfolder_host_permission_list}}`, everybody, ""},
		{"user_resource_policy", `{x:user_resource_policy{name}}`, everybody, ""},
		{"user_resource_policies", `{x:user_resource_policies{name}}`, everybody, "default"},
		{"project_resource_policy", `{x:project_resource_policy(name:"default"){name}}`, "member manager foreign monitor superadmin", ""},
		{"project_resource_policies", `{x:project_resource_policies{name}}`, "member manager foreign monitor superadmin", "default"},
		{
			"createVfolderV2", `mutation{x:createVfolderV2(input:{name:"NEW", host:` + volume + `}){vfolder{id}}}`,
			"owner reader member stranger manager superadmin", "",
		},
		{"createVfolderV2", `mutation{x:createVfolderV2(input:{name:"NEW", host:` + volume + `, projectId:"` + string(d.project()) +
			`"}){vfolder{id}}}`, "manager superadmin", ""},
		{"createVFolderInProject", `mutation{x:createVFolderInProject(projectId:"` + string(d.project()) + `", input:{name:"NEW", host:` +
			volume + `}){vfolder{id}}}`, "manager superadmin", ""},
	} {
		covered[c.field] = true
		for name, who := range people {
			d.actor = who
			d.exec(`DELETE FROM folders WHERE id <> $1`, id)
			n++
			var out map[string]json.RawMessage
			errs := d.ask(strings.ReplaceAll(c.ask, "NEW", fmt.Sprintf("new%d", n)), nil, &partial{&out})
			got := len(errs) == 0 && string(out["x"]) != "null" && strings.Contains(string(out["x"]), c.has)
			if want := strings.Contains(" "+c.who+" ", " "+name+" "); got != want {
				t.Errorf("%s by %s: %s, %v; value wanted: %v", c.ask, name, out["x"], errs, want)
			}
			for _, e := range errs {
				if !strings.Contains(seers, name) && strings.Contains(e, "owner@x") {
					t.Errorf("%s by %s tells whose it is: %s", c.ask, name, e)
				}
			}
		}
	}
	text, err := os.ReadFile("folder.graphql")
	require.NoError(t, err)
	for _, part := range regexp.MustCompile(`(?s)extend type (?:Queries|Mutations) \{(.*?)\n\}`).FindAllStringSubmatch(string(text), -1) {
		for _, m := range regexp.MustCompile(`(?m)^  (\w+)[(:]`).FindAllStringSubmatch(part[1], -1) {
			if !covered[m[1]] {
				t.Errorf("nobody asks who may use %s", m[1])
			}
		}
	}
	require.Greater(t, len(covered), 20)
}

func globalFolder(id string) string {
	return base64.StdEncoding.EncodeToString([]byte("VirtualFolderNode:" + id))
}
