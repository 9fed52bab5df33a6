-- name: RegisterAgent :one
-- The epoch grows with every registration; a returning agent keeps its group and its switch.
INSERT INTO agents AS a (id, status, region, resource_group, addr, version, boot_id, certificate_serial, epoch)
VALUES (@id, 'ALIVE', @region, @resource_group, @addr, @version, @boot_id, @serial, sqlc.arg(highest_epoch)::bigint + 1)
ON CONFLICT (id) DO UPDATE SET status = 'ALIVE', region = excluded.region, addr = excluded.addr, version = excluded.version,
    status_changed = CASE WHEN a.status = 'ALIVE' THEN a.status_changed ELSE now() END,
    lost_at = NULL, last_seen = now(), boot_id = excluded.boot_id, certificate_serial = excluded.certificate_serial,
    epoch = greatest(a.epoch, sqlc.arg(highest_epoch)::bigint) + 1, facts_revision = 0
RETURNING epoch;

-- name: LockAgent :one
SELECT id, status, epoch FROM agents WHERE id = $1 FOR UPDATE;

-- name: AgentEpochs :many
-- suspect: sessions have failed there since the last one that started; quarantined: so many that no more are placed there.
SELECT id, epoch, (trial <> '{}')::boolean AS suspect, (trial ? 'since')::boolean AS quarantined FROM agents WHERE id = ANY(@ids::text[]);

-- name: SetAgentFacts :execrows
UPDATE agents SET architecture = @architecture, capacity = @capacity, slot_kinds = @slot_kinds, devices = @devices, broken_devices = @broken_devices,
    engine = @engine, engine_ok = @engine_ok, engine_error = @engine_error, warnings = @warnings, hung_volumes = @hung_volumes,
    disk_problem = @disk_problem, conditions = @conditions,
    data_address = @data_address, data_socket = @data_socket, network_address = @network_address,
    tunnel_key = @tunnel_key, tunnel_port = @tunnel_port, tunnel_problem = @tunnel_problem,
    facts_revision = @facts_revision, last_seen = now()
WHERE id = @id AND epoch = @epoch AND facts_revision < @facts_revision;

-- name: OthersTunnelKey :one
-- Whether another agent has this key of encrypted tunnels.
SELECT EXISTS (SELECT 1 FROM agents WHERE tunnel_key = @tunnel_key AND tunnel_key <> '' AND id <> @id)::boolean AS taken;

-- name: AgentConditions :one
-- What is known of an agent's conditions, under its lock, and the database's clock.
SELECT conditions, now()::timestamptz AS at FROM agents WHERE id = @id FOR NO KEY UPDATE;

-- name: LockTrial :one
-- The agent's trial under its lock, and the database's clock.
SELECT trial, now()::timestamptz AS at FROM agents WHERE id = @id FOR NO KEY UPDATE;

-- name: OtherTrials :many
-- The trials of other agents on which sessions fail.
SELECT id, trial FROM agents WHERE id <> @id AND trial <> '{}' ORDER BY id LIMIT 1000;

-- name: SetTrial :exec
UPDATE agents SET trial = @trial WHERE id = @id;

-- name: EndTrials :many
-- A session has started on these agents.
UPDATE agents SET trial = '{}' WHERE id = ANY(@ids::text[]) AND trial <> '{}' RETURNING id;
-- name: NoteDeliveries :exec
-- How far agents have been told what they should do. Written by the manager that an agent is connected to.
WITH told AS (
    SELECT a.id, d.age_ms FROM agents a
    JOIN (SELECT unnest(@ids::text[]) AS id, unnest(@ages_ms::bigint[]) AS age_ms) d ON d.id = a.id ORDER BY a.id FOR UPDATE OF a
)
UPDATE agents SET orders_at = greatest(orders_at, now() - told.age_ms * interval '1 millisecond') FROM told WHERE agents.id = told.id;

-- name: Undelivered :many
-- Since when agents have not been told of something they should do, where that is long ago.
SELECT k.agent_id::text AS agent_id, min(k.status_changed)::timestamptz AS since FROM kernels k JOIN agents a ON a.id = k.agent_id
WHERE k.agent_id = ANY(@agents::text[]) AND k.ended_at IS NULL AND k.status IN ('SCHEDULED', 'TERMINATING')
  AND k.status_changed > a.orders_at AND k.status_changed < now() - @patience::interval
GROUP BY 1;

-- name: UntoldKernel :one
-- Since when an agent has not been told of a kernel that it shall begin; no row when it was told.
SELECT k.status_changed FROM kernels k JOIN agents a ON a.id = k.agent_id
WHERE k.id = @id AND k.status = 'SCHEDULED' AND k.status_changed > a.orders_at;

-- name: SilentAgents :many
SELECT id FROM agents WHERE status = 'ALIVE' AND last_seen < now() - @lease::interval ORDER BY id;

-- name: LoseAgent :execrows
UPDATE agents SET status = 'LOST', status_changed = now(), lost_at = now()
WHERE id = @id AND status = 'ALIVE' AND last_seen < now() - @lease::interval;

-- name: LongLostKernels :many
-- Live kernels of lost agents whose grace is over: that of the agent, or their own when the agent came and went without speaking of them.
SELECT k.agent_id::text AS agent_id, k.session_id, k.id FROM kernels k JOIN agents a ON a.id = k.agent_id
WHERE a.status = 'LOST' AND k.ended_at IS NULL AND k.status <> 'PENDING'
  AND least(a.lost_at, CASE WHEN k.status = 'LOST' THEN k.lost_since END) < now() - @grace::interval ORDER BY a.id, k.session_id, k.id;

-- name: SetSchedulable :execrows
-- Allowing it also ends a quarantine.
UPDATE agents SET schedulable = @schedulable, trial = CASE WHEN @schedulable THEN '{}' ELSE trial END WHERE id = ANY(@ids::text[]);

-- name: LargestAgents :many
-- What the agents of some groups could hold when empty.
SELECT id, resource_group, architecture, status, schedulable, capacity, slot_kinds FROM agents
WHERE resource_group = ANY(@groups::text[]) AND status <> 'TERMINATED';

-- name: AgentShapes :many
-- The same for agents that are alike together, with one's id.
SELECT min(id)::text AS id, resource_group, architecture, status, schedulable, capacity, slot_kinds FROM agents
WHERE resource_group = ANY(@groups::text[]) AND status <> 'TERMINATED'
GROUP BY resource_group, architecture, status, schedulable, capacity, slot_kinds;

-- name: SlotKinds :many
SELECT slot_kinds FROM agents WHERE status <> 'TERMINATED';

-- name: OccupiedByAgent :many
SELECT k.agent_id::text AS agent_id, s.key::text AS slot, sum(s.value::bigint)::bigint AS amount
FROM kernels k, jsonb_each_text(k.requested_slots) s
WHERE k.ended_at IS NULL AND k.agent_id = ANY(@agents::text[])
GROUP BY 1, 2;

-- name: LostAgentsWithLiveKernels :many
SELECT DISTINCT k.agent_id::text FROM kernels k JOIN agents a ON a.id = k.agent_id
WHERE a.status = 'LOST' AND k.ended_at IS NULL AND k.status NOT IN ('LOST', 'TERMINATING', 'PENDING') ORDER BY 1;

-- name: AgentViews :many
SELECT * FROM agents WHERE id = ANY(@ids::text[]);
