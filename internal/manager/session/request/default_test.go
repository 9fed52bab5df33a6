package request_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// What a session gets whose request leaves amounts open.
func TestDefaults(t *testing.T) {
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	slots := func(cpu, mem int64) cluster.Slots {
		return cluster.Slots{cluster.SlotCPU: cluster.Whole(cpu), cluster.SlotMem: cluster.Whole(mem)}
	}
	mem := func(bytes int64) cluster.Slots { return cluster.Slots{cluster.SlotMem: cluster.Whole(bytes)} }
	labels := map[string]string{"ai.backend.resource.min.cpu": "1", "ai.backend.resource.min.mem": "64m"}
	recommends := map[string]string{"ai.backend.resource.preferred.cpu": "2", "ai.backend.resource.preferred.mem": "4g"}
	large := map[string]string{"ai.backend.resource.min.mem": "8g"}
	three := request.Defaults{Preset: request.Preset{Slots: slots(3, 3*gib)}}
	small := map[string]string{"ai.backend.resource.max.mem": "1g"}
	for name, c := range map[string]struct {
		labels   map[string]string
		asked    map[string]string
		defaults request.Defaults
		want     cluster.Slots
	}{
		"nothing said":                       {labels, nil, request.Defaults{}, slots(1, 2*gib)},
		"an image without labels":            {nil, nil, request.Defaults{}, slots(1, 2*gib)},
		"the administrator's preset":         {labels, nil, request.Defaults{Usual: slots(2, gib)}, slots(2, gib)},
		"the image's recommendation":         {recommends, nil, request.Defaults{Usual: slots(1, gib)}, slots(2, 4*gib)},
		"a named preset goes first":          {recommends, nil, three, slots(3, 3*gib)},
		"what is said goes before a preset":  {labels, map[string]string{"mem": "1g"}, three, slots(3, gib)},
		"one amount said":                    {labels, map[string]string{"mem": "512m"}, request.Defaults{}, slots(1, 512*mib)},
		"the other amount said":              {labels, map[string]string{"cpu": "4"}, request.Defaults{}, slots(4, 2*gib)},
		"less where a bound says so":         {labels, nil, request.Defaults{Most: mem(gib)}, slots(1, gib)},
		"room for others on a small agent":   {labels, nil, request.Defaults{Part: mem(gib), Most: mem(4 * gib)}, slots(1, gib)},
		"the amount of a policy is less":     {labels, nil, request.Defaults{Part: mem(gib), Most: mem(512 * mib)}, slots(1, 512*mib)},
		"what an administrator chose":        {labels, nil, request.Defaults{Usual: slots(1, 3*gib), Part: mem(gib)}, slots(1, 3*gib)},
		"what an image recommends":           {recommends, nil, request.Defaults{Part: mem(gib)}, slots(2, 4*gib)},
		"never below what the image needs":   {large, nil, request.Defaults{Most: mem(gib)}, slots(1, 8*gib+64*mib)},
		"never above what the image may use": {small, nil, request.Defaults{}, slots(1, gib)},
		"a bound does not touch what is said": {labels, map[string]string{"mem": "4g"}, request.Defaults{Most: mem(gib)},
			slots(1, 4*gib)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := request.Session{Resources: c.asked}
			got, _, err := r.Slots(dbgen.Image{Labels: c.labels}, nil, c.defaults)
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

// Kernels of one session share a bound in whole cores and whole MiB.
func TestShare(t *testing.T) {
	t.Parallel()
	require.Equal(t, cluster.Whole(2), request.Share(cluster.SlotCPU, cluster.Whole(5), 2))
	require.Equal(t, cluster.Whole(341<<20), request.Share(cluster.SlotMem, cluster.Whole(1<<30), 3))
	require.Zero(t, request.Share(cluster.SlotCPU, cluster.Whole(1), 2))
	require.Equal(t, cluster.Whole(1), request.Share(cluster.SlotCPU, cluster.Whole(1), 0))
}

// Four sessions that name no memory fit on an agent that has 2 GiB, and one on any.
func TestPartOfAgent(t *testing.T) {
	t.Parallel()
	const mib, gib = 1 << 20, 1 << 30
	for capacity, want := range map[int64]int64{
		256 * gib: 64 * gib, 8 * gib: 2 * gib, 3*gib + 1: 768 * mib, 2 * gib: 512 * mib, gib: 512 * mib,
	} {
		require.Equal(t, cluster.Whole(want), request.PartOfAgent(cluster.Whole(capacity)), "%d", capacity)
	}
}
