package authz_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// cast are the actors of the tables below; those who own something own it as u.
func cast() map[string]authz.Actor {
	member := actor(authz.RoleUser, "m", "d")
	member.Projects = []cluster.ProjectID{"other", "p"}
	author := actor(authz.RoleUser, "u", "d")
	author.Projects = []cluster.ProjectID{"p"}
	adminMember := actor(authz.RoleAdmin, "w", "d")
	adminMember.Projects = []cluster.ProjectID{"p"}
	watcher := actor(authz.RoleMonitor, "u", "d")
	watcher.Projects = []cluster.ProjectID{"p"}
	watcher.AllowedRegistries = []string{"r"}
	runner := actor(authz.RoleUser, "r", "d")
	runner.AllowedRegistries = []string{"q", "r"}
	return map[string]authz.Actor{
		"owner": actor(authz.RoleUser, "u", "d"), "stranger": actor(authz.RoleUser, "x", "d"), "foreigner": actor(authz.RoleUser, "x", "e"),
		"member": member, "author": author, "runner": runner,
		"admin": actor(authz.RoleAdmin, "a", "d"), "admin elsewhere": actor(authz.RoleAdmin, "a", "e"), "admin and member": adminMember,
		"superadmin": actor(authz.RoleSuperadmin, "s", "e"), "monitor": actor(authz.RoleMonitor, "o", "e"), "monitor and owner": watcher,
		"nobody": {}, "without a key": {UserID: "u", Role: authz.RoleSuperadmin, Domain: "d"}, "without a user": {AccessKey: "AK-u",
			Role: authz.RoleSuperadmin, Domain: "d"},
	}
}

// may are the actors of the cast who may do it, in the order of their names.
func may(k authz.Kind, v authz.Verb, o authz.Object) string {
	var out []string
	for name, a := range cast() {
		if k.May(a, v, o) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestWhoMay(t *testing.T) {
	t.Parallel()
	const (
		admins = "admin, admin and member, superadmin"
		all    = "admin, admin and member, admin elsewhere, author, foreigner, member, owner, runner, stranger, superadmin"
		seeAll = "admin, admin and member, admin elsewhere, author, foreigner, member, " +
			"monitor, monitor and owner, owner, runner, stranger, superadmin"
		readAll = "monitor, monitor and owner, superadmin"
		// Owners are u alone.
		owned  = "admin, admin and member, author, owner, superadmin"
		seen   = "admin, admin and member, author, monitor, monitor and owner, owner, superadmin"
		hidden = "author, owner, superadmin" // from administrators: a superadmin's
	)
	mine := authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d"}
	roots := authz.Object{Owner: "u", OwnerRole: authz.RoleSuperadmin, Domain: "d"}
	ofProject := authz.Object{Project: "p", ProjectType: "general", Domain: "d", Creator: "u"}
	with := func(o authz.Object, change func(*authz.Object)) authz.Object { change(&o); return o }
	given := func(o authz.Object) authz.Object {
		return with(o, func(o *authz.Object) { o.Given = true })
	}
	local := func(o authz.Object) authz.Object {
		return with(o, func(o *authz.Object) { o.Registry = "local" })
	}
	for i, c := range []struct {
		kind authz.Kind
		o    authz.Object
		verb authz.Verb
		want string
	}{
		{authz.Sessions, mine, authz.See, seen},
		{authz.Sessions, mine, authz.Change, owned},
		{authz.Sessions, roots, authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.Sessions, roots, authz.Change, hidden},
		{authz.Sessions, authz.Object{}, authz.See, readAll},
		{authz.Sessions, authz.Object{}, authz.Change, "superadmin"},
		{authz.Sessions, mine, "dance", ""},

		{authz.Circuits, mine, authz.See, seen},
		{authz.Circuits, given(mine), authz.See, seeAll},
		{authz.Circuits, mine, authz.Visit, owned},
		{authz.Circuits, given(mine), authz.Visit, all},
		{authz.Circuits, with(mine, func(o *authz.Object) { o.Public = true }), authz.Visit, all},
		{authz.Circuits, with(mine, func(o *authz.Object) { o.Public = true }), authz.See, seen},
		{authz.Circuits, given(mine), authz.Change, owned},
		{authz.Circuits, roots, authz.Visit, hidden},
		{authz.Circuits, roots, authz.Change, hidden},

		{authz.Folders, mine, authz.See, seen},
		{authz.Folders, roots, authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.Folders, given(mine), authz.See, seeAll},
		{authz.Folders, ofProject, authz.See, "admin, admin and member, author, member, monitor, monitor and owner, superadmin"},
		{authz.Folders, given(ofProject), authz.See, "admin, admin and member, author, member, monitor, monitor and owner, superadmin"},
		{authz.Folders, mine, authz.Reach, "author, monitor and owner, owner"},
		{authz.Folders, given(mine), authz.Reach, seeAll},
		{authz.Folders, ofProject, authz.Reach, "admin and member, author, member, monitor and owner"},
		{authz.Folders, mine, authz.Change, owned},
		{authz.Folders, roots, authz.Change, hidden},
		{authz.Folders, given(mine), authz.Change, owned},
		{authz.Folders, ofProject, authz.Change, admins},
		{authz.Folders, with(ofProject, func(o *authz.Object) { o.ProjectType = "model-store" }), authz.Change,
			"admin, admin and member, author, superadmin"},
		{authz.Folders, mine, authz.Create, all},
		{authz.Folders, ofProject, authz.Create, admins},
		{authz.Folders, with(ofProject, func(o *authz.Object) { o.ProjectType = "model-store" }), authz.Create,
			"admin, admin and member, author, member, superadmin"},
		{authz.Folders, mine, authz.Purge, admins},
		{authz.Folders, roots, authz.Purge, "superadmin"},
		{authz.Folders, ofProject, authz.Purge, admins},
		{authz.Folders, mine, authz.ReadFiles, "admin, admin and member, author, monitor and owner, owner, superadmin"},
		{authz.Folders, ofProject, authz.ReadFiles, "admin, admin and member, author, member, monitor and owner, superadmin"},
		{authz.Folders, given(mine), authz.ReadFiles, seeAll},
		{authz.Folders, mine, authz.Administer, "superadmin"},

		{authz.FolderHosts, authz.Object{}, authz.See, readAll},
		{authz.FolderHosts, authz.Object{}, authz.Administer, "superadmin"},
		{authz.QuotaScopes, mine, authz.See, seen},
		{authz.QuotaScopes, roots, authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.QuotaScopes, ofProject, authz.See, "admin, admin and member, author, member, monitor, monitor and owner, superadmin"},
		{authz.QuotaScopes, mine, authz.Administer, "superadmin"},

		{authz.Images, authz.Object{Public: true, Registry: "local"}, authz.See, seeAll},
		{authz.Images, authz.Object{Public: true, Registry: "local"}, authz.Use, all},
		{authz.Images, authz.Object{Public: true, Registry: "r"}, authz.See, "monitor, monitor and owner, runner, superadmin"},
		{authz.Images, authz.Object{Public: true, Registry: "r"}, authz.Use, "runner"},
		{authz.Images, authz.Object{Public: true}, authz.Use, ""},
		{authz.Images, authz.Object{Registry: "local"}, authz.See, readAll},
		{authz.Images, authz.Object{Registry: "local"}, authz.Use, "superadmin"},
		{authz.Images, local(mine), authz.See, seen},
		{authz.Images, local(mine), authz.Use, hidden},
		{authz.Images, local(mine), authz.Change, owned},
		{authz.Images, local(roots), authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.Images, local(roots), authz.Change, hidden},
		{authz.Images, with(mine, func(o *authz.Object) { o.Registry = "r" }), authz.Use, ""},
		{authz.Images, local(ofProject), authz.See, "admin, admin and member, author, member, monitor, monitor and owner, superadmin"},
		{authz.Images, local(ofProject), authz.Use, "admin and member, author, member, superadmin"},
		{authz.Images, local(ofProject), authz.Change, admins},
		{authz.Images, authz.Object{Registry: "r"}, authz.Administer, "superadmin"},

		{authz.Users, mine, authz.See, seen},
		{authz.Users, roots, authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.Users, mine, authz.Change, hidden},

		{authz.Keypairs, mine, authz.See, seen},
		{authz.Keypairs, mine, authz.Change, owned},
		{authz.Keypairs, mine, authz.Act, owned},
		{authz.Keypairs, roots, authz.Act, hidden},
		{authz.Keypairs, roots, authz.Change, hidden},
		{authz.Keypairs, mine, authz.Reveal, ""},
		{authz.Keypairs, authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d", Keys: []cluster.AccessKey{"AK-u"}}, authz.Reveal,
			"author, owner"},

		{authz.Projects, ofProject, authz.See, "admin, admin and member, author, member, monitor, monitor and owner, superadmin"},
		{authz.Projects, ofProject, authz.Use, "admin and member, author, member"},
		{authz.Projects, ofProject, authz.Administer, "superadmin"},
		{authz.Projects, ofProject, authz.Change, admins},

		{authz.Domains, authz.Object{Domain: "d"}, authz.See,
			"admin, admin and member, author, member, monitor, monitor and owner, owner, runner, stranger, superadmin"},
		{authz.Domains, authz.Object{Domain: "d"}, authz.Change, admins},
		{authz.Domains, authz.Object{Domain: "d"}, authz.Administer, "superadmin"},

		{authz.Policies, authz.Object{}, authz.See, "admin, admin and member, admin elsewhere, monitor, monitor and owner, superadmin"},
		{authz.Policies, authz.Object{Given: true}, authz.See, seeAll},
		{authz.Policies, authz.Object{Given: true}, authz.Administer, "superadmin"},

		{authz.ResourceGroups, authz.Object{Active: true}, authz.See, readAll},
		{authz.ResourceGroups, authz.Object{Active: true, Domains: []string{"f", "e"}}, authz.Use, "admin elsewhere, foreigner, superadmin"},
		{authz.ResourceGroups, authz.Object{Active: true, Domains: []string{"f", "e"}}, authz.See,
			"admin elsewhere, foreigner, monitor, monitor and owner, superadmin"},
		{authz.ResourceGroups, authz.Object{Active: true, Projects: []cluster.ProjectID{"q", "p"}}, authz.Use,
			"admin and member, author, member"},
		{authz.ResourceGroups, authz.Object{Active: true, Keys: []cluster.AccessKey{"AK-u"}}, authz.Use, "author, owner"},
		{authz.ResourceGroups, authz.Object{Domains: []string{"e"}}, authz.Use, ""},
		{authz.ResourceGroups, authz.Object{Domains: []string{"e"}}, authz.See, readAll},
		{authz.ResourceGroups, authz.Object{Active: true, Domains: []string{"d"}}, authz.Administer, "superadmin"},

		{authz.Agents, authz.Object{}, authz.See, readAll},
		{authz.Agents, authz.Object{}, authz.Administer, "superadmin"},
		{authz.Presets, authz.Object{Public: true}, authz.See, seeAll},
		{authz.Presets, authz.Object{Active: true, Domains: []string{"e"}}, authz.See,
			"admin elsewhere, foreigner, monitor, monitor and owner, superadmin"},
		{authz.Presets, authz.Object{Domains: []string{"e"}}, authz.See, readAll},
		{authz.Presets, authz.Object{}, authz.Administer, "superadmin"},
		{authz.IdleCheckers, authz.Object{}, authz.See, readAll},
		{authz.IdleCheckers, authz.Object{}, authz.Administer, "superadmin"},
		{authz.Tasks, mine, authz.See, "author, monitor, monitor and owner, owner, superadmin"},
		{authz.Tasks, mine, authz.Change, hidden},
		{authz.Tasks, authz.Object{}, authz.See, readAll},
		{authz.Announcements, authz.Object{}, authz.See, seeAll},
		{authz.Announcements, authz.Object{}, authz.Administer, "superadmin"},
		{authz.Cluster, authz.Object{}, authz.See, readAll},
		{authz.Cluster, authz.Object{}, authz.Administer, "superadmin"},
	} {
		require.Equal(t, c.want, may(c.kind, c.verb, c.o), "case %d: who may %s a %s with %+v", i, c.verb, c.kind.Noun, c.o)
	}
}

// What an actor may do with the files of a folder, in the words of mounts; "" is nothing.
func TestFilesOfFolders(t *testing.T) {
	t.Parallel()
	people := cast()
	files := func(a authz.Actor, o authz.Object) string {
		has := ""
		for _, one := range []struct {
			verb authz.Verb
			word string
		}{{authz.ReadFiles, "ro"}, {authz.WriteFiles, "rw"}, {authz.DeleteFiles, "wd"}} {
			if !authz.Folders.May(a, one.verb, o) {
				break
			}
			has = one.word
		}
		return has
	}
	for _, c := range []struct {
		who     string
		project string // type
		folder  string // permission of the folder
		granted string
		want    string
	}{
		{"owner", "", "ro", "", "wd"}, {"owner", "", "rw", "", "wd"}, {"owner", "", "wd", "", "wd"},
		// A permission that was given before the folder was: the owner's right counts.
		{"owner", "", "ro", "wd", "wd"}, {"owner", "", "rw", "ro", "wd"},
		{"stranger", "", "wd", "", ""}, {"stranger", "", "wd", "ro", "ro"}, {"stranger", "", "ro", "rw", "rw"}, {"stranger", "", "ro", "wd",
			"wd"},
		{"admin", "", "ro", "", "ro"}, {"admin", "", "rw", "", "wd"}, {"admin", "", "wd", "", "wd"},
		{"admin", "", "rw", "ro", "ro"}, {"admin", "", "ro", "rw", "rw"}, {"admin", "", "ro", "wd", "wd"},
		{"admin elsewhere", "", "wd", "", ""}, {"admin elsewhere", "", "wd", "rw", "rw"},
		{"superadmin", "", "ro", "", "ro"}, {"superadmin", "", "rw", "", "wd"},
		{"monitor", "", "wd", "", ""}, {"monitor", "", "wd", "wd", "ro"}, {"monitor and owner", "", "wd", "", "ro"},
		{"nobody", "", "wd", "wd", ""}, {"without a key", "", "wd", "wd", ""},

		{"member", "general", "ro", "", "ro"}, {"member", "general", "rw", "", "rw"}, {"member", "general", "wd", "", "wd"},
		{"member", "general", "wd", "ro", "ro"}, {"member", "general", "ro", "rw", "rw"}, {"member", "general", "ro", "wd", "wd"},
		{"author", "general", "ro", "", "ro"}, {"author", "model-store", "ro", "", "wd"}, {"author", "model-store", "ro", "ro", "wd"},
		{"member", "model-store", "ro", "", "ro"},
		{"owner", "model-store", "wd", "", ""}, // made it, and has left the project
		{"stranger", "general", "wd", "", ""}, {"stranger", "general", "wd", "wd", ""},
		{"admin", "general", "ro", "", "wd"}, {"admin", "general", "ro", "ro", "wd"}, {"admin and member", "general", "ro", "ro", "wd"},
		{"admin elsewhere", "general", "wd", "", ""}, {"superadmin", "general", "ro", "", "wd"},
		{"monitor and owner", "general", "wd", "", "ro"},
	} {
		o := authz.Object{
			Domain:     "d",
			Creator:    "u",
			Permission: cluster.MountPermission(c.folder),
			Granted:    cluster.MountPermission(c.granted),
			Given:      c.granted != "",
		}
		if c.project == "" {
			o.Owner, o.OwnerRole = "u", authz.RoleUser
		} else {
			o.Project, o.ProjectType = "p", c.project
		}
		require.Equal(t, c.want, files(people[c.who], o), "%+v", c)
	}
	roots := authz.Object{Owner: "u", OwnerRole: authz.RoleSuperadmin, Domain: "d", Permission: "wd"}
	require.Empty(t, files(people["admin"], roots))
	require.Equal(t, "wd", files(people["superadmin"], roots))
}

// Refusals tell nothing about what the actor may not see, and who may about the rest.
func TestRefusals(t *testing.T) {
	t.Parallel()
	people := cast()
	o := authz.Object{Name: "work", Owner: "u", OwnerRole: authz.RoleUser, Domain: "d"}
	require.NoError(t, authz.Sessions.Check(people["owner"], authz.Change, o))
	for who, want := range map[string]fault.Kind{"stranger": fault.NotFound, "monitor": fault.Denied, "nobody": fault.Denied,
		"without a key": fault.Denied} {
		require.True(t, fault.Is(authz.Sessions.Check(people[who], authz.Change, o), want), who)
	}
	require.True(t, fault.Is(authz.Sessions.Check(people["stranger"], authz.See, o), fault.NotFound))
	require.EqualError(t, authz.Sessions.Check(people["stranger"], authz.See, o), authz.NotFound("session", "work").Error())
	require.ErrorContains(t, authz.Sessions.Check(people["monitor"], authz.Change, o),
		"o@x may not change this session: this needs its owner, an administrator of its domain (not over superadmins), "+
			"an administrator of its project (not over superadmins and administrators of the domain) or a superadmin")
	require.ErrorContains(t, authz.Sessions.Check(people["nobody"], authz.See, o), "authenticated")

	require.NoError(t, authz.Agents.Need(people["monitor"], authz.See, authz.Object{}, "list agents"))
	err := authz.Agents.Need(people["stranger"], authz.See, authz.Object{}, "list agents")
	require.True(t, fault.Is(err, fault.Denied))
	require.ErrorContains(t, err, "x@x may not list agents: this needs a superadmin or a monitor")
	require.ErrorContains(t, authz.Agents.Need(people["nobody"], authz.See, authz.Object{}, "list agents"), "authenticated")
}

// Predicates of actors whose role decides alone are constants; the others have a parameter for each placeholder.
func TestPredicates(t *testing.T) {
	t.Parallel()
	columns := authz.Columns{authz.Owner: "s.user_id", authz.OwnerRole: "u.role", authz.Domain: "s.domain_name"}
	where := func(k authz.Kind, a authz.Actor, v authz.Verb, c authz.Columns) (string, []any) {
		var args []any
		text := k.Where(a, v, c, func(x any) string { args = append(args, x); return fmt.Sprintf("$%d", len(args)) })
		for i := range args {
			require.Contains(t, text, fmt.Sprintf("$%d", i+1), "every parameter is used")
		}
		return text, args
	}
	people := cast()
	for who, want := range map[string]string{
		"superadmin": "true", "monitor": "true", "nobody": "false", "without a key": "false",
		"owner": "(s.user_id = $1::uuid)",
		"admin": "(s.user_id = $1::uuid OR (s.domain_name = $2::text AND (coalesce(u.role::text, '') IN ('superadmin')) IS NOT TRUE))",
	} {
		got, _ := where(authz.Sessions, people[who], authz.See, columns)
		require.Equal(t, want, got, who)
	}
	got, args := where(authz.Sessions, people["owner"], authz.Change, columns)
	require.Equal(t, "(s.user_id = $1::uuid)", got)
	require.Equal(t, []any{"u"}, args)
	got, _ = where(authz.Sessions, people["monitor"], authz.Change, columns)
	require.Equal(t, "false", got)
	got, _ = where(authz.Sessions, people["owner"], "dance", columns)
	require.Equal(t, "false", got)

	projects := authz.Columns{authz.Project: "p.id", authz.Domain: "p.domain_name"}
	got, args = where(authz.Projects, people["member"], authz.Use, projects)
	require.Equal(t, "p.id = ANY($1::uuid[])", got)
	require.Equal(t, []any{[]string{"other", "p"}}, args)
	got, _ = where(authz.Projects, people["owner"], authz.Use, projects)
	require.Equal(t, "false", got, "who is in no project")
	groups := authz.Columns{authz.Active: "g.is_active", authz.ToDomains: "d", authz.ToProjects: "p", authz.ToKeys: "k"}
	got, _ = where(authz.ResourceGroups, people["member"], authz.Use, groups)
	require.Equal(t, "(g.is_active AND (d && $1::text[] OR p && $2::uuid[] OR k && $3::text[]))", got)
	shares := authz.Columns{
		authz.Owner:     "c.user_id",
		authz.OwnerRole: "u.role",
		authz.Domain:    "d",
		authz.Given:     "x({user}, {projects}, {key}, {user})",
		authz.Public:    "c.public",
	}
	got, args = where(authz.Circuits, people["member"], authz.Visit, shares)
	require.Equal(t, "(c.user_id = $1::uuid OR x($2::uuid, $3::uuid[], $4::text, $2::uuid) OR c.public)", got)
	require.Equal(t, []any{"m", "m", []string{"other", "p"}, "AK-m"}, args)
	_, args = where(authz.Circuits, people["owner"], authz.Visit, shares)
	require.Equal(t, []string{}, args[2], "no projects are an empty list, not NULL")
	require.PanicsWithValue(t, `authz: a query about a session does not say where the fact "owner" is`, func() {
		where(authz.Sessions, people["owner"], authz.See, nil)
	})
}

// anyone and anything for the invariants below.
func anyone(t *rapid.T) authz.Actor {
	a := actor(rapid.SampledFrom([]authz.Role{authz.RoleSuperadmin, authz.RoleAdmin, authz.RoleUser, authz.RoleMonitor, ""}).Draw(t, "role"),
		rapid.SampledFrom([]string{"u", "v"}).Draw(t, "user"), rapid.SampledFrom([]string{"d", "e", ""}).Draw(t, "domain"))
	a.Projects = rapid.SliceOfN(rapid.SampledFrom([]cluster.ProjectID{"p", "q"}), 0, 2).Draw(t, "projects")
	for i, p := range a.Projects {
		if rapid.Bool().Draw(t, fmt.Sprint("administers project ", i)) {
			a.Leads = append(a.Leads, p)
		}
	}
	a.AllowedRegistries = rapid.SliceOfN(rapid.SampledFrom([]string{"r", "local", ""}), 0, 2).Draw(t, "registries")
	return a
}

func anything(t *rapid.T) authz.Object {
	permission := rapid.SampledFrom([]cluster.MountPermission{"", "ro", "rw", "wd"})
	flag := rapid.Bool()
	domain := rapid.SampledFrom([]string{"d", "e", ""})
	project := rapid.SampledFrom([]cluster.ProjectID{"p", "q", ""})
	o := authz.Object{
		Owner:     rapid.SampledFrom([]cluster.UserID{"u", "v", ""}).Draw(t, "owner"),
		OwnerRole: rapid.SampledFrom([]authz.Role{authz.RoleSuperadmin, authz.RoleAdmin, authz.RoleUser, ""}).Draw(t, "owner's role"),
		Domain: domain.Draw(
			t,
			"domain",
		), Project: project.Draw(t, "project"), ProjectType: rapid.SampledFrom([]string{"general", "model-store"}).Draw(t, "type"),
		Creator: rapid.SampledFrom([]cluster.UserID{"u", "v", ""}).Draw(t, "creator"),
		Permission: permission.Draw(
			t,
			"permission",
		), Granted: permission.Draw(t, "granted"), Given: flag.Draw(t, "given"), Public: flag.Draw(t, "public"),
		Active: flag.Draw(t, "active"), Registry: rapid.SampledFrom([]string{"local", "r", ""}).Draw(t, "registry"),
		Domains: rapid.SliceOfN(domain, 0, 2).Draw(t, "domains"), Projects: rapid.SliceOfN(project, 0, 2).Draw(t, "to projects"),
		Keys: rapid.SliceOfN(rapid.SampledFrom([]cluster.AccessKey{"AK-u", "AK-v", ""}), 0, 2).Draw(t, "keys"),
	}
	o.Given = o.Given || o.Granted != "" // one table says both
	return o
}

// What no rule may ever break.
func TestInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, o := anyone(t), anything(t)
		for _, k := range authz.Kinds() {
			for _, v := range k.Verbs() {
				allowed := k.May(a, v, o)
				says := func(rule string) { t.Fatalf("%s: %+v %s %s %+v", rule, a, v, k.Noun, o) }
				half := a
				half.AccessKey = ""
				if k.May(half, v, o) || k.May(authz.Actor{Role: a.Role, Domain: a.Domain, Projects: a.Projects}, v, o) {
					says("who is not authenticated may do nothing")
				}
				if v == authz.Reveal { // of keypairs alone
					if allowed && !slices.Contains(o.Keys, a.AccessKey) {
						says("secrets are told to nobody but who signs with them")
					}
					continue
				}
				reads := v == authz.See || v == authz.Reach || v == authz.ReadFiles || v == authz.SeeMembers
				if a.Role == authz.RoleMonitor && !reads && allowed {
					says("monitors change nothing")
				}
				if a.Role == authz.RoleMonitor && v == authz.See && !allowed {
					says("monitors see everything")
				}
				// What follows from membership, a share or the domain's lists is not for the office: it holds for superadmins as for everybody.
				office := v == authz.See || v == authz.Change || v == authz.Administer || v == authz.Act || v == authz.ReadFiles
				if k.Noun == authz.Users.Noun && v == authz.Act { // as a superadmin nobody acts
					office = false
					if allowed && (a.Role != authz.RoleSuperadmin || o.OwnerRole == authz.RoleSuperadmin) {
						says("superadmins alone act as others, and not as superadmins")
					}
				}
				if a.Role == authz.RoleSuperadmin && office && !allowed {
					says("superadmins may do everything")
				}
				ofDomain := (k.Noun == authz.Users.Noun || k.Noun == authz.Keypairs.Noun) && a.Role == authz.RoleAdmin && a.Domain == o.Domain
				if v == authz.Administer && a.Role != authz.RoleSuperadmin && !ofDomain && allowed {
					says("only superadmins administer, and administrators of a domain its users and their keypairs")
				}
				personal := k.Noun == authz.Sessions.Noun || k.Noun == authz.Circuits.Noun || k.Noun == authz.Keypairs.Noun ||
					k.Noun == authz.Users.Noun || k.Noun == authz.Tokens.Noun
				if personal && a.Role == authz.RoleAdmin && o.OwnerRole == authz.RoleSuperadmin && o.Owner != a.UserID && !o.Given && !o.Public &&
					allowed {
					says("an administrator of a domain never touches what belongs to a superadmin")
				}
				higher := o.OwnerRole == authz.RoleSuperadmin || o.OwnerRole == authz.RoleAdmin
				if personal && a.Role == authz.RoleUser && higher && o.Owner != a.UserID && !o.Given && !o.Public && allowed {
					says("an administrator of a project never touches what belongs to an administrator")
				}
				if a.Role == authz.RoleAdmin && a.Domain == "" && o.Domain == "" && personal && o.Owner != a.UserID && !o.Given && !o.Public &&
					allowed {
					says("no domain is not a domain")
				}
				if allowed && v != authz.See && v != authz.Use && v != authz.Create && v != authz.Visit && !k.May(a, authz.See, o) {
					says("who may do something sees the object")
				}
				if err := k.Check(a, v, o); (err == nil) != allowed {
					says("Check and May disagree")
				}
				if err := k.Need(a, v, o, "x"); (err == nil) != allowed {
					says("Need and May disagree")
				}
			}
		}
	})
}

// Every kind has a rule for seeing it, words for each verb, and no verb that nobody may do.
func TestKindsAreWhole(t *testing.T) {
	t.Parallel()
	nouns := map[string]bool{}
	for _, k := range authz.Kinds() {
		require.NotEmpty(t, k.Noun)
		require.False(t, nouns[k.Noun], k.Noun)
		nouns[k.Noun] = true
		require.Contains(t, k.Verbs(), authz.See, k.Noun)
		require.True(t, slices.IsSorted(k.Verbs()))
		for _, v := range k.Verbs() {
			require.NotEqual(t, "nobody", k.Who(v))
		}
	}
	require.Equal(t, "nobody", authz.Sessions.Who("dance"))
	require.Equal(t, "every user", authz.Announcements.Who(authz.See))
	require.Equal(t, []authz.Fact{authz.Domain, authz.Owner, authz.OwnerRole, authz.Project}, authz.Sessions.Facts())
	require.Equal(t, []authz.Fact{authz.ToKeys, authz.Active, authz.ToDomains, authz.ToProjects}, authz.ResourceGroups.Facts())
}

// Who administers a project does what its members do with their sessions, admits members, and is nobody elsewhere.
func TestAdministratorsOfProjects(t *testing.T) {
	t.Parallel()
	lead := actor(authz.RoleUser, "t", "d")
	lead.Projects, lead.Leads = []cluster.ProjectID{"p", "q"}, []cluster.ProjectID{"p"}
	of := func(project cluster.ProjectID, role authz.Role) authz.Object {
		return authz.Object{Owner: "u", OwnerRole: role, Domain: "d", Project: project}
	}
	for _, k := range []authz.Kind{authz.Sessions, authz.Circuits} {
		for _, v := range []authz.Verb{authz.See, authz.Change} {
			require.True(t, k.May(lead, v, of("p", authz.RoleUser)), "%s %s", v, k.Noun)
			require.False(t, k.May(lead, v, of("q", authz.RoleUser)), "of a project that they are a member of: %s %s", v, k.Noun)
			require.False(t, k.May(lead, v, of("", authz.RoleUser)), "%s %s", v, k.Noun)
			require.False(t, k.May(lead, v, of("p", authz.RoleAdmin)), "%s %s", v, k.Noun)
			require.False(t, k.May(lead, v, of("p", authz.RoleSuperadmin)), "%s %s", v, k.Noun)
		}
	}
	project := authz.Object{Project: "p", Domain: "d"}
	require.True(t, authz.Projects.May(lead, authz.Admit, project))
	require.True(t, authz.Projects.May(lead, authz.SeeMembers, project))
	for _, v := range []authz.Verb{authz.Change, authz.Create, authz.Purge, authz.Administer} {
		require.False(t, authz.Projects.May(lead, v, project), v)
	}
	require.False(t, authz.Projects.May(lead, authz.Admit, authz.Object{Project: "q", Domain: "d"}))
	require.False(t, authz.Keypairs.May(lead, authz.Act, authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d", Project: "p"}))
	lead.Role = authz.RoleMonitor
	require.False(t, authz.Projects.May(lead, authz.Admit, project))
}
