-- +goose Up
-- Accelerators of an agent that are not healthy, as [{"slot", "id", "problem"}]; written with the agent's facts.
ALTER TABLE agents ADD COLUMN broken_devices jsonb NOT NULL DEFAULT '[]';
-- The newest generation of a kernel whose owner was told that it lost a device; written by the sweep.
ALTER TABLE kernels ADD COLUMN told_loss bigint NOT NULL DEFAULT 0;
-- How often a batch session starts again elsewhere after such a loss, and how often it did.
ALTER TABLE sessions ADD COLUMN retries smallint NOT NULL DEFAULT 0 CHECK (retries BETWEEN 0 AND 10),
    ADD COLUMN retried smallint NOT NULL DEFAULT 0 CHECK (retried BETWEEN 0 AND retries);

DROP TRIGGER notice ON session_events;
CREATE TRIGGER notice AFTER INSERT ON session_events FOR EACH ROW
    WHEN (NEW.kernel_id IS NULL AND NEW.event IN ('session_terminated', 'session_cancelled', 'session_idle_warning', 'session_device_lost'))
    EXECUTE FUNCTION notice_of_session();
