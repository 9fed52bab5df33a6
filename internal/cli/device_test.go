package cli

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
	"berth.dev/berth/api/device"
)

// deviceRoutes answers what sessions hold and use.
func (f *fakeManager) deviceRoutes(handle func(pattern string, h func(w http.ResponseWriter, r *http.Request))) {
	held := func(s *fakeSession) device.Session {
		return device.Session{ID: s.ID, Name: s.Name, User: s.UserEmail, Status: s.Status, Kernels: []device.Kernel{{ID: "k1", Hostname: "main1",
			Status: s.Status, Agent: "i-worker1", Slots: map[string]string{"cpu": "1", "mem": "536870912", "cuda.shares": "0.5"},
			Use: map[string]float64{"cpu_util": 42, "mem": 1 << 20, "cuda_util": 30}, Why: "0.5 of one GPU on NUMA node 0, core 0 beside it",
			Devices: []device.Held{{Slot: "cuda.shares", ID: "GPU-0", Amount: "0.5", Model: "A100", Healthy: new(false)},
				{Slot: "cpu", ID: "0", Amount: "1"}}}}}
	}
	handle("GET /session/{s}/devices", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if s := f.find(w, r.PathValue("s")); s != nil {
			reply(w, 200, held(s))
		}
	})
	handle("GET /resource/session-devices", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		out := device.Top{Sessions: []device.Session{}, AsOf: "2026-11-20T08:00:00+00:00"}
		for _, s := range f.sessions {
			if s.Status == api.StatusRunning {
				one := held(s)
				if r.URL.Query().Get("all") != "true" {
					one.User = ""
				}
				out.Sessions, out.Total = append(out.Sessions, one), out.Total+1
			}
		}
		reply(w, 200, out)
	})
}

func TestSessionInfoTellsOfDevices(t *testing.T) {
	t.Parallel()
	b := withLab(t)
	o := b.do(t, "", "session", "info", "mylab")
	require.Contains(t, o.out, "devices  0.5 of GPU-0 A100 (broken)\n")
	require.Contains(t, o.out, "placed   0.5 of one GPU on NUMA node 0, core 0 beside it\n")
	var s struct {
		Devices []device.Kernel `json:"kernelDevices"`
	}
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "session", "info", "mylab", "--json").out), &s))
	require.Equal(t, "GPU-0", s.Devices[0].Devices[0].ID)

	require.Equal(t, 0, b.do(t, "", "session", "rm", "mylab").code)
	require.NotContains(t, b.do(t, "", "session", "info", "mylab").out, "placed", "what has ended holds nothing")
}

func TestSessionTop(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Equal(t, outcome{"", "no session runs\n", 0}, b.do(t, "", "session", "top"))
	b = withLab(t)
	for _, args := range [][]string{{"session", "top"}, {"session", "top", "mylab", "--once"}} {
		o := b.do(t, "", args...)
		require.Equal(t, 0, o.code, o.err)
		require.Regexp(t, `(?m)^mylab +main1 +cuda.shares 0.5 +42 % +1 MiB of 512 MiB +30 %$`, o.out)
		require.Regexp(t, `(?m)^ +GPU-0 A100 \(broken\)$`, o.out)
	}
	require.Contains(t, b.do(t, "", "session", "top", "--all").out, "SESSION (USER)")
	var top device.Top
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "session", "top", "mylab", "--json").out), &top))
	require.Equal(t, 42.0, top.Sessions[0].Kernels[0].Use["cpu_util"])
	o := b.do(t, "", "session", "top", "nobodys")
	require.Equal(t, 3, o.code)
	require.Contains(t, o.err, "next: berth session list")
}

func TestAgentTopology(t *testing.T) {
	t.Parallel()
	b := setup(t)
	o := b.do(t, "", "agent", "topology", "i-worker1")
	require.Equal(t, outcome{"i-worker1  ALIVE  resource group default\nit tells of no devices\n", "", 0}, o)
	b.hardware = `{"devices":[{"Slot":"cuda.device","ID":"GPU-0","Model":"A100","NUMA":0,"Capacity":1000,"Healthy":true}]}`
	require.Contains(t, b.do(t, "", "agent", "topology", "i-worker1").out, "NUMA node 0\n  GPU0  GPU-0  A100  ok  free\n")
	var m device.Machine
	require.NoError(t, json.Unmarshal([]byte(b.do(t, "", "agent", "topology", "i-worker1", "--json").out), &m))
	require.Equal(t, "GPU-0", m.Devices[0].ID)
	o = b.do(t, "", "agent", "topology", "i-nobody")
	require.Equal(t, 3, o.code)
	require.Contains(t, o.err, "next: berth agent list")
}
