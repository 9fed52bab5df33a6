-- +goose Up
-- Every list of the wire says how many items it has, and counting a hundred thousand rows takes longer than reading a page of them. What
-- lists are counted by is kept as ended sessions are (migration 0030): a row is a change of the number of rows of one table with one set of
-- properties, and the number is the sum. Written by triggers alone; the leader joins rows that count alike.
CREATE TABLE list_counts (
    list        text NOT NULL,                      -- the table that is counted
    domain_name text,                               -- null: of no domain
    owner_role  text NOT NULL DEFAULT '',           -- of the user whom the rows belong to, '' where there is none
    status      text NOT NULL DEFAULT '',
    kind        text NOT NULL DEFAULT '',           -- users and keypairs: ''; folders: user, project; images: the scope; agents: the resource group
    registry    text NOT NULL DEFAULT '',           -- of images
    n           bigint NOT NULL,
    joined      boolean NOT NULL DEFAULT false      -- made of several rows by the leader
);
CREATE INDEX list_counts_list ON list_counts (list, domain_name);
CREATE INDEX list_counts_new ON list_counts (joined) WHERE NOT joined;

-- Properties of owners are read under a lock on the owner, so that nobody changes a role meanwhile.
-- +goose StatementBegin
CREATE FUNCTION count_users() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    SELECT 'users', domain_name, role, status, CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END FROM changed GROUP BY domain_name, role, status;
    RETURN NULL;
END $$;

-- A user's domain or role is a property of what belongs to the user, too.
CREATE FUNCTION count_user_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    VALUES ('users', OLD.domain_name, OLD.role, OLD.status, -1), ('users', NEW.domain_name, NEW.role, NEW.status, 1);
    IF OLD.domain_name <> NEW.domain_name OR OLD.role <> NEW.role THEN
        INSERT INTO list_counts (list, domain_name, owner_role, status, n)
        SELECT 'keypairs', v.domain_name, v.role, k.is_active::text, v.sign * count(*) FROM keypairs k,
            (VALUES (OLD.domain_name, OLD.role, -1), (NEW.domain_name, NEW.role, 1)) v (domain_name, role, sign)
        WHERE k.user_id = NEW.id GROUP BY v.domain_name, v.role, v.sign, k.is_active;
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

-- Images outlive their users and projects. This comes before the foreign key empties their columns; then nothing changes any more.
CREATE FUNCTION count_owner_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n)
    SELECT 'images', v.domain_name, v.role, i.status, i.scope, i.registry, v.sign * count(*) FROM images i,
        (VALUES (OLD.domain_name, CASE TG_TABLE_NAME WHEN 'users' THEN to_jsonb(OLD) ->> 'role' ELSE '' END, -1), (NULL, '', 1)) v (domain_name, role, sign)
    WHERE CASE TG_TABLE_NAME WHEN 'users' THEN i.owner_id ELSE i.project_id END = OLD.id
    GROUP BY v.domain_name, v.role, v.sign, i.status, i.scope, i.registry;
    RETURN OLD;
END $$;

CREATE FUNCTION count_project_moved() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, status, kind, registry, n)
    SELECT 'images', v.domain_name, i.status, i.scope, i.registry, v.sign * count(*) FROM images i,
        (VALUES (OLD.domain_name, -1), (NEW.domain_name, 1)) v (domain_name, sign)
    WHERE i.project_id = NEW.id GROUP BY v.domain_name, v.sign, i.status, i.scope, i.registry;
    RETURN NULL;
END $$;

CREATE FUNCTION count_keypairs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (SELECT c.user_id FROM changed c) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    SELECT 'keypairs', u.domain_name, u.role, c.is_active::text, CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed c JOIN users u ON u.id = c.user_id GROUP BY u.domain_name, u.role, c.is_active;
    RETURN NULL;
END $$;

CREATE FUNCTION count_keypair_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (OLD.user_id, NEW.user_id) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, n)
    SELECT 'keypairs', u.domain_name, u.role, v.is_active::text, v.sign
    FROM (VALUES (OLD.user_id, OLD.is_active, -1), (NEW.user_id, NEW.is_active, 1)) v (user_id, is_active, sign) JOIN users u ON u.id = v.user_id;
    RETURN NULL;
END $$;

CREATE FUNCTION count_folders() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (SELECT c.user_id FROM changed c) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, kind, n)
    SELECT 'folders', c.domain_name, coalesce(u.role, ''), c.status, CASE WHEN c.project_id IS NULL THEN 'user' ELSE 'project' END,
        CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed c LEFT JOIN users u ON u.id = c.user_id GROUP BY 2, 3, 4, 5;
    RETURN NULL;
END $$;

CREATE FUNCTION count_folder_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (OLD.user_id, NEW.user_id) ORDER BY u.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, kind, n)
    SELECT 'folders', v.domain_name, coalesce(u.role, ''), v.status, CASE WHEN v.project_id IS NULL THEN 'user' ELSE 'project' END, v.sign
    FROM (VALUES (OLD.domain_name, OLD.user_id, OLD.project_id, OLD.status, -1), (NEW.domain_name, NEW.user_id, NEW.project_id, NEW.status, 1))
        v (domain_name, user_id, project_id, status, sign) LEFT JOIN users u ON u.id = v.user_id;
    RETURN NULL;
END $$;

CREATE FUNCTION count_images() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (SELECT c.owner_id FROM changed c) ORDER BY u.id FOR SHARE;
    PERFORM 1 FROM projects p WHERE p.id IN (SELECT c.project_id FROM changed c) ORDER BY p.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n)
    SELECT 'images', coalesce(u.domain_name, p.domain_name), coalesce(u.role, ''), c.status, c.scope, c.registry,
        CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END
    FROM changed c LEFT JOIN users u ON u.id = c.owner_id LEFT JOIN projects p ON p.id = c.project_id GROUP BY 2, 3, 4, 5, 6;
    RETURN NULL;
END $$;

CREATE FUNCTION count_image_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM users u WHERE u.id IN (OLD.owner_id, NEW.owner_id) ORDER BY u.id FOR SHARE;
    PERFORM 1 FROM projects p WHERE p.id IN (OLD.project_id, NEW.project_id) ORDER BY p.id FOR SHARE;
    INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n)
    SELECT 'images', coalesce(u.domain_name, p.domain_name), coalesce(u.role, ''), v.status, v.scope, v.registry, v.sign
    FROM (VALUES (OLD.owner_id, OLD.project_id, OLD.status, OLD.scope, OLD.registry, -1), (NEW.owner_id, NEW.project_id, NEW.status, NEW.scope, NEW.registry, 1))
        v (owner_id, project_id, status, scope, registry, sign) LEFT JOIN users u ON u.id = v.owner_id LEFT JOIN projects p ON p.id = v.project_id;
    RETURN NULL;
END $$;

CREATE FUNCTION count_agents() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        INSERT INTO list_counts (list, status, kind, n) VALUES ('agents', OLD.status, OLD.resource_group, -1);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO list_counts (list, status, kind, n) VALUES ('agents', NEW.status, NEW.resource_group, 1);
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION count_audit_log() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO list_counts (list, domain_name, owner_role, n)
    SELECT 'audit_log', domain_name, role, CASE TG_OP WHEN 'DELETE' THEN -count(*) ELSE count(*) END FROM changed GROUP BY domain_name, role;
    RETURN NULL;
END $$;
-- +goose StatementEnd

INSERT INTO list_counts (list, domain_name, owner_role, status, n, joined)
SELECT 'users', domain_name, role, status, count(*), true FROM users GROUP BY 2, 3, 4;
INSERT INTO list_counts (list, domain_name, owner_role, status, n, joined)
SELECT 'keypairs', u.domain_name, u.role, k.is_active::text, count(*), true FROM keypairs k JOIN users u ON u.id = k.user_id GROUP BY 2, 3, 4;
INSERT INTO list_counts (list, domain_name, owner_role, status, kind, n, joined)
SELECT 'folders', f.domain_name, coalesce(u.role, ''), f.status, CASE WHEN f.project_id IS NULL THEN 'user' ELSE 'project' END, count(*), true
FROM folders f LEFT JOIN users u ON u.id = f.user_id GROUP BY 2, 3, 4, 5;
INSERT INTO list_counts (list, domain_name, owner_role, status, kind, registry, n, joined)
SELECT 'images', coalesce(u.domain_name, p.domain_name), coalesce(u.role, ''), i.status, i.scope, i.registry, count(*), true
FROM images i LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id GROUP BY 2, 3, 4, 5, 6;
INSERT INTO list_counts (list, status, kind, n, joined) SELECT 'agents', status, resource_group, count(*), true FROM agents GROUP BY 2, 3;
INSERT INTO list_counts (list, domain_name, owner_role, n, joined) SELECT 'audit_log', domain_name, role, count(*), true FROM audit_log GROUP BY 2, 3;

CREATE TRIGGER users_count_inserted AFTER INSERT ON users REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_users();
CREATE TRIGGER users_count_deleted AFTER DELETE ON users REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_users();
CREATE TRIGGER users_count_changed AFTER UPDATE ON users FOR EACH ROW
    WHEN (OLD.domain_name <> NEW.domain_name OR OLD.role <> NEW.role OR OLD.status <> NEW.status) EXECUTE FUNCTION count_user_changed();
CREATE TRIGGER users_count_gone BEFORE DELETE ON users FOR EACH ROW EXECUTE FUNCTION count_owner_gone();
CREATE TRIGGER projects_count_gone BEFORE DELETE ON projects FOR EACH ROW EXECUTE FUNCTION count_owner_gone();
CREATE TRIGGER projects_count_moved AFTER UPDATE OF domain_name ON projects FOR EACH ROW WHEN (OLD.domain_name <> NEW.domain_name)
    EXECUTE FUNCTION count_project_moved();
CREATE TRIGGER keypairs_count_inserted AFTER INSERT ON keypairs REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_keypairs();
CREATE TRIGGER keypairs_count_deleted AFTER DELETE ON keypairs REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_keypairs();
CREATE TRIGGER keypairs_count_changed AFTER UPDATE ON keypairs FOR EACH ROW
    WHEN (OLD.is_active <> NEW.is_active OR OLD.user_id <> NEW.user_id) EXECUTE FUNCTION count_keypair_changed();
CREATE TRIGGER folders_count_inserted AFTER INSERT ON folders REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_folders();
CREATE TRIGGER folders_count_deleted AFTER DELETE ON folders REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_folders();
CREATE TRIGGER folders_count_changed AFTER UPDATE ON folders FOR EACH ROW
    WHEN ((OLD.domain_name, OLD.status, OLD.user_id, OLD.project_id) IS DISTINCT FROM (NEW.domain_name, NEW.status, NEW.user_id, NEW.project_id))
    EXECUTE FUNCTION count_folder_changed();
CREATE TRIGGER images_count_inserted AFTER INSERT ON images REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_images();
CREATE TRIGGER images_count_deleted AFTER DELETE ON images REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_images();
CREATE TRIGGER images_count_changed AFTER UPDATE ON images FOR EACH ROW
    WHEN ((OLD.owner_id, OLD.project_id, OLD.status, OLD.scope, OLD.registry) IS DISTINCT FROM (NEW.owner_id, NEW.project_id, NEW.status, NEW.scope, NEW.registry))
    EXECUTE FUNCTION count_image_changed();
CREATE TRIGGER agents_count_changed AFTER UPDATE OF status, resource_group ON agents FOR EACH ROW
    WHEN (OLD.status <> NEW.status OR OLD.resource_group <> NEW.resource_group) EXECUTE FUNCTION count_agents();
CREATE TRIGGER agents_count_new AFTER INSERT OR DELETE ON agents FOR EACH ROW EXECUTE FUNCTION count_agents();
CREATE TRIGGER audit_log_count_inserted AFTER INSERT ON audit_log REFERENCING NEW TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_audit_log();
CREATE TRIGGER audit_log_count_deleted AFTER DELETE ON audit_log REFERENCING OLD TABLE AS changed FOR EACH STATEMENT EXECUTE FUNCTION count_audit_log();

-- What pages and filters of lists are found by.
CREATE INDEX users_by_status ON users (status, created_at);
CREATE INDEX users_by_domain ON users (domain_name, created_at);
CREATE INDEX users_email_trigrams ON users USING gin (name_trigrams(email));
CREATE INDEX users_username_trigrams ON users USING gin (name_trigrams(username));
CREATE INDEX keypairs_inactive ON keypairs (created_at) WHERE NOT is_active;
CREATE INDEX folders_by_domain ON folders (domain_name, created_at DESC);
CREATE INDEX folders_creator ON folders (creator_id) WHERE project_id IS NOT NULL;
CREATE INDEX folders_trash ON folders (status, created_at DESC) WHERE status <> 'ready';
CREATE INDEX images_by_scope ON images (scope, reference);
CREATE INDEX images_project ON images (project_id) WHERE project_id IS NOT NULL;
CREATE INDEX agents_by_status ON agents (status, first_contact);
CREATE INDEX agents_seen ON agents (first_contact);

-- The rules of package authz ask for these. Without statistics the planner takes nearly nothing for visible and sorts what an index has in order.
CREATE STATISTICS images_registry_known ON (coalesce(registry, '')) FROM images;
CREATE STATISTICS users_role_known ON (coalesce(role, '')) FROM users;

-- Administrators of a domain read its events alone, however much happened elsewhere. Written with the event; '' where it has no name.
ALTER TABLE session_events ADD COLUMN domain_name text NOT NULL DEFAULT '';
UPDATE session_events e SET domain_name = s.domain_name FROM sessions s WHERE s.id = e.session_id AND e.event <> '';
CREATE INDEX session_events_domain ON session_events (domain_name, seq) WHERE event <> '';
