package graphapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/authz"
)

// The queries and mutations of the official client's admin group "user", as it writes them.
func TestUsersOnTheWire(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	var made struct {
		CreateUser struct {
			OK   bool
			Msg  string
			User struct {
				DomainName string `json:"domain_name"`
				Email      string
				Username   string
				UUID       string
				Groups     []struct{ ID, Name string }
			}
		} `json:"create_user"`
	}
	props := map[string]any{"password": "correct horse", "username": "ada", "full_name": "Ada", "role": "user", "status": "active",
		"need_password_change": false, "description": "", "domain_name": "default", "totp_activated": false, "sudo_session_enabled": false,
		"allowed_client_ip": nil, "group_ids": []string{string(d.project())}}
	errs := d.ask(`mutation($email: String!, $input: UserInput!) { create_user(email: $email, props: $input) {
ok msg user { domain_name email username uuid groups { id name } } } }`, map[string]any{"email": "ada@x", "input": props}, &made)
	require.Empty(t, errs)
	require.True(t, made.CreateUser.OK, made.CreateUser.Msg)
	require.Equal(t, "ada", made.CreateUser.User.Username)
	require.Len(t, made.CreateUser.User.Groups, 1)

	var page struct {
		UserList struct {
			Items []struct{ Email, Status, Role string }
			Total int `json:"total_count"`
		} `json:"user_list"`
	}
	errs = d.ask(`query($limit:Int!, $offset:Int!, $status:String, $group_id:UUID, $filter:String, $order:String) {
user_list(limit:$limit, offset:$offset, status:$status, group_id:$group_id, filter:$filter, order:$order) {
items { uuid username role email full_name need_password_change status status_info created_at domain_name groups { id name }
allowed_client_ip sudo_session_enabled main_access_key } total_count } }`,
		map[string]any{"limit": 10, "offset": 0, "filter": `email == "ada@x"`}, &page)
	require.Empty(t, errs)
	require.Equal(t, 1, page.UserList.Total)
	require.Equal(t, "active", page.UserList.Items[0].Status)

	const modify = `mutation($email: String!, $input: ModifyUserInput!) { modify_user(email: $email, props: $input) { ok msg } }`
	require.True(t, d.do("modify_user", modify, map[string]any{"email": "ada@x", "input": map[string]any{"is_active": false}}).OK)
	refused := d.do("create_user", `mutation($email: String!, $input: UserInput!) { create_user(email: $email, props: $input) { ok msg } }`,
		map[string]any{"email": "ada@x", "input": props})
	require.False(t, refused.OK)
	require.Contains(t, refused.Msg, "already")
	require.True(t, d.do("delete_user", `mutation($email: String!) { delete_user(email: $email) { ok msg } }`,
		map[string]any{"email": "ada@x"}).OK)
	d.actor = d.person("eve", authz.RoleUser, true)
	refused = d.do("modify_user", modify, map[string]any{"email": "eve@x", "input": map[string]any{"role": "superadmin"}})
	require.False(t, refused.OK)
	require.Contains(t, refused.Msg, "may not")
}

// What the command line asks for is there.
func TestTheClientAdministersUsers(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := t.Context()
	c, err := api.New(api.Config{Endpoint: "http://manager", AccessKey: "k", SecretKey: "s"}, api.WithTransport(transport{d.handler}))
	require.NoError(t, err)
	projects, err := admin.Projects(ctx, c, "default")
	require.NoError(t, err)
	require.Len(t, projects, 1)
	require.NoError(t, admin.CreateUser(ctx, c, "ada@x", admin.UserChange{"password": "correct horse", "full_name": "Ada"}))
	require.NoError(t, admin.ModifyUser(ctx, c, "ada@x", admin.UserChange{"group_ids": []string{projects[0].ID}}))
	u, err := admin.GetUser(ctx, c, "ada@x")
	require.NoError(t, err)
	require.Equal(t, projects, u.Projects)
	require.NoError(t, admin.DeleteUser(ctx, c, "ada@x"))
	users, err := admin.Users(ctx, c, "")
	require.NoError(t, err)
	require.Len(t, users, 2)
	require.ErrorContains(t, admin.DeleteUser(ctx, c, "nobody@x"), "nobody@x")
	_, err = admin.GetUser(ctx, c, "nobody@x")
	require.Error(t, err)
}

// How many logins a user may have at one time is set with the policy; 0 gives it back to the cluster's configuration.
func TestPoliciesOfUsersLimitLogins(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	const create = `mutation($p: CreateUserResourcePolicyInput!) { create_user_resource_policy(name: "few", props: $p) { ok msg } }`
	const modify = `mutation($p: ModifyUserResourcePolicyInput!) { modify_user_resource_policy(name: "few", props: $p) { ok msg } }`
	limit := func() *int {
		t.Helper()
		var out struct {
			Policy struct {
				Logins *int `json:"max_concurrent_logins"`
			} `json:"user_resource_policy"`
		}
		require.Empty(t, d.ask(`{ user_resource_policy(name: "few") { max_concurrent_logins } }`, nil, &out))
		return out.Policy.Logins
	}
	props := func(n int) map[string]any { return map[string]any{"p": map[string]any{"max_concurrent_logins": n}} }
	require.True(t, d.do("create_user_resource_policy", create, props(3)).OK)
	require.Equal(t, new(3), limit())
	for _, bad := range []int{-1, 1 << 31} {
		refused := d.do("modify_user_resource_policy", modify, props(bad))
		require.False(t, refused.OK)
		require.Contains(t, refused.Msg, "max_concurrent_logins must be from 0")
	}
	require.True(t, d.do("modify_user_resource_policy", modify, map[string]any{"p": map[string]any{"max_vfolder_count": 7}}).OK)
	require.Equal(t, new(3), limit(), "what is not named stays")
	require.True(t, d.do("modify_user_resource_policy", modify, props(0)).OK)
	require.Nil(t, limit())
}

// The page of users of the Web UI says since when whoever has one-time passwords has them, and nothing of those who only began to enrol.
func TestUsersV2SaySinceWhenTheyHaveOneTimePasswords(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	boss, ada, eve := d.person("boss", authz.RoleAdmin, true), d.person("ada", authz.RoleUser, true), d.person("eve", authz.RoleUser, true)
	for _, u := range []authz.Actor{ada, eve} {
		d.exec(`INSERT INTO user_totp (user_id, secret_sealed, created_at) VALUES ($1, 'sealed', '2026-01-02T03:04:05Z')`, u.UserID)
	}
	d.exec(`UPDATE users SET totp_activated = true WHERE id = $1`, ada.UserID)
	type security struct {
		Activated   bool    `json:"totpActivated"`
		ActivatedAt *string `json:"totpActivatedAt"`
	}
	var page struct {
		Users *struct {
			Edges []struct {
				Node struct {
					Basic    struct{ Email string } `json:"basicInfo"`
					Security security
				}
			}
		} `json:"adminUsersV2"`
	}
	const users = `{ adminUsersV2(limit: 10) { edges { node { basicInfo { email } security { totpActivated totpActivatedAt } } } } }`
	for _, a := range []authz.Actor{d.admin, boss} {
		d.actor = a
		require.Empty(t, d.ask(users, nil, &page), a.Email)
		got := map[string]security{}
		for _, e := range page.Users.Edges {
			got[e.Node.Basic.Email] = e.Node.Security
		}
		require.Equal(t, security{true, new("2026-01-02T03:04:05Z")}, got["ada@x"], a.Email)
		require.Equal(t, security{}, got["eve@x"], "%s: a secret that was not confirmed", a.Email)
	}
	d.actor = eve
	require.Empty(t, d.ask(users, nil, &page))
	require.Len(t, page.Users.Edges, 1, "nobody sees others")
	require.Equal(t, "eve@x", page.Users.Edges[0].Node.Basic.Email)
}
