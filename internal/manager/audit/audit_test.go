package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/tenancy"
)

func entries(t *testing.T, w *managertest.World, a authz.Actor, filter string) []*audit.Entry {
	t.Helper()
	page, err := w.Audit.List(t.Context(), a, audit.Query{Filter: filter})
	require.NoError(t, err)
	require.Equal(t, len(page.Items), page.Total)
	return page.Items
}

// An entry tells who did what from where by which request, with the columns before and after.
func TestEntriesTellWhatChanged(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := audit.WithRequest(t.Context(), "r-1")
	admin := w.Admin
	admin.ClientIP = "10.0.0.7"
	began := time.Now()
	require.NoError(t, w.Tenancy.ModifyDomain(ctx, admin, "default", tenancy.DomainProps{AllowedRegistries: &[]string{"r.example"}}))
	got := entries(t, w, w.Admin, `action == "domain.modify"`)
	require.Len(t, got, 1)
	e := got[0]
	require.WithinRange(t, e.At, began.Add(-time.Minute), time.Now().Add(time.Minute))
	require.Equal(t, audit.Entry{ID: e.ID, At: e.At, Action: "domain.modify", Object: "default", Result: audit.Done,
		UserID: string(admin.UserID), Email: admin.Email, Role: "superadmin", Domain: "default", AccessKey: string(admin.AccessKey),
		Address: "10.0.0.7", RequestID: "r-1", Attempts: 1, ChangeCount: 1, Changes: []audit.Change{{Table: "domains", Key: "default",
			Before: json.RawMessage(`{"allowed_docker_registries": []}`),
			After:  json.RawMessage(`{"allowed_docker_registries": ["r.example"]}`)}}}, *e)
}

// What cannot be recorded is not done.
func TestNothingIsDoneWithoutItsRecord(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	w.Exec(`ALTER TABLE audit_log ADD CONSTRAINT full_disk CHECK (action <> 'domain.modify')`)
	require.Error(t, w.Tenancy.ModifyDomain(t.Context(), w.Admin, "default", tenancy.DomainProps{AllowedRegistries: &[]string{"r.example"}}))
	d, err := w.Tenancy.GetDomain(t.Context(), w.Admin, "default")
	require.NoError(t, err)
	require.Empty(t, d.AllowedRegistries)
}

// A change that is rolled back leaves no record.
func TestWhatFailsLeavesNoRecord(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	mistake := errors.New("a mistake")
	failing := func() (err error) {
		ctx, end := audit.Begin(t.Context(), w.Store, w.Admin, "test.fail", "x")
		defer end(&err)
		return w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			if err := tx.SetSetting(ctx, "x", json.RawMessage(`1`)); err != nil {
				return err
			}
			return mistake
		})
	}
	require.ErrorIs(t, failing(), mistake)
	require.Empty(t, entries(t, w, w.Admin, ""))
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM audit_changes) = 0; END $$`)
}

// Reading within a use case is no change, and what a use case leaves running is not its own.
func TestOnlyChangesOfTheUseCaseAreRecorded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	var left context.Context
	run := func() (err error) {
		ctx, end := audit.Begin(t.Context(), w.Store, w.Admin, "test.run", "x")
		defer end(&err)
		left = ctx
		require.NoError(t, w.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			_, err := tx.GetDomain(ctx, "default")
			return err
		}))
		return w.Store.SetSetting(ctx, "x", json.RawMessage(`1`))
	}
	require.NoError(t, run())
	require.NoError(t, w.Store.SetSetting(left, "x", json.RawMessage(`2`)))
	got := entries(t, w, w.Admin, "")
	require.Len(t, got, 1)
	require.Equal(t, 1, got[0].ChangeCount)
}

// Refusals are recorded with their words, also where a foreign object is said not to be there.
func TestRefusalsAreRecorded(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	stranger := w.Stranger("s")
	err := w.Tenancy.ModifyDomain(t.Context(), stranger, "default", tenancy.DomainProps{})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	err = w.Tenancy.UpdateFullName(t.Context(), stranger, w.Admin.Email, strings.Repeat("x", 10))
	require.True(t, fault.Is(err, fault.NotFound), "%v", err)
	got := entries(t, w, w.Admin, `result == "denied"`)
	require.Len(t, got, 2)
	require.Equal(t, "user.rename", got[0].Action)
	require.Contains(t, got[0].Reason, "No such user")
	require.Equal(t, "domain.modify", got[1].Action)
	require.Contains(t, got[1].Reason, "may not")
	require.Empty(t, got[1].Changes)
}

// No secret of an audited table gets into the log.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	_, err := w.Tenancy.GenerateSSHKeypair(ctx, w.Admin)
	require.NoError(t, err)
	require.NoError(t, w.Tenancy.SetBootstrapScript(ctx, w.Admin, "export TOKEN=hunter2"))
	require.NoError(t, w.Tenancy.UpdatePassword(ctx, w.Admin, w.Creds.Password, "hunter2 of the hills"))
	got := entries(t, w, w.Admin, "")
	require.Len(t, got, 3)
	for _, e := range got {
		require.NotEmpty(t, e.Changes, e.Action)
		for _, c := range e.Changes {
			require.Contains(t, string(c.After), "(not shown)")
			require.NotContains(t, string(c.After), "hunter2")
			require.NotContains(t, string(c.After), "argon2id")
		}
	}
	// Whatever is sealed or hashed in an audited table is known to the trigger by the name of its column.
	rows, err := w.Store.Pool().Query(ctx, `SELECT c.table_name || '.' || c.column_name,
    (audit_shown(jsonb_build_object(c.column_name, 'x')) ->> c.column_name) <> 'x'
FROM information_schema.columns c JOIN pg_trigger t ON t.tgrelid = c.table_name::regclass AND t.tgname = 'audit_change'
WHERE c.table_schema = 'public' AND (c.data_type = 'bytea' OR c.column_name ~ 'secret|password_hash|token|private')`)
	require.NoError(t, err)
	var column string
	var hidden bool
	var shown []string
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&column, &hidden}, func() error {
		// The id of a passkey's credential is told to whoever logs in.
		if n++; !hidden && column != "passkeys.credential_id" {
			shown = append(shown, column)
		}
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, shown)
	require.GreaterOrEqual(t, n, 4)
}

// Nobody changes the log; retention forgets what is old, with its changes.
func TestTheLogIsAppendedToOnly(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	ctx := t.Context()
	for range 3 {
		require.NoError(t, w.Operations.SetAnnouncement(ctx, w.Admin, false, new("hello")))
		require.NoError(t, w.Operations.SetAnnouncement(ctx, w.Admin, false, new("bye")))
	}
	for _, sql := range []string{`UPDATE audit_log SET email = 'other'`, `DELETE FROM audit_log`, `TRUNCATE audit_log`,
		`UPDATE audit_changes SET after = NULL`, `DELETE FROM audit_changes`, `TRUNCATE audit_changes`} {
		_, err := w.Store.Pool().Exec(ctx, sql)
		require.ErrorContains(t, err, "only appended to", sql)
	}
	w.Exec(`ALTER TABLE audit_log DISABLE TRIGGER append_only`)
	w.Exec(`UPDATE audit_log SET at = now() - interval '3 days' WHERE id <= 4`)
	w.Exec(`ALTER TABLE audit_log ENABLE TRIGGER append_only`)
	n, err := w.Store.PruneAudit(ctx, 48*time.Hour, 3)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	n, err = w.Store.PruneAudit(ctx, 48*time.Hour, 3)
	require.NoError(t, err)
	require.EqualValues(t, 1, n)
	require.Len(t, entries(t, w, w.Admin, ""), 2)
	w.Exec(`DO $$ BEGIN ASSERT (SELECT count(*) FROM audit_changes) = 2; END $$`)
	_, err = w.Store.Pool().Exec(ctx, `DELETE FROM audit_log`)
	require.Error(t, err)
}

// Administrators of a domain see what its users did, but nothing of superadmins and of other domains.
func TestWhoSeesTheLog(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	user, boss, other := w.Stranger("user"), w.Stranger("boss"), w.Stranger("other")
	boss.Role, boss.Domain, user.Domain = authz.RoleAdmin, "default", "default"
	for _, a := range []authz.Actor{user, other, w.Admin} {
		require.NoError(t, w.Tenancy.UpdateFullName(t.Context(), a, "", "Somebody Else"))
	}
	emails := func(a authz.Actor) (out []string) {
		for _, e := range entries(t, w, a, "") {
			out = append(out, e.Email)
		}
		return out
	}
	require.Equal(t, []string{user.Email}, emails(boss))
	require.Equal(t, []string{w.Admin.Email, other.Email, user.Email}, emails(w.Admin))
	require.Empty(t, emails(user))
	_, err := w.Audit.List(t.Context(), authz.Actor{}, audit.Query{})
	require.True(t, fault.Is(err, fault.Denied), "%v", err)
	_, err = w.Audit.List(t.Context(), w.Admin, audit.Query{Filter: `email == "x" ; DROP TABLE audit_log`})
	require.True(t, fault.Is(err, fault.Invalid), "%v", err)
}

// An export asks for what follows the last entry that it has, and gets every one once.
func TestEntriesAfterOneAnother(t *testing.T) {
	t.Parallel()
	w := managertest.New(t)
	for _, name := range []string{"A", "B", "C", "D", "E"} {
		require.NoError(t, w.Tenancy.UpdateFullName(t.Context(), w.Admin, "", name))
	}
	var names []string
	for after := int64(0); ; {
		page, err := w.Audit.List(t.Context(), w.Admin, audit.Query{Limit: 2, After: &after})
		require.NoError(t, err)
		if len(page.Items) == 0 {
			break
		}
		for _, e := range page.Items {
			require.Greater(t, e.ID, after)
			after = e.ID
			names = append(names, string(e.Changes[0].After))
		}
	}
	require.Equal(t, []string{`{"full_name": "A"}`, `{"full_name": "B"}`, `{"full_name": "C"}`, `{"full_name": "D"}`, `{"full_name": "E"}`},
		names)
}
