package store_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/storetest"
)

// Images of before decision 22 stay what they were for everybody, but those that were made of sessions: they go to their owners, or
// to superadmins where nobody knows the owner. Live sessions keep the content that they run.
func TestOldImagesGetTheirOwners(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := storetest.New(t)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := s.Pool().Exec(ctx, sql, args...)
		require.NoError(t, err, sql)
	}
	exec(`DROP SCHEMA public CASCADE`)
	exec(`CREATE SCHEMA public`)
	db := stdlib.OpenDBFromPool(s.Pool())
	defer db.Close()
	p, err := goose.NewProvider(goose.DialectPostgres, db, os.DirFS("migrations"), goose.WithDisableGlobalRegistry(true))
	require.NoError(t, err)
	_, err = p.UpTo(ctx, 17)
	require.NoError(t, err)

	id := func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }
	exec(`INSERT INTO domains (name) VALUES ('d')`)
	exec(`INSERT INTO keypair_resource_policies (name) VALUES ('x') ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO user_resource_policies (name) VALUES ('x') ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO project_resource_policies (name) VALUES ('x') ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO users (id, username, email, domain_name, resource_policy) VALUES ($1, 'ada', 'ada', 'd', 'x')`, id(1))
	exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ('AK', '', $1, 'x')`, id(1))
	exec(`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ($1, 'p', 'd', 'x')`, id(2))
	exec(`INSERT INTO resource_groups (name) VALUES ('g') ON CONFLICT DO NOTHING`)
	exec(`INSERT INTO agents (id, status, resource_group) VALUES ('a', 'ALIVE', 'g')`)
	image := func(n int, ref, project, name, labels string) {
		exec(`INSERT INTO images (id, reference, project, name, tag, architecture, digest, labels) VALUES ($1, $2, $3, $4, '1', 'x', $5, $6)`,
			id(n), ref, project, name, fmt.Sprint("sha256:", n), labels)
		exec(`INSERT INTO agent_images VALUES ('a', $1, $2)`, id(n), fmt.Sprint("sha256:", n))
	}
	label := func(owner string) string { return `{"ai.backend.customized-image.owner": "` + owner + `"}` }
	image(11, "berth/python:1", "berth", "python", `{}`)
	image(12, "berth/commit-work:1", "berth", "commit-work", label("user:"+id(1)))
	image(13, "berth/commit-lost:1", "berth", "commit-lost", label("user:"+id(99)))
	image(14, "berth/commit-odd:1", "berth", "commit-odd", `{}`)
	exec(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, image_id, status,
requested_slots) VALUES ($1, 'live', 'interactive', 'd', $2, $3, 'AK', 'g', 'berth/python:1', $4, 'RUNNING', '{}')`,
		id(21), id(2), id(1), id(11))

	_, err = p.Up(ctx)
	require.NoError(t, err)
	got := map[string]string{}
	rows, err := s.Pool().Query(ctx, `SELECT reference, scope || ' ' || origin || ' ' || coalesce(owner_id::text, '-') FROM images`)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var ref, what string
		require.NoError(t, rows.Scan(&ref, &what))
		got[ref] = what
	}
	require.NoError(t, rows.Err())
	require.Equal(t, map[string]string{
		"berth/python:1": "global import -", "berth/commit-work:1": "user commit " + id(1),
		"berth/commit-lost:1": "user commit -", "berth/commit-odd:1": "user commit -",
	}, got)
	var digest string
	require.NoError(t, s.Pool().QueryRow(ctx, `SELECT image_digest FROM sessions`).Scan(&digest))
	require.Equal(t, "sha256:11", digest)
	var have int
	require.NoError(t, s.Pool().QueryRow(ctx, `SELECT count(*) FROM images i JOIN agent_images x
ON x.reference = i.reference AND x.architecture = i.architecture AND x.digest = i.digest AND x.agent_id = 'a'`).Scan(&have))
	require.Equal(t, 4, have, "agents still have what they had")
}
