-- name: LiveSessionByName :one
SELECT id, name, image, status FROM sessions WHERE access_key = $1 AND name = $2 AND ended_at IS NULL;

-- name: SessionOwner :one
SELECT s.id, s.name, s.status, s.user_id, s.access_key, s.domain_name, s.project_id, u.role AS owner_role
FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = $1;

-- name: SessionsNamed :many
-- Live sessions whose id or name is the text.
SELECT s.id, s.name, s.status, s.created_at FROM sessions s
WHERE s.access_key = ANY(kin_of_key(@access_key::text)) AND s.ended_at IS NULL AND s.name = @name::text
ORDER BY s.created_at DESC LIMIT 10;

-- name: FailedSessionNamed :one
-- The newest session of a name that ended in ERROR.
SELECT id FROM sessions WHERE access_key = ANY(kin_of_key(@access_key::text)) AND name = @name::text AND status = 'ERROR' ORDER BY created_at DESC LIMIT 1;

-- name: HasRemovals :one
-- Whether an agent must still remove a container of a session.
SELECT EXISTS (SELECT 1 FROM kernels k JOIN kernel_removals r ON r.kernel_id = k.id WHERE k.session_id = @id::uuid);

-- name: MatchSessions :many
SELECT s.id, s.name, s.status, s.created_at FROM sessions s
WHERE s.access_key = ANY(kin_of_key(@access_key::text)) AND s.ended_at IS NULL
  AND (starts_with(s.name, @prefix::text) OR starts_with(s.id::text, @prefix::text)
       OR starts_with(replace(s.id::text, '-', ''), @prefix::text))
ORDER BY s.created_at DESC LIMIT 50;

-- name: DependencyCandidates :many
-- Sessions of one user that a dependency may mean: by id in any state, by name the newest. Neither reads all that have ended.
SELECT DISTINCT ON (ref) r.ref::text AS ref, s.id, s.name, s.status, s.result
FROM unnest(@refs::text[]) AS r(ref)
JOIN sessions s ON s.user_id = @user_id AND s.id = ANY(ARRAY[
    CASE WHEN r.ref ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' THEN r.ref::uuid END,
    (SELECT n.id FROM sessions n WHERE n.user_id = @user_id AND n.name = r.ref ORDER BY n.created_at DESC LIMIT 1)])
ORDER BY ref, (s.id::text = r.ref) DESC, s.created_at DESC;

-- name: DependenciesOf :many
SELECT d.session_id, s.id, s.name, s.status, s.created_at, s.status_changed, s.result
FROM session_dependencies d JOIN sessions s ON s.id = d.depends_on
WHERE d.session_id = ANY(@sessions::uuid[]) ORDER BY s.created_at, s.id;

-- name: DirectDependents :many
SELECT d.session_id FROM session_dependencies d JOIN sessions s ON s.id = d.session_id WHERE d.depends_on = $1
ORDER BY s.created_at, s.id LIMIT 1000;

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

-- name: StoredSessions :many
SELECT id FROM sessions WHERE id = ANY(@ids::uuid[]);

-- name: InsertSessions :many
-- Sessions with their kernels, mounts, dependencies, first events and callbacks, in one statement. The argument is a JSON array of
-- session.newSession. Sessions of whose name a live one exists are left out with all of theirs; the ids of the others are
-- returned. created_at keeps their order.
WITH asked AS (
    SELECT r.n, (r.v->>'id')::uuid AS id, r.v->>'name' AS name, r.v->>'type' AS type, (r.v->>'priority')::integer AS priority,
        r.v->>'cluster_mode' AS cluster_mode, (r.v->>'cluster_size')::integer AS cluster_size, r.v->>'domain_name' AS domain_name,
        (r.v->>'project_id')::uuid AS project_id, (r.v->>'user_id')::uuid AS user_id, r.v->>'access_key' AS access_key,
        r.v->>'resource_group' AS resource_group, (r.v->>'image_id')::uuid AS image_id, r.v->>'image_digest' AS image_digest,
        r.v->>'image' AS image, r.v->>'tag' AS tag,
        ARRAY(SELECT jsonb_array_elements_text(r.v->'designated_agents')) AS designated_agents,
        r.v->'requested_slots' AS requested_slots, r.v->'resource_opts' AS resource_opts, r.v->'environ' AS environ,
        r.v->>'startup_command' AS startup_command, r.v->>'bootstrap_script' AS bootstrap_script, r.v->>'callback_url' AS callback_url,
        (r.v->>'batch_timeout_ms')::bigint AS batch_timeout_ms, (r.v->>'starts_at')::timestamptz AS starts_at,
        (r.v->>'preemptible')::boolean AS preemptible,
        (r.v->>'rerun_on_agent_loss')::boolean AS rerun_on_agent_loss, coalesce((r.v->>'retries')::smallint, 0) AS retries, r.v->'kernels' AS kernels, r.v->'mounts' AS mounts, r.v->'depends_on' AS depends_on,
        r.v->'roles' AS roles,
        (r.v->>'lease_seconds')::integer AS lease_seconds
    FROM jsonb_array_elements(@sessions::jsonb) WITH ORDINALITY AS r(v, n)
), s AS (
    INSERT INTO sessions (id, name, type, priority, cluster_mode, cluster_size, domain_name, project_id, user_id, access_key,
        resource_group, designated_agents, image_id, image_digest, image, tag, status, requested_slots, resource_opts, environ, startup_command,
        bootstrap_script, callback_url, batch_timeout_ms, starts_at, preemptible, rerun_on_agent_loss, retries, created_at)
    SELECT a.id, a.name, a.type, a.priority, a.cluster_mode, a.cluster_size, a.domain_name, a.project_id, a.user_id, a.access_key,
        a.resource_group, a.designated_agents, a.image_id, a.image_digest, a.image, a.tag, 'PENDING', a.requested_slots, a.resource_opts, a.environ,
        a.startup_command, a.bootstrap_script, a.callback_url, a.batch_timeout_ms, a.starts_at, a.preemptible, a.rerun_on_agent_loss,
        a.retries, now() + a.n * interval '1 microsecond'
    FROM asked a ORDER BY a.n
    ON CONFLICT (access_key, name) WHERE ended_at IS NULL DO NOTHING
    RETURNING sessions.id, sessions.image, sessions.callback_url, sessions.created_at, sessions.domain_name
), k AS (
    INSERT INTO kernels (id, session_id, cluster_role, cluster_idx, local_rank, cluster_hostname, image, architecture, registry,
        status, requested_slots, service_ports, preopen_ports, image_id, image_digest, shmem_bytes)
    SELECT (u.v->>'id')::uuid, s.id, coalesce(u.v->>'role', CASE WHEN u.n = 1 THEN 'main' ELSE 'sub' END),
        coalesce((u.v->>'idx')::integer, greatest(u.n - 1, 1)), u.n - 1,
        CASE WHEN u.n = 1 THEN 'main1' ELSE 'sub' || (u.n - 1) END, coalesce(u.v->>'image', s.image), u.v->>'architecture', u.v->>'registry',
        'PENDING', u.v->'requested_slots', u.v->'service_ports',
        ARRAY(SELECT p::integer FROM jsonb_array_elements_text(u.v->'preopen_ports') AS p),
        (u.v->>'image_id')::uuid, coalesce(u.v->>'image_digest', ''), (u.v->>'shmem_bytes')::bigint
    FROM asked a JOIN s ON s.id = a.id CROSS JOIN jsonb_array_elements(a.kernels) WITH ORDINALITY AS u(v, n)
), o AS (
    INSERT INTO session_roles (session_id, role, environ, bootstrap_script)
    SELECT s.id, p.v->>'role', p.v->'environ', p.v->>'bootstrap_script'
    FROM asked a JOIN s ON s.id = a.id CROSS JOIN jsonb_array_elements(a.roles) AS p(v)
), m AS (
    INSERT INTO session_mounts (session_id, n, folder_id, name, host, quota_scope, usage_mode, permission, subpath, target, volume_path, owner_uid, owner_gid)
    SELECT s.id, f.n, (f.m->>'folder')::uuid, f.m->>'name', f.m->>'host', f.m->>'scope', f.m->>'usage_mode', f.m->>'permission', f.m->>'subpath',
        f.m->>'target', f.m->>'volume_path', (f.m->>'owner_uid')::integer, (f.m->>'owner_gid')::integer
    FROM asked a JOIN s ON s.id = a.id CROSS JOIN jsonb_array_elements(a.mounts) WITH ORDINALITY AS f(m, n)
), d AS (
    INSERT INTO session_dependencies (session_id, depends_on)
    SELECT s.id, o.id::uuid FROM asked a JOIN s ON s.id = a.id CROSS JOIN jsonb_array_elements_text(a.depends_on) AS o(id)
), l AS (
    INSERT INTO session_leases (session_id, seconds, until)
    SELECT s.id, a.lease_seconds, now() + make_interval(secs => a.lease_seconds) FROM asked a JOIN s ON s.id = a.id WHERE a.lease_seconds IS NOT NULL
), c AS (
    INSERT INTO callbacks (session_id, url, body)
    SELECT s.id, s.callback_url, jsonb_build_object('type', 'session_lifecycle', 'event', 'enqueued', 'session_id', s.id,
        'when', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'))
    FROM s WHERE s.callback_url IS NOT NULL
), e AS (
    INSERT INTO session_events (session_id, event, to_status, domain_name) SELECT s.id, 'session_enqueued', 'PENDING', s.domain_name FROM s ORDER BY s.created_at
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

-- name: CountLiveSessionsOf :one
SELECT count(*)::bigint FROM sessions WHERE ended_at IS NULL AND status <> 'PENDING' AND user_id = @user_id;

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
       k.exit_code, k.signal, k.oom_killed, k.service_ports, k.preopen_ports, k.created_at, k.scheduled_at, k.started_at, k.ended_at, k.last_stat, k.shmem_bytes,
       s.resource_opts
FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id
     LEFT JOIN sessions s ON s.id = k.session_id AND cardinality(@sessions::uuid[]) = 0 -- who asks by session has those of the session
WHERE k.session_id = ANY(@sessions::uuid[]) OR k.id = ANY(@kernels::uuid[])
ORDER BY k.session_id, k.local_rank;

-- name: AllocationsOfKernels :many
-- What live kernels hold of the devices of their agents.
SELECT id, allocation FROM kernels WHERE id = ANY(@kernels::uuid[]) AND ended_at IS NULL AND status <> 'PENDING' AND agent_id IS NOT NULL;

-- name: RenewLease :execrows
UPDATE session_leases SET seconds = @seconds::integer, until = now() + make_interval(secs => @seconds::integer) WHERE session_id = @session_id;

-- name: DropLease :execrows
DELETE FROM session_leases WHERE session_id = @session_id;

-- name: RenewAllLeases :exec
UPDATE session_leases SET until = greatest(until, now() + make_interval(secs => seconds));

-- name: ExpiredLeases :many
SELECT session_id FROM session_leases WHERE until < now() ORDER BY until LIMIT @max_rows;

-- name: DropLeases :exec
DELETE FROM session_leases WHERE session_id = ANY(@sessions::uuid[]);

-- name: JoinEndedCounts :exec
-- Makes one row of those that count alike, once so many new ones have come.
WITH parts AS (
    DELETE FROM ended_session_counts
    WHERE (SELECT count(*) FROM (SELECT 1 FROM ended_session_counts WHERE NOT joined LIMIT @new_rows::integer) AS new) >= @new_rows::integer
    RETURNING *
)
INSERT INTO ended_session_counts (user_id, domain_name, project_id, access_key, type, status, n, joined)
SELECT user_id, domain_name, project_id, access_key, type, status, sum(n), true FROM parts
GROUP BY user_id, domain_name, project_id, access_key, type, status HAVING sum(n) <> 0;

-- name: JoinListCounts :exec
-- Makes one row of those that count alike, once so many new ones have come.
WITH parts AS (
    DELETE FROM list_counts
    WHERE (SELECT count(*) FROM (SELECT 1 FROM list_counts WHERE NOT joined LIMIT @new_rows::integer) AS new) >= @new_rows::integer
    RETURNING *
)
INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n, joined)
SELECT list, domain_name, owner_role, status, kind, registry, sum(n), true FROM parts
GROUP BY list, domain_name, owner_role, status, kind, registry HAVING sum(n) <> 0;

-- name: SessionsOfLeavers :many
-- Live sessions of users who left a project: those of the project, and those that mount its folders. Sessions that a superadmin makes for
-- somebody who is no member come later.
SELECT DISTINCT s.id, coalesce(p.name, 'that is gone')::text AS project_name
FROM project_leavers l JOIN sessions s ON s.user_id = l.user_id AND s.ended_at IS NULL
LEFT JOIN projects p ON p.id = l.project_id
WHERE s.status <> 'TERMINATING' AND s.created_at < l.left_at + interval '10 seconds'
  AND NOT EXISTS (SELECT 1 FROM project_members m WHERE m.project_id = l.project_id AND m.user_id = l.user_id)
  AND (s.project_id = l.project_id
       OR EXISTS (SELECT 1 FROM session_mounts x JOIN folders f ON f.id = x.folder_id WHERE x.session_id = s.id AND f.project_id = l.project_id))
ORDER BY s.id LIMIT @max_rows;

-- name: ForgetLeavers :one
-- Forgets those who left longer ago than the age, and says how many are left.
WITH gone AS (DELETE FROM project_leavers WHERE left_at < now() - @age::interval)
SELECT count(*) FROM project_leavers WHERE left_at >= now() - @age::interval;

-- name: SessionsToEnd :many
-- Live sessions that nobody has told to end, some of them after the id.
SELECT id FROM sessions WHERE ended_at IS NULL AND status <> 'TERMINATING' AND id > @after::uuid ORDER BY id LIMIT @page;
