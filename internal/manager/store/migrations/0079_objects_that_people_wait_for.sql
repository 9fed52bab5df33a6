-- +goose Up
-- Readers of live events hear of three more things, which their pages asked for again and again: invitations to folders, published ways
-- to apps (circuits) with whom they are shared with, and the queue of a resource group, whose sessions wait for another reason than before.
-- The last is written by the leader (ExplainPending), once for a group and a commit; the others by the trigger of migration 0073, which
-- takes a share of a circuit for a part of it here.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION object_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    old_row jsonb := CASE WHEN TG_OP <> 'INSERT' THEN to_jsonb(OLD) END;
    new_row jsonb := CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) END;
    part    boolean := TG_TABLE_NAME IN ('project_members', 'folder_permissions', 'circuit_shares');
    unseen  text[] := ARRAY['modified_at', 'updated_at', 'changed', 'sized_at', 'tried', 'tried_at', 'revision'];
    whose   uuid;
BEGIN
    IF TG_OP = 'UPDATE' AND old_row - unseen = new_row - unseen THEN
        RETURN NULL;
    END IF;
    IF TG_OP <> 'DELETE' OR part THEN
        INSERT INTO object_changes (noun, id, kind) VALUES (TG_ARGV[0], coalesce(new_row, old_row) ->> TG_ARGV[1],
            CASE WHEN TG_OP = 'INSERT' AND NOT part THEN 'made' ELSE 'changed' END);
    END IF;
    IF TG_OP = 'DELETE' OR TG_OP = 'UPDATE' AND (
        old_row ->> TG_ARGV[2] IS DISTINCT FROM new_row ->> TG_ARGV[2] OR old_row ->> TG_ARGV[3] IS DISTINCT FROM new_row ->> TG_ARGV[3]
        OR old_row ->> TG_ARGV[4] IS DISTINCT FROM new_row ->> TG_ARGV[4]
        OR TG_TABLE_NAME = 'users' AND old_row ->> 'role' IS DISTINCT FROM new_row ->> 'role') THEN
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

CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON folder_invitations FOR EACH ROW
    EXECUTE FUNCTION object_changed('invitation', 'id', 'invitee_id', '', '');
-- Visits are marked on circuits every few seconds.
CREATE TRIGGER object_changed AFTER INSERT OR DELETE ON circuits FOR EACH ROW EXECUTE FUNCTION object_changed('circuit', 'id', 'user_id', '', '');
CREATE TRIGGER object_updated AFTER UPDATE ON circuits FOR EACH ROW WHEN (OLD.last_activity IS NOT DISTINCT FROM NEW.last_activity)
    EXECUTE FUNCTION object_changed('circuit', 'id', 'user_id', '', '');
CREATE TRIGGER object_changed AFTER INSERT OR UPDATE OR DELETE ON circuit_shares FOR EACH ROW
    EXECUTE FUNCTION object_changed('circuit', 'circuit_id', 'user_id', '', 'project_id');
