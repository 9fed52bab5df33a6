-- What schedulers keep in memory: all of it, and what changed since an earlier look (migration 0004 says why nothing is missed).

-- name: SchedulingChanges :one
-- This transaction's snapshot, when the server started, the newest leader's token (0 before the first), and what became visible since
-- an earlier snapshot (an empty text: nothing) as "kind id".
WITH b AS MATERIALIZED (SELECT CAST(nullif(@since::text, '') AS pg_snapshot) AS since, pg_snapshot_xmax(pg_current_snapshot()) AS until)
SELECT CAST(pg_current_snapshot() AS text) AS snapshot, pg_postmaster_start_time()::timestamptz AS server_started,
       coalesce(pg_stat_get_bgwriter_stat_reset_time(), pg_postmaster_start_time())::timestamptz AS server_recovered,
       coalesce((SELECT max((value->>'token')::bigint) FROM cluster_settings WHERE key = 'leader'), 0)::bigint AS token,
       ARRAY(SELECT 'session ' || s.id FROM sessions s
             WHERE s.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND s.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(s.changed, (SELECT b.since FROM b))
             UNION
             SELECT c.kind || ' ' || c.id FROM scheduling_changes c
             WHERE c.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND c.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(c.changed, (SELECT b.since FROM b))
             LIMIT @max_rows::integer)::text[] AS changes;

-- name: ForgetChanges :exec
WITH gone AS (DELETE FROM object_changes WHERE at < now() - interval '1 hour')
DELETE FROM scheduling_changes WHERE at < now() - interval '1 day';

-- name: LiveSessionIDs :many
SELECT id FROM sessions WHERE ended_at IS NULL ORDER BY id;

-- name: SessionFacts :many
SELECT s.id, s.name, s.type, s.status, s.priority, s.resource_group, s.domain_name, s.project_id, s.user_id, s.access_key,
       s.designated_agents, s.failed_agents, s.cluster_mode, s.preemptible, s.batch_timeout_ms, s.created_at, s.starts_at,
       s.scheduled_at, s.started_at, s.status_info, coalesce(s.status_data->'scheduler'->>'msg', '')::text AS told,
       coalesce(s.resource_opts->>'isolation', '')::text AS isolation, coalesce(s.resource_opts->>'network' = 'host', false)::boolean AS host_network,
       EXISTS (SELECT 1 FROM session_networks n WHERE n.session_id = s.id AND n.encrypted)::boolean AS encrypted,
       ARRAY(SELECT DISTINCT m.host FROM session_mounts m WHERE m.session_id = s.id ORDER BY m.host)::text[] AS volumes
FROM sessions s WHERE s.id = ANY(@ids::uuid[]) AND s.ended_at IS NULL;

-- name: KernelFacts :many
-- A kernel's image is local when agents would refuse to pull it.
SELECT k.id, k.session_id, k.generation, k.status, k.cluster_role, k.requested_slots, k.architecture, k.image, k.agent_id, k.allocation,
       coalesce((SELECT i.registry_type = 'local' OR EXISTS (SELECT 1 FROM cluster_settings c WHERE c.key = 'image-auto-pull' AND c.value = '"none"')
                 FROM images i WHERE i.id = CASE WHEN k.image_id IS NULL AND k.image = s.image THEN s.image_id ELSE k.image_id END), false)::boolean
       AS local_image
FROM kernels k JOIN sessions s ON s.id = k.session_id
WHERE k.session_id = ANY(@sessions::uuid[]) AND k.ended_at IS NULL ORDER BY k.session_id, k.local_rank;

-- name: WaitingDependents :many
SELECT DISTINCT d.session_id FROM session_dependencies d JOIN sessions s ON s.id = d.session_id
WHERE d.depends_on = ANY(@ids::uuid[]) AND s.status = 'PENDING';

-- name: AgentFacts :many
SELECT id, resource_group, architecture, status, schedulable, engine_ok, devices, hung_volumes, disk_problem, engine_error, conditions, trial,
       (tunnel_key <> '')::boolean AS has_tunnel, tunnel_problem,
       now()::timestamptz AS at FROM agents
WHERE status <> 'TERMINATED' AND (sqlc.narg('ids')::text[] IS NULL OR id = ANY(sqlc.narg('ids')::text[])) ORDER BY id;

-- name: RemovalFacts :many
-- What agents must still remove, as far as it holds devices.
SELECT agent_id, kernel_id, generation, allocation FROM kernel_removals
WHERE allocation <> '{}' AND (sqlc.narg('ids')::text[] IS NULL OR agent_id = ANY(sqlc.narg('ids')::text[]))
ORDER BY agent_id, kernel_id, generation;

-- name: AgentImageFacts :many
-- What agents offer: they have it with the digest of the catalogue.
SELECT ai.agent_id, i.reference FROM agent_images ai
JOIN images i ON i.reference = ai.reference AND i.architecture = ai.architecture AND i.digest = ai.digest
WHERE sqlc.narg('ids')::text[] IS NULL OR ai.agent_id = ANY(sqlc.narg('ids')::text[]);

-- name: DependencyStates :many
SELECT id, name, status, result FROM sessions WHERE id = ANY(@ids::uuid[]) ORDER BY created_at, id;
