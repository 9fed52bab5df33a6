package scheduling

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/scheduler"
)

// TestALocalImageRunsWhereItIs: a session whose image no registry has waits, with words, until an agent reports that very image. One whose
// image a registry has does not.
func TestALocalImageRunsWhereItIs(t *testing.T) {
	t.Parallel()
	s, cred := newDatabase(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := s.Pool().Exec(t.Context(), sql, args...)
		require.NoError(t, err, sql)
	}
	exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ('a0', 'ALIVE', 'default', 'x86_64', true,
		'[{"Slot":"cpu","ID":"0","Capacity":4000,"Healthy":true}]')`)
	session := func(image, registryType string) cluster.SessionID {
		id, im := uuid.NewString(), uuid.NewString()
		exec(`INSERT INTO images (id, reference, registry_type, name, tag, architecture, digest, scope) VALUES ($1, $2, $3, $2, '1', 'x86_64',
			'sha256:1', 'global')`, im, image, registryType)
		exec(insertSession, id, 1, string(cred.AccessKey))
		exec(`UPDATE sessions SET image = $2, image_id = $3, image_digest = 'sha256:1' WHERE id = $1`, id, image, im)
		exec(`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, local_rank)
			VALUES ($1, $2, $3, 'x86_64', 'PENDING', '{"cpu":1000}', 0)`, uuid.NewString(), id, image)
		return cluster.SessionID(id)
	}
	mine, pulled := session("local/mine:1", "local"), session("registry.example.org/tool:1", "docker")
	m, clock := newMemory(chassis.RealClock()), chassis.RealClock()
	pass := func() (placed []cluster.SessionID) {
		t.Helper()
		require.NoError(t, s.View(t.Context(), func(ctx context.Context, q *dbgen.Queries) error {
			_, err := m.look(ctx, s, q)
			return err
		}))
		got, err := m.cluster.Pass("default", clock.Now(), scheduler.Work{})
		require.NoError(t, err)
		for _, d := range got.Decisions {
			if len(d.Placements) > 0 {
				placed = append(placed, d.Session)
			}
		}
		return placed
	}
	require.Equal(t, []cluster.SessionID{pulled}, pass())
	report := func(digest string) {
		exec(`INSERT INTO agent_images (agent_id, reference, architecture, digest) VALUES ('a0', 'local/mine:1', 'x86_64', $1)
			ON CONFLICT (agent_id, reference) DO UPDATE SET digest = excluded.digest`, digest)
	}
	report("sha256:2")
	require.NotContains(t, pass(), mine, "another image of that name")
	report("sha256:1")
	require.Contains(t, pass(), mine)

	// Where nothing is pulled, every image is one that no registry has.
	exec(`INSERT INTO cluster_settings (key, value) VALUES ('image-auto-pull', '"none"')`)
	require.NotContains(t, pass(), pulled)
	exec(`UPDATE cluster_settings SET value = '"tag"' WHERE key = 'image-auto-pull'`)
	require.Contains(t, pass(), pulled)
}
