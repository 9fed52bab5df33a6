-- name: FindImages :many
-- Alive images that a reference may mean: an alias, the full reference, or a name without a tag.
SELECT i.*, (a.alias IS NOT NULL)::boolean AS by_alias, (i.reference = @ref::text)::boolean AS exact
FROM images i LEFT JOIN image_aliases a ON a.image_id = i.id AND a.alias = @ref::text
WHERE i.status = 'ALIVE' AND (a.alias IS NOT NULL OR i.reference = @ref::text
   OR i.reference LIKE replace(replace(replace(@ref::text, '\', '\\'), '%', '\%'), '_', '\_') || ':%')
ORDER BY (i.reference = @ref::text) DESC, (a.alias IS NOT NULL) DESC, i.created_at DESC, i.reference DESC;

-- name: ImageByID :one
SELECT * FROM images WHERE id = $1;

-- name: AliasesOf :many
SELECT alias, image_id FROM image_aliases WHERE image_id = ANY(@images::uuid[]) ORDER BY alias;

-- name: AgentsOf :many
SELECT agent_id, image_id FROM agent_images WHERE image_id = ANY(@images::uuid[]) ORDER BY agent_id;

-- name: SetAlias :exec
INSERT INTO image_aliases (alias, image_id) VALUES ($1, $2)
ON CONFLICT (alias) DO UPDATE SET image_id = excluded.image_id;

-- name: DropAlias :execrows
DELETE FROM image_aliases WHERE alias = $1;

-- name: ForgetImage :exec
UPDATE images SET status = 'DELETED' WHERE id = $1;

-- name: UpsertImage :one
INSERT INTO images (id, reference, name, tag, project, registry, architecture, digest, size_bytes, labels)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (reference, architecture) DO UPDATE
   SET digest = excluded.digest, size_bytes = excluded.size_bytes, labels = excluded.labels, status = 'ALIVE',
       created_at = CASE WHEN images.digest = excluded.digest THEN images.created_at ELSE now() END
RETURNING id, (xmax = 0)::boolean AS added;

-- name: SeedAlias :exec
INSERT INTO image_aliases (alias, image_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: ClearAgentImages :exec
DELETE FROM agent_images WHERE agent_id = $1 AND NOT image_id = ANY(@keep::uuid[]);

-- name: SetAgentImage :exec
INSERT INTO agent_images (agent_id, image_id, digest) VALUES ($1, $2, $3)
ON CONFLICT (agent_id, image_id) DO UPDATE SET digest = excluded.digest;

-- name: TouchImage :exec
UPDATE images SET last_used_at = now() WHERE id = $1;

-- name: ImagesByID :many
SELECT * FROM images WHERE id = ANY(@ids::uuid[]);

-- name: CustomizedImages :one
-- How many images a user has made of sessions or is making, besides one that would be replaced, and how many the user's policy allows.
SELECT p.name AS policy, p.max_customized_image_count AS most,
       ((SELECT count(*) FROM images i WHERE i.status = 'ALIVE' AND i.reference <> @reference::text
         AND i.labels->>'ai.backend.customized-image.owner' = 'user:' || u.id::text)
      + (SELECT count(*) FROM background_tasks t JOIN sessions s ON s.id::text = t.subject
         WHERE t.kind = 'commit_session' AND t.status = 'started' AND s.user_id = u.id))::bigint AS made
FROM users u JOIN user_resource_policies p ON p.name = u.resource_policy WHERE u.id = @user_id;
