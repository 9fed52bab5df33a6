package folder_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store"
)

const (
	sharedFolder  = "0b5e4a3c-0000-4000-8000-0000000000f1"
	projectFolder = "0b5e4a3c-0000-4000-8000-0000000000f2"
	ownFolder     = "0b5e4a3c-0000-4000-8000-0000000000f3"
)

// losing is a cluster in which ada owns a folder that bob has a share of, and both run sessions that mount it. bob's mounts a folder of the
// project and one of his own, too.
type losing struct {
	*managertest.World
	bob, ada   string
	bobs, adas cluster.SessionID
	pass       func()
	woken      func() []string
	bobsKey    string
}

func newLosing(t *testing.T) *losing {
	t.Helper()
	w := managertest.New(t)
	l := &losing{World: w}
	w.Agent("a1", 64, 64*managertest.GiB)
	bob, ada := w.Stranger("bob"), w.Stranger("ada")
	l.bob, l.ada, l.bobsKey = string(bob.UserID), string(ada.UserID), string(bob.AccessKey)
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE id = ANY($1::uuid[])`, []string{l.bob, l.ada})
	w.Exec(`INSERT INTO project_members (project_id, user_id) SELECT p.id, u.id::uuid FROM projects p, unnest($1::text[]) AS u (id)
WHERE p.name = 'default' AND p.domain_name = 'default'`, []string{l.bob, l.ada})
	w.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, status)
VALUES ($1, 'shared', 'p:v', 'default', 'user:' || $2, 'general', 'rw', $2::uuid, 'ready'),
       ($3, 'own', 'p:v', 'default', 'user:' || $4, 'general', 'rw', $4::uuid, 'ready')`, sharedFolder, l.ada, ownFolder, l.bob)
	w.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, project_id, status)
SELECT $1::uuid, 'ours', 'p:v', 'default', 'project:' || id, 'general', 'rw', id, 'ready' FROM projects
WHERE name = 'default' AND domain_name = 'default'`,
		projectFolder)
	w.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'rw')`, sharedFolder, l.bob)
	run := func(name string, key cluster.AccessKey, folders ...string) cluster.SessionID {
		id := w.Running(name, "a1", func(r *request.Session) { r.OwnerAccessKey = key })
		for i, f := range folders {
			w.Exec(`INSERT INTO session_mounts (session_id, n, folder_id, name, host, quota_scope, usage_mode, permission, subpath, target,
volume_path, owner_uid, owner_gid) SELECT $1, $2, id, name, host, quota_scope, usage_mode, 'rw', '.', '/home/work/' || name, '/vol',
9001, 9001 FROM folders WHERE id = $3`, string(id), i, f)
		}
		return id
	}
	l.bobs = run("bobs", bob.AccessKey, sharedFolder, projectFolder, ownFolder)
	l.adas = run("adas", ada.AccessKey, sharedFolder)
	for _, loop := range w.Folders.Loops() {
		if loop.Name == "mounts" {
			require.True(t, loop.Hears(store.TopicRights))
			work := loop.Begin(w.Term())
			l.pass = func() {
				t.Helper()
				_, err := work.Pass(t.Context())
				require.NoError(t, err)
			}
		}
	}
	wakes := w.Store.Wakes(func(topic string) bool { return strings.HasPrefix(topic, "agent:") })
	t.Cleanup(wakes.Close)
	l.woken = wakes.Take
	l.pass()
	l.woken()
	require.Empty(t, l.withheld(l.bobs))
	require.Empty(t, l.withheld(l.adas))
	return l
}

// withheld is what the desired state of a session's kernel withholds: names of folders, with "ro" for what stays.
func (l *losing) withheld(id cluster.SessionID) []string {
	list, err := l.Reports.Desired(l.T.Context(), "a1", nil)
	require.NoError(l.T, err)
	out := []string{}
	for _, d := range list {
		if d.Session != id {
			continue
		}
		for _, w := range d.Withheld {
			name := w.Name
			if w.ReadOnly {
				name += " ro"
			}
			out = append(out, name)
		}
	}
	return out
}

// TestEveryWayToLoseAFolder: whoever loses a right loses it in what runs, by every way there is; others keep theirs.
func TestEveryWayToLoseAFolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql  string
		args func(l *losing) []any
		want []string // of bob's
		adas []string
	}{
		"unshared": {`DELETE FROM folder_permissions WHERE folder_id = $1`, func(*losing) []any { return []any{sharedFolder} },
			[]string{"shared"}, nil},
		"lowered": {`UPDATE folder_permissions SET permission = 'ro' WHERE folder_id = $1`, func(*losing) []any { return []any{sharedFolder} },
			[]string{"shared ro"}, nil},
		"the project's folder is read-only": {`UPDATE folders SET permission = 'ro' WHERE id = $1`,
			func(*losing) []any { return []any{projectFolder} }, []string{"ours ro"}, nil},
		"given to another owner": {`WITH gone AS (DELETE FROM folder_permissions) UPDATE folders SET user_id = $2 WHERE id = $1`,
			func(l *losing) []any { return []any{sharedFolder, string(l.Admin.UserID)} }, []string{"shared"}, []string{"shared"}},
		"left the project": {`DELETE FROM project_members WHERE user_id = $1`, func(l *losing) []any { return []any{l.bob} },
			[]string{"ours"}, nil},
		"the project is closed": {`UPDATE projects SET is_active = false WHERE name = 'default' AND $1 <> ''`,
			func(l *losing) []any { return []any{l.bob} }, []string{"ours"}, nil},
		"the user is inactive": {`UPDATE users SET status = 'inactive' WHERE id = $1`, func(l *losing) []any { return []any{l.bob} },
			[]string{"shared", "ours"}, nil},
		"the domain is inactive": {`UPDATE domains SET is_active = false WHERE name = $1`, func(*losing) []any { return []any{"default"} },
			[]string{"shared", "ours"}, nil},
		"the owner is inactive": {`UPDATE users SET status = 'inactive' WHERE id = $1`, func(l *losing) []any { return []any{l.ada} }, nil, nil},
		"the folder is gone": {`WITH gone AS (DELETE FROM folder_permissions) DELETE FROM folders WHERE id = $1`,
			func(*losing) []any { return []any{sharedFolder} }, []string{"shared"}, []string{"shared"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLosing(t)
			l.Exec(c.sql, c.args(l)...)
			l.pass()
			require.ElementsMatch(t, c.want, l.withheld(l.bobs))
			require.ElementsMatch(t, c.adas, l.withheld(l.adas))
			events, _ := l.EventNames(l.bobs)
			told := strings.Count(strings.Join(events, " "), string(cluster.SessionFolderWithheld))
			require.Equal(t, len(c.want), told, "the session is told once of each")
			if len(c.want) > 0 {
				require.Contains(t, l.woken(), store.AgentTopic("a1"))
			}
			l.pass()
			events, _ = l.EventNames(l.bobs)
			require.Equal(t, told, strings.Count(strings.Join(events, " "), string(cluster.SessionFolderWithheld)), "and not again")
			for _, s := range []cluster.SessionID{l.bobs, l.adas} {
				require.Equal(t, cluster.Running, l.Session(s).Status)
			}
		})
	}
}

// TestFoldersThatAreGivenBack: nothing is withheld any more, and the next container has the folder.
func TestFoldersThatAreGivenBack(t *testing.T) {
	t.Parallel()
	l := newLosing(t)
	l.Exec(`DELETE FROM folder_permissions`)
	l.pass()
	require.Equal(t, []string{"shared"}, l.withheld(l.bobs))
	require.Len(t, l.Session(l.bobs).Mounts, 2, "the session's mounts are those that it has")
	l.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, 'ro')`, sharedFolder, l.bob)
	l.pass()
	require.Equal(t, []string{"shared ro"}, l.withheld(l.bobs))
	l.Exec(`UPDATE folder_permissions SET permission = 'wd'`)
	l.pass()
	require.Empty(t, l.withheld(l.bobs))
	require.Len(t, l.Session(l.bobs).Mounts, 3)
}

// TestKeysOfRunningSessions: the desired state of a kernel has the SSH keys of its owner's keypair and of those that replaced it, and a
// change wakes the agents.
func TestKeysOfRunningSessions(t *testing.T) {
	t.Parallel()
	l := newLosing(t)
	keys := func() []string {
		list, err := l.Reports.Desired(t.Context(), "a1", nil)
		require.NoError(t, err)
		for _, d := range list {
			if d.Session == l.bobs {
				return d.AuthorizedKeys
			}
		}
		return nil
	}
	woken := func(what string) {
		t.Helper()
		managertest.Soon(t, "the agent is woken when "+what, func() bool {
			for _, topic := range l.woken() {
				if topic == store.AgentTopic("a1") {
					return true
				}
			}
			return false
		})
	}
	l.Exec(`UPDATE keypairs SET ssh_public_key = NULL WHERE access_key = $1`, l.bobsKey)
	require.Equal(t, []string{}, keys(), "no key is said, not left out")
	l.Exec(`UPDATE keypairs SET ssh_public_key = $2 WHERE access_key = $1`, l.bobsKey, "ssh-ed25519 AAAA one\n")
	woken("a key is set")
	require.Equal(t, []string{"ssh-ed25519 AAAA one"}, keys())
	l.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy, ssh_public_key)
SELECT 'AKNEXT', secret_sealed, user_id, resource_policy, 'ssh-ed25519 BBBB two' FROM keypairs WHERE access_key = $1`, l.bobsKey)
	l.Exec(`UPDATE keypairs SET replaced_by = 'AKNEXT' WHERE access_key = $1`, l.bobsKey)
	woken("it is rotated")
	require.Equal(t, []string{"ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"}, keys())
	l.Exec(`UPDATE keypairs SET is_active = false WHERE access_key = $1`, l.bobsKey)
	woken("the old one ends")
	require.Equal(t, []string{"ssh-ed25519 BBBB two"}, keys())
	l.Exec(`UPDATE keypairs SET ssh_public_key = 'ssh-ed25519 CCCC three' WHERE access_key = 'AKNEXT'`)
	woken("the new one's changes")
	require.Equal(t, []string{"ssh-ed25519 CCCC three"}, keys())
}
