-- Passkeys, and what was used once. Packages tenancy/passkey and tenancy/openid are the writers.

-- name: UseProof :execrows
INSERT INTO used_proofs (proof, expires_at) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: ForgetProofs :exec
-- A few at a time. Whoever uses one does this on the way.
DELETE FROM used_proofs WHERE proof IN (SELECT p.proof FROM used_proofs p WHERE p.expires_at < $1 LIMIT 100);

-- name: PasskeysOf :many
SELECT * FROM passkeys WHERE user_id = $1 ORDER BY created_at, id;

-- name: PasskeyByCredential :one
SELECT * FROM passkeys WHERE credential_id = $1;

-- name: PasskeyByID :one
SELECT p.id, p.user_id, p.name, u.email, u.role, u.domain_name FROM passkeys p JOIN users u ON u.id = p.user_id WHERE p.id = $1;

-- name: AddPasskey :execrows
-- A user has as many as a limit allows.
INSERT INTO passkeys (id, user_id, credential_id, credential, sign_count, name, created_at)
SELECT @id::uuid, @user_id::uuid, @credential_id::bytea, @credential::jsonb, @sign_count::bigint, @name::text, @created_at::timestamptz
WHERE (SELECT count(*) FROM passkeys p WHERE p.user_id = @user_id::uuid) < @most::bigint;

-- name: UsePasskey :execrows
-- The counter goes up, or stays zero where a passkey has none.
UPDATE passkeys SET sign_count = @sign_count, credential = @credential, last_used = @now
WHERE id = @id AND cloned_at IS NULL AND (sign_count < @sign_count OR sign_count = 0 AND @sign_count = 0);

-- name: NoteClone :exec
UPDATE passkeys SET cloned_at = $2 WHERE id = $1 AND cloned_at IS NULL;

-- name: RenamePasskey :execrows
UPDATE passkeys SET name = $2 WHERE id = $1;

-- name: DeletePasskey :execrows
DELETE FROM passkeys WHERE id = $1;
