package apply_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/apply"
	"berth.dev/berth/internal/manager/tenancy/plan"
)

func made(t *testing.T, w *managertest.World, a authz.Actor, r apply.Request) *plan.Plan {
	t.Helper()
	p, err := w.Tenancies.Plan(t.Context(), a, r)
	require.NoError(t, err)
	return p
}

func yaml(text string) apply.Request { return apply.Request{Format: apply.YAML, Text: text} }

func steps(changes []plan.Change) []apply.Step {
	var out []apply.Step
	for _, c := range changes {
		out = append(out, apply.Step{Change: c})
	}
	return out
}

// carryOut applies changes in steps; all succeed. It returns how many were needed.
func carryOut(t *testing.T, w *managertest.World, a authz.Actor, changes []plan.Change) (needed int) {
	t.Helper()
	for part := range slices.Chunk(changes, apply.MaxChanges) {
		results, err := w.Tenancies.Apply(t.Context(), a, steps(part))
		require.NoError(t, err)
		require.Len(t, results, len(part))
		for i, r := range results {
			require.NoError(t, r.Err, "%v", part[i])
			if !r.Already {
				needed++
			}
		}
	}
	return needed
}

const organisation = `
policies:
  keypair:
    small: {max_sessions: 2, resources: {cpu: 4, mem: 8g}, max_waiting: 5, unlisted: limited}
  user:
    students: {max_folders: 10, max_folder_bytes: 1073741824}
  project:
    labs: {max_folders: 3}
domains:
  physics:
    description: Department of Physics
    total: {cpu: 64, mem: 256g}
    registries: [registry.example.org]
    folder_hosts:
      local:volume1: [mount-in-session, download-file]
    projects:
      lasers:
        total: {cpu: 16}
        policy: labs
        members: [ada@example.org]
        admins: [grace@example.org]
      models: {type: model-store, description: "=1+1"}
    users:
      grace@example.org: {full_name: Grace, role: admin}
      ada@example.org:
        username: ada
        full_name: Ada Lovelace
        policy: students
        keypair_policy: small
        allowed_from: [10.0.0.0/8]
resource_groups:
  gpus: {scheduler: drf, domains: [physics], projects: [physics/lasers]}
`

func TestATenancyIsAppliedOnceAndForAll(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	p := made(t, w, w.Admin, yaml(organisation))
	require.Len(t, p.Changes, 11)
	require.Equal(t, 11, carryOut(t, w, w.Admin, p.Changes))
	require.Empty(t, made(t, w, w.Admin, yaml(organisation)).Changes, "applied twice")

	// What is there is what the file says.
	ada, err := w.Tenancy.GetUser(t.Context(), w.Admin, "ada@example.org")
	require.NoError(t, err)
	require.Equal(t, "Ada Lovelace", ada.FullName)
	require.Equal(t, []string{"10.0.0.0/8"}, ada.AllowedClientIP)
	require.Equal(t, "lasers", ada.Projects[0].Name)
	k, err := w.Tenancy.GetKeypair(t.Context(), w.Admin, ada.MainAccessKey)
	require.NoError(t, err)
	require.Equal(t, "small", k.ResourcePolicy)
	members, err := w.Tenancy.Members(t.Context(), w.Admin, string(ada.Projects[0].ID))
	require.NoError(t, err)
	require.Len(t, members, 2)
	require.True(t, members[1].Admin)
	// No password lets a new user in.
	_, err = w.Tenancy.Authorize(t.Context(), "physics", "ada@example.org", "")
	require.Error(t, err)

	// What is exported changes nothing, in any form.
	for _, f := range []apply.Format{apply.YAML, apply.CSV} {
		text, err := w.Tenancies.Export(t.Context(), w.Admin, "", f)
		require.NoError(t, err)
		require.Contains(t, text, "ada@example.org")
		require.Empty(t, made(t, w, w.Admin, apply.Request{Format: f, Text: text}).Changes, text)
	}
	text, err := w.Tenancies.Export(t.Context(), w.Admin, "physics", apply.YAML)
	require.NoError(t, err)
	require.NotContains(t, text, "policies:")
	require.NotContains(t, text, string(w.Admin.Email))
	_, err = w.Tenancies.Export(t.Context(), w.Admin, "none", apply.YAML)
	require.True(t, fault.Is(err, fault.NotFound))

	// Changes are recorded one by one, by the use cases of their nouns.
	var actions []string
	rows, err := w.Store.Pool().Query(t.Context(), `SELECT DISTINCT action FROM audit_log WHERE email = $1 ORDER BY 1`, w.Admin.Email)
	require.NoError(t, err)
	for rows.Next() {
		var action string
		require.NoError(t, rows.Scan(&action))
		actions = append(actions, action)
	}
	require.Subset(t, actions, []string{"domain.create", "keypair-policy.create", "project-policy.create", "project.create", "project.modify",
		"resource-group.associate", "resource-group.create", "tenancy.apply", "user-policy.create", "user.create"})

	// Every kind of property is changed, and back again.
	changed := strings.NewReplacer("max_sessions: 2", "max_sessions: 3", "max_folders: 10", "max_folders: 11",
		"max_folders: 3", "max_folders: 4",
		"cpu: 64", "cpu: 32", "download-file", "upload-file", "cpu: 16", "cpu: 8", "Ada Lovelace", "Ada", "keypair_policy: small",
		"keypair_policy: default", "policy: students", "policy: default", "[10.0.0.0/8]", "[]", "scheduler: drf", "scheduler: fifo",
		"domains: [physics]", "domains: []", "members: [ada@example.org]", "members: []", "admins: [grace@example.org]",
		"admins: [ada@example.org]").Replace(organisation)
	there := made(t, w, w.Admin, yaml(changed))
	require.Len(t, there.Changes, 9)
	require.Equal(t, 9, carryOut(t, w, w.Admin, there.Changes))
	require.Empty(t, made(t, w, w.Admin, yaml(changed)).Changes)
	require.Zero(t, carryOut(t, w, w.Admin, there.Changes), "what is as it should be is left alone: a step may be sent again")
	back := made(t, w, w.Admin, yaml(organisation))
	require.Equal(t, len(there.Changes), carryOut(t, w, w.Admin, back.Changes))
	require.Empty(t, made(t, w, w.Admin, yaml(organisation)).Changes)
}

// What somebody else changed between plan and act is not overwritten, whatever kind it is of.
func TestWhatOthersChangedMeanwhileIsAConflict(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	carryOut(t, w, w.Admin, made(t, w, w.Admin, yaml(organisation)).Changes)
	changed := strings.NewReplacer("max_sessions: 2", "max_sessions: 3", "max_folders: 10", "max_folders: 11",
		"max_folders: 3", "max_folders: 4",
		"cpu: 64", "cpu: 32", "cpu: 16", "cpu: 8", "Ada Lovelace", "Ada", "scheduler: drf", "scheduler: fifo",
		"members: [ada@example.org]", "members: []").Replace(organisation)
	p := made(t, w, w.Admin, yaml(changed))
	// Somebody else, in the meantime.
	other := strings.NewReplacer("max_sessions: 2", "max_sessions: 9", "max_folders: 10", "max_folders: 19",
		"max_folders: 3", "max_folders: 9",
		"cpu: 64", "cpu: 99", "cpu: 16", "cpu: 9", "Ada Lovelace", "A. L.", "scheduler: drf", "scheduler: lifo",
		"admins: [grace@example.org]", "admins: [grace@example.org, ada@example.org]", "members: [ada@example.org]", "members: []").
		Replace(organisation)
	carryOut(t, w, w.Admin, made(t, w, w.Admin, yaml(other)).Changes)

	results, err := w.Tenancies.Apply(t.Context(), w.Admin, steps(p.Changes))
	require.NoError(t, err)
	require.Len(t, results, 8)
	for i, r := range results {
		require.Error(t, r.Err, "%v", p.Changes[i])
		require.Equal(t, "changed-meanwhile", fault.ReasonOf(r.Err), "%v: %v", p.Changes[i], r.Err)
	}
	require.Empty(t, made(t, w, w.Admin, yaml(other)).Changes, "nothing was overwritten")
}

// An administrator of a domain sends changes that no plan gave them.
func TestAnAdministratorOfADomainReachesNothingElse(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	carryOut(t, w, w.Admin, made(t, w, w.Admin, yaml(organisation)).Changes)
	grace, err := w.Tenancy.MainActor(t.Context(), w.Admin, "grace@example.org")
	require.NoError(t, err)
	ada, err := w.Tenancy.MainActor(t.Context(), w.Admin, "ada@example.org")
	require.NoError(t, err)
	_, err = w.Tenancy.CreateUser(t.Context(), w.Admin, "boss@example.org", tenancy.UserProps{Domain: new("physics"),
		Role: new(authz.RoleSuperadmin), WithoutPassword: true})
	require.NoError(t, err)

	// Whoever administers nothing plans, applies and exports nothing.
	_, err = w.Tenancies.Plan(t.Context(), ada, yaml("domains: {}"))
	require.True(t, fault.Is(err, fault.Denied))
	_, err = w.Tenancies.Apply(t.Context(), ada, nil)
	require.True(t, fault.Is(err, fault.Denied))
	_, err = w.Tenancies.Export(t.Context(), ada, "", apply.YAML)
	require.True(t, fault.Is(err, fault.Denied))
	_, err = w.Tenancies.Export(t.Context(), grace, "default", apply.YAML)
	require.True(t, fault.Is(err, fault.Denied))

	// The file of her domain has neither superadmins nor what superadmins set, and changes nothing.
	text, err := w.Tenancies.Export(t.Context(), grace, "", apply.YAML)
	require.NoError(t, err)
	require.NotContains(t, text, "boss@")
	require.NotContains(t, text, "policies:")
	require.NotContains(t, text, "resource_groups:")
	require.Empty(t, made(t, w, grace, apply.Request{Format: apply.YAML, Text: text, Prune: true}).Changes)

	before, err := w.Tenancies.Export(t.Context(), w.Admin, "", apply.YAML)
	require.NoError(t, err)
	for i, c := range []plan.Change{
		{Kind: plan.User, Name: w.Admin.Email, From: plan.Attrs{"full_name": "Administrator"}, To: plan.Attrs{"full_name": "x"}},
		{Kind: plan.User, Name: "boss@example.org", From: plan.Attrs{"status": "active"}, To: plan.Attrs{"status": "inactive"}},
		{Kind: plan.User, Name: "boss@example.org", From: plan.Attrs{"keypair_policy": "default"}, To: plan.Attrs{"keypair_policy": "small"}},
		{Kind: plan.User, Name: "ada@example.org", From: plan.Attrs{"role": "user"}, To: plan.Attrs{"role": "superadmin"}},
		{Kind: plan.User, Name: "ada@example.org", From: plan.Attrs{"role": "user"}, To: plan.Attrs{"role": "monitor"}},
		{Kind: plan.User, Name: "grace@example.org", From: plan.Attrs{"role": "admin"}, To: plan.Attrs{"role": "superadmin"}},
		{Kind: plan.User, Name: "grace@example.org", From: plan.Attrs{"status": "active"}, To: plan.Attrs{"status": "inactive"}},
		{Kind: plan.User, Name: "grace@example.org", From: plan.Attrs{"keypair_policy": "default"}, To: plan.Attrs{"keypair_policy": "small"}},
		{Kind: plan.User, Name: "grace@example.org", From: plan.Attrs{"policy": "default"}, To: plan.Attrs{"policy": "students"}},
		{Kind: plan.User, Name: "new@example.org", Domain: "default", Make: true},
		{Kind: plan.User, Name: "new@example.org", Domain: "physics", Make: true, To: plan.Attrs{"role": "superadmin"}},
		{Kind: plan.Domain, Name: "new", Make: true},
		{Kind: plan.Domain, Name: "physics", From: plan.Attrs{"total": `{"cpu":"64","mem":"256g"}`}, To: plan.Attrs{"total": "{}"}},
		{Kind: plan.Project, Domain: "default", Name: "default", From: plan.Attrs{"total": "{}"}, To: plan.Attrs{"total": `{"cpu":"1"}`}},
		{Kind: plan.Project, Domain: "default", Name: "new", Make: true},
		{Kind: plan.Members, Domain: "default", Name: "default", From: plan.Attrs{"grace@example.org": plan.Nobody},
			To: plan.Attrs{"grace@example.org": plan.Admin}},
		{Kind: plan.Members, Domain: "physics", Name: "lasers", From: plan.Attrs{w.Admin.Email: plan.Nobody},
			To: plan.Attrs{w.Admin.Email: plan.Member}},
		{Kind: plan.Members, Domain: "physics", Name: "lasers", From: plan.Attrs{"x": plan.Nobody}, To: plan.Attrs{"x": plan.Member}},
		{Kind: plan.KeypairPolicy, Name: "small", From: plan.Attrs{"max_sessions": "2"}, To: plan.Attrs{"max_sessions": "0"}},
		{Kind: plan.UserPolicy, Name: "new", Make: true},
		{Kind: plan.ProjectPolicy, Name: "labs", From: plan.Attrs{"max_folders": "3"}, To: plan.Attrs{"max_folders": "0"}},
		{Kind: plan.ResourceGroup, Name: "gpus", From: plan.Attrs{"active": "true"}, To: plan.Attrs{"active": "false"}},
		{Kind: plan.Access, Name: "default", From: plan.Attrs{"project:physics/lasers": plan.Refused},
			To: plan.Attrs{"project:physics/lasers": plan.Admitted}},
		{Kind: plan.Access, Name: "gpus", From: plan.Attrs{"domain:physics": plan.Admitted}, To: plan.Attrs{"domain:physics": plan.Refused}},
		{Kind: plan.Access, Name: "gpus", To: plan.Attrs{"keypair:X": plan.Admitted}},
		{Kind: "secret", Name: "x"},
		{Kind: plan.User, Name: "ada@example.org", To: plan.Attrs{"password_hash": "x"}},
		{Kind: plan.User, Name: "ada@example.org", To: plan.Attrs{"allowed_from": "{"}},
		{Kind: plan.Project, Domain: "physics", Name: "lasers", To: plan.Attrs{"active": "perhaps"}},
	} {
		results, err := w.Tenancies.Apply(t.Context(), grace, steps([]plan.Change{c}))
		require.NoError(t, err, "%d: %v", i, c)
		require.Error(t, results[0].Err, "%d: %v", i, c)
		require.Contains(t, []fault.Kind{fault.Denied, fault.NotFound, fault.Conflict, fault.Invalid}, fault.KindOf(results[0].Err), "%v", c)
	}
	after, err := w.Tenancies.Export(t.Context(), w.Admin, "", apply.YAML)
	require.NoError(t, err)
	require.Equal(t, before, after)
	_, err = w.Tenancies.Apply(t.Context(), w.Admin, make([]apply.Step, apply.MaxChanges+1))
	require.True(t, fault.Is(err, fault.Invalid))

	// A superadmin who is a member of her project stays one, although her file does not name them.
	require.Equal(t, 1, carryOut(t, w, w.Admin, []plan.Change{{Kind: plan.Members, Domain: "physics", Name: "lasers",
		From: plan.Attrs{"boss@example.org": plan.Nobody}, To: plan.Attrs{"boss@example.org": plan.Member}}}))
	require.Empty(t, made(t, w, grace,
		yaml("domains: {physics: {projects: {lasers: {members: [ada@example.org], admins: [grace@example.org]}}}}")).Changes)
}

// Tokens that only read plan and export nothing more than they may.
func TestPlansAskForTheRightToChange(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	reads := w.Admin.Within(&authz.Scope{Token: "t", ReadOnly: true})
	_, err := w.Tenancies.Export(t.Context(), reads, "", apply.YAML)
	require.NoError(t, err)
	_, err = w.Tenancies.Plan(t.Context(), reads, yaml("domains: {}"))
	require.True(t, fault.Is(err, fault.Denied))
	elsewhere := w.Admin.Within(&authz.Scope{Token: "t", Areas: []authz.Area{authz.AreaSessions}})
	for _, a := range []authz.Actor{elsewhere, {}} {
		_, err = w.Tenancies.Export(t.Context(), a, "", apply.YAML)
		require.Error(t, err)
		_, err = w.Tenancies.Apply(t.Context(), a, nil)
		require.Error(t, err)
	}
}

// A thousand users come by a table in a bounded number of statements. Those with a password are hashed in turn.
func TestManyUsersAreImported(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	const n = 300
	var b strings.Builder
	b.WriteString("email,full_name,projects\n")
	for i := range n {
		fmt.Fprintf(&b, "u%d@example.org,User %d,default\n", i, i)
	}
	r := apply.Request{Format: apply.CSV, Text: b.String()}
	p := made(t, w, w.Admin, r)
	require.Len(t, p.Changes, n+1, "the users, and one change of members")
	all := steps(p.Changes)
	all[0].Password = new(seal.Secret("correct horse battery"))
	// The first half is applied, and whoever did it dies.
	_, err := w.Tenancies.Apply(t.Context(), w.Admin, all[:apply.MaxChanges])
	require.NoError(t, err)
	rest := made(t, w, w.Admin, r)
	require.Len(t, rest.Changes, n-apply.MaxChanges+1)
	carryOut(t, w, w.Admin, rest.Changes)
	require.Empty(t, made(t, w, w.Admin, r).Changes)
	_, err = w.Tenancy.Authorize(t.Context(), "default", all[0].Name, "correct horse battery")
	require.NoError(t, err)
}

// TestPlansTellWhatWaits: the dry run of a deactivation counts the waiting sessions that it holds, also those of other owners below.
func TestPlansTellWhatWaits(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Create("mylab1")
	w.Create("mylab2")
	p := made(t, w, w.Admin, yaml("domains: {default: {projects: {default: {active: false}}}}"))
	require.Len(t, p.Changes, 1)
	require.Equal(t, []string{"2 sessions of it waiting to start will not, until it is active again"}, p.Changes[0].Notes)
}
