-- name: LiveSessionByName :one
SELECT id, name, image, status FROM sessions WHERE access_key = $1 AND name = $2 AND ended_at IS NULL;

-- name: SessionOwner :one
SELECT s.id, s.name, s.status, s.user_id, s.access_key, s.domain_name, u.role AS owner_role
FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = $1;

-- name: SessionsNamed :many
-- Live sessions whose id or name is the text.
SELECT s.id, s.name, s.status, s.created_at FROM sessions s
WHERE s.access_key = @access_key AND s.ended_at IS NULL AND s.name = @name::text
ORDER BY s.created_at DESC LIMIT 10;

-- name: MatchSessions :many
SELECT s.id, s.name, s.status, s.created_at FROM sessions s
WHERE s.access_key = @access_key AND s.ended_at IS NULL
  AND (starts_with(s.name, @prefix::text) OR starts_with(s.id::text, @prefix::text)
       OR starts_with(replace(s.id::text, '-', ''), @prefix::text))
ORDER BY s.created_at DESC LIMIT 50;

-- name: DependencyCandidates :many
-- Sessions of one user that a dependency may mean: by id in any state, by name the newest.
SELECT DISTINCT ON (ref) r.ref::text AS ref, s.id, s.name, s.status, s.result
FROM unnest(@refs::text[]) AS r(ref)
JOIN sessions s ON s.user_id = @user_id AND (s.id::text = r.ref OR s.name = r.ref)
ORDER BY ref, (s.id::text = r.ref) DESC, s.created_at DESC;

-- name: DependenciesOf :many
SELECT d.session_id, s.id, s.name, s.status, s.created_at, s.status_changed, s.result
FROM session_dependencies d JOIN sessions s ON s.id = d.depends_on
WHERE d.session_id = ANY(@sessions::uuid[]) ORDER BY s.created_at, s.id;

-- name: DependentsOf :many
-- Live sessions that wait for one, directly or through others.
WITH RECURSIVE later(id) AS (
    SELECT d.session_id FROM session_dependencies d WHERE d.depends_on = @session_id
    UNION
    SELECT d.session_id FROM session_dependencies d JOIN later ON d.depends_on = later.id
)
SELECT s.id FROM sessions s JOIN later USING (id) WHERE s.ended_at IS NULL ORDER BY s.created_at, s.id;

-- name: InsertSession :exec
-- A session with its kernels, dependencies, first event and callback: one statement, so one round trip and one transaction.
WITH s AS (
    INSERT INTO sessions (id, name, type, priority, cluster_mode, cluster_size, domain_name, project_id, user_id, access_key,
        resource_group, designated_agents, image_id, image, tag, status, requested_slots, resource_opts, environ, startup_command,
        bootstrap_script, callback_url, batch_timeout_ms, starts_at, preemptible)
    VALUES (@id, @name, @type, @priority, @cluster_mode, @cluster_size, @domain_name, @project_id, @user_id, @access_key,
        @resource_group, @designated_agents, @image_id, @image, @tag, 'PENDING', @requested_slots, @resource_opts, @environ, @startup_command,
        @bootstrap_script, @callback_url, @batch_timeout_ms, @starts_at, @preemptible)
    RETURNING sessions.id, sessions.image, sessions.callback_url
), k AS (
    INSERT INTO kernels (id, session_id, cluster_role, cluster_idx, local_rank, cluster_hostname, image, architecture, registry,
        status, requested_slots, service_ports, preopen_ports)
    SELECT u.id, s.id, CASE WHEN u.n = 1 THEN 'main' ELSE 'sub' END, greatest(u.n - 1, 1), u.n - 1,
        CASE WHEN u.n = 1 THEN 'main1' ELSE 'sub' || (u.n - 1) END, s.image, @architecture, @registry,
        'PENDING', @kernel_slots::jsonb, @service_ports, @preopen_ports
    FROM s, unnest(@kernel_ids::uuid[]) WITH ORDINALITY AS u(id, n)
), d AS (
    INSERT INTO session_dependencies (session_id, depends_on) SELECT s.id, o.id FROM s, unnest(@depends_on::uuid[]) AS o(id)
), c AS (
    INSERT INTO callbacks (session_id, url, body)
    SELECT s.id, s.callback_url, jsonb_build_object('type', 'session_lifecycle', 'event', 'enqueued', 'session_id', s.id,
        'when', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
    FROM s WHERE s.callback_url IS NOT NULL
)
INSERT INTO session_events (session_id, event, to_status) SELECT s.id, 'session_enqueued', 'PENDING' FROM s;

-- name: SessionNow :one
SELECT now()::timestamptz AS now;

-- name: CountQueries :exec
UPDATE sessions SET num_queries = num_queries + @queries::bigint WHERE id = @id;

-- name: RenameSession :execrows
UPDATE sessions SET name = @name WHERE id = @id AND status = 'RUNNING';

-- name: SetSessionPriority :execrows
UPDATE sessions SET priority = @priority WHERE id = @id AND status = 'PENDING';

-- name: CountLiveSessions :one
SELECT count(*)::bigint FROM sessions WHERE ended_at IS NULL AND status <> 'PENDING';

-- name: KernelLog :one
SELECT log, log_truncated, status FROM kernels WHERE id = $1;

-- name: SessionStateForWait :one
SELECT s.id, s.name, s.status, s.status_info, s.result, k.exit_code, k.service_ports
FROM sessions s JOIN kernels k ON k.session_id = s.id AND k.local_rank = 0 WHERE s.id = $1;

-- name: SessionViews :many
SELECT sqlc.embed(s), p.name AS project_name, u.email AS user_email, u.full_name AS user_full_name, u.role AS owner_role
FROM sessions s JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id
WHERE s.id = ANY(@ids::uuid[]);

-- name: KernelViews :many
SELECT k.id, k.session_id, k.cluster_role, k.cluster_idx, k.local_rank, k.cluster_hostname, k.image, k.architecture, k.registry, k.agent_id,
       a.addr AS agent_addr, k.generation, k.status, k.status_info, k.status_data, k.status_changed, k.deadline, k.requested_slots, k.container_id,
       k.exit_code, k.signal, k.oom_killed, k.service_ports, k.preopen_ports, k.created_at, k.scheduled_at, k.started_at, k.ended_at, k.last_stat
FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id
WHERE k.session_id = ANY(@sessions::uuid[]) OR k.id = ANY(@kernels::uuid[])
ORDER BY k.session_id, k.local_rank;
