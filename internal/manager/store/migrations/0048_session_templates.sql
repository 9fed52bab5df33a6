-- +goose Up
-- Templates of sessions: what somebody wrote down to start sessions from. Package template is the writer.
CREATE TABLE session_templates (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL CHECK (kind IN ('session', 'cluster')),
    name        text NOT NULL,
    user_id     uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    project_id  uuid NOT NULL REFERENCES projects ON DELETE CASCADE,
    document    json NOT NULL,                      -- checked, in one spelling and order
    created_at  timestamptz NOT NULL DEFAULT now(),
    modified_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (user_id, kind, name)
);
CREATE INDEX session_templates_project ON session_templates (project_id);

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON session_templates FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
