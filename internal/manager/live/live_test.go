package live_test

import (
	"log/slog"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/live"
	"berth.dev/berth/internal/testkit/address"
)

func TestLiveFigures(t *testing.T) {
	t.Parallel()
	server := miniredis.NewMiniRedis()
	require.NoError(t, server.StartAddr(address.Hold(t)))
	t.Cleanup(server.Close)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := live.New(client, "c1:", slog.New(slog.NewTextHandler(t.Output(), nil)))
	s.Patience = time.Minute

	s.Put(t.Context(), "a1", map[string]float64{"cpu_util": 12.5}, map[cluster.KernelID]map[string]float64{"k1": {"mem": 1024}})
	require.Equal(t, map[cluster.AgentID]map[string]float64{"a1": {"cpu_util": 12.5}}, s.Agents(t.Context(), []cluster.AgentID{"a1", "a2"}))
	require.Equal(t, map[cluster.KernelID]map[string]float64{"k1": {"mem": 1024}}, s.Kernels(t.Context(), []cluster.KernelID{"k1", "k2"}))
	stranger := live.New(client, "c2:", slog.Default())
	stranger.Patience = s.Patience
	require.Empty(t, stranger.Agents(t.Context(), []cluster.AgentID{"a1"}), "clusters do not see each other")

	server.FastForward(live.TTL)
	require.Empty(t, s.Agents(t.Context(), []cluster.AgentID{"a1"}), "old figures are unknown")

	server.Close()
	s.Patience = time.Second
	require.Empty(t, s.Kernels(t.Context(), []cluster.KernelID{"k1"}), "a lost Redis is unknown, not an error")
}

func TestUsage(t *testing.T) {
	t.Parallel()
	server := miniredis.NewMiniRedis()
	require.NoError(t, server.StartAddr(address.Hold(t)))
	t.Cleanup(server.Close)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	s := live.New(client, "c1:", slog.New(slog.NewTextHandler(t.Output(), nil)))
	s.Patience = time.Minute
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s.Now = func() time.Time { return now }

	s.Put(t.Context(), "a1", nil, map[cluster.KernelID]map[string]float64{"k1": {"cpu_util": 1}})
	now = now.Add(rule.Bucket)
	s.Put(t.Context(), "a1", nil, map[cluster.KernelID]map[string]float64{"k1": {"cpu_util": 1}})
	require.Equal(t, []string{"c1:stat:agent:a1", "c1:stat:kernel:k1"}, server.Keys(), "nobody wants to know more")
	s.KeepUsage(t.Context(), 2*time.Hour)
	now = now.Add(rule.Bucket)
	first := rule.BucketOf(now)
	for i := range 200 { // minutes, two measurements each
		for range 2 {
			k := map[cluster.KernelID]map[string]float64{"k1": {"cpu_util": float64(i), "mem": 10, "cpu_used": 5, "net_rx": 1}}
			if i < 3 {
				k["k2"] = map[string]float64{"cpu_util": 100 * float64(i), "mem": math.NaN()}
			}
			s.Put(t.Context(), "a1", nil, k)
			now = now.Add(rule.Bucket / 2)
		}
	}
	got := s.Usage(t.Context(), []cluster.KernelID{"k1", "k2", "k3"}, 3*time.Minute)
	require.Equal(t, []cluster.KernelID{"k1"}, slices.Collect(maps.Keys(got)), "the others were not measured lately")
	newest := got["k1"][len(got["k1"])-1]
	require.Equal(t, rule.Sample{Bucket: first + 198, Values: map[string]float64{"cpu_util": 198, "mem": 10}}, newest,
		"the open minute does not count")
	require.LessOrEqual(t, len(got["k1"]), 4)
	require.Len(t, s.Usage(t.Context(), []cluster.KernelID{"k2"}, 48*time.Hour)["k2"], 3)
	all, err := server.List("c1:stat:use:k1")
	require.NoError(t, err)
	require.Len(t, all, 121, "bounded")

	// Another manager takes over and knows the same.
	other := live.New(client, "c1:", slog.Default())
	other.Now, other.Patience = s.Now, s.Patience
	require.Equal(t, got, other.Usage(t.Context(), []cluster.KernelID{"k1", "k2", "k3"}, 3*time.Minute))

	server.Close()
	s.Patience = time.Second
	require.Empty(t, s.Usage(t.Context(), []cluster.KernelID{"k1"}, time.Hour), "a lost Redis is unknown")
}
