package tenancy_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store/list"
)

// Domains and policies come in pages, of what the actor may see and no more; what is searched for is text.
func TestDomainsAndPoliciesArePaged(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	for _, table := range []string{"domains", "keypair_resource_policies", "user_resource_policies", "project_resource_policies"} {
		w.Exec(`INSERT INTO ` + table + ` (name) SELECT 'many-' || lpad(i::text, 3, '0') FROM generate_series(1, 250) i`)
	}
	_, user := made(t, w, "somebody@x", as(authz.RoleUser))
	pages := map[string]func(authz.Actor, list.Query) (names []string, total int, err error){
		"domains": func(a authz.Actor, q list.Query) (names []string, total int, err error) {
			p, err := w.Tenancy.PageDomains(ctx, a, q)
			for _, d := range p.Items {
				names = append(names, d.Name)
			}
			return names, p.Total, err
		},
		"of keypairs": func(a authz.Actor, q list.Query) (names []string, total int, err error) {
			p, err := w.Tenancy.PageKeypairPolicies(ctx, a, q)
			for _, d := range p.Items {
				names = append(names, d.Name)
			}
			return names, p.Total, err
		},
		"of users": func(a authz.Actor, q list.Query) (names []string, total int, err error) {
			p, err := w.Tenancy.PageUserPolicies(ctx, a, q)
			for _, d := range p.Items {
				names = append(names, d.Name)
			}
			return names, p.Total, err
		},
		"of projects": func(a authz.Actor, q list.Query) (names []string, total int, err error) {
			p, err := w.Tenancy.PageProjectPolicies(ctx, a, q)
			for _, d := range p.Items {
				names = append(names, d.Name)
			}
			return names, p.Total, err
		},
	}
	for name, page := range pages {
		names, total, err := page(w.Admin, list.Query{Filter: `name ilike "%ANY-1%"`, Limit: 40, Offset: 60})
		require.NoError(t, err, name)
		require.Equal(t, 100, total, name)
		require.Len(t, names, 40, name)
		require.Equal(t, []string{"many-160", "many-199"}, []string{names[0], names[39]}, name)
		names, total, err = page(user, list.Query{Limit: 100})
		require.NoError(t, err, name)
		require.LessOrEqual(t, total, 1, name)
		require.NotContains(t, names, "many-001", name)
		_, _, err = page(authz.Actor{}, list.Query{})
		require.Error(t, err, name)
		for _, bad := range []list.Query{{Limit: 101}, {Offset: -1}, {Filter: "total_resource_slots == 1"}, {Order: "nothing"}} {
			_, _, err = page(w.Admin, bad)
			require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
		}
	}
}
