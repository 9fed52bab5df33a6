package graphapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/authz"
)

// The queries and mutations of the official client's admin groups "domain" and "group", as it writes them.
func TestDomainsAndProjectsOnTheWire(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var made struct {
		CreateDomain struct {
			OK     bool
			Msg    string
			Domain struct{ Name string }
		} `json:"create_domain"`
	}
	props := map[string]any{"description": "", "is_active": true, "total_resource_slots": `{"cpu": "4"}`, "allowed_vfolder_hosts": `{}`,
		"allowed_docker_registries": []string{"r.example"}, "integration_id": nil}
	errs := d.ask(`mutation($name: String!, $input: DomainInput!) { create_domain(name: $name, props: $input) {
ok msg domain { name description is_active created_at total_resource_slots allowed_vfolder_hosts allowed_docker_registries
integration_id } } }`,
		map[string]any{"name": "physics", "input": props}, &made)
	require.Empty(t, errs)
	require.True(t, made.CreateDomain.OK, made.CreateDomain.Msg)
	require.Equal(t, "physics", made.CreateDomain.Domain.Name)
	var domains struct {
		Domains []struct {
			Name  string
			Slots string `json:"total_resource_slots"`
		}
		Domain struct{ Registries []string } `json:"domain"`
	}
	require.Empty(t, d.ask(`query { domains { name description is_active created_at total_resource_slots allowed_vfolder_hosts
allowed_docker_registries integration_id } }`, nil, &domains))
	require.Len(t, domains.Domains, 2)
	require.JSONEq(t, `{}`, domains.Domains[0].Slots, "never null")
	require.JSONEq(t, `{"cpu":"4"}`, domains.Domains[1].Slots)

	var group struct {
		CreateGroup struct {
			OK    bool
			Msg   string
			Group struct{ ID, Name, DomainName string }
		} `json:"create_group"`
	}
	props = map[string]any{"description": "", "is_active": true, "domain_name": "physics", "total_resource_slots": `{}`,
		"allowed_vfolder_hosts": `{}`, "integration_id": ""}
	require.Empty(t, d.ask(`mutation($name: String!, $input: GroupInput!) { create_group(name: $name, props: $input) {
ok msg group { id domain_name name } } }`, map[string]any{"name": "lasers", "input": props}, &group))
	require.True(t, group.CreateGroup.OK, group.CreateGroup.Msg)
	id := group.CreateGroup.Group.ID
	var found struct {
		Named []struct{ ID string } `json:"groups_by_name"`
		Group struct{ Name string }
	}
	require.Empty(t, d.ask(`query($name: String!, $domain_name: String) { groups_by_name(name: $name, domain_name: $domain_name) {
id name description is_active created_at domain_name total_resource_slots allowed_vfolder_hosts integration_id } }`,
		map[string]any{"name": "lasers", "domain_name": "physics"}, &found))
	require.Equal(t, id, found.Named[0].ID)

	// The page of projects of the Web UI.
	var page struct {
		Nodes struct {
			Count int
			Edges []struct {
				Node struct {
					ID       string
					RowID    string   `json:"row_id"`
					Type     string   `json:"type"`
					Groups   []string `json:"scaling_groups"`
					Registry string   `json:"container_registry"`
				}
			}
		} `json:"group_nodes"`
	}
	const nodes = `query ProjectPageQuery($filter:String $order:String $offset:Int $first:Int $before:String $after:String $last:Int) {
group_nodes(filter:$filter, order:$order, offset:$offset, first:$first, before:$before, after:$after, last:$last) { count edges { node {
id row_id name description is_active domain_name total_resource_slots allowed_vfolder_hosts integration_id resource_policy type
container_registry scaling_groups created_at } } } }`
	require.Empty(t, d.ask(nodes, map[string]any{"filter": `is_active == true & domain_name == "physics"`, "order": "-created_at", "first": 10,
		"offset": 0}, &page))
	require.Equal(t, 1, page.Nodes.Count)
	require.Equal(t, id, page.Nodes.Edges[0].Node.RowID)
	require.Equal(t, "GENERAL", page.Nodes.Edges[0].Node.Type)
	var one struct {
		Group struct {
			Name  string
			Quota *int `json:"registry_quota"`
		} `json:"group_node"`
	}
	require.Empty(t, d.ask(`query($id: String!) { group_node(id: $id) { name registry_quota } }`,
		map[string]any{"id": page.Nodes.Edges[0].Node.ID}, &one))
	require.Equal(t, "lasers", one.Group.Name)

	const modify = `mutation($gid: UUID!, $input: ModifyGroupInput!) { modify_group(gid: $gid, props: $input) {
ok msg group { id scaling_groups } } }`
	change := func(input map[string]any) outcome {
		return d.do("modify_group", modify, map[string]any{"gid": id, "input": input})
	}
	require.True(t, change(map[string]any{"name": "optics", "is_active": true, "container_registry": "{}"}).OK)
	require.False(t, change(map[string]any{"container_registry": `{"registry":"r","project":"p"}`}).OK)
	require.False(t, change(map[string]any{"user_uuids": []string{"x"}}).OK)
	member := map[string]any{"user_update_mode": "add", "user_uuids": []string{string(d.admin.UserID)}}
	refused := change(member)
	require.False(t, refused.OK, "a user of another domain")
	require.Contains(t, refused.Msg, "domain")
	d.actor = d.person("eve", authz.RoleUser, true)
	refused = change(map[string]any{"name": "mine"})
	require.False(t, refused.OK)
	for field, query := range map[string]string{"create_domain": `mutation{create_domain(name:"x",props:{}){ok msg}}`,
		"modify_domain": `mutation{modify_domain(name:"default",props:{description:"x"}){ok msg}}`,
		"delete_domain": `mutation{delete_domain(name:"physics"){ok msg}}`,
		"create_group":  `mutation{create_group(name:"x",props:{domain_name:"default"}){ok msg}}`,
		"delete_group":  `mutation{delete_group(gid:"` + id + `"){ok msg}}`} {
		require.False(t, d.do(field, query, nil).OK, field)
	}
	d.actor = d.admin
	require.True(t, d.do("delete_group", `mutation($gid:UUID!) { delete_group(gid:$gid) { msg ok } }`, map[string]any{"gid": id}).OK)
	require.True(t, d.do("modify_domain", `mutation($name: String!, $input: ModifyDomainInput!) { modify_domain(name: $name, props: $input) {
ok msg } }`, map[string]any{"name": "physics", "input": map[string]any{"total_resource_slots": `{"cpu": 8, "mem": "1g"}`}}).OK)
	require.True(t, d.do("delete_domain", `mutation($name: String!) { delete_domain(name: $name) { ok msg } }`,
		map[string]any{"name": "physics"}).OK)
}

// What the command line asks for is there.
func TestTheClientAdministersDomainsAndProjects(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := t.Context()
	c, err := api.New(api.Config{Endpoint: "http://manager", AccessKey: "k", SecretKey: "s"}, api.WithTransport(transport{d.handler}))
	require.NoError(t, err)
	require.NoError(t, admin.CreateDomain(ctx, c, "physics", admin.DomainChange{"total_resource_slots": `{"cpu":"4"}`}))
	require.NoError(t, admin.ModifyDomain(ctx, c, "physics", admin.DomainChange{"description": "Physics"}))
	got, err := admin.GetDomain(ctx, c, "physics")
	require.NoError(t, err)
	require.Equal(t, "Physics", got.Description)
	require.JSONEq(t, `{"cpu":"4"}`, got.Slots)
	all, err := admin.Domains(ctx, c)
	require.NoError(t, err)
	require.Len(t, all, 2)
	require.NoError(t, admin.CreateUser(ctx, c, "ada@x", admin.UserChange{"password": "correct horse", "domain_name": "physics"}))
	id, err := admin.CreateProject(ctx, c, "lasers", "physics", nil)
	require.NoError(t, err)
	require.NoError(t, admin.ChangeMembers(ctx, c, id, "appoint", []string{"ada@x"}))
	members, err := admin.Members(ctx, c, id)
	require.NoError(t, err)
	require.True(t, members[0].Admin)
	_, err = admin.CreateProject(ctx, c, "default", "physics", nil)
	require.NoError(t, err)
	_, err = admin.GetProject(ctx, c, "default", "")
	require.ErrorContains(t, err, "both have")
	p, err := admin.GetProject(ctx, c, "default", "physics")
	require.NoError(t, err)
	require.NoError(t, admin.ModifyProject(ctx, c, p.ID, admin.ProjectChange{"name": "first"}))
	require.NoError(t, admin.DeleteProject(ctx, c, p.ID))
	require.NoError(t, admin.DeleteDomain(ctx, c, "physics"))
	require.ErrorContains(t, admin.DeleteDomain(ctx, c, "default"), "first")
}
