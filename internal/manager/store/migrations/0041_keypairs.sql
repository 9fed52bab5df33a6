-- +goose Up
-- Keypairs come and go: users have several, and each may be replaced by a new one that takes over what hangs on it. Package tenancy is
-- the writer.
ALTER TABLE keypairs
    ADD COLUMN expires_at        timestamptz,       -- when the keypair ends by itself; the leader makes it inactive then
    ADD COLUMN replaced_by       text REFERENCES keypairs (access_key) ON DELETE SET NULL, -- who takes over its live sessions
    ADD COLUMN deleted_at        timestamptz,       -- nobody sees it any more; the row stays for sessions that it started
    ADD COLUMN concurrency_limit integer CHECK (concurrency_limit > 0); -- live sessions that it started; null: as its policy says
ALTER TABLE keypairs ADD CONSTRAINT keypairs_deleted CHECK (deleted_at IS NULL OR NOT is_active);
CREATE INDEX keypairs_replaced ON keypairs (replaced_by) WHERE replaced_by IS NOT NULL;
CREATE INDEX keypairs_expire ON keypairs (expires_at) WHERE is_active AND expires_at IS NOT NULL;

DROP TRIGGER actors_changed ON keypairs;
CREATE TRIGGER actors_changed AFTER DELETE OR TRUNCATE OR
    UPDATE OF access_key, secret_sealed, user_id, is_active, is_admin, rate_limit, resource_policy, bootstrap_script, expires_at
    ON keypairs FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();
DROP TRIGGER keypair_limit_changed ON keypairs;
CREATE TRIGGER keypair_limit_changed AFTER UPDATE OF resource_policy, concurrency_limit ON keypairs FOR EACH ROW
    WHEN (OLD.resource_policy <> NEW.resource_policy OR OLD.concurrency_limit IS DISTINCT FROM NEW.concurrency_limit)
    EXECUTE FUNCTION scheduling_changed('quota');

-- A keypair with those that it replaced and that replaced it: while a replaced keypair still holds, the same sessions are found with
-- either.
-- +goose StatementBegin
CREATE FUNCTION kin_of_key(key text) RETURNS text[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE later AS (
        SELECT key AS k UNION SELECT p.replaced_by FROM later JOIN keypairs p ON p.access_key = later.k WHERE p.replaced_by IS NOT NULL
    ), earlier AS (
        SELECT key AS k UNION SELECT p.access_key FROM earlier JOIN keypairs p ON p.replaced_by = earlier.k
    )
    SELECT array_agg(k) FROM (SELECT k FROM later UNION SELECT k FROM earlier) all_of_them
$$;
-- +goose StatementEnd
