package resource_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/tenancy"
)

func guaranteed(cpu string) resource.QuotaProps {
	return resource.QuotaProps{Guaranteed: map[string]string{"cpu": cpu}}
}

func atMost(cpu string) resource.QuotaProps {
	return resource.QuotaProps{Limit: map[string]string{"cpu": cpu}}
}

// Promises are kept: what is guaranteed below a level is at most what it has, whoever sets what, and the refusal has numbers.
func TestQuotasKeepPromises(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	for _, name := range []string{"ml", "vision"} {
		_, err := w.Tenancy.CreateProject(ctx, w.Admin, name, tenancy.ProjectProps{})
		require.NoError(t, err)
	}
	require.NoError(t, w.Resources.PlaceProject(ctx, w.Admin, "vision", "ml"))
	set := func(path string, p resource.QuotaProps) error {
		_, err := w.Resources.SetQuota(ctx, w.Admin, path, p)
		return err
	}
	require.NoError(t, set("default", atMost("8")))
	require.NoError(t, set("default/ml", guaranteed("6")))
	err := set("default/default", guaranteed("3"))
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	require.ErrorContains(t, err, "the guarantees in default sum up to 9 cpu, and its limit is 8 cpu")
	require.Contains(t, fault.NextOf(err), "guarantee less by 1 cpu")
	require.NoError(t, set("default/ml/vision", guaranteed("5")))
	require.True(t, fault.Is(set("default/ml/vision/user:"+w.Admin.Email, guaranteed("6")), fault.Conflict))
	require.True(t, fault.Is(set("default", atMost("5")), fault.Conflict), "a lower limit breaks a promise")
	require.True(t, fault.Is(set("default/ml", guaranteed("4")), fault.Conflict))
	require.True(t, fault.Is(w.Resources.PlaceProject(ctx, w.Admin, "vision", ""), fault.Conflict), "6 and 5 are more than 8")
	dry := guaranteed("1")
	dry.DryRun = true
	n, err := w.Resources.SetQuota(ctx, w.Admin, "default/ml/vision", dry)
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), n.Slots[0].Guaranteed)
	tree, err := w.Resources.QuotaTree(ctx, w.Admin, "default/ml")
	require.NoError(t, err)
	require.Len(t, tree, 2)
	require.Equal(t, "default/ml/vision", tree[1].Path)
	require.Equal(t, cluster.Whole(5), tree[1].Slots[0].Guaranteed, "a dry run changes nothing")
	require.Equal(t, "default", tree[1].Slots[0].EffectiveBy)

	// A total that is lowered elsewhere shows.
	w.Exec(`UPDATE domains SET total_resource_slots = '{"cpu": 4000}'`)
	tree, err = w.Resources.QuotaTree(ctx, w.Admin, "default")
	require.NoError(t, err)
	require.Equal(t, []string{"the guarantees in default sum up to 6 cpu, and its total is 4 cpu"}, tree[0].Problems)

	require.NoError(t, w.Resources.UnsetQuota(ctx, w.Admin, "default/ml", ""))
	require.True(t, fault.Is(w.Resources.UnsetQuota(ctx, w.Admin, "default/ml", ""), fault.NotFound))
	require.True(t, fault.Is(w.Resources.PlaceProject(ctx, w.Admin, "ml", "vision"), fault.Conflict), "a cycle")
	require.True(t, fault.Is(w.Resources.PlaceProject(ctx, w.Admin, "ml", "ml"), fault.Conflict))
	for path, p := range map[string]resource.QuotaProps{
		"": atMost("1"), "default/": atMost("1"), "default/ml/vision/user:" + w.Admin.Email: {}, "default/ml": atMost("-1"),
		"default/default": {Limit: map[string]string{"a b": "1"}}, "default/ml/vision": {Weight: new(-1.0)},
	} {
		require.True(t, fault.Is(set(path, p), fault.Invalid), "%s", path)
	}
	for _, path := range []string{"none", "default/none", "default/vision", "default/ml/vision/user:none@x"} {
		require.True(t, fault.Is(set(path, atMost("1")), fault.NotFound), "%s", path)
	}
	elsewhere := atMost("1")
	elsewhere.ResourceGroup = "none"
	require.True(t, fault.Is(set("default", elsewhere), fault.NotFound))
}

// Two administrators who give away the last seats at once: one of them is refused.
func TestQuotasRace(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, err := w.Tenancy.CreateProject(ctx, w.Admin, "ml", tenancy.ProjectProps{})
	require.NoError(t, err)
	_, err = w.Resources.SetQuota(ctx, w.Admin, "default", atMost("8"))
	require.NoError(t, err)
	var wait sync.WaitGroup
	errs := make([]error, 2)
	for i, path := range []string{"default/ml", "default/default"} {
		wait.Go(func() { _, errs[i] = w.Resources.SetQuota(ctx, w.Admin, path, guaranteed("5")) })
	}
	wait.Wait()
	require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v", errs)
}

// Who administers a project administers what lies in it, and gives nothing to the project itself.
func TestQuotasOfSubProjects(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	lead := w.Stranger("lead")
	for _, name := range []string{"ml", "vision"} {
		_, err := w.Tenancy.CreateProject(ctx, w.Admin, name, tenancy.ProjectProps{})
		require.NoError(t, err)
	}
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE id = $1`, string(lead.UserID))
	w.Exec(`INSERT INTO project_members (project_id, user_id, is_admin) SELECT id, $1, true FROM projects WHERE name = 'ml'`,
		string(lead.UserID))
	again := func() authz.Actor {
		a, _, err := w.Tenancy.Authenticate(ctx, lead.AccessKey)
		require.NoError(t, err)
		return a
	}
	_, err := w.Resources.SetQuota(ctx, again(), "default/vision", atMost("1"))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	require.NoError(t, w.Resources.PlaceProject(ctx, w.Admin, "vision", "ml"))
	_, err = w.Resources.SetQuota(ctx, again(), "default/ml/vision", atMost("1"))
	require.NoError(t, err)
	_, err = w.Resources.SetQuota(ctx, again(), "default/ml/user:"+lead.Email, atMost("1"))
	require.NoError(t, err)
	for _, path := range []string{"default", "default/ml"} {
		_, err = w.Resources.SetQuota(ctx, again(), path, atMost("1"))
		require.True(t, fault.Is(err, fault.Denied), "%s: %v", path, err)
	}
	nodes, err := w.Resources.QuotaTree(ctx, again(), "")
	require.NoError(t, err)
	for _, n := range nodes {
		require.Contains(t, n.Path, "default/ml")
	}
	require.Len(t, nodes, 3)
	require.NoError(t, w.Resources.PlaceProject(ctx, w.Admin, "vision", ""))
	_, err = w.Resources.SetQuota(ctx, again(), "default/vision", atMost("1"))
	require.Error(t, err, "it lies in the project no more")
}

// What never fits is refused when it is created, and the preview names the level.
func TestQuotasAreToldBefore(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 8, 16*managertest.GiB)
	_, err := w.Resources.SetQuota(ctx, w.Admin, "default/default", atMost("2"))
	require.NoError(t, err)
	_, err = w.Sessions.Create(ctx, w.Admin, request.Session{Name: "toobig", Image: "python",
		Resources: map[string]string{"cpu": "3", "mem": "1g"}})
	require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
	require.ErrorContains(t, err, "quota: default/default limit 2 cpu, and the session asks for 3 cpu")
	l, err := w.Resources.Limits(ctx, w.Admin, "", "default", "")
	require.NoError(t, err)
	cpu, limited := binding(t, l, resource.LimitOfRunning, "cpu")
	require.True(t, limited)
	require.Equal(t, "quota", cpu.Level)
	require.Equal(t, "default/default", cpu.Name)
	require.Equal(t, cluster.Whole(2), cpu.Left)
}
