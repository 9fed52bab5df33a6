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

-- name: LiveSessionsNamed :many
SELECT s.id, s.access_key, s.name, s.image, s.status
FROM (SELECT unnest(@access_keys::text[]) AS access_key, unnest(@names::text[]) AS name) AS asked
JOIN sessions s ON s.access_key = asked.access_key AND s.name = asked.name AND s.ended_at IS NULL;

-- name: InsertSessions :many
-- Sessions with their kernels, mounts (JSON of cluster.FolderMount), dependencies, first events and callbacks, in one statement. Those of which a live one of the same
-- name exists are left out with all of theirs; the ids of the others are returned. Their order is kept by
-- created_at. In the arrays '' and 0 stand for an absent value, a text that is present follows a '+', lists are joined by U+001F.
WITH asked AS (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@names::text[]) AS name, unnest(@types::text[]) AS type, unnest(@priorities::integer[]) AS priority,
        unnest(@cluster_modes::text[]) AS cluster_mode, unnest(@cluster_sizes::integer[]) AS cluster_size, unnest(@domain_names::text[]) AS domain_name,
        unnest(@project_ids::uuid[]) AS project_id, unnest(@user_ids::uuid[]) AS user_id, unnest(@access_keys::text[]) AS access_key,
        unnest(@resource_groups::text[]) AS resource_group, unnest(@designated_agents::text[]) AS designated_agents, unnest(@image_ids::uuid[]) AS image_id,
        unnest(@images::text[]) AS image, unnest(@tags::text[]) AS tag, unnest(@requested_slots::text[]) AS requested_slots,
        unnest(@resource_opts::text[]) AS resource_opts, unnest(@environs::text[]) AS environ, unnest(@startup_commands::text[]) AS startup_command,
        unnest(@bootstrap_scripts::text[]) AS bootstrap_script, unnest(@callback_urls::text[]) AS callback_url, unnest(@batch_timeouts_ms::bigint[]) AS batch_timeout_ms,
        unnest(@starts_at_us::bigint[]) AS starts_at_us, unnest(@preemptible::boolean[]) AS preemptible, unnest(@mounts::text[]) AS mounts,
        generate_subscripts(@ids::uuid[], 1) AS n
), s AS (
    INSERT INTO sessions (id, name, type, priority, cluster_mode, cluster_size, domain_name, project_id, user_id, access_key,
        resource_group, designated_agents, image_id, image, tag, status, requested_slots, resource_opts, environ, startup_command,
        bootstrap_script, callback_url, batch_timeout_ms, starts_at, preemptible, created_at)
    SELECT a.id, a.name, a.type, a.priority, a.cluster_mode, a.cluster_size, a.domain_name, a.project_id, a.user_id, a.access_key,
        a.resource_group, string_to_array(a.designated_agents, E'\x1f'), a.image_id, a.image, CASE WHEN a.tag <> '' THEN substr(a.tag, 2) END, 'PENDING',
        a.requested_slots::jsonb, a.resource_opts::jsonb, a.environ::jsonb, CASE WHEN a.startup_command <> '' THEN substr(a.startup_command, 2) END,
        CASE WHEN a.bootstrap_script <> '' THEN substr(a.bootstrap_script, 2) END, CASE WHEN a.callback_url <> '' THEN substr(a.callback_url, 2) END,
        nullif(a.batch_timeout_ms, 0), CASE WHEN a.starts_at_us <> 0 THEN timestamptz 'epoch' + a.starts_at_us * interval '1 microsecond' END,
        a.preemptible, now() + a.n * interval '1 microsecond'
    FROM asked a ORDER BY a.n
    ON CONFLICT (access_key, name) WHERE ended_at IS NULL DO NOTHING
    RETURNING sessions.id, sessions.image, sessions.callback_url, sessions.created_at
), kernel AS (
    SELECT unnest(@k_ids::uuid[]) AS id, unnest(@k_sessions::uuid[]) AS session_id, unnest(@k_ranks::integer[]) AS rank, unnest(@k_architectures::text[]) AS architecture,
        unnest(@k_registries::text[]) AS registry, unnest(@k_slots::text[]) AS slots, unnest(@k_service_ports::text[]) AS service_ports,
        unnest(@k_preopen_ports::text[]) AS preopen_ports
), k AS (
    INSERT INTO kernels (id, session_id, cluster_role, cluster_idx, local_rank, cluster_hostname, image, architecture, registry,
        status, requested_slots, service_ports, preopen_ports)
    SELECT u.id, s.id, CASE WHEN u.rank = 0 THEN 'main' ELSE 'sub' END, greatest(u.rank, 1), u.rank,
        CASE WHEN u.rank = 0 THEN 'main1' ELSE 'sub' || u.rank END, s.image, u.architecture, u.registry,
        'PENDING', u.slots::jsonb, u.service_ports::jsonb, string_to_array(u.preopen_ports, E'\x1f')::integer[]
    FROM kernel u JOIN s ON s.id = u.session_id
), m AS (
    INSERT INTO session_mounts (session_id, n, folder_id, name, host, quota_scope, usage_mode, permission, subpath, target, volume_path, owner_uid, owner_gid)
    SELECT s.id, f.n, (f.m->>'folder')::uuid, f.m->>'name', f.m->>'host', f.m->>'scope', f.m->>'usage_mode', f.m->>'permission', f.m->>'subpath',
        f.m->>'target', f.m->>'volume_path', (f.m->>'owner_uid')::integer, (f.m->>'owner_gid')::integer
    FROM asked a JOIN s ON s.id = a.id CROSS JOIN jsonb_array_elements(nullif(a.mounts, '')::jsonb) WITH ORDINALITY AS f(m, n)
), dependency AS (
    SELECT unnest(@d_sessions::uuid[]) AS session_id, unnest(@d_depends_on::uuid[]) AS depends_on
), d AS (
    INSERT INTO session_dependencies (session_id, depends_on) SELECT s.id, o.depends_on FROM dependency o JOIN s ON s.id = o.session_id
), c AS (
    INSERT INTO callbacks (session_id, url, body)
    SELECT s.id, s.callback_url, jsonb_build_object('type', 'session_lifecycle', 'event', 'enqueued', 'session_id', s.id,
        'when', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
    FROM s WHERE s.callback_url IS NOT NULL
), e AS (
    INSERT INTO session_events (session_id, event, to_status) SELECT s.id, 'session_enqueued', 'PENDING' FROM s ORDER BY s.created_at
)
SELECT s.id FROM s;

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
SELECT sqlc.embed(s), p.name AS project_name, u.email AS user_email, u.full_name AS user_full_name, u.role AS owner_role,
    mounts_of_session(s.id)::jsonb AS mounts
FROM sessions s JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id
WHERE s.id = ANY(@ids::uuid[]);

-- name: KernelViews :many
SELECT k.id, k.session_id, k.cluster_role, k.cluster_idx, k.local_rank, k.cluster_hostname, k.image, k.architecture, k.registry, k.agent_id,
       a.addr AS agent_addr, k.generation, k.status, k.status_info, k.status_data, k.status_changed, k.deadline, k.requested_slots, k.container_id,
       k.exit_code, k.signal, k.oom_killed, k.service_ports, k.preopen_ports, k.created_at, k.scheduled_at, k.started_at, k.ended_at, k.last_stat
FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id
WHERE k.session_id = ANY(@sessions::uuid[]) OR k.id = ANY(@kernels::uuid[])
ORDER BY k.session_id, k.local_rank;
