package resource_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// A group that agents are in, or that sessions name, is not deleted, and who uses it is said; of two who delete one at once, one finds it
// gone; a session that comes meanwhile is made in a group that stays, or not made.
func TestGroupsInUseStay(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	fresh := func(name string) {
		require.NoError(t, w.Resources.CreateGroup(ctx, w.Admin, name, resource.GroupProps{}))
		require.NoError(t, w.Resources.AssociateGroup(ctx, w.Admin, name, resource.GroupUser{Domain: "default"}))
	}
	stays := func(words string) {
		err := w.Resources.DeleteGroup(ctx, w.Admin, "gpus")
		require.True(t, fault.Is(err, fault.Conflict), "%v", err)
		require.ErrorContains(t, err, words)
		require.Contains(t, fault.NextOf(err), "make it inactive")
	}
	fresh("gpus")
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Exec(`UPDATE agents SET resource_group = 'gpus'`)
	stays("1 agents, 0 live")
	id := w.Create("mylab", func(r *request.Session) { r.ResourceGroup = "gpus" }).ID
	w.Exec(`UPDATE agents SET resource_group = 'default'`)
	stays("0 agents, 1 live")
	_, err := w.Sessions.Destroy(ctx, w.Admin, string(id), session.DestroyOptions{})
	require.NoError(t, err)
	stays("0 live and 1 ended")

	for range 5 {
		fresh("brief")
		var running sync.WaitGroup
		errs := [3]error{}
		for i := range 2 {
			running.Go(func() { errs[i] = w.Resources.DeleteGroup(ctx, w.Admin, "brief") })
		}
		running.Go(func() {
			_, errs[2] = w.Sessions.Create(ctx, w.Admin, request.Session{Name: "comes", Image: "python", ResourceGroup: "brief"})
		})
		running.Wait()
		for _, err := range errs {
			require.True(t, err == nil || fault.KindOf(err) != fault.Internal, "%v", err)
		}
		if errs[2] == nil {
			require.Error(t, errs[0])
			require.Error(t, errs[1])
			return // the session names it for good
		}
		require.True(t, (errs[0] == nil) != (errs[1] == nil), "%v", errs)
	}
}
