-- name: DoctorRows :many
-- Rows that should not be, each with its kind, its object and two words of detail.
SELECT 'kernel-on-dead-agent'::text AS kind, ('kernel ' || k.id)::text AS object, k.status::text AS a, a.id::text AS b
FROM kernels k JOIN agents a ON a.id = k.agent_id
WHERE k.ended_at IS NULL AND k.status <> 'PENDING' AND (a.status = 'TERMINATED' OR a.status = 'LOST' AND a.lost_at < now() - interval '10 minutes')
UNION ALL
SELECT 'missed-deadline', 'kernel ' || k.id, k.status, coalesce(k.agent_id, '') FROM kernels k
WHERE k.ended_at IS NULL AND k.deadline < now() - interval '1 minute'
UNION ALL
SELECT 'stale-removal', 'kernel ' || r.kernel_id, r.reason, r.agent_id FROM kernel_removals r JOIN agents a ON a.id = r.agent_id
WHERE r.created_at < now() - interval '2 minutes' AND (a.status = 'ALIVE' OR r.created_at < now() - interval '1 day')
UNION ALL
SELECT 'callback-stuck', 'session ' || c.session_id, c.last_error, '' FROM callbacks c WHERE c.next_at < now() - interval '5 minutes'
UNION ALL
SELECT 'live-kernel-of-ended', 'kernel ' || k.id, k.status, coalesce(k.agent_id, '') FROM kernels k JOIN sessions s ON s.id = k.session_id
WHERE k.ended_at IS NULL AND s.ended_at IS NOT NULL
UNION ALL
SELECT 'agent-engine-not-ok', 'agent ' || a.id, a.engine_error, '' FROM agents a WHERE a.status = 'ALIVE' AND NOT a.engine_ok AND a.facts_revision > 0
UNION ALL
SELECT 'agent-disk-low', 'agent ' || a.id, a.disk_problem, '' FROM agents a WHERE a.status = 'ALIVE' AND a.disk_problem <> ''
UNION ALL
SELECT 'image-alias-to-nobody', 'alias ' || al.alias, i.reference, '' FROM image_aliases al JOIN images i ON i.id = al.image_id WHERE i.status <> 'ALIVE'
UNION ALL
SELECT 'image-differs', 'image ' || x.reference, x.agent_id, x.digest FROM agent_images x JOIN agents a ON a.id = x.agent_id AND a.status = 'ALIVE'
JOIN images i ON i.reference = x.reference AND i.architecture = x.architecture AND i.status = 'ALIVE'
WHERE i.digest <> x.digest AND i.origin = 'import'
ORDER BY 1, 2 LIMIT 500;

-- name: LiveStatuses :many
SELECT s.id, s.name, s.status, ARRAY(SELECT CASE WHEN k.status = 'LOST' THEN coalesce(k.status_before_lost, 'RUNNING') ELSE k.status END FROM kernels k WHERE k.session_id = s.id ORDER BY k.local_rank)::text[] AS kernels
FROM sessions s WHERE s.ended_at IS NULL ORDER BY s.created_at;
