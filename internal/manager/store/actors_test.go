package store_test

import (
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/storetest"
)

// Every change of what actors are made of moves the turn, whoever makes it and in whatever way: here when the statement has
// returned, at another manager soon after. Changes that are rolled back, or of what actors are not made of, do not.
func TestActorsTurn(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dsn := storetest.DSN(t)
	// The store here hears of nothing but its own changes: it exchanges no hints.
	s, err := store.Open(ctx, store.Config{DSN: dsn, SkipMigrations: true}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	t.Cleanup(s.Close)
	other := storetest.Open(t, dsn)
	exec := func(sql string) {
		t.Helper()
		_, err := s.Pool().Exec(ctx, sql)
		require.NoError(t, err, sql)
	}
	const user, project = "'00000000-0000-4000-8000-000000000001'", "'00000000-0000-4000-8000-000000000002'"
	exec(`INSERT INTO domains (name) VALUES ('d'), ('unused')`)
	exec(`INSERT INTO keypair_resource_policies (name) VALUES ('p'), ('q')`)
	exec(`INSERT INTO user_resource_policies (name) VALUES ('p')`)
	exec(`INSERT INTO project_resource_policies (name) VALUES ('p')`)
	exec(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES (` + user + `, 'u', 'u', 'd', 'p')`)
	exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('AK', '', ` + user + `, 'p')`)
	exec(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES (` + project + `, 'g', 'd', 'p')`)

	soon := func(what string, is func() bool) {
		t.Helper()
		require.Eventually(t, is, patience, 2*time.Millisecond, what)
	}
	soon("the other manager listens", func() bool { return other.ActorsTurn() > 0 })
	for _, sql := range []string{
		`UPDATE users SET status = 'inactive'`, `UPDATE users SET role = 'admin'`, `UPDATE users SET allowed_client_ip = '{10.0.0.0/8}'`,
		`UPDATE keypairs SET is_active = false`, `UPDATE keypairs SET rate_limit = 1`, `UPDATE keypairs SET resource_policy = 'q'`,
		`UPDATE domains SET is_active = false`, `UPDATE domains SET allowed_docker_registries = '{x}'`,
		`INSERT INTO project_members VALUES (` + project + `, ` + user + `)`, `DELETE FROM project_members`,
		`INSERT INTO project_members VALUES (` + project + `, ` + user + `)`, `UPDATE projects SET parent_id = NULL`,
		`DELETE FROM projects`, // takes its members along
		`DELETE FROM keypairs`, `DELETE FROM users`, `DELETE FROM domains WHERE name = 'unused'`,
		`TRUNCATE project_members CASCADE`, `TRUNCATE keypairs CASCADE`, `TRUNCATE users CASCADE`, `TRUNCATE domains CASCADE`,
	} {
		here, there := s.ActorsTurn(), other.ActorsTurn()
		exec(sql)
		require.NotEqual(t, here, s.ActorsTurn(), "%s: the turn is the old one when the statement has returned", sql)
		soon(sql+": the other manager hears of it", func() bool { return other.ActorsTurn() != there })
	}

	// What happens with every request is no change of actors, and what was rolled back is none.
	before := s.ActorsTurn()
	exec(`UPDATE keypairs SET num_queries = num_queries + 1, last_used = now()`)
	exec(`UPDATE users SET password_hash = 'x'`)
	tx, err := s.Pool().Begin(ctx)
	require.NoError(t, err)
	_, err = tx.Exec(ctx, `UPDATE users SET status = 'inactive'`)
	require.NoError(t, err)
	require.NoError(t, tx.Rollback(ctx))
	require.Equal(t, before, s.ActorsTurn())
}

// The triggers of the tables that ActorByKey reads name exactly the columns that it reads.
func TestTriggersNameTheColumnsOfActors(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	text, err := os.ReadFile("queries/tenancy.sql")
	require.NoError(t, err)
	_, query, found := strings.Cut(string(text), "-- name: ActorByKey :one\n")
	require.True(t, found)
	query, _, _ = strings.Cut(query, ";")
	for alias, table := range map[string]string{"k": "keypairs", "u": "users", "d": "domains"} {
		var read []string
		for _, m := range regexp.MustCompile(`\b`+alias+`\.(\w+)`).FindAllStringSubmatch(query, -1) {
			if m[1] != "last_used" { // changes with every request; nobody decides by it
				read = append(read, m[1])
			}
		}
		slices.Sort(read)
		var named []string
		require.NoError(
			t,
			s.Pool().QueryRow(t.Context(), `SELECT array_agg(a.attname::text ORDER BY a.attname::text COLLATE "C") FROM pg_trigger g
JOIN pg_attribute a ON a.attrelid = g.tgrelid AND a.attnum = ANY(g.tgattr) WHERE g.tgname = 'actors_changed' AND g.tgrelid =
$1::text::regclass`, table).Scan(&named),
		)
		require.Equal(t, slices.Compact(read), named, table)
	}
	var whole int
	require.NoError(
		t,
		s.Pool().
			QueryRow(t.Context(), `SELECT cardinality(tgattr::int2[]) FROM pg_trigger WHERE tgname = 'actors_changed' AND tgrelid =
'project_members'::regclass`).
			Scan(&whole),
	)
	require.Zero(t, whole, "every column of memberships counts")
}
