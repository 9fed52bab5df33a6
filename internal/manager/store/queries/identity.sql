-- Identities of users at identity providers. Package tenancy/identity is the writer.

-- name: IdentityBySubject :one
SELECT * FROM external_identities WHERE provider = $1 AND subject = $2;

-- name: UsersByAddress :many
-- Capitals do not matter. The address is in small letters.
SELECT * FROM users WHERE lower(email) = @address::text ORDER BY email LIMIT @max_rows;

-- name: IdentitiesOf :many
SELECT * FROM external_identities WHERE user_id = ANY(@users::uuid[]) ORDER BY provider;

-- name: MembershipsWithGivers :many
SELECT m.project_id, m.is_admin,
       ARRAY(SELECT x.provider FROM external_memberships x WHERE x.project_id = m.project_id AND x.user_id = m.user_id ORDER BY 1)::text[] AS givers
FROM project_members m WHERE m.user_id = $1 ORDER BY m.project_id;

-- name: ProjectsByNames :many
SELECT id, name, is_active FROM projects WHERE domain_name = @domain_name AND name = ANY(@names::text[]) ORDER BY name;

-- name: CountUsername :one
SELECT count(*) FROM users WHERE username = $1;

-- name: InsertIdentity :exec
INSERT INTO external_identities (provider, subject, user_id, email, created_at, last_seen) VALUES ($1, $2, $3, $4, $5, $5);

-- name: TouchIdentity :exec
UPDATE external_identities SET last_seen = $3, email = $4
WHERE provider = $1 AND subject = $2 AND (email IS DISTINCT FROM $4 OR last_seen + interval '1 minute' < $3);

-- name: SetIdentityRole :exec
UPDATE external_identities SET given_role = @given_role, role_before = @role_before WHERE provider = @provider AND user_id = @user_id;

-- name: GiveMemberships :exec
INSERT INTO external_memberships (provider, user_id, project_id)
SELECT @provider::text, @user_id::uuid, unnest(@projects::uuid[]) ON CONFLICT DO NOTHING;

-- name: TakeMemberships :exec
DELETE FROM external_memberships WHERE provider = @provider AND user_id = @user_id AND project_id = ANY(@projects::uuid[]);

-- name: LeaveProjects :exec
DELETE FROM project_members WHERE user_id = @user_id AND project_id = ANY(@projects::uuid[]);

-- name: DropIdentity :execrows
DELETE FROM external_identities WHERE provider = @provider AND user_id = @user_id;

-- name: IdentitiesOfProvider :many
-- For whoever compares a directory with what is known of it, page by page.
SELECT i.subject, i.email, i.user_id, i.last_seen, u.status, u.role FROM external_identities i JOIN users u ON u.id = i.user_id
WHERE i.provider = @provider AND i.subject > @after ORDER BY i.subject LIMIT @max_rows;
