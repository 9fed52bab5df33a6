-- Templates of sessions.

-- name: AddTemplate :exec
INSERT INTO session_templates (id, kind, name, user_id, project_id, document) VALUES ($1, $2, $3, $4, $5, $6);

-- name: CountTemplates :one
SELECT count(*) FROM session_templates WHERE user_id = $1;

-- name: LockOwnerOfTemplates :exec
-- One at a time, so that the bound on templates holds.
SELECT pg_advisory_xact_lock(hashtext('session_templates'), hashtext(@user_id::text));

-- name: ChangeTemplate :execrows
UPDATE session_templates SET name = $2, document = $3, modified_at = now() WHERE id = $1;

-- name: DropTemplate :execrows
DELETE FROM session_templates WHERE id = $1;
