-- +goose Up
-- Keypairs that were deleted stay as rows (migration 0041) and are in no list: they count apart (migration 0037).
-- +goose StatementBegin
CREATE FUNCTION keypair_standing(is_active boolean, deleted_at timestamptz) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN deleted_at IS NOT NULL THEN 'deleted' ELSE is_active::text END
$$;

CREATE OR REPLACE FUNCTION count_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    VALUES ('users', OLD.domain_name, OLD.role, OLD.status, -1), ('users', NEW.domain_name, NEW.role, NEW.status, 1);
    IF OLD.domain_name <> NEW.domain_name OR OLD.role <> NEW.role THEN
        INSERT INTO list_counts (list, domain_name, owner_role, status, n)
        SELECT 'keypairs', v.domain_name, v.role, keypair_standing(k.is_active, k.deleted_at), v.sign * count(*) FROM keypairs k,
            (VALUES (OLD.domain_name, OLD.role, -1), (NEW.domain_name, NEW.role, 1)) v (domain_name, role, sign)
        WHERE k.user_id = NEW.id GROUP BY v.domain_name, v.role, v.sign, 4;
        INSERT INTO list_counts (list, domain_name, owner_role, status, kind, n)
        SELECT 'folders', f.domain_name, v.role, f.status, 'user', v.sign * count(*) FROM folders f, (VALUES (OLD.role, -1), (NEW.role, 1)) v (role, sign)
        WHERE f.user_id = NEW.id GROUP BY f.domain_name, v.role, v.sign, f.status;
        INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n)
        SELECT 'images', v.domain_name, v.role, i.status, i.scope, i.registry, v.sign * count(*) FROM images i,
            (VALUES (OLD.domain_name, OLD.role, -1), (NEW.domain_name, NEW.role, 1)) v (domain_name, role, sign)
        WHERE i.owner_id = NEW.id GROUP BY v.domain_name, v.role, v.sign, i.status, i.scope, i.registry;
    END IF;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION count_keypairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (SELECT c.user_id FROM changed c) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    SELECT 'keypairs', u.domain_name, u.role, keypair_standing(c.is_active, c.deleted_at), CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed c JOIN users u ON u.id = c.user_id GROUP BY u.domain_name, u.role, 4;
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION count_keypair_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (OLD.user_id, NEW.user_id) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    SELECT 'keypairs', u.domain_name, u.role, v.standing, v.sign
    FROM (VALUES (OLD.user_id, keypair_standing(OLD.is_active, OLD.deleted_at), -1), (NEW.user_id, keypair_standing(NEW.is_active, NEW.deleted_at), 1))
        v (user_id, standing, sign) JOIN users u ON u.id = v.user_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

DROP TRIGGER keypairs_count_changed ON keypairs;
CREATE TRIGGER keypairs_count_changed AFTER UPDATE ON keypairs FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active OR OLD.user_id <> NEW.user_id OR (OLD.deleted_at IS NULL) <> (NEW.deleted_at IS NULL))
    EXECUTE FUNCTION count_keypair_changed();
