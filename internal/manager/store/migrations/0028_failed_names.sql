-- +goose Up

-- A session that ended in ERROR can be destroyed by its name (FailedSessionNamed).
CREATE INDEX sessions_failed_name ON sessions (access_key, name, created_at DESC) WHERE status = 'ERROR';
