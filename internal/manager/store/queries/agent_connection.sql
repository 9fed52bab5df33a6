-- name: HoldAgent :execrows
-- Notes which manager an agent registered with; an older registration never replaces a newer one.
INSERT INTO agent_connections AS c (agent_id, manager, epoch) VALUES (@agent_id, @manager, @epoch)
ON CONFLICT (agent_id) DO UPDATE SET manager = excluded.manager, epoch = excluded.epoch WHERE c.epoch < excluded.epoch;

-- name: AgentHolder :one
SELECT manager FROM agent_connections WHERE agent_id = @agent_id;
