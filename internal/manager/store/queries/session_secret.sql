-- Secrets of sessions; written by package node.

-- name: SessionSecrets :many
SELECT session_id, sealed FROM session_secrets WHERE session_id = ANY(@sessions::uuid[]);

-- name: BeginSessionSecrets :exec
-- Says that secrets of sessions are being sealed and written; see WaitForWritersOfSecrets.
LOCK TABLE session_secrets IN ROW EXCLUSIVE MODE;

-- name: AddSessionSecret :exec
-- The first one stays: another manager may have told it to an agent already.
INSERT INTO session_secrets (session_id, sealed) SELECT s.id, @sealed FROM sessions s WHERE s.id = @session_id ON CONFLICT DO NOTHING;

-- name: SealedOfSessions :many
SELECT session_id, sealed FROM session_secrets WHERE session_id > @after::uuid ORDER BY session_id LIMIT @max_rows FOR UPDATE;

-- name: ResealSession :exec
UPDATE session_secrets SET sealed = @sealed WHERE session_id = @session_id;
