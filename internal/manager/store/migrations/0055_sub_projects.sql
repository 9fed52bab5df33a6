-- +goose Up
-- Projects may lie in projects of the same domain. What belongs to a project stays its own: members, totals, folders. Whoever administers
-- a project administers those below it. Package resource writes the column, under the lock of quotas.
ALTER TABLE projects ADD COLUMN parent_id uuid REFERENCES projects(id), ADD CHECK (parent_id <> id);
CREATE INDEX projects_parent ON projects (parent_id) WHERE parent_id IS NOT NULL;

CREATE TRIGGER project_placed AFTER UPDATE OF parent_id ON projects FOR EACH ROW
    WHEN (OLD.parent_id IS DISTINCT FROM NEW.parent_id) EXECUTE FUNCTION scheduling_changed('quota');

-- Who administers a project is remembered of actors.
CREATE TRIGGER actors_changed AFTER UPDATE OF parent_id ON projects FOR EACH STATEMENT EXECUTE FUNCTION actors_changed();

-- Those of a user's projects that the user administers: where a membership says so, and all below them. The depth is bounded, so that rows
-- which somebody broke by hand end it.
-- +goose StatementBegin
CREATE FUNCTION projects_led(member uuid) RETURNS SETOF uuid LANGUAGE sql STABLE AS $$
    WITH RECURSIVE led AS (
        SELECT m.project_id AS id, 0 AS depth FROM project_members m WHERE m.user_id = member AND m.is_admin
        UNION
        SELECT p.id, led.depth + 1 FROM led JOIN projects p ON p.parent_id = led.id WHERE led.depth < 16
    ) SELECT DISTINCT id FROM led
$$;
-- +goose StatementEnd
