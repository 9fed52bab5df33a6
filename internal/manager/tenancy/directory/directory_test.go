package directory_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/ldap"
	"berth.dev/berth/internal/manager/ldap/ldaptest"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/directory"
	"berth.dev/berth/internal/manager/tenancy/identity"
)

// rig is a cluster with a directory.
type rig struct {
	*managertest.World
	s *ldaptest.Server
}

// rules: staff are members of a project, bosses administer the domain.
func rules() identity.Rules {
	return identity.Rules{Domain: "default", Create: true, RequireGroup: true, LinkVerifiedEmail: true, Groups: []identity.GroupRule{
		{Group: "staff", Projects: []string{"default"}}, {Group: "bosses", Role: authz.RoleAdmin}}}
}

func newRig(t *testing.T, change ...func(*nouns.Deps)) *rig {
	t.Helper()
	s := ldaptest.Start(t)
	c, err := ldap.New(s.Config())
	require.NoError(t, err)
	change = append([]func(*nouns.Deps){func(d *nouns.Deps) {
		d.DirectoryClient = c
		d.DirectoryPolicy = directory.Policy{Name: "ldap", Rules: rules(), CreateAtLogin: true,
			Limits: directory.Limits{MostRemoved: 2, MostRemovedPercent: 50}}
	}}, change...)
	return &rig{managertest.New(t, change...), s}
}

func (r *rig) login(name, password string) (tenancy.Login, error) {
	r.T.Helper()
	return r.Tenancy.Login(r.T.Context(), tenancy.LoginAttempt{Domain: "default", Email: name, Password: seal.Secret(password)})
}

// sync asks for a comparison and carries it out.
func (r *rig) sync(q directory.Request) directory.Sync {
	r.T.Helper()
	asked, err := r.Directory.Ask(r.T.Context(), r.Admin, q)
	require.NoError(r.T, err)
	require.Equal(r.T, "waiting", asked.Status)
	r.pass()
	s, err := r.Directory.Find(r.T.Context(), r.Admin, asked.ID)
	require.NoError(r.T, err)
	return s
}

func (r *rig) pass() {
	r.T.Helper()
	_, err := r.Directory.Loops()[0].Begin(r.Term()).Pass(r.T.Context())
	require.NoError(r.T, err)
}

func (r *rig) user(email string) *tenancy.User {
	r.T.Helper()
	u, err := r.Tenancy.GetUser(r.T.Context(), r.Admin, email)
	require.NoError(r.T, err)
	return u
}

func TestPeopleOfTheDirectoryLogIn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.s.Person("ada", "ada-password")
	r.s.Person("eve", "eve-password")
	r.s.Group("staff", "ada")
	l, err := r.login("ada@example.org", "ada-password")
	require.NoError(t, err)
	require.Equal(t, "ada@example.org", l.Email)
	u := r.user("ada@example.org")
	require.Equal(t, "The ada", u.FullName)
	require.Len(t, u.Projects, 1)
	_, err = r.Tenancy.ResumeLogin(t.Context(), l.Token.Reveal())
	require.NoError(t, err)

	// By another attribute it is the same person, and wrong passwords count as such.
	again, err := r.login("ada", "ada-password")
	require.NoError(t, err)
	require.Equal(t, l.UserID, again.UserID)
	for name, at := range map[string][2]string{"wrong": {"ada@example.org", "no"}, "empty": {"ada@example.org", ""},
		"empty of a uid": {"ada", ""},
		"pattern":        {"a*", "ada-password"}, "stranger": {"nobody@example.org", "x"}} {
		_, err := r.login(at[0], at[1])
		require.True(t, tenancy.WrongGuess(err), "%s: %v", name, err)
	}
	// Who is in no group is told so, and gets no account.
	_, err = r.login("eve", "eve-password")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = r.Tenancy.GetUser(t.Context(), r.Admin, "eve@example.org")
	require.True(t, fault.Is(err, fault.NotFound))

	// No password of this cluster lets her in, whoever would like to set one.
	err = r.Tenancy.ModifyUser(t.Context(), r.Admin, "ada@example.org", tenancy.UserProps{Password: new(seal.Secret("correct horse 1"))})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	a, _, err := r.Tenancy.Authenticate(t.Context(), l.AccessKey)
	require.NoError(t, err)
	err = r.Tenancy.UpdatePassword(t.Context(), a, "ada-password", "correct horse 1")
	require.ErrorContains(t, err, "kept at the directory")
	require.Error(t, r.tryExec(`UPDATE users SET password_hash = 'x' WHERE email = 'ada@example.org'`))

	// The password changes there, and with it the login here.
	r.s.Replace("uid=ada,"+ldaptest.People, "userPassword", "fresh-password")
	_, err = r.login("ada@example.org", "ada-password")
	require.True(t, tenancy.WrongGuess(err), "%v", err)
	_, err = r.login("ada@example.org", "fresh-password")
	require.NoError(t, err)

	// When the directory is away its users wait, and the others are let in.
	r.s.Down()
	for _, name := range []string{"ada@example.org", "somebody"} {
		_, err = r.login(name, "fresh-password")
		require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
		require.False(t, tenancy.WrongGuess(err))
		require.NotEmpty(t, fault.NextOf(err))
	}
	_, err = r.login(r.Admin.Email, r.Creds.Password.Reveal())
	require.NoError(t, err)
	r.s.Up()
	// Who is taken out of the group is out at the next login; so is who is deactivated here.
	r.s.Remove("cn=staff," + ldaptest.Groups)
	_, err = r.login("ada@example.org", "fresh-password")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.NoError(t, r.Tenancy.DeleteUser(t.Context(), r.Admin, "ada@example.org"))
	r.s.Group("staff", "ada")
	_, err = r.login("ada@example.org", "fresh-password")
	require.True(t, tenancy.WrongGuess(err), "%v", err)
	_, err = r.login("ada", "fresh-password")
	require.Error(t, err)
	require.Equal(t, "deleted", r.user("ada@example.org").Status)
}

func (r *rig) tryExec(sql string) error {
	_, err := r.Store.Pool().Exec(r.T.Context(), sql)
	return err
}

// Somebody with the address of a local account in the directory gets nothing by it; of a superadmin not even when accounts are linked.
func TestLocalAccountsAreNotTakenOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, err := r.Tenancy.CreateUser(t.Context(), r.Admin, "bob@example.org", tenancy.UserProps{
		Password: new(seal.Secret("correct horse 1"))})
	require.NoError(t, err)
	r.s.Person("bob", "evil-password")
	r.s.Person("root", "evil-password")
	r.s.Replace("uid=root,"+ldaptest.People, "mail", r.Admin.Email)
	r.s.Group("staff", "bob", "root")
	_, err = r.login("bob@example.org", "evil-password")
	require.True(t, tenancy.WrongGuess(err), "a local user was asked at the directory: %v", err)
	_, err = r.login("bob@example.org", "correct horse 1")
	require.NoError(t, err)
	_, err = r.login("root", "evil-password")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = r.login(r.Admin.Email, r.Creds.Password.Reveal())
	require.NoError(t, err)

	// A sync links him, because the rules say so: from then on the directory has his password, and no other one counts.
	s := r.sync(directory.Request{})
	require.Equal(t, "done", s.Status, s.Message)
	require.Contains(t, s.Diff, "~ bob@example.org has an account, and logs in at the directory from now on")
	require.Equal(t, 1, s.Refused)
	_, err = r.login("bob@example.org", "correct horse 1")
	require.True(t, tenancy.WrongGuess(err), "%v", err)
	_, err = r.login("bob@example.org", "evil-password")
	require.NoError(t, err)
	require.Equal(t, authz.RoleSuperadmin, r.user(r.Admin.Email).Role)
	// Unlinked he is a local user again, without a password until somebody sets one.
	require.NoError(t, r.Identities.Unlink(t.Context(), r.Admin, "bob@example.org", "ldap"))
	_, err = r.login("bob@example.org", "evil-password")
	require.True(t, tenancy.WrongGuess(err), "%v", err)
	require.NoError(t, r.Tenancy.ModifyUser(t.Context(), r.Admin, "bob@example.org", tenancy.UserProps{
		Password: new(seal.Secret("correct horse 2"))}))
	_, err = r.login("bob@example.org", "correct horse 2")
	require.NoError(t, err)
}

func TestSyncs(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	names := []string{}
	for i := range 6 {
		names = append(names, fmt.Sprintf("p%d", i))
		r.s.Person(names[i], "some-password")
	}
	r.s.Person("outsider", "some-password")
	r.s.Group("staff", names...)
	r.s.Group("bosses", "p0")

	// A dry run tells everything and does nothing.
	s := r.sync(directory.Request{DryRun: true})
	require.Equal(t, []any{"done", 7, 6, 0, 1}, []any{s.Status, s.People, s.Created, s.Removed, s.Refused}, s.Message)
	require.Contains(t, s.Diff, "+ p3@example.org gets an account in domain default")
	_, err := r.Tenancy.GetUser(t.Context(), r.Admin, "p3@example.org")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)

	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 6}, []any{s.Status, s.Created}, s.Message)
	require.Equal(t, authz.RoleAdmin, r.user("p0@example.org").Role)
	_, err = r.login("p1@example.org", "some-password")
	require.NoError(t, err)
	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 0, 0, 0, 1}, []any{s.Status, s.Created, s.Changed, s.Removed, s.Refused},
		"the second sync finds something to do")

	// Who leaves is deactivated, what she owns stays; who comes back is let in again.
	r.s.Remove("uid=p1," + ldaptest.People)
	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 1}, []any{s.Status, s.Removed}, s.Message)
	require.Equal(t, "inactive", r.user("p1@example.org").Status)
	_, err = r.login("p1@example.org", "some-password")
	require.True(t, tenancy.WrongGuess(err), "%v", err)
	// Who leaves the groups that are let in, too.
	r.s.Replace("cn=staff,"+ldaptest.Groups, "member", "uid=p0,"+ldaptest.People, "uid=p3,"+ldaptest.People, "uid=p4,"+ldaptest.People,
		"uid=p5,"+ldaptest.People)
	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 1}, []any{s.Status, s.Removed}, s.Message)
	require.Equal(t, "inactive", r.user("p2@example.org").Status)

	// Three at once are more than the limit, whatever way they go; nothing is done, not even what else there is.
	r.s.Person("late", "some-password")
	r.s.Replace("cn=staff,"+ldaptest.Groups, "member", "uid=late,"+ldaptest.People)
	stopped := r.sync(directory.Request{})
	require.Equal(t, []any{"stopped", 3, 1}, []any{stopped.Status, stopped.Removed, stopped.Narrowed}, stopped.Diff)
	require.Contains(t, stopped.Message, "--allow-removals 4")
	require.Equal(t, "active", r.user("p4@example.org").Status)
	_, err = r.Tenancy.GetUser(t.Context(), r.Admin, "late@example.org")
	require.True(t, fault.Is(err, fault.NotFound))
	require.Equal(t, "stopped", r.sync(directory.Request{Allowance: 3}).Status, "fewer were allowed")
	s = r.sync(directory.Request{Allowance: 4})
	require.Equal(t, []any{"done", 3}, []any{s.Status, s.Removed}, s.Message)
	require.Equal(t, "inactive", r.user("p4@example.org").Status)
	require.Equal(t, "active", r.user("late@example.org").Status)

	// A group that is gone, or a directory that says nothing, closes nobody out.
	require.Equal(t, "done", r.sync(directory.Request{}).Status)
	for i := range 7 {
		uid := fmt.Sprintf("p%d", i)
		if i == 6 {
			uid = "outsider"
		}
		if i != 1 {
			r.s.Remove("uid=" + uid + "," + ldaptest.People)
		}
	}
	r.s.Remove("uid=late," + ldaptest.People)
	s = r.sync(directory.Request{})
	require.Equal(t, "stopped", s.Status)
	require.Contains(t, s.Message, "the directory has nobody")
	r.s.Down()
	s = r.sync(directory.Request{Allowance: 100})
	require.Equal(t, "failed", s.Status)
	require.Equal(t, "active", r.user("late@example.org").Status)
	r.s.Up()

	st, err := r.Directory.Status(t.Context(), r.Admin)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(st.Syncs), 10)
	require.Empty(t, st.Syncs[0].Diff)
}

// A leader that died in the middle of a sync has another one do it again; a deposed one writes nothing.
func TestSyncsAfterTheLeaderDied(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.s.Person("ada", "ada-password")
	r.s.Group("staff", "ada")
	asked, err := r.Directory.Ask(t.Context(), r.Admin, directory.Request{})
	require.NoError(t, err)
	r.Exec(`UPDATE directory_syncs SET status = 'running' WHERE id = $1`, asked.ID)
	r.pass()
	s, err := r.Directory.Find(t.Context(), r.Admin, asked.ID)
	require.NoError(t, err)
	require.Equal(t, []any{"done", 1}, []any{s.Status, s.Created}, s.Message)

	ctx, cancel := context.WithCancel(t.Context())
	old := r.Term()
	r.Term() // another manager leads
	_, err = r.Directory.Ask(t.Context(), r.Admin, directory.Request{})
	require.NoError(t, err)
	_, err = r.Directory.Loops()[0].Begin(old).Pass(ctx)
	require.Error(t, err)
	cancel()
}

// fake is a directory in memory.
type fake struct {
	people  []ldap.Person
	skipped []ldap.Skipped
}

func (f *fake) Login(context.Context, string, chassis.Secret) (ldap.Person, error) {
	return ldap.Person{}, ldap.ErrRefused
}

func (f *fake) LoginSubject(context.Context, string, chassis.Secret) (ldap.Person, error) {
	return ldap.Person{}, ldap.ErrRefused
}

func (f *fake) All(context.Context) ([]ldap.Person, []ldap.Skipped, error) {
	return f.people, f.skipped, nil
}

// Whoever may stand behind an entry that cannot be read is left alone.
func TestEntriesThatCannotBeRead(t *testing.T) {
	t.Parallel()
	f := &fake{}
	policy := directory.Policy{Name: "ldap", Rules: identity.Rules{Domain: "default", Create: true}, Limits: directory.DefaultLimits()}
	r := &rig{World: managertest.New(t, func(d *nouns.Deps) { d.DirectoryClient, d.DirectoryPolicy = f, policy })}
	for i := range 10 {
		f.people = append(f.people, ldap.Person{DN: "x", Subject: fmt.Sprint(i), Email: fmt.Sprintf("p%d@example.org", i)})
	}
	require.Equal(t, 10, r.sync(directory.Request{}).Created)
	f.people = f.people[:8]
	f.skipped = []ldap.Skipped{{Subject: "8", Words: "x: its mail is too long"}}
	s := r.sync(directory.Request{DryRun: true})
	require.Equal(t, 1, s.Removed, "8 is there, and cannot be read; 9 is gone")
	f.skipped = append(f.skipped, ldap.Skipped{Words: "y: it has not one entryUUID"})
	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 0}, []any{s.Status, s.Removed}, "one of them may be the entry without an id")
	require.Equal(t, "active", r.user("p9@example.org").Status)

	// A superadmin by hand stays, and nobody but superadmins asks for syncs.
	require.NoError(t, r.Tenancy.ModifyUser(t.Context(), r.Admin, "p9@example.org", tenancy.UserProps{Role: new(authz.RoleSuperadmin)}))
	f.skipped = nil
	s = r.sync(directory.Request{})
	require.Equal(t, []any{"done", 1, 1}, []any{s.Status, s.Removed, s.Refused}, s.Diff)
	require.Equal(t, "active", r.user("p9@example.org").Status)
	stranger := r.Stranger("s@x")
	_, err := r.Directory.Ask(t.Context(), stranger, directory.Request{})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = r.Directory.Status(t.Context(), stranger)
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	for range 10 {
		_, err = r.Directory.Ask(t.Context(), r.Admin, directory.Request{})
		require.NoError(t, err)
	}
	_, err = r.Directory.Ask(t.Context(), r.Admin, directory.Request{})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
}
