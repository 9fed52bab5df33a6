package session_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store/storetest"
)

// objects follows changes of objects as an actor.
func (w hubWorld) objects(a authz.Actor) <-chan session.Event {
	w.T.Helper()
	// A connection for hints that comes only now might be the second one: readers would be told to look at everything.
	managertest.Soon(w.T, "hints come", func() bool { return w.Store.Connections() > 0 })
	c, err := w.Sessions.Events(w.T.Context(), a, session.EventFilter{FromNow: true, Objects: true})
	require.NoError(w.T, err)
	return c
}

// until returns the changes that come until one of an object, which is the last of them.
func (w hubWorld) until(c <-chan session.Event, last session.ObjectChange) (out []session.ObjectChange) {
	w.T.Helper()
	for {
		e := w.next(c)
		require.NotNil(w.T, e.Object)
		out = append(out, *e.Object)
		if *e.Object == last {
			return out
		}
	}
}

// everybody's object is changed; what comes before it is all that a reader is told.
func (w hubWorld) announce() session.ObjectChange {
	w.Exec(`INSERT INTO cluster_settings (key, value) VALUES ('announcement', '{}')
		ON CONFLICT (key) DO UPDATE SET value = jsonb_build_object('n', random())`)
	return session.ObjectChange{Noun: "announcement", ID: "announcement", Kind: session.ObjectChanged}
}

// TestReadersAreToldOfWhatTheySee: of a user, an agent and a policy that change, a stranger is told of none, the user of themselves, an
// administrator of another domain of nobody there, that of the same domain of the user, a superadmin of all.
func TestReadersAreToldOfWhatTheySee(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	w.announce()
	one, two := w.Stranger("one"), w.Stranger("two")
	chief, foreign := one, two
	chief.UserID, chief.Role, chief.AccessKey = "00000000-0000-4000-8000-00000000c41e", authz.RoleAdmin, "AKCHIEF"
	foreign.UserID, foreign.Role, foreign.AccessKey = "00000000-0000-4000-8000-00000000f0e1", authz.RoleAdmin, "AKFOREIGN"
	readers := map[string]<-chan session.Event{}
	for name, a := range map[string]authz.Actor{"self": one, "stranger": two, "chief": chief, "foreign": foreign, "super": w.Admin} {
		readers[name] = w.objects(a)
	}
	tx, err := w.Store.Pool().Begin(t.Context())
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	for _, sql := range []string{
		fmt.Sprintf("UPDATE users SET full_name = 'New Name' WHERE id = '%s'", one.UserID),
		"UPDATE agents SET schedulable = NOT schedulable WHERE id = 'a1'",
		"INSERT INTO resource_groups (name) VALUES ('secret-group')",
		"UPDATE cluster_settings SET value = '{\"n\": 1}' WHERE key = 'announcement'",
	} {
		_, err := tx.Exec(t.Context(), sql)
		require.NoError(t, err, sql)
	}
	require.NoError(t, tx.Commit(t.Context()))
	user := session.ObjectChange{Noun: "user", ID: string(one.UserID), Kind: session.ObjectChanged}
	told := session.ObjectChange{Noun: "announcement", ID: "announcement", Kind: session.ObjectChanged}
	want := map[string][]session.ObjectChange{
		"self": {told, user}, "stranger": {told}, "chief": {told, user}, "foreign": {told},
		"super": {{Noun: "agent", ID: "a1", Kind: session.ObjectChanged}, told,
			{Noun: "resource-group", ID: "secret-group", Kind: session.ObjectMade}, user},
	}
	for name, changes := range want {
		require.Equal(t, changes, w.until(readers[name], changes[len(changes)-1]), name)
	}
	// Nothing else was on the way for anybody.
	told = w.announce()
	for name, c := range readers {
		require.Equal(t, []session.ObjectChange{told}, w.until(c, told), name)
	}
}

// TestTheEndOfAnObject: who might see what is deleted is told, a stranger is not.
func TestTheEndOfAnObject(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.announce()
	one, two := w.Stranger("one"), w.Stranger("two")
	w.Exec(`INSERT INTO background_tasks (id, kind, owner) VALUES ('00000000-0000-4000-8000-000000000001', 'commit', $1)`, string(one.UserID))
	mine, foreign := w.objects(one), w.objects(two)
	w.Exec(`DELETE FROM background_tasks WHERE id = '00000000-0000-4000-8000-000000000001'`)
	gone := session.ObjectChange{Noun: "task", ID: "00000000-0000-4000-8000-000000000001", Kind: session.ObjectDeleted}
	require.Equal(t, []session.ObjectChange{gone}, w.until(mine, gone))
	told := w.announce()
	require.Equal(t, []session.ObjectChange{told}, w.until(foreign, told))
}

// TestTooManyChangesAreOneResync: more changes than a reader may have waiting come as one word.
func TestTooManyChangesAreOneResync(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.announce()
	c := w.objects(w.Admin)
	w.Exec(`INSERT INTO background_tasks (id, kind, owner) SELECT gen_random_uuid(), 'commit', $1 FROM generate_series(1, 600)`,
		string(w.Admin.UserID))
	e := w.next(c)
	require.Equal(t, &session.ObjectChange{Kind: session.ObjectsResync}, e.Object)
	told := w.announce()
	require.Equal(t, []session.ObjectChange{told}, w.until(c, told))
}

// TestReadersOfSessionsHearOfNothingElse: the stream of official clients stays as it is.
func TestReadersOfSessionsHearOfNothingElse(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	id := w.Create("only").ID
	c := w.events(session.EventFilter{FromNow: true})
	w.announce()
	w.nothingElse(id, c)
}

// TestMarksOfUseAreNoChanges: what sessions, requests and heartbeats write all the time is told to nobody.
func TestMarksOfUseAreNoChanges(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	w.announce()
	reader := w.objects(w.Admin)
	w.Exec(`UPDATE agents SET last_seen = now() + interval '1 minute', status = 'ALIVE', orders_at = now() + interval '1 minute'`)
	w.Exec(`UPDATE keypairs SET num_queries = num_queries + 3, last_used = now()`)
	w.Exec(`UPDATE images SET last_used_at = now()`)
	w.Exec(`UPDATE users SET modified_at = now() + interval '1 minute'`)
	for range 2 { // what one round brought beside the announcement would come before the second
		last := w.announce()
		require.Equal(t, []session.ObjectChange{last}, w.until(reader, last))
	}

	w.Exec(`UPDATE agents SET schedulable = NOT schedulable`)
	w.Exec(`UPDATE keypairs SET rate_limit = rate_limit + 1`)
	w.Exec(`UPDATE images SET status = 'DELETED'`)
	// They come in one round or in several, each in the order of the nouns.
	for wanted := map[string]bool{"agent": true, "keypair": true, "image": true}; len(wanted) > 0; {
		e := w.next(reader)
		require.NotNil(t, e.Object)
		delete(wanted, e.Object.Noun)
	}
}

// beside is another manager of the same cluster: its use cases, with a store and a hub of their own.
func (w hubWorld) beside() hubWorld {
	w.T.Helper()
	d := managertest.Deps(w.T, storetest.Beside(w.T, w.Store))
	set, err := nouns.New(d)
	require.NoError(w.T, err)
	managertest.Serve(w.T, set)
	return hubWorld{&managertest.World{Set: set, T: w.T, Store: d.Store, Deps: d, Admin: w.Admin}}
}

const lentFolder = "00000000-0000-4000-8000-00000000f01d"

// folder makes a folder of the first user, which is shared with the others.
func (w hubWorld) folder(owner authz.Actor, readers ...authz.Actor) {
	w.T.Helper()
	ids := make([]string, len(readers))
	for i, r := range readers {
		ids[i] = string(r.UserID)
	}
	w.Exec(`WITH made AS (INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, status)
			VALUES ($1, 'lent', 'p:v', $2, 'user:' || $3, 'general', 'rw', $3::uuid, 'ready') RETURNING id)
		INSERT INTO folder_permissions (folder_id, user_id, permission) SELECT made.id, u.id, 'ro' FROM made, unnest($4::uuid[]) AS u (id)`,
		lentFolder, owner.Domain, string(owner.UserID), ids)
}

func folderIs(kind string) session.ObjectChange {
	return session.ObjectChange{Noun: "folder", ID: lentFolder, Kind: kind}
}

// TestAShareThatIsTakenBack: its former reader is told that the folder is gone, and nothing of it later; its owner and another reader
// are told that it changed. All of it holds for readers of another manager of the cluster, too.
func TestAShareThatIsTakenBack(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.announce()
	ada, bob, carol, eve := w.Stranger("ada"), w.Stranger("bob"), w.Stranger("carol"), w.Stranger("eve")
	w.folder(ada, bob, carol)
	readers := map[string]<-chan session.Event{}
	for at, m := range map[string]hubWorld{"here": w, "there": w.beside()} {
		for name, a := range map[string]authz.Actor{"owner": ada, "former": bob, "other": carol, "stranger": eve} {
			readers[name+" "+at] = m.objects(a)
		}
	}
	told := func(want map[string][]session.ObjectChange) {
		t.Helper()
		last := w.announce()
		for _, at := range []string{"here", "there"} {
			for _, name := range []string{"owner", "former", "other", "stranger"} {
				got := w.until(readers[name+" "+at], last)
				// The announcement may come in a round with what happened before it, and nouns are told in their order.
				if len(want[name]) > 0 && len(got) == 1 {
					got = append(got, *w.next(readers[name+" "+at]).Object)
				}
				require.ElementsMatch(t, append([]session.ObjectChange{last}, want[name]...), got, "%s %s", name, at)
			}
		}
	}

	require.NoError(t, w.Folders.Leave(t.Context(), ada, lentFolder, &bob.UserID))
	changed := []session.ObjectChange{folderIs(session.ObjectChanged)}
	told(map[string][]session.ObjectChange{"owner": changed, "other": changed, "former": {folderIs(session.ObjectDeleted)}})

	w.Exec(`UPDATE folders SET permission = 'ro' WHERE id = $1`, lentFolder)
	told(map[string][]session.ObjectChange{"owner": changed, "other": changed})
	w.Exec(`DELETE FROM folders WHERE id = $1`, lentFolder)
	gone := []session.ObjectChange{folderIs(session.ObjectDeleted)}
	told(map[string][]session.ObjectChange{"owner": gone, "other": gone})

	w.folder(ada, bob)
	made := []session.ObjectChange{folderIs(session.ObjectMade)}
	told(map[string][]session.ObjectChange{"owner": made, "former": made})
	// A share that is taken back and given again in one step only changes the folder.
	w.Exec(fmt.Sprintf(`DO $$ BEGIN DELETE FROM folder_permissions;
		INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ('%s', '%s', 'rw'); END $$`, lentFolder, bob.UserID))
	told(map[string][]session.ObjectChange{"owner": changed, "former": changed})
}

// TestObjectsThatGoToOthers: whoever saw an object only as its owner, or as an administrator of the owner's domain, is told that it is
// gone when it goes to another owner or domain, or when its owner becomes a superadmin; whoever sees it now, that it changed.
func TestObjectsThatGoToOthers(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	ada, bob, eve := w.Stranger("ada"), w.Stranger("bob"), w.Stranger("eve")
	chief := func(of authz.Actor) authz.Actor {
		return authz.Actor{UserID: "00000000-0000-4000-8000-00000000c41e", Role: authz.RoleAdmin, AccessKey: "AKCHIEF", Domain: of.Domain}
	}
	w.folder(ada)
	user := func(kind string) session.ObjectChange {
		return session.ObjectChange{Noun: "user", ID: string(ada.UserID), Kind: kind}
	}
	actors := []authz.Actor{ada, bob, eve, chief(ada), chief(bob), w.Admin}
	none := []session.ObjectChange(nil)
	one := func(c session.ObjectChange) []session.ObjectChange { return []session.ObjectChange{c} }
	for _, step := range []struct {
		sql  string
		want [6][]session.ObjectChange
	}{
		{fmt.Sprintf(`UPDATE folders SET user_id = '%s', domain_name = 'bob'`, bob.UserID), [6][]session.ObjectChange{
			one(folderIs("deleted")), one(folderIs("changed")), none, one(folderIs("deleted")), one(folderIs("changed")),
			one(folderIs("changed"))}},
		{`UPDATE folders SET name = 'renamed'`, [6][]session.ObjectChange{
			none, one(folderIs("changed")), none, none, one(folderIs("changed")), one(folderIs("changed"))}},
		{fmt.Sprintf(`UPDATE users SET domain_name = 'bob' WHERE id = '%s'`, ada.UserID), [6][]session.ObjectChange{
			one(user("changed")), none, none, one(user("deleted")), one(user("changed")), one(user("changed"))}},
		{fmt.Sprintf(`UPDATE users SET role = 'superadmin' WHERE id = '%s'`, ada.UserID), [6][]session.ObjectChange{
			one(user("changed")), none, none, none, one(user("deleted")), one(user("changed"))}},
	} {
		w.Exec(`DELETE FROM object_changes`)
		w.Exec(step.sql)
		for i, a := range actors {
			told, err := session.VisibleObjects(t.Context(), w.Sessions, a)
			require.NoError(t, err)
			require.Equal(t, step.want[i], told, "%s: %s %s", step.sql, a.Role, a.UserID)
		}
	}
}

// TestWhoHearsOfInvitationsCircuitsAndQueues: an invitation concerns who is invited and who invites, and those who see all; a circuit those
// who see it, and those who no longer do; a queue those who may use its group. A visit of an app is no change.
func TestWhoHearsOfInvitationsCircuitsAndQueues(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	ada, bob, eve := w.Stranger("ada"), w.Stranger("bob"), w.Stranger("eve")
	w.folder(ada)
	const invitation, circuit = "00000000-0000-4000-8000-00000000000f", "00000000-0000-4000-8000-0000000000c1"
	id := string(w.Running("work", "a1"))
	var user, kernel string
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `UPDATE sessions SET user_id = $2, domain_name = 'ada' WHERE id = $1
		RETURNING user_id::text, (SELECT k.id::text FROM kernels k WHERE k.session_id = sessions.id)`,
		id, string(ada.UserID)).Scan(&user, &kernel))
	is := func(noun, id, kind string) []session.ObjectChange {
		return []session.ObjectChange{{Noun: noun, ID: id, Kind: kind}}
	}
	none := []session.ObjectChange(nil)
	for _, step := range []struct {
		sql  string
		args []any
		// What ada, bob, eve and a superadmin are told.
		want [4][]session.ObjectChange
	}{
		{`INSERT INTO folder_invitations (id, folder_id, inviter_id, invitee_id, permission) SELECT $1, f.id, $2, $3, 'ro' FROM folders f`,
			[]any{invitation, string(ada.UserID), string(bob.UserID)}, [4][]session.ObjectChange{
				is("invitation", invitation, "made"), is("invitation", invitation, "made"), none, is("invitation", invitation, "made")}},
		{`UPDATE folder_invitations SET modified_at = now() + interval '1 hour'`, nil, [4][]session.ObjectChange{}},
		{`UPDATE folder_invitations SET state = 'rejected'`, nil, [4][]session.ObjectChange{
			is("invitation", invitation, "changed"), is("invitation", invitation, "changed"), none,
			is("invitation", invitation, "changed")}},
		{`DELETE FROM folder_invitations`, nil, [4][]session.ObjectChange{
			none, is("invitation", invitation, "deleted"), none, is("invitation", invitation, "deleted")}},
		{`INSERT INTO circuits (id, proxy, mode, label, session_id, kernel_id, app, protocol, target, path, user_id, created_by, public,
			allowed, created_at) VALUES ($1, 'p', 'subdomain', 'a', $2, $3, 'ttyd', 'http', 1, '/', $4, $4, false, '{}', now())`,
			[]any{circuit, id, kernel, user}, [4][]session.ObjectChange{
				is("circuit", circuit, "made"), none, none, is("circuit", circuit, "made")}},
		{`UPDATE circuits SET last_activity = now()`, nil, [4][]session.ObjectChange{}},
		{`INSERT INTO circuit_shares (circuit_id, user_id) VALUES ($1, $2)`, []any{circuit, string(bob.UserID)}, [4][]session.ObjectChange{
			is("circuit", circuit, "changed"), is("circuit", circuit, "changed"), none, is("circuit", circuit, "changed")}},
		{`DELETE FROM circuit_shares`, nil, [4][]session.ObjectChange{
			is("circuit", circuit, "changed"), is("circuit", circuit, "deleted"), none, is("circuit", circuit, "changed")}},
		{`DELETE FROM circuits`, nil, [4][]session.ObjectChange{
			is("circuit", circuit, "deleted"), none, none, is("circuit", circuit, "deleted")}},
		{`INSERT INTO object_changes (noun, id, kind) VALUES ('queue', 'default', 'changed')`, nil, [4][]session.ObjectChange{
			none, none, none, is("queue", "default", "changed")}},
	} {
		w.Exec(`DELETE FROM object_changes`)
		w.Exec(step.sql, step.args...)
		for i, a := range []authz.Actor{ada, bob, eve, w.Admin} {
			told, err := session.VisibleObjects(t.Context(), w.Sessions, a)
			require.NoError(t, err)
			require.Equal(t, step.want[i], told, "%s: %s", step.sql, a.Email)
		}
	}
}

// TestReadersByTokensAreToldWithinTheirScope: what a token's scope leaves of each noun, of objects that changed and of those that ended.
// A token for SCIM is told of nothing, not even of announcements.
func TestReadersByTokensAreToldWithinTheirScope(t *testing.T) {
	t.Parallel()
	w := hubWorld{managertest.New(t)}
	w.Agent("a1", 8, 16*managertest.GiB)
	ada, bob := w.Stranger("ada"), w.Stranger("bob")
	w.folder(ada, bob)
	const task, project = "00000000-0000-4000-8000-00000000007a", cluster.ProjectID("00000000-0000-4000-8000-00000000009a")
	w.Exec(`INSERT INTO background_tasks (id, kind, owner) VALUES ($1, 'commit', $2)`, task, string(ada.UserID))
	scopes := []struct {
		name  string
		actor authz.Actor
		scope authz.Scope
		// The nouns of which it is told: of changes, and of ends.
		changed, ended []string
	}{
		{"of sessions", ada, authz.Scope{Areas: []authz.Area{authz.AreaSessions}},
			[]string{"announcement", "domain", "keypair", "task", "user"}, []string{"keypair", "task"}},
		{"of folders", ada, authz.Scope{Areas: []authz.Area{authz.AreaFolders}},
			[]string{"announcement", "domain", "folder", "keypair", "task", "user"}, []string{"folder", "keypair", "task"}},
		{"that only reads", ada, authz.Scope{ReadOnly: true},
			[]string{"announcement", "domain", "folder", "keypair", "task", "user"}, []string{"folder", "keypair", "task"}},
		{"of a project", ada, authz.Scope{Projects: []cluster.ProjectID{project}},
			[]string{"announcement", "domain", "keypair", "task", "user"}, []string{"keypair", "task"}},
		{"of SCIM", ada, authz.Scope{Provider: "idp"}, nil, nil},
		{"of folders, of somebody with a share", bob, authz.Scope{Areas: []authz.Area{authz.AreaFolders}},
			[]string{"announcement", "folder"}, []string{"folder"}},
		{"of images, of somebody with a share", bob, authz.Scope{Areas: []authz.Area{authz.AreaImages}}, []string{"announcement"}, nil},
		{"of a project, of somebody with a share", bob, authz.Scope{Projects: []cluster.ProjectID{project}}, []string{"announcement"}, nil},
		{"of images, a superadmin's", w.Admin, authz.Scope{Areas: []authz.Area{authz.AreaImages}},
			[]string{"announcement", "domain", "task"}, []string{"task"}},
		{"of the cluster, a superadmin's", w.Admin, authz.Scope{Areas: []authz.Area{authz.AreaCluster}},
			[]string{"agent", "announcement", "domain", "task"}, []string{"task"}},
		{"of tenancy, a superadmin's", w.Admin, authz.Scope{Areas: []authz.Area{authz.AreaTenancy}},
			[]string{"announcement", "domain", "keypair", "task", "user"}, []string{"keypair", "task"}},
	}
	check := func(kind string, want func(i int) []string) {
		t.Helper()
		for i, s := range scopes {
			s.scope.Token = "t"
			told, err := session.VisibleObjects(t.Context(), w.Sessions, s.actor.Within(&s.scope))
			require.NoError(t, err)
			var nouns []string
			for _, c := range told {
				require.Equal(t, kind, c.Kind, "%s %s", s.name, c.Noun)
				nouns = append(nouns, c.Noun)
			}
			require.Equal(t, want(i), nouns, "%s: %s", s.name, kind)
		}
	}
	w.announce()
	w.Exec(`DELETE FROM object_changes`) // of making all this
	w.Exec(`UPDATE folders SET permission = 'ro'`)
	w.Exec(`UPDATE agents SET schedulable = NOT schedulable`)
	w.Exec(`UPDATE users SET full_name = 'New Name' WHERE id = $1`, string(ada.UserID))
	w.Exec(`UPDATE keypairs SET rate_limit = rate_limit + 1 WHERE user_id = $1`, string(ada.UserID))
	w.Exec(`UPDATE domains SET description = 'new' WHERE name = $1`, ada.Domain)
	w.Exec(`UPDATE background_tasks SET status = 'done'`)
	w.announce()
	check(session.ObjectChanged, func(i int) []string { return scopes[i].changed })

	w.Exec(`DELETE FROM object_changes`)
	w.Exec(`DELETE FROM folders`)
	w.Exec(`DELETE FROM keypairs WHERE user_id = $1`, string(ada.UserID))
	w.Exec(`DELETE FROM background_tasks`)
	check(session.ObjectDeleted, func(i int) []string { return scopes[i].ended })
}
