-- Circuits, who may visit them, and the app proxies that serve them.

-- name: AppSession :one
-- A session with its owner and one of its kernels, null being the main one, for whoever starts or publishes apps of that.
SELECT s.id, s.name, s.status, s.user_id, s.access_key, s.domain_name, s.project_id, s.resource_group, u.role AS owner_role,
       p.name AS project_name, p.is_active AS project_active, k.id AS kernel_id, k.status AS kernel_status, coalesce(k.agent_id, '')::text AS agent_id, k.service_ports,
       k.cluster_hostname AS kernel_name, k.local_rank AS kernel_rank, coalesce(g.wsproxy_addr, '')::text AS wsproxy_addr
FROM sessions s JOIN users u ON u.id = s.user_id JOIN resource_groups g ON g.name = s.resource_group
JOIN projects p ON p.id = s.project_id
JOIN kernels k ON k.session_id = s.id
    AND (k.id = sqlc.narg('kernel_id')::uuid OR sqlc.narg('kernel_id')::uuid IS NULL AND k.local_rank = 0)
WHERE s.id = @id;

-- name: HoldAppSession :one
-- Whoever publishes an app of a session waits here for others who do, and keeps the app's kernel from ending meanwhile.
SELECT k.status FROM sessions s JOIN kernels k ON k.session_id = s.id
    AND (k.id = sqlc.narg('kernel_id')::uuid OR sqlc.narg('kernel_id')::uuid IS NULL AND k.local_rank = 0)
WHERE s.id = @id FOR NO KEY UPDATE OF s FOR SHARE OF k;

-- name: GroupProxyAddress :one
SELECT coalesce(wsproxy_addr, '')::text FROM resource_groups WHERE name = $1;

-- name: AddLaunch :exec
INSERT INTO app_launches (token_hash, session_id, user_id, app, asked_port, protocol, target, path, expires_at, started, request, proxy,
    kernel_id)
VALUES (@token_hash, @session_id, @user_id, @app, @asked_port, @protocol, @target, @path, @expires_at, sqlc.narg('started')::jsonb,
    sqlc.narg('request')::jsonb, @proxy, sqlc.narg('kernel_id'));

-- name: ProxyWasNamed :one
-- Whether a manager sent somebody who started an app of the session to the proxy lately.
SELECT EXISTS (SELECT 1 FROM app_launches WHERE session_id = @session_id AND proxy = @proxy::text AND app <> ''
    AND expires_at > @now::timestamptz)::boolean;

-- name: FindLaunch :one
-- What a token stands for; its user must still be active.
SELECT sqlc.embed(l) FROM app_launches l JOIN users u ON u.id = l.user_id AND u.status = 'active'
JOIN domains d ON d.name = u.domain_name AND d.is_active WHERE l.token_hash = $1;

-- name: AddBoundLaunch :execrows
-- The launch token that was bound from another one; it is there already when the same was asked before.
INSERT INTO app_launches (token_hash, session_id, user_id, app, asked_port, protocol, target, path, expires_at, started, request, proxy,
    kernel_id)
SELECT @bound_hash::bytea, l.session_id, l.user_id, l.app, l.asked_port, l.protocol, l.target, l.path, l.expires_at, l.started, @request::jsonb, l.proxy,
    l.kernel_id
FROM app_launches l WHERE l.token_hash = @token_hash ON CONFLICT ON CONSTRAINT app_launches_pkey DO NOTHING;

-- name: UseLaunch :execrows
-- A launch token works once: whoever writes used_at has it. Further tries of the same launch have it too.
UPDATE app_launches SET used_at = @now::timestamptz, used_by = @used_by::text
WHERE token_hash = @token_hash AND expires_at > @now::timestamptz AND (used_at IS NULL OR @again::boolean AND used_by = @used_by::text);

-- name: AddCode :exec
INSERT INTO circuit_codes (code_hash, circuit_id, user_id, epoch, expires_at) VALUES (@code_hash, @circuit_id, @user_id, @epoch, @expires_at);

-- name: FindCode :one
-- Whose code it is.
SELECT user_id FROM circuit_codes WHERE code_hash = @code_hash AND circuit_id = @circuit_id;

-- name: TakeCode :one
-- A code works once: whoever deletes it has it.
DELETE FROM circuit_codes WHERE code_hash = @code_hash AND circuit_id = @circuit_id RETURNING user_id, epoch, expires_at;

-- name: AddCircuit :exec
INSERT INTO circuits (id, proxy, mode, label, port, session_id, kernel_id, app, protocol, target, path, user_id, created_by, public, allowed, created_at, expires_at)
VALUES (@id, @proxy, @mode, sqlc.narg('label'), sqlc.narg('port'), @session_id, @kernel_id, @app, @protocol, @target, @path, @user_id, @created_by, @public, @allowed, @created_at, sqlc.narg('expires_at'));

-- name: CircuitsOfSession :many
SELECT * FROM circuits WHERE session_id = $1 ORDER BY created_at, id;

-- name: CircuitViews :many
-- Circuits as people see them.
SELECT sqlc.embed(c), s.name AS session_name, s.access_key, s.domain_name, s.project_id, u.role AS owner_role, k.cluster_hostname AS kernel_name,
       k.status AS kernel_status, coalesce(k.status_before_lost, '')::text AS kernel_before_lost,
       ARRAY(SELECT m.email FROM circuit_shares h JOIN users m ON m.id = h.user_id WHERE h.circuit_id = c.id ORDER BY m.email)::text[] AS shared_users,
       ARRAY(SELECT p.name FROM circuit_shares h JOIN projects p ON p.id = h.project_id WHERE h.circuit_id = c.id ORDER BY p.name)::text[] AS shared_projects,
       EXISTS (SELECT 1 FROM circuit_shares h LEFT JOIN project_members m ON m.project_id = h.project_id
               WHERE h.circuit_id = c.id AND (h.user_id = @viewer::uuid OR m.user_id = @viewer::uuid))::boolean AS shared
FROM circuits c JOIN sessions s ON s.id = c.session_id JOIN users u ON u.id = c.user_id JOIN kernels k ON k.id = c.kernel_id
WHERE c.id = ANY(@ids::uuid[]) ORDER BY c.created_at, c.id;

-- name: CircuitsInReach :many
-- The circuits that a user owns or that are shared with them, or those of one session or one of its kernels. Each part is found by an
-- index.
SELECT c.id FROM circuits c WHERE c.session_id = sqlc.narg('session_id')::uuid
   AND (sqlc.narg('kernel_id')::uuid IS NULL OR c.kernel_id = sqlc.narg('kernel_id')::uuid)
   OR sqlc.narg('session_id')::uuid IS NULL AND (c.user_id = @user_id::uuid OR c.id = ANY(ARRAY(
       SELECT h.circuit_id FROM circuit_shares h WHERE h.user_id = @user_id::uuid
       UNION SELECT h.circuit_id FROM project_members m JOIN circuit_shares h ON h.project_id = m.project_id WHERE m.user_id = @user_id::uuid)))
ORDER BY c.created_at, c.id LIMIT @max_rows;

-- name: LockCircuit :one
SELECT id FROM circuits WHERE id = $1 FOR UPDATE;

-- name: ChangeCircuit :execrows
UPDATE circuits SET public = coalesce(sqlc.narg('public'), public), allowed = coalesce(sqlc.narg('allowed')::text[], allowed),
    expires_at = CASE WHEN @set_expiry::boolean THEN sqlc.narg('expires_at')::timestamptz ELSE expires_at END,
    epoch = epoch + CASE WHEN @revoke::boolean THEN 1 ELSE 0 END
WHERE id = @id;

-- name: Visitor :one
-- A user who may visit anything at all: active, in an active domain.
SELECT u.id, u.email, u.role, u.domain_name, u.allowed_client_ip,
       ARRAY(SELECT l::text FROM projects_led(u.id) l)::text[] AS leads
FROM users u JOIN domains d ON d.name = u.domain_name AND d.is_active
WHERE u.id = $1 AND u.status = 'active';

-- name: HoldVisitor :one
-- The same, and whoever changes what they are waits until the transaction ends: take it before sessions and circuits.
SELECT u.id, u.email, u.role, u.domain_name, u.allowed_client_ip,
       ARRAY(SELECT l::text FROM projects_led(u.id) l)::text[] AS leads
FROM users u JOIN domains d ON d.name = u.domain_name AND d.is_active
WHERE u.id = $1 AND u.status = 'active' FOR SHARE;

-- name: NoteOfficeTicket :exec
INSERT INTO circuit_office_tickets (circuit_id, user_id, expires_at) VALUES ($1, $2, $3)
ON CONFLICT (circuit_id, user_id) DO UPDATE SET expires_at = greatest(circuit_office_tickets.expires_at, excluded.expires_at);

-- name: DropShares :exec
DELETE FROM circuit_shares WHERE circuit_id = @circuit_id AND (@of_users::boolean AND user_id IS NOT NULL OR @of_projects::boolean AND project_id IS NOT NULL);

-- name: AddUserShares :exec
INSERT INTO circuit_shares (circuit_id, user_id) SELECT @circuit_id::uuid, unnest(@users::uuid[]) ON CONFLICT DO NOTHING;

-- name: AddProjectShares :exec
INSERT INTO circuit_shares (circuit_id, project_id) SELECT @circuit_id::uuid, unnest(@projects::uuid[]) ON CONFLICT DO NOTHING;

-- name: UsersToShare :many
-- Active users of a domain by id or email.
SELECT id, email FROM users WHERE status = 'active' AND domain_name = @domain_name AND (id::text = ANY(@refs::text[]) OR email = ANY(@refs::text[]));

-- name: ProjectsToShare :many
-- Active projects of a user by id or name.
SELECT p.id, p.name FROM projects p JOIN project_members m ON m.project_id = p.id AND m.user_id = @user_id
WHERE p.is_active AND (p.id::text = ANY(@refs::text[]) OR p.name = ANY(@refs::text[]));

-- name: SharesOf :many
SELECT user_id, project_id FROM circuit_shares WHERE circuit_id = $1;

-- name: DropAdmissions :exec
DELETE FROM circuit_admissions WHERE circuit_id = $1;

-- name: DropCodes :exec
DELETE FROM circuit_codes WHERE circuit_id = $1;

-- name: CountOtherAdmissions :one
SELECT count(*) FROM circuit_admissions WHERE circuit_id = $1 AND address <> $2;

-- name: Admit :exec
INSERT INTO circuit_admissions (circuit_id, address, user_id, expires_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (circuit_id, address) DO UPDATE SET user_id = excluded.user_id, expires_at = greatest(circuit_admissions.expires_at, excluded.expires_at);

-- name: DropCircuits :many
DELETE FROM circuits WHERE id = ANY(@ids::uuid[]) RETURNING id;

-- name: DropUnopened :many
-- Ends a circuit that a launch has just made, unless somebody else has a way into it already: one code is the launch's own.
DELETE FROM circuits c WHERE c.id = @id AND c.session_id = @session_id AND c.proxy = @proxy AND c.created_by = @created_by AND c.port IS NOT NULL
   AND NOT c.public AND c.last_activity IS NULL
   AND NOT EXISTS (SELECT 1 FROM circuit_shares h WHERE h.circuit_id = c.id) AND NOT EXISTS (SELECT 1 FROM circuit_admissions m WHERE m.circuit_id = c.id)
   AND (SELECT count(*) FROM circuit_codes k WHERE k.circuit_id = c.id) <= 1
RETURNING c.id;

-- name: DropCircuitsOf :many
-- Ends what a user published of a session through one proxy.
DELETE FROM circuits WHERE session_id = @session_id AND created_by = @user_id AND proxy = @proxy RETURNING id;

-- name: DropCircuitsOfApp :many
DELETE FROM circuits WHERE kernel_id = @kernel_id AND app = @app RETURNING id;

-- name: LockProxyAddresses :exec
-- Whoever takes a label or port of a proxy waits here.
SELECT pg_advisory_xact_lock(hashtextextended('addresses of app proxy ' || @proxy::text, 0));

-- name: FreePort :one
-- The free port of a range that was free for longest.
SELECT p.port::integer AS port FROM generate_series(@port_from::integer, @port_to::integer) AS p(port)
LEFT JOIN circuit_addresses a ON a.proxy = @proxy AND a.address = p.port::text
WHERE NOT EXISTS (SELECT 1 FROM circuits c WHERE c.proxy = @proxy AND c.port = p.port)
ORDER BY a.freed_at NULLS FIRST, p.port LIMIT 1;

-- name: PortsTaken :one
-- How many ports of a range circuits have, and how many of them those of one user.
SELECT count(*) AS taken, count(*) FILTER (WHERE c.user_id = @user_id) AS theirs FROM circuits c
WHERE c.proxy = @proxy AND c.port BETWEEN @port_from::integer AND @port_to::integer;

-- name: AddressTaken :one
-- Whether a circuit has a label or port now, or had it until a moment ago and belonged to somebody else.
SELECT EXISTS (SELECT 1 FROM circuits c WHERE c.proxy = @proxy AND coalesce(c.label, c.port::text) = @address::text)::boolean AS taken,
       EXISTS (SELECT 1 FROM circuit_addresses a WHERE a.proxy = @proxy AND a.address = @address::text AND a.user_id <> @user_id::uuid AND a.freed_at > now() - @rest::interval)::boolean AS resting;

-- name: CircuitChanges :one
-- This statement's snapshot, when the server started, and the circuits that changed or went since an earlier snapshot
-- (an empty text: none).
WITH b AS MATERIALIZED (SELECT CAST(nullif(@since::text, '') AS pg_snapshot) AS since, pg_snapshot_xmax(pg_current_snapshot()) AS until)
SELECT CAST(pg_current_snapshot() AS text) AS snapshot, pg_postmaster_start_time()::timestamptz AS server_started,
       coalesce(pg_stat_get_bgwriter_stat_reset_time(), pg_postmaster_start_time())::timestamptz AS server_recovered,
       ARRAY(SELECT c.id::text FROM circuits c
             WHERE c.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND c.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(c.changed, (SELECT b.since FROM b))
             UNION
             SELECT r.circuit_id::text FROM circuit_removals r
             WHERE r.changed >= (SELECT pg_snapshot_xmin(b.since) FROM b) AND r.changed < (SELECT b.until FROM b)
               AND NOT pg_visible_in_snapshot(r.changed, (SELECT b.since FROM b))
             LIMIT @max_rows::integer)::text[] AS circuits;

-- name: PublishedCircuits :many
-- Circuits whose kernels run, with where those are; ids null means all.
SELECT sqlc.embed(c), s.name AS session_name, k.generation, a.id AS agent_id, a.boot_id, a.data_address, a.data_socket,
       ARRAY(SELECT m.address FROM circuit_admissions m WHERE m.circuit_id = c.id ORDER BY m.address)::text[] AS admitted
FROM circuits c JOIN sessions s ON s.id = c.session_id JOIN kernels k ON k.id = c.kernel_id JOIN agents a ON a.id = k.agent_id
WHERE (k.status = 'RUNNING' OR k.status = 'LOST' AND k.status_before_lost = 'RUNNING')
  AND (sqlc.narg('ids')::uuid[] IS NULL OR c.id = ANY(sqlc.narg('ids')::uuid[]));

-- name: CircuitAt :one
SELECT id FROM circuits WHERE proxy = @proxy AND (label = sqlc.narg('label')::text OR port = sqlc.narg('port')::integer);

-- name: CircuitsUsed :many
-- Notes when visitors used circuits, and says whose sessions were used. Locked by id: managers do this at the same time.
WITH used AS (
    SELECT c.id, u.at FROM circuits c
    JOIN (SELECT (@ids::uuid[])[i] AS id, (@times::timestamptz[])[i] AS at FROM generate_subscripts(@ids::uuid[], 1) AS i) u ON u.id = c.id
    WHERE c.proxy = @proxy ORDER BY c.id FOR NO KEY UPDATE OF c
)
UPDATE circuits c SET last_activity = greatest(coalesce(c.last_activity, used.at), used.at)
FROM used WHERE c.id = used.id RETURNING c.session_id, used.at::timestamptz AS used_at;

-- name: DropExpiredCircuits :many
DELETE FROM circuits c WHERE c.expires_at <= @now::timestamptz RETURNING c.id;

-- name: DropUnusedCircuits :many
-- Private circuits that are shared with nobody and that nobody used for long.
DELETE FROM circuits c WHERE NOT c.public AND c.expires_at IS NULL AND coalesce(c.last_activity, c.created_at) < @unused_since::timestamptz
   AND NOT EXISTS (SELECT 1 FROM circuit_shares h WHERE h.circuit_id = c.id)
RETURNING c.id;

-- name: DropExpiredAdmissions :many
DELETE FROM circuit_admissions WHERE expires_at <= @now::timestamptz RETURNING circuit_id;

-- name: DropExpiredCodes :exec
DELETE FROM circuit_codes WHERE expires_at <= @now::timestamptz;

-- name: DropExpiredOfficeTickets :exec
DELETE FROM circuit_office_tickets WHERE expires_at <= @now::timestamptz;

-- name: DropExpiredLaunches :exec
DELETE FROM app_launches WHERE expires_at <= @now::timestamptz;

-- name: EndedCircuits :many
-- Circuits that ended lately while their kernel runs on, with its agent; first the latest of each kernel, then the second of each and so
-- on. So a kernel with ever so many takes no place from the others.
SELECT e.circuit_id::text AS circuit_id, e.agent_id::text AS agent_id
FROM (SELECT r.circuit_id, k.agent_id, r.at, row_number() OVER (PARTITION BY r.kernel_id ORDER BY r.at DESC, r.circuit_id) AS nth
      FROM circuit_removals r JOIN kernels k ON k.id = r.kernel_id
      WHERE r.at > now() - @within::interval AND k.ended_at IS NULL AND k.agent_id IS NOT NULL) e
ORDER BY e.nth, e.at DESC, e.circuit_id LIMIT @max_rows;

-- name: ProxyHadCircuits :one
SELECT EXISTS (SELECT 1 FROM circuits WHERE proxy = @proxy AND created_at < @before::timestamptz)::boolean;

-- name: ForgetCircuitRemovals :exec
DELETE FROM circuit_removals WHERE at < now() - interval '25 hours';

-- name: ForgetCircuitAddresses :exec
-- Ports are asked for by the time they became free, labels for longer.
DELETE FROM circuit_addresses WHERE freed_at < now() - CASE WHEN address ~ '^[0-9]+$' THEN interval '1 day' ELSE @labels::interval END;

-- name: SeeProxy :exec
INSERT INTO app_proxies (name, node, instance, seen_at) VALUES (@name, @node, @instance, @seen_at)
ON CONFLICT (name, node) DO UPDATE SET instance = excluded.instance, seen_at = excluded.seen_at;

-- name: LockProxyNames :exec
-- Whoever takes an address for a proxy waits here.
SELECT pg_advisory_xact_lock(hashtextextended('addresses of app proxies', 0));

-- name: ListProxyAddresses :many
SELECT * FROM app_proxy_addresses ORDER BY proxy, kind, address, port_from;

-- name: TakeProxyAddress :exec
INSERT INTO app_proxy_addresses (proxy, kind, address, port_from, port_to) VALUES (@proxy, @kind, @address, @port_from, @port_to)
ON CONFLICT DO NOTHING;

-- name: FreeProxyAddresses :exec
DELETE FROM app_proxy_addresses WHERE proxy = @proxy;

-- name: ListProxies :many
SELECT * FROM app_proxies ORDER BY name, node;

-- name: DropProxy :exec
DELETE FROM app_proxies WHERE name = @name AND node = @node AND seen_at <= @seen_at;

-- name: ForgetProxies :exec
-- Replicas that were not seen for long, unless circuits still name their proxy.
DELETE FROM app_proxies p WHERE p.seen_at < @before::timestamptz AND NOT EXISTS (SELECT 1 FROM circuits c WHERE c.proxy = p.name);

-- name: CircuitDoctorRows :many
-- Circuits that no kernel stands behind, and proxies that circuits name.
SELECT 'circuit-without-session'::text AS kind, ('circuit ' || c.id)::text AS object, c.app AS a, k.status::text AS b
FROM circuits c JOIN kernels k ON k.id = c.kernel_id WHERE k.ended_at IS NOT NULL
UNION ALL
SELECT 'circuits-without-proxy', 'app proxy ' || c.proxy, count(*)::text, '' FROM circuits c
WHERE NOT EXISTS (SELECT 1 FROM app_proxies p WHERE p.name = c.proxy AND p.seen_at > @seen_since::timestamptz) GROUP BY c.proxy
ORDER BY 1, 2 LIMIT 200;
