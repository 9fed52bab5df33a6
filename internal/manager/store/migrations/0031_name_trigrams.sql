-- +goose Up
-- Lists are filtered by a part of a name. An index of the names' trigrams finds those that may match. It is made of arrays, which every
-- PostgreSQL can index; the extension pg_trgm, which some servers lack, is not needed.

-- name_trigrams returns every three characters of a name that stand together, in small letters. Only ASCII has small letters here, which
-- is the same in every locale; filters look up nothing else (package list). Two other characters that ILIKE may take for ASCII count as
-- such: the Kelvin sign and the capital i with a dot.
-- +goose StatementBegin
CREATE FUNCTION name_trigrams(name text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 1000 AS $$
DECLARE
    small text := lower(name COLLATE "C");
    found text[] := '{}';
BEGIN
    IF octet_length(small) > length(small) AND getdatabaseencoding() = 'UTF8' THEN
        small := translate(small, chr(8490) || chr(304), 'ki');
    END IF;
    FOR i IN 1 .. length(small) - 2 LOOP
        found := found || substr(small, i, 3);
    END LOOP;
    RETURN found;
END $$;
-- +goose StatementEnd

-- Ended sessions alone: a live one's row changes often, and there are few of them.
CREATE INDEX sessions_ended_trigrams ON sessions USING gin (name_trigrams(name)) WHERE ended_at IS NOT NULL;
CREATE INDEX folders_trigrams ON folders USING gin (name_trigrams(name));

-- The newest session of a name is found without the older ones.
DROP INDEX sessions_by_name;
CREATE INDEX sessions_by_name ON sessions (name text_pattern_ops, created_at DESC);

-- Pages of the other lists that grow come from an index in their order.
CREATE INDEX folders_created ON folders (created_at DESC);
CREATE INDEX users_created ON users (created_at);
CREATE INDEX keypairs_created ON keypairs (created_at);

-- Rows of live sessions change often. Where many have ended, the default, a fifth of the table, would let so many old versions gather that
-- finding the live ones takes long.
ALTER TABLE sessions SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 250);
ALTER TABLE kernels SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.02, autovacuum_analyze_threshold = 250);
