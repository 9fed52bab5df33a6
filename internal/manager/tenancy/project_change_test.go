package tenancy_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// lab is a project of the default domain.
func lab(t *testing.T, w *managertest.World, name string, p tenancy.ProjectProps) *tenancy.Project {
	t.Helper()
	made, err := w.Tenancy.CreateProject(t.Context(), w.Admin, name, p)
	require.NoError(t, err)
	return made
}

func change(mode tenancy.MemberMode, users ...string) tenancy.ProjectProps {
	return tenancy.ProjectProps{Members: &tenancy.MemberChange{Mode: mode, Users: users}}
}

// now is an actor as the next request finds it.
func now(t *testing.T, w *managertest.World, a authz.Actor) authz.Actor {
	t.Helper()
	a, _, err := w.Tenancy.Authenticate(t.Context(), a.AccessKey)
	require.NoError(t, err)
	return a
}

// Administrators of a domain make and change its projects; what is not named stays.
func TestProjectsAreMadeAndChanged(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
	w.Exec(`INSERT INTO project_resource_policies (name) VALUES ('small')`)
	_, boss := made(t, w, "boss@x", as(authz.RoleAdmin))
	p, err := w.Tenancy.CreateProject(ctx, boss, "Deep Learning", tenancy.ProjectProps{Description: new("d"), Type: new("MODEL_STORE"),
		TotalSlots: map[string]string{"cpu": "2"}, ResourcePolicy: new("small"), Domain: new("")})
	require.NoError(t, err)
	require.Equal(t, "default", p.Domain)
	require.Equal(t, "model-store", p.Type)
	require.Equal(t, "small", p.Policy)
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('fast')`)
	w.Exec(`INSERT INTO resource_groups_for_projects VALUES ('fast', $1)`, string(p.ID))
	require.NoError(t, w.Tenancy.ModifyProject(ctx, boss, string(p.ID), tenancy.ProjectProps{Name: new("dl"), Active: new(false)}))
	p, err = w.Tenancy.GetProject(ctx, boss, "dl", "")
	require.NoError(t, err)
	require.False(t, p.IsActive)
	require.Equal(t, "2", p.TotalSlots.Wire()["cpu"])
	require.Equal(t, []string{"fast"}, p.ResourceGroups)
	page, err := w.Tenancy.PageProjects(ctx, boss, list.Query{Filter: `type == "MODEL_STORE" & name ilike "d%"`, Limit: 10})
	require.NoError(t, err)
	require.Equal(t, 1, page.Total)
	require.Equal(t, p.ID, page.Items[0].ID)

	for name, c := range map[string]struct {
		ref  string
		p    tenancy.ProjectProps
		kind fault.Kind
	}{
		"another type":   {"dl", tenancy.ProjectProps{Type: new("general")}, fault.Conflict},
		"another domain": {"dl", tenancy.ProjectProps{Domain: new("other")}, fault.Conflict},
		"a name in use":  {"dl", tenancy.ProjectProps{Name: new("default")}, fault.Conflict},
		"no such policy": {"dl", tenancy.ProjectProps{ResourcePolicy: new("none")}, fault.NotFound},
		"no amount":      {"dl", tenancy.ProjectProps{TotalSlots: map[string]string{"cpu": "x"}}, fault.Invalid},
		"an id as name":  {"dl", tenancy.ProjectProps{Name: new(string(p.ID))}, fault.Invalid},
		"no such mode":   {"dl", change("promote", "boss@x"), fault.Invalid},
	} {
		err := w.Tenancy.ModifyProject(ctx, boss, c.ref, c.p)
		require.Equal(t, c.kind, fault.KindOf(err), "%s: %v", name, err)
	}
	for _, bad := range []string{"", "a/b", strings.Repeat("x", 65), "x\ny"} {
		_, err := w.Tenancy.CreateProject(ctx, boss, bad, tenancy.ProjectProps{})
		require.Equal(t, fault.Invalid, fault.KindOf(err), "%q: %v", bad, err)
	}
	_, err = w.Tenancy.CreateProject(ctx, boss, "x", tenancy.ProjectProps{Domain: new("other")})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Tenancy.CreateProject(ctx, w.Admin, "x", tenancy.ProjectProps{Domain: new("nowhere")})
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.Tenancy.CreateProject(ctx, w.Admin, "x", tenancy.ProjectProps{Type: new("team")})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

// Who administers a project admits users of the domain and sends them away, and nothing more; the office ends at once.
func TestProjectAdminsAdminister(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Exec(`INSERT INTO domains (name) VALUES ('other')`)
	p := lab(t, w, "lab", tenancy.ProjectProps{})
	id := string(p.ID)
	_, lead := made(t, w, "lead@x")
	made(t, w, "second@x")
	ada, adaActor := made(t, w, "ada@x")
	made(t, w, "far@x", func(p *tenancy.UserProps) { p.Domain = new("other") })

	err := w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.AddMembers, "lead@x"))
	require.True(t, fault.Is(err, fault.NotFound), "who is no member sees no project: %v", err)
	require.NoError(t, w.Tenancy.ModifyProject(ctx, w.Admin, id, change(tenancy.AddMembers, "lead@x", "lead@x", "second@x")))
	lead = now(t, w, lead)
	err = w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.AddMembers, "ada@x"))
	require.True(t, fault.Is(err, fault.Denied), "a member: %v", err)
	err = w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.AppointAdmins, "lead@x"))
	require.True(t, fault.Is(err, fault.Denied), "a member appoints themselves: %v", err)
	require.NoError(t, w.Tenancy.ModifyProject(ctx, w.Admin, id, change(tenancy.AppointAdmins, "lead@x", "second@x")))
	lead = now(t, w, lead)

	require.NoError(t, w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.AddMembers, string(ada.ID))))
	require.Equal(t, []cluster.ProjectID{p.ID}, now(t, w, adaActor).Projects)
	members, err := w.Tenancy.Members(ctx, lead, id)
	require.NoError(t, err)
	require.Equal(t, []string{"ada@x", "lead@x", "second@x"}, []string{members[0].Email, members[1].Email, members[2].Email})
	require.True(t, members[1].Admin)
	_, err = w.Tenancy.Members(ctx, now(t, w, adaActor), id)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	more := change(tenancy.AddMembers)
	more.TotalSlots = map[string]string{}
	for name, c := range map[string]struct {
		p    tenancy.ProjectProps
		kind fault.Kind
	}{
		"appoint":               {change(tenancy.AppointAdmins, "ada@x"), fault.Denied},
		"dismiss":               {change(tenancy.DismissAdmins, "second@x"), fault.Denied},
		"remove another":        {change(tenancy.RemoveMembers, "ada@x", "second@x"), fault.Denied},
		"of another domain":     {change(tenancy.AddMembers, "far@x"), fault.NotFound},
		"nobody":                {change(tenancy.AddMembers, "none@x"), fault.NotFound},
		"no user":               {change(tenancy.AddMembers, "'; DROP"), fault.Invalid},
		"more than the members": {more, fault.Denied},
		"many":                  {change(tenancy.AddMembers, make([]string, 10_001)...), fault.Invalid},
	} {
		err := w.Tenancy.ModifyProject(ctx, lead, id, c.p)
		require.Equal(t, c.kind, fault.KindOf(err), "%s: %v", name, err)
	}
	require.NoError(t, w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.RemoveMembers, "ada@x")))
	require.Empty(t, now(t, w, adaActor).Projects)

	// A request that was on its way when the office ended changes nothing.
	require.NoError(t, w.Tenancy.ModifyProject(ctx, w.Admin, id, change(tenancy.DismissAdmins, "lead@x")))
	err = w.Tenancy.ModifyProject(ctx, lead, id, change(tenancy.AddMembers, "ada@x"))
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.Empty(t, now(t, w, lead).Leads)
	require.Len(t, now(t, w, lead).Projects, 1, "still a member")
}

// However changes of members meet, each is whole.
func TestMembersChangeAtOnce(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	p := lab(t, w, "lab", tenancy.ProjectProps{})
	users := []string{"a@x", "b@x", "c@x"}
	for _, email := range users {
		made(t, w, email)
	}
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			if err := w.Tenancy.ModifyProject(ctx, w.Admin, string(p.ID), change(tenancy.AddMembers, users...)); err != nil {
				t.Errorf("add: %v", err)
			}
		})
		running.Go(func() {
			if err := w.Tenancy.ModifyProject(ctx, w.Admin, string(p.ID), change(tenancy.RemoveMembers, "c@x", "a@x", "b@x")); err != nil {
				t.Errorf("remove: %v", err)
			}
		})
		running.Go(func() {
			if err := w.Tenancy.ModifyUser(ctx, w.Admin, "b@x", tenancy.UserProps{Projects: &[]cluster.ProjectID{}}); err != nil {
				t.Errorf("leave: %v", err)
			}
		})
	}
	running.Wait()
}
