-- name: HistoryOf :many
SELECT seq, kernel_id, event, from_status, to_status, reason, detail, exit_code, at
FROM session_events WHERE session_id = $1 ORDER BY seq LIMIT 5000;

-- name: EventChanges :one
-- This statement's snapshot, when the server started, and the events with a wire name and the changes of other objects that became
-- visible since an earlier snapshot (an empty text: none). They are not ordered here: a limit with an order would make the planner walk the primary key.
WITH b AS MATERIALIZED (SELECT CAST(nullif(@since::text, '') AS pg_snapshot) AS since, pg_snapshot_xmax(pg_current_snapshot()) AS until)
SELECT CAST(pg_current_snapshot() AS text) AS snapshot, pg_postmaster_start_time()::timestamptz AS server_started,
       coalesce(pg_stat_get_bgwriter_stat_reset_time(), pg_postmaster_start_time())::timestamptz AS server_recovered,
       ARRAY(SELECT e.seq::text FROM session_events e
             WHERE e.event <> '' AND e.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND e.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(e.changed, (SELECT b.since FROM b))
             LIMIT @max_rows::integer)::text[] AS events,
       ARRAY(SELECT c.seq::text FROM object_changes c
             WHERE c.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND c.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(c.changed, (SELECT b.since FROM b))
             LIMIT @max_rows::integer)::text[] AS objects;

-- name: ObjectChangesBySeq :many
SELECT seq, noun, id, kind, owner, coalesce(owner_role, '')::text AS owner_role, coalesce(domain_name, '')::text AS domain_name, project_id
FROM object_changes WHERE seq = ANY(@seqs::bigint[]) ORDER BY seq;

-- name: NewestEventSeqs :many
SELECT seq FROM session_events WHERE event <> '' ORDER BY seq DESC LIMIT @max_rows;

-- name: EventsBySeq :many
SELECT e.seq, e.session_id, e.kernel_id, e.event, e.to_status, e.reason, e.detail, e.exit_code, e.at,
       s.name AS session_name, s.access_key, s.user_id, s.domain_name, s.project_id, u.role AS owner_role,
       k.cluster_role, k.cluster_idx
FROM session_events e JOIN sessions s ON s.id = e.session_id JOIN users u ON u.id = s.user_id
LEFT JOIN kernels k ON k.id = e.kernel_id
WHERE e.seq = ANY(@seqs::bigint[])
ORDER BY e.seq;

-- name: EventsAfter :many
-- Named events of everybody, of sessions, of kernels or of both.
SELECT e.seq, e.session_id, e.kernel_id, e.event, e.to_status, e.reason, e.detail, e.exit_code, e.at,
       s.name AS session_name, s.access_key, s.user_id, s.domain_name, s.project_id, u.role AS owner_role,
       k.cluster_role, k.cluster_idx
FROM session_events e JOIN sessions s ON s.id = e.session_id JOIN users u ON u.id = s.user_id
LEFT JOIN kernels k ON k.id = e.kernel_id
WHERE e.seq > @after AND e.event <> '' AND CASE WHEN e.kernel_id IS NULL THEN @of_sessions::boolean ELSE @of_kernels::boolean END
ORDER BY e.seq LIMIT @max_rows;

-- name: EventsOfDomainAfter :many
-- The same of one domain. Costs what happened there, however much happened elsewhere.
SELECT e.seq, e.session_id, e.kernel_id, e.event, e.to_status, e.reason, e.detail, e.exit_code, e.at,
       s.name AS session_name, s.access_key, s.user_id, s.domain_name, s.project_id, u.role AS owner_role,
       k.cluster_role, k.cluster_idx
FROM session_events e JOIN sessions s ON s.id = e.session_id JOIN users u ON u.id = s.user_id
LEFT JOIN kernels k ON k.id = e.kernel_id
WHERE e.domain_name = @domain_name::text AND e.seq > @after AND e.event <> ''
  AND CASE WHEN e.kernel_id IS NULL THEN @of_sessions::boolean ELSE @of_kernels::boolean END
ORDER BY e.seq LIMIT @max_rows;

-- name: EventsOfUserAfter :many
-- Costs what the user has, however much happened to others.
SELECT e.seq, e.session_id, e.kernel_id, e.event, e.to_status, e.reason, e.detail, e.exit_code, e.at,
       s.name AS session_name, s.access_key, s.user_id, s.domain_name, s.project_id, u.role AS owner_role,
       k.cluster_role, k.cluster_idx
FROM users u JOIN sessions s ON s.user_id = u.id
CROSS JOIN LATERAL (SELECT v.seq, v.session_id, v.kernel_id, v.event, v.to_status, v.reason, v.detail, v.exit_code, v.at
    FROM session_events v WHERE v.session_id = s.id AND v.seq > @after ORDER BY v.seq LIMIT @max_rows) e
LEFT JOIN kernels k ON k.id = e.kernel_id
WHERE u.id = @user_id
ORDER BY e.seq LIMIT @max_rows;

-- name: EventsOfSessionAfter :many
SELECT e.seq, e.session_id, e.kernel_id, e.event, e.to_status, e.reason, e.detail, e.exit_code, e.at,
       s.name AS session_name, s.access_key, s.user_id, s.domain_name, s.project_id, u.role AS owner_role,
       k.cluster_role, k.cluster_idx
FROM session_events e JOIN sessions s ON s.id = e.session_id JOIN users u ON u.id = s.user_id
LEFT JOIN kernels k ON k.id = e.kernel_id
WHERE e.session_id = @session_id AND e.seq > @after
ORDER BY e.seq LIMIT @max_rows;

-- name: DueCallbacks :many
-- Claims due callbacks for a minute, so that several managers share the work.
UPDATE callbacks SET next_at = now() + interval '60 seconds', attempts = attempts + 1
WHERE id IN (SELECT c.id FROM callbacks c WHERE c.next_at <= now() ORDER BY c.next_at, c.id LIMIT @max_rows FOR UPDATE SKIP LOCKED)
RETURNING id, session_id, url, body, attempts;

-- name: DropCallback :exec
DELETE FROM callbacks WHERE id = $1;

-- name: DeferCallback :exec
UPDATE callbacks SET next_at = now() + @wait::interval, last_error = @last_error WHERE id = @id;

-- name: AddTask :exec
INSERT INTO background_tasks (id, kind, owner, subject, message) VALUES ($1, $2, $3, $4, $5);
-- name: SetTask :exec
UPDATE background_tasks SET status = @status, message = @message, current = @current, total = @total, updated_at = now()
WHERE id = @id AND status = 'started';
-- name: GetTask :one
SELECT * FROM background_tasks WHERE id = $1;
-- name: OngoingTask :one
SELECT id FROM background_tasks WHERE kind = $1 AND subject = $2 AND status = 'started' LIMIT 1;
-- name: AbandonTasks :execrows
UPDATE background_tasks SET status = 'failed', message = 'the manager stopped before it was done', updated_at = now()
WHERE status = 'started' AND updated_at < now() - interval '1 minute'
  AND NOT EXISTS (SELECT 1 FROM folder_tasks f WHERE f.task_id = background_tasks.id) -- those go on at a storage proxy
  AND background_tasks.kind NOT LIKE 'purge-%'; -- and those with the next leader

-- name: PruneEvents :one
-- Looks at some events after a position and deletes those that are older than the age, of sessions that ended longer ago than it.
-- next is the last old event that was looked at, 0 when there was none: what follows is younger.
WITH looked AS (
    SELECT e.seq, e.session_id FROM (SELECT v.seq, v.session_id, v.at FROM session_events v WHERE v.seq > @after ORDER BY v.seq LIMIT @max_rows) e
    WHERE e.at < now() - @age::interval
), gone AS (
    DELETE FROM session_events d USING looked l
    WHERE d.seq = l.seq AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id = l.session_id AND (s.ended_at IS NULL OR s.ended_at >= now() - @age::interval))
    RETURNING d.seq
)
SELECT coalesce((SELECT max(l.seq) FROM looked l), 0)::bigint AS next, (SELECT count(*) FROM gone)::bigint AS removed;

-- name: PruneSessions :execrows
-- Forgets some sessions that ended longer ago than the age, the oldest first, with their kernels. Their history
-- has a retention of its own.
-- Those stay that a live session depends on, and those of which an agent must still remove something.
DELETE FROM sessions WHERE id IN (
    SELECT s.id FROM sessions s WHERE s.ended_at < now() - @age::interval
      AND NOT EXISTS (SELECT 1 FROM session_dependencies d JOIN sessions l ON l.id = d.session_id WHERE d.depends_on = s.id AND l.ended_at IS NULL)
      AND NOT EXISTS (SELECT 1 FROM kernels k JOIN kernel_removals r ON r.kernel_id = k.id WHERE k.session_id = s.id)
    ORDER BY s.ended_at LIMIT @max_rows FOR NO KEY UPDATE SKIP LOCKED);

-- name: PruneTasks :execrows
-- Forgets some background tasks that came to an end longer ago than the age.
DELETE FROM background_tasks WHERE id IN (
    SELECT b.id FROM background_tasks b WHERE b.updated_at < now() - @age::interval AND b.status <> 'started'
      AND NOT EXISTS (SELECT 1 FROM folder_tasks f WHERE f.task_id = b.id)
    ORDER BY b.updated_at LIMIT @max_rows);
