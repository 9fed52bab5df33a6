-- name: FindImages :many
-- Alive images that a reference may mean: an alias, the full reference, a name without a tag, or the full reference after the
-- registry "local", which clients put together of the parts in lists.
SELECT sqlc.embed(i), coalesce(u.role, '')::text AS owner_role, coalesce(u.domain_name, p.domain_name, '')::text AS owner_domain
FROM images i LEFT JOIN image_aliases a ON a.image_id = i.id AND a.alias = @ref::text
LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id
WHERE i.status = 'ALIVE' AND (a.alias IS NOT NULL OR i.reference = @ref::text
   OR i.registry = 'local' AND 'local/' || i.reference = @ref::text
   OR i.reference LIKE replace(replace(replace(@ref::text, '\', '\\'), '%', '\%'), '_', '\_') || ':%')
ORDER BY (i.reference = @ref::text) DESC, (a.alias IS NOT NULL) DESC, i.created_at DESC, i.reference DESC;

-- name: ImageByID :one
SELECT sqlc.embed(i), coalesce(u.role, '')::text AS owner_role, coalesce(u.domain_name, p.domain_name, '')::text AS owner_domain
FROM images i LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id WHERE i.id = $1;

-- name: AliasesOf :many
SELECT alias, image_id FROM image_aliases WHERE image_id = ANY(@images::uuid[]) ORDER BY alias;

-- name: AgentsOf :many
-- The agents that offer images: they have the reference with the digest of the catalogue.
SELECT x.agent_id, i.id AS image_id FROM images i
JOIN agent_images x ON x.reference = i.reference AND x.architecture = i.architecture AND x.digest = i.digest
WHERE i.id = ANY(@images::uuid[]) ORDER BY x.agent_id;

-- name: SetAlias :exec
INSERT INTO image_aliases (alias, image_id) VALUES ($1, $2)
ON CONFLICT (alias) DO UPDATE SET image_id = excluded.image_id;

-- name: DropAlias :execrows
DELETE FROM image_aliases WHERE alias = $1;

-- name: ForgetImage :exec
UPDATE images SET status = 'DELETED' WHERE id = $1;

-- name: ImportImage :one
-- Takes an image into the catalogue or replaces what it says of one. What came from a session is left alone: no row then. An
-- automatic import keeps the scope of an image that is there, and one that was forgotten stays forgotten while its content is the same.
INSERT INTO images (id, reference, name, tag, project, registry, architecture, digest, size_bytes, labels, scope, project_id, origin)
VALUES (@id, @reference, @name, @tag, @project, @registry, @architecture, @digest, @size_bytes, @labels, @scope, @project_id, 'import')
ON CONFLICT (reference, architecture) DO UPDATE
   SET digest = excluded.digest, size_bytes = excluded.size_bytes, labels = excluded.labels,
       status = CASE WHEN @automatic::boolean AND images.digest = excluded.digest THEN images.status ELSE 'ALIVE' END,
       scope = CASE WHEN @automatic THEN images.scope ELSE excluded.scope END,
       project_id = CASE WHEN @automatic THEN images.project_id ELSE excluded.project_id END,
       created_at = CASE WHEN images.digest = excluded.digest THEN images.created_at ELSE now() END
   WHERE images.origin = 'import'
RETURNING id, (xmax = 0)::boolean AS added;

-- name: SeedAlias :exec
INSERT INTO image_aliases (alias, image_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: SetAgentImages :exec
-- What an agent says that it has, in place of what it said before.
WITH r AS (
    SELECT unnest(@refs::text[]) AS reference, unnest(@architectures::text[]) AS architecture, unnest(@digests::text[]) AS digest,
        unnest(@sizes::bigint[]) AS size_bytes
), gone AS (
    DELETE FROM agent_images x WHERE x.agent_id = @agent_id AND NOT x.reference = ANY(@refs::text[])
)
INSERT INTO agent_images (agent_id, reference, architecture, digest, size_bytes)
SELECT @agent_id, r.reference, r.architecture, r.digest, r.size_bytes FROM r
ON CONFLICT (agent_id, reference) DO UPDATE
   SET architecture = excluded.architecture, digest = excluded.digest, size_bytes = excluded.size_bytes
   WHERE (agent_images.architecture, agent_images.digest, agent_images.size_bytes)
      IS DISTINCT FROM (excluded.architecture, excluded.digest, excluded.size_bytes);

-- name: UnknownImages :many
-- What agents report and do not offer: the catalogue does not have it, or has it with another digest.
SELECT x.agent_id, x.reference, x.architecture, x.digest, x.size_bytes, coalesce(i.digest, '')::text AS catalogue_digest
FROM agent_images x LEFT JOIN images i ON i.reference = x.reference AND i.architecture = x.architecture AND i.status = 'ALIVE'
WHERE i.id IS NULL OR i.digest <> x.digest
ORDER BY x.reference, x.agent_id LIMIT @max_rows;

-- name: AgentImage :one
SELECT * FROM agent_images WHERE agent_id = $1 AND reference = $2;

-- name: TouchImage :exec
UPDATE images SET last_used_at = now() WHERE id = $1;

-- name: ImagesByID :many
SELECT * FROM images WHERE id = ANY(@ids::uuid[]);

-- name: LockCommits :exec
-- The commits of a user's sessions begin and end one after the other.
SELECT 1 FROM users WHERE id = $1 FOR NO KEY UPDATE;

-- name: CustomizedImages :one
-- What a user has made of sessions, besides an image that would be replaced, how many are being made, and what the user's policy allows.
SELECT p.name AS policy, p.max_customized_image_count AS most, p.max_customized_image_bytes AS most_bytes,
       (SELECT count(*) FROM images i WHERE i.owner_id = u.id AND i.origin = 'commit' AND i.status = 'ALIVE'
         AND i.reference <> @reference::text)::bigint AS made,
       ((SELECT coalesce(sum(i.size_bytes), 0) FROM images i WHERE i.owner_id = u.id AND i.origin = 'commit' AND i.status = 'ALIVE'
         AND i.reference <> @reference::text)
      + (SELECT coalesce(sum(r.size_bytes), 0) FROM image_removals r WHERE r.owner_id = u.id))::bigint AS bytes,
       (SELECT count(*) FROM background_tasks t JOIN sessions s ON s.id::text = t.subject
         WHERE t.kind = 'commit_session' AND t.status = 'started' AND s.user_id = u.id)::bigint AS making
FROM users u JOIN user_resource_policies p ON p.name = u.resource_policy WHERE u.id = @user_id;

-- name: KeepCommit :one
-- Takes an image of a session into the catalogue, or puts it in the place of an earlier one of the same owner: no row otherwise.
INSERT INTO images (id, reference, name, tag, project, registry, architecture, digest, size_bytes, labels, resources, scope, owner_id, origin, base_id,
    made_on)
VALUES (@id, @reference, @name, @tag, @project, 'local', @architecture, @digest, @size_bytes, @labels, @resources, 'user', @owner_id, 'commit',
    @base_id, @made_on)
ON CONFLICT (reference, architecture) DO UPDATE
   SET digest = excluded.digest, size_bytes = excluded.size_bytes, resources = excluded.resources,
       labels = excluded.labels || jsonb_build_object('ai.backend.customized-image.id', images.id),
       base_id = excluded.base_id, made_on = excluded.made_on, status = 'ALIVE', created_at = now()
   WHERE images.origin = 'commit' AND images.owner_id = excluded.owner_id
RETURNING id;

-- name: RemoveOldCommit :exec
-- The image of a session that is about to be replaced or forgotten is to be deleted where it was made.
INSERT INTO image_removals (agent_id, digest, reference, owner_id, size_bytes)
SELECT i.made_on, i.digest, i.reference, i.owner_id, i.size_bytes FROM images i JOIN agents a ON a.id = i.made_on
WHERE i.reference = @reference AND i.architecture = @architecture AND i.origin = 'commit' AND i.status = 'ALIVE' AND i.digest <> @new_digest
ON CONFLICT DO NOTHING;

-- name: RemoveCommit :exec
INSERT INTO image_removals (agent_id, digest, reference, owner_id, size_bytes) VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING;

-- name: DueImageRemovals :many
SELECT agent_id, digest, reference FROM image_removals WHERE next_at <= now() ORDER BY next_at, agent_id, digest LIMIT @max_rows;

-- name: DropImageRemoval :exec
DELETE FROM image_removals WHERE agent_id = $1 AND digest = $2;

-- name: DeferImageRemoval :exec
UPDATE image_removals SET next_at = now() + least(greatest(now() - created_at, interval '2 seconds'), @longest::interval)
WHERE agent_id = @agent_id AND digest = @digest;

-- name: PendingImageRemovals :one
SELECT EXISTS (SELECT 1 FROM image_removals)::boolean;

-- name: DigestTaken :one
-- Whether a digest is that of anything else than a reference.
SELECT (EXISTS (SELECT 1 FROM images i WHERE i.digest = @digest AND i.reference <> @reference)
     OR EXISTS (SELECT 1 FROM agent_images x WHERE x.digest = @digest AND x.reference <> @reference))::boolean;

-- name: ImageOfSession :one
SELECT coalesce(image_id::text, '')::text FROM sessions WHERE id = $1;

-- name: ImagesNamed :many
-- Alive images of exact references.
SELECT sqlc.embed(i), coalesce(u.role, '')::text AS owner_role, coalesce(u.domain_name, p.domain_name, '')::text AS owner_domain
FROM images i LEFT JOIN users u ON u.id = i.owner_id LEFT JOIN projects p ON p.id = i.project_id
WHERE i.status = 'ALIVE' AND i.reference = ANY(@refs::text[]) ORDER BY i.created_at DESC;
