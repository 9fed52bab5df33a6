-- +goose Up
-- Users, projects and domains that are being forgotten with all that they own. tenancy/purge writes the rows; its loop on the leader takes
-- one bounded step of each after the other and deletes the row with the last. What is left to do is read from the other tables, so a
-- manager that takes over goes on where the last one stopped.
CREATE TABLE purges (
    id          uuid PRIMARY KEY,                   -- of the background task that tells how far it is
    kind        text NOT NULL CHECK (kind IN ('user', 'project', 'domain')),
    subject     text NOT NULL,                      -- id of the user or project, name of the domain
    name        text NOT NULL,                      -- for people: email or name
    domain_name text NOT NULL,
    heir_id     uuid REFERENCES users(id) ON DELETE SET NULL, -- who gets folders that others have a share of; null: nobody does
    keep_shared boolean NOT NULL,
    parent_id   uuid REFERENCES purges(id) ON DELETE SET NULL, -- the purge of a domain that this belongs to
    message     text NOT NULL DEFAULT '',
    done        bigint NOT NULL DEFAULT 0,          -- what was removed so far
    tried_at    timestamptz,
    created_at  timestamptz NOT NULL DEFAULT now(),
    UNIQUE (kind, subject)
);
CREATE INDEX purges_parent ON purges (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX sessions_ended_of_project ON sessions (project_id) WHERE ended_at IS NOT NULL;
DROP INDEX folders_creator; -- of migration 0037, which knows the folders of projects alone
CREATE INDEX folders_creator ON folders (creator_id) WHERE creator_id IS NOT NULL;
CREATE INDEX users_domain ON users (domain_name);
