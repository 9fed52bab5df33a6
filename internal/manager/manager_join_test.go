package manager_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/store/storetest"
)

// TestManagersJoin: the master key travels to a second manager by a token that works once, for one manager and for its time. Without it the
// second manager does not start on the cluster's database.
func TestManagersJoin(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := storetest.DSN(t)
	config := func(id string) manager.Config {
		c := manager.DefaultConfig()
		c.ID, c.StateDir, c.Postgres.DSN = id, filepath.Join(t.TempDir(), "state"), chassis.NewSecret(dsn)
		c.Listen, c.Agents.Listen = "127.0.0.1:0", "127.0.0.1:0"
		return c
	}
	start := func(c manager.Config) error {
		m, err := manager.New(ctx, c, manager.Deps{Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return m.Close()
	}
	first, second := config("m1"), config("m2")
	_, err := manager.InviteManager(ctx, first, "m2", "a test", time.Hour)
	require.True(t, fault.Is(err, fault.Invalid), "there is no master key yet: %v", err)
	require.NoError(t, start(first))
	key, err := os.ReadFile(filepath.Join(first.StateDir, "master.key"))
	require.NoError(t, err)

	err = start(second)
	require.Equal(t, "no-master-key", fault.ReasonOf(err), "%v", err)
	require.Contains(t, fault.NextOf(err), "--role manager --name m2")
	require.NoFileExists(t, filepath.Join(second.StateDir, "master.key"), "no key of its own may be made")

	invite := func(name string, life time.Duration) string {
		made, err := manager.InviteManager(ctx, first, name, "a test", life)
		require.NoError(t, err)
		return made.Text
	}
	refused := func(reason, token string, c manager.Config) {
		t.Helper()
		err := manager.JoinManager(ctx, c, token)
		require.Equal(t, reason, fault.ReasonOf(err), "%v", err)
		require.NotContains(t, err.Error(), strings.TrimSpace(string(key)))
	}
	token := invite("m2", time.Hour)
	refused("bad-join-token", "", second)
	refused("bad-join-token", "berth-manager-"+strings.Repeat("A", 43), second)
	refused("join-token-of-another", token, config("m3"))
	refused("master-key-exists", invite("m1", time.Hour), first)

	// What the database holds does not open itself.
	s := storetest.Open(t, dsn)
	raw, err := s.GetSetting(ctx, "manager-invitations")
	require.NoError(t, err)
	require.NotContains(t, string(raw), strings.TrimSpace(string(key)))
	require.NotContains(t, string(raw), strings.TrimPrefix(token, "berth-manager-"))

	require.NoError(t, manager.JoinManager(ctx, second, token+"\n"))
	same, err := os.ReadFile(filepath.Join(second.StateDir, "master.key"))
	require.NoError(t, err)
	require.Equal(t, key, same)
	info, err := os.Stat(filepath.Join(second.StateDir, "master.key"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, start(second))
	require.NoError(t, os.Remove(filepath.Join(second.StateDir, "master.key")))
	refused("bad-join-token", token, second) // it was used

	expired := invite("m2", time.Hour)
	_, err = s.Pool().Exec(ctx, `UPDATE cluster_settings SET value = (SELECT jsonb_agg(i || '{"expires_at":"2001-01-01T00:00:00Z"}')
		FROM jsonb_array_elements(value) i) WHERE key = 'manager-invitations'`)
	require.NoError(t, err)
	refused("bad-join-token", expired, second)
}
