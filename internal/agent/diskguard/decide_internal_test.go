package diskguard

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/diskspace"
)

const (
	mib   = int64(1 << 20)
	gib   = int64(1 << 30)
	disk1 = uint64(1)
	disk2 = uint64(2)
)

var began = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// at is a sample of one disk of 100 GiB, some minutes after the first.
func at(minute int, free int64, kernels map[cluster.KernelID]Use) Sample {
	return Sample{At: began.Add(time.Duration(minute) * time.Minute), Kernels: kernels,
		Disks: []Disk{{ID: disk1, Path: "/disk", Usage: diskspace.Usage{Total: 100 * gib, Free: free}}}}
}

func home(n int64) Use {
	return Use{Generation: 1, Scratch: n, ScratchDisk: disk1, Limited: true, Size: 10 * gib, Written: -1}
}

func TestWhoIsEnded(t *testing.T) {
	t.Parallel()
	limits := Limits{Full: diskspace.Mark{Bytes: 4 * gib}}
	layer := func(n int64) Use {
		return Use{Generation: 1, ScratchDisk: disk1, Layer: n, LayerDisk: disk1, LayerKnown: true, Written: -1}
	}
	wrote := func(n int64) Use { return Use{Generation: 1, ScratchDisk: disk1, Written: n} }
	elsewhere := func(n int64) Use { return Use{Generation: 1, Scratch: n, ScratchDisk: disk2, Written: -1} }
	type kernels = map[cluster.KernelID]Use
	for _, c := range []struct {
		name    string
		earlier []Sample
		now     Sample
		spared  []cluster.KernelID
		want    cluster.KernelID
		words   string
	}{
		{"the one that grew most, not the one that has most", []Sample{at(0, 20*gib, kernels{"old": home(9 * gib), "new": home(0)})},
			at(2, 3*gib, kernels{"old": home(9 * gib), "new": home(5 * gib)}), nil, "new",
			"ended by agent a: the disk of the agent was full (3.0 GiB of 100 GiB free), this session had written 5.0 GiB in the last 2 min; " +
				"next: "},
		{"one that began since", []Sample{at(0, 20*gib, kernels{"old": home(9 * gib)})},
			at(2, 3*gib, kernels{"old": home(9 * gib), "new": home(5 * gib)}), nil, "new", ""},
		{"in its layer", []Sample{at(0, 20*gib, kernels{"a": layer(0), "b": home(0)})},
			at(1, 3*gib, kernels{"a": layer(9 * gib), "b": home(8 * gib)}), nil, "a", ""},
		{"of another generation it has everything", []Sample{at(0, 20*gib, kernels{"a": {Generation: 0, Scratch: 9 * gib}, "b": home(0)})},
			at(1, 3*gib, kernels{"a": home(9 * gib), "b": home(8 * gib)}), nil, "a", ""},
		{"not one that is ended already", []Sample{at(0, 20*gib, kernels{"a": layer(0), "b": home(0)})},
			at(1, 3*gib, kernels{"a": layer(9 * gib), "b": home(8 * gib)}), []cluster.KernelID{"a"}, "b", ""},
		{"nobody for little growth", []Sample{at(0, 20*gib, kernels{"a": home(0)})}, at(1, 3*gib, kernels{"a": home(15 * mib)}), nil, "", ""},
		{"nobody for a small part of what was lost", []Sample{at(0, 20*gib, kernels{"a": home(0)})},
			at(1, 3*gib, kernels{"a": home(gib)}), nil, "", ""},
		{"nobody whose files are on another disk", []Sample{at(0, 20*gib, kernels{"a": elsewhere(0)})},
			at(1, 3*gib, kernels{"a": elsewhere(9 * gib)}), nil, "", ""},
		{"the one that wrote most where files do not show", []Sample{at(0, 20*gib, kernels{"a": wrote(gib), "b": wrote(0)})},
			at(1, 3*gib, kernels{"a": wrote(15 * gib), "b": wrote(2 * gib)}), nil, "a", "much of it into folders or deleted files"},
		{"nobody at the first look", nil, at(0, 3*gib, kernels{"a": home(9 * gib)}), nil, "", ""},
		{"the largest when there is next to nothing left", nil, at(0, gib-1, kernels{"a": home(9 * gib), "b": home(8 * gib)}), nil, "a",
			"this session had the most there: 9.0 GiB"},
		{"nobody who has little, even then", nil, at(0, gib-1, kernels{"a": home(gib)}), nil, "", ""},
		{"nobody for a little when another filled the disk long ago",
			[]Sample{at(0, 4*gib, kernels{"slow": home(9 * gib), "b": home(0)})},
			at(1, 4*gib-20*mib, kernels{"slow": home(9 * gib), "b": home(20 * mib)}), nil, "", ""},
		{"but the largest when that goes on", []Sample{at(0, gib, kernels{"slow": home(9 * gib), "b": home(0)})},
			at(1, gib-20*mib, kernels{"slow": home(9 * gib), "b": home(20 * mib)}), nil, "slow", "this session had the most there"},
		{"nobody runs", nil, at(0, 0, nil), nil, "", ""},
	} {
		spared := map[cluster.KernelID]bool{}
		for _, id := range c.spared {
			spared[id] = true
		}
		v, ok := largest("a", limits, c.now, disk1, c.earlier, spared, false)
		require.Equal(t, c.want != "", ok, "%s: %+v", c.name, v)
		require.Equal(t, c.want, v.Kernel, c.name)
		require.Contains(t, v.Detail, c.words, c.name)
	}
}

func TestACertainVerdictNeedsNoLayers(t *testing.T) {
	t.Parallel()
	limits := Limits{Full: diskspace.Mark{Bytes: 4 * gib}}
	earlier := []Sample{at(0, 20*gib, map[cluster.KernelID]Use{"a": home(0), "b": home(0)})}
	_, ok := largest("x", limits, at(1, 3*gib, map[cluster.KernelID]Use{"a": home(6 * gib), "b": home(gib)}), disk1, earlier, nil, true)
	require.False(t, ok, "somebody else may have written 10 GiB where it does not show yet")
	v, ok := largest("x", limits, at(1, 3*gib, map[cluster.KernelID]Use{"a": home(6 * gib), "b": home(5 * gib)}), disk1, earlier, nil, true)
	require.True(t, ok)
	require.EqualValues(t, "a", v.Kernel)
}

func TestBoundsOfOneKernel(t *testing.T) {
	t.Parallel()
	limits := Limits{Scratch: gib, Layer: 2 * gib}
	now := at(0, 50*gib, map[cluster.KernelID]Use{
		"a-limited":   home(9 * gib), // its file system is the bound
		"b-directory": {Generation: 3, Scratch: gib + 1},
		"c-layer":     {LayerKnown: true, Layer: 2*gib + 1},
		"d-files":     {LayerKnown: true, TooMany: true},
		"e-well":      {LayerKnown: true, Layer: 2 * gib, Scratch: gib},
		"f-unknown":   {Layer: 9 * gib},
	})
	got := map[cluster.KernelID]Verdict{}
	for _, v := range over("x", limits, now) {
		got[v.Kernel] = v
	}
	require.Len(t, got, 3)
	require.Contains(t, got["b-directory"].Detail, "1.0 GiB in its home, 1.0 GiB are allowed; next: keep large files in a folder")
	require.EqualValues(t, 3, got["b-directory"].Generation)
	require.Contains(t, got["c-layer"].Detail, "wrote 2.0 GiB outside of its home, /tmp and /var/tmp")
	require.Contains(t, got["d-files"].Detail, "more than 200000 files")
	require.Empty(t, over("x", Limits{}, now), "no bounds are set")
}
