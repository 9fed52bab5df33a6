-- +goose Up
-- What proves who somebody is once: states of logins at identity providers, challenges of passkeys, login tokens. Whatever is here was
-- used. Packages tenancy/openid and tenancy/passkey are the writers.
CREATE TABLE used_proofs (
    proof      bytea PRIMARY KEY CHECK (octet_length(proof) = 32),  -- a SHA-256
    expires_at timestamptz NOT NULL                                 -- nobody believes it from then on
);
CREATE INDEX used_proofs_expires ON used_proofs (expires_at);

-- Passkeys (WebAuthn). Package tenancy/passkey is the writer. No secret is here: credential holds the public key.
CREATE TABLE passkeys (
    id            uuid PRIMARY KEY,
    user_id       uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    credential_id bytea NOT NULL UNIQUE CHECK (octet_length(credential_id) BETWEEN 1 AND 1023),
    credential    jsonb NOT NULL,
    sign_count    bigint NOT NULL,
    name          text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    created_at    timestamptz NOT NULL,
    last_used     timestamptz,
    cloned_at     timestamptz,                      -- when its counter went back: it opens nothing since
    UNIQUE (user_id, name)
);
CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE OF name, cloned_at ON passkeys FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
