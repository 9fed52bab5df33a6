-- One-time passwords; written by package tenancy/otp.

-- name: OTPOf :one
SELECT u.id, u.email, u.role, u.domain_name, u.status, u.totp_activated, u.is_service, t.secret_sealed,
       coalesce(t.last_step, 0)::bigint AS last_step, coalesce(t.failures, 0)::integer AS failures, t.failed_at,
       (SELECT count(*) FROM totp_recovery_codes c WHERE c.user_id = u.id)::bigint AS recovery_codes
FROM users u LEFT JOIN user_totp t ON t.user_id = u.id WHERE u.id = @id;

-- name: OTPByEmail :one
SELECT u.id, u.email, u.role, u.domain_name FROM users u WHERE u.email = @email;

-- name: OTPSince :many
SELECT t.user_id, t.created_at FROM user_totp t WHERE t.user_id = ANY(@users::uuid[]);

-- name: SetOTPSecret :execrows
-- Replaces a secret that was not confirmed.
INSERT INTO user_totp (user_id, secret_sealed)
SELECT u.id, @secret_sealed FROM users u WHERE u.id = @user_id AND NOT u.totp_activated
ON CONFLICT (user_id) DO UPDATE SET secret_sealed = excluded.secret_sealed, last_step = 0, failures = 0, failed_at = NULL,
    created_at = now();

-- name: UseOTPStep :execrows
-- The code of a step is good once, and none of an earlier step is good after it.
UPDATE user_totp SET last_step = @step, failures = 0, failed_at = NULL WHERE user_id = @user_id AND last_step < @step;

-- name: NoteWrongOTP :exec
UPDATE user_totp SET failures = failures + 1, failed_at = now() WHERE user_id = $1;

-- name: ForgiveOTP :exec
UPDATE user_totp SET failures = 0, failed_at = NULL WHERE user_id = $1;

-- name: ActivateOTP :execrows
UPDATE users SET totp_activated = true, modified_at = now() WHERE id = $1 AND NOT totp_activated;

-- name: DeactivateOTP :exec
UPDATE users SET totp_activated = false, modified_at = now() WHERE id = $1;

-- name: DeleteOTP :execrows
DELETE FROM user_totp WHERE user_id = $1;

-- name: ReplaceRecoveryCodes :exec
WITH gone AS (DELETE FROM totp_recovery_codes WHERE user_id = @user_id AND code_hash <> ALL(@hashes::bytea[]))
INSERT INTO totp_recovery_codes (user_id, code_hash) SELECT @user_id::uuid, unnest(@hashes::bytea[]) ON CONFLICT DO NOTHING;

-- name: UseRecoveryCode :execrows
DELETE FROM totp_recovery_codes WHERE user_id = $1 AND code_hash = $2;

-- name: SealedOfOTP :many
SELECT user_id, secret_sealed FROM user_totp WHERE user_id > @after::uuid ORDER BY user_id LIMIT @page FOR UPDATE;

-- name: ResealOTP :exec
UPDATE user_totp SET secret_sealed = @sealed WHERE user_id = @user_id;
