-- +goose Up
-- Notices by e-mail and webhook. Package notice writes all three tables; triggers fill notice_sources, in the transaction that a notice
-- would tell of, so that a manager which dies loses nothing.

-- Where a user wants to hear of what. No row: nowhere. The address of a webhook may itself be a secret, so the table has no trigger of the
-- audit log: that a user changed their preferences is recorded, what they changed is not.
CREATE TABLE notice_preferences (
    user_id               uuid PRIMARY KEY REFERENCES users(id) ON DELETE CASCADE,
    email_kinds           text[] NOT NULL DEFAULT '{}',
    webhook_url           text CHECK (char_length(webhook_url) <= 2048),
    webhook_kinds         text[] NOT NULL DEFAULT '{}',
    webhook_secret_sealed bytea,                                  -- signs what is sent there
    modified_at           timestamptz NOT NULL DEFAULT now(),
    CHECK (email_kinds <@ ARRAY['ended', 'failed', 'idle', 'shared']),
    CHECK (webhook_kinds <@ ARRAY['ended', 'failed', 'idle', 'shared']),
    CHECK ((webhook_url IS NULL) = (webhook_secret_sealed IS NULL))
);

-- What happened to somebody who has preferences, until it is decided whether it becomes a notice. The id is that of the notice.
CREATE TABLE notice_sources (
    id         uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    event      text NOT NULL,                                     -- of a session (cluster.EventName), 'invited' or 'granted'
    subject    uuid NOT NULL,                                     -- the session or the folder
    name       text NOT NULL,
    status     text NOT NULL DEFAULT '',                          -- these four: of a session
    result     text NOT NULL DEFAULT '',
    reason     text NOT NULL DEFAULT '',
    detail     text NOT NULL DEFAULT '',
    invitation uuid,                                              -- that it tells of
    at         timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX notice_sources_at ON notice_sources (at, id);
CREATE INDEX notice_sources_user ON notice_sources (user_id);

-- Notices on their way, and the last of each user that arrived or were given up.
CREATE TABLE notice_deliveries (
    notice_id    uuid NOT NULL,
    channel      text NOT NULL CHECK (channel IN ('email', 'webhook')),
    user_id      uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    kind         text NOT NULL CHECK (kind IN ('ended', 'failed', 'idle', 'shared', 'test')),
    subject_kind text NOT NULL CHECK (subject_kind IN ('session', 'folder', '')),
    subject      text NOT NULL,
    name         text NOT NULL,
    reason       text NOT NULL,
    words        text NOT NULL,                                   -- one sentence for people
    at           timestamptz NOT NULL,                            -- of what it tells
    state        text NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'failed')),
    attempts     integer NOT NULL DEFAULT 0,
    next_at      timestamptz NOT NULL,
    last_error   text NOT NULL DEFAULT '',
    made_at      timestamptz NOT NULL,
    done_at      timestamptz,
    PRIMARY KEY (notice_id, channel),
    CHECK ((state = 'waiting') = (done_at IS NULL))
);
CREATE INDEX notice_deliveries_due ON notice_deliveries (next_at) WHERE state = 'waiting';
CREATE INDEX notice_deliveries_user ON notice_deliveries (user_id, made_at DESC);
CREATE INDEX notice_deliveries_done ON notice_deliveries (done_at) WHERE state <> 'waiting';

-- +goose StatementBegin
CREATE FUNCTION notice_of_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notice_sources (user_id, event, subject, name, status, result, reason, detail)
    SELECT s.user_id, NEW.event, s.id, s.name, NEW.to_status, s.result, NEW.reason, NEW.detail
    FROM sessions s JOIN notice_preferences p ON p.user_id = s.user_id WHERE s.id = NEW.session_id;
    RETURN NULL;
END $$;

CREATE FUNCTION notice_of_invitation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notice_sources (user_id, event, subject, name, detail, invitation)
    SELECT NEW.invitee_id, 'invited', f.id, f.name, coalesce((SELECT u.email FROM users u WHERE u.id = NEW.inviter_id), ''), NEW.id
    FROM folders f JOIN notice_preferences p ON p.user_id = NEW.invitee_id WHERE f.id = NEW.folder_id;
    RETURN NULL;
END $$;

-- The invitation of a grant is the one that the same transaction accepts: it is written after the grant.
CREATE FUNCTION notice_of_grant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO notice_sources (user_id, event, subject, name, detail)
    SELECT NEW.user_id, 'granted', f.id, f.name, coalesce((SELECT o.name FROM projects o WHERE o.id = f.project_id),
        (SELECT u.email FROM users u WHERE u.id = f.user_id), '')
    FROM folders f JOIN notice_preferences p ON p.user_id = NEW.user_id WHERE f.id = NEW.folder_id;
    RETURN NULL;
END $$;
-- +goose StatementEnd

-- The condition keeps the function out of all other moves, of which there are many.
CREATE TRIGGER notice AFTER INSERT ON session_events FOR EACH ROW
    WHEN (NEW.kernel_id IS NULL AND NEW.event IN ('session_terminated', 'session_cancelled', 'session_idle_warning'))
    EXECUTE FUNCTION notice_of_session();
CREATE TRIGGER notice AFTER INSERT ON folder_invitations FOR EACH ROW EXECUTE FUNCTION notice_of_invitation();
CREATE TRIGGER notice AFTER INSERT ON folder_permissions FOR EACH ROW EXECUTE FUNCTION notice_of_grant();
