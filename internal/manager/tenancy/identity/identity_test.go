package identity_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

type rig struct {
	*managertest.World
	rules identity.Rules
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{World: managertest.New(t), rules: rules()}
	r.rules.Domain = r.Admin.Domain
	for _, name := range []string{"all", "lab", "hand"} {
		_, err := r.Tenancy.CreateProject(t.Context(), r.Admin, name, tenancy.ProjectProps{Domain: new(r.Admin.Domain)})
		require.NoError(t, err)
	}
	return r
}

func (r *rig) user(email string) (role, status string, projects []string) {
	r.T.Helper()
	require.NoError(r.T, r.Store.Pool().QueryRow(r.T.Context(), `SELECT u.role, u.status, ARRAY(SELECT p.name FROM projects p
JOIN project_members m ON m.project_id = p.id WHERE m.user_id = u.id ORDER BY 1) FROM users u WHERE u.email = $1`, email).
		Scan(&role, &status, &projects))
	return role, status, projects
}

func (r *rig) count(query string, args ...any) (n int) {
	r.T.Helper()
	require.NoError(r.T, r.Store.Pool().QueryRow(r.T.Context(), query, args...).Scan(&n))
	return n
}

// Somebody comes, changes groups, is shut out and comes back. What an administrator gave in between stays.
func TestLifeOfAPerson(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := ada()
	p.Groups = []string{"research", "leads"}
	got, err := r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	require.Equal(t, identity.Create, got.Action)
	role, status, projects := r.user("ada@example.org")
	require.Equal(t, []any{"admin", "active", []string{"all", "lab"}}, []any{role, status, projects})
	require.Equal(t, 1, r.count(`SELECT count(*) FROM keypairs WHERE user_id = $1 AND is_admin`, string(got.User)))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM audit_log WHERE action = 'identity.create' AND email = 'provider:corp'`))

	records := r.count(`SELECT count(*) FROM audit_log`)
	got, err = r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	require.False(t, got.Changed)
	require.Equal(t, records, r.count(`SELECT count(*) FROM audit_log`), "who comes again is a record")

	err = r.Tenancy.ModifyProject(t.Context(), r.Admin, "hand", tenancy.ProjectProps{
		Members: &tenancy.MemberChange{Mode: tenancy.AddMembers, Users: []string{"ada@example.org"}}})
	require.NoError(t, err)
	p.Groups = nil
	_, err = r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	role, _, projects = r.user("ada@example.org")
	require.Equal(t, []any{"user", []string{"all", "hand"}}, []any{role, projects})
	require.Zero(t, r.count(`SELECT count(*) FROM keypairs WHERE user_id = $1 AND is_admin`, string(got.User)))

	l, err := r.Tenancy.OpenLogin(t.Context(), got.User, tenancy.LoginAttempt{}, true)
	require.NoError(t, err)
	p.Active = false
	_, err = r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	_, status, _ = r.user("ada@example.org")
	require.Equal(t, "inactive", status)
	_, err = r.Tenancy.ResumeLogin(t.Context(), l.Token.Reveal())
	require.True(t, fault.Is(err, fault.Unauthenticated))
	_, err = r.Tenancy.OpenLogin(t.Context(), got.User, tenancy.LoginAttempt{}, true)
	require.True(t, fault.Is(err, fault.Unauthenticated))
	p.Active = true
	_, err = r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)

	// Who was made inactive by hand stays outside.
	require.NoError(t, r.Tenancy.ModifyUser(t.Context(), r.Admin, "ada@example.org", tenancy.UserProps{Status: new("inactive")}))
	_, err = r.Identities.Apply(t.Context(), p, &r.rules)
	require.True(t, fault.Is(err, fault.Denied))
	require.Equal(t, "identity-inactive", fault.ReasonOf(err))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM audit_log WHERE action = 'identity.refuse' AND result = 'denied'`))
}

// Nobody takes over an account by an address: not unverified, not where the rules do not say so, not a superadmin's, and not that of a
// person who left the provider and whose address somebody else has now.
func TestNobodyTakesOverAnAccount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.Tenancy.CreateUser(t.Context(), r.Admin, "ada@example.org", tenancy.UserProps{Password: new(seal.Secret(secret))})
	require.NoError(t, err)
	refused := func(p identity.Person, why string) {
		t.Helper()
		_, err := r.Identities.Apply(t.Context(), p, &r.rules)
		require.Equal(t, "identity-"+why, fault.ReasonOf(err), "%v", err)
	}
	p := ada()
	refused(p, "email-taken")
	r.rules.LinkVerifiedEmail = true
	p.EmailVerified = false
	refused(p, "email-unverified")
	root := ada()
	root.Email, root.Subject = r.Admin.Email, "root"
	refused(root, "superadmin")
	root.Email = "ADMIN" + r.Admin.Email[len("admin"):]
	refused(root, "superadmin")
	require.Zero(t, r.count(`SELECT count(*) FROM external_identities`))

	p.EmailVerified = true
	got, err := r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	require.Equal(t, identity.Link, got.Action)
	heir := ada()
	heir.Subject = "2"
	refused(heir, "email-taken")

	// The other provider's people are other people, even with the same subject.
	other := ada()
	other.Provider, other.Email = "evil", "mallory@example.org"
	got2, err := r.Identities.Apply(t.Context(), other, &r.rules)
	require.NoError(t, err)
	require.NotEqual(t, got.User, got2.User)
}

const secret = "a long and unusual phrase 7"

// Of many logins of one new person at the same time one makes the account.
func TestManyFirstLogins(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var wg sync.WaitGroup
	users := make([]cluster.UserID, 8)
	for i := range users {
		wg.Go(func() {
			got, err := r.Identities.Apply(t.Context(), ada(), &r.rules)
			if err != nil {
				t.Error(err)
			}
			users[i] = got.User
		})
	}
	wg.Wait()
	for _, u := range users {
		require.Equal(t, users[0], u)
	}
	require.Equal(t, 1, r.count(`SELECT count(*) FROM users WHERE email = 'ada@example.org'`))
}

func TestUnlink(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	p := ada()
	p.Groups = []string{"leads"}
	got, err := r.Identities.Apply(t.Context(), p, &r.rules)
	require.NoError(t, err)
	l, err := r.Tenancy.OpenLogin(t.Context(), got.User, tenancy.LoginAttempt{}, true)
	require.NoError(t, err)
	self, _, err := r.Tenancy.Authenticate(t.Context(), l.AccessKey)
	require.NoError(t, err)
	list, err := r.Identities.List(t.Context(), self, "")
	require.NoError(t, err)
	require.Equal(t, "corp", list[0].Provider)
	require.Equal(t, authz.RoleAdmin, list[0].GivenRole)

	require.True(t, fault.Is(r.Identities.Unlink(t.Context(), self, "", "corp"), fault.Conflict), "nobody could log in")
	require.True(t, fault.Is(r.Identities.Unlink(t.Context(), r.Admin, "ada@example.org", "none"), fault.NotFound))
	require.NoError(t, r.Identities.Unlink(t.Context(), r.Admin, "ada@example.org", "corp"))
	role, status, projects := r.user("ada@example.org")
	require.Equal(t, []any{"user", "active", []string{}}, []any{role, status, projects})
	_, err = r.Tenancy.ResumeLogin(t.Context(), l.Token.Reveal())
	require.True(t, fault.Is(err, fault.Unauthenticated))
	known, err := r.Identities.KnownOf(t.Context(), "corp", "", 10)
	require.NoError(t, err)
	require.Empty(t, known)
}
