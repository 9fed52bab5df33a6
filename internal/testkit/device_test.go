package testkit_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

// TestADeviceBreaks: the manager places nothing on a device that broke, leaves alone what runs on it, and places again when
// it is well. All of it while the agent stays connected.
func TestADeviceBreaks(t *testing.T) {
	t.Parallel()
	m, err := mock.Parse([]byte(`
[slots]
"cuda.device" = "count"
[[devices]]
uuid = "GPU-0"
slots = { "cuda.device" = "1" }
[[devices]]
uuid = "GPU-1"
slots = { "cuda.device" = "1" }
[[faults]]
device = "GPU-0"
after = "3m"
for = "2m"
problem = "XID 79: it fell off the bus"
`))
	require.NoError(t, err)
	var passed atomic.Int64
	gpus, err := mock.New(m, func() time.Time { return time.Unix(1000, 0).Add(time.Duration(passed.Load())) })
	require.NoError(t, err)
	c := testkit.New(t, testkit.Options{
		Drivers: func(int) []device.Driver { return []device.Driver{gpus} },
		Agent:   func(c *agent.Config) { c.DeviceInterval = 20 * time.Millisecond },
	})
	withGPU := func(name string) cluster.SessionID {
		return c.Create(request.Session{Name: name, Resources: map[string]string{"cpu": "1", "mem": "128m", "cuda.device": "1"}})
	}
	holder, other := withGPU("first"), withGPU("second")
	c.Running(holder)
	c.Running(other)
	var broken bool
	require.NoError(t, c.Store.Pool().QueryRow(t.Context(),
		`SELECT allocation->'cuda.device' ? 'GPU-0' FROM kernels WHERE session_id = $1`, string(holder)).Scan(&broken))
	if !broken {
		holder, other = other, holder
	}

	passed.Store(int64(3 * time.Minute))
	capacity := func(milli string) func() bool {
		return func() bool {
			var have *string
			row := c.Store.Pool().QueryRow(t.Context(), `SELECT capacity->>'cuda.device' FROM agents`)
			return row.Scan(&have) == nil && have != nil && *have == milli
		}
	}
	c.Until("the manager knows that one broke", capacity("1000"))
	require.Equal(t, cluster.Running, c.Session(holder).Status)
	require.Equal(t, cluster.Running, c.Session(other).Status)
	c.Allocations()
	c.Destroy(holder, false)
	c.Ended(holder)
	third := withGPU("third")
	c.Until("it waits, with a reason", func() bool {
		s := c.Session(third)
		return s.Status == cluster.Pending && s.StatusInfo == "capacity"
	})

	passed.Store(int64(5 * time.Minute))
	c.Until("the manager knows that it is well", capacity("2000"))
	c.Running(third)
	require.Equal(t, cluster.Running, c.Session(other).Status)
	c.Allocations()
	for _, id := range []cluster.SessionID{other, third} {
		c.Destroy(id, false)
		c.Ended(id)
	}
	c.Clean()
}
