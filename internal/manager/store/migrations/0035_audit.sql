-- +goose Up
-- The audit log: what was done to the cluster or denied, by whom and from where. Package audit is its writer. A row is written in the
-- transaction that it tells of. Both tables are appended to; only retention deletes from them.
--
-- Nothing here refers to other tables: the log outlives those whom it tells of.
CREATE TABLE audit_log (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entry       uuid NOT NULL,                      -- joins the rows of audit_changes
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    action      text NOT NULL,                      -- such as user.modify
    object      text NOT NULL,                      -- as the request names it
    result      text NOT NULL CHECK (result IN ('done', 'denied')),
    reason      text NOT NULL DEFAULT '',           -- of a refusal
    user_id     text NOT NULL,
    email       text NOT NULL,
    role        text NOT NULL,
    domain_name text NOT NULL,                      -- of the user, at that time
    access_key  text NOT NULL,
    acting_for  text NOT NULL DEFAULT '',           -- the access key on whose behalf it was done, where that is another one
    address     text NOT NULL,
    request_id  text NOT NULL
);
CREATE INDEX audit_log_at ON audit_log (at);
CREATE INDEX audit_log_domain ON audit_log (domain_name, id);
CREATE INDEX audit_log_email ON audit_log (email, id);

-- The rows that changed. Secrets are replaced by words.
CREATE TABLE audit_changes (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    entry      uuid NOT NULL,
    table_name text NOT NULL,
    key        text NOT NULL,
    before     jsonb,                               -- null: the row is new
    after      jsonb                                -- null: the row was deleted
);
CREATE INDEX audit_changes_entry ON audit_changes (entry, id);

-- +goose StatementBegin
CREATE FUNCTION audit_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('berth.audit_retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit log is only appended to: % of % is refused', TG_OP, TG_TABLE_NAME;
END $$;

-- What is secret, or is a user's own text that may hold secrets, is not shown; that it changed is.
CREATE FUNCTION audit_shown(r jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_object_agg(key, CASE
        WHEN value = 'null' THEN value
        WHEN key ~ '(_sealed|_hash)$' OR key IN ('dotfiles', 'bootstrap_script', 'environ') THEN '"(not shown)"'
        WHEN length(value::text) > 4000 THEN '"(too long to be shown)"'
        ELSE value END)
    FROM jsonb_each(r)
$$;

-- Notes a change of a row in a transaction that is recorded. Its arguments are the columns of the key.
CREATE FUNCTION audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    row_key text;
    old_cut jsonb;
    new_cut jsonb;
BEGIN
    SELECT string_agg(coalesce(new_row, old_row) ->> c, '/' ORDER BY n) INTO row_key FROM unnest(TG_ARGV) WITH ORDINALITY AS k (c, n);
    old_cut := audit_shown(old_row);
    new_cut := audit_shown(new_row);
    IF TG_OP = 'UPDATE' THEN
        SELECT jsonb_object_agg(o.key, old_cut -> o.key), jsonb_object_agg(o.key, new_cut -> o.key) INTO old_cut, new_cut
        FROM jsonb_each(old_row) o WHERE o.value IS DISTINCT FROM new_row -> o.key AND o.key <> 'modified_at';
        IF old_cut IS NULL THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO audit_changes (entry, table_name, key, before, after)
    VALUES (current_setting('berth.audit')::uuid, TG_TABLE_NAME, row_key, old_cut, new_cut);
    RETURN NULL;
END $$;

-- Attaches audit_change to a table.
CREATE FUNCTION audit_table(of_table text, columns text, VARIADIC key text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE %s ON %I FOR EACH ROW
        WHEN (current_setting(''berth.audit'', true) <> '''') EXECUTE FUNCTION audit_change(%s)',
        CASE WHEN columns = '' THEN '' ELSE 'OF ' || columns END, of_table,
        (SELECT string_agg(quote_literal(k), ', ') FROM unnest(key) k));
END $$;
-- +goose StatementEnd

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_log FOR EACH ROW EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER append_only_all BEFORE TRUNCATE ON audit_log FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit_changes FOR EACH ROW EXECUTE FUNCTION audit_append_only();
CREATE TRIGGER append_only_all BEFORE TRUNCATE ON audit_changes FOR EACH STATEMENT EXECUTE FUNCTION audit_append_only();

SELECT audit_table('domains', '', 'name');
SELECT audit_table('projects', '', 'id');
SELECT audit_table('project_members', '', 'project_id', 'user_id');
SELECT audit_table('users', '', 'id');
SELECT audit_table('keypairs', '', 'access_key');
SELECT audit_table('keypair_resource_policies', '', 'name');
SELECT audit_table('user_resource_policies', '', 'name');
SELECT audit_table('project_resource_policies', '', 'name');
SELECT audit_table('resource_groups', '', 'name');
SELECT audit_table('resource_groups_for_domains', '', 'resource_group', 'domain_name');
SELECT audit_table('resource_groups_for_projects', '', 'resource_group', 'project_id');
SELECT audit_table('resource_groups_for_keypairs', '', 'resource_group', 'access_key');
SELECT audit_table('resource_presets', '', 'id');
SELECT audit_table('agents', 'schedulable, resource_group', 'id');
SELECT audit_table('images', '', 'id');
SELECT audit_table('image_aliases', '', 'alias');
SELECT audit_table('idle_checkers', '', 'name');
SELECT audit_table('cluster_settings', '', 'key');
SELECT audit_table('folders', '', 'id');
SELECT audit_table('folder_permissions', '', 'folder_id', 'user_id');
SELECT audit_table('folder_invitations', '', 'id');
SELECT audit_table('sessions', 'name, priority', 'id');
DROP FUNCTION audit_table;
