-- +goose Up
-- Managers remember for a moment who an access key belongs to and what they may do (the query ActorByKey). Whatever changes a
-- row that this is made of tells all managers in the same transaction, whoever the writer is. The columns of each trigger are
-- those that the query reads; a test compares the two.

-- +goose StatementBegin
CREATE FUNCTION actors_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('berth_actors', '');
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER actors_changed AFTER DELETE OR TRUNCATE OR UPDATE OF name, is_active, allowed_docker_registries
    ON domains FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();
CREATE TRIGGER actors_changed AFTER DELETE OR TRUNCATE OR
    UPDATE OF id, email, username, full_name, role, domain_name, status, allowed_client_ip
    ON users FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();
CREATE TRIGGER actors_changed AFTER DELETE OR TRUNCATE OR
    UPDATE OF access_key, secret_sealed, user_id, is_active, is_admin, rate_limit, resource_policy, bootstrap_script
    ON keypairs FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();
CREATE TRIGGER actors_changed AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE
    ON project_members FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();

-- The registries that a domain allows are enforced from now on. Domains that listed none could use all images: those that the
-- cluster has stay usable.
UPDATE domains SET allowed_docker_registries =
    (SELECT coalesce(array_agg(DISTINCT i.registry ORDER BY i.registry), '{}') FROM images i WHERE i.registry <> 'local')
WHERE allowed_docker_registries = '{}';
