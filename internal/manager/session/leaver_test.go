package session_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
)

// Who leaves a project loses what they run of it and what mounts its folders, whoever removes them; the rest runs on.
func TestSessionsEndWithTheMembership(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 64, 64*managertest.GiB)
	user := w.Stranger("user")
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE id = $1`, string(user.UserID))
	lab, err := w.Tenancy.CreateProject(ctx, w.Admin, "lab", tenancy.ProjectProps{})
	require.NoError(t, err)
	change := func(project string, mode tenancy.MemberMode) {
		t.Helper()
		require.NoError(t, w.Tenancy.ModifyProject(ctx, w.Admin, project, tenancy.ProjectProps{
			Members: &tenancy.MemberChange{Mode: mode, Users: []string{user.Email}}}))
	}
	change(string(lab.ID), tenancy.AddMembers)
	change("default", tenancy.AddMembers)
	running := func(name, project string) cluster.SessionID {
		return w.Running(name, "a1", func(r *request.Session) { r.Project, r.OwnerAccessKey = project, user.AccessKey })
	}
	ofLab, mounting, apart := running("oflab", "lab"), running("mounting", "default"), running("apart", "default")
	waiting := w.Create("waiting", func(r *request.Session) { r.Project, r.OwnerAccessKey = "lab", user.AccessKey }).ID
	others := w.Running("others", "a1")
	w.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, project_id, status)
VALUES ('00000000-0000-4000-8000-0000000000f1', 'data', 'p:v', 'default', 'project:' || $1::text, 'general', 'rw', $1::uuid, 'ready')`,
		string(lab.ID))
	w.Exec(`INSERT INTO session_mounts (session_id, folder_id, n, name, host, quota_scope, subpath, target, permission, usage_mode,
volume_path, owner_uid, owner_gid)
VALUES ($1, '00000000-0000-4000-8000-0000000000f1', 0, 'data', 'p:v', 's', '.', '/home/work/data', 'rw',
'general', '/', 0, 0)`, string(mounting))

	work := func() reconcile.Work {
		for _, l := range w.Sessions.Loops(session.LoopConfig{}) {
			if l.Name == "leavers" {
				return l.Begin(w.Term())
			}
		}
		panic("there is no such loop")
	}()
	pass := func() {
		t.Helper()
		_, err := work.Pass(ctx)
		require.NoError(t, err)
	}
	status := func(id cluster.SessionID) cluster.Status { return w.Session(id).Status }
	pass()
	require.Equal(t, cluster.Running, status(ofLab))
	change(string(lab.ID), tenancy.RemoveMembers)
	pass()
	require.Equal(t, cluster.Terminating, status(ofLab))
	require.Equal(t, cluster.Terminating, status(mounting))
	require.Equal(t, cluster.Cancelled, status(waiting))
	for _, id := range []cluster.SessionID{apart, others} {
		require.Equal(t, cluster.Running, status(id))
	}
	require.Contains(t, w.Session(waiting).StatusInfo, string(cluster.ReasonRightEnded))
	pass()

	// Somebody who comes back before the loop looks keeps what runs.
	change("default", tenancy.RemoveMembers)
	change("default", tenancy.AddMembers)
	pass()
	require.Equal(t, cluster.Running, status(apart))
	// Another manager that takes over in between ends it as well, and the note goes once nothing can come any more.
	change("default", tenancy.RemoveMembers)
	pass()
	require.Equal(t, cluster.Terminating, status(apart))
	w.Exec(`UPDATE project_leavers SET left_at = left_at - interval '2 minutes'`)
	pass()
	w.Exec(`DO $$ BEGIN ASSERT NOT EXISTS (SELECT 1 FROM project_leavers); END $$`)
	require.Equal(t, cluster.Running, status(others))
}
