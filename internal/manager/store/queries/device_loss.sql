-- Running kernels whose devices broke.

-- name: LostDevices :many
-- Running kernels that hold a broken device and whose owner has not been told, with the broken devices of their agents.
SELECT k.id, k.session_id, k.agent_id::text AS agent_id, k.allocation, a.broken_devices
FROM agents a JOIN kernels k ON k.agent_id = a.id
WHERE a.broken_devices <> '[]' AND k.ended_at IS NULL AND k.status = 'RUNNING' AND k.told_loss < k.generation
  AND EXISTS (SELECT 1 FROM jsonb_array_elements(a.broken_devices) d WHERE k.allocation->(d->>'slot') ? (d->>'id'))
ORDER BY k.session_id, k.local_rank LIMIT @max_rows;

-- name: TellDeviceLost :execrows
-- Tells the owner of a session that a running kernel lost a device, unless that was told of this start of the kernel.
WITH lost AS (
    UPDATE kernels k SET told_loss = k.generation
    WHERE k.id = @kernel_id AND k.generation = @generation AND k.status = 'RUNNING' AND k.told_loss < k.generation
    RETURNING k.session_id
)
INSERT INTO session_events (session_id, event, from_status, to_status, reason, detail, domain_name)
SELECT s.id, 'session_device_lost', s.status, s.status, 'device-lost', @detail::text, s.domain_name
FROM sessions s JOIN lost ON lost.session_id = s.id;

-- name: UseRetry :execrows
-- Counts one more start of a batch session after the loss of a device, and notes the agent.
UPDATE sessions SET retried = retried + 1,
    failed_agents = CASE WHEN @agent_id::text = ANY(failed_agents) THEN failed_agents ELSE failed_agents || @agent_id::text END
WHERE id = @id AND retried < retries;
