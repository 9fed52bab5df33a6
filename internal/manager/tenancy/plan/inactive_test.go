package plan_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/tenancy/plan"
)

// TestWhatBecomesOfWhatInactiveOwnersHave: each kind of thing has a fate, what there is none of is not spoken of, and nothing counts twice.
func TestWhatBecomesOfWhatInactiveOwnersHave(t *testing.T) {
	t.Parallel()
	all := plan.Owned{Live: 3, Waiting: 1, Folders: 5, Shared: 2, Borrowed: 4, Keypairs: 6, Tokens: 7, Members: 8, Users: 9, Projects: 10}
	told := func(k plan.Kind, o plan.Owned) (out []string) {
		for _, f := range plan.Inactive(k, o) {
			require.NotEmpty(t, f.Words, f.What)
			out = append(out, fmt.Sprint(f.Count, " ", f.What))
		}
		return out
	}
	owned := []string{"6 keypairs", "7 API tokens", "3 folders", "2 shared folders", "4 shares of others' folders", "8 memberships"}
	sessions := []string{"2 sessions that run", "1 sessions that wait to start"}
	user := all
	user.Users, user.Projects = 0, 0
	require.Equal(t, append(append([]string{}, sessions...), owned...), told(plan.User, user))
	require.Equal(t, append(append(append([]string{}, sessions...), "9 users", "10 projects"), owned...), told(plan.Domain, all))
	require.Equal(t, append(append([]string{}, sessions...), "5 folders", "8 memberships"), told(plan.Project, all))
	for _, k := range []plan.Kind{plan.User, plan.Project, plan.Domain} {
		require.Empty(t, plan.Inactive(k, plan.Owned{}), k)
	}
}
