package identity_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

func ada() identity.Person {
	return identity.Person{Provider: "corp", Subject: "1", Email: "ada@example.org", EmailVerified: true, FullName: "Ada", Active: true}
}

func rules() identity.Rules {
	return identity.Rules{Domain: "d", Create: true, Projects: []string{"all"}, Groups: []identity.GroupRule{
		{Group: "research", Projects: []string{"lab"}}, {Group: "leads", Role: authz.RoleAdmin}, {Group: "readers", Role: authz.RoleMonitor},
		{Group: "roots", Role: authz.RoleSuperadmin}, {Group: "e-people", Domain: "e", Projects: []string{"e-lab"}},
	}}
}

func snapshot() identity.Snapshot {
	return identity.Snapshot{DomainActive: true, OtherSuperadmins: 1,
		Projects: []identity.Project{{ID: "p-all", Name: "all"}, {ID: "p-lab", Name: "lab"}}}
}

func account() identity.Account {
	return identity.Account{ID: "u", Email: "ada@example.org", FullName: "Ada", Domain: "d", Role: authz.RoleUser, Status: "active"}
}

// Who is refused, and why.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		person func(*identity.Person)
		is     func(*identity.Snapshot)
		rules  func(*identity.Rules)
		why    identity.Reason
	}{
		"no subject":      {person: func(p *identity.Person) { p.Subject = "" }, why: identity.ReasonBadSubject},
		"a long subject":  {person: func(p *identity.Person) { p.Subject = string(make([]byte, 256)) }, why: identity.ReasonBadSubject},
		"no address":      {person: func(p *identity.Person) { p.Email = "" }, why: identity.ReasonBadAddress},
		"a letter like k": {person: func(p *identity.Person) { p.Email = "\u212aate@example.org" }, why: identity.ReasonBadAddress},
		"unverified, new": {person: func(p *identity.Person) { p.EmailVerified = false }, why: identity.ReasonUnverified},
		"unverified, taken": {person: func(p *identity.Person) { p.EmailVerified = false },
			is: taken, rules: linking,
			why: identity.ReasonUnverified},
		"taken": {is: taken, why: identity.ReasonTaken},
		"taken by superadmin": {is: func(s *identity.Snapshot) { taken(s); s.ByAddress[0].Role = authz.RoleSuperadmin }, rules: linking,
			why: identity.ReasonSuperadmin},
		"taken by a service": {is: func(s *identity.Snapshot) { taken(s); s.ByAddress[0].Service = true }, rules: linking,
			why: identity.ReasonSuperadmin},
		"an address that another person there had": {is: func(s *identity.Snapshot) { taken(s); s.ByAddress[0].Elsewhere = true }, rules: linking,
			why: identity.ReasonTaken},
		"taken in another domain": {is: func(s *identity.Snapshot) { taken(s); s.ByAddress[0].Domain = "e" }, rules: linking,
			why: identity.ReasonDomainMoved},
		"taken, not verified here": {is: func(s *identity.Snapshot) { taken(s); s.ByAddress[0].Status = "before-verification" }, rules: linking,
			why: identity.ReasonInactive},
		"taken, shut out before": {is: func(s *identity.Snapshot) {
			taken(s)
			s.ByAddress[0].Status, s.ByAddress[0].StatusInfo = "inactive", identity.ShutOut("corp")
		}, rules: linking, why: identity.ReasonInactive},
		"two accounts":      {is: func(s *identity.Snapshot) { taken(s); taken(s) }, rules: linking, why: identity.ReasonAmbiguous},
		"no new people":     {rules: func(r *identity.Rules) { r.Create = false }, why: identity.ReasonUnknown},
		"rules of nothing":  {rules: func(r *identity.Rules) { *r = identity.Rules{} }, why: identity.ReasonUnknown},
		"another's address": {rules: func(r *identity.Rules) { r.EmailDomains = []string{"other.org"} }, why: identity.ReasonOtherAddress},
		"no group":          {rules: func(r *identity.Rules) { r.RequireGroup = true }, why: identity.ReasonNoGroup},
		"no such domain":    {is: func(s *identity.Snapshot) { s.DomainActive = false }, why: identity.ReasonDomain},
		"inactive": {is: func(s *identity.Snapshot) {
			s.Known = &identity.Account{ID: "u", Domain: "d", Status: "inactive", StatusInfo: "by hand"}
		}, why: identity.ReasonInactive},
		"shut out by another provider": {is: func(s *identity.Snapshot) {
			s.Known = &identity.Account{ID: "u", Domain: "d", Status: "inactive", StatusInfo: identity.ShutOut("other")}
		}, why: identity.ReasonInactive},
		"moved": {is: func(s *identity.Snapshot) { s.Known = &identity.Account{ID: "u", Domain: "e", Status: "active"} },
			why: identity.ReasonDomainMoved},
		"shut out and unknown": {person: func(p *identity.Person) { p.Active = false }, why: identity.ReasonUnknown},
		"shut out superadmin": {person: func(p *identity.Person) { p.Active = false }, is: func(s *identity.Snapshot) {
			s.Known = &identity.Account{ID: "u", Domain: "d", Status: "active", Role: authz.RoleSuperadmin}
		}, why: identity.ReasonSuperadmin},
		"shut out last superadmin": {person: func(p *identity.Person) { p.Active = false }, is: func(s *identity.Snapshot) {
			s.OtherSuperadmins = 0
			s.Known = &identity.Account{ID: "u", Domain: "d", Status: "active", Role: authz.RoleSuperadmin, GivenRole: authz.RoleSuperadmin,
				RoleBefore: authz.RoleUser}
		}, why: identity.ReasonSuperadmin},
	} {
		p, s, r := ada(), snapshot(), rules()
		for _, change := range []func(){
			func() { apply(c.person, &p) }, func() { apply(c.is, &s) }, func() { apply(c.rules, &r) },
		} {
			change()
		}
		plan := identity.Decide(&p, &s, &r)
		require.Equal(t, identity.Refuse, plan.Action, name)
		require.Equal(t, c.why, plan.Reason, name)
		require.NotEmpty(t, plan.Words, name)
		require.False(t, plan.Changes(), name)
	}
}

func apply[T any](f func(*T), v *T) {
	if f != nil {
		f(v)
	}
}

func taken(s *identity.Snapshot) { s.ByAddress = append(s.ByAddress, account()) }
func linking(r *identity.Rules)  { r.LinkVerifiedEmail = true }

func TestNewPeople(t *testing.T) {
	t.Parallel()
	p, s, r := ada(), snapshot(), rules()
	p.Email, p.Username, p.Groups = "Ada@Example.org", "ada", []string{"research", "leads"}
	plan := identity.Decide(&p, &s, &r)
	require.Equal(t, identity.Create, plan.Action)
	require.Equal(t, []string{"ada@example.org", "ada", "Ada", "d"}, []string{plan.Email, plan.Username, plan.FullName, plan.Domain})
	require.Equal(t, "admin", *plan.Role)
	require.Equal(t, []cluster.ProjectID{"p-all", "p-lab"}, plan.Join)
	require.Equal(t, plan.Join, plan.Give)

	s.UsernameTaken = true
	require.Empty(t, identity.Decide(&p, &s, &r).Username)

	// Somebody of another domain gets what is of that domain: no role of an administrator of this one.
	p.Groups, s.Projects = []string{"research", "leads", "e-people"}, []identity.Project{{ID: "p-e", Name: "e-lab"}}
	plan = identity.Decide(&p, &s, &r)
	require.Equal(t, "e", plan.Domain)
	require.Nil(t, plan.Role)
	require.Equal(t, []cluster.ProjectID{"p-e"}, plan.Join)
	p.Groups = append(p.Groups, "roots")
	require.Equal(t, "superadmin", *identity.Decide(&p, &s, &r).Role)

	// What rules name and is not there is left out, with words.
	p.Groups, s.Projects = nil, nil
	plan = identity.Decide(&p, &s, &r)
	require.Equal(t, identity.Create, plan.Action)
	require.Equal(t, []string{"there is no project all in domain d"}, plan.Warnings)
}

// What a provider gave it takes away, and nothing else.
func TestWhatWasGivenIsTaken(t *testing.T) {
	t.Parallel()
	p, s, r := ada(), snapshot(), rules()
	a := account()
	a.Members = []identity.Membership{
		{Project: "p-lab", Ours: true}, {Project: "p-hand"}, {Project: "p-both", Ours: true, Others: true},
		{Project: "p-office", Ours: true, Admin: true}, {Project: "p-all"},
	}
	s.Known = &a
	plan := identity.Decide(&p, &s, &r)
	require.Equal(t, identity.Update, plan.Action)
	require.Equal(t, []cluster.ProjectID{"p-lab"}, plan.Leave)
	require.ElementsMatch(t, []cluster.ProjectID{"p-lab", "p-both", "p-office"}, plan.Take)
	require.Empty(t, plan.Join)
	require.Empty(t, plan.Give, "a membership by hand becomes the provider's")

	for _, c := range []struct {
		words               string
		is, given, before   authz.Role
		others              bool
		groups              string
		role, gift, replace authz.Role // "" of role: stays; "-" of gift: as it was
	}{
		{"taken", authz.RoleAdmin, authz.RoleAdmin, authz.RoleUser, false, "", authz.RoleUser, "", ""},
		{"taken to what it was", authz.RoleAdmin, authz.RoleAdmin, authz.RoleMonitor, false, "", authz.RoleMonitor, "", ""},
		{"by hand", authz.RoleAdmin, "", "", false, "", "", "-", ""},
		{"more by hand", authz.RoleSuperadmin, authz.RoleAdmin, authz.RoleUser, false, "leads", "", "", ""},
		{"less by hand is given again", authz.RoleUser, authz.RoleAdmin, authz.RoleUser, false, "leads", authz.RoleAdmin, "-", ""},
		{"given", authz.RoleUser, "", "", false, "leads", authz.RoleAdmin, authz.RoleAdmin, authz.RoleUser},
		{"stays given", authz.RoleAdmin, authz.RoleAdmin, authz.RoleUser, false, "leads", "", "-", ""},
		{"raised", authz.RoleAdmin, authz.RoleAdmin, authz.RoleUser, false, "roots", authz.RoleSuperadmin, authz.RoleSuperadmin, authz.RoleUser},
		{"of another provider", authz.RoleMonitor, "", "", true, "leads", "", "-", ""},
	} {
		a := account()
		a.Role, a.GivenRole, a.RoleBefore, a.OthersGave = c.is, c.given, c.before, c.others
		p.Groups, s.Known = []string{c.groups}, &a
		plan := identity.Decide(&p, &s, &r)
		if c.role == "" {
			require.Nil(t, plan.Role, c.words)
		} else {
			require.Equal(t, string(c.role), *plan.Role, c.words)
		}
		if c.gift == "-" {
			require.False(t, plan.GiftChanges, c.words)
		} else {
			require.Equal(t, []any{true, c.gift, c.replace}, []any{plan.GiftChanges, plan.GivenRole, plan.RoleBefore}, c.words)
		}
	}

	// The last superadmin stays one, whatever the provider says.
	a = account()
	a.Role, a.GivenRole, a.RoleBefore = authz.RoleSuperadmin, authz.RoleSuperadmin, authz.RoleUser
	p.Groups, s.Known, s.OtherSuperadmins = nil, &a, 0
	plan = identity.Decide(&p, &s, &r)
	require.Nil(t, plan.Role)
	require.Contains(t, plan.Warnings[0], "last active superadmin")
}

func TestShutOutAndLetIn(t *testing.T) {
	t.Parallel()
	p, s, r := ada(), snapshot(), rules()
	a := account()
	s.Known, p.Active = &a, false
	plan := identity.Decide(&p, &s, &r)
	require.Equal(t, identity.Deactivate, plan.Action)
	require.Equal(t, "inactive", *plan.Status)
	a.Status, a.StatusInfo = *plan.Status, *plan.StatusInfo
	plan = identity.Decide(&p, &s, &r)
	require.False(t, plan.Changes(), "twice")
	p.Active = true
	plan = identity.Decide(&p, &s, &r)
	require.Equal(t, identity.Update, plan.Action)
	require.Equal(t, "active", *plan.Status)
}

// Whatever rules and groups: no superadmin without a rule that says so, nobody leaves what this provider did not give, and a second look
// finds nothing to do.
func TestDecideNeverGoesTooFar(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		groups := []string{"research", "leads", "readers", "roots", "e-people", "other"}
		roles := []authz.Role{authz.RoleUser, authz.RoleMonitor, authz.RoleAdmin, authz.RoleSuperadmin}
		p, s, r := ada(), snapshot(), rules()
		p.Groups = rapid.SliceOfDistinct(rapid.SampledFrom(groups), rapid.ID[string]).Draw(t, "groups")
		p.EmailVerified = rapid.Bool().Draw(t, "verified")
		r.LinkVerifiedEmail, r.Create = rapid.Bool().Draw(t, "link"), rapid.Bool().Draw(t, "create")
		a := account()
		a.Role = rapid.SampledFrom(roles).Draw(t, "role")
		a.Service = rapid.Bool().Draw(t, "service")
		for _, id := range []cluster.ProjectID{"p-all", "p-lab", "p-hand"} {
			if rapid.Bool().Draw(t, "member") {
				a.Members = append(a.Members, identity.Membership{Project: id, Ours: rapid.Bool().Draw(t, "ours"),
					Others: rapid.Bool().Draw(t, "others"), Admin: rapid.Bool().Draw(t, "admin")})
			}
		}
		known := rapid.Bool().Draw(t, "known")
		if known {
			s.Known = &a
		} else if rapid.Bool().Draw(t, "taken") {
			s.ByAddress = append(s.ByAddress, a)
		}
		plan := identity.Decide(&p, &s, &r)
		if plan.Action == identity.Refuse {
			return
		}
		if plan.Role != nil && *plan.Role == "superadmin" {
			require.Contains(t, p.Groups, "roots")
		}
		if plan.Action == identity.Link {
			require.True(t, p.EmailVerified && r.LinkVerifiedEmail && a.Role != authz.RoleSuperadmin && !a.Service)
		}
		for _, id := range plan.Leave {
			for _, m := range a.Members {
				require.False(t, m.Project == id && (!m.Ours || m.Others || m.Admin))
			}
		}
		if plan.Action != identity.Update && plan.Action != identity.Link {
			return
		}
		// The account as it is afterwards.
		if plan.Role != nil {
			a.Role = authz.Role(*plan.Role)
		}
		if plan.GiftChanges {
			a.GivenRole, a.RoleBefore = plan.GivenRole, plan.RoleBefore
		}
		after := []identity.Membership{}
		for _, m := range a.Members {
			if contains(plan.Leave, m.Project) {
				continue
			}
			m.Ours = m.Ours && !contains(plan.Take, m.Project) || contains(plan.Give, m.Project)
			after = append(after, m)
		}
		for _, id := range plan.Join {
			after = append(after, identity.Membership{Project: id, Ours: true})
		}
		a.Members, s.Known = after, &a
		again := identity.Decide(&p, &s, &r)
		require.Equal(t, identity.Update, again.Action)
		require.False(t, again.Changes(), "%+v", again)
	})
}

func contains(list []cluster.ProjectID, id cluster.ProjectID) bool {
	for _, l := range list {
		if l == id {
			return true
		}
	}
	return false
}

func TestRulesThatCannotBeMeant(t *testing.T) {
	t.Parallel()
	good := rules()
	require.NoError(t, good.Validate("x"))
	for words, change := range map[string]func(*identity.Rules){
		"domain is empty": func(r *identity.Rules) { r.Domain = "" },
		"role is":         func(r *identity.Rules) { r.Groups[0].Role = "root" },
		"role is \"user":  func(r *identity.Rules) { r.Groups[0].Role = "user" },
		"gives nothing":   func(r *identity.Rules) { r.Groups[0].Projects = nil },
		"empty or too":    func(r *identity.Rules) { r.Groups[0].Group = "" },
		"lets nobody in":  func(r *identity.Rules) { r.Groups, r.RequireGroup = nil, true },
		"email_domains":   func(r *identity.Rules) { r.EmailDomains = []string{"@example.org"} },
	} {
		r := rules()
		change(&r)
		require.ErrorContains(t, r.Validate("x"), words)
	}
	for _, name := range []string{"", "Corp", "a b", "-a", "corp/x", string(make([]byte, 40))} {
		require.Error(t, identity.CheckName(name), "%q", name)
	}
}
