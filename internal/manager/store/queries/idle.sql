-- What idle checks read and write. Decisions are made in package idle.

-- name: IdleSessions :many
-- RUNNING sessions by id with what idle checks decide about; the limits are those of the user's main keypair.
SELECT s.id, s.name, s.type, s.domain_name, s.project_id, s.resource_group, s.user_id, s.access_key, s.started_at, s.created_at,
       u.email AS user_email, u.role AS user_role, u.created_at AS user_since, p.name AS policy, p.max_session_lifetime, p.idle_timeout,
       a.last_access, g.until AS keep_until, coalesce(g.by_admin, false)::boolean AS keep_by_admin, coalesce(g.granted_by, '')::text AS kept_by
FROM sessions s JOIN users u ON u.id = s.user_id
JOIN keypairs k ON k.access_key = coalesce(u.main_access_key, s.access_key)
JOIN keypair_resource_policies p ON p.name = k.resource_policy
LEFT JOIN session_accesses a ON a.session_id = s.id
LEFT JOIN keep_alive_grants g ON g.session_id = s.id
WHERE s.status = 'RUNNING' AND s.ended_at IS NULL AND s.type <> 'inference' AND s.id > @after::uuid
  AND (cardinality(@ids::uuid[]) = 0 OR s.id = ANY(@ids::uuid[]))
ORDER BY s.id LIMIT @max_rows;

-- name: IdleKernels :many
SELECT id, session_id, agent_id, local_rank, status, requested_slots FROM kernels
WHERE session_id = ANY(@sessions::uuid[]) AND ended_at IS NULL ORDER BY session_id, local_rank;

-- name: IdleWarnings :many
SELECT session_id, checker, warned_at, deadline, dry_run FROM session_idle_warnings WHERE session_id = ANY(@sessions::uuid[]);

-- name: ListIdleCheckers :many
SELECT * FROM idle_checkers ORDER BY name LIMIT 1000;

-- name: ListIdleBindings :many
SELECT b.checker, b.domain_name, b.project_id, b.resource_group, p.name AS project_name
FROM idle_checker_bindings b LEFT JOIN projects p ON p.id = b.project_id ORDER BY b.checker, b.domain_name, b.project_id, b.resource_group;

-- name: SetIdleChecker :exec
INSERT INTO idle_checkers (name, description, type, target_session_types, initial_grace_period, new_user_grace, warn_before, dry_run, enabled, spec)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (name) DO UPDATE SET description = excluded.description, type = excluded.type, target_session_types = excluded.target_session_types,
    initial_grace_period = excluded.initial_grace_period, new_user_grace = excluded.new_user_grace, warn_before = excluded.warn_before,
    dry_run = excluded.dry_run, enabled = excluded.enabled, spec = excluded.spec, modified_at = now();

-- name: DropIdleBindings :exec
DELETE FROM idle_checker_bindings WHERE checker = $1;

-- name: AddIdleBinding :exec
INSERT INTO idle_checker_bindings (checker, domain_name, project_id, resource_group) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING;

-- name: DropIdleChecker :execrows
DELETE FROM idle_checkers WHERE name = $1;

-- name: TouchSessions :exec
-- Accesses only move forward. Sessions that are gone meanwhile are left out.
INSERT INTO session_accesses AS a (session_id, last_access)
SELECT s.id, (@times::timestamptz[])[i] FROM generate_subscripts(@ids::uuid[], 1) AS i JOIN sessions s ON s.id = (@ids::uuid[])[i] AND s.ended_at IS NULL
ORDER BY s.id
ON CONFLICT (session_id) DO UPDATE SET last_access = excluded.last_access WHERE a.last_access < excluded.last_access;

-- name: TouchWorking :exec
-- As TouchSessions, for the sessions of kernels that work. Only interactive ones end because nobody uses them.
INSERT INTO session_accesses AS a (session_id, last_access)
SELECT s.id, max(u.at) FROM (SELECT (@kernels::uuid[])[i] AS id, (@times::timestamptz[])[i] AS at FROM generate_subscripts(@kernels::uuid[], 1) AS i) u
JOIN kernels k ON k.id = u.id AND k.ended_at IS NULL JOIN sessions s ON s.id = k.session_id AND s.ended_at IS NULL AND s.type = 'interactive'
GROUP BY s.id ORDER BY s.id
ON CONFLICT (session_id) DO UPDATE SET last_access = excluded.last_access WHERE a.last_access < excluded.last_access;

-- name: SetKeepAlive :exec
INSERT INTO keep_alive_grants (session_id, until, by_admin, granted_by, reason) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (session_id) DO UPDATE SET until = excluded.until, by_admin = excluded.by_admin, granted_by = excluded.granted_by,
    reason = excluded.reason, granted_at = now();

-- name: GetKeepAlive :one
SELECT * FROM keep_alive_grants WHERE session_id = $1;

-- name: DropKeepAlive :execrows
DELETE FROM keep_alive_grants WHERE session_id = $1;

-- name: WarnIdle :one
-- Notes a warning and, except for dry runs, tells about it. An older warning of the same checker gives way.
WITH noted AS (
    INSERT INTO session_idle_warnings (session_id, checker, warned_at, deadline, dry_run, evidence)
    VALUES (@session_id, @checker, @warned_at, @deadline, @dry_run, @evidence)
    ON CONFLICT (session_id, checker) DO UPDATE SET warned_at = excluded.warned_at, deadline = excluded.deadline,
        dry_run = excluded.dry_run, evidence = excluded.evidence
    RETURNING session_id
), told AS (
    INSERT INTO session_events (session_id, event, from_status, to_status, reason, detail, domain_name)
    SELECT n.session_id, @event::text, 'RUNNING', 'RUNNING', @reason::text, @detail::text, o.domain_name FROM noted n JOIN sessions o ON o.id = n.session_id
    WHERE NOT @dry_run::boolean
    RETURNING seq
)
SELECT count(*)::bigint FROM told;

-- name: DropIdleWarnings :exec
-- Warnings of sessions that are in use again, by pairs of session and checker.
DELETE FROM session_idle_warnings w USING generate_subscripts(@sessions::uuid[], 1) AS i
WHERE w.session_id = (@sessions::uuid[])[i] AND w.checker = (@checkers::text[])[i];

-- name: DropEndedIdleState :exec
-- What was kept for sessions that have ended, some at a time.
WITH over AS (
    SELECT s.id FROM sessions s WHERE s.ended_at IS NOT NULL
      AND (s.id IN (SELECT a.session_id FROM session_accesses a) OR s.id IN (SELECT g.session_id FROM keep_alive_grants g)
        OR s.id IN (SELECT w.session_id FROM session_idle_warnings w)) LIMIT @max_rows
), a AS (DELETE FROM session_accesses WHERE session_id IN (SELECT id FROM over)),
   g AS (DELETE FROM keep_alive_grants WHERE session_id IN (SELECT id FROM over))
DELETE FROM session_idle_warnings WHERE session_id IN (SELECT id FROM over);

-- name: NoteIdleEnd :exec
-- Who ended the session, what was measured and why; for people and for audits.
UPDATE sessions SET status_data = status_data || jsonb_build_object('idle', @evidence::jsonb) WHERE id = @id;
