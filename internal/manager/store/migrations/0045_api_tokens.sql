-- +goose Up
-- API tokens and service accounts. Package tenancy/token is the writer of both.
--
-- Service accounts are users that no password lets in. They belong to their domain, or to one project of it.
ALTER TABLE users ADD COLUMN is_service boolean NOT NULL DEFAULT false,
    ADD CONSTRAINT service_accounts_have_no_password CHECK (NOT (is_service AND password_hash IS NOT NULL));

-- A token stands for a keypair and ends with it. Of the token itself only the SHA-256 is kept.
CREATE TABLE api_tokens (
    id          uuid PRIMARY KEY,
    token_hash  bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    user_id     uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    access_key  text NOT NULL REFERENCES keypairs(access_key) ON DELETE CASCADE,
    name        text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    read_only   boolean NOT NULL,
    areas       text[] NOT NULL,                    -- none: all
    projects    uuid[] NOT NULL,                    -- none: all
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    last_used   timestamptz,
    UNIQUE (user_id, name)
);
CREATE INDEX api_tokens_access_key ON api_tokens (access_key);

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON api_tokens FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
-- Whoever remembers a token forgets it at once, streams are looked at again, and what storage proxies were told ends.
CREATE TRIGGER actors_changed AFTER DELETE OR TRUNCATE OR UPDATE OF token_hash, user_id, access_key, read_only, areas, projects, expires_at
    ON api_tokens FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();
CREATE TRIGGER rights_changed AFTER DELETE ON api_tokens FOR EACH ROW EXECUTE FUNCTION rights_of_owner();
