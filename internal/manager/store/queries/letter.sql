-- Letters: single-use tokens in e-mails; written by package tenancy/letter.

-- name: ForgetLetters :exec
DELETE FROM letters WHERE expires_at < @now::timestamptz;

-- name: ReaderOfReset :one
-- The user whose password an e-mail to that address may reset. Who has none gets their first one only where an administrator said so.
SELECT u.id, u.email, (SELECT count(*) FROM letters l WHERE l.user_id = u.id AND l.kind = 'reset' AND l.expires_at > @now::timestamptz)::bigint AS letters
FROM users u JOIN domains d ON d.name = u.domain_name
WHERE u.email = @email AND u.status = 'active' AND d.is_active AND (u.password_hash IS NOT NULL OR @first_one::boolean) AND NOT u.is_service;

-- name: CountInvitations :one
SELECT count(*) FROM letters WHERE invited_by = @invited_by::text AND expires_at > @now::timestamptz;

-- name: InsertLetter :exec
INSERT INTO letters (token_hash, kind, email, user_id, invited_by, domain_name, projects, expires_at)
VALUES (@token_hash, @kind, @email, sqlc.narg('user_id'), sqlc.narg('invited_by'), sqlc.narg('domain_name'), @projects::uuid[], @expires_at);

-- name: LetterByHash :one
SELECT l.kind, l.email, l.user_id, l.invited_by, l.domain_name, l.projects::text[] AS projects, l.expires_at,
       coalesce(u.username, '')::text AS username, coalesce(u.full_name, '')::text AS full_name
FROM letters l LEFT JOIN users u ON u.id = l.user_id WHERE l.token_hash = $1;

-- name: UseLetter :execrows
DELETE FROM letters WHERE token_hash = $1;

-- name: UseLettersOf :exec
DELETE FROM letters WHERE user_id = $1;

-- name: ResetPassword :execrows
UPDATE users SET password_hash = @password_hash, password_changed_at = now(), need_password_change = false, modified_at = now()
WHERE id = @id AND status = 'active' AND NOT is_service AND login_directory IS NULL;
