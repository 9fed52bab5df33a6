-- Users of the directory, and comparisons with it. Package tenancy/directory is the writer.

-- name: DirectorySubject :one
-- Who a user is at a directory.
SELECT subject FROM external_identities WHERE provider = $1 AND user_id = $2;

-- name: LogInAtDirectory :execrows
-- From then on the directory proves the user, and no password of this cluster. Logins by the old password end.
UPDATE users u SET login_directory = @directory::text, password_changed_at = now(), password_hash = NULL, need_password_change = false,
       modified_at = now()
WHERE u.id = @user_id AND NOT u.is_service AND u.role <> 'superadmin' AND u.login_directory IS DISTINCT FROM @directory::text
  AND EXISTS (SELECT 1 FROM external_identities i WHERE i.provider = @directory::text AND i.user_id = u.id);

-- name: UsersOfDirectory :many
-- Which users log in at a directory, by subject.
SELECT i.subject FROM external_identities i JOIN users u ON u.id = i.user_id
WHERE i.provider = @directory::text AND u.login_directory = @directory::text AND i.subject > @after::text ORDER BY i.subject LIMIT @max_rows;

-- name: AddDirectorySync :exec
INSERT INTO directory_syncs (id, directory, dry_run, asked_by, allowance, status, asked_at)
VALUES (@id, @directory, @dry_run, @asked_by, @allowance, 'waiting', @asked_at);

-- name: CountOpenSyncs :one
SELECT count(*) FROM directory_syncs WHERE directory = $1 AND status IN ('waiting', 'running');

-- name: NextDirectorySync :one
SELECT * FROM directory_syncs WHERE directory = $1 AND status IN ('waiting', 'running') ORDER BY asked_at, id LIMIT 1;

-- name: LastScheduledSync :one
SELECT coalesce(max(asked_at), 'epoch')::timestamptz FROM directory_syncs WHERE directory = $1 AND asked_by = '';

-- name: BeginDirectorySync :execrows
UPDATE directory_syncs SET status = 'running' WHERE id = $1 AND status IN ('waiting', 'running');

-- name: EndDirectorySync :exec
UPDATE directory_syncs SET status = @status, message = @message, people = @people, created = @created, updated = @updated, removed = @removed,
       narrowed = @narrowed, refused = @refused, diff = @diff, ended_at = @ended_at
WHERE id = @id AND status IN ('waiting', 'running');

-- name: ForgetDirectorySyncs :exec
DELETE FROM directory_syncs s WHERE s.status NOT IN ('waiting', 'running') AND s.id NOT IN
    (SELECT n.id FROM directory_syncs n WHERE n.directory = s.directory ORDER BY n.asked_at DESC, n.id LIMIT @keep);

-- name: DirectorySyncByID :one
SELECT * FROM directory_syncs WHERE id = $1;

-- name: NewestDirectorySyncs :many
SELECT * FROM directory_syncs WHERE directory = $1 ORDER BY asked_at DESC, id LIMIT @max_rows;
