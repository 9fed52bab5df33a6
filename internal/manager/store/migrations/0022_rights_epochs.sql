-- +goose Up
-- Epochs of rights. Clients bring files to storage proxies and take them from there with tokens that live for hours. A token carries the
-- epochs of its user, of its folder and of the user's own permission for the folder, as they were before its rights were decided about.
-- An epoch changes in the transaction in which somebody gets to do less than before, whoever the writer is: these triggers are the only
-- one. Managers follow this table and tell storage proxies, which then refuse what is older.
--
-- Numbers come from one sequence, so that an epoch never returns to an older number after its row was forgotten.
CREATE SEQUENCE rights_epoch_numbers;
CREATE TABLE rights_epochs (
    subject    text PRIMARY KEY,                    -- user:<id>, folder:<id> or share:<user>:<folder>
    epoch      bigint NOT NULL,
    changed    xid8 NOT NULL,
    changed_at timestamptz NOT NULL
);
CREATE INDEX rights_epochs_changed ON rights_epochs (changed);
CREATE INDEX rights_epochs_changed_at ON rights_epochs (changed_at);

-- +goose StatementBegin
CREATE FUNCTION change_rights(subjects text[]) RETURNS void LANGUAGE sql AS $$
    INSERT INTO rights_epochs AS r (subject, epoch, changed, changed_at)
    SELECT s, nextval('rights_epoch_numbers'), pg_current_xact_id(), clock_timestamp()
    FROM (SELECT DISTINCT unnest(subjects) AS s ORDER BY 1) AS sorted   -- in one order, so that transactions do not wait in a circle
    ON CONFLICT (subject) DO UPDATE
        -- The number is drawn again once the row is locked: epochs of a subject grow in the order of commits.
        SET epoch = nextval('rights_epoch_numbers'), changed = excluded.changed, changed_at = excluded.changed_at;
    SELECT pg_notify('berth_wake', 'rights');
$$;

CREATE FUNCTION rights_of_folder() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY['folder:' || OLD.id]);
    RETURN NULL;
END $$;

CREATE FUNCTION rights_of_share() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A new permission may be less than what all members of the folder's project had.
    IF TG_OP <> 'INSERT' THEN
        PERFORM change_rights(ARRAY['share:' || OLD.user_id || ':' || OLD.folder_id]);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM change_rights(ARRAY['share:' || NEW.user_id || ':' || NEW.folder_id]);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION rights_of_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY['user:' || OLD.id]);
    RETURN NULL;
END $$;

-- For keypairs and memberships: what OLD.user_id may do.
CREATE FUNCTION rights_of_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY['user:' || OLD.user_id]);
    RETURN NULL;
END $$;

CREATE FUNCTION rights_of_project() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY(SELECT 'folder:' || f.id FROM folders f WHERE f.project_id = OLD.id)
        || ARRAY(SELECT 'user:' || m.user_id FROM project_members m WHERE m.project_id = OLD.id));
    RETURN NULL;
END $$;

CREATE FUNCTION rights_of_domain() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY(SELECT 'user:' || u.id FROM users u WHERE u.domain_name = OLD.name));
    RETURN NULL;
END $$;

CREATE FUNCTION rights_of_policy() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM change_rights(ARRAY(SELECT 'user:' || k.user_id FROM keypairs k WHERE k.resource_policy = OLD.name));
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER rights_deleted AFTER DELETE ON folders FOR EACH ROW EXECUTE FUNCTION rights_of_folder();
CREATE TRIGGER rights_changed AFTER UPDATE OF status, user_id, project_id, permission, host, quota_scope, domain_name ON folders
    FOR EACH ROW WHEN (
        OLD.status <> NEW.status AND (NEW.status LIKE 'delete-%' OR NEW.status = 'error')
        OR OLD.user_id IS DISTINCT FROM NEW.user_id OR OLD.project_id IS DISTINCT FROM NEW.project_id OR OLD.permission <> NEW.permission
        OR OLD.host <> NEW.host OR OLD.quota_scope <> NEW.quota_scope OR OLD.domain_name <> NEW.domain_name
    ) EXECUTE FUNCTION rights_of_folder();
CREATE TRIGGER rights_changed AFTER INSERT OR UPDATE OR DELETE ON folder_permissions FOR EACH ROW EXECUTE FUNCTION rights_of_share();
CREATE TRIGGER rights_deleted AFTER DELETE ON users FOR EACH ROW EXECUTE FUNCTION rights_of_user();
CREATE TRIGGER rights_changed AFTER UPDATE OF status, role, domain_name, allowed_client_ip ON users FOR EACH ROW WHEN (
        OLD.status <> NEW.status OR OLD.role <> NEW.role OR OLD.domain_name <> NEW.domain_name
        OR OLD.allowed_client_ip IS DISTINCT FROM NEW.allowed_client_ip
    ) EXECUTE FUNCTION rights_of_user();
CREATE TRIGGER rights_deleted AFTER DELETE ON keypairs FOR EACH ROW EXECUTE FUNCTION rights_of_owner();
-- Not secret_sealed: it changes for all keypairs when the master key is replaced, and a keypair keeps its secret for life.
CREATE TRIGGER rights_changed AFTER UPDATE OF is_active, user_id, resource_policy ON keypairs FOR EACH ROW WHEN (
        OLD.is_active AND NOT NEW.is_active OR OLD.user_id <> NEW.user_id OR OLD.resource_policy <> NEW.resource_policy
    ) EXECUTE FUNCTION rights_of_owner();
CREATE TRIGGER rights_changed AFTER UPDATE OR DELETE ON project_members FOR EACH ROW EXECUTE FUNCTION rights_of_owner();
CREATE TRIGGER rights_changed AFTER UPDATE OF is_active, allowed_vfolder_hosts, type, domain_name ON projects FOR EACH ROW WHEN (
        OLD.is_active <> NEW.is_active OR OLD.allowed_vfolder_hosts <> NEW.allowed_vfolder_hosts OR OLD.type <> NEW.type
        OR OLD.domain_name <> NEW.domain_name
    ) EXECUTE FUNCTION rights_of_project();
CREATE TRIGGER rights_changed AFTER UPDATE OF is_active, allowed_vfolder_hosts ON domains FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active OR OLD.allowed_vfolder_hosts <> NEW.allowed_vfolder_hosts) EXECUTE FUNCTION rights_of_domain();
CREATE TRIGGER rights_changed AFTER UPDATE OF allowed_vfolder_hosts ON keypair_resource_policies FOR EACH ROW
    WHEN (OLD.allowed_vfolder_hosts <> NEW.allowed_vfolder_hosts) EXECUTE FUNCTION rights_of_policy();
