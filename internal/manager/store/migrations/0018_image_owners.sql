-- +goose Up
-- Images have an owner and a scope, and only the manager writes the catalogue. What agents have is in agent_images alone, by name
-- and digest. An image of the catalogue is offered by the agents that report its reference with its digest.

ALTER TABLE images
    ADD COLUMN scope      text NOT NULL DEFAULT 'user' CHECK (scope IN ('user','project','global')),
    ADD COLUMN owner_id   uuid REFERENCES users(id) ON DELETE SET NULL,    -- who committed it; scope user without an owner: superadmins
    ADD COLUMN project_id uuid REFERENCES projects(id) ON DELETE SET NULL, -- of scope project
    ADD COLUMN origin     text NOT NULL DEFAULT 'import' CHECK (origin IN ('import','commit')),
    ADD COLUMN base_id    uuid REFERENCES images(id) ON DELETE SET NULL,   -- what a commit was made of
    ADD COLUMN made_on    text NOT NULL DEFAULT '';                        -- the agent that made a commit

-- Images of sessions belong to the user whom their label names. The others stay for superadmins.
UPDATE images SET origin = 'commit'
WHERE labels ? 'ai.backend.customized-image.owner' OR (registry = 'local' AND project = 'berth' AND name LIKE 'commit-%');
UPDATE images i SET owner_id = u.id FROM users u
WHERE i.origin = 'commit' AND i.labels->>'ai.backend.customized-image.owner' = 'user:' || u.id::text;
UPDATE images SET scope = 'global' WHERE origin = 'import';
ALTER TABLE images ADD CONSTRAINT images_scope CHECK (
    scope = 'user' AND project_id IS NULL OR scope = 'project' AND owner_id IS NULL OR scope = 'global' AND owner_id IS NULL AND project_id IS NULL);
CREATE INDEX images_owner ON images (owner_id) WHERE owner_id IS NOT NULL;

-- What a session runs is what was resolved for it, whatever its reference means later.
ALTER TABLE sessions ADD COLUMN image_digest text NOT NULL DEFAULT '';
UPDATE sessions s SET image_digest = i.digest FROM images i WHERE i.id = s.image_id AND s.ended_at IS NULL;

ALTER TABLE user_resource_policies ADD COLUMN max_customized_image_bytes bigint NOT NULL DEFAULT 107374182400; -- 0 or less: no limit

-- Images of sessions that agents are to delete. Their bytes count for the owner until that is done.
CREATE TABLE image_removals (
    agent_id   text NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    digest     text NOT NULL,
    reference  text NOT NULL,
    owner_id   uuid REFERENCES users(id) ON DELETE SET NULL,
    size_bytes bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    next_at    timestamptz NOT NULL DEFAULT now(), -- of the next attempt
    PRIMARY KEY (agent_id, digest)
);
CREATE INDEX image_removals_owner ON image_removals (owner_id);

-- What agents say that they have; written by their reports alone.
CREATE TABLE reported_images (
    agent_id     text NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    reference    text NOT NULL,
    architecture text NOT NULL,
    digest       text NOT NULL,
    size_bytes   bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (agent_id, reference)
);
INSERT INTO reported_images SELECT x.agent_id, i.reference, min(i.architecture), min(x.digest), min(i.size_bytes)
FROM agent_images x JOIN images i ON i.id = x.image_id GROUP BY x.agent_id, i.reference;
DROP TABLE agent_images;
ALTER TABLE reported_images RENAME TO agent_images;
ALTER TABLE agent_images RENAME CONSTRAINT reported_images_pkey TO agent_images_pkey;
ALTER TABLE agent_images RENAME CONSTRAINT reported_images_agent_id_fkey TO agent_images_agent_id_fkey;
CREATE INDEX agent_images_reference ON agent_images (reference);

CREATE TRIGGER agent_image_changed AFTER INSERT OR DELETE OR UPDATE ON agent_images
    FOR EACH ROW EXECUTE FUNCTION scheduling_changed('agent', 'agent_id');

-- A change of the catalogue changes what agents offer.
-- +goose StatementBegin
CREATE FUNCTION offers_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO scheduling_changes (kind, id) SELECT 'agent', x.agent_id FROM agent_images x WHERE x.reference = NEW.reference;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER image_added AFTER INSERT ON images FOR EACH ROW EXECUTE FUNCTION offers_changed();
CREATE TRIGGER image_changed AFTER UPDATE OF digest, status ON images FOR EACH ROW
    WHEN (OLD.digest <> NEW.digest OR OLD.status <> NEW.status) EXECUTE FUNCTION offers_changed();
