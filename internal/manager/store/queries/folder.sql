-- Folders, who may use them, and what proxies must do for them.

-- name: AddFolder :exec
INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, project_id, creator_id, cloneable, unmanaged_path, status, source_id, task_id)
VALUES (@id, @name, @host, @domain_name, @quota_scope, @usage_mode, @permission, @user_id, @project_id, @creator_id, @cloneable, @unmanaged_path, @status, @source_id, @task_id);

-- name: FolderViews :many
-- What is known of folders, with what one user was granted on them. Callers decide who may see it.
SELECT sqlc.embed(f), coalesce(u.email, '')::text AS user_email, coalesce(u.role, '')::text AS owner_role,
       coalesce(p.name, '')::text AS project_name, coalesce(p.type, '')::text AS project_type,
       coalesce(c.email, '')::text AS creator, coalesce(g.permission, '')::text AS granted
FROM folders f LEFT JOIN users u ON u.id = f.user_id LEFT JOIN projects p ON p.id = f.project_id LEFT JOIN users c ON c.id = f.creator_id
LEFT JOIN folder_permissions g ON g.folder_id = f.id AND g.user_id = @viewer::uuid
WHERE f.id = ANY(@ids::uuid[]);

-- name: AutoMounted :many
-- The living dot-folders of a user.
SELECT id FROM folders WHERE user_id = $1 AND name LIKE '.%' AND usage_mode = 'general' AND status IN ('ready','mounted') ORDER BY name, id LIMIT 64;

-- name: LockFolderOwner :exec
-- Whoever gives an owner one more folder waits here.
SELECT pg_advisory_xact_lock(hashtextextended('folders of ' || @owner::text, 0));

-- name: CountFolders :one
-- How many folders an owner has, without those that are being removed.
SELECT count(*) FROM folders WHERE (user_id = @owner::uuid OR project_id = @owner::uuid) AND status NOT IN ('delete-ongoing','delete-complete','delete-error');

-- name: NameInReach :one
-- Whether a user has a living folder of that name: an own one or one that was shared.
SELECT EXISTS (SELECT 1 FROM folders f WHERE f.name = @name AND f.status NOT LIKE 'delete-%' AND f.id <> @besides::uuid
  AND (f.user_id = @user_id::uuid OR f.user_id IS NOT NULL AND EXISTS (SELECT 1 FROM folder_permissions g WHERE g.folder_id = f.id AND g.user_id = @user_id::uuid)))::boolean;

-- name: LimitsOfUserFolders :one
SELECT p.max_vfolder_count, p.max_quota_scope_size FROM users u JOIN user_resource_policies p ON p.name = u.resource_policy WHERE u.id = $1;

-- name: LimitsOfProjectFolders :one
SELECT p.max_vfolder_count, p.max_quota_scope_size FROM projects j JOIN project_resource_policies p ON p.name = j.resource_policy WHERE j.id = $1;

-- name: HostsAllowed :one
-- What a domain, some projects and the policy of a keypair allow on hosts.
SELECT coalesce((SELECT d.allowed_vfolder_hosts FROM domains d WHERE d.name = @domain_name), '{}')::jsonb AS domain_hosts,
       coalesce((SELECT jsonb_agg(p.allowed_vfolder_hosts) FROM projects p WHERE p.id = ANY(@projects::uuid[]) AND p.is_active), '[]')::jsonb AS project_hosts,
       coalesce((SELECT k.allowed_vfolder_hosts FROM keypairs a JOIN keypair_resource_policies k ON k.name = a.resource_policy WHERE a.access_key = @access_key), '{}')::jsonb AS keypair_hosts;

-- name: LockFolder :one
SELECT status FROM folders WHERE id = $1 FOR UPDATE;

-- name: HoldFolders :many
-- Keeps folders from leaving their status until the transaction ends.
SELECT id, status FROM folders WHERE id = ANY(@ids::uuid[]) ORDER BY id FOR SHARE;

-- name: MoveFolder :execrows
UPDATE folders SET status = @to_status, status_info = @info, status_changed = now(), task_id = sqlc.narg('task_id'), tried = 0, tried_at = NULL,
    source_id = CASE WHEN @to_status::text = 'cloning' THEN source_id END
WHERE id = @id AND status = ANY(@sources::text[]);

-- name: FolderTried :exec
UPDATE folders SET tried = tried + 1, tried_at = now(), status_info = @info WHERE id = @id AND status = @status;

-- name: FoldersPassedOver :exec
-- Puts folders whose proxy was not asked behind the others.
UPDATE folders SET tried_at = now() WHERE id = ANY(@ids::uuid[]) AND status IN ('performing','cloning','delete-ongoing');

-- name: RenameFolder :execrows
UPDATE folders SET name = @name WHERE id = @id AND status = ANY(@allowed::text[]);

-- name: SetFolderOptions :execrows
UPDATE folders SET cloneable = coalesce(sqlc.narg('cloneable'), cloneable), permission = coalesce(sqlc.narg('permission'), permission)
WHERE id = @id AND status = ANY(@allowed::text[]);

-- name: SetFolderUser :execrows
UPDATE folders SET user_id = @user_id, domain_name = @domain_name WHERE id = @id AND user_id IS NOT NULL AND status = ANY(@allowed::text[]);

-- name: SetFolderSize :exec
UPDATE folders SET num_files = @num_files, cur_size = @cur_size, size_complete = @size_complete, sized_at = @sized_at WHERE id = @id;

-- name: ForgetFolder :execrows
DELETE FROM folders WHERE id = $1 AND status IN ('delete-complete','performing');

-- name: ForgetRemovedFolders :execrows
DELETE FROM folders WHERE id IN (SELECT id FROM folders WHERE status = 'delete-complete' AND status_changed < now() - @age::interval ORDER BY status_changed LIMIT @max_rows);

-- name: CopiesOf :one
SELECT count(*) FROM folders WHERE source_id = $1 AND status = 'cloning';

-- name: UnsettledFolders :many
-- Folders that wait for a proxy, those that were tried longest ago first.
SELECT * FROM folders WHERE status IN ('performing','cloning','delete-ongoing') ORDER BY tried_at NULLS FIRST, status_changed LIMIT @max_rows;

-- name: StaleSizes :many
-- Folders that were counted longest ago, besides some and those of some hosts.
SELECT id, host, quota_scope FROM folders WHERE status = 'ready' AND unmanaged_path IS NULL AND (sized_at IS NULL OR sized_at < now() - @age::interval)
  AND NOT (id = ANY(@besides::uuid[])) AND NOT (host = ANY(@hosts::text[]))
ORDER BY sized_at NULLS FIRST LIMIT @max_rows;

-- name: MountingSessions :many
-- Live sessions that mount a folder.
SELECT DISTINCT s.id, s.name FROM session_mounts m JOIN sessions s ON s.id = m.session_id WHERE m.folder_id = $1 AND s.ended_at IS NULL ORDER BY s.name, s.id LIMIT 5;

-- name: MountedFoldersUsed :exec
-- Folders that live sessions mount are in use.
UPDATE folders f SET last_used = now() WHERE EXISTS (SELECT 1 FROM session_mounts m JOIN sessions s ON s.id = m.session_id WHERE m.folder_id = f.id AND s.ended_at IS NULL);

-- name: GrantFolder :exec
INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, $3)
ON CONFLICT (folder_id, user_id) DO UPDATE SET permission = excluded.permission;

-- name: RevokeFolder :many
WITH gone AS (DELETE FROM folder_permissions WHERE folder_id = @folder_id AND user_id = ANY(@users::uuid[]) RETURNING user_id)
SELECT u.email FROM users u JOIN gone g ON g.user_id = u.id ORDER BY u.email;

-- name: ChangeGrant :execrows
UPDATE folder_permissions SET permission = $3 WHERE folder_id = $1 AND user_id = $2;

-- name: SharingsOf :many
-- Who has a permission on folders: on one, or on all that a user owns and the project folders that the user created.
-- The other users are looked up one by one: joined, all users would be read.
SELECT g.folder_id, f.name, f.status,
       coalesce((SELECT o.email FROM users o WHERE o.id = f.user_id), (SELECT p.name FROM projects p WHERE p.id = f.project_id), '')::text AS owner,
       g.user_id, coalesce((SELECT u.email FROM users u WHERE u.id = g.user_id), '')::text AS email, g.permission
FROM folder_permissions g JOIN folders f ON f.id = g.folder_id
WHERE f.status <> 'delete-complete' AND g.folder_id = ANY(CASE WHEN sqlc.narg('folder_id')::uuid IS NOT NULL THEN ARRAY[sqlc.narg('folder_id')::uuid]
  ELSE ARRAY(SELECT x.id FROM folders x WHERE x.user_id = @user_id::uuid OR x.project_id IS NOT NULL AND x.creator_id = @user_id::uuid) END)
ORDER BY f.name, g.folder_id, email LIMIT 10000;

-- name: UsersByEmail :many
SELECT u.id, u.email, u.domain_name, u.status, u.role,
       EXISTS (SELECT 1 FROM project_members m WHERE m.user_id = u.id AND m.project_id = sqlc.narg('project_id')::uuid)::boolean AS member
FROM users u WHERE u.email = ANY(@emails::text[]) ORDER BY u.email;

-- name: UsersExisting :many
SELECT id FROM users WHERE id = ANY(@ids::uuid[]) AND status = 'active';

-- name: AddInvitation :execrows
INSERT INTO folder_invitations (id, folder_id, inviter_id, invitee_id, permission)
SELECT @id::uuid, @folder_id::uuid, @inviter_id::uuid, @invitee_id::uuid, @permission::text
WHERE NOT EXISTS (SELECT 1 FROM folder_permissions g WHERE g.folder_id = @folder_id::uuid AND g.user_id = @invitee_id::uuid)
ON CONFLICT DO NOTHING;

-- name: PendingInvitations :many
SELECT i.*, f.name AS folder_name, a.email AS inviter, b.email AS invitee
FROM folder_invitations i JOIN folders f ON f.id = i.folder_id JOIN users a ON a.id = i.inviter_id JOIN users b ON b.id = i.invitee_id
WHERE i.state = 'pending' AND f.status NOT LIKE 'delete-%' AND (i.invitee_id = sqlc.narg('invitee') OR i.inviter_id = sqlc.narg('inviter'))
ORDER BY i.created_at, i.id LIMIT 1000;

-- name: FolderOfInvitation :one
SELECT folder_id FROM folder_invitations WHERE id = $1;

-- name: LockInvitation :one
SELECT i.*, f.name AS folder_name, f.status AS folder_status FROM folder_invitations i JOIN folders f ON f.id = i.folder_id WHERE i.id = $1 FOR UPDATE OF i;

-- name: SetInvitation :exec
UPDATE folder_invitations SET state = $2, permission = $3, modified_at = now() WHERE id = $1;

-- name: CancelInvitations :exec
UPDATE folder_invitations SET state = 'canceled', modified_at = now() WHERE folder_id = $1 AND state = 'pending';

-- name: AddScope :exec
INSERT INTO folder_scopes (host, quota_scope) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: GetScope :one
SELECT * FROM folder_scopes WHERE host = $1 AND quota_scope = $2;

-- name: SetScope :exec
-- What an administrator set; null: the policy's holds.
INSERT INTO folder_scopes (host, quota_scope, own_bytes) VALUES (@host, @quota_scope, sqlc.narg('own_bytes'))
ON CONFLICT (host, quota_scope) DO UPDATE SET own_bytes = excluded.own_bytes, tried_at = NULL;

-- name: ScopeBegun :one
-- Notes that the proxy is being told a limit. Its answer counts only if nobody else began, or wrote another limit, meanwhile.
UPDATE folder_scopes SET tried_at = clock_timestamp() WHERE host = $1 AND quota_scope = $2 RETURNING tried_at;

-- name: ScopeApplied :execrows
UPDATE folder_scopes SET applied_bytes = @applied_bytes, applied_at = now() WHERE host = @host AND quota_scope = @quota_scope AND tried_at = @begun_at::timestamptz;

-- name: ScopeUnknown :exec
-- Requests crossed: what the proxy holds is told again.
UPDATE folder_scopes SET applied_at = NULL, tried_at = NULL WHERE host = $1 AND quota_scope = $2;

-- name: ScopeTried :exec
UPDATE folder_scopes SET tried_at = now() WHERE host = $1 AND quota_scope = $2;

-- name: CountScopeFolders :one
SELECT count(*) FROM folders WHERE host = $1 AND quota_scope = $2 AND status <> 'delete-complete';

-- name: ScopesToApply :many
-- Scopes whose limit is another than the proxy was told.
SELECT * FROM (
    SELECT s.host, s.quota_scope, s.applied_at, s.applied_bytes, s.tried_at,
        coalesce(s.own_bytes, (SELECT CASE WHEN p.max_quota_scope_size > 0 THEN p.max_quota_scope_size ELSE -1 END
            FROM users u JOIN user_resource_policies p ON p.name = u.resource_policy WHERE s.quota_scope = 'user:' || u.id::text),
          (SELECT CASE WHEN p.max_quota_scope_size > 0 THEN p.max_quota_scope_size ELSE -1 END
            FROM projects j JOIN project_resource_policies p ON p.name = j.resource_policy WHERE s.quota_scope = 'project:' || j.id::text), -1)::bigint AS want_bytes
    FROM folder_scopes s
    WHERE s.tried_at IS NULL OR s.tried_at < now() - @retry::interval
) x WHERE x.applied_at IS NULL OR x.applied_bytes <> x.want_bytes
ORDER BY x.tried_at NULLS FIRST LIMIT @max_rows;

-- name: AddFolderTask :exec
INSERT INTO folder_tasks (task_id, folder_id, proxy, kind) VALUES ($1, $2, $3, $4);

-- name: LiveFolderTasks :many
-- Tasks of some proxies, or of all but those.
SELECT t.*, b.message, b.current, b.total, b.status AS task_status FROM folder_tasks t JOIN background_tasks b ON b.id = t.task_id
WHERE (t.proxy = ANY(@proxies::text[])) = @of_them::boolean ORDER BY b.updated_at LIMIT @max_rows;

-- name: IsCopying :one
-- Whether a folder is being made by a task.
SELECT EXISTS (SELECT 1 FROM folders WHERE task_id = $1 AND status IN ('performing','cloning','delete-ongoing'))::boolean;

-- name: DropFolderTask :exec
DELETE FROM folder_tasks WHERE task_id = $1;

-- name: AllowFirstHosts :exec
-- Gives a domain that allows no host its first ones.
UPDATE domains SET allowed_vfolder_hosts = @hosts::jsonb WHERE name = @name AND allowed_vfolder_hosts = '{}';

-- name: FoldersOfOwners :many
-- How many folders each of some users and projects has, as CountFolders counts.
SELECT coalesce(user_id, project_id)::text AS owner, count(*) AS n FROM folders
WHERE (user_id = ANY(@owners::uuid[]) OR project_id = ANY(@owners::uuid[])) AND status NOT IN ('delete-ongoing','delete-complete','delete-error')
GROUP BY 1;
