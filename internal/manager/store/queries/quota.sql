-- Limits of owners and what counts against them. What sessions hold is always derived from live rows.

-- name: QuotaFacts :many
-- The limits of some owners. The policy of a user's main keypair limits the user with all keypairs together; another keypair's
-- policy limits in addition what is started with that keypair, and so does a keypair's own limit of sessions. Who is closed is not active and
-- starts nothing; a keypair that was replaced lives on in the one that replaced it.
SELECT 'user'::text AS kind, u.id::text AS id, u.email AS name, coalesce(p.total_resource_slots, '{}')::jsonb AS slots,
       coalesce(p.default_for_unspecified = 'LIMITED', false)::boolean AS listed_only, coalesce(p.max_concurrent_sessions, 0)::integer AS sessions,
       coalesce(p.max_concurrent_sftp_sessions, 0)::integer AS private, (u.status <> 'active')::boolean AS closed
FROM users u LEFT JOIN keypairs k ON k.access_key = u.main_access_key LEFT JOIN keypair_resource_policies p ON p.name = k.resource_policy
WHERE u.id = ANY(@users::uuid[])
UNION ALL
SELECT 'keypair', k.access_key, k.access_key, CASE WHEN o.main THEN '{}' ELSE p.total_resource_slots END, p.default_for_unspecified = 'LIMITED' AND NOT o.main,
       CASE WHEN o.main OR p.max_concurrent_sessions <= 0 THEN coalesce(k.concurrency_limit, 0) ELSE least(p.max_concurrent_sessions, k.concurrency_limit) END,
       CASE WHEN o.main THEN 0 ELSE p.max_concurrent_sftp_sessions END, o.closed
FROM keypairs k JOIN users u ON u.id = k.user_id JOIN keypair_resource_policies p ON p.name = k.resource_policy,
     LATERAL (SELECT coalesce(k.access_key = u.main_access_key, false) AS main, NOT key_lives_on(k.access_key) AS closed) o
WHERE k.access_key = ANY(@keypairs::text[]) AND (NOT o.main OR k.concurrency_limit IS NOT NULL OR o.closed)
UNION ALL
SELECT 'project', p.id::text, p.name, p.total_resource_slots, false, 0, 0, NOT p.is_active FROM projects p WHERE p.id = ANY(@projects::uuid[])
UNION ALL
SELECT 'domain', d.name, d.name, d.total_resource_slots, false, 0, 0, NOT d.is_active FROM domains d WHERE d.name = ANY(@domains::text[]);

-- name: LiveSessionsOfUsers :many
-- Sessions that hold something; system sessions are private.
SELECT user_id, access_key, count(*) FILTER (WHERE type <> 'system')::bigint AS sessions, count(*) FILTER (WHERE type = 'system')::bigint AS private
FROM sessions WHERE ended_at IS NULL AND user_id = ANY(@users::uuid[])
  AND status IN ('SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','TERMINATING') GROUP BY 1, 2;

-- name: WaitingSessionsOfOwners :many
-- How many sessions wait, by all of their owners together.
SELECT user_id, project_id, domain_name, count(*)::bigint AS waiting FROM sessions WHERE ended_at IS NULL AND status = 'PENDING'
  AND (user_id = ANY(@users::uuid[]) OR project_id = ANY(@projects::uuid[]) OR domain_name = ANY(@domains::text[])) GROUP BY 1, 2, 3;

-- name: LiveSlotsOfUsers :many
SELECT s.user_id, s.access_key, v.key::text AS slot, sum(v.value::bigint)::bigint AS amount
FROM sessions s JOIN kernels k ON k.session_id = s.id, jsonb_each_text(k.requested_slots) v
WHERE s.ended_at IS NULL AND s.user_id = ANY(@users::uuid[]) AND s.type <> 'system' AND k.ended_at IS NULL AND k.status <> 'PENDING'
  AND s.status IN ('SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','TERMINATING') GROUP BY 1, 2, 3;

-- name: LiveSlotsOfTenants :many
SELECT s.project_id, s.domain_name, v.key::text AS slot, sum(v.value::bigint)::bigint AS amount
FROM sessions s JOIN kernels k ON k.session_id = s.id, jsonb_each_text(k.requested_slots) v
WHERE s.ended_at IS NULL AND (s.project_id = ANY(@projects::uuid[]) OR s.domain_name = ANY(@domains::text[])) AND s.type <> 'system'
  AND k.ended_at IS NULL AND k.status <> 'PENDING'
  AND s.status IN ('SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','TERMINATING') GROUP BY 1, 2, 3;

-- name: LockPlacements :exec
-- Placements are the only way to use more of a limit. They take turns, so that what one counts holds until it commits.
SELECT pg_advisory_xact_lock(hashtextextended('berth placements', 0));

-- name: LockEnqueue :exec
-- Creations of one user whose waiting sessions are limited take turns.
SELECT pg_advisory_xact_lock(hashtextextended('enqueue ' || @user_id::text, 0));

-- name: WaitingOf :one
-- Waiting sessions of a user, or of one of the user's keypairs.
SELECT count(*)::bigint AS sessions FROM sessions
WHERE status = 'PENDING' AND ended_at IS NULL AND user_id = @user_id AND (sqlc.narg('keypair')::text IS NULL OR access_key = sqlc.narg('keypair')::text);

-- name: WaitingSlotsOf :many
SELECT v.key::text AS slot, sum(v.value::bigint)::bigint AS amount FROM sessions s, jsonb_each_text(s.requested_slots) v
WHERE s.status = 'PENDING' AND s.ended_at IS NULL AND s.user_id = @user_id AND (sqlc.narg('keypair')::text IS NULL OR s.access_key = sqlc.narg('keypair')::text) GROUP BY 1;

-- name: PoliciesOfOwner :many
-- The policies that hold for what is created with a keypair: that of the user's main keypair, and its own if it is another.
SELECT sqlc.embed(p), (m.access_key = coalesce(u.main_access_key, ''))::boolean AS of_user
FROM keypairs k JOIN users u ON u.id = k.user_id JOIN keypairs m ON m.access_key IN (k.access_key, u.main_access_key)
JOIN keypair_resource_policies p ON p.name = m.resource_policy WHERE k.access_key = $1 ORDER BY of_user DESC;
