-- +goose Up
-- What an operator should know of an agent: a JSON array of cluster.Condition. Writer: node.Reports, from the agent's facts.
ALTER TABLE agents ADD COLUMN conditions jsonb NOT NULL DEFAULT '[]';
-- How the manager judges an agent by what became of the sessions it was given: a cluster.Trial as JSON, '{}' when the last one started.
-- Writers: node.Reports by what agents report, the scheduler's commit when it sends a probe, administrators by allowing scheduling.
ALTER TABLE agents ADD COLUMN trial jsonb NOT NULL DEFAULT '{}';
CREATE TRIGGER agent_conditions_changed AFTER UPDATE OF conditions, trial ON agents FOR EACH ROW
    WHEN (OLD.conditions <> NEW.conditions OR OLD.trial <> NEW.trial) EXECUTE FUNCTION scheduling_changed('agent', 'id');
-- The oldest ended sessions are found by it when they are forgotten.
CREATE INDEX sessions_ended_at ON sessions (ended_at) WHERE ended_at IS NOT NULL;
CREATE INDEX background_tasks_updated ON background_tasks (updated_at);
