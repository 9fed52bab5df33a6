-- Moves. Each is guarded by the status it leaves (no row: somebody else was faster), and writes its event in the
-- same statement. Callers hold the session's row lock, so events of one session are in order.

-- name: RequeueKernel :one
-- Gives a kernel back to the queue as its next generation. Nothing of its placement stays.
WITH moved AS (
    UPDATE kernels SET status = 'PENDING', status_changed = now(), status_info = @reason, status_before_lost = NULL, lost_since = NULL,
        deadline = NULL, agent_id = NULL, allocation = '{}', generation = generation + 1, desired = 'run', force_stop = false,
        stop_reason = '', container_id = NULL, host_endpoint = '', scheduled_at = NULL, started_at = NULL, absences = 0,
        exit_code = NULL, signal = NULL, oom_killed = false, log = NULL
    WHERE id = @id AND status = @from_status::text AND generation = @generation
    RETURNING id, session_id
)
INSERT INTO session_events (session_id, kernel_id, event, from_status, to_status, reason, detail)
SELECT m.session_id, m.id, '', @from_status::text, 'PENDING', @reason, @detail::text FROM moved m
RETURNING seq;

-- name: NextGeneration :execrows
-- A restart in place: the same agent and devices, a fresh container.
UPDATE kernels SET generation = generation + 1, container_id = NULL, host_endpoint = '', exit_code = NULL, signal = NULL, oom_killed = false, log = NULL
WHERE id = @id AND generation = @generation AND status = 'RESTARTING';

-- name: StopKernel :execrows
-- Asks again, or with force, for the end of a kernel that is TERMINATING already.
UPDATE kernels SET force_stop = true, deadline = now() + @deadline::interval WHERE id = @id AND status = 'TERMINATING' AND NOT force_stop;

-- name: RemoveKernel :exec
-- The agent must remove this generation although the row has moved on.
-- Its slots stay taken until the agent says that it is gone.
INSERT INTO kernel_removals (kernel_id, generation, agent_id, session_id, reason, allocation)
VALUES (@kernel_id, @generation, @agent_id, @session_id, @reason, coalesce((SELECT k.allocation FROM kernels k
    WHERE k.id = @kernel_id AND k.generation = @generation AND k.agent_id = @agent_id), '{}')) ON CONFLICT DO NOTHING;

-- name: Removed :exec
-- The agents no longer have these.
DELETE FROM kernel_removals r USING (SELECT unnest(@kernels::uuid[]) AS kernel_id, unnest(@agents::text[]) AS agent_id, unnest(@generations::bigint[]) AS generation) AS gone
WHERE r.agent_id = gone.agent_id AND r.kernel_id = gone.kernel_id AND r.generation <= gone.generation;

-- name: MissRemovals :exec
-- A full report that lacked a kernel of which the agent had been told is counted, the second one is believed.
WITH missed AS (
    UPDATE kernel_removals SET absences = absences + 1
    WHERE agent_id = @agent_id AND kernel_id = ANY(@absent::uuid[]) AND absences < 1 RETURNING 1
)
DELETE FROM kernel_removals r WHERE r.agent_id = @agent_id AND r.kernel_id = ANY(@absent::uuid[]) AND r.absences >= 1;

-- name: AddFailedAgent :exec
-- charge is 0 when the failure does not use up an attempt.
UPDATE sessions SET attempts = attempts + @charge::integer,
    failed_agents = CASE WHEN @agent_id::text = ANY(failed_agents) THEN failed_agents ELSE failed_agents || @agent_id::text END
WHERE id = @id;

-- name: SetAbsences :exec
UPDATE kernels SET absences = @absences WHERE id = ANY(@ids::uuid[]);

-- name: KeepLog :exec
UPDATE kernels SET log = @log, exit_code = coalesce(exit_code, sqlc.narg('exit_code')::integer),
    signal = coalesce(signal, sqlc.narg('signal')::integer), oom_killed = oom_killed OR @oom_killed::boolean
WHERE id = @id AND log IS NULL;

-- name: ExtendPull :execrows
-- Progress moves the deadline of a pull, at most once in a few seconds, because it is a write.
UPDATE kernels SET deadline = now() + @extension::interval, status_data = status_data || @progress::jsonb
WHERE id = @id AND generation = @generation AND agent_id = @agent_id::text AND status = 'PULLING'
  AND status_data->'pull' IS DISTINCT FROM @progress::jsonb->'pull'
  AND deadline < now() + @least::interval;

-- name: KernelsOfAgent :many
SELECT id, session_id, generation, status, absences FROM kernels WHERE agent_id = @agent_id::text AND ended_at IS NULL ORDER BY session_id, id;

-- name: KernelsByID :many
SELECT k.id, k.session_id, k.generation, k.agent_id, k.status, k.status_info, k.desired, k.absences, (k.log IS NOT NULL)::boolean AS has_log,
       (k.started_at IS NOT NULL)::boolean AS has_started,
       EXISTS (SELECT 1 FROM kernel_removals r WHERE r.kernel_id = k.id)::boolean AS has_removals
FROM kernels k WHERE k.id = ANY((SELECT @ids::uuid[])::uuid[]);

-- name: NoteWait :exec
-- What a kernel on its way waits for, or what its owner should know of one that runs, in its agent's words, until it or its
-- session moves.
WITH k AS (
    UPDATE kernels SET status_info = @info WHERE kernels.id = @id AND status_info <> @info
        AND status IN ('SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING') RETURNING session_id
)
UPDATE sessions s SET status_info = @info FROM k WHERE s.id = k.session_id AND s.ended_at IS NULL;

-- name: NoteOutOfMemory :exec
-- Processes of a kernel that runs were killed for want of memory.
UPDATE kernels SET oom_killed = true WHERE id = @id;

-- name: SpareDeadlines :exec
-- Deadlines that passed, or will soon, while nobody could keep them: each is at least so long from now.
UPDATE kernels SET deadline = now() + @least::interval WHERE ended_at IS NULL AND deadline < now() + @least::interval;

-- name: SpareLeases :exec
-- Agents could not renew their leases: each has at least the lease from now, and a lost one so much of its grace.
UPDATE agents SET last_seen = CASE status WHEN 'ALIVE' THEN now() ELSE last_seen END,
    lost_at = lost_at + greatest(interval '0', now() - CAST(@grace AS interval) + CAST(@lease AS interval) - lost_at)
WHERE status IN ('ALIVE', 'LOST');

-- name: SpareLost :exec
-- The same for kernels that were LOST before their agent was lost last.
UPDATE kernels SET lost_since = now() - CAST(@grace AS interval) + CAST(@lease AS interval)
WHERE status = 'LOST' AND lost_since < now() - CAST(@grace AS interval) + CAST(@lease AS interval);

-- name: OverdueKernels :many
SELECT DISTINCT session_id FROM kernels WHERE deadline < now() AND ended_at IS NULL ORDER BY session_id LIMIT @max_rows;

-- name: DesiredKernels :many
-- What is wanted of agents, without the specifications, but for what may change while a kernel runs. Which kernels these are is said once
-- (mine): an agent ends those that are missing here. What is the same for all kernels of a session is made once for each session (all_of).
WITH mine AS MATERIALIZED (
    SELECT k.id, k.session_id FROM kernels k WHERE k.agent_id = ANY(@agents::text[]) AND k.ended_at IS NULL AND k.status <> 'PENDING'
), all_of AS MATERIALIZED (
    SELECT s.id, withheld_of_session(s.id) AS withheld, ssh_keys_of(s.access_key) AS ssh_keys,
           CASE WHEN EXISTS (SELECT FROM session_networks n WHERE n.session_id = s.id) THEN members_of_session(s.id) ELSE '[]' END AS members,
           CASE WHEN s.cluster_size > 1 AND s.resource_opts->>'network' = 'host' THEN host_peers_of_session(s.id) ELSE '[]' END AS host_peers
    FROM sessions s WHERE s.id IN (SELECT mine.session_id FROM mine)
)
SELECT k.agent_id::text AS agent_id, k.id, k.session_id, k.generation, k.desired, k.force_stop, k.stop_reason, g.egress,
       a.withheld::jsonb AS withheld, a.ssh_keys::text[] AS ssh_keys,
       n.number AS network_number, n.subnet AS network_subnet, coalesce(n.encrypted, false)::boolean AS network_encrypted,
       a.members::jsonb AS network_members, (s.cluster_size > 1 AND s.status = 'RUNNING')::boolean AS all_run, a.host_peers::jsonb AS host_peers
FROM mine JOIN kernels k ON k.id = mine.id JOIN sessions s ON s.id = k.session_id JOIN all_of a ON a.id = s.id
JOIN resource_groups g ON g.name = s.resource_group LEFT JOIN session_networks n ON n.session_id = s.id
ORDER BY k.created_at, k.id;

-- name: KernelSpecs :many
-- Planned once for a connection, see ledger.sql. What is the same for all kernels of a session is made once for each session (all_of).
WITH all_of AS MATERIALIZED (
    SELECT s.id, CASE WHEN s.cluster_size > 1 THEN roles_of_session(s.id) ELSE 'main:1' END AS replicas,
           ssh_keys_of(s.access_key) AS ssh_keys, mounts_of_session(s.id) AS mounts
    FROM sessions s WHERE s.id IN (SELECT k.session_id FROM kernels k WHERE k.id = ANY((SELECT @ids::uuid[])::uuid[]))
)
SELECT k.id, k.session_id, k.generation, k.requested_slots, k.allocation,
       k.cluster_role, k.cluster_idx, k.local_rank, k.cluster_hostname, k.image, k.preopen_ports,
       s.name AS session_name, s.type AS session_type, s.cluster_size, s.environ, s.resource_opts, s.startup_command,
       s.bootstrap_script, s.batch_timeout_ms, s.access_key,
       u.id AS user_id, u.email AS user_email, u.full_name AS user_name, u.container_uid, u.container_main_gid, u.container_gids, u.sudo_session_enabled,
       coalesce(nullif(k.image_digest, ''), CASE WHEN k.image_id IS NULL AND k.image = s.image THEN nullif(s.image_digest, '') END, i.digest, '')::text
       AS image_digest, k.shmem_bytes, a.replicas::text AS replicas, i.labels AS image_labels, i.registry_type AS image_registry_type,
       kp.dotfiles AS keypair_dotfiles, a.ssh_keys::text[] AS ssh_keys, d.dotfiles AS domain_dotfiles, p.dotfiles AS project_dotfiles,
       a.mounts::jsonb AS mounts, o.bootstrap_script AS role_bootstrap_script, o.environ AS role_environ
FROM kernels k JOIN sessions s ON s.id = k.session_id JOIN all_of a ON a.id = s.id JOIN users u ON u.id = s.user_id
JOIN keypairs kp ON kp.access_key = s.access_key JOIN domains d ON d.name = s.domain_name JOIN projects p ON p.id = s.project_id
LEFT JOIN images i ON i.id = CASE WHEN k.image_id IS NULL AND k.image = s.image THEN s.image_id ELSE k.image_id END
LEFT JOIN session_roles o ON o.session_id = k.session_id AND o.role = k.cluster_role
WHERE k.id = ANY((SELECT @ids::uuid[])::uuid[]);

-- name: RemovalsOfAgents :many
SELECT agent_id, kernel_id, generation, session_id, reason FROM kernel_removals WHERE agent_id = ANY((SELECT @agents::text[])::text[])
ORDER BY kernel_id, generation DESC;

-- name: ReviveAgents :many
-- Connected agents renew their lease, those that had lost it are alive again and returned.
WITH was AS (SELECT a.id, a.status FROM agents a WHERE a.id = ANY(@ids::text[]) AND a.status IN ('ALIVE', 'LOST') ORDER BY a.id FOR UPDATE)
UPDATE agents SET last_seen = now(), status = 'ALIVE', lost_at = NULL,
    status_changed = CASE WHEN was.status = 'LOST' THEN now() ELSE agents.status_changed END
FROM was WHERE agents.id = was.id
RETURNING agents.id, (was.status = 'LOST')::boolean AS was_lost;

-- name: SessionOfKernel :one
SELECT session_id FROM kernels WHERE id = $1;
