-- name: HoldAgent :execrows
-- Notes which manager an agent registered with; an older registration never replaces a newer one.
INSERT INTO agent_connections AS c (agent_id, manager, epoch, connected) VALUES (@agent_id, @manager, @epoch, true)
ON CONFLICT (agent_id) DO UPDATE SET manager = excluded.manager, epoch = excluded.epoch, connected = true WHERE c.epoch < excluded.epoch;

-- name: ReleaseAgent :execrows
-- Notes that a registration is over; the manager stays known as the last one.
UPDATE agent_connections SET connected = false WHERE agent_id = @agent_id AND epoch = @epoch;

-- name: AgentHolder :one
SELECT manager FROM agent_connections WHERE agent_id = @agent_id;

-- name: ConnectedAgent :one
-- From where an agent is connected to any manager; no row when it is not, or was silent for longer than the lease.
SELECT a.addr FROM agent_connections c JOIN agents a ON a.id = c.agent_id
WHERE c.agent_id = @agent_id AND c.connected AND a.last_seen > now() - @lease::interval;
