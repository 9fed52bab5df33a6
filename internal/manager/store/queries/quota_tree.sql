-- Hierarchical quotas: rules, where projects lie, and what counts against them.

-- name: LockQuotas :exec
-- Changes of rules and of where projects lie take turns: a promise is checked against all others.
SELECT pg_advisory_xact_lock(hashtextextended('berth quotas', 0));

-- name: QuotaRules :many
SELECT sqlc.embed(q), coalesce(u.email, '')::text AS email FROM quotas q LEFT JOIN users u ON u.id = q.user_id
ORDER BY q.domain_name, q.project_id, q.user_id, q.resource_group;

-- name: QuotaPlaces :many
-- Where projects lie that have a rule, lie in another project, or have others in them.
SELECT p.id, p.name, p.domain_name, p.parent_id FROM projects p
WHERE p.parent_id IS NOT NULL OR p.id IN (SELECT c.parent_id FROM projects c WHERE c.parent_id IS NOT NULL)
   OR p.id IN (SELECT q.project_id FROM quotas q WHERE q.project_id IS NOT NULL);

-- name: LiveSlotsOfDomains :many
SELECT s.domain_name, s.project_id, s.user_id, s.resource_group, v.key::text AS slot, sum(v.value::bigint)::bigint AS amount
FROM sessions s JOIN kernels k ON k.session_id = s.id, jsonb_each_text(k.requested_slots) v
WHERE s.ended_at IS NULL AND s.domain_name = ANY(@domains::text[]) AND s.type <> 'system' AND k.ended_at IS NULL AND k.status <> 'PENDING'
  AND s.status IN ('SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','TERMINATING') GROUP BY 1, 2, 3, 4, 5;

-- name: WaitingSlotsOfDomains :many
-- What sessions ask for that wait for nothing but room and limits.
SELECT s.domain_name, s.project_id, s.user_id, s.resource_group, v.key::text AS slot, sum(v.value::bigint)::bigint AS amount
FROM sessions s JOIN resource_groups g ON g.name = s.resource_group, jsonb_each_text(s.requested_slots) v
WHERE s.status = 'PENDING' AND s.ended_at IS NULL AND s.domain_name = ANY(@domains::text[]) AND s.type <> 'system' AND g.is_active
  AND (s.starts_at IS NULL OR s.starts_at <= now())
  AND NOT EXISTS (SELECT 1 FROM session_dependencies d JOIN sessions o ON o.id = d.depends_on WHERE d.session_id = s.id AND NOT (o.status = 'TERMINATED' AND o.result = 'SUCCESS'))
GROUP BY 1, 2, 3, 4, 5;

-- name: SetQuotaRule :exec
INSERT INTO quotas (id, domain_name, project_id, user_id, resource_group, guaranteed, most, weight)
VALUES (@id, @domain_name, @project_id, @user_id, @resource_group, @guaranteed, @most, @weight)
ON CONFLICT (domain_name, project_id, user_id, resource_group)
    DO UPDATE SET guaranteed = excluded.guaranteed, most = excluded.most, weight = excluded.weight, modified_at = now();

-- name: UnsetQuotaRule :execrows
DELETE FROM quotas WHERE id = $1;

-- name: PlaceProject :exec
UPDATE projects SET parent_id = @parent_id, modified_at = now() WHERE id = @id;

-- name: DomainTotals :many
SELECT name, total_resource_slots FROM domains WHERE total_resource_slots <> '{}';

-- name: ProjectInParent :one
-- A project by its name directly below a domain (no parent) or another project.
SELECT * FROM projects WHERE domain_name = @domain_name AND name = @name AND parent_id IS NOT DISTINCT FROM sqlc.narg('parent_id')::uuid;
