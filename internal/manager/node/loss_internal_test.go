package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

func TestBrokenDevices(t *testing.T) {
	t.Parallel()
	got, err := brokenOf([]byte(`[{"Slot":"cpu","ID":"0","Healthy":false,"Problem":"offline"},
		{"Slot":"cuda.device","ID":"GPU-0","Healthy":true},
		{"Slot":"cuda.device","ID":"GPU-1","Healthy":false,"Problem":"XID 79"},
		{"Slot":"npu.device","ID":"2","Healthy":false}]`))
	require.NoError(t, err)
	require.JSONEq(t, `[{"slot":"cuda.device","id":"GPU-1","problem":"XID 79"},{"slot":"npu.device","id":"2","problem":""}]`, string(got),
		"cores say nothing about what runs on them")
	got, err = brokenOf([]byte(`[]`))
	require.NoError(t, err)
	require.Equal(t, `[]`, string(got))
	_, err = brokenOf([]byte(`{}`))
	require.Error(t, err)
}

func TestLossInWords(t *testing.T) {
	t.Parallel()
	gone := []broken{{Slot: "cuda.device", ID: "GPU-1", Problem: "XID 79"}, {Slot: "cuda.shares", ID: "GPU-1", Problem: "XID 79"},
		{Slot: "cuda.device", ID: "GPU-2"}}
	held := func(slot cluster.SlotName, ids ...string) alloc.Allocation {
		devices := map[string]cluster.Amount{}
		for _, id := range ids {
			devices[id] = cluster.Milli
		}
		return alloc.Allocation{slot: devices}
	}
	require.Empty(t, lossOf("a", "main1", held("cuda.device", "GPU-0"), gone))
	require.Empty(t, lossOf("a", "main1", held("rocm.device", "GPU-1"), gone), "of another slot")
	require.Equal(t, "device GPU-1 (cuda.shares) of kernel sub1 on agent a broke: XID 79",
		lossOf("a", "sub1", held("cuda.shares", "GPU-1"), gone))
	require.Equal(t, "device GPU-1 (cuda.device) of kernel main1 on agent a broke: XID 79 (and 1 more)",
		lossOf("a", "main1", held("cuda.device", "GPU-1", "GPU-2"), gone))
	require.Equal(t, "device GPU-2 (cuda.device) of kernel main1 on agent a broke: its agent does not say why",
		lossOf("a", "main1", held("cuda.device", "GPU-2"), gone))
}
