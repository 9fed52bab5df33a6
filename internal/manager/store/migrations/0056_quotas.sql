-- +goose Up
-- Hierarchical quotas: what a domain, a project or a user in a project is guaranteed and may have at most, in one resource group or (null)
-- in all of them together. Package resource is the writer, under the advisory lock of quotas.
CREATE TABLE quotas (
    id             uuid PRIMARY KEY,
    domain_name    text NOT NULL REFERENCES domains(name) ON DELETE CASCADE,
    project_id     uuid REFERENCES projects(id) ON DELETE CASCADE,      -- null: the domain
    user_id        uuid REFERENCES users(id) ON DELETE CASCADE,         -- null: the project
    resource_group text REFERENCES resource_groups(name) ON DELETE CASCADE,
    guaranteed     jsonb NOT NULL DEFAULT '{}',
    most           jsonb NOT NULL DEFAULT '{}',                         -- a slot that is absent has no limit
    weight         double precision CHECK (weight BETWEEN 0.001 AND 1000000),
    modified_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE NULLS NOT DISTINCT (domain_name, project_id, user_id, resource_group),
    CHECK (user_id IS NULL OR project_id IS NOT NULL),
    CHECK (weight IS NULL OR resource_group IS NULL)
);
CREATE INDEX quotas_project ON quotas (project_id);
CREATE INDEX quotas_user ON quotas (user_id);
CREATE TRIGGER quota_changed AFTER INSERT OR UPDATE OR DELETE ON quotas FOR EACH STATEMENT EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER audit_change AFTER INSERT OR UPDATE OR DELETE ON quotas FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('domain_name', 'project_id', 'user_id', 'resource_group');
