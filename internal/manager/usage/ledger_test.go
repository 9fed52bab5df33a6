package usage_test

import (
	"context"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/session"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/usage"
)

// interval is a row of the ledger.
type interval struct {
	kernel   string
	slots    cluster.Slots
	from, to time.Time
	open     bool
}

func ledger(t testing.TB, w *managertest.World) []interval {
	rows, err := w.Store.Pool().Query(t.Context(), `SELECT kernel_id::text, slots, from_at, coalesce(to_at, now()), to_at IS NULL
		FROM usage_intervals
		ORDER BY kernel_id, from_at, id`)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (i interval, err error) {
		return i, r.Scan(&i.kernel, &i.slots, &i.from, &i.to, &i.open)
	})
	require.NoError(t, err)
	return all
}

// total adds a report up: amounts by slot.
func total(t testing.TB, w *managertest.World, p usage.Period, by usage.Grouping) map[cluster.SlotName]*big.Int {
	r, err := w.Usage.Report(t.Context(), w.Admin, p, by)
	require.NoError(t, err)
	out := map[cluster.SlotName]*big.Int{}
	for _, row := range r.Rows {
		for _, u := range row.Slots {
			if out[u.Slot] == nil {
				out[u.Slot] = new(big.Int)
			}
			out[u.Slot].Add(out[u.Slot], u.Amount)
		}
	}
	return out
}

var errKilled = errors.New("killed")

// TestLedgerOfRandomLives: whatever becomes of kernels, the ledger has exactly what they held, and the reports of all parts of any
// partition
// of time add up to that of the whole.
func TestLedgerOfRandomLives(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 1<<30, 1<<50)
	w.Agent("a2", 1<<30, 1<<50)
	ctx := t.Context()
	var ids []cluster.SessionID
	serial := 0
	held := func() (n int) {
		require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT count(*) FROM kernels WHERE agent_id IS NOT NULL AND ended_at IS NULL`).Scan(&n))
		return n
	}
	// move moves a session's kernels where the states allow it, and is rolled back where they do not.
	move := func(id cluster.SessionID, to cluster.Status) error {
		err := w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			l, err := tx.LockOne(ctx, id)
			if err != nil {
				return err
			}
			for _, k := range l.Kernels {
				if !cluster.KernelMayMove(k.Status, to) {
					return nil
				}
				if err := k.Move(ctx, store.KernelMove{To: to, Reason: "test"}); err != nil {
					return err
				}
			}
			return l.Settle(ctx, "", "")
		})
		if fault.Is(err, fault.Conflict) {
			return nil
		}
		return err
	}
	rapid.Check(t, func(rt *rapid.T) {
		pick := func() cluster.SessionID { return rapid.SampledFrom(ids).Draw(rt, "session") }
		status := func(id cluster.SessionID) cluster.Status { return w.Session(id).Status }
		for range rapid.IntRange(1, 6).Draw(rt, "steps") {
			step := rapid.IntRange(0, 9).Draw(rt, "step")
			if len(ids) == 0 {
				step = 0
			}
			switch step {
			case 0, 1:
				serial++
				ids = append(ids, w.Create(fmt.Sprintf("life-%d", serial)).ID)
			case 2, 3:
				if id := pick(); status(id) == cluster.Pending {
					w.Place(id, "a1", "a2")
				}
			case 4: // reports come twice
				if id := pick(); status(id) == cluster.Scheduled {
					agent := w.Session(id).MainKernel().Agent
					w.Report(id, agent, cluster.PhaseRunning)
					w.Report(id, agent, cluster.PhaseRunning)
				}
			case 5:
				if id := pick(); status(id) == cluster.Running && w.Session(id).MainKernel().Status == cluster.Running {
					_, err := w.Sessions.Restart(ctx, w.Admin, string(id), "")
					require.NoError(t, err)
				}
			case 6: // the agent is lost, and found again or not
				require.NoError(t, move(pick(), cluster.Lost))
			case 7: // back to the queue
				require.NoError(t, move(pick(), cluster.Pending))
			case 8:
				if id := pick(); !status(id).Final() {
					forced := status(id) != cluster.Pending || rapid.Bool().Draw(rt, "force")
					_, err := w.Sessions.Destroy(ctx, w.Admin, string(id), session.DestroyOptions{Forced: forced})
					require.NoError(t, err)
				}
			case 9: // a resize; and a manager that is killed before it commits
				w.Exec(`UPDATE kernels SET requested_slots = jsonb_set(requested_slots, '{cpu}', to_jsonb($2::bigint))
					WHERE session_id = $1 AND ended_at IS NULL`, string(pick()), rapid.Int64Range(1, 9).Draw(rt, "cores")*1000)
				before := len(ledger(t, w))
				err := w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
					_, err := tx.DB().Exec(ctx, `UPDATE kernels SET requested_slots = requested_slots || '{"cpu": 77000}' WHERE ended_at IS NULL`)
					return errors.Join(err, errKilled)
				})
				require.ErrorIs(t, err, errKilled)
				require.Len(t, ledger(t, w), before)
			}
		}
		all := ledger(t, w)
		open := 0
		for i, x := range all {
			if x.open {
				open++
			}
			if i > 0 && all[i-1].kernel == x.kernel && (all[i-1].open || x.from.Before(all[i-1].to)) {
				rt.Fatalf("intervals of kernel %s overlap", x.kernel)
			}
		}
		if n := held(); open != n {
			rt.Fatalf("%d kernels hold slots, %d intervals are open", n, open)
		}
		if len(all) == 0 {
			return
		}
		// The past does not change any more, so its parts can be asked for one after the other.
		first := slices.MinFunc(all, func(a, b interval) int { return a.from.Compare(b.from) }).from
		var now time.Time
		require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now))
		if !first.Before(now) {
			return
		}
		span := usage.Period{From: first, Until: now}
		cuts := []time.Time{first, now}
		for range rapid.IntRange(0, 4).Draw(rt, "cuts") {
			cuts = append(cuts, first.Add(time.Duration(rapid.Int64Range(0, now.Sub(first).Microseconds()).Draw(rt, "cut"))*time.Microsecond))
		}
		slices.SortFunc(cuts, time.Time.Compare)
		cuts = slices.CompactFunc(cuts, time.Time.Equal)
		by := rapid.SampledFrom([]usage.Grouping{usage.ByProject, usage.ByUser, usage.ByDomain, usage.ByResourceGroup}).Draw(rt, "by")
		whole, parts := total(t, w, span, by), map[cluster.SlotName]*big.Int{}
		for i := range cuts[1:] {
			for slot, n := range total(t, w, usage.Period{From: cuts[i], Until: cuts[i+1]}, by) {
				if parts[slot] == nil {
					parts[slot] = new(big.Int)
				}
				parts[slot].Add(parts[slot], n)
			}
		}
		want := map[cluster.SlotName]*big.Int{}
		for _, x := range all {
			to := x.to
			if x.open || to.After(now) {
				to = now
			}
			for slot, n := range x.slots {
				if want[slot] == nil {
					want[slot] = new(big.Int)
				}
				want[slot].Add(want[slot], new(big.Int).Mul(big.NewInt(int64(n)), big.NewInt(max(0, to.Sub(x.from).Microseconds()))))
			}
		}
		for slot, n := range want {
			for what, got := range map[string]map[cluster.SlotName]*big.Int{"the whole": whole, "the parts": parts} {
				have := got[slot]
				if have == nil {
					have = new(big.Int)
				}
				if have.Cmp(n) != 0 {
					rt.Fatalf("%s of %s: %s, the ledger has %s", what, slot, have, n)
				}
			}
		}
	})
}

// TestTheLedgerIsAppendOnly: nobody changes what was held; retention alone forgets, and only what is over.
func TestTheLedgerIsAppendOnly(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Agent("a1", 8, 16*managertest.GiB)
	live := w.Running("live", "a1")
	gone := w.Running("gone", "a1")
	_, err := w.Sessions.Destroy(t.Context(), w.Admin, string(gone), session.DestroyOptions{Forced: true})
	require.NoError(t, err)
	for _, sql := range []string{`UPDATE usage_intervals SET slots = '{}'`, `UPDATE usage_intervals SET to_at = now()`, `DELETE
		FROM usage_intervals`,
		`UPDATE usage_intervals SET from_at = from_at - interval '1 h', to_at = now() WHERE to_at IS NULL`, `TRUNCATE usage_intervals`} {
		_, err := w.Store.Pool().Exec(t.Context(), sql)
		require.ErrorContains(t, err, "only appended to", sql)
	}
	require.Len(t, ledger(t, w), 2)
	// What it tells stays when the session is forgotten.
	w.Exec(`DELETE FROM sessions WHERE id = $1`, string(gone))
	require.Len(t, ledger(t, w), 2)
	n, err := w.Store.PruneUsage(t.Context(), time.Hour, 100)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = w.Store.PruneUsage(t.Context(), -time.Second, 100)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	left := ledger(t, w)
	require.Len(t, left, 1)
	require.Equal(t, string(w.Session(live).MainKernel().ID), left[0].kernel)
	// A live kernel that is forgotten holds nothing any more.
	w.Exec(`DELETE FROM sessions WHERE id = $1`, string(live))
	require.False(t, ledger(t, w)[0].open)
}

func TestReportsAndPrices(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	other := w.Stranger("other")
	ctx := t.Context()
	// Two cores and 1 GiB, from an hour before March until an hour into it, and the whole of February elsewhere.
	march := usage.Month(2026, time.March)
	add := func(user authz.Actor, domain, group string, slots string, from, to time.Time) {
		w.Exec(`INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name, project_id, project_name,
			user_id, email,
			access_key, resource_group, agent_id, image, slots, from_at, to_at)
			VALUES (gen_random_uuid(), gen_random_uuid(), 's', 'interactive', $1, $2, 'p', $3, $4, $5, $6, 'a', 'i', $7, $8, $9)`,
			domain, string(w.Admin.Projects[0]), string(user.UserID), user.Email, string(user.AccessKey), group, slots, from, to)
	}
	add(w.Admin, "default", "default", `{"cpu": 2000, "mem": 1073741824000}`, march.From.Add(-time.Hour), march.From.Add(time.Hour))
	add(other, "other", "gpu", `{"cpu": 1000, "cuda.device": 500}`, march.From.AddDate(0, -1, 0), march.From)
	hours := func(a authz.Actor, p usage.Period, by usage.Grouping) map[string]string {
		r, err := w.Usage.Report(ctx, a, p, by)
		require.NoError(t, err)
		out := map[string]string{}
		for _, row := range r.Rows {
			for _, u := range row.Slots {
				out[row.Name+" "+string(u.Slot)] = u.Hours.FloatString(2)
			}
		}
		return out
	}
	require.Equal(t, map[string]string{"default cpu": "2.00", "default mem": "1.00"}, hours(w.Admin, march, usage.ByDomain))
	require.Equal(t, map[string]string{"default cpu": "2.00", "default mem": "1.00", "gpu cpu": "672.00", "gpu cuda.device": "336.00"},
		hours(w.Admin, usage.Month(2026, time.February), usage.ByResourceGroup))
	require.Equal(t, map[string]string{"other@x cpu": "672.00", "other@x cuda.device": "336.00"},
		hours(other, usage.Month(2026, time.February), usage.ByUser), "one sees what one used")
	require.Empty(t, hours(other, march, usage.ByUser))

	_, err := w.Usage.SetPrice(ctx, other, usage.Price{Slot: "cpu", PerHour: "1", ValidFrom: march.From})
	require.True(t, fault.Is(err, fault.Denied))
	for _, bad := range []string{"", "-1", "1e9", "1,5", "0.1234567891", "NaN", "1/3"} {
		_, err := w.Usage.SetPrice(ctx, w.Admin, usage.Price{Slot: "cpu", PerHour: bad, ValidFrom: march.From})
		require.True(t, fault.Is(err, fault.Invalid), bad)
	}
	p, err := w.Usage.SetPrice(ctx, w.Admin, usage.Price{Slot: "cpu", PerHour: "0.10", ValidFrom: march.From.Add(-30 * time.Minute)})
	require.NoError(t, err)
	require.Equal(t, "0.1", p.PerHour)
	again, err := w.Usage.SetPrice(ctx, w.Admin, usage.Price{Slot: "cpu", PerHour: "1", ValidFrom: p.ValidFrom})
	require.NoError(t, err)
	require.Equal(t, p.ID, again.ID, "the same slot, group and time")
	cost := func() string {
		r, err := w.Usage.Report(ctx, w.Admin, usage.Period{From: march.From.Add(-time.Hour), Until: march.Until}, usage.ByDomain)
		require.NoError(t, err)
		if r.Cost == nil {
			return ""
		}
		return r.Cost.FloatString(3)
	}
	// Two cores for an hour and a half, and the other's core for half an hour.
	require.Equal(t, "3.500", cost())
	_, err = w.Usage.SetPrice(ctx, w.Admin, usage.Price{Slot: "cpu", ResourceGroup: "gpu", PerHour: "10",
		ValidFrom: march.From.Add(-15 * time.Minute)})
	require.NoError(t, err)
	require.Equal(t, "5.750", cost())
	prices, err := w.Usage.Prices(ctx, other)
	require.NoError(t, err)
	require.Len(t, prices, 2)
	for _, p := range prices {
		require.NoError(t, w.Usage.RemovePrice(ctx, w.Admin, p.ID))
	}
	require.True(t, fault.Is(w.Usage.RemovePrice(ctx, w.Admin, p.ID), fault.NotFound))
	require.Equal(t, "", cost())

	kernels, err := w.Usage.Kernels(ctx, w.Admin, march, nil)
	require.NoError(t, err)
	require.Len(t, kernels, 1)
	require.Equal(t, time.Hour, kernels[0].Held, "clipped to the month")
	require.Equal(t, march.From, kernels[0].From)
	_, err = w.Usage.Kernels(ctx, other, march, nil)
	require.True(t, fault.Is(err, fault.Denied))
	for _, bad := range []usage.Period{{From: march.Until, Until: march.From}, {From: march.From, Until: march.From.AddDate(9, 0, 0)}} {
		_, err = w.Usage.Report(ctx, w.Admin, bad, usage.ByUser)
		require.True(t, fault.Is(err, fault.Invalid))
	}
	_, err = w.Usage.Report(ctx, w.Admin, march, "'; DROP TABLE users")
	require.True(t, fault.Is(err, fault.Invalid))
}

// TestASeriesIsItsReport cuts a period with a change of prices inside of a day into days and months: each step is the report of its time,
// and together they are the whole.
func TestASeriesIsItsReport(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	other := w.Stranger("other")
	ctx := t.Context()
	from := time.Date(2026, time.January, 30, 6, 0, 0, 0, time.UTC)
	add := func(user authz.Actor, slots string, from, to time.Time) {
		w.Exec(`INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name, project_id, project_name,
			user_id, email, access_key, resource_group, agent_id, image, slots, from_at, to_at)
			VALUES (gen_random_uuid(), gen_random_uuid(), 's', 'interactive', 'default', $1, 'p', $2, $3, $4, 'default', 'a', 'i', $5, $6, $7)`,
			string(w.Admin.Projects[0]), string(user.UserID), user.Email, string(user.AccessKey), slots, from, to)
	}
	add(w.Admin, `{"cpu": 2000, "mem": 1073741824000}`, from.Add(3*time.Hour), from.Add(50*time.Hour))
	add(other, `{"cpu": 1000}`, from.Add(47*time.Hour), from.Add(49*time.Hour))
	for i, price := range []string{"0.1", "0.3"} {
		_, err := w.Usage.SetPrice(ctx, w.Admin, usage.Price{Slot: "cpu", PerHour: price, ValidFrom: from.Add(time.Duration(i*30) * time.Hour)})
		require.NoError(t, err)
	}
	p := usage.Period{From: from, Until: from.Add(72 * time.Hour)}
	whole, err := w.Usage.Report(ctx, w.Admin, p, usage.ByUser)
	require.NoError(t, err)
	for step, steps := range map[usage.Step]int{usage.Daily: 4, usage.Monthly: 2} {
		reports, err := w.Usage.Series(ctx, w.Admin, p, usage.ByUser, step)
		require.NoError(t, err)
		require.Len(t, reports, steps, string(step))
		cost, at := new(big.Rat), p.From
		for _, r := range reports {
			require.True(t, r.From.Equal(at), "steps follow each other")
			at = r.Until
			alone, err := w.Usage.Report(ctx, w.Admin, r.Period, usage.ByUser)
			require.NoError(t, err)
			alone.Now = r.Now
			require.Equal(t, alone, r)
			if r.Cost != nil {
				cost.Add(cost, r.Cost)
			}
		}
		require.True(t, at.Equal(p.Until))
		require.Zero(t, whole.Cost.Cmp(cost), "the cost of the parts is that of the whole")
	}
	theirs, err := w.Usage.Series(ctx, other, p, usage.ByUser, usage.Monthly)
	require.NoError(t, err)
	require.Empty(t, theirs[0].Rows)
	require.Len(t, theirs[1].Rows, 1)
	require.Equal(t, other.Email, theirs[1].Rows[0].Name)
	future, err := w.Usage.Series(ctx, w.Admin, usage.Month(2199, time.January), usage.ByUser, usage.Daily)
	require.NoError(t, err)
	require.Empty(t, future, "nothing is told of what has not begun")
	_, err = w.Usage.Series(ctx, w.Admin, usage.Period{From: from.AddDate(-2, 0, 0), Until: from}, usage.ByUser, usage.Daily)
	require.True(t, fault.Is(err, fault.Invalid), "two years of days: %v", err)
	_, err = w.Usage.Series(ctx, authz.Actor{}, p, usage.ByUser, usage.Daily)
	require.Error(t, err)
}
