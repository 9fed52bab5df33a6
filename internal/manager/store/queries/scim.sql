-- What identity providers say by SCIM 2.0. Package tenancy/provision is the writer.

-- name: LockProvider :exec
-- Changes of one provider come one after another, so that what it removes is counted exactly.
SELECT pg_advisory_xact_lock(hashtextextended('scim:' || @provider::text, 0));

-- name: AddScimUser :exec
INSERT INTO scim_users (id, provider, domain_name, subject, user_name, external_id, formatted_name, given_name, family_name, display_name,
    email, active)
VALUES (@id, @provider, @domain_name, @subject, @user_name, @external_id, @formatted_name, @given_name, @family_name, @display_name, @email,
    @active);

-- name: ChangeScimUser :execrows
UPDATE scim_users SET user_name = @user_name, external_id = @external_id, formatted_name = @formatted_name, given_name = @given_name,
    family_name = @family_name, display_name = @display_name, email = @email, active = @active, deleted = @deleted, settled = false,
    version = version + 1, modified_at = now()
WHERE id = @id AND provider = @provider AND version = @version AND NOT deleted;

-- name: ScimUsers :many
SELECT s.*, (s.active AND coalesce(u.status, 'active') = 'active')::boolean AS is_active, coalesce(u.role, '')::text AS role,
    coalesce(u.email, '')::text AS account, (coalesce(u.status, '') = 'active')::boolean AS let_in
FROM scim_users s LEFT JOIN users u ON u.id = s.user_id WHERE s.id = ANY(@ids::uuid[]);

-- name: OpenScimUsers :many
SELECT id FROM scim_users WHERE NOT settled ORDER BY modified_at, id LIMIT @max_rows;

-- name: SettleScimUser :execrows
UPDATE scim_users SET settled = true, user_id = coalesce(@user_id, user_id), problem = @problem WHERE id = @id AND version = @version;

-- name: PostponeScimUser :exec
UPDATE scim_users SET problem = @problem, modified_at = now() WHERE id = @id AND NOT settled;

-- name: DropScimUser :execrows
DELETE FROM scim_users WHERE id = @id AND deleted;

-- name: GroupsOfScimUser :many
SELECT g.id, g.display_name FROM scim_members m JOIN scim_groups g ON g.id = m.group_id WHERE m.member_id = $1 ORDER BY g.display_name
LIMIT 10001;

-- name: GroupsOfScimUsers :many
SELECT m.member_id, g.id, g.display_name FROM scim_members m JOIN scim_groups g ON g.id = m.group_id
WHERE m.member_id = ANY(@ids::uuid[]) ORDER BY m.member_id, g.display_name LIMIT 20000;

-- name: UnsettleScimUsers :exec
UPDATE scim_users SET settled = false, version = version + 1 WHERE id = ANY(@ids::uuid[]);

-- name: CountScimUsers :one
SELECT count(*) FROM scim_users WHERE id = ANY(@ids::uuid[]) AND provider = @provider AND domain_name = @domain_name AND NOT deleted;

-- name: AddScimGroup :exec
INSERT INTO scim_groups (id, provider, domain_name, display_name, external_id) VALUES (@id, @provider, @domain_name, @display_name, @external_id);

-- name: ChangeScimGroup :execrows
UPDATE scim_groups SET display_name = @display_name, external_id = @external_id, version = version + 1, modified_at = now()
WHERE id = @id AND provider = @provider AND version = @version;

-- name: DropScimGroup :execrows
DELETE FROM scim_groups WHERE id = @id AND provider = @provider;

-- name: ScimGroups :many
SELECT * FROM scim_groups WHERE id = ANY(@ids::uuid[]);

-- name: MembersOfScimGroups :many
SELECT m.group_id, m.member_id, s.user_name FROM scim_members m JOIN scim_users s ON s.id = m.member_id
WHERE m.group_id = ANY(@ids::uuid[]) AND NOT s.deleted ORDER BY m.group_id, m.member_id;

-- name: AddScimMembers :exec
INSERT INTO scim_members (group_id, member_id) SELECT @group_id::uuid, unnest(@members::uuid[]) ON CONFLICT DO NOTHING;

-- name: DropScimMembers :exec
DELETE FROM scim_members WHERE group_id = @group_id AND member_id = ANY(@members::uuid[]);

-- name: ScimRemovals :one
SELECT coalesce(sum(n), 0)::bigint FROM scim_removals WHERE provider = @provider AND at > @since::timestamptz;

-- name: AddScimRemovals :exec
INSERT INTO scim_removals (provider, n, at) VALUES (@provider, @n, @at);

-- name: ForgetScimRemovals :exec
DELETE FROM scim_removals WHERE at < @before::timestamptz;

-- name: ScimAllowance :one
SELECT coalesce(max(allowed), 0)::bigint FROM scim_allowances WHERE provider = @provider AND until > @now::timestamptz;

-- name: AllowScimRemovals :exec
INSERT INTO scim_allowances (provider, allowed, until, given_by) VALUES (@provider, @allowed, @until, @given_by)
ON CONFLICT (provider) DO UPDATE SET allowed = excluded.allowed, until = excluded.until, given_by = excluded.given_by;
