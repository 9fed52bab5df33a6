package audit_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
)

func wrongPassword(account, from string) audit.Refusal {
	return audit.Refusal{Action: "login.open", Account: account, Means: "password", Reason: "auth-failed", From: netip.MustParseAddr(from)}
}

// Refused logins stand in the log with the account that was tried, from where and by what. Those that are alike are one row, and then one
// more for the rest of the minute.
func TestRefusedLoginsAreCounted(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx, now := audit.WithRequest(t.Context(), "r-1"), time.Now()
	refuse := func(n int, account, from string) {
		for range n {
			w.Audit.Refused(ctx, wrongPassword(account, from), now)
		}
	}
	refuse(1, w.Admin.Email, "10.0.0.7")
	require.NoError(t, w.Audit.WriteRefused(ctx, now, false))
	got := entries(t, w, w.Admin, `action == "login.open"`)
	require.Len(t, got, 1)
	e := got[0]
	require.Equal(t, audit.Entry{ID: e.ID, At: e.At, Action: "login.open", Object: w.Admin.Email, Result: audit.Denied, Reason: "auth-failed",
		Role: "superadmin", Domain: "default", Address: "10.0.0.7", RequestID: "r-1", Means: "password", Attempts: 1,
		Changes: []audit.Change{}}, *e)
	require.WithinDuration(t, now, e.At, time.Millisecond)

	refuse(500, w.Admin.Email, "10.0.0.7")
	refuse(2, w.Admin.Email, "10.0.0.8")
	now = now.Add(30 * time.Second)
	require.NoError(t, w.Audit.WriteRefused(ctx, now, false))
	require.Len(t, entries(t, w, w.Admin, ""), 2, "the first from another address is written at once")
	now = now.Add(31 * time.Second)
	require.NoError(t, w.Audit.WriteRefused(ctx, now, false))
	got = entries(t, w, w.Admin, `attempts > 2`)
	require.Len(t, got, 1)
	require.EqualValues(t, 500, got[0].Attempts)
	require.Len(t, entries(t, w, w.Admin, ""), 3)
	now = now.Add(time.Hour)
	require.NoError(t, w.Audit.WriteRefused(ctx, now, false))
	require.Len(t, entries(t, w, w.Admin, ""), 3)
}

// A flood from many addresses for many accounts, also for those that there are not, is bounded in rows, and no attempt is forgotten. One
// network does not push out what is told of others. What somebody typed in place of an account is not kept: it may be their password.
func TestAFloodOfRefusedLoginsIsBounded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx, now := t.Context(), time.Now()
	for i := range 1000 {
		w.Audit.Refused(ctx, wrongPassword(fmt.Sprintf("hunter%d", i), "10.0.0.7"), now)
		w.Audit.Refused(ctx, wrongPassword(w.Admin.Email, fmt.Sprintf("2001:db8::%x", i)), now)
	}
	w.Audit.Refused(ctx, wrongPassword(w.Admin.Email, "10.0.0.9"), now)
	for i := range 3000 {
		w.Audit.Refused(ctx, wrongPassword(w.Admin.Email, fmt.Sprintf("10.%d.%d.1", 1+i/250, i%250)), now)
	}
	require.NoError(t, w.Audit.WriteRefused(ctx, now, false))
	for range 10 {
		require.NoError(t, w.Audit.WriteRefused(ctx, now, true))
	}
	var rows, attempts, typed, named int
	require.NoError(t, w.Store.Pool().QueryRow(ctx, `SELECT count(*), sum(attempts), count(*) FILTER (WHERE object LIKE 'hunter%'),
    count(*) FILTER (WHERE object = $1 AND address = '10.0.0.9') FROM audit_log`, w.Admin.Email).Scan(&rows, &attempts, &typed, &named))
	require.Equal(t, 5001, attempts)
	require.LessOrEqual(t, rows, 102)
	require.Zero(t, typed)
	require.Equal(t, 1, named)
}

// While the database is away refusals are counted on.
func TestRefusedLoginsWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	now := time.Now()
	w.Audit.Refused(t.Context(), wrongPassword("x", "10.0.0.7"), now)
	away, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, w.Audit.WriteRefused(away, now, true))
	w.Audit.Refused(t.Context(), wrongPassword("x", "10.0.0.7"), now)
	require.NoError(t, w.Audit.WriteRefused(t.Context(), now, true))
	got := entries(t, w, w.Admin, "")
	require.Len(t, got, 1)
	require.EqualValues(t, 2, got[0].Attempts)
}

// Administrators of a domain see which accounts of their domain were tried, but not those of superadmins, nor of other domains.
func TestWhoSeesRefusedLogins(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	user, boss, other := w.Stranger("user"), w.Stranger("boss"), w.Stranger("other")
	w.Exec(`UPDATE users SET domain_name = 'default' WHERE email = $1`, user.Email)
	boss.Role, boss.Domain = authz.RoleAdmin, "default"
	for _, account := range []string{user.Email, string(user.AccessKey), other.Email, w.Admin.Email, "nobody@x"} {
		w.Audit.Refused(t.Context(), wrongPassword(account, "10.0.0.7"), time.Now())
	}
	require.NoError(t, w.Audit.WriteRefused(t.Context(), time.Now(), true))
	objects := func(a authz.Actor) (out []string) {
		for _, e := range entries(t, w, a, "") {
			out = append(out, e.Object)
		}
		return out
	}
	require.ElementsMatch(t, []string{user.Email, string(user.AccessKey)}, objects(boss))
	require.ElementsMatch(t, []string{user.Email, string(user.AccessKey), other.Email, w.Admin.Email, ""}, objects(w.Admin))
	require.Empty(t, objects(user))
}
