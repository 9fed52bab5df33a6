-- +goose Up
-- Who users are at identity providers (OIDC, LDAP, SCIM), and what these gave them. Package tenancy/identity is the writer of both.
-- A user has one identity at a provider: an address that the provider gives to somebody else does not open the account of who had it.
CREATE TABLE external_identities (
    provider    text NOT NULL CHECK (char_length(provider) BETWEEN 1 AND 64),
    subject     text NOT NULL CHECK (octet_length(subject) BETWEEN 1 AND 255),
    user_id     uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    email       text NOT NULL,                      -- as the provider said last
    given_role  text CHECK (given_role IN ('superadmin', 'admin', 'monitor')), -- the role that the provider gave; null: none
    role_before text CHECK (role_before IN ('admin', 'user', 'monitor')),      -- what the user was before it
    created_at  timestamptz NOT NULL DEFAULT now(),
    last_seen   timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (provider, subject),
    UNIQUE (provider, user_id),
    CHECK ((given_role IS NULL) = (role_before IS NULL))
);
CREATE INDEX external_identities_user ON external_identities (user_id);

-- The memberships that a provider gave. One that an administrator takes away ends here, too.
CREATE TABLE external_memberships (
    provider   text NOT NULL,
    user_id    uuid NOT NULL,
    project_id uuid NOT NULL,
    PRIMARY KEY (provider, user_id, project_id),
    FOREIGN KEY (provider, user_id) REFERENCES external_identities(provider, user_id) ON DELETE CASCADE,
    FOREIGN KEY (project_id, user_id) REFERENCES project_members(project_id, user_id) ON DELETE CASCADE
);
CREATE INDEX external_memberships_member ON external_memberships (project_id, user_id);

-- Providers write addresses with other capitals than administrators.
CREATE INDEX users_address ON users (lower(email));

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE OF subject, user_id, given_role ON external_identities FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('provider', 'subject');
CREATE TRIGGER audit_change AFTER INSERT OR DELETE ON external_memberships FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('provider', 'user_id', 'project_id');
