-- +goose Up
-- Errors that clients saw and reported, for those who help their users. Package operation is the writer; the newest 500 of a user stay.
CREATE TABLE error_logs (
    id             uuid PRIMARY KEY,
    user_id        uuid NOT NULL REFERENCES users ON DELETE CASCADE,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    severity       text NOT NULL CHECK (severity IN ('critical', 'error', 'warning', 'info', 'debug')),
    source         text NOT NULL,
    message        text NOT NULL,
    context_lang   text NOT NULL,
    context_env    json NOT NULL,
    request_url    text,
    request_status integer,
    traceback      text,
    is_read        boolean NOT NULL DEFAULT false
);
CREATE INDEX error_logs_newest ON error_logs (created_at DESC, id);
CREATE INDEX error_logs_user ON error_logs (user_id, created_at DESC);

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON error_logs FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
