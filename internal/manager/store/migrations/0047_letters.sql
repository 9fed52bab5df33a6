-- +goose Up
-- What e-mails let their readers do once: set a new password, or make the account that they were invited to. Package tenancy/letter is
-- the writer. Of the token in the e-mail only the SHA-256 is kept.
CREATE TABLE letters (
    token_hash  bytea PRIMARY KEY CHECK (octet_length(token_hash) = 32),
    kind        text NOT NULL CHECK (kind IN ('reset', 'invitation')),
    email       text NOT NULL,
    user_id     uuid REFERENCES users(id) ON DELETE CASCADE,             -- of a reset
    invited_by  text REFERENCES keypairs(access_key) ON DELETE CASCADE,  -- of an invitation: who is still allowed when it is taken
    domain_name text REFERENCES domains(name) ON DELETE CASCADE,
    projects    uuid[] NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    CHECK (CASE kind WHEN 'reset' THEN user_id IS NOT NULL ELSE invited_by IS NOT NULL AND domain_name IS NOT NULL END)
);
CREATE INDEX letters_user ON letters (user_id);
CREATE INDEX letters_email ON letters (email);
CREATE INDEX letters_domain ON letters (domain_name);
CREATE INDEX letters_invited_by ON letters (invited_by);
CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON letters FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('email');
