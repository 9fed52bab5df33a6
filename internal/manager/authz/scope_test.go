package authz_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
)

// Every kind of object is in an area of scopes, so that nobody adds one that tokens reach by oversight.
func TestScopesKnowEveryKind(t *testing.T) {
	t.Parallel()
	for _, k := range authz.Kinds() {
		require.True(t, authz.Scoped(k), "%s: name its area in scope.go", k.Noun)
	}
}

// A scope never adds a right, whatever it names; and it takes away what it says.
func TestScopesOnlyTakeAway(t *testing.T) {
	t.Parallel()
	kinds := authz.Kinds()
	rapid.Check(t, func(rt *rapid.T) {
		role := rapid.SampledFrom([]authz.Role{authz.RoleUser, authz.RoleAdmin, authz.RoleSuperadmin, authz.RoleMonitor}).Draw(rt, "role")
		a := actor(role, "u", "d")
		a.Projects = rapid.SliceOfN(rapid.SampledFrom([]cluster.ProjectID{"p", "q"}), 0, 2).Draw(rt, "memberships")
		s := &authz.Scope{Token: "t", ReadOnly: rapid.Bool().Draw(rt, "read only"),
			Areas:    rapid.SliceOfN(rapid.SampledFrom(authz.Areas()), 0, 3).Draw(rt, "areas"),
			Projects: rapid.SliceOfN(rapid.SampledFrom([]cluster.ProjectID{"p", "q", "r"}), 0, 2).Draw(rt, "projects")}
		k := rapid.SampledFrom(kinds).Draw(rt, "kind")
		o := authz.Object{Owner: rapid.SampledFrom([]cluster.UserID{"u", "v", ""}).Draw(rt, "owner"), Domain: "d",
			Project: rapid.SampledFrom([]cluster.ProjectID{"p", "q", "r", ""}).Draw(rt, "project"), Permission: cluster.ReadWriteDelete,
			Given: rapid.Bool().Draw(rt, "given"), Public: rapid.Bool().Draw(rt, "public"), Service: rapid.Bool().Draw(rt, "service")}
		for _, v := range k.Verbs() {
			may := k.May(a.Within(s), v, o)
			if may && !k.May(a, v, o) {
				rt.Fatalf("%s %s: the scope %+v added a right", v, k.Noun, s)
			}
			if may && s.ReadOnly && v != authz.See && v != authz.Reach && v != authz.ReadFiles && v != authz.SeeMembers {
				rt.Fatalf("%s %s with a token that only reads", v, k.Noun)
			}
			if may && v == authz.Reveal {
				rt.Fatalf("%s %s with a token", v, k.Noun)
			}
		}
	})
}

func TestScopes(t *testing.T) {
	t.Parallel()
	user := actor(authz.RoleUser, "u", "d")
	user.Projects = []cluster.ProjectID{"p", "q"}
	own := authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d", Project: "p"}
	elsewhere := own
	elsewhere.Project = "q"
	personal := authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d", Permission: cluster.ReadWrite}
	open := authz.Object{Public: true, Registry: authz.LocalRegistry}
	mine := authz.Object{Owner: "u", OwnerRole: authz.RoleUser, Domain: "d"}
	for name, tc := range map[string]struct {
		scope authz.Scope
		kind  authz.Kind
		verb  authz.Verb
		o     authz.Object
		want  bool
	}{
		"all: change":                       {authz.Scope{}, authz.Sessions, authz.Change, own, true},
		"all: never secrets":                {authz.Scope{}, authz.Keypairs, authz.Reveal, mine, false},
		"reads: see":                        {authz.Scope{ReadOnly: true}, authz.Sessions, authz.See, own, true},
		"reads: change":                     {authz.Scope{ReadOnly: true}, authz.Sessions, authz.Change, own, false},
		"reads: visit an app":               {authz.Scope{ReadOnly: true}, authz.Circuits, authz.Visit, own, false},
		"sessions: change":                  {authz.Scope{Areas: []authz.Area{"session"}}, authz.Sessions, authz.Change, own, true},
		"sessions: use an image":            {authz.Scope{Areas: []authz.Area{"session"}}, authz.Images, authz.Use, open, true},
		"sessions: act for oneself":         {authz.Scope{Areas: []authz.Area{"session"}}, authz.Keypairs, authz.Act, mine, true},
		"sessions: change keypairs":         {authz.Scope{Areas: []authz.Area{"session"}}, authz.Keypairs, authz.Change, mine, false},
		"sessions: read files":              {authz.Scope{Areas: []authz.Area{"session"}}, authz.Folders, authz.ReadFiles, personal, false},
		"folders: sessions":                 {authz.Scope{Areas: []authz.Area{"folder"}}, authz.Sessions, authz.See, own, false},
		"a project: its session":            {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Sessions, authz.Change, own, true},
		"a project: another one's session":  {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Sessions, authz.See, elsewhere, false},
		"a project: a folder of one's own":  {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Folders, authz.ReadFiles, personal, false},
		"a project: change of oneself":      {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Users, authz.Change, mine, false},
		"a project: acting for oneself":     {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Keypairs, authz.Act, mine, true},
		"a project not of the user":         {authz.Scope{Projects: []cluster.ProjectID{"r"}}, authz.Sessions, authz.Change, own, false},
		"a project: use a public image":     {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Images, authz.Use, open, true},
		"a project: another project's name": {authz.Scope{Projects: []cluster.ProjectID{"p"}}, authz.Projects, authz.Use, elsewhere, false},
	} {
		require.Equal(t, tc.want, tc.kind.May(user.Within(&tc.scope), tc.verb, tc.o), name)
	}
	require.True(t, fault.Is(authz.InPerson(user.Within(&authz.Scope{}), "x"), fault.Denied))
	require.NoError(t, authz.InPerson(user, "x"))
	require.True(t, fault.Is(authz.Changing(user.Within(&authz.Scope{ReadOnly: true}), authz.AreaFolders), fault.Denied))
	require.True(t, fault.Is(authz.Changing(user.Within(&authz.Scope{Areas: []authz.Area{"image"}}), authz.AreaFolders), fault.Denied))
	require.NoError(t, authz.Changing(user.Within(&authz.Scope{}), authz.AreaFolders))
	require.Error(t, authz.Changing(authz.Actor{}, authz.AreaFolders))
}
