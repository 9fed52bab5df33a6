package testkit_test

import (
	"os"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestGPUsFromRequestToFigures: who asks for gpu=2 gets two cards that are joined, hears why these, and sees what they do, as the agent's
// driver measures it. Who has a part of a card sees what it uses and not what others do there.
func TestGPUsFromRequestToFigures(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../agent/device/mock/testdata/four.toml")
	require.NoError(t, err)
	machine, err := mock.Parse(text)
	require.NoError(t, err)
	gpus, err := mock.New(machine, func() time.Time { return time.Unix(1000, 0) }) // nothing breaks
	require.NoError(t, err)
	redis := miniredis.RunT(t)
	c := testkit.New(t, testkit.Options{
		Drivers: func(int) []device.Driver { return []device.Driver{gpus} },
		Agent:   func(c *agent.Config) { c.SampleInterval = 100 * time.Millisecond },
		Manager: func(c *manager.Config) { c.Redis.Address = redis.Addr() },
	})
	with := func(name, gpu string) func() session.SessionDevices {
		id := c.Create(request.Session{Name: name, Resources: map[string]string{"cpu": "1", "mem": "128m", "gpu": gpu}})
		c.Running(id)
		return func() session.SessionDevices {
			held, err := c.Nouns().Sessions.Devices(t.Context(), c.Admin(), string(id), "")
			require.NoError(t, err)
			return held
		}
	}
	two := with("two-cards", "2")
	var got session.SessionDevices
	c.Until("the agent's figures are there", func() bool {
		got = two()
		return got.Kernels[0].LiveStat["cuda_util"] > 0
	})
	k := got.Kernels[0]
	require.Regexp(t, `^two GPUs joined by NVLink on NUMA node [01], core`, k.Why)
	require.InDelta(t, 160, k.LiveStat["cuda_util"], 1e-9)
	for _, d := range k.Devices[:2] {
		require.EqualValues(t, "cuda.device", d.Slot)
		require.Equal(t, "A100-SXM4-80GB", d.Model)
		require.InDelta(t, 80, d.Use["cuda_util"], 1e-9)
		require.InDelta(t, 80<<30, d.Use["cuda_mem_total"], 1e-9)
	}

	half, quarter := with("half-card", "0.5"), with("quarter-card", "0.25")
	c.Until("the use of both parts is known", func() bool {
		a, b := half().Kernels[0], quarter().Kernels[0]
		return a.LiveStat["cuda_util"] == 40 && b.LiveStat["cuda_util"] == 20 && a.Devices[0].ID == b.Devices[0].ID &&
			a.Devices[0].Use["cuda_util"] == 0 && len(b.Devices[0].Use) == 0
	})
}
