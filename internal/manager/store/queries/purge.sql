-- Purges (migration 0040 says what they are), and what is left of their subjects. Writer of purges: tenancy/purge.

-- name: AddPurge :exec
INSERT INTO purges (id, kind, subject, name, domain_name, heir_id, keep_shared, parent_id)
VALUES (@id, @kind, @subject, @name, @domain_name, @heir_id, @keep_shared, @parent_id);

-- name: DuePurges :many
-- Those that were looked at longest ago come first.
SELECT * FROM purges ORDER BY tried_at NULLS FIRST, created_at, id LIMIT @max_rows;

-- name: CountPurges :one
SELECT count(*) FROM purges;

-- name: ListPurges :many
SELECT * FROM purges WHERE (@domain_name::text = '' OR domain_name = @domain_name) ORDER BY created_at, id LIMIT @max_rows;

-- name: PurgeTried :exec
UPDATE purges SET tried_at = clock_timestamp(), message = @message, done = done + @more::bigint WHERE id = @id;

-- name: DropPurge :exec
DELETE FROM purges WHERE id = $1;

-- name: PurgesWithin :one
-- How many purges of a domain's purge are not done.
SELECT count(*) FROM purges WHERE parent_id = $1;

-- name: LiveSessionsOf :many
-- Live sessions of a user, of a project or of a domain: those that are not named are any.
SELECT s.id, s.name, s.status, u.email FROM sessions s JOIN users u ON u.id = s.user_id
WHERE s.ended_at IS NULL AND (sqlc.narg('user_id')::uuid IS NULL OR s.user_id = sqlc.narg('user_id')::uuid)
  AND (sqlc.narg('project_id')::uuid IS NULL OR s.project_id = sqlc.narg('project_id')::uuid)
  AND (sqlc.narg('domain_name')::text IS NULL OR s.domain_name = sqlc.narg('domain_name')::text)
ORDER BY s.id LIMIT @max_rows;

-- name: CountOf :one
-- What belongs to a user, a project or a domain.
SELECT (SELECT count(*) FROM sessions s WHERE s.ended_at IS NULL AND (s.user_id = sqlc.narg('user_id')::uuid OR s.project_id = sqlc.narg('project_id')::uuid
            OR s.domain_name = sqlc.narg('domain_name')::text))::bigint AS live,
       (SELECT count(*) FROM sessions s WHERE s.ended_at IS NOT NULL AND (s.user_id = sqlc.narg('user_id')::uuid
            OR s.project_id = sqlc.narg('project_id')::uuid OR s.domain_name = sqlc.narg('domain_name')::text))::bigint AS ended,
       (SELECT count(*) FROM keypairs k JOIN users u ON u.id = k.user_id WHERE k.user_id = sqlc.narg('user_id')::uuid
            OR u.domain_name = sqlc.narg('domain_name')::text)::bigint AS keypairs,
       (SELECT count(*) FROM folder_permissions g JOIN users u ON u.id = g.user_id WHERE g.user_id = sqlc.narg('user_id')::uuid
            OR u.domain_name = sqlc.narg('domain_name')::text)::bigint AS shares,
       (SELECT count(*) FROM project_members m JOIN projects p ON p.id = m.project_id WHERE m.user_id = sqlc.narg('user_id')::uuid
            OR m.project_id = sqlc.narg('project_id')::uuid OR p.domain_name = sqlc.narg('domain_name')::text)::bigint AS memberships,
       (SELECT count(*) FROM images i LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id
            WHERE i.owner_id = sqlc.narg('user_id')::uuid OR i.project_id = sqlc.narg('project_id')::uuid
               OR u.domain_name = sqlc.narg('domain_name')::text OR p.domain_name = sqlc.narg('domain_name')::text)::bigint AS images;

-- name: FoldersOf :many
-- Folders of a user, of a project or of a domain, whether others have a share of them, and what live session of others mounts them.
SELECT f.id, f.name, f.host, f.status, f.status_changed, f.user_id, f.project_id, coalesce(f.cur_size, 0)::bigint AS size,
       EXISTS (SELECT 1 FROM folder_permissions g WHERE g.folder_id = f.id AND g.user_id IS DISTINCT FROM f.user_id)::boolean AS shared,
       EXISTS (SELECT 1 FROM session_mounts m JOIN sessions s ON s.id = m.session_id
               WHERE m.folder_id = f.id AND s.ended_at IS NULL AND s.user_id IS DISTINCT FROM f.user_id)::boolean AS mounted
FROM folders f WHERE (f.user_id = sqlc.narg('user_id')::uuid OR f.project_id = sqlc.narg('project_id')::uuid OR f.domain_name = sqlc.narg('domain_name')::text)
  AND f.id > @after::uuid ORDER BY f.id LIMIT @max_rows;

-- name: CountFoldersOf :one
SELECT count(*) FROM folders f WHERE f.user_id = sqlc.narg('user_id')::uuid OR f.project_id = sqlc.narg('project_id')::uuid
  OR f.domain_name = sqlc.narg('domain_name')::text;

-- name: BequeathFolder :execrows
-- Gives a folder to the heir of its owner; its files stay where they are. A name that the heir has already gets the beginning of its id.
UPDATE folders f SET user_id = @heir_id::uuid, domain_name = (SELECT u.domain_name FROM users u WHERE u.id = @heir_id::uuid),
    name = CASE WHEN EXISTS (SELECT 1 FROM folders o WHERE o.user_id = @heir_id::uuid AND o.name = f.name AND o.id <> f.id)
                THEN left(f.name, 55) || '-' || left(f.id::text, 8) ELSE f.name END
WHERE f.id = @id AND f.user_id = @user_id::uuid AND f.status IN ('ready', 'mounted', 'performing', 'cloning', 'error');

-- name: ForgetEndedSessions :execrows
-- Forgets some sessions that ended, of a user or a project. Those stay for now of which an agent must still remove something.
DELETE FROM sessions WHERE id IN (
    SELECT s.id FROM sessions s WHERE s.ended_at IS NOT NULL AND (s.user_id = sqlc.narg('user_id')::uuid OR s.project_id = sqlc.narg('project_id')::uuid)
      AND NOT EXISTS (SELECT 1 FROM kernels k JOIN kernel_removals r ON r.kernel_id = k.id WHERE k.session_id = s.id)
    LIMIT @max_rows FOR NO KEY UPDATE SKIP LOCKED);

-- name: ForgetCreator :execrows
UPDATE folders SET creator_id = NULL WHERE id IN (SELECT f.id FROM folders f WHERE f.creator_id = @user_id LIMIT @max_rows);

-- name: ForgetKeypairsOf :execrows
-- Deletes the keypairs of a user.
WITH free AS (UPDATE users SET main_access_key = NULL WHERE id = @user_id)
DELETE FROM keypairs k WHERE k.user_id = @user_id;

-- name: ForgetUser :execrows
DELETE FROM users WHERE id = $1;

-- name: ForgetProject :execrows
DELETE FROM projects WHERE id = $1;

-- name: ForgetDomain :execrows
DELETE FROM domains WHERE name = $1;

-- name: ShutOutUser :exec
UPDATE users SET status = 'deleted', status_info = 'being purged', modified_at = now() WHERE id = $1;

-- name: CloseProject :exec
UPDATE projects SET is_active = false, modified_at = now() WHERE id = $1;

-- name: CloseDomain :exec
UPDATE domains SET is_active = false, modified_at = now() WHERE name = $1;

-- name: UsersInDomain :many
SELECT u.id, u.email, u.role, u.status FROM users u WHERE u.domain_name = @domain_name
  AND NOT EXISTS (SELECT 1 FROM purges p WHERE p.kind = 'user' AND p.subject = u.id::text)
ORDER BY (u.role <> 'superadmin'), u.email LIMIT @max_rows;

-- name: ProjectsInDomain :many
SELECT j.id, j.name FROM projects j WHERE j.domain_name = @domain_name
  AND NOT EXISTS (SELECT 1 FROM purges p WHERE p.kind = 'project' AND p.subject = j.id::text) ORDER BY j.name LIMIT @max_rows;

-- name: CountInDomain :one
SELECT (SELECT count(*) FROM users WHERE users.domain_name = @domain_name)::bigint AS users,
       (SELECT count(*) FROM projects WHERE projects.domain_name = @domain_name)::bigint AS projects;

-- name: BeingPurged :one
SELECT EXISTS (SELECT 1 FROM purges WHERE kind = @kind AND subject = @subject)::boolean;

-- name: FirstSuperadmin :one
SELECT id FROM users WHERE role = 'superadmin' AND status = 'active' ORDER BY created_at, id LIMIT 1;
