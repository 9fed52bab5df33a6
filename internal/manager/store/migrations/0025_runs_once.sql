-- +goose Up
-- Whether a batch session whose agent is lost may be started again although its command may have run. Writer: session, at its creation.
ALTER TABLE sessions ADD COLUMN rerun_on_agent_loss boolean NOT NULL DEFAULT false;

-- What a generation that its agent must still remove holds of the agent's devices. It is taken until the agent says that it is gone.
-- Writer: store, with the row.
ALTER TABLE kernel_removals ADD COLUMN allocation jsonb NOT NULL DEFAULT '{}';
UPDATE kernel_removals r SET allocation = k.allocation FROM kernels k
WHERE k.id = r.kernel_id AND k.generation = r.generation AND k.agent_id = r.agent_id;
CREATE TRIGGER kernel_removal_changed AFTER INSERT OR DELETE ON kernel_removals FOR EACH ROW
    EXECUTE FUNCTION scheduling_changed('agent', 'agent_id');

-- Everything that is taken of agents' devices.
CREATE VIEW held_devices AS
SELECT agent_id, allocation FROM kernels WHERE ended_at IS NULL AND status <> 'PENDING' AND agent_id IS NOT NULL
UNION ALL
SELECT agent_id, allocation FROM kernel_removals WHERE allocation <> '{}';
