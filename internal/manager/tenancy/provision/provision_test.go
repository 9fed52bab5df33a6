package provision_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
	"berth.dev/berth/internal/manager/tenancy/provision"
	"berth.dev/berth/internal/manager/tenancy/token"
)

// rig is a cluster with two providers, of two domains, and the actors of their tokens.
type rig struct {
	*managertest.World
	okta, other authz.Actor
	mu          sync.Mutex
	now         time.Time
}

func newRig(t *testing.T, change ...func(*provision.Provider)) *rig {
	t.Helper()
	r := &rig{now: time.Now()}
	okta := provision.Provider{MostRemovals: 3, Rules: identity.Rules{Domain: "default", Create: true, LinkVerifiedEmail: true,
		Groups: []identity.GroupRule{{Group: "Staff", Projects: []string{"default"}}, {Group: "Bosses", Role: authz.RoleAdmin}}}}
	for _, c := range change {
		c(&okta)
	}
	r.World = managertest.New(t, func(d *nouns.Deps) {
		d.Clock = func() time.Time { r.mu.Lock(); defer r.mu.Unlock(); return r.now }
		d.Provisioners = map[string]provision.Provider{"okta": okta,
			"other": {MostRemovals: 3, Rules: identity.Rules{Domain: "d2", Create: true}}}
	})
	require.NoError(t, okta.Validate("x"))
	_, err := r.Tenancy.CreateDomain(t.Context(), r.Admin, "d2", tenancy.DomainProps{})
	require.NoError(t, err)
	r.okta, r.other = r.client("default", "okta"), r.client("d2", "other")
	return r
}

// client is the actor of a token of a provider.
func (r *rig) client(domain, provider string) authz.Actor {
	r.T.Helper()
	u, err := r.Tenancy.CreateServiceAccount(r.T.Context(), r.Admin, provider, domain, "")
	require.NoError(r.T, err)
	_, secret, err := r.Tokens.Create(r.T.Context(), r.Admin, token.Request{Name: provider, For: u.Email, Provider: provider})
	require.NoError(r.T, err)
	a, err := r.Tokens.Authenticate(r.T.Context(), secret)
	require.NoError(r.T, err)
	return a
}

func (r *rig) create(name string) provision.User {
	r.T.Helper()
	u, err := r.Provision.CreateUser(r.T.Context(), r.okta, user(name))
	require.NoError(r.T, err)
	return u
}

func user(name string) scim.User {
	return scim.User{UserName: name + "@example.org", ExternalID: "x-" + name, DisplayName: "The " + name, Active: true}
}

func off(u *scim.User) error { u.Active = false; return nil }
func on(u *scim.User) error  { u.Active = true; return nil }

func (r *rig) account(name string) *tenancy.User {
	r.T.Helper()
	u, err := r.Tenancy.GetUser(r.T.Context(), r.Admin, name+"@example.org")
	require.NoError(r.T, err)
	return u
}

// answer checks the status and the type of an error of SCIM.
func answer(t *testing.T, err error, status int, kind string) string {
	t.Helper()
	var e *scim.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.Equal(t, []any{status, kind}, []any{e.Status, e.Type}, e.Detail)
	require.NotEmpty(t, e.Detail)
	return e.Detail
}

func TestUsersComeAndGo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	made := r.create("ada")
	require.Equal(t, []any{"ada@example.org", "x-ada", true, int64(1)}, []any{made.UserName, made.ExternalID, made.Active, made.Version})
	require.Equal(t, []any{"active", "The ada", "default"}, []any{r.account("ada").Status, r.account("ada").FullName,
		r.account("ada").Domain})
	got, err := r.Provision.GetUser(ctx, r.okta, made.ID)
	require.NoError(t, err)
	require.Equal(t, made, got)

	// A second one of that name, or id, is a conflict, and leaves the first as it is.
	_, err = r.Provision.CreateUser(ctx, r.okta, user("ada"))
	answer(t, err, 409, scim.Uniqueness)
	twin := user("ADA")
	twin.ExternalID = "x-2"
	_, err = r.Provision.CreateUser(ctx, r.okta, twin)
	answer(t, err, 409, scim.Uniqueness)
	_, err = r.Provision.CreateUser(ctx, r.okta, scim.User{UserName: "no address", ExternalID: "x-3", Active: true})
	answer(t, err, 400, scim.InvalidValue)

	changed, err := r.Provision.ChangeUser(ctx, r.okta, made.ID, provision.Version(made.Version), func(u *scim.User) error {
		u.DisplayName = "Ada Lovelace"
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "Ada Lovelace", r.account("ada").FullName)
	require.Equal(t, int64(2), changed.Version)
	_, err = r.Provision.ChangeUser(ctx, r.okta, made.ID, provision.Version(made.Version), off)
	answer(t, err, 412, "")
	require.Equal(t, "active", r.account("ada").Status)

	// Deactivated and let in again; the same once more changes nothing.
	for range 2 {
		u, err := r.Provision.ChangeUser(ctx, r.okta, made.ID, "", off)
		require.NoError(t, err)
		require.False(t, u.Active)
		require.Equal(t, "inactive", r.account("ada").Status)
	}
	_, err = r.Provision.ChangeUser(ctx, r.okta, made.ID, "", on)
	require.NoError(t, err)
	require.Equal(t, "active", r.account("ada").Status)

	// Whom an administrator shut out, the provider does not let in.
	require.NoError(t, r.Tenancy.ModifyUser(ctx, r.Admin, "ada@example.org", tenancy.UserProps{Status: new("inactive")}))
	_, err = r.Provision.ChangeUser(ctx, r.okta, made.ID, "", on)
	answer(t, err, 403, "")
	got, err = r.Provision.GetUser(ctx, r.okta, made.ID)
	require.NoError(t, err)
	require.False(t, got.Active, "SCIM tells of an inactive account that it is active")
	require.NoError(t, r.Tenancy.ModifyUser(ctx, r.Admin, "ada@example.org", tenancy.UserProps{Status: new("active")}))

	require.NoError(t, r.Provision.DeleteUser(ctx, r.okta, made.ID, ""))
	require.Equal(t, "inactive", r.account("ada").Status, "deleting deactivates")
	answer(t, r.Provision.DeleteUser(ctx, r.okta, made.ID, ""), 404, "")
	_, err = r.Provision.GetUser(ctx, r.okta, made.ID)
	answer(t, err, 404, "")
	again := r.create("ada") // the same person comes back
	require.NotEqual(t, made.ID, again.ID)
	require.Equal(t, "active", r.account("ada").Status)
	require.NoError(t, r.Provision.DeleteUser(ctx, r.okta, again.ID, ""))
	stranger := user("ada")
	stranger.ExternalID = "somebody else"
	_, err = r.Provision.CreateUser(ctx, r.okta, stranger)
	answer(t, err, 409, scim.Uniqueness)
	require.Equal(t, "inactive", r.account("ada").Status, "an address was given to somebody else, and the account with it")
}

func TestGroupsGiveProjectsAndRoles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	ada, bob := r.create("ada"), r.create("bob")
	staff, err := r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "Staff", Members: []string{ada.ID}})
	require.NoError(t, err)
	require.Equal(t, []provision.Ref{{ID: ada.ID, Name: "ada@example.org"}}, staff.Members)
	require.Len(t, r.account("ada").Projects, 1)
	require.Empty(t, r.account("bob").Projects)
	_, err = r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "staff"})
	answer(t, err, 409, scim.Uniqueness)
	_, err = r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "x", Members: []string{"11111111-1111-4111-8111-111111111111"}})
	answer(t, err, 400, scim.InvalidValue)
	_, err = r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "x", Members: []string{"' OR true --"}})
	answer(t, err, 400, scim.InvalidValue)

	with := func(members ...string) func(*scim.Group) error {
		return func(g *scim.Group) error { g.Members = members; return nil }
	}
	_, err = r.Provision.ChangeGroup(ctx, r.okta, staff.ID, "", with(bob.ID))
	require.NoError(t, err)
	require.Empty(t, r.account("ada").Projects)
	require.Len(t, r.account("bob").Projects, 1)
	bosses, err := r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "Bosses", Members: []string{bob.ID}})
	require.NoError(t, err)
	require.Equal(t, authz.RoleAdmin, r.account("bob").Role)
	u, err := r.Provision.GetUser(ctx, r.okta, bob.ID)
	require.NoError(t, err)
	require.Len(t, u.Groups, 2)
	// By another name it gives what that name gives: nothing.
	_, err = r.Provision.ChangeGroup(ctx, r.okta, bosses.ID, "", func(g *scim.Group) error { g.DisplayName = "Crew"; return nil })
	require.NoError(t, err)
	require.Equal(t, authz.RoleUser, r.account("bob").Role)
	require.NoError(t, r.Provision.DeleteGroup(ctx, r.okta, staff.ID, ""))
	require.Empty(t, r.account("bob").Projects)
	answer(t, r.Provision.DeleteGroup(ctx, r.okta, staff.ID, ""), 404, "")
	groups, total, err := r.Provision.ListGroups(ctx, r.okta, provision.Page{Filter: `displayName eq "CREW"`, Count: 10}, true)
	require.NoError(t, err)
	require.Equal(t, []any{1, 1, 1}, []any{total, len(groups), len(groups[0].Members)})
}

// A provider sees and changes what is its own, in its domain.
func TestProvidersAreApart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	ada := r.create("ada")
	g, err := r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "Staff", Members: []string{ada.ID}})
	require.NoError(t, err)
	_, err = r.Provision.GetUser(ctx, r.other, ada.ID)
	answer(t, err, 404, "")
	_, err = r.Provision.ChangeUser(ctx, r.other, ada.ID, "", off)
	answer(t, err, 404, "")
	answer(t, r.Provision.DeleteUser(ctx, r.other, ada.ID, ""), 404, "")
	_, err = r.Provision.ChangeGroup(ctx, r.other, g.ID, "", func(g *scim.Group) error { return nil })
	answer(t, err, 404, "")
	answer(t, r.Provision.DeleteGroup(ctx, r.other, g.ID, ""), 404, "")
	_, err = r.Provision.CreateGroup(ctx, r.other, scim.Group{DisplayName: "Staff", Members: []string{ada.ID}})
	answer(t, err, 400, scim.InvalidValue)
	users, total, err := r.Provision.ListUsers(ctx, r.other, provision.Page{Count: 10})
	require.NoError(t, err)
	require.Equal(t, []any{0, 0}, []any{len(users), total})
	// An account of another domain is not taken over.
	_, err = r.Provision.CreateUser(ctx, r.other, user("ada"))
	require.Error(t, err)
	require.Equal(t, "default", r.account("ada").Domain)
	_, err = r.Provision.CreateUser(ctx, r.okta, scim.User{UserName: "root", Email: r.Admin.Email, Active: true})
	require.Error(t, err)

	// No superadmin is touched, also not one who was made one later.
	require.NoError(t, r.Tenancy.ModifyUser(ctx, r.Admin, "ada@example.org", tenancy.UserProps{Role: new(authz.RoleSuperadmin)}))
	_, err = r.Provision.ChangeUser(ctx, r.okta, ada.ID, "", off)
	answer(t, err, 403, "")
	answer(t, r.Provision.DeleteUser(ctx, r.okta, ada.ID, ""), 403, "")
	require.NoError(t, r.Provision.DeleteGroup(ctx, r.okta, g.ID, ""))
	require.Equal(t, []any{"active", authz.RoleSuperadmin}, []any{r.account("ada").Status, r.account("ada").Role})

	// Nobody but such tokens calls, and they call nothing else.
	for name, a := range map[string]authz.Actor{"a superadmin": r.Admin, "a user": r.Stranger("s@x")} {
		_, _, err := r.Provision.ListUsers(ctx, a, provision.Page{})
		require.True(t, fault.Is(err, fault.Denied), "%s: %v", name, err)
	}
	_, err = r.Tenancy.ListUsers(ctx, r.okta, tenancy.UserFilter{})
	require.NoError(t, err)
	_, err = r.Tenancy.GetUser(ctx, r.okta, "ada@example.org")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.Error(t, r.Provision.AllowRemovals(ctx, r.okta, "okta", 1000))
	for _, q := range []token.Request{{Name: "a", For: r.okta.Email, Provider: "okta", ReadOnly: true},
		{Name: "b", For: r.okta.Email, Provider: "okta", Areas: []authz.Area{authz.AreaTenancy}}, {Name: "c", Provider: "okta"},
		{Name: "d", For: r.okta.Email, Provider: "O'k"}} {
		_, _, err := r.Tokens.Create(ctx, r.Admin, q)
		require.True(t, fault.Is(err, fault.Invalid), "%+v: %v", q, err)
	}
}

func TestLists(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 5 {
		r.create(fmt.Sprintf("u%d", i))
	}
	count := func(filter string) int {
		t.Helper()
		_, total, err := r.Provision.ListUsers(t.Context(), r.okta, provision.Page{Filter: filter, Start: 1, Count: 2})
		require.NoError(t, err, filter)
		return total
	}
	for filter, want := range map[string]int{"": 5, `userName eq "U3@EXAMPLE.ORG"`: 1, `externalId eq "x-u3"`: 1, `externalId eq "X-u3"`: 0,
		`userName sw "u"`: 5, `userName sw "_"`: 0, `userName sw "%"`: 0, `userName co "3@"`: 1, `not (userName eq "u1@example.org")`: 4,
		`active eq true and (userName sw "u1" or userName sw "u2")`: 2, `userName eq "' OR true --"`: 0, `externalId pr`: 5,
		`meta.created gt "2001-01-01T00:00:00Z"`: 5, `id eq "nonsense"`: 0} {
		require.Equal(t, want, count(filter), filter)
	}
	page, total, err := r.Provision.ListUsers(t.Context(), r.okta, provision.Page{Start: 4, Count: 100})
	require.NoError(t, err)
	require.Equal(t, []any{2, 5, "u3@example.org"}, []any{len(page), total, page[0].UserName})
	page, total, err = r.Provision.ListUsers(t.Context(), r.okta, provision.Page{Start: 1, Count: 0})
	require.NoError(t, err)
	require.Equal(t, []any{0, 5}, []any{len(page), total})
	for _, filter := range []string{`userName eq "` + strings.Repeat("a", 100_000) + `"`, `passwd eq "x"`, `meta.created gt "yesterday"`} {
		_, _, err := r.Provision.ListUsers(t.Context(), r.okta, provision.Page{Filter: filter, Count: 1})
		answer(t, err, 400, scim.InvalidFilter)
	}
}

// Who deletes everybody by mistake is stopped, until an administrator says so or an hour has passed.
func TestManyRemovalsNeedAWord(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	var all []provision.User
	for i := range 9 {
		all = append(all, r.create(fmt.Sprintf("u%d", i)))
	}
	g, err := r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "Staff", Members: []string{all[5].ID, all[6].ID, all[7].ID,
		all[8].ID}})
	require.NoError(t, err)
	for i := range 3 {
		require.NoError(t, r.Provision.DeleteUser(ctx, r.okta, all[i].ID, ""))
	}
	for range 3 { // retries change nothing
		words := answer(t, r.Provision.DeleteUser(ctx, r.okta, all[3].ID, ""), 429, "")
		require.Contains(t, words, "berth directory allow-removals okta 4")
	}
	_, err = r.Provision.ChangeUser(ctx, r.okta, all[3].ID, "", off)
	answer(t, err, 429, "")
	answer(t, r.Provision.DeleteGroup(ctx, r.okta, g.ID, ""), 429, "")
	_, err = r.Provision.ChangeGroup(ctx, r.okta, g.ID, "", func(g *scim.Group) error { g.DisplayName = "x"; return nil })
	answer(t, err, 429, "")
	require.Len(t, r.account("u5").Projects, 1)
	require.Equal(t, "active", r.account("u3").Status)
	// What takes nothing away goes on.
	r.create("fresh")

	require.True(t, fault.Is(r.Provision.AllowRemovals(ctx, r.Stranger("s@x"), "okta", 10), fault.Denied))
	require.True(t, fault.Is(r.Provision.AllowRemovals(ctx, r.Admin, "nobody", 10), fault.NotFound))
	require.NoError(t, r.Provision.AllowRemovals(ctx, r.Admin, "okta", 4))
	require.NoError(t, r.Provision.DeleteUser(ctx, r.okta, all[3].ID, ""))
	answer(t, r.Provision.DeleteUser(ctx, r.okta, all[4].ID, ""), 429, "")
	r.mu.Lock()
	r.now = r.now.Add(61 * time.Minute)
	r.mu.Unlock()
	require.NoError(t, r.Provision.DeleteUser(ctx, r.okta, all[4].ID, ""))
}

// Of removals at one time no more are let through than one after another.
func TestRemovalsAtOneTime(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all []provision.User
	for i := range 8 {
		all = append(all, r.create(fmt.Sprintf("u%d", i)))
	}
	results := make([]error, len(all))
	var w sync.WaitGroup
	for i, u := range all {
		w.Go(func() { results[i] = r.Provision.DeleteUser(t.Context(), r.okta, u.ID, "") })
	}
	w.Wait()
	done := 0
	for _, err := range results {
		if err == nil {
			done++
		} else {
			answer(t, err, 429, "")
		}
	}
	require.Equal(t, 3, done)
}

func TestTwoCreateTheSame(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	results := make([]error, 6)
	var w sync.WaitGroup
	for i := range results {
		w.Go(func() { _, results[i] = r.Provision.CreateUser(t.Context(), r.okta, user("ada")) })
	}
	w.Wait()
	made := 0
	for _, err := range results {
		if err == nil {
			made++
		} else {
			answer(t, err, 409, scim.Uniqueness)
		}
	}
	require.Equal(t, 1, made)
	_, total, err := r.Provision.ListUsers(t.Context(), r.okta, provision.Page{Count: 10})
	require.NoError(t, err)
	require.Equal(t, 1, total)
	require.Equal(t, "active", r.account("ada").Status)

	// Two who change a group at one time both get what they asked for.
	var ids []string
	for i := range 6 {
		ids = append(ids, r.create(fmt.Sprintf("m%d", i)).ID)
	}
	g, err := r.Provision.CreateGroup(t.Context(), r.okta, scim.Group{DisplayName: "Staff"})
	require.NoError(t, err)
	errs := make([]error, len(ids))
	for i, id := range ids {
		w.Go(func() {
			_, errs[i] = r.Provision.ChangeGroup(t.Context(), r.okta, g.ID, "", func(g *scim.Group) error {
				return g.Patch([]byte(`{"Operations":[{"op":"add","path":"members","value":[{"value":"` + id + `"}]}]}`))
			})
		})
	}
	w.Wait()
	require.NoError(t, errors.Join(errs...))
	got, err := r.Provision.GetGroup(t.Context(), r.okta, g.ID, true)
	require.NoError(t, err)
	require.Len(t, got.Members, 6)
	for i := range ids {
		require.Len(t, r.account(fmt.Sprintf("m%d", i)).Projects, 1)
	}
}

// What a process that died left is settled by the loop; what the rules do not let in yet, when they do.
func TestWhatBrokeOffIsSettled(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *provision.Provider) { p.Rules.RequireGroup = true })
	ctx := t.Context()
	ada := r.create("ada")
	_, err := r.Tenancy.GetUser(ctx, r.Admin, "ada@example.org")
	require.True(t, fault.Is(err, fault.NotFound), "she is in no group yet: %v", err)
	g, err := r.Provision.CreateGroup(ctx, r.okta, scim.Group{DisplayName: "Staff", Members: []string{ada.ID}})
	require.NoError(t, err)
	require.Equal(t, "active", r.account("ada").Status)

	r.Exec(`DELETE FROM scim_members; UPDATE scim_users SET settled = false`) // as after a crash behind the transaction
	pass := r.Provision.Loops()[0].Begin(r.Term())
	_, err = pass.Pass(ctx)
	require.NoError(t, err)
	require.Equal(t, "inactive", r.account("ada").Status, "who is in no group is let in no more")
	r.Exec(`INSERT INTO scim_members (group_id, member_id) VALUES ($1, $2)`, g.ID, ada.ID)
	r.Exec(`UPDATE scim_users SET deleted = true, active = false, settled = false`)
	_, err = pass.Pass(ctx)
	require.NoError(t, err)
	_, total, err := r.Provision.ListUsers(ctx, r.okta, provision.Page{Count: 1})
	require.NoError(t, err)
	require.Zero(t, total)
	wait, err := pass.Pass(ctx)
	require.NoError(t, err)
	require.NotZero(t, wait)
	require.Equal(t, "inactive", r.account("ada").Status)
}

func TestProvidersThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]provision.Provider{
		"rules.domain":      {},
		"is of domain e":    {Rules: identity.Rules{Domain: "d", Groups: []identity.GroupRule{{Group: "g", Domain: "e"}}}},
		"gives the role su": {Rules: identity.Rules{Domain: "d", Groups: []identity.GroupRule{{Group: "g", Role: authz.RoleSuperadmin}}}},
		"most_removals":     {MostRemovals: -1, Rules: identity.Rules{Domain: "d"}},
	} {
		require.ErrorContains(t, p.Validate("x"), want)
	}
}
