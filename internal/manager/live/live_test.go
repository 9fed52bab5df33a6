package live_test

import (
	"log/slog"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/live"
)

func TestLiveFigures(t *testing.T) {
	t.Parallel()
	server := miniredis.RunT(t)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := live.New(client, "c1:", slog.New(slog.NewTextHandler(t.Output(), nil)))

	s.Put(t.Context(), "a1", map[string]float64{"cpu_util": 12.5}, map[cluster.KernelID]map[string]float64{"k1": {"mem": 1024}})
	require.Equal(t, map[cluster.AgentID]map[string]float64{"a1": {"cpu_util": 12.5}}, s.Agents(t.Context(), []cluster.AgentID{"a1", "a2"}))
	require.Equal(t, map[cluster.KernelID]map[string]float64{"k1": {"mem": 1024}}, s.Kernels(t.Context(), []cluster.KernelID{"k1", "k2"}))
	require.Empty(t, live.New(client, "c2:", slog.Default()).Agents(t.Context(), []cluster.AgentID{"a1"}), "clusters do not see each other")

	server.FastForward(live.TTL)
	require.Empty(t, s.Agents(t.Context(), []cluster.AgentID{"a1"}), "old figures are unknown")

	server.Close()
	require.Empty(t, s.Kernels(t.Context(), []cluster.KernelID{"k1"}), "a lost Redis is unknown, not an error")
}
