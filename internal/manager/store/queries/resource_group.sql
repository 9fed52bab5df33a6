-- Resource groups are written by administrators alone.

-- name: InsertResourceGroup :execrows
INSERT INTO resource_groups (name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: LockResourceGroup :one
SELECT * FROM resource_groups WHERE name = $1 FOR UPDATE;

-- name: UpdateResourceGroup :exec
UPDATE resource_groups SET description = @description, is_active = @is_active, is_public = @is_public, driver = @driver,
    driver_opts = @driver_opts, scheduler = @scheduler, scheduler_opts = @scheduler_opts, use_host_network = @use_host_network,
    wsproxy_addr = @wsproxy_addr, wsproxy_api_token_sealed = @wsproxy_api_token_sealed, egress = @egress, encrypted_networks = @encrypted_networks
WHERE name = @name;

-- name: AgentsOfGroupSessions :many
-- The agents that hold live kernels of a group's sessions.
SELECT DISTINCT k.agent_id::text FROM kernels k JOIN sessions s ON s.id = k.session_id
WHERE s.resource_group = @name AND s.ended_at IS NULL AND k.ended_at IS NULL AND k.agent_id IS NOT NULL;

-- name: ResourceGroupUses :one
-- What still names a group: it cannot go before them.
SELECT (SELECT count(*) FROM agents a WHERE a.resource_group = @name)::bigint AS agents,
       (SELECT count(*) FROM sessions s WHERE s.resource_group = @name AND s.ended_at IS NULL)::bigint AS live_sessions,
       (SELECT count(*) FROM sessions s WHERE s.resource_group = @name AND s.ended_at IS NOT NULL)::bigint AS ended_sessions;

-- name: DeleteResourceGroup :execrows
DELETE FROM resource_groups WHERE name = $1;

-- name: AllowGroupForKeypair :exec
INSERT INTO resource_groups_for_keypairs (resource_group, access_key) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: DisallowGroupForDomain :execrows
-- Without a group all of the domain's associations go; so it is with the next two.
DELETE FROM resource_groups_for_domains WHERE domain_name = @domain_name AND (resource_group = sqlc.narg('resource_group') OR sqlc.narg('resource_group')::text IS NULL);

-- name: DisallowGroupForProject :execrows
DELETE FROM resource_groups_for_projects WHERE project_id = @project_id AND (resource_group = sqlc.narg('resource_group') OR sqlc.narg('resource_group')::text IS NULL);

-- name: DisallowGroupForKeypair :execrows
DELETE FROM resource_groups_for_keypairs WHERE access_key = @access_key AND (resource_group = sqlc.narg('resource_group') OR sqlc.narg('resource_group')::text IS NULL);

-- name: MoveAgentToGroup :execrows
UPDATE agents SET resource_group = @resource_group WHERE id = @id;

-- name: LiveSessionsOnAgent :many
-- Whose work an agent still holds, the oldest first.
SELECT s.id, s.name, s.type, s.status, s.status_info, u.email AS user_email, s.access_key, s.created_at, s.batch_timeout_ms, s.started_at, s.resource_group,
       count(k.id)::bigint AS kernels, array_agg(k.allocation::text)::text[] AS allocations
FROM kernels k JOIN sessions s ON s.id = k.session_id JOIN users u ON u.id = s.user_id
WHERE k.agent_id = @agent_id::text AND k.ended_at IS NULL GROUP BY s.id, u.email ORDER BY s.created_at, s.id LIMIT @max_rows;

-- name: CountLiveSessionsOnAgent :one
SELECT count(DISTINCT session_id)::bigint FROM kernels WHERE agent_id = @agent_id::text AND ended_at IS NULL;

-- name: LockKeypairPolicy :one
SELECT * FROM keypair_resource_policies WHERE name = $1 FOR UPDATE;

-- name: UpdateKeypairPolicy :exec
UPDATE keypair_resource_policies SET default_for_unspecified = @default_for_unspecified, total_resource_slots = @total_resource_slots,
    max_session_lifetime = @max_session_lifetime, max_concurrent_sessions = @max_concurrent_sessions,
    max_concurrent_sftp_sessions = @max_concurrent_sftp_sessions, max_pending_session_count = @max_pending_session_count,
    max_pending_session_resource_slots = @max_pending_session_resource_slots, max_priority = @max_priority,
    max_containers_per_session = @max_containers_per_session, idle_timeout = @idle_timeout, allowed_vfolder_hosts = @allowed_vfolder_hosts
WHERE name = @name;
