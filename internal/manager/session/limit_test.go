package session_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session/request"
)

// createAll creates sessions at once and counts those that were refused for a limit.
func createAll(w *managertest.World, prefix string, n int, change func(i int, r *request.Session)) (refused int) {
	w.T.Helper()
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := request.Session{Name: fmt.Sprintf("%s-%d", prefix, i), Image: "python", Resources: map[string]string{"cpu": "1", "mem": "512m"}}
			if change != nil {
				change(i, &r)
			}
			_, errs[i] = w.Sessions.Create(w.T.Context(), w.Admin, r)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			require.Equal(w.T, fault.Exhausted, fault.KindOf(err), "%v", err)
			require.NotEmpty(w.T, fault.NextOf(err))
			refused++
		}
	}
	return refused
}

func waiting(w *managertest.World) (n int) {
	w.T.Helper()
	require.NoError(w.T, w.Store.Pool().QueryRow(w.T.Context(), `SELECT count(*) FROM sessions WHERE status = 'PENDING'`).Scan(&n))
	return n
}

func TestWaitingSessionsNeverExceedTheirLimits(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = 7`)
	require.Equal(t, 33, createAll(w, "count", 40, nil))
	require.Equal(t, 7, waiting(w))

	// A second keypair of the same user counts for the user, and its own policy holds too.
	w.Exec(`INSERT INTO keypair_resource_policies (name, max_pending_session_count) VALUES ('narrow', 2)`)
	w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, is_admin, resource_policy) SELECT 'SECOND', '', user_id, true, `+
		`'narrow' FROM keypairs WHERE access_key = $1`, string(w.Creds.AccessKey))
	second := func(_ int, r *request.Session) { r.OwnerAccessKey = "SECOND" }
	require.Equal(t, 10, createAll(w, "full", 10, second))
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = 20 WHERE name <> 'narrow'`)
	require.Equal(t, 8, createAll(w, "second", 10, second))
	require.Equal(t, 9, waiting(w))

	// Slots: only what a session asks for counts.
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = NULL, max_pending_session_resource_slots = $1`,
		[]byte(`{"cpu": 12000, "toy": 0}`))
	require.Equal(t, 17, createAll(w, "slots", 20, nil))
	require.Equal(t, 12, waiting(w))
}

func TestLimitsOfOneSession(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_priority = 5, max_containers_per_session = 2`)
	create := func(change func(r *request.Session)) error {
		r := request.Session{Name: "limits", Image: "python"}
		change(&r)
		_, err := w.Sessions.Create(t.Context(), w.Admin, r)
		return err
	}
	six := 6
	err := create(func(r *request.Session) { r.Priority = &six })
	require.ErrorContains(t, err, "priority 6 is above 5")
	require.Equal(t, fault.Exhausted, fault.KindOf(err))
	err = create(func(r *request.Session) { r.ClusterSize = 3 })
	require.ErrorContains(t, err, "2 containers")
	require.Equal(t, fault.Exhausted, fault.KindOf(err))

	w.Exec(`UPDATE resource_groups SET scheduler_opts = '{"allowed_session_types": ["batch"]}'`)
	err = create(func(r *request.Session) { r.ResourceGroup = "default" })
	require.ErrorContains(t, err, "resource group default runs batch sessions, not interactive")
	require.Equal(t, fault.Invalid, fault.KindOf(err))
	require.NoError(t, create(func(r *request.Session) { r.Type, r.StartupCommand = cluster.Batch, "true" }))
	var priority int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT priority FROM sessions WHERE name = 'limits'`).Scan(&priority))
	require.Equal(t, 5, priority, "the default is lowered to what is allowed")
}

// Under a policy that names no highest priority users cannot pass the others; a superadmin can.
func TestUsersHaveNoHighPriorityByDefault(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	create := func(a authz.Actor, name string, priority int) error {
		_, err := w.Sessions.Create(t.Context(), a, request.Session{Name: name, Image: "python", Priority: &priority})
		return err
	}
	require.NoError(t, create(w.Admin, "of-admin", 100))
	user := w.Admin
	user.Role = authz.RoleUser
	require.ErrorContains(t, create(user, "of-user", 100), "priority 100 is above 10")
	require.ErrorContains(t, create(user, "of-user", 11), "priority 11 is above 10")
	require.NoError(t, create(user, "of-user", 10))
	high := 50
	sessions, err := w.Sessions.Find(t.Context(), user, "of-user", "")
	require.NoError(t, err)
	_, err = w.Sessions.Modify(t.Context(), user, sessions.ID, nil, &high)
	require.ErrorContains(t, err, "priority 50 is above 10")
	w.Exec(`UPDATE keypair_resource_policies SET max_priority = 50`)
	require.NoError(t, create(user, "with-leave", 50))
	require.ErrorContains(t, create(w.Admin, "bound", 51), "priority 51 is above 50")
}
