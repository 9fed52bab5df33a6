package idle_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"
	"github.com/valkey-io/valkey-go"

	"berth.dev/berth/internal/agent/device/mock"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/idle"
	"berth.dev/berth/internal/manager/idle/rule"
	"berth.dev/berth/internal/manager/live"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/store"
)

// gpuMachine has a card that nobody uses, one that works and one that does not tell.
const gpuMachine = `
[slots]
"cuda.device" = "count"
"cuda.shares" = "count"
[[devices]]
uuid = "GPU-idle"
slots = { "cuda.device" = "1", "cuda.shares" = "1" }
memory = "80g"
[[devices]]
uuid = "GPU-busy"
slots = { "cuda.device" = "1", "cuda.shares" = "1" }
memory = "80g"
load = 80
[[devices]]
uuid = "GPU-silent"
slots = { "cuda.device" = "1", "cuda.shares" = "1" }
load = 80
[[faults]]
device = "GPU-silent"
after = "0s"
problem = "its driver does not answer"
`

// A session that leaves its GPU alone is ended with its reason, from what the driver measures to the row in the database. One that uses
// its GPU stays, also where it has a tenth of a card and uses all of that, and so does one of which nothing is known.
func TestUnusedGPUs(t *testing.T) {
	t.Parallel()
	x := newIdleSite(t)
	x.checker("gpu", "utilization", `{"time_window_seconds": 600, "thresholds_check_operator": "and",
		"resource_thresholds": {"cuda_util": 10}}`, 0, false)
	server := miniredis.RunT(t)
	client, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{server.Addr()}, AlwaysRESP2: true, DisableCache: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	now := idleStart
	clock := func() time.Time { return now }
	stats := live.New(client, "c1:", slog.New(slog.NewTextHandler(t.Output(), nil)))
	stats.Now, stats.Patience = clock, time.Minute
	machine, err := mock.Parse([]byte(gpuMachine))
	require.NoError(t, err)
	driver, err := mock.New(machine, clock)
	require.NoError(t, err)

	held := map[cluster.KernelID]alloc.Allocation{}
	holder := func(a alloc.Allocation) cluster.SessionID {
		id, kernel := x.session("interactive")
		raw, err := json.Marshal(a.Totals())
		require.NoError(t, err)
		x.exec(`UPDATE kernels SET requested_slots = requested_slots || $2 WHERE id = $1`, string(kernel), raw)
		held[kernel] = a
		return id
	}
	unused := holder(alloc.Allocation{"cuda.device": {"GPU-idle": cluster.Milli}})
	busy := holder(alloc.Allocation{"cuda.shares": {"GPU-busy": 900}})
	tenth := holder(alloc.Allocation{"cuda.shares": {"GPU-busy": 100}})
	silent := holder(alloc.Allocation{"cuda.device": {"GPU-silent": cluster.Milli}})
	none, _ := x.session("interactive")

	stats.KeepUsage(t.Context(), time.Hour)
	for ; !now.After(idleStart.Add(20 * time.Minute)); now = now.Add(20 * time.Second) {
		u, err := driver.Sample(t.Context(), held)
		require.NoError(t, err)
		stats.Put(t.Context(), "a1", u.Node, u.Kernels)
	}

	svc, err := idle.New(idle.Deps{Store: x.store, Clock: clock, Tenancy: x.world.Tenancy, Sessions: x.world.Sessions, Usage: stats,
		Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	require.NoError(t, err)
	var token int64
	require.NoError(t, x.store.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) (err error) {
		token, err = tx.TakeLeadership(ctx, "one")
		return err
	}))
	_, err = svc.LookOnce(t.Context(), idle.LoopDeps{Usage: stats, Busy: x.isBusy}, reconcile.NewTerm(x.store, token, "one"), now, true)
	require.NoError(t, err)

	require.Equal(t, "TERMINATING", x.status(unused))
	require.Equal(t, "idle-utilization", x.text(`SELECT status_info FROM sessions WHERE id = $1`, string(unused)))
	var e rule.Evidence
	require.NoError(t, json.Unmarshal([]byte(x.text(`SELECT status_data->>'idle' FROM sessions WHERE id = $1`, string(unused))), &e))
	require.Equal(t, "mean over 10m: cuda_util 0.0 % (threshold 10 %)", e.Why)
	require.Equal(t, "RUNNING", x.status(busy))
	require.Equal(t, "RUNNING", x.status(tenth), "all of what it has works")
	require.Equal(t, "RUNNING", x.status(silent), "what is not measured is not idle")
	require.Equal(t, "RUNNING", x.status(none), "it has no GPU")
}
