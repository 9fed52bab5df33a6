-- How the scheduler's plan is committed, and who leads. Occupancy is always derived from live kernels; what is kept in memory is read by change.sql.

-- name: OpenDependencies :many
-- Dependencies that are not satisfied, with how they stand.
SELECT d.session_id, o.id, o.name, o.status, o.result FROM session_dependencies d JOIN sessions o ON o.id = d.depends_on
WHERE d.session_id = ANY(@sessions::uuid[]) AND NOT (o.status = 'TERMINATED' AND o.result = 'SUCCESS') ORDER BY d.session_id, o.id;

-- name: GroupPolicies :many
SELECT name, is_active, scheduler, scheduler_opts, encrypted_networks FROM resource_groups ORDER BY name;

-- name: LockAgents :many
-- Locked in the order of their ids, so that no two commits wait for each other.
SELECT id, status, schedulable, devices, engine_ok, engine_error, disk_problem, hung_volumes, conditions, trial, now()::timestamptz AS at FROM agents WHERE id = ANY(@ids::text[]) ORDER BY id FOR UPDATE;

-- name: HeldOnAgents :many
SELECT h.agent_id::text AS agent_id, h.allocation::jsonb AS allocation FROM held_devices h WHERE h.agent_id = ANY(@ids::text[]);

-- name: ExplainPending :exec
-- Readers of live events are told of the queue of each resource group, whatever the number of its sessions.
WITH explained AS (
    UPDATE sessions s SET status_info = told.info, status_data = s.status_data || told.data
    FROM (SELECT unnest(@infos::text[]) AS info, unnest(@datas::jsonb[]) AS data, unnest(@ids::uuid[]) AS id) AS told
    WHERE s.id = told.id AND s.status = 'PENDING' RETURNING s.resource_group)
INSERT INTO object_changes (noun, id, kind) SELECT DISTINCT 'queue', e.resource_group, 'changed' FROM explained e;

-- name: OverdueBatches :many
-- The runner and the agent enforce the timeout first; this is the guard behind them.
SELECT id FROM sessions WHERE ended_at IS NULL AND type = 'batch' AND status = 'RUNNING' AND batch_timeout_ms > 0
  AND started_at + (batch_timeout_ms * interval '1 millisecond') + @allowance::interval < now() ORDER BY id LIMIT 100;

-- name: TakeLeadership :one
-- Every new leader gets a larger token; commits of an older one are refused.
INSERT INTO cluster_settings (key, value) VALUES ('leader', jsonb_build_object('token', 1, 'holder', @holder::text))
ON CONFLICT (key) DO UPDATE SET value = jsonb_build_object('token', (cluster_settings.value->>'token')::bigint + 1, 'holder', @holder::text), updated_at = now()
RETURNING (value->>'token')::bigint AS token;

-- name: LeaderToken :one
-- Held until the commit. A leader that stalls in the middle must not keep the next one from taking over: PostgreSQL ends
-- its transaction soon.
SELECT (value->>'token')::bigint AS token, set_config('idle_in_transaction_session_timeout', '3s', true)::text AS timeout
FROM cluster_settings WHERE key = 'leader' FOR SHARE;

-- name: OverrideStop :exec
-- A kernel that was stopped to start again later ends for good.
UPDATE kernels SET stop_reason = @reason WHERE id = @id AND status = 'TERMINATING';
