package purge_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/manager/tenancy/purge"
)

// rig is a cluster with a user who owns something.
type rig struct {
	*managertest.World
	ada     authz.Actor
	folders int
}

func newRig(t *testing.T) *rig {
	r := &rig{World: managertest.New(t)}
	r.Agent("a1", 64, 64*managertest.GiB)
	r.ada = r.user("ada@x", tenancy.UserProps{})
	return r
}

func (r *rig) user(email string, p tenancy.UserProps) authz.Actor {
	r.T.Helper()
	p.Password = new(seal.Secret("correct horse"))
	u, err := r.Tenancy.CreateUser(r.T.Context(), r.Admin, email, p)
	require.NoError(r.T, err)
	if u.Domain == "default" {
		require.NoError(r.T, r.Tenancy.ModifyProject(r.T.Context(), r.Admin, "default", tenancy.ProjectProps{
			Members: &tenancy.MemberChange{Mode: tenancy.AddMembers, Users: []string{email}}}))
	}
	a, _, err := r.Tenancy.Authenticate(r.T.Context(), u.MainAccessKey)
	require.NoError(r.T, err)
	return a
}

// folder makes a row of a folder; the storage proxy is played by removed.
func (r *rig) folder(name, user, project any, status string) string {
	r.T.Helper()
	r.folders++
	id := fmt.Sprintf("00000000-0000-4000-8000-0000000f%04d", r.folders)
	r.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, project_id, creator_id, status)
VALUES ($1, $2, 'p:v', 'default', 's', 'general', 'rw', $3::uuid, $4::uuid, $5::uuid, $6)`, id, name, user, project, string(r.ada.UserID),
		status)
	return id
}

// removed does what the storage proxy and the loop of folders do.
func (r *rig) removed() {
	r.Exec(`UPDATE folders SET status = 'delete-complete' WHERE status = 'delete-ongoing'`)
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.T.Helper()
	require.NoError(r.T, r.Store.Pool().QueryRow(r.T.Context(), sql, args...).Scan(&n))
	return n
}

// pass runs the loop of a fresh leader once, as after a crash.
func (r *rig) pass() {
	r.T.Helper()
	_, err := r.Purges.Loops()[0].Begin(r.Term()).Pass(r.T.Context())
	require.NoError(r.T, err)
}

// done passes until nothing is left to purge; every pass is by another leader.
func (r *rig) done() {
	r.T.Helper()
	for range 60 {
		r.pass()
		r.removed()
		if r.count(`SELECT count(*) FROM purges`) == 0 {
			return
		}
	}
	list, err := r.Purges.List(r.T.Context(), r.Admin)
	require.NoError(r.T, err)
	require.Empty(r.T, list, "the purges are done")
}

// A user goes with what is theirs: said before, sessions first, folders that others have a share of stay, and the address is free again.
func TestUsersArePurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	bob := r.user("bob@x", tenancy.UserProps{})
	ada := string(r.ada.UserID)
	mine, shared := r.folder("mine", ada, nil, "ready"), r.folder("shared", ada, nil, "ready")
	r.folder("shared", string(r.Admin.UserID), nil, "ready") // the heir has one of that name
	r.folder("trashed", ada, nil, "delete-pending")
	lost := r.folder("lost", ada, nil, "delete-error")
	r.Exec(`UPDATE folders SET status_changed = now() - interval '1 hour' WHERE id = $1`, lost)
	r.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'rw'), ($1, $3, 'rw')`, shared, string(bob.UserID),
		string(r.Admin.UserID))
	live := r.Running("live", "a1", func(q *request.Session) { q.OwnerAccessKey = r.ada.AccessKey })
	ended := r.Create("ended", func(q *request.Session) { q.OwnerAccessKey = r.ada.AccessKey }).ID
	r.Exec(`UPDATE kernels SET status = 'CANCELLED', ended_at = now() WHERE session_id = $1`, string(ended))
	r.Exec(`UPDATE sessions SET status = 'CANCELLED', ended_at = now() WHERE id = $1`, string(ended))

	plan, err := r.Purges.Preview(ctx, r.Admin, purge.User, "ada@x", purge.Options{})
	require.NoError(t, err)
	said := map[string]int{}
	for _, i := range plan.Items {
		said[i.What] = i.Count
	}
	require.Equal(t, map[string]int{"live sessions": 1, "folders": 3, "shared folders": 1, "ended sessions": 1, "keypairs": 1,
		"memberships": 1}, said)
	require.Contains(t, plan.Refusal, "live")
	_, err = r.Purges.Begin(ctx, r.Admin, purge.User, "ada@x", purge.Options{})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	r.pass()
	require.Equal(t, cluster.Running, r.Session(live).Status)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM users WHERE email = 'ada@x' AND status = 'active'`),
		"a refusal and a preview change nothing")

	task, err := r.Purges.Begin(ctx, r.Admin, purge.User, "ada@x", purge.Options{EndSessions: true})
	require.NoError(t, err)
	_, err = r.Purges.Begin(ctx, r.Admin, purge.User, "ada@x", purge.Options{EndSessions: true})
	require.True(t, fault.Is(err, fault.Conflict), "twice: %v", err)
	err = r.Tenancy.ModifyUser(ctx, r.Admin, "ada@x", tenancy.UserProps{Status: new("active")})
	require.True(t, fault.Is(err, fault.Conflict), "brought back meanwhile: %v", err)
	r.pass()
	require.Equal(t, cluster.Terminating, r.Session(live).Status)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM folders WHERE id = $1 AND status = 'ready'`, mine), "sessions end first")
	r.Exec(`UPDATE kernels SET status = 'TERMINATED', ended_at = now() WHERE session_id = $1`, string(live)) // as agents report it
	r.Exec(`UPDATE sessions SET status = 'TERMINATED', ended_at = now() WHERE id = $1`, string(live))
	r.done()
	require.Zero(t, r.count(`SELECT count(*) FROM users WHERE email = 'ada@x'`))
	require.Zero(t, r.count(`SELECT count(*) FROM sessions`))
	require.Equal(t, 2, r.count(`SELECT count(*) FROM folders WHERE user_id = $1`, string(r.Admin.UserID)))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM folders WHERE id = $1 AND name LIKE 'shared-%'`, shared))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM folder_permissions WHERE user_id = $1`, string(bob.UserID)))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM background_tasks WHERE id = $1 AND status = 'done'`, task.ID))
	r.user("ada@x", tenancy.UserProps{})
}

// What others use is waited for, and shared folders go where that was asked for.
func TestPurgesWaitForWhatIsInUse(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.folder("data", string(r.ada.UserID), nil, "ready")
	r.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'rw')`, f, string(r.Admin.UserID))
	other := r.Running("other", "a1")
	r.Exec(`INSERT INTO session_mounts (session_id, folder_id, n, name, host, quota_scope, subpath, target, permission, usage_mode,
volume_path, owner_uid, owner_gid) VALUES ($1, $2, 0, 'data', 'p:v', 's', '.', '/home/work/data', 'rw',
'general', '/', 0, 0)`, string(other), f)
	_, err := r.Purges.Begin(ctx, r.Admin, purge.User, "ada@x", purge.Options{PurgeShared: true})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	_, err = r.Purges.Begin(ctx, r.Admin, purge.User, "ada@x", purge.Options{PurgeShared: true, EndSessions: true})
	require.NoError(t, err)
	for range 3 {
		r.pass()
		r.removed()
	}
	list, err := r.Purges.List(ctx, r.Admin)
	require.NoError(t, err)
	require.Contains(t, list[0].Message, "other")
	require.Equal(t, cluster.Running, r.Session(other).Status)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM folders WHERE id = $1 AND status = 'ready'`, f))
	r.Exec(`DELETE FROM session_mounts`)
	r.done()
	require.Zero(t, r.count(`SELECT count(*) FROM folders`))
}

// A project goes with its folders and what ran in it; a domain with its users and projects, if that was asked for.
func TestProjectsAndDomainsArePurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	lab, err := r.Tenancy.CreateProject(ctx, r.Admin, "lab", tenancy.ProjectProps{})
	require.NoError(t, err)
	for n := range 130 {
		r.folder(fmt.Sprint("f", n), nil, string(lab.ID), "ready")
	}
	_, err = r.Purges.Begin(ctx, r.Admin, purge.Project, string(lab.ID), purge.Options{})
	require.NoError(t, err)
	r.done()
	require.Zero(t, r.count(`SELECT count(*) FROM folders`))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM projects`))

	_, err = r.Tenancy.CreateDomain(ctx, r.Admin, "physics", tenancy.DomainProps{})
	require.NoError(t, err)
	for n := range 5 {
		r.user(fmt.Sprintf("u%d@x", n), tenancy.UserProps{Domain: new("physics")})
		_, err := r.Tenancy.CreateProject(ctx, r.Admin, fmt.Sprint("p", n), tenancy.ProjectProps{Domain: new("physics")})
		require.NoError(t, err)
	}
	_, err = r.Purges.Begin(ctx, r.Admin, purge.Domain, "physics", purge.Options{})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "5 users and 5 projects")
	_, err = r.Purges.Begin(ctx, r.Admin, purge.Domain, "physics", purge.Options{Contents: true})
	require.NoError(t, err)
	r.done()
	require.Equal(t, 1, r.count(`SELECT count(*) FROM domains`))
	require.Equal(t, 2, r.count(`SELECT count(*) FROM users`))
}

// What is never purged, by anybody, and who may not.
func TestWhatIsNeverPurged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	_, err := r.Tenancy.CreateDomain(ctx, r.Admin, "ops", tenancy.DomainProps{})
	require.NoError(t, err)
	role := authz.RoleSuperadmin
	second := r.user("root2@x", tenancy.UserProps{Role: &role, Domain: new("ops")})
	admin := authz.RoleAdmin
	boss := r.user("boss@x", tenancy.UserProps{Role: &admin})
	for _, c := range []struct {
		who  authz.Actor
		kind purge.Kind
		ref  string
		want fault.Kind
	}{
		{r.Admin, purge.User, r.Admin.Email, fault.Conflict},
		{r.Admin, purge.Domain, "default", fault.Conflict},
		{r.Admin, purge.Project, "default", fault.Conflict},
		{second, purge.Domain, "ops", fault.Conflict},
		{r.Admin, purge.Domain, "ops", fault.Conflict}, // a superadmin is in it
		{r.Admin, purge.User, "none@x", fault.NotFound},
		{r.Admin, purge.Domain, "none", fault.NotFound},
		{r.Admin, "keypair", "x", fault.Invalid},
		{boss, purge.User, "ada@x", fault.Denied},
		{boss, purge.User, "root2@x", fault.NotFound},
		{boss, purge.Domain, "default", fault.Denied},
		{r.ada, purge.User, "ada@x", fault.Denied},
		{r.ada, purge.Project, "default", fault.Denied},
	} {
		_, err := r.Purges.Begin(ctx, c.who, c.kind, c.ref, purge.Options{Contents: true, EndSessions: true, PurgeShared: true})
		require.Equal(t, c.want, fault.KindOf(err), "%s by %s: %v", c.ref, c.who.Email, err)
	}
	// Of two superadmins who purge each other at once, one stays.
	var running sync.WaitGroup
	var errs [2]error
	running.Go(func() { _, errs[0] = r.Purges.Begin(ctx, r.Admin, purge.User, "root2@x", purge.Options{}) })
	running.Go(func() { _, errs[1] = r.Purges.Begin(ctx, second, purge.User, r.Admin.Email, purge.Options{}) })
	running.Wait()
	require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v, %v", errs[0], errs[1])
}

// What an end by inactivity does is said before, for each kind, and what it would be refused for; saying it changes nothing and leaves
// no record.
func TestWhatInactivityDoesIsSaidBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	ada := string(r.ada.UserID)
	bob := r.user("bob@x", tenancy.UserProps{})
	r.folder("mine", ada, nil, "ready")
	shared := r.folder("shared", ada, nil, "ready")
	r.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'rw')`, shared, string(bob.UserID))
	r.Running("live", "a1", func(q *request.Session) { q.OwnerAccessKey = r.ada.AccessKey })
	r.Create("waits", func(q *request.Session) { q.OwnerAccessKey = r.ada.AccessKey })
	lab, err := r.Tenancy.CreateProject(ctx, r.Admin, "lab", tenancy.ProjectProps{})
	require.NoError(t, err)
	r.folder("data", nil, string(lab.ID), "ready")
	_, err = r.Tenancy.CreateDomain(ctx, r.Admin, "ops", tenancy.DomainProps{})
	require.NoError(t, err)
	r.user("oli@x", tenancy.UserProps{Domain: new("ops")})
	admin := authz.RoleAdmin
	boss := r.user("boss@x", tenancy.UserProps{Role: &admin})
	records := r.count(`SELECT count(*) FROM audit_log`)
	for _, c := range []struct {
		who     authz.Actor
		kind    purge.Kind
		ref     string
		want    map[string]int
		refusal string
	}{
		{r.Admin, purge.User, "ada@x", map[string]int{"sessions that run": 1, "sessions that wait to start": 1, "folders": 1,
			"shared folders": 1, "keypairs": 1, "memberships": 1}, ""},
		{boss, purge.User, "bob@x", map[string]int{"shares of others' folders": 1, "keypairs": 1, "memberships": 1}, ""},
		{r.Admin, purge.User, r.Admin.Email, map[string]int{"keypairs": 1, "memberships": 1}, "their own status"},
		{boss, purge.Project, string(lab.ID), map[string]int{"folders": 1}, ""},
		{r.Admin, purge.Domain, "ops", map[string]int{"users": 1, "keypairs": 1}, ""},
		{r.Admin, purge.Domain, "default", nil, "first one"},
	} {
		p, err := r.Purges.PreviewInactive(ctx, c.who, c.kind, c.ref)
		require.NoError(t, err, c.ref)
		said := map[string]int{}
		for _, i := range p.Items {
			said[i.What] = i.Count
			require.NotEmpty(t, i.Fate, i.What)
		}
		if c.want != nil {
			require.Equal(t, c.want, said, c.ref)
		}
		if c.refusal == "" {
			require.Empty(t, p.Refusal, c.ref)
		}
		require.Contains(t, p.Refusal, c.refusal, c.ref)
	}
	require.Zero(t, r.count(`SELECT count(*) FROM users WHERE status <> 'active'`))
	require.Zero(t, r.count(`SELECT count(*) FROM domains WHERE NOT is_active`)+r.count(`SELECT count(*) FROM projects WHERE NOT is_active`))
	require.Equal(t, records, r.count(`SELECT count(*) FROM audit_log`))
	// What it says is what happens.
	require.NoError(t, r.Tenancy.DeleteUser(ctx, r.Admin, "ada@x"))
	require.Equal(t, 2, r.count(`SELECT count(*) FROM folders WHERE user_id = $1`, ada))
	require.Equal(t, 1, r.count(`SELECT count(*) FROM folder_permissions`))
	_, err = r.Purges.PreviewInactive(ctx, r.Admin, "keypair", "x")
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
	_, err = r.Purges.PreviewInactive(ctx, boss, purge.Domain, "ops")
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	require.Equal(t, records+1, r.count(`SELECT count(*) FROM audit_log`), "the deletion")
}
