-- Policies that limit folders.

-- name: UserPolicies :many
-- Policies of users: all of them, or those of one user.
SELECT p.* FROM user_resource_policies p
WHERE (@name::text = '' OR p.name = @name)
  AND (sqlc.narg('user_id')::uuid IS NULL OR EXISTS (SELECT 1 FROM users u WHERE u.id = sqlc.narg('user_id') AND u.resource_policy = p.name))
ORDER BY p.name LIMIT 10000;

-- name: ProjectPolicies :many
-- Policies of projects: all of them, or those of the projects of one user.
SELECT p.* FROM project_resource_policies p
WHERE (@name::text = '' OR p.name = @name)
  AND (sqlc.narg('user_id')::uuid IS NULL OR EXISTS (SELECT 1 FROM project_members m JOIN projects j ON j.id = m.project_id
      WHERE m.user_id = sqlc.narg('user_id') AND j.resource_policy = p.name))
ORDER BY p.name LIMIT 10000;

