-- +goose Up
-- Users who log in at the directory of the organisation (LDAP). Package tenancy/directory is the writer.
--
-- Where somebody logs in is a fact of the user: there is no way from one to the other. Whoever logs in at the directory has no password
-- here; when the identity is unlinked, the user is a local one again, whose password an administrator sets.
ALTER TABLE users ADD COLUMN login_directory text,
    ADD CONSTRAINT directory_users_have_no_password CHECK (login_directory IS NULL OR password_hash IS NULL),
    ADD CONSTRAINT users_login_directory FOREIGN KEY (login_directory, id) REFERENCES external_identities (provider, user_id)
        ON DELETE SET NULL (login_directory);
CREATE INDEX users_login_directory ON users (login_directory, id) WHERE login_directory IS NOT NULL;

-- Comparisons of the directory with the users here. The leader carries them out, one at a time; the newest are kept.
CREATE TABLE directory_syncs (
    id        uuid PRIMARY KEY,
    directory text NOT NULL,
    dry_run   boolean NOT NULL,
    asked_by  text NOT NULL,                       -- an email; '': the schedule
    allowance integer NOT NULL CHECK (allowance >= 0), -- how many users an administrator lets it take access from
    status    text NOT NULL CHECK (status IN ('waiting', 'running', 'done', 'stopped', 'failed')),
    message   text NOT NULL DEFAULT '',
    people    integer NOT NULL DEFAULT 0,          -- in the directory
    created   integer NOT NULL DEFAULT 0,
    updated   integer NOT NULL DEFAULT 0,
    removed   integer NOT NULL DEFAULT 0,          -- deactivated
    narrowed  integer NOT NULL DEFAULT 0,          -- left with less: of the changed ones
    refused   integer NOT NULL DEFAULT 0,
    diff      text[] NOT NULL DEFAULT '{}',
    asked_at  timestamptz NOT NULL DEFAULT now(),
    ended_at  timestamptz
);
CREATE INDEX directory_syncs_newest ON directory_syncs (directory, asked_at DESC, id);
CREATE INDEX directory_syncs_open ON directory_syncs (asked_at, id) WHERE status IN ('waiting', 'running');
CREATE TRIGGER audit_change AFTER INSERT ON directory_syncs FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
