-- +goose Up
-- How far the audit log was sent to a syslog receiver. Entries are sent in the order (tx, id), and only those of transactions older than all
-- that still run: their numbers are given before they are committed, so that by number alone one could come after its place was passed.
-- Rows of before have no tx and were never to be sent.
ALTER TABLE audit_log ADD COLUMN tx xid8;
ALTER TABLE audit_log ALTER COLUMN tx SET DEFAULT pg_current_xact_id();
CREATE INDEX audit_log_tx ON audit_log (tx, id) WHERE tx IS NOT NULL;

-- One row for each kind of receiver. Writer: package audit/syslog.
CREATE TABLE audit_exports (
    name          text PRIMARY KEY,
    tx            xid8 NOT NULL,             -- of the last entry that was sent
    id            bigint NOT NULL,
    sent_at       timestamptz,
    failing_since timestamptz,               -- null: the last attempt succeeded
    problem       text NOT NULL DEFAULT ''
);
