package scheduling

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/reconcile"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// tenants are two users, one with two keypairs, in two projects of one domain.
const tenants = `
	INSERT INTO keypair_resource_policies (name) VALUES ('p1'), ('p2'), ('p3');
	INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ('00000000-0000-4000-8000-0000000000a1', 'other', 'default',
		'default');
	INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ('00000000-0000-4000-8000-000000000001', 'u1',
		'u1@x', 'default', 'default'), ('00000000-0000-4000-8000-000000000002', 'u2', 'u2@x', 'default', 'default');
	INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('K1', '',
		'00000000-0000-4000-8000-000000000001', 'p1'), ('K1B', '', '00000000-0000-4000-8000-000000000001', 'p2'), ('K2', '',
			'00000000-0000-4000-8000-000000000002', 'p3');
	UPDATE users SET main_access_key = CASE username WHEN 'u1' THEN 'K1' ELSE 'K2' END WHERE username IN ('u1', 'u2')`

// TestCommitsNeverExceedALimit: whatever the plan believed and however many commits run at once, no owner
// ever holds more than the limits, and a limit of one slot keeps nobody from another.
func TestCommitsNeverExceedALimit(t *testing.T) {
	t.Parallel()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue {
		require.NoError(t, f.Value.Set("30")) // each one works with a database
	}
	s, _ := newDatabase(t)
	exec := func(sql string, args ...any) {
		_, err := s.Pool().Exec(context.Background(), sql, args...)
		require.NoError(t, err, sql)
	}
	exec(tenants)
	var devices []alloc.Device
	for i := range 4 {
		devices = append(devices, alloc.Device{Slot: cluster.SlotCPU, ID: fmt.Sprint(i), Capacity: cluster.Whole(1000), Healthy: true})
	}
	devices = append(devices, alloc.Device{Slot: "toy", ID: "t", Capacity: cluster.Whole(1000), Healthy: true})
	raw, err := json.Marshal(devices)
	require.NoError(t, err)
	exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ('a', 'ALIVE', 'default', 'x86_64',
		true,`+
		` $1)`, raw)
	exec(`INSERT INTO cluster_settings (key, value) VALUES ('leader', '{"token": 1}')`)
	l, err := New(DefaultConfig(), Deps{Store: s, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	var project string
	require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT id FROM projects WHERE name = 'default'`).Scan(&project))
	keys := map[string]string{"K1": "00000000-0000-4000-8000-000000000001", "K1B": "00000000-0000-4000-8000-000000000001",
		"K2": "00000000-0000-4000-8000-000000000002"}

	rapid.Check(t, func(rt *rapid.T) {
		exec(`DELETE FROM sessions`)
		amounts := rapid.Custom(func(rt *rapid.T) string { // of cpu, sometimes of toys
			out := map[string]int64{}
			if rapid.Bool().Draw(rt, "cpu?") {
				out["cpu"] = 1000 * rapid.Int64Range(0, 8).Draw(rt, "cpu")
			}
			if rapid.Bool().Draw(rt, "toy?") {
				out["toy"] = 1000 * rapid.Int64Range(0, 3).Draw(rt, "toy")
			}
			b, _ := json.Marshal(out)
			return string(b)
		})
		for _, p := range []string{"p1", "p2", "p3"} {
			exec(`UPDATE keypair_resource_policies SET total_resource_slots = $2, max_concurrent_sessions = $3,
			max_concurrent_sftp_sessions = $4,`+
				` default_for_unspecified = $5 WHERE name = $1`,
				p, amounts.Draw(rt, p), rapid.IntRange(0, 5).Draw(rt, "sessions"), rapid.IntRange(0, 2).Draw(rt, "private"),
				rapid.SampledFrom([]string{"LIMITED", "UNLIMITED", "UNLIMITED"}).Draw(rt, "default"))
		}
		own := map[string]int{} // the limits of keypairs
		for _, key := range []string{"K1", "K1B", "K2"} {
			own[key] = rapid.IntRange(0, 4).Draw(rt, "own "+key)
			exec(`UPDATE keypairs SET concurrency_limit = nullif($2::int, 0) WHERE access_key = $1`, key, own[key])
		}
		exec(`UPDATE projects SET total_resource_slots = $1`, amounts.Draw(rt, "projects"))
		exec(`UPDATE domains SET total_resource_slots = $1`, amounts.Draw(rt, "domain"))

		var all []proposal
		for range rapid.IntRange(1, 16).Draw(rt, "n") {
			key := rapid.SampledFrom([]string{"K1", "K1B", "K2"}).Draw(rt, "key")
			in := rapid.SampledFrom([]string{project, "00000000-0000-4000-8000-0000000000a1"}).Draw(rt, "project")
			kind := rapid.SampledFrom([]cluster.SessionType{cluster.Interactive, cluster.Interactive, cluster.System}).Draw(rt, "type")
			slots := cluster.Slots{cluster.SlotCPU: cluster.Whole(rapid.Int64Range(1, 3).Draw(rt, "cpu"))}
			if rapid.IntRange(0, 3).Draw(rt, "toy?") == 0 {
				slots["toy"] = cluster.Whole(1)
			}
			p := proposal{session: cluster.SessionID(uuid.NewString()), private: kind == cluster.System,
				owner: scheduler.Owner{AccessKey: cluster.AccessKey(key), User: cluster.UserID(keys[key]), Project: cluster.ProjectID(in),
					Domain: "default"}}
			require.NoError(t, s.Tx(context.Background(), func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.DB().Exec(ctx, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key,
				resource_group, image, status, requested_slots, cluster_size)
					VALUES ($1::uuid, $1::text, $2, 'default', $3, $4, $5, 'default', 'img', 'PENDING', '{}', 1)`, string(p.session), string(kind), in,
					keys[key], key)
				for n := range rapid.IntRange(1, 2).Draw(rt, "kernels") {
					id := uuid.NewString()
					a := alloc.Allocation{cluster.SlotCPU: {fmt.Sprint(n): slots[cluster.SlotCPU]}}
					if slots["toy"] > 0 {
						a["toy"] = map[string]cluster.Amount{"t": slots["toy"]}
					}
					b, _ := json.Marshal(slots)
					if err == nil {
						_, err = tx.DB().Exec(ctx, `INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, `+
							`local_rank) VALUES ($1, $2, 'img', 'x86_64', 'PENDING', $3, $4)`, id, string(p.session), b, n)
					}
					p.kernels = append(p.kernels, scheduler.Kernel{ID: cluster.KernelID(id), Slots: slots})
					p.generations = append(p.generations, 1)
					p.placements = append(p.placements, scheduler.Placement{Kernel: cluster.KernelID(id), Agent: "a", Allocation: a})
				}
				return err
			}))
			all = append(all, p)
		}
		kinds := map[cluster.SlotName]bool{cluster.SlotCPU: true, "toy": true}
		var wg sync.WaitGroup
		var mu sync.Mutex
		refused := map[cluster.SessionID]string{}
		size := rapid.IntRange(1, 4).Draw(rt, "batch")
		for i := 0; i < len(all); i += size {
			batch := all[i:min(i+size, len(all))]
			wg.Go(func() {
				no, _, err := (&desk{Scheduling: l, term: reconcile.NewTerm(s, 1, "test")}).commit(context.Background(), batch, kinds)
				mu.Lock()
				defer mu.Unlock()
				for id, why := range no {
					refused[id] = why
				}
				if err != nil {
					t.Errorf("commit: %v", err)
				}
			})
		}
		wg.Wait()

		// Count again, in another way: from what was not refused.
		scopes := map[scheduler.Scope]bool{}
		sums := map[scheduler.Scope]*scheduler.Usage{}
		for i := range all {
			for _, scope := range all[i].owner.Scopes() {
				scopes[scope] = true
				if sums[scope] == nil {
					sums[scope] = &scheduler.Usage{Slots: cluster.Slots{}}
				}
			}
		}
		quotas, _, err := limit.Quotas(context.Background(), s.Queries, scopes, kinds)
		require.NoError(t, err)
		for i := range all {
			if refused[all[i].session] != "" {
				continue
			}
			more := all[i].asks()
			for _, scope := range all[i].owner.Scopes() {
				sums[scope].Sessions += more.Sessions
				sums[scope].Private += more.Private
				sums[scope].Slots = sums[scope].Slots.Add(more.Slots)
			}
		}
		for scope, u := range sums {
			if limit := own[scope.ID]; scope.Kind == scheduler.ScopeKeypair && limit > 0 && u.Sessions > limit {
				rt.Fatalf("keypair %s has %d sessions, its own limit is %d", scope.ID, u.Sessions, limit)
			}
		}
		for scope, q := range quotas {
			u := sums[scope]
			if q.Sessions >= 0 && u.Sessions > q.Sessions || q.Private >= 0 && u.Private > q.Private {
				rt.Fatalf("%v has %d and %d private sessions, the limits are %d and %d", scope, u.Sessions, u.Private, q.Sessions, q.Private)
			}
			for slot, limit := range q.Slots {
				if u.Slots[slot] > limit {
					rt.Fatalf("%v holds %s %s, the limit is %s", scope, u.Slots[slot], slot, limit)
				}
			}
		}
		var placed int
		require.NoError(t, s.Pool().QueryRow(context.Background(), `SELECT count(*) FROM sessions WHERE status = 'SCHEDULED'`).Scan(&placed))
		if placed != len(all)-len(refused) {
			rt.Fatalf("%d sessions are placed, %d were not refused", placed, len(all)-len(refused))
		}
		// Whoever was refused alone, with everybody else's use final, has a limit to show for it: nothing is refused without need.
		for i := range all {
			if refused[all[i].session] == "" {
				continue
			}
			more := all[i].asks()
			needed := false
			for _, scope := range all[i].owner.Scopes() {
				if q := quotas[scope]; q != nil {
					needed = needed || more.Sessions > 0 && q.Sessions >= 0 && sums[scope].Sessions+more.Sessions > q.Sessions ||
						more.Private > 0 && q.Private >= 0 && sums[scope].Private+more.Private > q.Private
					for slot, v := range more.Slots {
						limit, limited := q.Slots[slot]
						needed = needed || limited && v > 0 && sums[scope].Slots[slot]+v > limit
					}
				}
			}
			if !needed {
				rt.Fatalf("session %d was refused for %q although it fits: %+v", i, refused[all[i].session], more)
			}
		}
	})
}

// TestCommitsStartNothingOfInactiveOwners: who becomes inactive between the plan and its commit starts nothing.
func TestCommitsStartNothingOfInactiveOwners(t *testing.T) {
	t.Parallel()
	s, cred := newDatabase(t)
	ctx := t.Context()
	p := proposal{owner: scheduler.Owner{AccessKey: cred.AccessKey, Domain: "default"},
		kernels: []scheduler.Kernel{{Slots: cluster.Slots{cluster.SlotCPU: cluster.Whole(1)}}}}
	require.NoError(t, s.Pool().QueryRow(ctx, `SELECT k.user_id::text, p.id::text FROM keypairs k, projects p WHERE k.access_key = $1
		AND p.name = 'default' AND p.domain_name = 'default'`, string(cred.AccessKey)).Scan(&p.owner.User, &p.owner.Project))
	allows := func() bool {
		a, err := freshAllowance(ctx, s.Queries, []proposal{p}, nil)
		require.NoError(t, err)
		return a.allows(&p)
	}
	for _, private := range []bool{false, true} {
		p.private = private
		for _, change := range [][2]string{
			{`UPDATE domains SET is_active = false`, `UPDATE domains SET is_active = true`},
			{`UPDATE projects SET is_active = false`, `UPDATE projects SET is_active = true`},
			{`UPDATE users SET status = 'deleted'`, `UPDATE users SET status = 'active'`},
			{`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET is_active = true`},
			{`UPDATE users SET main_access_key = NULL, status = 'inactive'`, `UPDATE users SET status = 'active'`},
		} {
			require.True(t, allows(), change[1])
			_, err := s.Pool().Exec(ctx, change[0])
			require.NoError(t, err)
			require.False(t, allows(), change[0])
			_, err = s.Pool().Exec(ctx, change[1])
			require.NoError(t, err)
		}
	}
}

// TestTwoLastSeatsOfALevel: two commits at once take the last room of a level of hierarchical quotas, for two users in two projects; one
// of them is refused.
func TestTwoLastSeatsOfALevel(t *testing.T) {
	t.Parallel()
	s, _ := newDatabase(t)
	ctx := context.Background()
	exec := func(sql string, args ...any) {
		_, err := s.Pool().Exec(ctx, sql, args...)
		require.NoError(t, err, sql)
	}
	exec(tenants)
	device, err := json.Marshal([]alloc.Device{{Slot: cluster.SlotCPU, ID: "0", Capacity: cluster.Whole(1000), Healthy: true}})
	require.NoError(t, err)
	exec(`INSERT INTO agents (id, status, resource_group, architecture, engine_ok, devices) VALUES ('a', 'ALIVE', 'default', 'x86_64', true,
		$1)`, device)
	exec(`INSERT INTO cluster_settings (key, value) VALUES ('leader', '{"token": 1}')`)
	exec(`INSERT INTO quotas (id, domain_name, guaranteed, most) VALUES (gen_random_uuid(), 'default', '{}', '{"cpu": 3000}')`)
	l, err := New(DefaultConfig(), Deps{Store: s, Log: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	var project string
	require.NoError(t, s.Pool().QueryRow(ctx, `SELECT id FROM projects WHERE name = 'default'`).Scan(&project))
	owners := []scheduler.Owner{
		{AccessKey: "K1", User: "00000000-0000-4000-8000-000000000001", Project: cluster.ProjectID(project), Domain: "default"},
		{AccessKey: "K2", User: "00000000-0000-4000-8000-000000000002", Project: "00000000-0000-4000-8000-0000000000a1", Domain: "default"}}
	slots := cluster.Slots{cluster.SlotCPU: cluster.Whole(2)}
	raw, err := json.Marshal(slots)
	require.NoError(t, err)
	for range 5 {
		exec(`DELETE FROM sessions`)
		var seats [2]proposal
		for i, o := range owners {
			id, kernel := uuid.NewString(), uuid.NewString()
			require.NoError(t, s.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
				_, err := tx.DB().Exec(ctx, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image,
					status, requested_slots, cluster_size) VALUES ($1::uuid, $1::text, 'interactive', 'default', $2, $3, $4, 'default', 'img',
					'PENDING', '{}', 1)`, id, string(o.Project), string(o.User), string(o.AccessKey))
				if err != nil {
					return err
				}
				_, err = tx.DB().Exec(ctx, `INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, local_rank)
					VALUES ($1, $2, 'img', 'x86_64', 'PENDING', $3, 0)`, kernel, id, raw)
				return err
			}))
			seats[i] = proposal{session: cluster.SessionID(id), owner: o, group: "default", generations: []int64{1},
				kernels: []scheduler.Kernel{{ID: cluster.KernelID(kernel), Slots: slots}},
				placements: []scheduler.Placement{{Kernel: cluster.KernelID(kernel), Agent: "a",
					Allocation: alloc.Allocation{cluster.SlotCPU: {"0": slots[cluster.SlotCPU]}}}}}
		}
		var wg sync.WaitGroup
		var refused [2]map[cluster.SessionID]string
		var errs [2]error
		for i := range seats {
			wg.Go(func() {
				refused[i], _, errs[i] = (&desk{Scheduling: l, term: reconcile.NewTerm(s, 1, "test")}).commit(ctx, seats[i:i+1],
					map[cluster.SlotName]bool{cluster.SlotCPU: true})
			})
		}
		wg.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		require.Equal(t, 1, len(refused[0])+len(refused[1]), "%v", refused)
		for i := range seats {
			require.Contains(t, []string{"", "quota"}, refused[i][seats[i].session])
		}
	}
}
