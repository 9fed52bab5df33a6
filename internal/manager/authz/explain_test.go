package authz

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// An explanation says what May says, with a reason exactly where it is allowed, for every kind, verb, role and relation.
func TestExplanationsAgreeWithDecisions(t *testing.T) {
	t.Parallel()
	objects := []Object{{}, {Owner: "u", Domain: "d"}, {Owner: "v", OwnerRole: RoleUser, Domain: "d"},
		{Owner: "v", OwnerRole: RoleSuperadmin, Domain: "d"}, {Owner: "v", Domain: "e"}, {Given: true}, {Public: true, Registry: LocalRegistry},
		{Active: true, Domains: []string{"d"}}, {Project: "p", Domain: "d", ProjectType: "model-store", Creator: "u"}}
	n := 0
	for _, k := range Kinds() {
		for _, v := range k.Verbs() {
			for _, role := range []Role{RoleUser, RoleAdmin, RoleMonitor, RoleSuperadmin} {
				a := Actor{UserID: "u", AccessKey: "k", Domain: "d", Role: role}
				for _, o := range objects {
					d := k.Explain(a, v, o)
					require.Equal(t, k.May(a, v, o), d.Allowed)
					require.Equal(t, d.Allowed, len(d.Because) > 0, "%s %s by %s: %+v", v, k.Noun, role, d)
					require.Subset(t, d.Needs, d.Because)
					n++
				}
			}
		}
	}
	require.Greater(t, n, 1000)
	require.False(t, Users.Explain(Actor{}, See, Object{}).Allowed)
}
