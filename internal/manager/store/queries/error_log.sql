-- Errors that clients reported.

-- name: AddErrorLog :exec
INSERT INTO error_logs (id, user_id, severity, source, message, context_lang, context_env, request_url, request_status, traceback)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: TrimErrorLogs :exec
-- Forgets all but the newest of a user.
DELETE FROM error_logs e USING (
    SELECT x.id FROM error_logs x WHERE x.user_id = @owner::uuid ORDER BY x.created_at DESC, x.id OFFSET @kept::integer) old
WHERE e.id = old.id;

-- name: DropErrorLog :execrows
DELETE FROM error_logs WHERE id = $1;

-- name: OwnerOfErrorLog :one
SELECT e.user_id, u.role, u.domain_name FROM error_logs e JOIN users u ON u.id = e.user_id WHERE e.id = $1;
