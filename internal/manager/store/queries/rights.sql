-- Epochs of rights (migration 0022 says what they are). The triggers of the migration are the only writer.

-- name: RightsChanges :one
-- This statement's snapshot, when the server started, and the subjects whose epochs changed since an earlier snapshot (an empty text: none).
WITH b AS MATERIALIZED (SELECT CAST(nullif(@since::text, '') AS pg_snapshot) AS since, pg_snapshot_xmax(pg_current_snapshot()) AS until)
SELECT CAST(pg_current_snapshot() AS text) AS snapshot, pg_postmaster_start_time()::timestamptz AS server_started,
       coalesce(pg_stat_get_bgwriter_stat_reset_time(), pg_postmaster_start_time())::timestamptz AS server_recovered,
       ARRAY(SELECT r.subject FROM rights_epochs r
             WHERE r.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND r.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(r.changed, (SELECT b.since FROM b))
             LIMIT @max_rows::integer)::text[] AS subjects;

-- name: RightsEpochs :many
SELECT subject, epoch FROM rights_epochs WHERE subject = ANY(@subjects::text[]);

-- name: RecentRights :many
-- All epochs that changed since a time.
SELECT subject, epoch FROM rights_epochs WHERE changed_at > @since::timestamptz;

-- name: EpochsFor :one
-- The epochs that a token of a user for a folder gets, whether one of them is so young that it may have changed after the decision about
-- the token's rights, and whether the user still is who that decision took it for.
SELECT coalesce((SELECT epoch FROM rights_epochs WHERE subject = 'user:' || @user_id::uuid), 0)::bigint AS user_epoch,
       coalesce((SELECT epoch FROM rights_epochs WHERE subject = 'folder:' || @folder_id::uuid), 0)::bigint AS folder_epoch,
       coalesce((SELECT epoch FROM rights_epochs WHERE subject = 'share:' || @user_id::uuid || ':' || @folder_id::uuid), 0)::bigint AS share_epoch,
       EXISTS (SELECT 1 FROM rights_epochs WHERE changed_at > now() - interval '1 minute' AND subject IN ('user:' || @user_id::uuid,
               'folder:' || @folder_id::uuid, 'share:' || @user_id::uuid || ':' || @folder_id::uuid))::boolean AS young,
       EXISTS (SELECT 1 FROM users u JOIN domains d ON d.name = u.domain_name
               WHERE u.id = @user_id::uuid AND u.status = 'active' AND d.is_active AND u.role = @role::text AND d.name = @domain_name::text
                 AND NOT EXISTS (SELECT 1 FROM unnest(@projects::uuid[]) AS p (id)
                                 WHERE NOT EXISTS (SELECT 1 FROM project_members m WHERE m.project_id = p.id AND m.user_id = u.id))
              )::boolean AS same;

-- name: ForgetRights :exec
-- What concerns folders that are gone is forgotten once their last token has expired.
DELETE FROM rights_epochs e WHERE changed_at < now() - interval '30 days'
    OR changed_at < now() - interval '9 days' AND (e.subject LIKE 'folder:%' OR e.subject LIKE 'share:%')
        AND NOT EXISTS (SELECT 1 FROM folders f WHERE f.id::text = split_part(e.subject, ':', CASE WHEN e.subject LIKE 'share:%' THEN 3 ELSE 2 END));

-- name: MountRights :many
-- Mounts of live sessions behind one of them, in order, with all that decides what their owners may still do with the folders. With
-- young those alone for which somebody's rights changed lately.
WITH young AS MATERIALIZED (SELECT subject FROM rights_epochs WHERE changed_at > now() - interval '2 minutes')
SELECT m.session_id, m.n, m.folder_id, m.name, m.permission, m.allowed, s.access_key, u.id AS user_id, u.role, u.domain_name,
       (u.status = 'active' AND d.is_active)::boolean AS active,
       ARRAY(SELECT x.project_id::text FROM project_members x JOIN projects y ON y.id = x.project_id AND y.is_active WHERE x.user_id = u.id)::text[] AS projects,
       (f.id IS NOT NULL)::boolean AS folder_there, coalesce(f.user_id::text, '')::text AS folder_user, coalesce(o.role, '')::text AS owner_role,
       coalesce(f.domain_name, '')::text AS folder_domain, coalesce(f.project_id::text, '')::text AS folder_project,
       coalesce(p.type, '')::text AS project_type, coalesce(f.creator_id::text, '')::text AS creator,
       coalesce(f.permission, '')::text AS folder_permission, coalesce(g.permission, '')::text AS granted
FROM sessions s JOIN session_mounts m ON m.session_id = s.id JOIN users u ON u.id = s.user_id JOIN domains d ON d.name = u.domain_name
LEFT JOIN folders f ON f.id = m.folder_id LEFT JOIN users o ON o.id = f.user_id LEFT JOIN projects p ON p.id = f.project_id
LEFT JOIN folder_permissions g ON g.folder_id = f.id AND g.user_id = s.user_id
WHERE s.ended_at IS NULL AND (m.session_id, m.n) > (@after_session::uuid, @after_n::integer)
  AND (NOT @young::boolean OR 'user:' || s.user_id IN (SELECT subject FROM young) OR 'folder:' || m.folder_id IN (SELECT subject FROM young)
       OR 'share:' || s.user_id || ':' || m.folder_id IN (SELECT subject FROM young))
ORDER BY m.session_id, m.n LIMIT @max_rows;

-- name: RightsAreYoung :one
-- Whether rights changed so lately that requests which began before may still be under way.
SELECT EXISTS (SELECT 1 FROM rights_epochs WHERE changed_at > now() - @age::interval)::boolean;

-- name: SetMountAllowed :execrows
UPDATE session_mounts SET allowed = @allowed WHERE session_id = @session_id AND n = @n AND allowed <> @allowed;

-- name: TellFolderWithheld :many
-- Tells a session's owner that one of its folders is taken away or made read-only, and returns the agents of its kernels.
WITH told AS (
    INSERT INTO session_events (session_id, event, from_status, to_status, reason, detail, domain_name)
    SELECT s.id, @event::text, s.status, s.status, @reason::text, @detail::text, s.domain_name FROM sessions s WHERE s.id = @session_id RETURNING session_id
)
SELECT DISTINCT k.agent_id::text FROM kernels k WHERE k.session_id = @session_id AND k.ended_at IS NULL AND k.agent_id IS NOT NULL;
