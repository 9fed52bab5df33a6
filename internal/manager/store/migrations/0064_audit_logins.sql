-- +goose Up
-- The audit log names the API token that something was done with, and tells of logins that were refused. Those are counted by package
-- audit, so that a flood of them is a few rows a minute: attempts says how many one row stands for. They are nobody's doing: user_id and
-- email are empty, role and domain_name are those of the account that was tried.
ALTER TABLE audit_log ADD COLUMN token text NOT NULL DEFAULT '';       -- the id of the API token, '' for none
ALTER TABLE audit_log ADD COLUMN means text NOT NULL DEFAULT '';       -- of a login that was refused, such as password
ALTER TABLE audit_log ADD COLUMN attempts bigint NOT NULL DEFAULT 1 CHECK (attempts > 0);
