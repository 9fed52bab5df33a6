package testkit_test

import (
	"encoding/json"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/session/request"
	"berth.dev/berth/internal/testkit"
)

const (
	wholeCard cluster.SlotName = "cuda.device"
	shareSlot cluster.SlotName = "cuda.shares"
	smallMIG  cluster.SlotName = "cuda.1g.10gb-mig"
)

// machines gives each agent the devices of one of the files below deploy/devices.
func machines(t *testing.T, now func(agent int) time.Time, files ...string) func(int) []device.Driver {
	t.Helper()
	return func(i int) []device.Driver {
		m, err := mock.Read(filepath.Join("..", "..", "deploy", "devices", files[i%len(files)]))
		require.NoError(t, err)
		d, err := mock.New(m, func() time.Time { return now(i) })
		require.NoError(t, err)
		return []device.Driver{d}
	}
}

func always(int) time.Time { return time.Unix(1000, 0) }

// held is what the main kernel of a session has, and where.
func held(c *testkit.Cluster, t *testing.T, id cluster.SessionID) (cluster.AgentID, alloc.Allocation) {
	t.Helper()
	var agent, text string
	require.NoError(t, c.Store.Pool().QueryRow(t.Context(),
		`SELECT agent_id, allocation::text FROM kernels WHERE session_id = $1 AND cluster_role = 'main'`, string(id)).Scan(&agent, &text))
	a, err := alloc.Parse(text)
	require.NoError(t, err)
	return cluster.AgentID(agent), a
}

func cards(a alloc.Allocation, slot cluster.SlotName) []string {
	return slices.Sorted(maps.Keys(a[slot]))
}

// TestTwoMachinesOfEightGPUs: cards are given out whole, in shares that never mix with whole ones, by NVLink, and waited for.
func TestTwoMachinesOfEightGPUs(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Agents: 2, Drivers: machines(t, always, "eight-a100.toml")})
	ask := func(name string, slot cluster.SlotName, amount string, options map[string]string) cluster.SessionID {
		return c.Create(request.Session{Name: name, ResourceOpts: options,
			Resources: map[string]string{"cpu": "1", "mem": "128m", string(slot): amount}})
	}
	share := ask("share", shareSlot, "0.5", map[string]string{"isolation": "driver"})
	c.Running(share)
	shared, a := held(c, t, share)
	require.Len(t, a[shareSlot], 1)
	card := cards(a, shareSlot)[0]

	pair := ask("pair", wholeCard, "2", nil)
	c.Running(pair)
	_, a = held(c, t, pair)
	got := cards(a, wholeCard)
	require.Len(t, got, 2)
	require.Contains(t, [][]string{{"GPU-0", "GPU-1"}, {"GPU-2", "GPU-3"}, {"GPU-4", "GPU-5"}, {"GPU-6", "GPU-7"}}, got, "NVLink joins them")

	all := ask("eight", wholeCard, "8", nil)
	c.Running(all)
	where, a := held(c, t, all)
	require.NotEqual(t, shared, where, "the machine of the share has no eight whole cards")
	require.Len(t, a[wholeCard], 8)

	// On the machine of the share five cards are whole and free, if the pair is there too.
	rest := ask("rest", wholeCard, "5", nil)
	c.Running(rest)
	on, a := held(c, t, rest)
	require.Equal(t, shared, on)
	require.NotContains(t, cards(a, wholeCard), card)
	more := ask("more", shareSlot, "0.5", nil)
	c.Running(more)
	_, a = held(c, t, more)
	require.Equal(t, []string{card}, cards(a, shareSlot), "shares go on the card that is shared already")
	c.Allocations()

	last := ask("last", wholeCard, "1", nil)
	c.Until("it waits: every card is taken, one of them in shares", func() bool { return c.Session(last).StatusInfo == "capacity" })
	c.Destroy(share, false)
	c.Ended(share)
	require.Equal(t, cluster.Pending, c.Session(last).Status, "half of the card is still held in shares")
	c.Destroy(more, false)
	c.Running(last)
	_, a = held(c, t, last)
	require.Equal(t, []string{card}, cards(a, wholeCard))

	hard := ask("hard", shareSlot, "0.5", map[string]string{"isolation": "hard"})
	c.Until("it waits for what no agent offers", func() bool {
		return strings.Contains(c.Session(hard).StatusInfo, "impossible") || c.Session(hard).StatusInfo == "too-big"
	})
}

// TestInstancesAndWholeCards: a partition of a card is a device of its own, and a kernel gets exactly one.
func TestInstancesAndWholeCards(t *testing.T) {
	t.Parallel()
	c := testkit.New(t, testkit.Options{Drivers: machines(t, always, "mig-a100.toml")})
	seen := map[string]bool{}
	for _, name := range []string{"first", "second", "third"} {
		id := c.Create(request.Session{Name: name, ResourceOpts: map[string]string{"isolation": "hard"},
			Resources: map[string]string{"cpu": "1", "mem": "128m", string(smallMIG): "1"}})
		c.Running(id)
		_, a := held(c, t, id)
		require.Len(t, a[smallMIG], 1)
		seen[cards(a, smallMIG)[0]] = true
	}
	require.Len(t, seen, 3)
	id := c.Create(request.Session{Name: "fourth", Resources: map[string]string{"cpu": "1", "mem": "128m", string(smallMIG): "1"}})
	c.Until("it waits", func() bool { return c.Session(id).StatusInfo == "capacity" })
	whole := c.Create(request.Session{Name: "whole", Resources: map[string]string{"cpu": "1", "mem": "128m", string(wholeCard): "1"}})
	c.Running(whole)
	c.Allocations()
}

// TestADeviceBreaksUnderSessions: the owner of a session hears once that a device broke, and the session goes on; a batch session with
// retries starts again on another card, as often as it may.
func TestADeviceBreaksUnderSessions(t *testing.T) {
	t.Parallel()
	const file = `
[slots]
"cuda.device" = "count"
[[devices]]
uuid = "GPU-0"
slots = { "cuda.device" = "1" }
[[faults]]
device = "GPU-0"
after = "3m"
for = "2m"
problem = "XID 79: it fell off the bus"
`
	var passed [2]atomic.Int64
	c := testkit.New(t, testkit.Options{Agents: 2,
		Drivers: func(i int) []device.Driver {
			m, err := mock.Parse([]byte(file))
			require.NoError(t, err)
			d, err := mock.New(m, func() time.Time { return time.Unix(1000, 0).Add(time.Duration(passed[i].Load())) })
			require.NoError(t, err)
			return []device.Driver{d}
		},
		Agent: func(c *agent.Config) { c.DeviceInterval = 20 * time.Millisecond },
	})
	events := func(id cluster.SessionID) (out []string) {
		rows, err := c.Store.Pool().Query(t.Context(),
			`SELECT detail FROM session_events WHERE session_id = $1 AND event = 'session_device_lost' ORDER BY seq`, string(id))
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var detail string
			require.NoError(t, rows.Scan(&detail))
			out = append(out, detail)
		}
		return out
	}
	index := func(id cluster.SessionID) int {
		at, _ := held(c, t, id)
		return slices.IndexFunc(c.Agents, func(a *testkit.Agent) bool { return a.ID() == at })
	}
	breaks := func(i int) { passed[i].Store(int64(3 * time.Minute)) }
	heals := func(i int) {
		passed[i].Store(int64(10 * time.Minute))
		c.Until("the card is well", func() bool {
			var have json.RawMessage
			row := c.Store.Pool().QueryRow(t.Context(), `SELECT broken_devices FROM agents WHERE id = $1`, string(c.Agents[i].ID()))
			return row.Scan(&have) == nil && string(have) == "[]"
		})
	}
	gpu := map[string]string{"cpu": "1", "mem": "128m", "cuda.device": "1"}

	stays := c.Create(request.Session{Name: "stays", Resources: gpu})
	c.Running(stays)
	first := index(stays)
	breaks(first)
	c.Until("its owner hears of it", func() bool { return len(events(stays)) == 1 })
	require.Contains(t, events(stays)[0], "device GPU-0 (cuda.device) of kernel main1 on agent")
	require.Contains(t, events(stays)[0], "XID 79: it fell off the bus; it goes on")
	require.Equal(t, cluster.Running, c.Session(stays).Status)
	c.Destroy(stays, false)
	c.Ended(stays)
	require.Len(t, events(stays), 1, "once")

	other := 1 - first
	job := c.Create(request.Session{Name: "batch", Type: cluster.Batch, StartupCommand: testkit.Held, Retries: 1, Resources: gpu})
	c.Running(job)
	require.Equal(t, other, index(job), "the broken card is not given out")
	require.Equal(t, 1, runs(c, job))
	heals(first)
	breaks(other)
	c.Until("it runs again", func() bool { return runs(c, job) == 2 })
	s := c.Running(job)
	require.Equal(t, c.Agents[first].ID(), s.MainKernel().Agent)
	require.Equal(t, int64(2), s.MainKernel().Generation)
	require.Contains(t, events(job)[0], "it starts again elsewhere, retry 1 of 1")
	heals(other)

	passed[first].Store(int64(4 * time.Minute)) // within the fault again
	c.Until("its owner hears of the second", func() bool { return len(events(job)) == 2 })
	require.Contains(t, events(job)[1], "it goes on")
	require.Equal(t, cluster.Running, c.Session(job).Status, "no retry is left")
	c.Release()
	require.Equal(t, cluster.ResultSuccess, c.Ended(job).Result)
	require.Equal(t, 2, runs(c, job))
	c.Clean()
}
