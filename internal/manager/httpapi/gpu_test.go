package httpapi_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api/device"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/manager/resource"
)

// gpus are two GPUs on one socket, which NVLink joins, with two cores beside them.
func gpus() []alloc.Device {
	out := []alloc.Device{{Slot: cluster.SlotMem, ID: "root", NUMA: -1, Capacity: cluster.Whole(64 << 30), Healthy: true}}
	for _, id := range []string{"0", "1"} {
		out = append(out, alloc.Device{Slot: cluster.SlotCPU, ID: id, Capacity: cluster.Whole(1), Healthy: true})
	}
	for i, id := range []string{"GPU-0", "GPU-1"} {
		other := []string{"GPU-1", "GPU-0"}[i]
		for _, slot := range []cluster.SlotName{"cuda.device", "cuda.shares"} {
			out = append(out, alloc.Device{Slot: slot, ID: id, Model: "A100-SXM4-80GB", Capacity: cluster.Whole(1), Healthy: true,
				Links: map[string]int{other: alloc.DistanceFast}})
		}
	}
	return out
}

// giveGPUs lets the agent of a cell tell of GPUs.
func (c *cell) giveGPUs(slots ...cluster.SlotName) {
	c.t.Helper()
	facts := cluster.NodeFacts{Revision: 2, Architecture: "x86_64", EngineOK: true, Engine: "fake",
		Capacity:  cluster.Slots{cluster.SlotCPU: cluster.Whole(64), cluster.SlotMem: cluster.Whole(64 << 30)},
		SlotKinds: map[cluster.SlotName]cluster.SlotKind{cluster.SlotCPU: cluster.SlotCount, cluster.SlotMem: cluster.SlotBytes}}
	for _, slot := range slots {
		facts.Capacity[slot], facts.SlotKinds[slot] = cluster.Whole(2), cluster.SlotCount
	}
	raw, err := json.Marshal(gpus())
	require.NoError(c.t, err)
	facts.Devices = raw
	require.NoError(c.t, c.nodes.UpdateFacts(c.t.Context(), testAgent, c.epoch, facts))
}

func TestSessionsTakeAliasesOfSlots(t *testing.T) {
	t.Parallel()
	c := newCell(t)
	create := func(name, resources string) answer {
		return c.call("POST", "/session", `{"name":"`+name+`","image":"python","enqueueOnly":true,"config":{"resources":`+resources+`}}`)
	}
	msg := create("no-gpu", `{"cpu":1,"mem":"256m","gpu":1}`).problem(t, 400, "invalid-api-params")
	require.Contains(t, msg, "there is no gpu in resource group default")
	c.giveGPUs("cuda.device", "cuda.shares")
	stored := func(name string) (out map[string]int64) {
		var raw []byte
		require.NoError(t, c.store.Pool().QueryRow(t.Context(), `SELECT requested_slots FROM sessions WHERE name = $1`, name).Scan(&raw))
		require.NoError(t, json.Unmarshal(raw, &out))
		return out
	}
	for name, want := range map[string]struct {
		resources string
		device    int64
		shares    int64
	}{
		"whole-one": {`{"cpu":1,"mem":"256m","gpu":1}`, 1000, 0},
		"half-one":  {`{"cpu":"1","mem":"256m","gpu":"0.5"}`, 0, 500},
		"real-name": {`{"cpu":1,"mem":"256m","cuda.shares":"0.25"}`, 0, 250},
		"none":      {`{"cpu":1,"mem":"256m","gpu":0}`, 0, 0},
	} {
		require.Equal(t, 201, create(name, want.resources).status, name)
		got := stored(name)
		require.Equal(t, want.device, got["cuda.device"], name)
		require.Equal(t, want.shares, got["cuda.shares"], name)
		require.NotContains(t, got, "gpu", name)
	}
	require.Contains(t, create("twice", `{"gpu":1,"cuda.device":1}`).problem(t, 400, "invalid-api-params"), "same slot")

	// A preset is written with the alias and stored with the slot; GPUs of the request replace those of the preset.
	actor, _, err := c.nouns.Tenancy.Authenticate(t.Context(), c.admin.AccessKey)
	require.NoError(t, err)
	_, err = c.nouns.Resources.CreatePreset(t.Context(), actor, resource.PresetInput{Name: new("gpu-small"),
		Slots: map[string]string{"cpu": "1", "mem": "1g", "gpu": "0.5"}})
	require.NoError(t, err)
	withPreset := func(name, resources string) map[string]int64 {
		a := c.call("POST", "/session", `{"name":"`+name+`","image":"python","enqueueOnly":true,"config":{"preset":"gpu-small",
			"resources":`+resources+`}}`)
		require.Equal(t, 201, a.status, a.body)
		return stored(name)
	}
	require.EqualValues(t, 500, withPreset("of-preset", `{}`)["cuda.shares"])
	other := withPreset("instead", `{"gpu":2}`)
	require.EqualValues(t, 2000, other["cuda.device"])
	require.NotContains(t, other, "cuda.shares")
	require.NotContains(t, withPreset("without", `{"gpu":0}`), "cuda.shares")
}

// figures are what agents measured last.
type figures map[cluster.KernelID]map[string]float64

func (figures) Agents(context.Context, []cluster.AgentID) map[cluster.AgentID]map[string]float64 {
	return nil
}
func (f figures) Kernels(context.Context, []cluster.KernelID) map[cluster.KernelID]map[string]float64 {
	return f
}

func TestDevicesOfSessions(t *testing.T) {
	t.Parallel()
	measured := figures{}
	c := newCell(t, func(d *nouns.Deps, _ *httpapi.Deps) { d.Live = measured })
	eve := c.user("eve", "user", true)
	c.giveGPUs("cuda.device", "cuda.shares")
	id := c.running("train")
	var kernel string
	require.NoError(t, c.store.Pool().QueryRow(t.Context(), `UPDATE kernels SET requested_slots = $2, allocation = $3 WHERE session_id = $1
		RETURNING id`, string(id), `{"cpu": 2000, "mem": 1073741824000, "cuda.device": 2000}`, `{"cpu": {"0": 1000, "1": 1000},
		"mem": {"root": 1073741824000}, "cuda.device": {"GPU-0": 1000, "GPU-1": 1000}}`).Scan(&kernel))
	measured[cluster.KernelID(kernel)] = map[string]float64{"cpu_util": 150, "mem": 1 << 20, "cuda_util": 80, "cuda_util@GPU-0": 80,
		"cuda_util@GPU-1": 0, "cuda_mem@GPU-0": 7}

	want := device.Session{ID: string(id), Name: "train", User: "admin@localhost", Status: "RUNNING", Kernels: []device.Kernel{{
		ID: kernel, Hostname: "main1", Status: "RUNNING", Agent: string(testAgent),
		Slots: map[string]string{"cpu": "2", "mem": "1073741824", "cuda.device": "2"},
		Use:   map[string]float64{"cpu_util": 150, "mem": 1 << 20, "cuda_util": 80},
		Why:   "two GPUs joined by NVLink on NUMA node 0, cores 0-1 beside them",
		Devices: []device.Held{
			{Slot: "cuda.device", ID: "GPU-0", Amount: "1", Model: "A100-SXM4-80GB", NUMA: new(0), Healthy: new(true),
				Use: map[string]float64{"cuda_util": 80, "cuda_mem": 7}},
			{Slot: "cuda.device", ID: "GPU-1", Amount: "1", Model: "A100-SXM4-80GB", NUMA: new(0), Healthy: new(true),
				Use: map[string]float64{"cuda_util": 0}},
			{Slot: "cpu", ID: "0", Amount: "1", NUMA: new(0), Healthy: new(true)},
			{Slot: "cpu", ID: "1", Amount: "1", NUMA: new(0), Healthy: new(true)},
			{Slot: "mem", ID: "root", Amount: "1073741824", Healthy: new(true)},
		}}}}
	var got device.Session
	c.call("GET", "/session/train/devices", "").into(t, &got)
	want.User = got.User
	require.NotEmpty(t, got.User)
	require.Equal(t, want, got)
	var top device.Top
	c.call("GET", "/resource/session-devices", "").into(t, &top)
	require.Equal(t, 1, top.Total)
	require.Equal(t, []device.Session{want}, top.Sessions)

	// Strangers see nothing of it; what waits holds nothing.
	eve.call("GET", "/session/"+string(id)+"/devices", "").problem(t, 404, "object-not-found")
	top = device.Top{}
	eve.call("GET", "/resource/session-devices?all=true", "").into(t, &top)
	require.Zero(t, top.Total)
	require.Empty(t, top.Sessions)
	c.send(c.request("GET", "/session/train/devices", "", "")).problem(t, 401, "auth-failed")
	require.Equal(t, 201, c.call("POST", "/session", `{"name":"waits","image":"python","enqueueOnly":true}`).status)
	got = device.Session{}
	c.call("GET", "/session/waits/devices", "").into(t, &got)
	require.Equal(t, "PENDING", got.Status)
	require.Empty(t, got.Kernels[0].Devices)
	require.Nil(t, got.Kernels[0].Use)
	require.Empty(t, got.Kernels[0].Why)
}
