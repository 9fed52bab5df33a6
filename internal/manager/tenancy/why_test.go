package tenancy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/tenancy"
)

// An explanation names the rule that decided, for oneself and for those whom one sees; of objects that one does not see it says nothing.
func TestDecisionsAreExplained(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, ada := made(t, w, "ada@x")
	made(t, w, "boss@x", as(authz.RoleAdmin))
	made(t, w, "eye@x", as(authz.RoleMonitor))
	stranger := w.Stranger("stranger")
	why := func(a authz.Actor, user, action, object string) *tenancy.Why {
		t.Helper()
		e, err := w.Tenancy.Explain(ctx, a, user, action, object)
		require.NoError(t, err)
		return e
	}
	e := why(ada, "", "change", "user:ada@x")
	require.True(t, e.Allowed)
	require.Equal(t, []string{"its owner"}, e.Because)
	e = why(ada, "", "administer", "user:ada@x")
	require.False(t, e.Allowed)
	require.Contains(t, e.Needs, "a superadmin")
	e = why(w.Admin, "boss@x", "administer", "user:ada@x")
	require.True(t, e.Allowed)
	require.Equal(t, []string{"an administrator of its domain (not over superadmins)"}, e.Because)
	require.False(t, why(w.Admin, "boss@x", "administer", "user:"+w.Admin.Email).Allowed)
	e = why(w.Admin, "eye@x", "change", "user:eye@x")
	require.False(t, e.Allowed)
	require.True(t, e.ReadsOnly)
	require.True(t, why(ada, "", "use", "resource-group:default").Allowed)
	require.True(t, why(ada, "", "reveal", "keypair:"+string(ada.AccessKey)).Allowed)
	require.False(t, why(w.Admin, "", "reveal", "keypair:"+string(ada.AccessKey)).Allowed, "not even superadmins")
	require.True(t, why(w.Admin, "", "see", "keypair-policy:default").Allowed)

	require.NoError(t, w.Tenancy.ModifyUser(ctx, w.Admin, "boss@x", tenancy.UserProps{Status: new("inactive")}))
	e = why(w.Admin, "boss@x", "administer", "user:ada@x")
	require.True(t, e.Inactive)
	require.False(t, e.Allowed)

	for name, c := range map[string]struct {
		a                    authz.Actor
		user, action, object string
		kind                 fault.Kind
	}{
		"a stranger":          {stranger, "ada@x", "see", "user:ada@x", fault.NotFound},
		"about a stranger":    {ada, w.Admin.Email, "see", "user:ada@x", fault.NotFound},
		"an unseen object":    {stranger, "", "see", "user:ada@x", fault.NotFound},
		"a project of others": {stranger, "", "use", "project:" + string(projectOf(t, w)), fault.NotFound},
		"no object":           {ada, "", "see", "user:nobody@x", fault.NotFound},
		"no kind":             {ada, "", "see", "spaceship:x", fault.Invalid},
		"no key":              {ada, "", "see", "user:", fault.Invalid},
		"no verb":             {ada, "", "fly", "user:ada@x", fault.Invalid},
		"nobody":              {authz.Actor{}, "", "see", "user:ada@x", fault.Denied},
		"injection":           {ada, "", "see", "session:' OR true --", fault.NotFound},
	} {
		_, err := w.Tenancy.Explain(ctx, c.a, c.user, c.action, c.object)
		require.Equal(t, c.kind, fault.KindOf(err), "%s: %v", name, err)
	}
	for _, kind := range []string{"session", "app", "folder", "image", "agent", "preset", "idle-checker", "task", "user-policy",
		"project-policy", "domain", "keypair"} {
		_, err := w.Tenancy.Explain(ctx, w.Admin, "", "see", kind+":00000000-0000-4000-8000-0000000000ff")
		require.Equal(t, fault.NotFound, fault.KindOf(err), "%s: %v", kind, err)
	}
}
