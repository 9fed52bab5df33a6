package manager_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/testkit/await"
)

// TestRotationSealsEverythingAgain fills every column that is sealed, more rows than fit in one page, and looks afterwards whether
// anything is left that the old key sealed. A new column with "sealed" in its name fails here until somebody seals it again.
func TestRotationSealsEverythingAgain(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx := t.Context()
	cfg := manager.Config{StateDir: t.TempDir()}
	cfg.Postgres.DSN = chassis.NewSecret(s.Pool().Config().ConnString())
	key, err := seal.LoadOrCreate(filepath.Join(cfg.StateDir, "master.key"), rand.Reader)
	require.NoError(t, err)
	d := deps(t, s)
	d.Seal = key
	made, _, err := manager.Bootstrap(ctx, d)
	require.NoError(t, err)
	put := func(purpose string) []byte {
		text, err := key.Seal("secret of "+seal.Secret(purpose), purpose)
		require.NoError(t, err)
		return text
	}
	const keypairs = 450
	for i := range keypairs {
		access := fmt.Sprintf("AKIA%016d", i)
		_, err := s.Pool().Exec(ctx, `INSERT INTO keypairs (access_key, secret_sealed, ssh_private_sealed, user_id, resource_policy)
			SELECT $1, $2, $3, id, 'default' FROM users LIMIT 1`, access, put("keypair "+access), put("ssh "+access))
		require.NoError(t, err)
	}
	_, err = s.Pool().Exec(ctx, `UPDATE resource_groups SET wsproxy_api_token_sealed = $1 WHERE name = 'default'`,
		put("wsproxy-api-token:default"))
	require.NoError(t, err)
	var user string
	require.NoError(t, s.Pool().QueryRow(ctx, `SELECT id::text FROM users LIMIT 1`).Scan(&user))
	_, err = s.Pool().Exec(ctx, `INSERT INTO user_totp (user_id, secret_sealed) VALUES ($1, $2)`, user, put("totp "+user))
	require.NoError(t, err)
	_, err = s.Pool().Exec(ctx, `INSERT INTO notice_preferences (user_id, webhook_url, webhook_secret_sealed)
		VALUES ($1, 'https://x', $2)`, user, put("webhook "+user))
	require.NoError(t, err)
	session := "7c7e0f4e-0000-4000-8000-000000000001"
	_, err = s.Pool().Exec(ctx, `INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image,
		status, requested_slots)
		SELECT $1::uuid, 'several', 'interactive', 'default', p.id, k.user_id, k.access_key, 'default', 'img', 'PENDING', '{}'
		FROM (SELECT user_id, access_key FROM keypairs LIMIT 1) k, (SELECT id FROM projects LIMIT 1) p`, session)
	require.NoError(t, err)
	_, err = s.Pool().Exec(ctx, `INSERT INTO session_secrets (session_id, sealed) VALUES ($1, $2)`, session, put("secret of session "+session))
	require.NoError(t, err)
	for i := range 120 {
		name := fmt.Sprintf("vault/test-%03d", i)
		text, err := json.Marshal(put(name))
		require.NoError(t, err)
		_, err = s.Pool().Exec(ctx, `INSERT INTO cluster_settings (key, value) VALUES ($1, $2)`, name, text)
		require.NoError(t, err)
	}
	old := key.ID()
	again := func() manager.Rotation {
		done, err := manager.RotateMasterKeyInDatabase(ctx, cfg, manager.RotateAll)
		require.NoError(t, err)
		return done
	}

	epochsOf := func() (text string) {
		require.NoError(t, s.Pool().QueryRow(ctx, `SELECT coalesce(string_agg(subject || epoch, ' ' ORDER BY subject), '') FROM rights_epochs`).
			Scan(&text))
		return text
	}
	epochs := epochsOf()

	// Killed after the file was changed: the next one finishes.
	_, err = key.Prepare()
	require.NoError(t, err)
	require.NoError(t, key.Use())
	done := again()
	require.NotEqual(t, old, done.Key)
	require.Equal(t, keypairs+1+1+1+1+1+120, done.Resealed)
	require.Equal(t, epochs, epochsOf(), "nobody's tokens and transfers end")

	id, err := hex.DecodeString(done.Key)
	require.NoError(t, err)
	var columns [][2]string
	rows, err := s.Pool().Query(ctx, `SELECT table_name, column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name LIKE '%sealed%' ORDER BY 1, 2`)
	require.NoError(t, err)
	for rows.Next() {
		var c [2]string
		require.NoError(t, rows.Scan(&c[0], &c[1]))
		columns = append(columns, c)
	}
	require.NoError(t, rows.Err())
	require.NotEmpty(t, columns)
	for _, c := range columns {
		rows, err := s.Pool().Query(ctx, fmt.Sprintf(`SELECT %s FROM %s WHERE %[1]s IS NOT NULL`, c[1], c[0]))
		require.NoError(t, err)
		n := 0
		for rows.Next() {
			var text []byte
			require.NoError(t, rows.Scan(&text))
			require.True(t, bytes.HasPrefix(text[1:], id), "%s.%s was not sealed again", c[0], c[1])
			n++
		}
		require.NoError(t, rows.Err())
		require.NotZero(t, n, "this test puts nothing into %s.%s", c[0], c[1])
	}

	other, err := seal.Load(filepath.Join(cfg.StateDir, "master.key"), rand.Reader)
	require.NoError(t, err)
	d.Seal = other
	same, created, err := manager.Bootstrap(ctx, d)
	require.NoError(t, err)
	require.False(t, created)
	require.Equal(t, made.SecretKey, same.SecretKey)

	require.Equal(t, keypairs+1+1+1+1+1+120, again().Resealed, "a second rotation makes a third key")
	_, err = manager.RotateMasterKeyInDatabase(ctx, cfg, "backwards")
	require.ErrorContains(t, err, "not a step")
}

// TestRotationWaitsForUpdatesOfTheVault has an entry of the vault sealed with the old key and not written yet when everything is sealed
// again: the way in which the authority of the cluster would be lost.
func TestRotationWaitsForUpdatesOfTheVault(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	cfg := manager.Config{StateDir: t.TempDir()}
	cfg.Postgres.DSN = chassis.NewSecret(s.Pool().Config().ConnString())
	file := filepath.Join(cfg.StateDir, "master.key")
	key, err := seal.LoadOrCreate(file, rand.Reader)
	require.NoError(t, err)
	rotated := make(chan error, 1)
	err = s.Tx(t.Context(), func(ctx context.Context, tx *store.Tx) error { // what vault.Update does
		require.NoError(t, tx.LockBootstrap(ctx))
		sealed, err := key.Seal("authority", "vault/ca")
		require.NoError(t, err)
		text, err := json.Marshal(sealed)
		require.NoError(t, err)
		go func() {
			_, err := manager.RotateMasterKeyInDatabase(t.Context(), cfg, manager.RotateAll)
			rotated <- err
		}()
		require.Eventually(t, func() bool {
			var waits int
			require.NoError(t, s.Pool().QueryRow(t.Context(), `SELECT count(*) FROM pg_locks
				WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).
				Scan(&waits))
			return waits > 0 || len(rotated) > 0
		}, time.Minute, 10*time.Millisecond, "the rotation waits for this transaction, or has ended")
		return tx.SetSetting(ctx, "vault/ca", text)
	})
	require.NoError(t, err)
	require.NoError(t, await.Value(t, rotated))
	fresh, err := seal.Load(file, rand.Reader)
	require.NoError(t, err)
	raw, err := s.GetSetting(t.Context(), "vault/ca")
	require.NoError(t, err)
	var sealed []byte
	require.NoError(t, json.Unmarshal(raw, &sealed))
	secret, err := fresh.Open(sealed, "vault/ca")
	require.NoError(t, err)
	require.Equal(t, "authority", secret.Reveal())
}

// TestRotationWithTwoManagers goes through the documented steps, each followed by a copy of the file, while both managers go on to seal
// and to open: at no moment is there a secret that one of them cannot open.
func TestRotationWithTwoManagers(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx := t.Context()
	cfg := manager.Config{StateDir: t.TempDir()}
	cfg.Postgres.DSN = chassis.NewSecret(s.Pool().Config().ConnString())
	first, second := filepath.Join(cfg.StateDir, "master.key"), filepath.Join(t.TempDir(), "master.key")
	mine, err := seal.LoadOrCreate(first, rand.Reader)
	require.NoError(t, err)
	copyKey := func() {
		text, err := os.ReadFile(first)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(second+".new", text, 0o600))
		require.NoError(t, os.Rename(second+".new", second))
	}
	copyKey()
	theirs, err := seal.Load(second, rand.Reader)
	require.NoError(t, err)
	d := deps(t, s)
	d.Seal = mine
	_, _, err = manager.Bootstrap(ctx, d)
	require.NoError(t, err)

	made := 0
	sealWith := func(key *seal.Key) {
		t.Helper()
		made++
		access := fmt.Sprintf("AKIA%016d", made)
		text, err := key.Seal("of "+seal.Secret(access), "keypair "+access)
		require.NoError(t, err)
		_, err = s.Pool().Exec(ctx, `INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy)
			SELECT $1, $2, id, 'default' FROM users LIMIT 1`, access, text)
		require.NoError(t, err)
	}
	bothOpen := func(when string) {
		t.Helper()
		sealWith(mine)
		sealWith(theirs)
		rows, err := s.Pool().Query(ctx, `SELECT access_key, secret_sealed FROM keypairs WHERE access_key LIKE 'AKIA000%'`)
		require.NoError(t, err)
		n := 0
		for rows.Next() {
			var access string
			var sealed []byte
			require.NoError(t, rows.Scan(&access, &sealed))
			for who, key := range map[string]*seal.Key{"the first manager": mine, "the second manager": theirs} {
				secret, err := key.Open(sealed, "keypair "+access)
				require.NoError(t, err, "%s, %s", who, when)
				require.Equal(t, "of "+access, secret.Reveal())
			}
			n++
		}
		require.NoError(t, rows.Err())
		require.Equal(t, made, n)
	}
	old := mine.ID()
	bothOpen("before")
	for _, step := range []manager.RotationStep{manager.RotatePrepare, manager.RotateUse, manager.RotateFinish} {
		_, err := manager.RotateMasterKeyInDatabase(ctx, cfg, step)
		require.NoError(t, err)
		bothOpen("after " + string(step))
		copyKey()
		bothOpen("after the copy of " + string(step))
	}
	require.NotEqual(t, old, mine.ID())
	require.Equal(t, mine.ID(), theirs.ID())
	fresh, err := seal.Load(first, rand.Reader)
	require.NoError(t, err)
	require.False(t, fresh.Replaced())
}
