package graphapi

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/node"
	"berth.dev/berth/internal/manager/session"
)

// What kernels and agents used of accelerators, in the wire's shape. What was not measured is not there.
func TestStatisticsOfAccelerators(t *testing.T) {
	t.Parallel()
	const gib = 1 << 30
	k := &session.Kernel{OccupiedSlots: cluster.Slots{"cpu": 1000, "cuda.shares": 500}, LiveStat: map[string]float64{"cuda_util": 40,
		"cuda_mem": 32 * gib, "cuda_mem_total": 40 * gib, "cuda_util@GPU-0": 40, "cuda_power": 250.5, "cuda_temperature": 61, "mem": 5}}
	require.JSONEq(t, `{
		"cuda_util":{"current":"40","capacity":"50","pct":"80.00","unit_hint":"percent"},
		"cuda_mem":{"current":"34359738368","capacity":"42949672960","pct":"80.00","unit_hint":"bytes"},
		"cuda_power":{"current":"250.5","unit_hint":"Watts"},
		"cuda_temperature":{"current":"61","unit_hint":"Celsius"},
		"mem":{"current":"5","unit_hint":"bytes"}}`, *jsonText(kernelStat(k)))
	k.LiveStat = map[string]float64{"mem": 5, "cuda_mem": 7}
	require.JSONEq(t, `{"mem":{"current":"5","unit_hint":"bytes"},"cuda_mem":{"current":"7","unit_hint":"bytes"}}`, *jsonText(kernelStat(k)))

	a := &node.Agent{Capacity: cluster.Slots{"cpu": 4000, "mem": cluster.Whole(1000)}, Live: map[string]float64{"cpu_util": 200,
		"cuda_util": 80, "cuda_mem": 64 * gib, "cuda_mem_total": 160 * gib,
		"cuda_util@GPU-0": 80, "cuda_mem@GPU-0": 64 * gib, "cuda_mem_total@GPU-0": 80 * gib, "cuda_power@GPU-0": 300,
		"cuda_util@GPU-1": 0, "cuda_mem@GPU-1": 0, "cuda_mem_total@GPU-1": 80 * gib, "cuda_temperature@GPU-1": 33}}
	require.JSONEq(t, `{"node":{
		"cpu_util":{"current":"200","capacity":"400","pct":"50.00","unit_hint":"percent"},
		"cuda_util":{"current":"80","capacity":"200","pct":"40.00","unit_hint":"percent"},
		"cuda_mem":{"current":"68719476736","capacity":"171798691840","pct":"40.00","unit_hint":"bytes"}},
	"devices":{
		"cpu_util":{"root":{"current":"200","capacity":"400","pct":"50.00","unit_hint":"percent"}},
		"mem":{},
		"cuda_util":{"GPU-0":{"current":"80","capacity":"100","pct":"80.00","unit_hint":"percent"},
			"GPU-1":{"current":"0","capacity":"100","pct":"0.00","unit_hint":"percent"}},
		"cuda_mem":{"GPU-0":{"current":"68719476736","capacity":"85899345920","pct":"80.00","unit_hint":"bytes"},
			"GPU-1":{"current":"0","capacity":"85899345920","pct":"0.00","unit_hint":"bytes"}},
		"cuda_temperature":{"GPU-1":{"current":"33","capacity":null,"pct":null,"unit_hint":"Celsius"}}}}`, *jsonText(agentStat(a)))
}
