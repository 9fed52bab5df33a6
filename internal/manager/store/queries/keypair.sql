-- Keypairs and what hangs on them. Package tenancy is the writer.

-- name: LockKeypair :one
-- A keypair with its user; deleted ones are not there.
SELECT sqlc.embed(k), u.email, u.role, u.domain_name, u.status AS user_status, (k.access_key = coalesce(u.main_access_key, ''))::boolean AS is_main
FROM keypairs k JOIN users u ON u.id = k.user_id WHERE k.access_key = $1 AND k.deleted_at IS NULL FOR UPDATE OF k;

-- name: InsertKeypair :exec
INSERT INTO keypairs (access_key, secret_sealed, user_id, is_active, is_admin, resource_policy, rate_limit, concurrency_limit,
    ssh_public_key, ssh_private_sealed, dotfiles, bootstrap_script)
VALUES (@access_key, @secret_sealed, @user_id, @is_active, @is_admin, @resource_policy, @rate_limit, @concurrency_limit,
    @ssh_public_key, @ssh_private_sealed, @dotfiles, @bootstrap_script);

-- name: UpdateKeypair :exec
UPDATE keypairs SET is_active = @is_active, is_admin = @is_admin, resource_policy = @resource_policy, rate_limit = @rate_limit,
    concurrency_limit = @concurrency_limit, modified_at = now() WHERE access_key = @access_key;

-- name: CountKeypairsOf :one
SELECT count(*)::bigint AS there, count(*) FILTER (WHERE is_active AND expires_at IS NULL AND access_key <> @besides::text)::bigint AS others
FROM keypairs WHERE user_id = @user_id AND deleted_at IS NULL;

-- name: CountOtherSuperadminKeys :one
-- Keypairs that are left to superadmins without this one.
SELECT count(*) FROM keypairs k JOIN users u ON u.id = k.user_id JOIN domains d ON d.name = u.domain_name
WHERE u.role = 'superadmin' AND u.status = 'active' AND d.is_active AND k.is_active AND k.expires_at IS NULL AND k.access_key <> $1;

-- name: SetMainKeypair :exec
UPDATE users SET main_access_key = @access_key, modified_at = now() WHERE id = @user_id;

-- name: ReplaceKeypair :exec
-- Without an overlap the old one ends at once.
UPDATE keypairs SET replaced_by = @replaced_by::text, expires_at = now() + @overlap::interval, is_active = (@overlap::interval > interval '0'), modified_at = now()
WHERE access_key = @access_key;

-- name: CopyGroupsOfKeypair :exec
INSERT INTO resource_groups_for_keypairs (resource_group, access_key) SELECT g.resource_group, @to_key::text FROM resource_groups_for_keypairs g
WHERE g.access_key = @from_key::text ON CONFLICT DO NOTHING;

-- name: EraseKeypair :exec
-- The row stays for the sessions that it started, whose successor is the user's main keypair.
UPDATE keypairs SET is_active = false, deleted_at = now(), expires_at = NULL, secret_sealed = '', ssh_public_key = NULL, ssh_private_sealed = NULL,
    dotfiles = '[]', bootstrap_script = '', resource_policy = 'default', replaced_by = coalesce(sqlc.narg('successor')::text, replaced_by), modified_at = now() WHERE access_key = @access_key;

-- name: ForgetGroupsOfKeypair :exec
DELETE FROM resource_groups_for_keypairs WHERE access_key = $1;

-- name: EndKeypairs :many
-- Ends keypairs whose time has come.
UPDATE keypairs k SET is_active = false, modified_at = now() FROM users u
WHERE k.access_key IN (SELECT e.access_key FROM keypairs e WHERE e.is_active AND e.expires_at <= now() ORDER BY e.expires_at LIMIT @max_rows FOR UPDATE SKIP LOCKED)
  AND u.id = k.user_id RETURNING k.access_key, u.email;

-- name: NextKeypairEnd :one
SELECT coalesce(min(expires_at) - now(), interval '1 day')::interval AS after FROM keypairs WHERE is_active AND expires_at IS NOT NULL;

-- name: PassOnSessions :execrows
-- Live sessions of a keypair that ended go to its successor; one whose name the successor has already stays until that has ended.
UPDATE sessions s SET access_key = k.replaced_by FROM keypairs k
WHERE k.access_key = s.access_key AND s.id IN (
    SELECT m.id FROM keypairs r JOIN sessions m ON m.access_key = r.access_key AND m.ended_at IS NULL
    WHERE r.replaced_by IS NOT NULL AND (r.access_key = sqlc.narg('access_key') OR sqlc.narg('access_key')::text IS NULL AND NOT r.is_active)
      AND NOT EXISTS (SELECT 1 FROM sessions o WHERE o.access_key = r.replaced_by AND o.name = m.name AND o.ended_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM keypairs t JOIN sessions o ON o.access_key = t.access_key AND o.ended_at IS NULL
                      WHERE t.replaced_by = r.replaced_by AND o.name = m.name AND o.id < m.id)
    ORDER BY m.id LIMIT @max_rows FOR UPDATE OF m);
