package manager_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/link/peer"
	"berth.dev/berth/internal/testkit"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, manager.DefaultConfig().Validate())
	for name, change := range map[string]func(*manager.Config){
		"no address":          func(c *manager.Config) { c.Listen = "" },
		"relative state":      func(c *manager.Config) { c.StateDir = "state" },
		"too few connections": func(c *manager.Config) { c.Postgres.MaxConns = 1 },
		"agent port":          func(c *manager.Config) { c.Agents.Listen = "8082" },
		"hasty lease":         func(c *manager.Config) { c.Agents.Lease = c.Agents.Heartbeat },
		"hasty loops":         func(c *manager.Config) { c.Reconcile.Sweep = 0 },
	} {
		c := manager.DefaultConfig()
		change(&c)
		err := c.Validate()
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", name, err)
	}
	_, err := chassis.Load(manager.DefaultConfig(), chassis.Sources{Flags: map[string]string{"agents.lease": "45s", "agents.resync": "2m"}})
	require.NoError(t, err)
	_, err = chassis.Load(manager.DefaultConfig(), chassis.Sources{Environ: []string{"BERTH_AGENTS__LEESE=45s"}})
	require.ErrorContains(t, err, "BERTH_AGENTS__LEASE", "an unknown key names the nearest one")
}

// TestPresence: managers announce themselves, and one that stops is gone at once.
func TestPresence(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Managers: 2, NoAgents: true})
	present := func() []peer.Presence {
		var out []peer.Presence
		for key, value := range c.Etcd("/berth/") {
			if strings.Contains(key, "/managers/") {
				var p peer.Presence
				require.NoError(t, json.Unmarshal([]byte(value), &p))
				out = append(out, p)
			}
		}
		return out
	}
	c.Until("both are there", func() bool { return len(present()) == 2 })
	for _, p := range present() {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.API+"/", nil)
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		require.NotEmpty(t, p.Agents)
	}
	c.Managers[1].Stop()
	c.Until("one is left", func() bool { return len(present()) == 1 })
}

// TestStartStop: a manager that is stopped at once leaves nothing behind and starts again.
func TestStartStop(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{NoAgents: true})
	m := c.Managers[0]
	for range 5 {
		m.Stop()
		m.Start()
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := m.Nouns().Operations.Findings(ctx)
	require.NoError(t, err)
}
