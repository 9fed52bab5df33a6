-- +goose Up
-- What identity providers say by SCIM 2.0: users, groups, who is in which. Package tenancy/provision is the writer. It keeps what was said,
-- and package tenancy/identity makes accounts of it; a row that is not settled is one of which that is not done.
--
-- A token with a provider is for SCIM alone, and speaks for this provider in its owner's domain.
ALTER TABLE api_tokens ADD COLUMN provider text NOT NULL DEFAULT '' CHECK (char_length(provider) <= 64);

CREATE TABLE scim_users (
    id             uuid PRIMARY KEY,
    provider       text NOT NULL,
    domain_name    text NOT NULL REFERENCES domains(name) ON DELETE CASCADE,
    subject        text NOT NULL,                       -- of the identity
    user_id        uuid REFERENCES users(id) ON DELETE CASCADE, -- null: the rules have not let them in yet
    user_name      text NOT NULL CHECK (user_name <> ''),
    external_id    text NOT NULL,
    formatted_name text NOT NULL,
    given_name     text NOT NULL,
    family_name    text NOT NULL,
    display_name   text NOT NULL,
    email          text NOT NULL,
    active         boolean NOT NULL,
    deleted        boolean NOT NULL DEFAULT false,      -- it goes when the account is deactivated
    settled        boolean NOT NULL DEFAULT false,
    problem        text NOT NULL DEFAULT '',            -- why the rules do not let them in
    version        bigint NOT NULL DEFAULT 1,
    created_at     timestamptz NOT NULL DEFAULT now(),
    modified_at    timestamptz NOT NULL DEFAULT now(),
    UNIQUE (provider, subject)
);
CREATE UNIQUE INDEX scim_users_name ON scim_users (provider, lower(user_name));
CREATE INDEX scim_users_user ON scim_users (user_id);
CREATE INDEX scim_users_domain ON scim_users (domain_name);
CREATE INDEX scim_users_open ON scim_users (modified_at, id) WHERE NOT settled;

CREATE TABLE scim_groups (
    id           uuid PRIMARY KEY,
    provider     text NOT NULL,
    domain_name  text NOT NULL REFERENCES domains(name) ON DELETE CASCADE,
    display_name text NOT NULL CHECK (display_name <> ''),
    external_id  text NOT NULL,
    version      bigint NOT NULL DEFAULT 1,
    created_at   timestamptz NOT NULL DEFAULT now(),
    modified_at  timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX scim_groups_name ON scim_groups (provider, lower(display_name));
CREATE INDEX scim_groups_domain ON scim_groups (domain_name);

CREATE TABLE scim_members (
    group_id  uuid NOT NULL REFERENCES scim_groups(id) ON DELETE CASCADE,
    member_id uuid NOT NULL REFERENCES scim_users(id) ON DELETE CASCADE,
    PRIMARY KEY (group_id, member_id)
);
CREATE INDEX scim_members_member ON scim_members (member_id);

-- How many users a provider took access from, and when; an hour of it decides whether it may go on.
CREATE TABLE scim_removals (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    provider text NOT NULL,
    n        integer NOT NULL,
    at       timestamptz NOT NULL
);
CREATE INDEX scim_removals_provider ON scim_removals (provider, at);

-- An administrator's word that a provider may take access from more.
CREATE TABLE scim_allowances (
    provider text PRIMARY KEY,
    allowed  integer NOT NULL CHECK (allowed >= 0),
    until    timestamptz NOT NULL,
    given_by text NOT NULL
);

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE OF user_name, external_id, email, display_name, active, deleted ON scim_users
    FOR EACH ROW WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON scim_groups
    FOR EACH ROW WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
CREATE TRIGGER audit_change AFTER INSERT OR DELETE ON scim_members
    FOR EACH ROW WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('group_id', 'member_id');
CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON scim_allowances
    FOR EACH ROW WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('provider');
