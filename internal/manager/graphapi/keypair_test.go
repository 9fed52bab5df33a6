package graphapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/admin"
	"berth.dev/berth/internal/manager/authz"
)

// The queries and mutations of the official clients' admin group "keypair" and of the web console's page of credentials.
func TestKeypairsOnTheWire(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.person("ada", authz.RoleUser, true)
	d.exec(`UPDATE users SET main_access_key = 'AKADA' WHERE email = 'ada@x'`)
	type pair struct {
		AccessKey string  `json:"access_key"`
		SecretKey *string `json:"secret_key"`
		UserID    string  `json:"user_id"`
		IsMain    bool    `json:"is_main"`
		UserInfo  struct{ Email string }
	}
	var made map[string]struct {
		OK      bool
		Msg     string
		Keypair *pair
	}
	const create = `mutation($user_id: String!, $input: KeyPairInput!) { create_keypair(user_id: $user_id, props: $input) {
ok msg keypair { access_key secret_key user_id } } }`
	props := map[string]any{"is_active": true, "is_admin": false, "resource_policy": "default", "rate_limit": 5000, "concurrency_limit": nil}
	errs := d.ask(create, map[string]any{"user_id": "ada@x", "input": props}, &made)
	require.Empty(t, errs)
	require.True(t, made["create_keypair"].OK, made["create_keypair"].Msg)
	k := *made["create_keypair"].Keypair
	require.NotNil(t, k.SecretKey)
	require.Equal(t, "ada@x", k.UserID)

	var page struct {
		KeypairList struct {
			Items []pair
			Total int `json:"total_count"`
		} `json:"keypair_list"`
	}
	errs = d.ask(`query($limit:Int!, $offset:Int!, $filter:String, $order:String, $domain_name:String, $email:String, $is_active:Boolean) {
keypair_list(limit:$limit, offset:$offset, filter:$filter, order:$order, domain_name:$domain_name, email:$email, is_active:$is_active) {
items { id user_id access_key is_admin resource_policy created_at rate_limit num_queries concurrency_used secret_key last_used
user_info { full_name } projects } total_count } }`,
		map[string]any{"limit": 10, "offset": 0, "email": "ada@x", "is_active": true, "order": "-created_at"}, &page)
	require.Empty(t, errs)
	require.Equal(t, 2, page.KeypairList.Total)
	for _, item := range page.KeypairList.Items {
		require.Nil(t, item.SecretKey, "a list shows nobody else's secret")
	}
	const modify = `mutation($access_key: String!, $input: ModifyKeyPairInput!) {
modify_keypair(access_key: $access_key, props: $input) { ok msg } }`
	require.True(t, d.do("modify_keypair", modify, map[string]any{"access_key": k.AccessKey, "input": map[string]any{"rate_limit": 1}}).OK)
	const remove = `mutation($access_key: String!) { delete_keypair(access_key: $access_key) { ok msg } }`
	require.True(t, d.do("delete_keypair", remove, map[string]any{"access_key": k.AccessKey}).OK)
	require.False(t, d.do("delete_keypair", remove, map[string]any{"access_key": string(d.admin.AccessKey)}).OK)

	// A user changes nobody's, by whatever mutation; the answer is a refusal, not an error.
	d.actor = d.person("eve", authz.RoleUser, true)
	errs = d.ask(create, map[string]any{"user_id": "eve@x", "input": props}, &made)
	require.Empty(t, errs)
	require.False(t, made["create_keypair"].OK)
	require.Nil(t, made["create_keypair"].Keypair)
	for _, key := range []string{k.AccessKey, string(d.admin.AccessKey), string(d.actor.AccessKey)} {
		require.False(t, d.do("modify_keypair", modify, map[string]any{"access_key": key, "input": map[string]any{"rate_limit": 0}}).OK, key)
	}
	// Their own they replace.
	errs = d.ask(`mutation { rotate_keypair(overlap: 60) { ok msg keypair { access_key secret_key is_main } } }`, nil, &made)
	require.Empty(t, errs)
	require.True(t, made["rotate_keypair"].OK, made["rotate_keypair"].Msg)
	errs = d.ask(`mutation { rotate_keypair(overlap: 2147483647) { ok msg } }`, nil, &made)
	require.Empty(t, errs)
	require.False(t, made["rotate_keypair"].OK)
}

// What our client asks for is in the schema.
func TestOurClientOnKeypairsAndPolicies(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	ctx := t.Context()
	c, err := api.New(api.Config{Endpoint: "http://manager", AccessKey: "k", SecretKey: "s"}, api.WithTransport(transport{d.handler}))
	require.NoError(t, err)
	all, err := admin.Keypairs(ctx, c, "", "")
	require.NoError(t, err)
	require.Len(t, all, 1)
	k, err := admin.CreateKeypair(ctx, c, d.admin.Email, admin.KeypairChange{"resource_policy": "default", "rate_limit": 100})
	require.NoError(t, err)
	require.NotEmpty(t, k.SecretKey)
	require.NoError(t, admin.ModifyKeypair(ctx, c, k.AccessKey, admin.KeypairChange{"concurrency_limit": 3}))
	fresh, err := admin.RotateKeypair(ctx, c, k.AccessKey, 0)
	require.NoError(t, err)
	require.Equal(t, 3, fresh.ConcurrencyLimit)
	require.NoError(t, admin.DeleteKeypair(ctx, c, fresh.AccessKey))
	for kind, change := range map[admin.PolicyKind]admin.Policy{
		admin.OfKeypairs: {"default_for_unspecified": "LIMITED", "max_concurrent_sessions": 3, "max_containers_per_session": 2,
			"idle_timeout": 60, "total_resource_slots": `{"cpu":"4"}`, "allowed_vfolder_hosts": `{}`},
		admin.OfUsers:    {"max_vfolder_count": 3, "max_quota_scope_size": -1, "max_customized_image_count": 1},
		admin.OfProjects: {"max_vfolder_count": 3, "max_quota_scope_size": 1 << 40, "max_network_count": 1},
	} {
		require.NoError(t, admin.SetPolicy(ctx, c, kind, "team", true, change), kind)
		require.Error(t, admin.SetPolicy(ctx, c, kind, "team", true, change), "it is there already")
		require.NoError(t, admin.SetPolicy(ctx, c, kind, "team", false, change), kind)
		list, err := admin.Policies(ctx, c, kind)
		require.NoError(t, err)
		require.Len(t, list, 2)
		require.NoError(t, admin.DeletePolicy(ctx, c, kind, "team"))
		require.ErrorContains(t, admin.DeletePolicy(ctx, c, kind, "default"), "default")
	}
	require.NoError(t, admin.SetResourceGroup(ctx, c, "gpus", true, admin.ResourceGroupChange{"driver": "static", "scheduler": "fifo"}))
	require.NoError(t, admin.SetResourceGroup(ctx, c, "gpus", false, admin.ResourceGroupChange{"is_active": false}))
	for _, u := range []admin.GroupUser{{Domain: "default"}, {Project: string(d.project())}, {Keypair: string(d.admin.AccessKey)}} {
		require.NoError(t, admin.AllowResourceGroup(ctx, c, "gpus", u, true))
		require.NoError(t, admin.AllowResourceGroup(ctx, c, "gpus", u, false))
	}
	require.NoError(t, admin.DeleteResourceGroup(ctx, c, "gpus"))
}
