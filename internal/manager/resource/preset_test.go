package resource_test

import (
	"encoding/json"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/resource"
)

// holds inserts a running session of one kernel.
func holds(w *managertest.World, owner cluster.AccessKey, typ, agent string, slots cluster.Slots, a alloc.Allocation) {
	w.T.Helper()
	id := uuid.NewString()
	w.Exec(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
		requested_slots, started_at)
		SELECT $1::uuid, $1::uuid::text, $3, 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'RUNNING', '{}', now()
		FROM keypairs k, projects p WHERE k.access_key = $2 AND p.name = 'default'`, id, string(owner), typ)
	raw, err := json.Marshal(slots)
	require.NoError(w.T, err)
	w.Exec(`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, agent_id, allocation) VALUES ($1, $2,
		'img', `+
		`'x86_64', 'RUNNING', $3, $4, $5)`,
		uuid.NewString(), id, raw, agent, a.Text())
}

func cores(n int64) cluster.Slots {
	return cluster.Slots{cluster.SlotCPU: cluster.Whole(n), cluster.SlotMem: cluster.Whole(managertest.GiB)}
}

func TestPresetsFollowWhatRemains(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 4, 16*managertest.GiB)
	w.Agent("a2", 6, 16*managertest.GiB)
	preset := func(name string, slots map[string]string) {
		t.Helper()
		_, err := w.Resources.CreatePreset(ctx, w.Admin, resource.PresetInput{Name: &name, Slots: slots})
		require.NoError(t, err)
	}
	w.Exec(`DELETE FROM resource_presets`)
	preset("one", map[string]string{"cpu": "1", "mem": "1g"})
	preset("five", map[string]string{"cpu": "5", "mem": "1g"})
	preset("eight", map[string]string{"cpu": "8", "mem": "1g"})
	preset("gpu", map[string]string{"cpu": "1", "mem": "1g", "cuda.device": "1"})
	check := func() (resource.PresetCheck, map[string]bool) {
		t.Helper()
		c, err := w.Resources.CheckPresets(ctx, w.Admin, "", "")
		require.NoError(t, err)
		out := map[string]bool{}
		for _, p := range c.Presets {
			out[p.Name] = p.Allocatable
		}
		return c, out
	}
	c, fit := check()
	require.Equal(t, map[string]bool{"one": true, "five": true, "eight": false, "gpu": false}, fit,
		"eight cores are there, but not on one agent")
	require.Equal(t, cluster.Whole(10), c.Remaining[cluster.SlotCPU])

	// What system sessions hold counts on agents and against nobody's limits.
	holds(w, w.Admin.AccessKey, "system", "a2", cores(2), nil)
	c, fit = check()
	require.False(t, fit["five"])
	require.Empty(t, c.KeypairUsing)
	require.Equal(t, cluster.Whole(8), c.ResourceGroups["default"].Remaining[cluster.SlotCPU])
	require.Equal(t, cluster.Whole(2), c.ResourceGroups["default"].Using[cluster.SlotCPU])

	holds(w, w.Admin.AccessKey, "interactive", "a2", cores(1), nil)
	for _, limit := range []struct{ table, name string }{{"domains", "name = 'default'"}, {"projects", "name = 'default'"},
		{"keypair_resource_policies", "name = 'default'"}} {
		w.Exec(`UPDATE ` + limit.table + ` SET total_resource_slots = '{"cpu": 1500}' WHERE ` + limit.name)
		c, fit = check()
		require.False(t, fit["one"], limit.table)
		require.Equal(t, cluster.Amount(500), c.KeypairRemaining[cluster.SlotCPU], limit.table)
		require.Equal(t, cluster.Amount(500), c.Remaining[cluster.SlotCPU], "nobody can have more than the limits leave")
		w.Exec(`UPDATE ` + limit.table + ` SET total_resource_slots = '{}' WHERE ` + limit.name)
	}
	_, fit = check()
	require.True(t, fit["one"])
	w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{"cpu": 9000}', default_for_unspecified = 'LIMITED'`)
	c, fit = check()
	require.False(t, fit["one"], "memory is not listed, so it is not allowed")
	require.Equal(t, cluster.Amount(0), c.KeypairLimits[cluster.SlotMem])
	w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{}', default_for_unspecified = 'UNLIMITED'`)

	// A second keypair of the user: the user's limit holds for both together.
	second, err := w.Resources.CheckPresets(ctx, secondKey(w, "limited", `{"cpu": 3000}`), "", "")
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(3), second.KeypairLimits[cluster.SlotCPU])
	require.Empty(t, second.KeypairUsing)
	w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{"cpu": 2000}' WHERE name = 'default'`)
	second, err = w.Resources.CheckPresets(ctx, secondKey(w, "limited2", `{"cpu": 3000}`), "", "")
	require.NoError(t, err)
	require.Equal(t, cluster.Whole(1), second.KeypairRemaining[cluster.SlotCPU])
	w.Exec(`UPDATE keypair_resource_policies SET total_resource_slots = '{}'`)

	// Agents that take nothing have no room.
	w.Exec(`UPDATE agents SET schedulable = false WHERE id = 'a1'`)
	w.Exec(`UPDATE agents SET engine_ok = false WHERE id = 'a2'`)
	_, fit = check()
	require.False(t, fit["one"])

	_, err = w.Resources.CheckPresets(ctx, w.Stranger("mallory"), "default", "")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	_, err = w.Resources.CheckPresets(ctx, w.Admin, "default", "nowhere")
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	over, err := w.Resources.RecalculateUsage(ctx, w.Admin)
	require.NoError(t, err)
	require.Empty(t, over)
	holds(w, w.Admin.AccessKey, "interactive", "a1", cores(99), nil)
	over, err = w.Resources.RecalculateUsage(ctx, w.Admin)
	require.NoError(t, err)
	require.Equal(t, []cluster.AgentID{"a1"}, over)
}

// secondKey is another keypair of the administrator under a policy of its own.
func secondKey(w *managertest.World, policy, slots string) authz.Actor {
	w.T.Helper()
	w.Exec(`INSERT INTO keypair_resource_policies (name, total_resource_slots) VALUES ($1, $2)`, policy, slots)
	a := w.Admin
	a.AccessKey = cluster.AccessKey("AKIA" + policy)
	w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, '', $2, $3)`, string(a.AccessKey),
		string(a.UserID), policy)
	return a
}

// Where a group does not cut fractions, they lie on one device, however much is free on others.
func TestPresetsOfSharesAskDevices(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	w.Agent("a1", 4, 16*managertest.GiB)
	devices := []alloc.Device{{Slot: "cpu", ID: "0", Capacity: cluster.Whole(4), Healthy: true},
		{Slot: "mem", ID: "root", Capacity: cluster.Whole(16 * managertest.GiB), Healthy: true},
		{Slot: "cuda.shares", ID: "g0", Capacity: cluster.Whole(1), Healthy: true},
		{Slot: "cuda.shares", ID: "g1", Capacity: cluster.Whole(1), Healthy: true}}
	raw, err := json.Marshal(devices)
	require.NoError(t, err)
	w.Exec(`UPDATE agents SET devices = $1, capacity = capacity || '{"cuda.shares": 2000}'`, raw)
	for i, share := range []string{"0.3", "0.5"} {
		name := []string{"tiny", "big"}[i]
		_, err := w.Resources.CreatePreset(ctx, w.Admin,
			resource.PresetInput{Name: &name, Slots: map[string]string{"cpu": "1", "mem": "1g", "cuda.shares": share}})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range []string{"g0", "g1"} {
		holds(w, w.Admin.AccessKey, "interactive", "a1", cluster.Slots{"cuda.shares": 600}, alloc.Allocation{"cuda.shares": {g: 600}})
	}
	check := func() map[string]bool {
		t.Helper()
		c, err := w.Resources.CheckPresets(ctx, w.Admin, "", "")
		require.NoError(t, err)
		require.Equal(t, cluster.Amount(800), c.Remaining["cuda.shares"])
		fit := map[string]bool{}
		for _, p := range c.Presets {
			fit[p.Name] = p.Allocatable
		}
		return fit
	}
	fit := check()
	require.True(t, fit["tiny"])
	require.True(t, fit["big"], "may be cut over both")
	w.Exec(`UPDATE resource_groups SET scheduler_opts = '{"allow_fractional_resource_fragmentation": false}'`)
	fit = check()
	require.True(t, fit["tiny"])
	require.False(t, fit["big"], "0.8 are free, but nowhere 0.5 on one device")
}

func TestPresetAdministration(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	ok := map[string]string{"cpu": "1", "mem": "1g"}
	name, shm := "mine", "256m"
	p, err := w.Resources.CreatePreset(ctx, w.Admin, resource.PresetInput{Name: &name, Slots: ok, SharedMemory: &shm})
	require.NoError(t, err)
	require.Equal(t, int64(256<<20), *p.SharedMemory)
	_, err = w.Resources.CreatePreset(ctx, w.Admin, resource.PresetInput{Name: &name, Slots: ok})
	require.True(t, fault.Is(err, fault.Conflict), "%v", err)
	group := "default"
	inGroup, err := w.Resources.CreatePreset(ctx, w.Admin, resource.PresetInput{Name: &name, Slots: ok, ResourceGroup: &group})
	require.NoError(t, err, "the same name within a group")
	huge, none, longer := "2g", "", "renamed"
	for what, in := range map[string]resource.PresetInput{
		"no cpu":              {Slots: map[string]string{"mem": "1g"}},
		"an unknown slot":     {Slots: map[string]string{"cpu": "1", "mem": "1g", "tpu.v9": "1"}},
		"no amount":           {Slots: map[string]string{"cpu": "many", "mem": "1g"}},
		"no name":             {Name: &none},
		"more shm than mem":   {SharedMemory: &huge},
		"not an amount of it": {SharedMemory: &longer},
	} {
		_, err := w.Resources.ModifyPreset(ctx, w.Admin, "mine", in)
		require.True(t, fault.Is(err, fault.Invalid), "%s: %v", what, err)
	}
	p, err = w.Resources.ModifyPreset(ctx, w.Admin, "mine", resource.PresetInput{Name: &longer, SharedMemory: &none})
	require.NoError(t, err)
	require.Nil(t, p.SharedMemory)
	require.Equal(t, cluster.Whole(1), p.Slots[cluster.SlotCPU])
	require.NoError(t, w.Resources.DeletePreset(ctx, w.Admin, inGroup.ID))
	require.NoError(t, w.Resources.DeletePreset(ctx, w.Admin, "renamed"))
	require.True(t, fault.Is(w.Resources.DeletePreset(ctx, w.Admin, "renamed"), fault.NotFound))
	user := w.Admin
	user.Role = "user"
	require.True(t, fault.Is(w.Resources.DeletePreset(ctx, user, "small"), fault.Denied))
}

// BenchmarkCheckPresets checks presets in a group of 2,000 agents on which 20,000 kernels run.
func BenchmarkCheckPresets(b *testing.B) {
	w := managertest.New(b)
	_, err := w.Store.Pool().Exec(b.Context(), `INSERT INTO agents (id, status, resource_group, architecture, engine_ok, capacity)
		SELECT 'a' || i, 'ALIVE', 'default', 'x86_64', true, '{"cpu": 64000, "mem": 274877906944000}' FROM generate_series(1, 2000) i`)
	require.NoError(b, err)
	_, err = w.Store.Pool().Exec(b.Context(), `WITH s AS (
			INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status,
			requested_slots, started_at)
			SELECT gen_random_uuid(), 's' || i, 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'RUNNING', '{}', now()
			FROM generate_series(1, 20000) i, keypairs k, projects p RETURNING id, name)
		INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, agent_id)
		SELECT gen_random_uuid(), s.id, 'img', 'x86_64', 'RUNNING', '{"cpu": 2000, "mem": 4294967296000}', 'a' || (1 + substr(s.name,
			2)::int % 2000) FROM s`)
	require.NoError(b, err)
	_, err = w.Store.Pool().Exec(b.Context(), `ANALYZE`)
	require.NoError(b, err)
	for b.Loop() {
		c, err := w.Resources.CheckPresets(b.Context(), w.Admin, "", "")
		require.NoError(b, err)
		require.True(b, c.Presets[0].Allocatable)
	}
}
