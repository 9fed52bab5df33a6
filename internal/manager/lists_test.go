package manager_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/manager/tenancy"
)

// crowd is how many rows each table has that lists read.
const crowd = 5_000

// call calls a list. It returns how many items came, and how many the list says that it has; -1 where it does not say.
type call func(ctx context.Context, w *managertest.World, a authz.Actor) (items, total int, err error)

func paged[T any](read func(context.Context, *managertest.World, authz.Actor) (list.Page[T], error)) call {
	return func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		p, err := read(ctx, w, a)
		return len(p.Items), p.Total, err
	}
}

func whole[T any](read func(context.Context, *managertest.World, authz.Actor) ([]T, error)) call {
	return func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		all, err := read(ctx, w, a)
		return len(all), -1, err
	}
}

// lists are all lists of tables that grow, by their use cases, with the parameters that decide what is read.
var lists = map[string]map[string]call{
	"Audit.List": {
		"all": paged(func(ctx context.Context, w *managertest.World, a authz.Actor) (list.Page[*audit.Entry], error) {
			return w.Audit.List(ctx, a, audit.Query{})
		}),
		"after": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
			p, err := w.Audit.List(ctx, a, audit.Query{After: new(int64(10))})
			return len(p.Items), -1, err
		},
		"by user": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
			p, err := w.Audit.List(ctx, a, audit.Query{Filter: `email == "few"`})
			return len(p.Items), -1, err
		},
	},
	"Tenancy.ListUsers": {
		"all":      users(tenancy.UserFilter{}),
		"active":   users(tenancy.UserFilter{Status: "active"}),
		"inactive": users(tenancy.UserFilter{Status: "inactive"}),
		"domain":   users(tenancy.UserFilter{Domain: "few"}),
		"email":    users(tenancy.UserFilter{Query: list.Query{Filter: `email == "many-77@x"`}}),
		"part":     users(tenancy.UserFilter{Query: list.Query{Filter: `email ilike "%Y-777%"`}}),
		"far":      users(tenancy.UserFilter{Query: list.Query{Offset: 200, Limit: 100}}),
		"project": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
			p, err := w.Tenancy.ListUsers(ctx, a, tenancy.UserFilter{Project: common(w)})
			return len(p.Items), p.Total, err
		},
	},
	"Tenancy.ListKeypairs": {
		"all":      keypairs(tenancy.KeypairFilter{}),
		"active":   keypairs(tenancy.KeypairFilter{Active: new(true)}),
		"inactive": keypairs(tenancy.KeypairFilter{Active: new(false)}),
		"domain":   keypairs(tenancy.KeypairFilter{Domain: "few"}),
		"email":    keypairs(tenancy.KeypairFilter{Email: "many-77@x"}),
		"key":      keypairs(tenancy.KeypairFilter{Query: list.Query{Filter: `access_key == "AKmany-77"`}}),
	},
	"Tenancy.ListDomains": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]*tenancy.Domain, error) {
		return w.Tenancy.ListDomains(ctx, a)
	})},
	"Tenancy.ListProjects": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]*tenancy.Project, error) {
		return w.Tenancy.ListProjects(ctx, a, "")
	}), "domain": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]*tenancy.Project, error) {
		return w.Tenancy.ListProjects(ctx, a, "few")
	})},
	"Images.List": {"all": images(list.Query{}), "far": images(list.Query{Offset: 200, Limit: 100}),
		"name": images(list.Query{Filter: `name == "img/77:1"`})},
	"Images.Customized": {"all": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		p, err := w.Images.Customized(ctx, a, list.Query{})
		return len(p.Items), p.Total, err
	}},
	"Nodes.List": {"all": nodes(node.Filter{}), "alive": nodes(node.Filter{Status: "ALIVE"}), "lost": nodes(node.Filter{Status: "LOST"}),
		"group": nodes(node.Filter{ResourceGroup: "default"}), "empty group": nodes(node.Filter{ResourceGroup: "none", Status: "ALIVE"})},
	"Folders.Search": {
		"all": folders(folder.SearchQuery{}), "living": folders(folder.SearchQuery{WithoutTrash: true}),
		"own": folders(folder.SearchQuery{Of: folder.OwnFolders}), "granted": folders(folder.SearchQuery{Of: folder.GrantedFolders}),
		"domain":    folders(folder.SearchQuery{Scope: "domain:few"}),
		"attribute": folders(folder.SearchQuery{Right: "read_attribute"}),
		"trash":     folders(folder.SearchQuery{Query: list.Query{Filter: `status == "DELETE_PENDING"`}}),
		"part":      folders(folder.SearchQuery{Query: list.Query{Filter: `name ilike "%y-777%"`}}),
		"of a user": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
			p, err := w.Folders.Search(ctx, a, folder.SearchQuery{Scope: "user:" + string(a.UserID), Query: list.Query{Limit: 5}})
			if a.Email == "many@x" {
				return 0, 0, err // counts what the user has
			}
			return len(p.Items), p.Total, err
		},
		"of a project": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
			p, err := w.Folders.Search(ctx, a, folder.SearchQuery{Scope: "project:" + string(common(w)), Of: folder.ProjectFolders})
			return len(p.Items), p.Total, err
		},
	},
	"Folders.List": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]folder.Folder, error) {
		return w.Folders.List(ctx, a, folder.ListQuery{})
	})},
	"Folders.ListInvitations": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]folder.Invitation, error) {
		return w.Folders.ListInvitations(ctx, a)
	})},
	"Folders.ListSentInvitations": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]folder.Invitation, error) {
		return w.Folders.ListSentInvitations(ctx, a)
	})},
	"Folders.Shared": {"all": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]folder.Sharing, error) {
		return w.Folders.Shared(ctx, a, "")
	})},
	"Apps.Circuits": {"all": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		all, err := w.Apps.Circuits(ctx, a, "", "")
		return len(all), -1, err
	}},
	"Sessions.Events": {"of sessions": events(session.EventFilter{Sessions: true}), "of kernels": events(session.EventFilter{Kernels: true})},
	// These two are in TestListsDoNotReadWhatHasEnded with all their parameters.
	"Sessions.List": {"all": paged(func(ctx context.Context, w *managertest.World, a authz.Actor) (list.Page[*session.Session], error) {
		return w.Sessions.List(ctx, a, session.Filter{})
	})},
	"Sessions.ListKernels": {"of an agent": paged(func(ctx context.Context, w *managertest.World,
		a authz.Actor) (list.Page[session.Kernel], error) {
		return w.Sessions.ListKernels(ctx, a, session.KernelFilter{Agent: "a1"})
	})},
	"Sessions.Match": {"name": whole(func(ctx context.Context, w *managertest.World, a authz.Actor) ([]session.Brief, error) {
		return w.Sessions.Match(ctx, a, "li")
	})},
	"Idle.Report": {"all": func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		all, _, err := w.Idle.Report(ctx, a)
		return len(all), -1, err
	}},
}

// small are the lists of what does not grow with use, by their use cases, with the reason.
var small = map[string]string{
	"OTP.Confirm":                  "ten recovery codes",
	"OTP.RenewRecoveryCodes":       "ten recovery codes",
	"Tenancies.Apply":              "what was asked for, 100 at most",
	"Purges.List":                  "purges that go on, begun by administrators one by one",
	"Purges.Preview":               "counts what one user, project or domain owns, for administrators; names are bounded",
	"Purges.PreviewInactive":       "counts what one user, project or domain owns, for administrators; names are bounded",
	"Passkeys.List":                "20 of a user at most",
	"Notices.Deliveries":           "the actor's newest; 100 at most",
	"Provision.ListUsers":          "of one provider, for tokens of SCIM; a page is read, the total is counted",
	"Provision.ListGroups":         "of one provider, for tokens of SCIM; a page is read, the total is counted",
	"Identities.List":              "one of a user at each provider",
	"Tenancy.ListLogins":           "logins of one user, bounded by the policy",
	"Tenancy.Members":              "of one project; 10,000 at most",
	"Tokens.List":                  "50 of each user; of all users the total is counted",
	"Tenancy.PageProjects":         "made by administrators; a page is read, the total is counted",
	"Tenancy.PageDomains":          "made by administrators; a page is read, the total is counted",
	"Tenancy.PageKeypairPolicies":  "made by administrators; a page is read, the total is counted",
	"Tenancy.PageUserPolicies":     "made by administrators; a page is read, the total is counted",
	"Tenancy.PageProjectPolicies":  "made by administrators; a page is read, the total is counted",
	"Tenancy.ListDotfiles":         "64 KiB of one row",
	"Tenancy.ListKeypairPolicies":  "made by administrators one by one, a few for a cluster",
	"Tenancy.ProjectPolicies":      "made by administrators one by one; 10,000 at most",
	"Tenancy.UserPolicies":         "made by administrators one by one; 10,000 at most",
	"Resources.AllowedGroups":      "made by administrators one by one, a few for a cluster",
	"Resources.ListGroups":         "made by administrators one by one, a few for a cluster",
	"Resources.Usable":             "made by administrators one by one, a few for a cluster",
	"Resources.Presets":            "made by administrators one by one, a few for a cluster",
	"Resources.RecalculateUsage":   "compares live rows, which an administrator asks for",
	"Resources.SchedulingPolicies": "names in the program",
	"Images.Named":                 "the images of the references that were asked for, which are those of a page",
	"Sessions.StatusTimes":         "a line for each status of each session of a page",
	"Sessions.DependentsOf":        "of the sessions of a page; 5,000 at most",
	"Sessions.KernelsOfAgents":     "of the agents of a page; 100 of each at most",
	"Images.Unknown":               "compares what agents have with the catalogue; 1,000 at most",
	"Nodes.Summaries":              "agents of some resource groups; 1,000 are read at most, the total is counted",
	"Nodes.Work":                   "what one agent holds now; 1,000 at most",
	"Folders.AllowedTypes":         "two words",
	"Folders.Invite":               "what was asked for",
	"Folders.ListFiles":            "a directory of a storage proxy; 10,000 at most",
	"Folders.Load":                 "what was asked for",
	"Folders.PerfMetric":           "one volume",
	"Folders.PermissionsOfHosts":   "names in the program",
	"Folders.SearchVolumes":        "the volumes that storage proxies announce",
	"Folders.Share":                "what was asked for",
	"Folders.Unshare":              "what was asked for",
	"Folders.Volumes":              "the volumes that storage proxies announce",
	"Sessions.Apps":                "one session",
	"Sessions.ByID":                "what was asked for",
	"Sessions.Top":                 "a page of Sessions.List",
	"Resources.SlotAliases":        "a setting of at most 16",
	"Sessions.Dependents":          "what depends on one session",
	"Sessions.Destroy":             "what was asked for",
	"Sessions.History":             "one session; 5,000 at most",
	"Sessions.SchedulerStatus":     "the groups of resources",
	"Apps.Apps":                    "one session",
	"Idle.Checkers":                "made by administrators one by one, a few for a cluster",
	"Idle.Checks":                  "what was asked for",
	"Resources.QuotaTree":          "set by administrators one by one; 10,000 at most",
	"Usage.Prices":                 "1,000 at most",
	"Usage.Mine":                   "the quarters of 30 days; reads what lies in them",
	"Usage.Everybodys":             "the quarters of 30 days; reads what lies in them, for administrators",
	"Usage.Kernels":                "adds up what lies in a period, for administrators; 50,000 intervals at most",
	"Usage.Series":                 "adds up what lies in a period; 366 steps and 200,000 numbers at most",
	"Templates.Create":             "what was asked for",
	"Templates.List":               "written by people one by one; 1,000 are read at most",
	"Operations.Doctor":            "looks at everything, which an administrator asks for; 200 findings of a kind at most",
	"Operations.ErrorLogs":         "500 of each user; of all users the total is counted",
	"Operations.TaskEvents":        "one task",
}

// ofOneself are the lists that read whatever a user has who is no administrator: folders are as many as the user's policy allows, circuits
// those of sessions that run, and a replay of events looks at all one's sessions.
var ofOneself = []string{"Folders.Search", "Sessions.Events", "Apps.Circuits"}

func users(f tenancy.UserFilter) call {
	return paged(func(ctx context.Context, w *managertest.World, a authz.Actor) (list.Page[*tenancy.User], error) {
		return w.Tenancy.ListUsers(ctx, a, f)
	})
}

func keypairs(f tenancy.KeypairFilter) call {
	return paged(func(ctx context.Context, w *managertest.World, a authz.Actor) (list.Page[*tenancy.Keypair], error) {
		return w.Tenancy.ListKeypairs(ctx, a, f)
	})
}

func images(q list.Query) call {
	return func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		p, err := w.Images.List(ctx, a, q)
		return len(p.Items), p.Total, err
	}
}

func nodes(f node.Filter) call {
	return func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		if a.Role == authz.RoleUser || a.Role == authz.RoleAdmin {
			return 0, 0, nil // agents are not for them
		}
		p, err := w.Nodes.List(ctx, a, f)
		return len(p.Items), p.Total, err
	}
}

func folders(q folder.SearchQuery) call {
	return paged(func(ctx context.Context, w *managertest.World, a authz.Actor) (list.Page[folder.Folder], error) {
		return w.Folders.Search(ctx, a, q)
	})
}

// events reads the last few events that the actor sees, and all of them where those are few.
func events(f session.EventFilter) call {
	return func(ctx context.Context, w *managertest.World, a authz.Actor) (int, int, error) {
		f.NoFollow = true
		if a.Role != authz.RoleUser && a.Email != "chief@x" {
			if err := w.Store.Pool().QueryRow(ctx, "SELECT max(seq) - 40 FROM session_events").Scan(&f.After); err != nil {
				return 0, 0, err
			}
		}
		all, err := w.Sessions.Events(ctx, a, f)
		if err != nil {
			return 0, 0, err
		}
		n := 0
		for range all {
			n++
		}
		return n, -1, nil
	}
}

// TestEveryListIsLookedAt: a use case that answers with a list is in one of the two tables.
func TestEveryListIsLookedAt(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	actor := reflect.TypeFor[authz.Actor]()
	seen := map[string]bool{}
	set := reflect.ValueOf(w.Set).Elem()
	for i := range set.NumField() {
		noun := set.Type().Field(i).Name
		for m := range set.Field(i).Type().Methods() {
			if m.Type.NumIn() < 3 || m.Type.In(2) != actor || !answersList(m.Type) {
				continue
			}
			name := noun + "." + m.Name
			seen[name] = true
			_, grows := lists[name]
			_, few := small[name]
			if grows == few {
				t.Errorf("the list %s: put it into the table of lists, or say among the small ones why it stays small", name)
			}
		}
	}
	for name := range lists {
		require.True(t, seen[name], "%s is not there", name)
	}
	for name := range small {
		require.True(t, seen[name], "%s is not there", name)
	}
}

// answersList reports whether a use case answers with items: a page, a slice, a map or a stream of them.
func answersList(m reflect.Type) bool {
	for i := range m.NumOut() {
		switch o := m.Out(i); o.Kind() {
		case reflect.Slice, reflect.Map, reflect.Chan:
			return true
		case reflect.Struct:
			if items, ok := o.FieldByName("Items"); ok && items.Type.Kind() == reflect.Slice {
				return true
			}
		}
	}
	return false
}

// renewConnections closes the connections of the pool, so that settings of the database hold for all, and waits until their processes are
// gone: what they have read is counted only then. A connection that is in use closes when it is given back. The one that carries
// notifications stays; it reads nothing.
func renewConnections(w *managertest.World) {
	ctx := w.T.Context()
	const reads = "query NOT LIKE 'LISTEN%' AND query NOT LIKE 'SELECT pg_notify%'"
	var old []int32
	require.NoError(w.T, w.Store.Pool().QueryRow(ctx, `SELECT array_agg(pid) FROM pg_stat_activity
		WHERE datname = current_database() AND backend_type = 'client backend' AND `+reads).Scan(&old))
	w.Store.Pool().Reset()
	require.Eventually(w.T, func() bool {
		var left int
		err := w.Store.Pool().QueryRow(ctx, "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[]) AND "+reads, old).Scan(&left)
		require.NoError(w.T, err)
		return left == 0
	}, time.Minute, 10*time.Millisecond)
}

// settle waits until those who follow changes have read all that was filled in: nothing is read for a while then.
func settle(w *managertest.World) {
	before, same := counters(w), 0
	require.Eventually(w.T, func() bool {
		now := counters(w)
		for table, n := range now {
			if strings.HasPrefix(table, "pg_") || n == before[table] {
				continue
			}
			before, same = now, 0
			return false
		}
		same++
		return same == 10
	}, time.Minute, 50*time.Millisecond)
}

// TestListsReadPages calls every list as people who see everything, much and little, beside thousands of rows of others. PostgreSQL's own
// counters tell how many rows each call reads: those of a page with what belongs to them, or those that it answers with.
func TestListsReadPages(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	people := fill(w, crowd)
	w.Exec(`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET enable_seqscan = off', current_database()); END $$`)
	renewConnections(w)
	ctx := t.Context()
	// The first stream begins the following of all.
	_, err := w.Sessions.Events(ctx, people["few"], session.EventFilter{Sessions: true, FromNow: true})
	require.NoError(t, err)
	settle(w)
	for who, a := range people {
		for name, calls := range lists {
			if slices.Contains(ofOneself, name) && who == "many" {
				continue
			}
			for what, read := range calls {
				var items, total int
				tooMany := func() map[string]int64 {
					r := reads(w, func() {
						var err error
						items, total, err = read(ctx, w, a)
						require.NoError(t, err, "%s %s as %s", name, what, who)
					})
					maps.DeleteFunc(r, func(_ string, n int64) bool { return n <= int64(mayRead+8*items) })
					return r
				}
				r := tooMany()
				for again := 0; len(r) > 0 && again < 3; again++ { // those who follow changes read at times, too: only what comes every time counts
					now := tooMany()
					maps.DeleteFunc(r, func(table string, _ int64) bool { return now[table] == 0 })
				}
				for table, n := range r {
					t.Errorf("%s (%s) as %s reads %d rows of %s for %d items", name, what, who, n, table, items)
				}
				if total >= 0 {
					require.LessOrEqual(t, items, total, "%s %s as %s", name, what, who)
				}
			}
		}
	}
}

// common is the project of the cluster's first users.
func common(w *managertest.World) cluster.ProjectID { return w.Admin.Projects[0] }

// fill makes a cluster with so many users, keypairs, folders, images, agents, entries of the audit log, projects, circuits and sessions. It
// returns people who see all of them or few.
func fill(w *managertest.World, n int) map[string]authz.Actor {
	w.Agent("a1", 1<<30, 1<<50)
	many, few := w.Stranger("many"), w.Stranger("few")
	chief, watcher := w.Stranger("chief"), w.Stranger("watcher")
	grow(w, many, n)
	grow(w, few, 3)
	grow(w, chief, 3)
	live := w.Running("live", "a1")
	w.Exec(`UPDATE users SET role = 'admin' WHERE username = 'chief'`)
	w.Exec(`UPDATE users SET role = 'monitor' WHERE username = 'watcher'`)
	w.Exec(`INSERT INTO domains (name) SELECT 'd' || i FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO projects (id, name, domain_name, resource_policy) SELECT gen_random_uuid(), 'p' || i, 'many', 'default'
		FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO users (id, username, email, domain_name, resource_policy, status, role, created_at)
		SELECT gen_random_uuid(), 'many-' || i, 'many-' || i || '@x', 'many', 'default', CASE WHEN i % 1000 = 1 THEN 'inactive' ELSE 'active' END,
			CASE WHEN i % 500 = 1 THEN 'superadmin' ELSE 'user' END, now() - i * interval '1 s' FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO project_members SELECT p.id, u.id FROM projects p JOIN users u ON u.username = 'many-' || substr(p.name, 2)
		WHERE p.domain_name = 'many'`)
	w.Exec(`INSERT INTO project_members SELECT $1, id FROM users WHERE username IN ('few', 'chief')`, string(common(w)))
	seals, key := make([][]byte, n), managertest.Key(w.T)
	for i := range seals {
		var err error
		seals[i], err = key.Seal("secret", fmt.Sprintf("keypair AKmany-%d", i+1))
		require.NoError(w.T, err)
	}
	w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy, is_active, created_at)
		SELECT 'AK' || username, ($1::bytea[])[substr(username, 6)::int], id, 'default', status = 'active', created_at
		FROM users WHERE username LIKE 'many-%'`, seals)
	w.Exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, scope, owner_id, origin)
		SELECT gen_random_uuid(), 'img/' || substr(u.username, 6) || ':1', 'local', 'img', '1', 'x86_64', 'sha256:1', 'user', u.id, 'commit'
		FROM users u WHERE u.username LIKE 'many-%'`)
	w.Exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, scope, owner_id, origin)
		SELECT gen_random_uuid(), 'own/' || username, 'local', 'img', '1', 'x86_64', 'sha256:1', 'user', id, 'commit' FROM users
		WHERE username IN ('few', 'chief')`)
	w.Exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, scope)
		SELECT gen_random_uuid(), 'all/' || i || ':1', CASE i % 2 WHEN 0 THEN 'local' ELSE 'r.example' END, 'img', '1', 'x86_64',
			'sha256:1', 'global'
		FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, scope, project_id)
		SELECT gen_random_uuid(), 'project/' || i || ':1', 'local', 'img', '1', 'x86_64', 'sha256:1', 'project', $1 FROM generate_series(1, 3) i`,
		string(common(w)))
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('none')`)
	w.Exec(`INSERT INTO agents (id, status, resource_group, first_contact) SELECT 'n' || i,
		CASE WHEN i % 1000 = 1 THEN 'LOST' ELSE 'ALIVE' END, 'default',
		now() - i * interval '1 s' FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key, address, request_id)
		SELECT gen_random_uuid(), 'user.modify', 'x', 'done', 'x', 'many-' || i,
			CASE WHEN i % 5 = 0 THEN 'superadmin' ELSE 'admin' END, 'many', 'k', 'a', 'r'
		FROM generate_series(1, $1::int) i`, n)
	w.Exec(`INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key, address, request_id)
		SELECT gen_random_uuid(), 'user.modify', 'x', 'done', 'x', 'few', 'user', 'chief', 'k', 'a', 'r' FROM generate_series(1, 3)`)
	w.Exec(`UPDATE folders SET status = 'delete-pending' WHERE name LIKE 'many-%77'`)
	w.Exec(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, project_id, creator_id, status)
		SELECT gen_random_uuid(), 'shared-' || i, 'p:v', 'default', 'project:' || $1, 'general', 'rw', $1::uuid, $2::uuid, 'ready'
		FROM generate_series(1, 3) i`, string(common(w)), string(few.UserID))
	w.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) SELECT f.id, $1, 'ro' FROM folders f
		WHERE name IN ('many-3', 'many-4')`,
		string(few.UserID))
	w.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission)
		SELECT f.id, u.id, 'ro' FROM folders f, users u WHERE f.name = 'many-5' AND u.username LIKE 'many-%'`)
	w.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) SELECT f.id, $1, 'ro' FROM folders f WHERE f.name = 'few-1'`,
		string(many.UserID))
	w.Exec(`INSERT INTO folder_invitations (id, folder_id, inviter_id, invitee_id, permission) SELECT gen_random_uuid(), f.id,
		f.user_id, u.id, 'ro'
		FROM folders f, users u WHERE f.name = 'many-6' AND (u.username LIKE 'many-%' OR u.username = 'few')`)
	w.Exec(`INSERT INTO circuits (id, proxy, mode, port, session_id, kernel_id, app, protocol, target, path, user_id, created_by,
		public, allowed,
			created_at)
		SELECT gen_random_uuid(), 'p', 'port', i, s.id, k.id, 'a', 'http', 1, '/', u.id, u.id, false, '{}', now()
		FROM generate_series(1, $1::int) i, users u, sessions s JOIN kernels k ON k.session_id = s.id WHERE u.username = 'many' AND s.id = $2`,
		n, string(live))
	w.Exec(`INSERT INTO circuit_shares (circuit_id, user_id) SELECT c.id, $1 FROM circuits c ORDER BY port LIMIT 3`, string(few.UserID))
	w.Exec(`INSERT INTO session_events (session_id, event, domain_name) SELECT id, 'session_started', domain_name FROM sessions
		ORDER BY domain_name <> 'chief'`)
	require.NoError(w.T, w.Store.JoinListCounts(w.T.Context(), 1))
	require.NoError(w.T, w.Store.JoinEndedCounts(w.T.Context(), 1))
	w.Exec("VACUUM ANALYZE")
	w.Exec("VACUUM FULL ANALYZE list_counts")
	w.Exec("VACUUM FULL ANALYZE ended_session_counts")
	out := map[string]authz.Actor{"superadmin": w.Admin}
	for who, a := range map[string]authz.Actor{"many": many, "few": few, "domain admin": chief, "monitor": watcher} {
		again, _, err := w.Tenancy.Authenticate(w.T.Context(), a.AccessKey)
		require.NoError(w.T, err)
		out[who] = again
	}
	return out
}

// TestListCounts: what lists say that they have is what there is, whatever happens to the rows, and whoever asks.
func TestListCounts(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	people := fill(w, 40)
	root, _, err := w.Tenancy.Authenticate(t.Context(), w.Admin.AccessKey)
	require.NoError(t, err)
	people["superadmin"] = root
	w.Exec(`INSERT INTO folder_permissions (folder_id, user_id, permission) SELECT f.id, u.id, 'ro' FROM folders f, users u
		WHERE f.name = 'many-9' AND u.username = 'chief'`)
	check := func(after string) {
		t.Helper()
		for who, a := range people {
			for name, calls := range lists {
				for what, read := range calls {
					_, total, err := read(t.Context(), w, a)
					require.NoError(t, err, "%s %s as %s", name, what, who)
					if total >= 0 {
						require.Equal(t, end(w, a, name, what), total, "%s (%s) as %s after %s", name, what, who, after)
					}
				}
			}
		}
	}
	check("nothing")
	random := rand.New(rand.NewPCG(3, 4))
	one := func() string { return fmt.Sprintf("many-%d", 1+random.IntN(40)) }
	changes := []func() (string, []any){
		func() (string, []any) {
			return `UPDATE users SET role = CASE role WHEN 'user' THEN 'superadmin' ELSE 'user' END WHERE username = $1`, []any{one()}
		},
		func() (string, []any) {
			return `UPDATE users SET status = CASE status WHEN 'active' THEN 'inactive' ELSE 'active' END WHERE username = $1`, []any{one()}
		},
		func() (string, []any) {
			return `UPDATE users SET domain_name = CASE domain_name WHEN 'many' THEN 'chief' ELSE 'many' END WHERE username = $1`, []any{one()}
		},
		func() (string, []any) {
			return `UPDATE keypairs SET is_active = NOT is_active WHERE access_key = 'AK' || $1::text`, []any{one()}
		},
		func() (string, []any) {
			return `DELETE FROM keypairs WHERE access_key = 'AK' || $1::text`, []any{one()}
		},
		func() (string, []any) {
			return `DELETE FROM users u WHERE username = $1 AND NOT EXISTS (SELECT 1 FROM keypairs k WHERE k.user_id = u.id)`, []any{one()}
		},
		func() (string, []any) {
			return `UPDATE folders SET status = CASE status WHEN 'ready' THEN 'delete-pending' WHEN 'delete-pending' THEN 'delete-complete'
				ELSE 'ready' END
				WHERE name = $1`, []any{one()}
		},
		func() (string, []any) {
			return `UPDATE folders SET user_id = (SELECT id FROM users WHERE username = 'chief') WHERE name = $1
				AND user_id IS NOT NULL`, []any{one()}
		},
		func() (string, []any) { return `DELETE FROM folders WHERE name = $1`, []any{one()} },
		func() (string, []any) {
			return `UPDATE images SET status = CASE status WHEN 'ALIVE' THEN 'DELETED' ELSE 'ALIVE' END WHERE reference = 'all/' || $1::int || ':1'`,
				[]any{1 + random.IntN(40)}
		},
		func() (string, []any) {
			return `UPDATE images SET scope = 'global', owner_id = NULL WHERE reference = 'img/' || $1::int || ':1'`, []any{1 + random.IntN(40)}
		},
		func() (string, []any) {
			return `DELETE FROM images WHERE reference = 'all/' || $1::int || ':1'`, []any{1 + random.IntN(40)}
		},
		func() (string, []any) {
			return `UPDATE agents SET status = CASE status WHEN 'LOST' THEN 'ALIVE' ELSE 'LOST' END WHERE id = 'n' || $1::int`,
				[]any{1 + random.IntN(40)}
		},
		func() (string, []any) {
			return `DELETE FROM agents WHERE id = 'n' || $1::int`, []any{1 + random.IntN(40)}
		},
		func() (string, []any) {
			return `DELETE FROM projects p WHERE name = 'p' || $1::int`, []any{1 + random.IntN(40)}
		},
	}
	for i := range 150 {
		sql, args := changes[i%len(changes)]()
		w.Exec(sql, args...)
		if i%50 == 49 {
			require.NoError(t, w.Store.JoinListCounts(t.Context(), 1))
		}
		if i%15 == 14 {
			check("change " + fmt.Sprint(i))
		}
	}
}

// end reads a list page by page and returns how many items it has.
func end(w *managertest.World, a authz.Actor, name, what string) int {
	pages := func(read func(q list.Query) (int, error)) (n int) {
		for {
			got, err := read(list.Query{Limit: 100, Offset: n})
			require.NoError(w.T, err)
			if n += got; got < 100 {
				return n
			}
		}
	}
	ctx := w.T.Context()
	switch name {
	case "Tenancy.ListUsers":
		f := map[string]tenancy.UserFilter{"active": {Status: "active"}, "inactive": {Status: "inactive"}, "domain": {Domain: "few"},
			"email":   {Query: list.Query{Filter: `email == "many-77@x"`}},
			"project": {Project: common(w)}, "part": {Query: list.Query{Filter: `email ilike "%Y-777%"`}}}[what]
		return pages(func(q list.Query) (int, error) {
			q.Filter, f.Query = f.Filter, q
			f.Query.Filter = q.Filter
			p, err := w.Tenancy.ListUsers(ctx, a, f)
			return len(p.Items), err
		})
	case "Tenancy.ListKeypairs":
		f := map[string]tenancy.KeypairFilter{"active": {Active: new(true)}, "inactive": {Active: new(false)}, "domain": {Domain: "few"},
			"email": {Email: "many-77@x"}, "key": {Query: list.Query{Filter: `access_key == "AKmany-77"`}}}[what]
		return pages(func(q list.Query) (int, error) {
			q.Filter = f.Filter
			f.Query = q
			p, err := w.Tenancy.ListKeypairs(ctx, a, f)
			return len(p.Items), err
		})
	case "Images.List":
		return pages(func(q list.Query) (int, error) {
			if what == "name" {
				q.Filter = `name == "img/77:1"`
			}
			p, err := w.Images.List(ctx, a, q)
			return len(p.Items), err
		})
	case "Images.Customized":
		return pages(func(q list.Query) (int, error) { p, err := w.Images.Customized(ctx, a, q); return len(p.Items), err })
	case "Nodes.List":
		if a.Role == authz.RoleUser || a.Role == authz.RoleAdmin {
			return 0
		}
		f := map[string]node.Filter{"alive": {Status: "ALIVE"}, "lost": {Status: "LOST"}, "group": {ResourceGroup: "default"},
			"empty group": {ResourceGroup: "none", Status: "ALIVE"}}[what]
		return pages(func(q list.Query) (int, error) {
			f.Query = q
			p, err := w.Nodes.List(ctx, a, f)
			return len(p.Items), err
		})
	case "Folders.Search":
		f := map[string]folder.SearchQuery{"living": {WithoutTrash: true}, "own": {Of: folder.OwnFolders}, "granted": {Of: folder.GrantedFolders},
			"domain": {Scope: "domain:few"}, "attribute": {Right: "read_attribute"},
			"trash":        {Query: list.Query{Filter: `status == "DELETE_PENDING"`}},
			"part":         {Query: list.Query{Filter: `name ilike "%y-777%"`}},
			"of a user":    {Scope: "user:" + string(a.UserID)},
			"of a project": {Scope: "project:" + string(common(w)), Of: folder.ProjectFolders}}[what]
		if what == "of a user" && a.Email == "many@x" {
			return 0
		}
		return pages(func(q list.Query) (int, error) {
			q.Filter = f.Filter
			f.Query = q
			p, err := w.Folders.Search(ctx, a, f)
			return len(p.Items), err
		})
	case "Audit.List":
		return pages(func(q list.Query) (int, error) {
			p, err := w.Audit.List(ctx, a, audit.Query{Limit: q.Limit, Offset: q.Offset})
			return len(p.Items), err
		})
	case "Sessions.List":
		return pages(func(q list.Query) (int, error) {
			p, err := w.Sessions.List(ctx, a, session.Filter{Query: q})
			return len(p.Items), err
		})
	case "Sessions.ListKernels":
		return pages(func(q list.Query) (int, error) {
			p, err := w.Sessions.ListKernels(ctx, a, session.KernelFilter{Agent: "a1", Query: q})
			return len(p.Items), err
		})
	}
	w.T.Fatalf("%s says how many items it has: read it here to its end", name)
	return 0
}
