-- +goose Up
-- One-time passwords (TOTP, RFC 6238) and their recovery codes. Package tenancy/otp is the writer of both, and of users.totp_activated,
-- which says whether the secret was confirmed.
CREATE TABLE user_totp (
    user_id       uuid PRIMARY KEY REFERENCES users(id) ON DELETE CASCADE,
    secret_sealed bytea NOT NULL,
    last_step     bigint NOT NULL DEFAULT 0,        -- the newest 30 seconds whose code was used: it is good once
    failures      integer NOT NULL DEFAULT 0,       -- wrong codes since the last good one
    failed_at     timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now()
);
-- A recovery code is good once, so its row goes with its use.
CREATE TABLE totp_recovery_codes (
    user_id   uuid NOT NULL REFERENCES user_totp(user_id) ON DELETE CASCADE,
    code_hash bytea NOT NULL CHECK (octet_length(code_hash) = 32),
    PRIMARY KEY (user_id, code_hash)
);
CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE OF secret_sealed ON user_totp FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('user_id');
