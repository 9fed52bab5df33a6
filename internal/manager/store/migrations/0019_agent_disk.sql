-- +goose Up
-- Why an agent gets no more kernels for want of disk, in its words; '' when it may. Writer: node.Reports, from the agent's facts.
ALTER TABLE agents ADD COLUMN disk_problem text NOT NULL DEFAULT '';
CREATE TRIGGER agent_disk_changed AFTER UPDATE OF disk_problem ON agents FOR EACH ROW WHEN (OLD.disk_problem <> NEW.disk_problem)
    EXECUTE FUNCTION scheduling_changed('agent', 'id');
