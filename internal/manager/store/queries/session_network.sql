-- Networks of sessions; written by package session/scheduling under LockPlacements.

-- name: FreeSessionNetworks :exec
-- Takes networks away that nobody holds any more: their sessions have ended, and all agents have let go of their kernels.
DELETE FROM session_networks n USING sessions s
WHERE s.id = n.session_id AND s.ended_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM kernels k WHERE k.session_id = s.id AND k.ended_at IS NULL)
  AND NOT EXISTS (SELECT 1 FROM kernel_removals r WHERE r.session_id = s.id);

-- name: SessionNetworks :many
SELECT number, subnet, session_id FROM session_networks ORDER BY number;

-- name: AddSessionNetwork :exec
INSERT INTO session_networks (number, subnet, session_id, encrypted) VALUES (@number, @subnet, @session_id, @encrypted);

-- name: GroupsWithEncryptedNetworks :many
SELECT name FROM resource_groups WHERE encrypted_networks;

-- name: GroupsWithHostNetwork :many
-- The resource groups whose sessions may run in the network of their hosts. An egress policy could not be kept there.
SELECT name FROM resource_groups WHERE use_host_network AND egress = 'open';
