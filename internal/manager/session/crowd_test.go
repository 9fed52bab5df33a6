package session_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
)

// Requests that come together share a commit, but nothing else: each is answered for itself.
func TestCrowdOfRequestsIsAnsweredOneByOne(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 4`)
	const each = 40
	var wg sync.WaitGroup
	answers := make([]session.Created, 4*each)
	errs := make([]error, 4*each)
	ask := func(i int, r request.Session) {
		wg.Go(func() {
			r.Image = "python"
			answers[i], errs[i] = w.Sessions.Create(t.Context(), w.Admin, r)
		})
	}
	depends := w.Create("first")
	w.Exec(`ALTER TABLE sessions ADD CONSTRAINT refused CHECK (name NOT LIKE 'worse-%')`)
	for i := range each {
		ask(4*i, request.Session{Name: fmt.Sprintf("good-%d", i), ClusterSize: 2, Environ: map[string]string{"N": fmt.Sprint(i)},
			PreopenPorts: []int{3000 + i},
			Dependencies: []string{string(depends.ID)}, CallbackURL: "http://example.org/"})
		ask(4*i+1, request.Session{Name: "same", NoReuse: i%2 == 0})
		ask(4*i+2, request.Session{Name: fmt.Sprintf("bad-%d", i), Resources: map[string]string{"cpu": "many"}})
		ask(4*i+3, request.Session{Name: fmt.Sprintf("worse-%d", i)}) // only PostgreSQL refuses it
	}
	wg.Wait()
	created := 0
	for i := range each {
		require.NoError(t, errs[4*i])
		require.True(t, answers[4*i].Created)
		s := w.Session(answers[4*i].ID)
		require.Equal(t, fmt.Sprintf("good-%d", i), s.Name)
		require.Len(t, s.Kernels, 2)
		require.Equal(t, []int{3000 + i}, s.Kernels[1].PreopenPorts)
		var environ string
		var n, m int
		require.NoError(t, w.Store.Pool().QueryRow(t.Context(),
			`SELECT environ->>'N', (SELECT count(*) FROM session_dependencies WHERE session_id = s.id),
			(SELECT count(*) FROM session_events WHERE session_id = s.id AND event = 'session_enqueued') FROM sessions s WHERE id = $1`,
			string(s.ID)).Scan(&environ, &n, &m))
		require.Equal(t, fmt.Sprint(i, 1, 1), fmt.Sprint(environ, " ", n, " ", m))
		switch err := errs[4*i+1]; {
		case err != nil:
			require.True(t, fault.Is(err, fault.Conflict) && i%2 == 0, "%v", err)
		case answers[4*i+1].Created:
			created++
		}
		require.True(t, fault.Is(errs[4*i+2], fault.Invalid))
		require.Error(t, errs[4*i+3])
	}
	require.Equal(t, 1, created, "of one name there is one")
	var live int
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM sessions WHERE ended_at IS NULL`).Scan(&live))
	require.Equal(t, 1+each+1, live)
}

// A limit on waiting sessions holds also for those that come at the same moment.
func TestCrowdKeepsToThePendingLimit(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 64, 64*managertest.GiB)
	w.Exec(`UPDATE keypair_resource_policies SET max_pending_session_count = 5`)
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		wg.Go(func() {
			_, errs[i] = w.Sessions.Create(t.Context(), w.Admin, request.Session{Name: fmt.Sprintf("many-%d", i), Image: "python"})
		})
	}
	wg.Wait()
	refused := 0
	for _, err := range errs {
		if err != nil {
			require.True(t, fault.Is(err, fault.Exhausted), "%v", err)
			refused++
		}
	}
	require.Equal(t, 15, refused)
}
