package session_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
)

// objects follows changes of objects as an actor.
func (w hubWorld) objects(a authz.Actor) <-chan session.Event {
	w.T.Helper()
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
