-- Resource policies are written by administrators alone.

-- name: InsertKeypairPolicy :execrows
INSERT INTO keypair_resource_policies (name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: DeleteKeypairPolicy :execrows
DELETE FROM keypair_resource_policies WHERE name = $1;

-- name: UsersOfKeypairPolicy :many
SELECT count(*) OVER ()::bigint AS n, (u.email || ' (' || k.access_key || ')')::text AS who FROM keypairs k JOIN users u ON u.id = k.user_id
WHERE k.resource_policy = $1 ORDER BY 2 LIMIT 5;

-- name: InsertUserPolicy :execrows
INSERT INTO user_resource_policies (name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: LockUserPolicy :one
SELECT * FROM user_resource_policies WHERE name = $1 FOR UPDATE;

-- name: UpdateUserPolicy :exec
UPDATE user_resource_policies SET max_vfolder_count = @max_vfolder_count, max_quota_scope_size = @max_quota_scope_size,
    max_session_count_per_model_session = @max_session_count_per_model_session, max_customized_image_count = @max_customized_image_count,
    max_customized_image_bytes = @max_customized_image_bytes, max_concurrent_logins = @max_concurrent_logins
WHERE name = @name;

-- name: DeleteUserPolicy :execrows
DELETE FROM user_resource_policies WHERE name = $1;

-- name: UsersOfUserPolicy :many
SELECT count(*) OVER ()::bigint AS n, u.email::text AS who FROM users u WHERE u.resource_policy = $1 ORDER BY 2 LIMIT 5;

-- name: InsertProjectPolicy :execrows
INSERT INTO project_resource_policies (name) VALUES ($1) ON CONFLICT DO NOTHING;

-- name: LockProjectPolicy :one
SELECT * FROM project_resource_policies WHERE name = $1 FOR UPDATE;

-- name: UpdateProjectPolicy :exec
UPDATE project_resource_policies SET max_vfolder_count = @max_vfolder_count, max_quota_scope_size = @max_quota_scope_size,
    max_network_count = @max_network_count
WHERE name = @name;

-- name: DeleteProjectPolicy :execrows
DELETE FROM project_resource_policies WHERE name = $1;

-- name: UsersOfProjectPolicy :many
SELECT count(*) OVER ()::bigint AS n, (p.domain_name || '/' || p.name)::text AS who FROM projects p WHERE p.resource_policy = $1 ORDER BY 2 LIMIT 5;

-- name: KeypairPoliciesByName :many
SELECT * FROM keypair_resource_policies WHERE name = ANY(@names::text[]);

-- name: UserPoliciesByName :many
SELECT * FROM user_resource_policies WHERE name = ANY(@names::text[]);

-- name: ProjectPoliciesByName :many
SELECT * FROM project_resource_policies WHERE name = ANY(@names::text[]);
