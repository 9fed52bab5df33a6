package graphapi_test

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/wire/storage"
)

// proxies are a storage proxy that has what it is asked for, and one that is away.
type proxies struct{ limit *atomic.Pointer[int64] }

func (proxies) View() (live, gone []storage.Presence) {
	for _, p := range []string{
		`{"proxy":"local","node":"n1","client_url":"https://files.example","volumes":[{"name":"volume1","backend":"posix","path":"/vol1",
			"fsprefix":".","capabilities":["vfolder"],"capacity_bytes":1000,"used_bytes":250},
			{"name":"volume2","backend":"xfs","path":"/vol2","fsprefix":".","capabilities":["vfolder","quota"]}]}`,
		`{"proxy":"gone","node":"n2","volumes":[{"name":"old","backend":"posix","path":"/old","capabilities":["vfolder"]}]}`,
	} {
		var one storage.Presence
		if err := json.Unmarshal([]byte(p), &one); err != nil {
			panic(err)
		}
		if one.Proxy == "gone" {
			gone = append(gone, one)
			continue
		}
		live = append(live, one)
	}
	return live, gone
}

func (proxies) ClientURL(string) (string, error) { return "https://files.example", nil }

func (p proxies) Do(_ context.Context, proxy, method, path string, request, reply any) error {
	if proxy != "local" {
		return fault.Unavailablef("no storage proxy %s is connected", proxy)
	}
	switch r := reply.(type) {
	case *storage.ScopeReply:
		*r = storage.ScopeReply{UsedBytes: new(int64(30)), LimitBytes: p.limit.Load()}
	case *json.RawMessage:
		*r = json.RawMessage(`{"metric":{"iops_read":1.5}}`)
	}
	if q, ok := request.(storage.ScopeRequest); ok && method != http.MethodGet {
		p.limit.Store(nil)
		if q.Options != nil {
			p.limit.Store(&q.Options.LimitBytes)
		}
	}
	return nil
}

// newFolderDesk is a desk with folders, whose domain allows everything on all hosts.
func newFolderDesk(t testing.TB, change ...func(*nouns.Deps)) *desk {
	t.Helper()
	d := newDesk(t, append(change, func(d *nouns.Deps) { d.Proxies = proxies{new(atomic.Pointer[int64])} })...)
	all, err := json.Marshal(folder.AllPermissions())
	require.NoError(t, err)
	d.exec(
		`UPDATE domains SET allowed_vfolder_hosts = jsonb_build_object('local:volume1', $1::jsonb, 'local:volume2', $1::jsonb, `+
			`'gone:old', $1::jsonb)`,
		string(all),
	)
	return d
}

func (d *desk) exec(sql string, args ...any) {
	d.t.Helper()
	_, err := d.store.Pool().Exec(d.t.Context(), sql, args...)
	require.NoError(d.t, err)
}

// person adds a user of the domain "default", a member of its project if wanted, and returns who that is.
func (d *desk) person(name string, role authz.Role, member bool) authz.Actor {
	d.t.Helper()
	a := authz.Actor{
		UserID: cluster.UserID(uuid.NewString()), Email: name + "@x", Username: name, Role: role, Domain: "default",
		AccessKey: cluster.AccessKey("AK" + strings.ToUpper(name)),
	}
	d.exec(
		`INSERT INTO users (id, username, email, domain_name, resource_policy, role) VALUES ($1, $2, $3, 'default', 'default', $4)`,
		a.UserID, name, a.Email, role,
	)
	key, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	require.NoError(d.t, err)
	sealed, err := key.Seal("secret", "keypair "+string(a.AccessKey))
	require.NoError(d.t, err)
	d.exec(
		`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, a.AccessKey, sealed,
		a.UserID,
	)
	if member {
		d.exec(`INSERT INTO project_members (project_id, user_id) SELECT id, $1 FROM projects WHERE name = 'default'`, a.UserID)
		a.Projects = []cluster.ProjectID{d.project()}
	}
	return a
}

func (d *desk) project() cluster.ProjectID {
	d.t.Helper()
	var id string
	require.NoError(d.t, d.store.Pool().QueryRow(d.t.Context(), `SELECT id FROM projects WHERE name = 'default'`).Scan(&id))
	return cluster.ProjectID(id)
}

// The documents of this test ask for what the clients' operations ask for, field by field.
const (
	nodeFields = `id status permissions name host quota_scope_id ownership_type user user_email group group_name ` +
		`usage_mode max_files max_size created_at last_used num_files cur_size cloneable row_id creator ` +
		`permission __isNode:__typename __typename`
	folderFields = `id host name user group creator status unmanaged_path usage_mode permission ownership_type max_files ` +
		`max_size created_at last_used num_files cur_size cloneable`
	vfolderMade = `vfolder{id vfolderStatus:status host metadata{name usageMode quotaScopeId cloneable} ` +
		`accessControl{permission ownershipType} ownership{userId projectId creatorEmail} ` +
		`__isNode:__typename __typename}`
	nodesPage = `query P($scopeId:ScopeField $offset:Int $first:Int $filter:String $order:String $permission:VFolderPermissionValueField
		$filterForActiveCount:String $filterForDeletedCount:String) {
		vfolder_nodes(scope_id:$scopeId, offset:$offset, first:$first, filter:$filter, order:$order,
			permission:$permission){edges{node{` + nodeFields + `}} count}
		active:vfolder_nodes(scope_id:$scopeId, first:0, offset:0, filter:$filterForActiveCount, permission:$permission){count edges{cursor}}
		deleted:vfolder_nodes(scope_id:$scopeId, first:0, offset:0, filter:$filterForDeletedCount, permission:$permission){count}}
		fragment Unused on VFolder { id metadata{name} }`
	createMine  = `mutation M($input:CreateVFolderV2Input!){createVfolderV2(input:$input){` + vfolderMade + `}}`
	createTeams = `mutation M($projectId:UUID! ` +
		`$input:CreateVFolderInScopeInput!){createVFolderInProject(projectId:$projectId, input:$input){` + vfolderMade + `}}`
	explore = `query($vfolderId:UUID!){vfolderNode:vfolderV2(vfolderId:$vfolderId){unmanagedPath host id ` +
		`metadata{name usageMode cloneable createdAt quotaScopeId} ownership{projectId ` +
		`project{basicInfo{name} id} userId creatorId user{basicInfo{email} id}} status ` +
		`accessControl{permission ownershipType}}}`
	notifications = `query($id:ID!){node(id:$id){__typename __isNode:__typename ...on VFolder{__typename id metadata{name}} ` +
		`...on VirtualFolderNode{__typename status row_id id name} id}}`
)

type madeFolder struct {
	ID            string
	VfolderStatus string
	Host          string
	Metadata      struct{ Name, UsageMode, QuotaScopeID string }
	AccessControl struct{ Permission, OwnershipType string }
	Ownership     struct{ UserID, ProjectID, CreatorEmail *string }
	IsNode        string `json:"__isNode"`
}

// create makes a folder as the actor and returns it with its id.
func (d *desk) create(name string) (madeFolder, string) {
	d.t.Helper()
	var out struct{ CreateVfolderV2 struct{ Vfolder madeFolder } }
	d.ask(
		createMine,
		map[string]any{
			"input": map[string]any{"name": name, "host": "local:volume1", "usageMode": "general", "permission": "rw", "cloneable": true},
		},
		&out,
	)
	return out.CreateVfolderV2.Vfolder, rawID(d.t, out.CreateVfolderV2.Vfolder.ID)
}

func rawID(t testing.TB, global string) string {
	t.Helper()
	raw, err := base64.StdEncoding.DecodeString(global)
	require.NoError(t, err)
	_, id, _ := strings.Cut(string(raw), ":")
	return id
}

type nodes struct {
	Edges []struct{ Node map[string]any }
	Count int
}

func (n nodes) names() []string {
	out := []string{}
	for _, e := range n.Edges {
		out = append(out, e.Node["name"].(string))
	}
	return out
}

func TestFolderNodes(t *testing.T) {
	t.Parallel()
	d := newFolderDesk(t)
	ada, bob, eve := d.person("ada", authz.RoleUser, true), d.person("bob", authz.RoleUser, true), d.person("eve", authz.RoleUser, false)
	d.actor = ada
	made, id := d.create("data")
	require.Equal(
		t,
		[]string{"READY", "local:volume1", "data", "GENERAL", "user:" + string(ada.UserID), "READ_WRITE", "USER", "ada@x", "VFolder"},
		[]string{
			made.VfolderStatus, made.Host, made.Metadata.Name, made.Metadata.UsageMode, made.Metadata.QuotaScopeID,
			made.AccessControl.Permission, made.AccessControl.OwnershipType, *made.Ownership.CreatorEmail, made.IsNode,
		},
	)
	require.Nil(t, made.Ownership.ProjectID)
	d.create(".local")
	for i := range 4 {
		d.create(fmt.Sprintf("n%d", i))
	}
	d.exec(`UPDATE folders SET status = 'delete-pending' WHERE name = 'n3'`)

	// The list of the data page: a page and two counts.
	var page struct {
		Nodes   nodes `json:"vfolder_nodes"`
		Active  nodes
		Deleted nodes
	}
	vars := map[string]any{
		"scopeId": "project:" + string(d.project()), "offset": 0, "first": 2,
		"filter": `status != "DELETE_PENDING" & status != "delete-complete"`, "order": "-name", "permission": nil,
		"filterForActiveCount":  `(status == "READY") | (status == "MOUNTED")`,
		"filterForDeletedCount": `status in ["DELETE_PENDING", "DELETE_ONGOING"]`,
	}
	d.ask(nodesPage, vars, &page)
	require.Equal(t, []string{"n2", "n1"}, page.Nodes.names())
	require.Equal(t, []int{5, 5, 1}, []int{page.Nodes.Count, page.Active.Count, page.Deleted.Count})
	require.Empty(t, page.Active.Edges, "first 0 counts only")
	vars["offset"] = 4
	d.ask(nodesPage, vars, &page)
	require.Equal(t, []string{".local"}, page.Nodes.names())
	node := page.Nodes.Edges[0].Node
	require.Equal(t, "VirtualFolderNode", node["__typename"])
	require.Equal(t, node["row_id"], rawID(t, node["id"].(string)))
	require.ElementsMatch(
		t,
		[]any{
			"read_attribute", "update_attribute", "delete_vfolder", "read_content", "write_content", "delete_content", "mount_ro",
			"mount_rw", "mount_wd", "clone", "assign_permission_to_others",
		},
		node["permissions"],
	)
	require.Equal(
		t, []any{"ready", "user", "general", "rw"}, []any{node["status"], node["ownership_type"], node["usage_mode"], node["permission"]},
	)
	require.Nil(t, node["num_files"], "what was not counted is not zero")

	var named struct {
		Nodes nodes `json:"vfolder_nodes"`
	}
	names := func(filter string) []string {
		d.ask(
			`query($filter:String!){vfolder_nodes(filter:$filter, permission:"read_attribute"){edges{node{name status id}} count}}`,
			map[string]any{"filter": filter}, &named,
		)
		return named.Nodes.names()
	}
	require.ElementsMatch(t, []string{"data", "n0", "n1", "n2", "n3"}, names(`(! name ilike ".%")&(usage_mode == "general")`))
	require.Equal(t, []string{"data"}, names(`row_id == "`+strings.ReplaceAll(id, "-", "")+`"`))
	require.Equal(t, []string{"data"}, names(`name == "data"`))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(filter:"moon == 1"){count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(scope_id:"moon:1"){count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(permission:"moon"){count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(first:-1){count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(last:3){count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_nodes(after:"xx"){count}}`, nil, nil))

	// Cursors walk over everything once.
	var walked []string
	for after := any(nil); ; {
		var p struct {
			Nodes struct {
				Edges    []struct{ Node struct{ Name string } }
				PageInfo struct {
					HasNextPage bool
					EndCursor   string
				}
			} `json:"vfolder_nodes"`
		}
		d.ask(
			`query($after:String){vfolder_nodes(first:4, after:$after, order:"name"){edges{cursor node{name}} `+
				`pageInfo{hasNextPage hasPreviousPage startCursor endCursor}}}`,
			map[string]any{"after": after}, &p,
		)
		for _, e := range p.Nodes.Edges {
			walked = append(walked, e.Node.Name)
		}
		if !p.Nodes.PageInfo.HasNextPage {
			break
		}
		after = p.Nodes.PageInfo.EndCursor
	}
	require.ElementsMatch(t, []string{".local", "data", "n0", "n1", "n2", "n3"}, walked)

	// The explorer, by any spelling of the id.
	var seen struct{ VfolderNode *map[string]any }
	for _, ref := range []string{id, strings.ReplaceAll(id, "-", "")} {
		d.ask(explore, map[string]any{"vfolderId": ref}, &seen)
		require.NotNil(t, seen.VfolderNode)
		require.Equal(
			t, "ada@x", (*seen.VfolderNode)["ownership"].(map[string]any)["user"].(map[string]any)["basicInfo"].(map[string]any)["email"],
		)
	}
	var one struct {
		Node map[string]any `json:"vfolder_node"`
	}
	for _, ref := range []string{id, node["id"].(string)} {
		d.ask(`query($vfolderUUID:String!){vfolder_node(id:$vfolderUUID){id name}}`, map[string]any{"vfolderUUID": ref}, &one)
		require.NotNil(t, one.Node, ref)
	}
	var again struct{ Node map[string]any }
	d.ask(notifications, map[string]any{"id": made.ID}, &again)
	require.Equal(t, map[string]any{"name": "data"}, again.Node["metadata"])
	d.ask(notifications, map[string]any{"id": node["id"]}, &again)
	require.Equal(t, ".local", again.Node["name"])
	d.ask(notifications, map[string]any{"id": base64.StdEncoding.EncodeToString([]byte("Moon:" + id))}, &again)
	require.Nil(t, again.Node)

	// Others see what is theirs.
	d.exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'ro')`, id, bob.UserID)
	d.actor = bob
	require.Equal(t, []string{"data"}, names(""))
	d.ask(nodesPage, map[string]any{"permission": "mount_ro"}, &page)
	require.ElementsMatch(t, []any{"mount_ro", "read_attribute", "read_content"}, page.Nodes.Edges[0].Node["permissions"])
	d.ask(nodesPage, map[string]any{"permission": "mount_rw"}, &page)
	require.Empty(t, page.Nodes.Edges)
	d.actor = eve
	require.Empty(t, names(""))
	d.ask(explore, map[string]any{"vfolderId": id}, &seen)
	require.Nil(t, seen.VfolderNode)
	d.actor = d.admin
	require.Len(t, names(""), 6)
}

func TestFolderLists(t *testing.T) {
	t.Parallel()
	d := newFolderDesk(t)
	ada, bob := d.person("ada", authz.RoleUser, true), d.person("bob", authz.RoleUser, true)
	d.actor = ada
	_, id := d.create("data")
	d.create("other")
	d.exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'ro')`, id, bob.UserID)
	d.actor = d.admin
	var team struct{ CreateVFolderInProject struct{ Vfolder madeFolder } }
	d.ask(
		createTeams,
		map[string]any{
			"projectId": d.project(),
			"input": map[string]any{
				"name": "team", "usageMode": "DATA", "permission": "READ_ONLY", "host": "local:volume1", "cloneable": false,
			},
		},
		&team,
	)
	made := team.CreateVFolderInProject.Vfolder
	require.Equal(
		t, []string{"READ_ONLY", "GROUP", "DATA", string(d.project())},
		[]string{made.AccessControl.Permission, made.AccessControl.OwnershipType, made.Metadata.UsageMode, *made.Ownership.ProjectID},
	)

	list := func(field, args string, vars map[string]any) (names []string, total int) {
		var out map[string]struct {
			Items []map[string]any
			Total int `json:"total_count"`
		}
		if vars == nil {
			vars = map[string]any{}
		}
		vars["limit"], vars["offset"] = 20, 0
		d.ask(
			`query($limit:Int! $offset:Int! $filter:String $order:String $group_id:UUID){`+field+`(limit:$limit, offset:$offset, filter:$filter,
				order:$order`+args+`){items{`+folderFields+`} total_count}}`,
			vars, &out,
		)
		names = []string{}
		for _, i := range out[field].Items {
			names = append(names, i["name"].(string))
		}
		return names, out[field].Total
	}
	check := func(who authz.Actor, all, own, invited, project []string) {
		t.Helper()
		d.actor = who
		for field, want := range map[string][]string{
			"vfolder_list": all, "vfolder_own_list": own, "vfolder_invited_list": invited, "vfolder_project_list": project,
		} {
			names, total := list(field, "", nil)
			require.ElementsMatch(t, want, names, field)
			require.Equal(t, len(want), total)
		}
	}
	check(ada, []string{"data", "other", "team"}, []string{"data", "other"}, []string{}, []string{"team"})
	check(bob, []string{"data", "team"}, []string{}, []string{"data"}, []string{"team"})
	check(d.admin, []string{"data", "other", "team"}, []string{}, []string{}, []string{"team"})
	names, _ := list("vfolder_list", ", group_id:$group_id", map[string]any{"group_id": string(d.project()), "filter": nil, "order": nil})
	require.Equal(t, []string{"team"}, names)
	d.actor = ada
	names, _ = list(
		"vfolder_list",
		"",
		map[string]any{
			"filter": `status == "READY" & permission in ["READ_ONLY", "READ_WRITE"] & ownership_type == "USER" & creator ilike "%@x"`,
			"order":  "-name",
		},
	)
	require.Equal(t, []string{"other", "data"}, names)
	names, _ = list("vfolder_list", "", map[string]any{"filter": `name == "a\"b" | name == "data"`})
	require.Equal(t, []string{"data"}, names)
	require.NotEmpty(t, d.ask(`{vfolder_list(limit:0, offset:-1){total_count}}`, nil, nil))
	require.NotEmpty(t, d.ask(`{vfolder_own_list(limit:1, offset:0, access_key:"OTHER"){total_count}}`, nil, nil))

	for _, bad := range []map[string]any{{
		"name": "a/b",
	}, {
		"name": "",
	}, {
		"name": "data",
	}, {
		"name": "x", "permission": "xx",
	}, {
		"name": "x", "usageMode": "moon",
	}, {
		"name": "x", "host": "no:where",
	}, {
		"name": "x", "projectId": "moon",
	}} {
		require.NotEmpty(t, d.ask(createMine, map[string]any{"input": bad}, nil), bad)
	}
	require.NotEmpty(
		t, d.ask(createTeams, map[string]any{"projectId": d.project(), "input": map[string]any{"name": "mine"}}, nil),
		"members do not make folders of projects",
	)
}

func TestStorageAndQuotas(t *testing.T) {
	t.Parallel()
	d := newFolderDesk(t)
	ada := d.person("ada", authz.RoleUser, true)
	var volumes struct {
		List struct {
			Items []map[string]any
			Total int `json:"total_count"`
		} `json:"storage_volume_list"`
	}
	const list = `query($offset:Int! $limit:Int! $filter:String $order:String){storage_volume_list(offset:$offset, ` +
		`limit:$limit, filter:$filter, order:$order){items{id backend capabilities path fsprefix ` +
		`performance_metric hardware_metadata usage proxy} total_count}}`
	d.ask(list, map[string]any{"offset": 0, "limit": 100, "order": "-id"}, &volumes)
	require.Equal(t, 3, volumes.List.Total)
	v := volumes.List.Items[1]
	require.Equal(
		t,
		[]any{
			"local:volume1", "posix", []any{"vfolder"}, "/vol1", "local", `{"metric":{"iops_read":1.5}}`,
			`{"capacity_bytes":1000,"used_bytes":250}`,
		},
		[]any{v["id"], v["backend"], v["capabilities"], v["path"], v["proxy"], v["performance_metric"], v["usage"]},
	)
	gone := volumes.List.Items[2]
	require.Equal(t, "gone:old", gone["id"])
	require.Nil(t, gone["performance_metric"], "a proxy that is away leaves the rest")
	require.Contains(t, gone["hardware_metadata"], "unavailable")
	d.ask(list, map[string]any{"offset": 0, "limit": 1, "filter": `(proxy == "local") & capabilities contains "quota"`}, &volumes)
	require.Equal(t, "local:volume2", volumes.List.Items[0]["id"])
	require.NotEmpty(t, d.ask(list, map[string]any{"offset": 0, "limit": 1, "filter": "moon == 1"}, nil))
	var one struct {
		Volume map[string]any `json:"storage_volume"`
	}
	d.ask(`query($id:String){storage_volume(id:$id){id capabilities backend path usage}}`, map[string]any{"id": "local:volume1"}, &one)
	require.Equal(t, "/vol1", one.Volume["path"])
	d.ask(`query($id:String!){storage_volume(id:$id){id}}`, map[string]any{"id": "no:where"}, &one)
	require.Nil(t, one.Volume)

	var perms struct {
		P struct {
			List []string `json:"vfolder_host_permission_list"`
		} `json:"vfolder_host_permissions"`
	}
	d.actor = ada
	d.ask(`{vfolder_host_permissions{vfolder_host_permission_list}}`, nil, &perms)
	require.Equal(
		t,
		[]string{
			"create-vfolder", "modify-vfolder", "delete-vfolder", "mount-in-session", "upload-file", "download-file", "invite-others",
			"set-user-specific-permission",
		},
		perms.P.List,
	)
	require.NotEmpty(t, d.ask(list, map[string]any{"offset": 0, "limit": 1}, nil), "volumes are for administrators")

	d.create("data")
	scope := "user:" + string(ada.UserID)
	vars := map[string]any{"quota_scope_id": scope, "storage_host_name": "local:volume1", "skip": false}
	const ask = `query($quota_scope_id:String! $storage_host_name:String! ` +
		`$skip:Boolean!){quota_scope(storage_host_name:$storage_host_name, quota_scope_id:$quota_scope_id) ` +
		`@skip(if:$skip){id quota_scope_id storage_host_name details{hard_limit_bytes usage_bytes ` +
		`usage_count}}}`
	type quota struct {
		Scope   string `json:"quota_scope_id"`
		Host    string `json:"storage_host_name"`
		Details struct {
			Limit *int64 `json:"hard_limit_bytes"`
			Used  *int64 `json:"usage_bytes"`
		}
	}
	var q struct {
		Q *quota `json:"quota_scope"`
	}
	d.ask(ask, vars, &q)
	require.Equal(t, scope, q.Q.Scope)
	require.EqualValues(t, 30, *q.Q.Details.Used)
	require.Nil(t, q.Q.Details.Limit)
	d.ask(ask, map[string]any{"quota_scope_id": scope, "storage_host_name": "local:volume1", "skip": true}, nil)
	const set = `mutation($quota_scope_id:String! $storage_host_name:String! ` +
		`$props:QuotaScopeInput!){set_quota_scope(quota_scope_id:$quota_scope_id, ` +
		`storage_host_name:$storage_host_name, props:$props){quota_scope{id quota_scope_id storage_host_name ` +
		`details{hard_limit_bytes}}}}`
	const unset = `mutation($quota_scope_id:String! ` +
		`$storage_host_name:String!){unset_quota_scope(quota_scope_id:$quota_scope_id, ` +
		`storage_host_name:$storage_host_name){quota_scope{id quota_scope_id storage_host_name ` +
		`details{hard_limit_bytes}}}}`
	vars["props"] = map[string]any{"hard_limit_bytes": 1 << 40}
	require.NotEmpty(t, d.ask(set, vars, nil), "limits are set by superadmins")
	require.NotEmpty(
		t,
		d.ask(ask, map[string]any{"quota_scope_id": "user:" + uuid.NewString(), "storage_host_name": "local:volume1", "skip": false}, nil),
		"of strangers nothing is told",
	)
	d.actor = d.admin
	var now struct {
		Set struct {
			Scope quota `json:"quota_scope"`
		} `json:"set_quota_scope"`
		Unset struct {
			Scope quota `json:"quota_scope"`
		} `json:"unset_quota_scope"`
	}
	d.ask(set, vars, &now)
	require.EqualValues(t, 1<<40, *now.Set.Scope.Details.Limit)
	d.ask(unset, vars, &now)
	require.Nil(t, now.Unset.Scope.Details.Limit)
	for _, bad := range []map[string]any{{
		"quota_scope_id": "moon:1", "storage_host_name": "local:volume1",
	}, {
		"quota_scope_id": scope, "storage_host_name": "no:where",
	}, {
		"quota_scope_id": scope, "storage_host_name": "x",
	}} {
		bad["props"] = vars["props"]
		require.NotEmpty(t, d.ask(set, bad, nil))
		require.NotEmpty(t, d.ask(unset, bad, nil))
	}

	// The policies that limit folders: everybody sees what holds for them.
	d.exec(`INSERT INTO user_resource_policies (name, max_vfolder_count) VALUES ('vip', 7)`)
	d.actor = ada
	var policies struct {
		Mine  *map[string]any  `json:"user_resource_policy"`
		Other *map[string]any  `json:"other"`
		Team  *map[string]any  `json:"project_resource_policy"`
		All   []map[string]any `json:"user_resource_policies"`
		Teams []map[string]any `json:"project_resource_policies"`
	}
	const panel = `query($name:String!){user_resource_policy{max_vfolder_count id} other:user_resource_policy(name:"vip"){id}
		project_resource_policy(name:$name){max_vfolder_count id}
		user_resource_policies{id name created_at max_vfolder_count max_session_count_per_model_session max_quota_scope_size
			max_customized_image_count} project_resource_policies{id name created_at max_vfolder_count max_quota_scope_size}}`
	d.ask(panel, map[string]any{"name": "default"}, &policies)
	require.Equal(t, map[string]any{"max_vfolder_count": 0.0, "id": "default"}, *policies.Mine)
	require.Nil(t, policies.Other)
	require.Equal(t, "default", (*policies.Team)["id"])
	require.Len(t, policies.All, 1)
	d.actor = d.admin
	d.ask(panel, map[string]any{"name": "default"}, &policies)
	require.NotNil(t, policies.Other)
	require.Len(t, policies.All, 2)
	require.Len(t, policies.Teams, 1)
}

func TestWhatPoliciesAllowOnHosts(t *testing.T) {
	t.Parallel()
	d := newFolderDesk(t)
	ada := d.person("ada", authz.RoleUser, true)
	d.actor = ada
	var panel struct {
		Domain  map[string]any
		Group   map[string]any
		Keypair map[string]any
		User    map[string]any
		Policy  map[string]any `json:"keypair_resource_policy"`
		Domains []map[string]any
		Groups  []map[string]any
	}
	const ask = `query($domainName:String $projectId:UUID! $resourcePolicyName:String $accessKey:String $email:String $type:[String]){
		domain(name:$domainName){name allowed_vfolder_hosts} group(id:$projectId, domain_name:$domainName){allowed_vfolder_hosts}
		keypair_resource_policy(name:$resourcePolicyName){allowed_vfolder_hosts} keypair(domain_name:$domainName,
			access_key:$accessKey){resource_policy id}
		user(domain_name:$domainName, email:$email){id resource_policy groups{id name}} domains(is_active:true){name}
			groups(domain_name:$domainName, is_active:true, type:$type){id is_active name type}}`
	vars := map[string]any{
		"domainName": "default", "projectId": d.project(), "resourcePolicyName": "default", "accessKey": ada.AccessKey, "email": ada.Email,
		"type": []string{"GENERAL"},
	}
	d.ask(ask, vars, &panel)
	require.Contains(t, panel.Domain["allowed_vfolder_hosts"], "gone:old")
	require.Equal(t, "{}", panel.Group["allowed_vfolder_hosts"])
	require.Equal(t, "default", panel.User["resource_policy"])
	require.Equal(t, "default", panel.Keypair["resource_policy"])
	require.Len(t, panel.Domains, 1)
	require.Len(t, panel.Groups, 1)
	vars["type"] = []string{"MODEL_STORE"}
	d.ask(ask, vars, &panel)
	require.Empty(t, panel.Groups)

	const domain = `mutation($name:String! $props:ModifyDomainInput!){modify_domain(name:$name, props:$props){ok msg}}`
	const group = `mutation($gid:UUID! $props:ModifyGroupInput!){modify_group(gid:$gid, props:$props){ok msg}}`
	props := func(hosts string) map[string]any { return map[string]any{"allowed_vfolder_hosts": hosts} }
	const some = `{"local:volume1":["mount-in-session","download-file","download-file"]}`
	require.False(t, d.do("modify_domain", domain, map[string]any{"name": "default", "props": props(some)}).OK)
	require.False(t, d.do("modify_group", group, map[string]any{"gid": d.project(), "props": props(some)}).OK)
	d.actor = d.admin
	for _, bad := range []map[string]any{props("["), props(
		`{"local:volume1":["moon"]}`,
	), props(
		`{"volume1":[]}`,
	), props(
		`{"local:volume1":"mount-in-session"}`,
	), {
		"total_resource_slots": `{"cpu": "many"}`,
	}} {
		require.False(t, d.do("modify_domain", domain, map[string]any{"name": "default", "props": bad}).OK, bad)
		require.False(t, d.do("modify_group", group, map[string]any{"gid": d.project(), "props": bad}).OK, bad)
	}
	require.False(t, d.do("modify_domain", domain, map[string]any{"name": "nowhere", "props": props(some)}).OK)
	require.False(t, d.do("modify_group", group, map[string]any{"gid": uuid.NewString(), "props": props(some)}).OK)
	require.True(t, d.do("modify_domain", domain, map[string]any{"name": "default", "props": props(`{}`)}).OK)
	require.True(t, d.do("modify_group", group, map[string]any{"gid": d.project(), "props": props(some)}).OK)
	d.actor = ada
	d.ask(ask, vars, &panel)
	require.JSONEq(t, `{"local:volume1":["download-file","mount-in-session"]}`, panel.Group["allowed_vfolder_hosts"].(string))
	require.Contains(
		t, d.ask(createMine, map[string]any{"input": map[string]any{"name": "x", "host": "local:volume1"}}, nil)[0], "create-vfolder",
		"what is not allowed any more is refused",
	)
}
