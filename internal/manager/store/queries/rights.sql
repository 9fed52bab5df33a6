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
DELETE FROM rights_epochs WHERE changed_at < now() - interval '30 days';
