package alloc_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// linked makes accelerators in pairs of fast links, two pairs to a switch, two nodes.
func linked(n int) []alloc.Device {
	var out []alloc.Device
	for i := range n {
		d := alloc.Device{Slot: "cuda.device", ID: fmt.Sprintf("g%d", i), NUMA: i / 4, Model: "A100", Capacity: 1000, Healthy: true,
			Links: map[string]int{}}
		for j := range n {
			switch {
			case i == j:
			case i/2 == j/2:
				d.Links[fmt.Sprintf("g%d", j)] = alloc.DistanceFast
			case i/4 == j/4:
				d.Links[fmt.Sprintf("g%d", j)] = alloc.DistanceSwitch
			default:
				d.Links[fmt.Sprintf("g%d", j)] = alloc.DistanceFar
			}
		}
		out = append(out, d)
	}
	return out
}

func TestLinkedAccelerators(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		used []string
		want int64
		got  []string
	}{
		{"a pair", []string{"g0"}, 2, []string{"g2", "g3"}},
		{"one of a broken pair", []string{"g2"}, 1, []string{"g3"}},
		{"a switch", []string{"g0"}, 4, []string{"g4", "g5", "g6", "g7"}},
		{"a pair and one more", nil, 3, []string{"g0", "g1", "g2"}},
		{"across nodes when there is no other way", []string{"g0", "g4"}, 4, []string{"g1", "g2", "g3", "g5"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, err := alloc.Fit(linked(8), alloc.Allocation{"cuda.device": taken(c.used...)}, cluster.Slots{"cuda.device": cluster.Whole(c.want)},
				alloc.Policy{})
			require.NoError(t, err)
			require.Equal(t, taken(c.got...), a["cuda.device"])
		})
	}
}

func TestCoresAndMemoryBesideAccelerators(t *testing.T) {
	t.Parallel()
	devices := append(append(linked(8), cores(8, 2)...), memory(100, 100)...)
	used := alloc.Allocation{"cuda.device": taken("g0", "g1", "g2", "g3")}
	a, err := alloc.Fit(devices, used, cluster.Slots{"cuda.device": cluster.Whole(2), cluster.SlotCPU: cluster.Whole(2),
		cluster.SlotMem: cluster.Whole(10)}, alloc.Policy{})
	require.NoError(t, err)
	for _, d := range devices {
		if a[d.Slot][d.ID] > 0 {
			require.Equal(t, 1, d.NUMA, "%s %s", d.Slot, d.ID)
		}
	}
}

func TestModelsRestrictAccelerators(t *testing.T) {
	t.Parallel()
	devices := append(linked(2), cores(4, 1)...)
	devices[1].Model = "H100"
	request := cluster.Slots{"cuda.device": cluster.Whole(1), cluster.SlotCPU: cluster.Whole(1)}
	a, err := alloc.Fit(devices, nil, request, alloc.Policy{Models: []string{"H100", "H200"}})
	require.NoError(t, err)
	require.Equal(t, taken("g1"), a["cuda.device"])
	_, err = alloc.Fit(devices, nil, request, alloc.Policy{Models: []string{"T4"}})
	require.Error(t, err)
}

func BenchmarkChoose(b *testing.B) {
	topology := alloc.Prepare(append(append(linked(8), cores(128, 2)...), memory(1<<38, 1<<38)...), nil)
	free := topology.Free(nil)
	wants := []alloc.Want{{Slot: 0, Amount: cluster.Whole(2)}, {Slot: 1, Amount: cluster.Whole(16)}, {Slot: 2, Amount: cluster.Whole(1 << 34)}}
	var c alloc.Chooser
	var takes []alloc.Take
	for b.Loop() {
		takes, _ = c.Choose(topology, free, wants, &alloc.Policy{}, takes[:0])
	}
}
