-- +goose Up
-- Administrators of projects, what happens to sessions of those who leave a project, and apps of projects that are not active any more.

-- Who is true here administers the members of the project and their sessions. Writer: tenancy.Service.
ALTER TABLE project_members ADD COLUMN is_admin boolean NOT NULL DEFAULT false;

-- Who left a project lately. A loop of package session ends what they still run of it and forgets the row once nothing can come any more.
-- No foreign keys: users and projects may be gone before their rows here are.
CREATE TABLE project_leavers (
    project_id uuid NOT NULL,
    user_id    uuid NOT NULL,
    left_at    timestamptz NOT NULL,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_leavers_at ON project_leavers (left_at);

-- +goose StatementBegin
CREATE FUNCTION project_membership() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        DELETE FROM project_leavers WHERE project_id = NEW.project_id AND user_id = NEW.user_id;
    ELSE
        INSERT INTO project_leavers (project_id, user_id, left_at) VALUES (OLD.project_id, OLD.user_id, clock_timestamp())
        ON CONFLICT (project_id, user_id) DO UPDATE SET left_at = excluded.left_at;
        PERFORM pg_notify('berth_wake', 'rights');
    END IF;
    RETURN NULL;
END $$;

-- Who administers a project no more loses the tickets that they had of its members' apps.
CREATE FUNCTION circuit_of_project_admin() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM revoke_tickets_of(ARRAY[OLD.user_id]);
    RETURN NULL;
END $$;

-- The sessions of a project that is made inactive publish nothing.
CREATE FUNCTION circuit_of_project() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lost uuid[] := ARRAY(SELECT c.id FROM circuits c JOIN sessions s ON s.id = c.session_id WHERE s.project_id = NEW.id ORDER BY c.id);
BEGIN
    PERFORM c.id FROM circuits c WHERE c.id = ANY(lost) ORDER BY c.id FOR UPDATE;
    DELETE FROM circuits WHERE id = ANY(lost);
    DELETE FROM app_launches l USING sessions s WHERE s.id = l.session_id AND s.project_id = NEW.id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER project_joined AFTER INSERT ON project_members FOR EACH ROW EXECUTE FUNCTION project_membership();
CREATE TRIGGER project_left AFTER DELETE ON project_members FOR EACH ROW EXECUTE FUNCTION project_membership();
CREATE TRIGGER circuit_of_admin_dismissed AFTER UPDATE OF is_admin ON project_members FOR EACH ROW
    WHEN (OLD.is_admin AND NOT NEW.is_admin) EXECUTE FUNCTION circuit_of_project_admin();
CREATE TRIGGER circuit_of_admin_gone AFTER DELETE ON project_members FOR EACH ROW
    WHEN (OLD.is_admin) EXECUTE FUNCTION circuit_of_project_admin();
CREATE TRIGGER circuit_of_project AFTER UPDATE OF is_active ON projects FOR EACH ROW WHEN (OLD.is_active AND NOT NEW.is_active)
    EXECUTE FUNCTION circuit_of_project();

-- Live sessions of a project.
CREATE INDEX sessions_of_project ON sessions (project_id) WHERE ended_at IS NULL;
