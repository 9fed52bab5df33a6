-- +goose Up
-- What changed of objects other than sessions, for readers of live events: which object, and whether it was made, changed or deleted. It
-- holds nothing of their content. Who is told is decided for each reader by what the object is now (store/facts); for one that is gone, by
-- whose it was. Written by triggers only; the leader drops rows after an hour. The condition on changed is that of migration 0004.
CREATE TABLE object_changes (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    noun        text NOT NULL,
    id          text NOT NULL,
    kind        text NOT NULL CHECK (kind IN ('made', 'changed', 'deleted')),
    owner       uuid,                               -- these four: of what was deleted
    owner_role  text,
    domain_name text,
    project_id  uuid,
    changed     xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX object_changes_changed ON object_changes (changed);
CREATE INDEX object_changes_at ON object_changes (at);

-- +goose StatementBegin
-- Notes a change of a row. Arguments: the noun, the column of its key, and where it belongs to somebody the columns of the owner, the
-- domain and the project ('' for none). A row of a membership or a share changes its object, and is gone for whom it names.
CREATE FUNCTION object_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    part    boolean := TG_TABLE_NAME IN ('project_members', 'folder_permissions');
    unseen  text[] := ARRAY['modified_at', 'updated_at', 'changed', 'sized_at', 'tried', 'tried_at'];
    whose   uuid;
BEGIN
    IF TG_OP = 'UPDATE' AND old_row - unseen = new_row - unseen THEN
        RETURN NULL;
    END IF;
    IF TG_OP <> 'DELETE' OR part THEN
        INSERT INTO object_changes (noun, id, kind) VALUES (TG_ARGV[0], coalesce(new_row, old_row) ->> TG_ARGV[1],
            CASE WHEN TG_OP = 'INSERT' AND NOT part THEN 'made' ELSE 'changed' END);
    END IF;
    IF TG_OP = 'DELETE' THEN
        whose := (old_row ->> TG_ARGV[2])::uuid;
        INSERT INTO object_changes (noun, id, kind, owner, owner_role, domain_name, project_id)
        VALUES (TG_ARGV[0], old_row ->> TG_ARGV[1], 'deleted', whose,
            coalesce(CASE WHEN TG_TABLE_NAME = 'users' THEN old_row ->> 'role' END, (SELECT u.role FROM users u WHERE u.id = whose)),
            coalesce(old_row ->> TG_ARGV[3], CASE WHEN NOT part THEN (SELECT u.domain_name FROM users u WHERE u.id = whose) END),
            (old_row ->> TG_ARGV[4])::uuid);
    END IF;
    PERFORM pg_notify('berth_wake', 'events');
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- Marks of use, and what agents say every few seconds, are no changes. The conditions keep the function out of those writes: sessions
-- and heartbeats make them.
CREATE TRIGGER object_changed AFTER INSERT OR DELETE ON folders FOR EACH ROW
    EXECUTE FUNCTION object_changed('folder', 'id', 'user_id', 'domain_name', 'project_id');
CREATE TRIGGER object_updated AFTER UPDATE ON folders FOR EACH ROW WHEN (OLD.last_used IS NOT DISTINCT FROM NEW.last_used)
    EXECUTE FUNCTION object_changed('folder', 'id', 'user_id', 'domain_name', 'project_id');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON folder_permissions FOR EACH ROW
    EXECUTE FUNCTION object_changed('folder', 'folder_id', 'user_id', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR DELETE ON agents FOR EACH ROW EXECUTE FUNCTION object_changed('agent', 'id', '', '', '');
CREATE TRIGGER object_updated AFTER UPDATE ON agents FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.schedulable <> NEW.schedulable OR OLD.resource_group <> NEW.resource_group
        OR OLD.engine_ok <> NEW.engine_ok OR OLD.version <> NEW.version OR OLD.conditions <> NEW.conditions OR OLD.capacity <> NEW.capacity)
    EXECUTE FUNCTION object_changed('agent', 'id', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON users FOR EACH ROW
    EXECUTE FUNCTION object_changed('user', 'id', 'id', 'domain_name', '');
CREATE TRIGGER object_changed AFTER INSERT OR DELETE ON keypairs FOR EACH ROW
    EXECUTE FUNCTION object_changed('keypair', 'access_key', 'user_id', '', '');
CREATE TRIGGER object_updated AFTER UPDATE ON keypairs FOR EACH ROW WHEN (OLD.num_queries = NEW.num_queries)
    EXECUTE FUNCTION object_changed('keypair', 'access_key', 'user_id', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON projects FOR EACH ROW
    EXECUTE FUNCTION object_changed('project', 'id', '', 'domain_name', 'id');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON project_members FOR EACH ROW
    EXECUTE FUNCTION object_changed('project', 'project_id', '', '', 'project_id');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON domains FOR EACH ROW
    EXECUTE FUNCTION object_changed('domain', 'name', '', 'name', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON keypair_resource_policies FOR EACH ROW
    EXECUTE FUNCTION object_changed('keypair-policy', 'name', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON user_resource_policies FOR EACH ROW
    EXECUTE FUNCTION object_changed('user-policy', 'name', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON project_resource_policies FOR EACH ROW
    EXECUTE FUNCTION object_changed('project-policy', 'name', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON resource_groups FOR EACH ROW
    EXECUTE FUNCTION object_changed('resource-group', 'name', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON resource_presets FOR EACH ROW
    EXECUTE FUNCTION object_changed('preset', 'id', '', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR DELETE ON images FOR EACH ROW
    EXECUTE FUNCTION object_changed('image', 'id', 'owner_id', '', 'project_id');
CREATE TRIGGER object_updated AFTER UPDATE ON images FOR EACH ROW WHEN (OLD.last_used_at IS NOT DISTINCT FROM NEW.last_used_at)
    EXECUTE FUNCTION object_changed('image', 'id', 'owner_id', '', 'project_id');
CREATE TRIGGER object_changed AFTER INSERT OR DELETE OR UPDATE OF status ON background_tasks FOR EACH ROW
    EXECUTE FUNCTION object_changed('task', 'id', 'owner', '', '');
-- The leader's mark is a row of the same table.
CREATE TRIGGER announcement_changed AFTER INSERT OR UPDATE ON cluster_settings FOR EACH ROW WHEN (NEW.key LIKE 'announcement%')
    EXECUTE FUNCTION object_changed('announcement', 'key', '', '', '');
