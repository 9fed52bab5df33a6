-- +goose Up
-- What waits of an owner that is not active does not start. The scheduler hears of it like of a changed limit.
CREATE TRIGGER project_activity_changed AFTER UPDATE OF is_active ON projects FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER domain_activity_changed AFTER UPDATE OF is_active ON domains FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER user_activity_changed AFTER UPDATE OF status ON users FOR EACH ROW
    WHEN (OLD.status <> NEW.status) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER keypair_activity_changed AFTER UPDATE OF is_active, replaced_by ON keypairs FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active OR OLD.replaced_by IS DISTINCT FROM NEW.replaced_by) EXECUTE FUNCTION scheduling_changed('quota');

-- Whether a keypair is active, or one that replaced it.
-- +goose StatementBegin
CREATE FUNCTION key_lives_on(key text) RETURNS boolean LANGUAGE sql STABLE AS $$
    WITH RECURSIVE later AS (
        SELECT k.access_key, k.replaced_by, k.is_active FROM keypairs k WHERE k.access_key = key
        UNION SELECT k.access_key, k.replaced_by, k.is_active FROM later JOIN keypairs k ON k.access_key = later.replaced_by
    )
    SELECT coalesce(bool_or(is_active), false) FROM later
$$;
-- +goose StatementEnd
