-- +goose Up
-- A kernel that goes back into the queue before its siblings have stopped gives back its slots although its session does
-- not change.
CREATE TRIGGER kernel_rescheduled AFTER UPDATE OF status ON kernels FOR EACH ROW
    WHEN (OLD.status = 'TERMINATING' AND NEW.status = 'PENDING') EXECUTE FUNCTION scheduling_changed('session', 'session_id');
