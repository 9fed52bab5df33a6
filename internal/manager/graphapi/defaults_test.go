package graphapi_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/authz"
)

// What clients leave out of a new user and a new project has the values that the wire documents, whoever may make them.
func TestWhatIsLeftOutHasTheDocumentedValue(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	boss, eve := d.person("boss", authz.RoleAdmin, true), d.person("eve", authz.RoleUser, true)
	const create = `mutation($name: String!, $email: String!, $group: GroupInput!, $user: UserInput!) {
create_group(name: $name, props: $group) { ok msg group { type description is_active domain_name total_resource_slots
allowed_vfolder_hosts integration_id resource_policy container_registry } }
create_user(email: $email, props: $user) { ok msg user { username full_name description is_active status domain_name role
resource_policy totp_activated sudo_session_enabled need_password_change } } }`
	ask := func(a authz.Actor, name string) (out map[string]map[string]any) {
		t.Helper()
		d.actor = a
		require.Empty(t, d.ask(create, map[string]any{"name": name, "email": name + "@y", "group": map[string]any{"domain_name": "default"},
			"user": map[string]any{"username": name, "password": "correct horse", "need_password_change": true}}, &out))
		return out
	}
	for name, a := range map[string]authz.Actor{"optics": d.admin, "lasers": boss} {
		got := ask(a, name)
		require.Equal(t, map[string]any{"type": "GENERAL", "description": "", "is_active": true, "domain_name": "default",
			"total_resource_slots": "{}", "allowed_vfolder_hosts": "{}", "integration_id": "", "resource_policy": "default",
			"container_registry": "{}"}, got["create_group"]["group"], "%s: %v", name, got["create_group"]["msg"])
		require.Equal(t, map[string]any{"username": name, "full_name": "", "description": "", "is_active": true, "status": "active",
			"domain_name": "default", "role": "user", "resource_policy": "default", "totp_activated": false, "sudo_session_enabled": false,
			"need_password_change": true}, got["create_user"]["user"], "%s: %v", name, got["create_user"]["msg"])
	}
	for _, refused := range ask(eve, "mine") {
		require.Equal(t, false, refused["ok"])
		require.NotEmpty(t, refused["msg"])
	}
}
