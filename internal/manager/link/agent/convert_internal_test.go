package agent

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/node"
)

func TestFactsOfTheDataPort(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ address, socket, wantAddress, wantSocket string }{
		{"10.0.0.1:6010", "/var/lib/berth/agent/data.sock", "10.0.0.1:6010", "/var/lib/berth/agent/data.sock"},
		{"[fd00::1]:6010", "", "[fd00::1]:6010", ""},
		{"worker-1:1", "data.sock", "worker-1:1", ""},
		{":6010", "/run/docker.sock", "", ""},
		{"10.0.0.1:0", "/x/../data.sock", "", ""},
		{"10.0.0.1:66000", "/x/data.sock\x00", "", ""},
		{"10.0.0.1", "", "", ""},
	} {
		f, err := factsOf(&node.Facts{DataAddress: c.address, DataSocket: c.socket})
		require.NoError(t, err)
		require.Equal(t, c.wantAddress, f.DataAddress)
		require.Equal(t, c.wantSocket, f.DataSocket)
	}
}

// TestWordsOfAgentsArePlain: a host that was taken over does not command the terminals of those who read why their sessions wait.
func TestWordsOfAgentsArePlain(t *testing.T) {
	t.Parallel()
	f, err := factsOf(&node.Facts{Conditions: []*node.Condition{
		{Type: "disk", Reason: "low", Message: "a\x1b[2J\nb", Blocks: true},
		{Type: "quarantine", Reason: "x", Message: "only managers say so", Blocks: true},
	}})
	require.NoError(t, err)
	require.Len(t, f.Conditions, 1)
	require.Equal(t, "a [2J b", f.Conditions[0].Message)
}

// What an agent says of itself is bounded, because schedulers of all managers read it, and it counts intrinsic slots as everybody does.
func TestFactsOfAnAgentThatWasTakenOver(t *testing.T) {
	t.Parallel()
	f, err := factsOf(&node.Facts{
		Slots:     map[string]string{"cpu": "4", "mem": "1024", "npu": "2"},
		SlotKinds: map[string]string{"cpu": "bytes", "mem": "count", "npu": "lies"},
		Warnings:  slices.Repeat([]string{strings.Repeat("w", 2*maxText)}, 10*maxLines), HungVolumes: make([]string, 10*maxLines),
		Hostname: strings.Repeat("h", 10*maxName), Engine: strings.Repeat("e", 10*maxName),
	})
	require.NoError(t, err)
	require.Equal(t, map[cluster.SlotName]cluster.SlotKind{"cpu": cluster.SlotCount, "mem": cluster.SlotBytes, "npu": cluster.SlotCount},
		f.SlotKinds)
	require.Equal(t, cluster.Slots{"cpu": cluster.Whole(4), "mem": cluster.Whole(1024), "npu": cluster.Whole(2)}, f.Capacity)
	require.Len(t, f.Warnings, maxLines)
	require.Len(t, f.Warnings[0], maxText)
	require.Len(t, f.HungVolumes, maxLines)
	require.Len(t, f.Hostname, maxName)
	require.Len(t, f.Engine, maxName)

	many, devices := map[string]string{}, []*node.Device{}
	for i := range maxSlots + 1 {
		many[fmt.Sprintf("s%d", i)] = "1"
		devices = append(devices, &node.Device{Slot: fmt.Sprintf("s%d", i)})
	}
	half := int64(math.MaxInt64)/2 + 1
	for name, bad := range map[string]*node.Facts{
		"slots":            {Slots: many},
		"slots of devices": {Devices: devices},
		"a name":           {Slots: map[string]string{strings.Repeat("s", 65): "1"}},
		"a device's slot":  {Devices: []*node.Device{{Slot: "a b"}}},
		"an amount":        {Slots: map[string]string{"cpu": "900000000000000"}},
		"a sum":            {Devices: []*node.Device{{Slot: "cpu", Id: "1", Capacity: half}, {Slot: "cpu", Id: "2", Capacity: half}}},
		"text":             {Devices: []*node.Device{{Slot: "cpu", Model: strings.Repeat("m", maxDescribed)}}},
	} {
		_, err := factsOf(bad)
		require.Error(t, err, name)
	}
}

// An agent tells measurements of kernels that are to run on it, and of no others: idle checks believe them.
func TestMeasurementsOfOwnKernels(t *testing.T) {
	t.Parallel()
	s := &session{}
	report := &node.Metrics{Node: map[string]float64{"cpu_util": 1}, Kernels: []*node.KernelMetrics{
		{KernelId: "mine", Values: map[string]float64{"cpu_util": 2}}, {KernelId: "another's", Values: map[string]float64{"cpu_util": 0}},
	}}
	_, kernels := s.measured(report)
	require.Empty(t, kernels, "what is to run is not known yet")
	s.held.Store(&map[cluster.KernelID]bool{"mine": true, "quiet": true})
	own, kernels := s.measured(report)
	require.Equal(t, []cluster.KernelID{"mine"}, slices.Collect(maps.Keys(kernels)))
	require.Equal(t, report.Node, own)
	for i := range maxMetrics + 1 {
		report.Node[fmt.Sprint(i)] = 1
		report.Kernels[0].Values[fmt.Sprint(i)] = 1
	}
	own, kernels = s.measured(report)
	require.Empty(t, own)
	require.Empty(t, kernels)
}
