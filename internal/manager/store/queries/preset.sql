-- Resource presets, and what one may still start. Occupancy is derived from live kernels, in one statement each.

-- name: ListPresets :many
SELECT * FROM resource_presets WHERE resource_group IS NULL OR @every_group::boolean OR resource_group = ANY(@groups::text[]) ORDER BY name, resource_group NULLS FIRST;

-- name: AddPreset :exec
INSERT INTO resource_presets (id, name, resource_slots, shared_memory, resource_group) VALUES ($1, $2, $3, $4, $5);

-- name: ChangePreset :execrows
UPDATE resource_presets SET name = $2, resource_slots = $3, shared_memory = $4, resource_group = $5 WHERE id = $1;

-- name: DropPreset :execrows
DELETE FROM resource_presets WHERE id = $1;

-- name: OwnerLimits :one
-- What limits a keypair: the policy of its user's main keypair holds for the user with all keypairs, its own besides.
SELECT (k.access_key = m.access_key)::boolean AS is_main, mp.total_resource_slots AS user_slots, (mp.default_for_unspecified = 'LIMITED')::boolean AS user_listed_only,
       kp.total_resource_slots AS keypair_slots, (kp.default_for_unspecified = 'LIMITED')::boolean AS keypair_listed_only
FROM keypairs k JOIN users u ON u.id = k.user_id
JOIN keypairs m ON m.access_key = coalesce(u.main_access_key, k.access_key)
JOIN keypair_resource_policies mp ON mp.name = m.resource_policy JOIN keypair_resource_policies kp ON kp.name = k.resource_policy
WHERE k.access_key = $1;

-- name: LiveUse :many
-- What is held, by those whose limits count. System sessions are private and count nowhere.
SELECT v.key::text AS slot,
       coalesce(sum(v.value::bigint) FILTER (WHERE s.user_id = @user_id::uuid), 0)::bigint AS by_user,
       coalesce(sum(v.value::bigint) FILTER (WHERE s.access_key = @access_key::text), 0)::bigint AS by_keypair,
       coalesce(sum(v.value::bigint) FILTER (WHERE s.project_id = @project_id::uuid), 0)::bigint AS by_project,
       coalesce(sum(v.value::bigint) FILTER (WHERE s.domain_name = @domain_name::text), 0)::bigint AS by_domain
FROM sessions s JOIN kernels k ON k.session_id = s.id, jsonb_each_text(k.requested_slots) v
WHERE s.ended_at IS NULL AND s.type <> 'system' AND (s.domain_name = @domain_name OR s.user_id = @user_id)
  AND k.ended_at IS NULL AND k.status <> 'PENDING' GROUP BY 1;

-- name: RoomOfAgents :many
-- What agents have and what live kernels hold of it.
WITH held AS (
    SELECT k.agent_id, v.key::text AS slot, sum(v.value::bigint) AS amount FROM kernels k, jsonb_each_text(k.requested_slots) v
    WHERE k.ended_at IS NULL AND k.status <> 'PENDING' AND k.agent_id IS NOT NULL GROUP BY 1, 2
), taken AS (
    SELECT agent_id, jsonb_object_agg(slot, amount) AS slots FROM held GROUP BY 1
)
SELECT a.id, a.resource_group, (a.status = 'ALIVE' AND a.schedulable AND a.engine_ok
    AND a.disk_problem = '' AND NOT a.conditions @> '[{"blocks": true}]' AND NOT a.trial ? 'since')::boolean AS usable, a.capacity, coalesce(t.slots, '{}')::jsonb AS occupied
FROM agents a LEFT JOIN taken t ON t.agent_id = a.id WHERE a.resource_group = ANY(@groups::text[]) AND a.status <> 'TERMINATED' ORDER BY a.id;

-- name: DevicesOfAgents :many
-- Devices with what each live kernel holds of them.
SELECT a.id, a.devices, coalesce((SELECT jsonb_agg(h.allocation) FROM held_devices h WHERE h.agent_id = a.id), '[]')::jsonb AS allocations
FROM agents a WHERE a.id = ANY(@ids::text[]) ORDER BY a.id;
