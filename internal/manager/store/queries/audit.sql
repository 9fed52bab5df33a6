-- Writes what a use case did, in its transaction, if that has changed anything. Package audit is the writer of audit_log; the rows of
-- audit_changes are written by triggers (migration 0035). It also tells whether somebody has taken away, since the request began, what who
-- acts had then: the account, the role, the domain, the keypair, the API token, or a project of theirs. What the transaction itself has
-- done to them does not count.

-- name: RecordChange :one
WITH noted AS (
    INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key, acting_for, address, request_id,
        token, means)
    SELECT current_setting('berth.audit')::uuid, @action, @object, 'done', @user_id, @email, @role, @domain_name, @access_key, @acting_for,
        @address, @request_id, @token::text, @means
    WHERE pg_current_xact_id_if_assigned() IS NOT NULL
    RETURNING 1
)
SELECT (SELECT count(*) FROM noted)::bigint AS written, (EXISTS (
    SELECT 1 FROM keypairs k JOIN users u ON u.id = k.user_id JOIN domains d ON d.name = u.domain_name
    WHERE k.access_key = @access_key AND (
        (NOT k.is_active OR k.expires_at <= clock_timestamp()) AND k.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid
        OR NOT d.is_active AND d.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid
        OR (u.status <> 'active' OR u.domain_name <> @domain_name
            OR @role::text IN ('admin', 'superadmin') AND u.role NOT IN (@role::text, 'superadmin'))
            AND u.xmin IS DISTINCT FROM pg_current_xact_id_if_assigned()::xid)
) OR @access_key <> '' AND NOT EXISTS (SELECT 1 FROM keypairs k WHERE k.access_key = @access_key) AND NOT EXISTS (
    SELECT 1 FROM audit_changes c
    WHERE c.entry = current_setting('berth.audit')::uuid AND c.table_name = 'keypairs' AND c.key = @access_key
) OR @token::text <> '' AND NOT EXISTS (
    SELECT 1 FROM api_tokens t WHERE t.id = nullif(@token::text, '')::uuid AND t.expires_at > clock_timestamp()
) OR @role::text <> 'superadmin' AND (
    EXISTS (SELECT p.id FROM unnest(@projects::uuid[]) p (id)
        EXCEPT SELECT m.project_id FROM project_members m WHERE m.user_id = nullif(@user_id::text, '')::uuid)
    OR EXISTS (SELECT p.id FROM unnest(@leads::uuid[]) p (id) EXCEPT SELECT projects_led(nullif(@user_id::text, '')::uuid))
) AND NOT EXISTS (
    SELECT 1 FROM audit_changes c
    WHERE c.entry = current_setting('berth.audit')::uuid
        AND (c.table_name = 'projects' OR c.table_name = 'project_members' AND c.key LIKE '%/' || @user_id::text)
))::boolean AS withdrawn;

-- name: Record :exec
-- Writes what was denied, or changed no row of audited tables in a transaction of its own. Nobody waits until it is on the disk.
INSERT INTO audit_log (entry, action, object, result, reason, user_id, email, role, domain_name, access_key, acting_for, address, request_id,
    token, means)
SELECT gen_random_uuid(), @action, @object, @result, @reason, @user_id, @email, @role, @domain_name, @access_key, @acting_for, @address,
    @request_id, @token::text, @means
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS unhurried;

-- name: RecordRefusals :exec
-- Writes proofs of who somebody is that were refused, by the place in the lists. An account is an e-mail address, or an access key. Those
-- that there are not stand under no name: what people type there may be a password.
INSERT INTO audit_log (at, entry, action, object, result, reason, user_id, email, role, domain_name, access_key, address, request_id, means,
    attempts)
SELECT min(r.at), gen_random_uuid(), r.action, coalesce(k.access_key, u.email, ''), 'denied', r.reason, '', '', coalesce(u.role::text, ''),
    coalesce(u.domain_name, ''), '', r.address, max(r.request_id), r.means, sum(r.attempts)::bigint
FROM (SELECT unnest(@ats::timestamptz[]) AS at, unnest(@actions::text[]) AS action, unnest(@accounts::text[]) AS account,
        unnest(@reasons::text[]) AS reason, unnest(@addresses::text[]) AS address, unnest(@requests::text[]) AS request_id,
        unnest(@means::text[]) AS means, unnest(@attempts::bigint[]) AS attempts) AS r
    LEFT JOIN keypairs k ON k.access_key = r.account
    LEFT JOIN users u ON u.id = coalesce(k.user_id, (SELECT x.id FROM users x WHERE x.email = r.account))
GROUP BY r.action, coalesce(k.access_key, u.email, ''), u.role, u.domain_name, r.reason, r.address, r.means
ORDER BY min(r.at);

-- name: AuditEntries :many
SELECT * FROM audit_log WHERE id = ANY(@ids::bigint[]);

-- name: AuditChanges :many
-- The first changes of each entry, and how many there are.
SELECT entry, table_name, key, before, after, n FROM (
    SELECT c.*, row_number() OVER (PARTITION BY c.entry ORDER BY c.id) AS place, count(*) OVER (PARTITION BY c.entry) AS n
    FROM audit_changes c WHERE c.entry = ANY(@entries::uuid[])
) AS numbered WHERE place <= @most::bigint ORDER BY entry, place;

-- name: ForgetAudit :one
-- Forgets old entries with their changes; the transaction has berth.audit_retention on.
WITH old AS (
    SELECT a.id, a.entry FROM audit_log a WHERE a.at < now() - @age::interval ORDER BY a.at LIMIT @most::int
), changes AS (
    DELETE FROM audit_changes c USING old WHERE c.entry = old.entry
), gone AS (
    DELETE FROM audit_log a USING old WHERE a.id = old.id RETURNING 1
)
SELECT count(*) FROM gone;

-- name: AllowAuditRetention :exec
SELECT set_config('berth.audit_retention', 'on', true);

-- name: BeginAuditExport :exec
-- The first export begins with what is done from now on.
INSERT INTO audit_exports (name, tx, id) VALUES (@name, pg_snapshot_xmin(pg_current_snapshot()), 0) ON CONFLICT DO NOTHING;

-- name: AuditBehind :many
-- The next entries that an export has not sent, in order, of transactions older than all that run.
SELECT a.id, (a.tx::text)::text AS tx FROM audit_log a
WHERE (a.tx, a.id) > ((SELECT e.tx FROM audit_exports e WHERE e.name = @name), (SELECT e.id FROM audit_exports e WHERE e.name = @name))
  AND a.tx < pg_snapshot_xmin(pg_current_snapshot())
ORDER BY a.tx, a.id LIMIT @max_rows;

-- name: AuditSent :exec
UPDATE audit_exports SET tx = CAST(@tx::text AS xid8), id = @id, sent_at = now(), failing_since = NULL, problem = '' WHERE name = @name;

-- name: AuditNotSent :exec
UPDATE audit_exports SET failing_since = coalesce(failing_since, now()), problem = @problem WHERE name = @name;

-- name: FailingAuditExports :many
SELECT e.name, e.problem, e.failing_since::timestamptz AS failing_since,
       (SELECT count(*) FROM (SELECT 1 FROM audit_log a WHERE (a.tx, a.id) > (e.tx, e.id) LIMIT 10000) AS w)::bigint AS waiting
FROM audit_exports e WHERE e.failing_since IS NOT NULL ORDER BY e.name;
