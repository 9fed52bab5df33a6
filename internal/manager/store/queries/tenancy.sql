-- name: AddDomain :execrows
INSERT INTO domains (name, description) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: AddDefaultPolicies :exec
WITH k AS (INSERT INTO keypair_resource_policies (name, max_containers_per_session) VALUES ('default', 16) ON CONFLICT DO NOTHING),
     u AS (INSERT INTO user_resource_policies (name) VALUES ('default') ON CONFLICT DO NOTHING)
INSERT INTO project_resource_policies (name) VALUES ('default') ON CONFLICT DO NOTHING;

-- name: AddProject :exec
INSERT INTO projects (id, name, description, domain_name, resource_policy) VALUES ($1, $2, $3, $4, 'default');

-- name: AddResourceGroup :exec
INSERT INTO resource_groups (name, description) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: AllowGroupForDomain :exec
INSERT INTO resource_groups_for_domains (resource_group, domain_name) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: AllowGroupForProject :exec
INSERT INTO resource_groups_for_projects (resource_group, project_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: AddUser :exec
INSERT INTO users (id, username, email, password_hash, password_changed_at, full_name, domain_name, role, resource_policy, main_access_key)
VALUES ($1, $2, $3, $4, now(), $5, $6, $7, 'default', $8);

-- name: AddMember :exec
INSERT INTO project_members (project_id, user_id) VALUES ($1, $2) ON CONFLICT DO NOTHING;

-- name: AddKeypair :exec
INSERT INTO keypairs (access_key, secret_sealed, user_id, is_admin, resource_policy) VALUES ($1, $2, $3, $4, $5);

-- name: LockBootstrap :exec
SELECT pg_advisory_xact_lock(hashtext('berth bootstrap'));

-- name: GetSetting :one
SELECT value FROM cluster_settings WHERE key = $1;

-- name: SetSetting :exec
INSERT INTO cluster_settings (key, value) VALUES ($1, $2)
ON CONFLICT (key) DO UPDATE SET value = excluded.value, updated_at = now();

-- name: FirstAdministrator :one
SELECT u.email, k.access_key, k.secret_sealed
FROM users u JOIN keypairs k ON k.access_key = u.main_access_key
WHERE u.role = 'superadmin' AND u.status = 'active' AND k.is_active
ORDER BY u.created_at, u.id LIMIT 1;

-- name: ActorByKey :one
SELECT k.access_key, k.secret_sealed, k.is_active, k.is_admin, k.rate_limit, k.resource_policy, k.last_used, k.expires_at,
       u.id AS user_id, u.email, u.username, u.full_name, u.role, u.domain_name, u.status AS user_status,
       u.allowed_client_ip, d.is_active AS domain_active, d.allowed_docker_registries, k.bootstrap_script,
       ARRAY(SELECT m.project_id::text FROM project_members m WHERE m.user_id = u.id ORDER BY 1)::text[] AS projects,
       ARRAY(SELECT l::text FROM projects_led(u.id) l ORDER BY 1)::text[] AS leads
FROM keypairs k JOIN users u ON u.id = k.user_id JOIN domains d ON d.name = u.domain_name
WHERE k.access_key = $1;

-- name: TouchKeypair :exec
UPDATE keypairs SET num_queries = num_queries + @queries::bigint, last_used = now() WHERE access_key = @access_key;

-- name: UserForLogin :one
SELECT u.id, u.email, u.password_hash, u.password_changed_at, u.status, u.role, u.need_password_change, u.domain_name, u.login_directory,
       d.is_active AS domain_active,
       coalesce(k.access_key, '')::text AS access_key, coalesce(k.secret_sealed, '')::bytea AS secret_sealed
FROM users u JOIN domains d ON d.name = u.domain_name
LEFT JOIN LATERAL (SELECT kp.access_key, kp.secret_sealed FROM keypairs kp WHERE kp.user_id = u.id AND kp.is_active AND (kp.expires_at IS NULL OR kp.expires_at > now())
                   ORDER BY (kp.access_key = u.main_access_key) DESC NULLS LAST, kp.created_at LIMIT 1) k ON true
WHERE u.email = $1;

-- name: UserPassword :one
SELECT password_hash FROM users WHERE id = $1;

-- name: SetPassword :exec
UPDATE users SET password_hash = $2, password_changed_at = now(), need_password_change = false, login_directory = NULL, modified_at = now()
WHERE id = $1;

-- name: SetPasswordHash :exec
UPDATE users SET password_hash = $2 WHERE id = $1;

-- name: SetFullName :execrows
UPDATE users SET full_name = $2, modified_at = now() WHERE email = $1;

-- name: GetSSHKeypair :one
SELECT ssh_public_key, ssh_private_sealed FROM keypairs WHERE access_key = $1;

-- name: SetSSHKeypair :exec
UPDATE keypairs SET ssh_public_key = $2, ssh_private_sealed = $3, modified_at = now() WHERE access_key = $1;

-- name: FindProject :one
-- By id when the text is one, else by name within the domain.
SELECT * FROM projects
WHERE CASE WHEN @by_id::boolean THEN id = @id::uuid ELSE name = @name::text AND domain_name = @domain_name::text END;

-- name: ListProjectsOf :many
SELECT p.* FROM projects p JOIN project_members m ON m.project_id = p.id WHERE m.user_id = $1 ORDER BY p.name;

-- name: ProjectsOfUsers :many
SELECT m.user_id, sqlc.embed(p) FROM project_members m JOIN projects p ON p.id = m.project_id
WHERE m.user_id = ANY(@users::uuid[]) ORDER BY p.name;

-- name: GetDomain :one
SELECT * FROM domains WHERE name = $1;

-- name: GetKeypairPolicy :one
SELECT * FROM keypair_resource_policies WHERE name = $1;

-- name: ListKeypairPolicies :many
SELECT * FROM keypair_resource_policies ORDER BY name;

-- name: ListResourceGroups :many
SELECT * FROM resource_groups WHERE (sqlc.narg('active')::boolean IS NULL OR is_active = sqlc.narg('active')) ORDER BY name;

-- name: GetResourceGroup :one
SELECT * FROM resource_groups WHERE name = $1;

-- name: KeypairDotfiles :one
SELECT dotfiles FROM keypairs WHERE access_key = $1 FOR UPDATE;
-- name: SetKeypairDotfiles :exec
UPDATE keypairs SET dotfiles = $2, modified_at = now() WHERE access_key = $1;
-- name: DomainDotfiles :one
SELECT dotfiles FROM domains WHERE name = $1 FOR UPDATE;
-- name: SetDomainDotfiles :exec
UPDATE domains SET dotfiles = $2, modified_at = now() WHERE name = $1;
-- name: ProjectDotfiles :one
SELECT dotfiles FROM projects WHERE id = $1 FOR UPDATE;
-- name: SetProjectDotfiles :exec
UPDATE projects SET dotfiles = $2, modified_at = now() WHERE id = $1;
-- name: GetBootstrapScript :one
SELECT bootstrap_script FROM keypairs WHERE access_key = $1;
-- name: SetBootstrapScript :exec
UPDATE keypairs SET bootstrap_script = $2, modified_at = now() WHERE access_key = $1;

-- name: KeypairViews :many
SELECT k.access_key, k.secret_sealed, k.user_id, u.email, u.full_name, u.domain_name, u.role, k.is_active, k.is_admin, k.resource_policy, k.rate_limit,
       k.num_queries, k.created_at, k.modified_at, k.last_used, k.expires_at, k.replaced_by, k.concurrency_limit, (k.access_key = coalesce(u.main_access_key, ''))::boolean AS is_main, k.ssh_public_key, k.dotfiles, k.bootstrap_script,
       (SELECT count(*) FROM sessions s WHERE s.access_key = k.access_key AND s.ended_at IS NULL AND s.status <> 'PENDING')::bigint AS concurrency_used,
       ARRAY(SELECT p.name FROM project_members m JOIN projects p ON p.id = m.project_id WHERE m.user_id = u.id ORDER BY 1)::text[] AS projects
FROM keypairs k JOIN users u ON u.id = k.user_id WHERE k.access_key = ANY(@keys::text[]) AND k.deleted_at IS NULL;

-- name: UserViews :many
SELECT * FROM users WHERE id = ANY(@ids::uuid[]);

-- name: UserByRef :one
SELECT * FROM users WHERE email = @ref::text OR id::text = @ref::text LIMIT 1;

-- name: InsertUser :exec
INSERT INTO users (id, username, email, password_hash, password_changed_at, need_password_change, full_name, description, status, status_info,
    domain_name, role, resource_policy, allowed_client_ip, sudo_session_enabled, main_access_key)
VALUES (@id, @username, @email, @password_hash, now(), @need_password_change, @full_name, @description, @status, @status_info,
    @domain_name, @role, @resource_policy, @allowed_client_ip, @sudo_session_enabled, @main_access_key);

-- name: UpdateUser :exec
-- A null password hash leaves the password.
UPDATE users SET username = @username, password_hash = coalesce(sqlc.narg('password_hash'), password_hash),
    password_changed_at = CASE WHEN sqlc.narg('password_hash')::text IS NULL THEN password_changed_at ELSE now() END,
    need_password_change = @need_password_change, full_name = @full_name, description = @description, status = @status,
    status_info = @status_info, role = @role, resource_policy = @resource_policy, allowed_client_ip = @allowed_client_ip,
    sudo_session_enabled = @sudo_session_enabled, main_access_key = @main_access_key, modified_at = now()
WHERE id = @id;

-- name: LockUser :one
SELECT * FROM users WHERE email = @ref::text OR id::text = @ref::text LIMIT 1 FOR UPDATE;

-- name: LockUserChanges :exec
SELECT pg_advisory_xact_lock(hashtext('berth changes of users'));

-- name: CountOtherSuperadmins :one
SELECT count(*) FROM users u JOIN domains d ON d.name = u.domain_name
WHERE u.role = 'superadmin' AND u.status = 'active' AND d.is_active AND u.id <> $1;

-- name: SetKeypairsAdmin :exec
UPDATE keypairs SET is_admin = $2, modified_at = now() WHERE user_id = $1 AND deleted_at IS NULL;

-- name: CountProjectsIn :one
SELECT count(*) FROM projects WHERE id = ANY(@ids::uuid[]) AND domain_name = @domain_name;

-- name: LeaveOtherProjects :exec
DELETE FROM project_members WHERE user_id = @user_id AND project_id <> ALL(@projects::uuid[]);

-- name: JoinProjects :exec
INSERT INTO project_members (project_id, user_id) SELECT unnest(@projects::uuid[]), @user_id::uuid ON CONFLICT DO NOTHING;

-- name: InsertDomain :exec
INSERT INTO domains (name, description, is_active, total_resource_slots, allowed_vfolder_hosts, allowed_docker_registries, integration_id)
VALUES (@name, @description, @is_active, @total_resource_slots, @allowed_vfolder_hosts, @allowed_docker_registries, @integration_id);

-- name: LockDomain :one
SELECT * FROM domains WHERE name = $1 FOR UPDATE;

-- name: UpdateDomain :exec
UPDATE domains SET name = @new_name, description = @description, is_active = @is_active, total_resource_slots = @total_resource_slots,
    allowed_vfolder_hosts = @allowed_vfolder_hosts, allowed_docker_registries = @allowed_docker_registries,
    integration_id = @integration_id, modified_at = now()
WHERE name = @name;

-- name: CountSuperadminsOutside :one
-- Active superadmins of other active domains.
SELECT count(*) FROM users u JOIN domains d ON d.name = u.domain_name
WHERE u.role = 'superadmin' AND u.status = 'active' AND d.is_active AND d.name <> $1;

-- name: InsertProject :exec
INSERT INTO projects (id, name, description, is_active, domain_name, total_resource_slots, allowed_vfolder_hosts, integration_id, type,
    resource_policy)
VALUES (@id, @name, @description, @is_active, @domain_name, @total_resource_slots, @allowed_vfolder_hosts, @integration_id, @type,
    @resource_policy);

-- name: LockProject :one
SELECT * FROM projects WHERE id = $1 FOR UPDATE;

-- name: UpdateProject :exec
UPDATE projects SET name = @name, description = @description, is_active = @is_active, total_resource_slots = @total_resource_slots,
    allowed_vfolder_hosts = @allowed_vfolder_hosts, integration_id = @integration_id, resource_policy = @resource_policy, modified_at = now()
WHERE id = @id;

-- name: UsersByRefs :many
-- Users by ids or email addresses.
SELECT id, email, domain_name FROM users WHERE email = ANY(@refs::text[]) OR id::text = ANY(@refs::text[]);

-- name: MembersOf :many
SELECT u.id, u.email, u.full_name, u.status, m.is_admin FROM project_members m JOIN users u ON u.id = m.user_id
WHERE m.project_id = $1 ORDER BY u.email LIMIT @max_rows;

-- name: AdmitMembers :exec
-- Who is a member already stays one, and stays an administrator.
INSERT INTO project_members (project_id, user_id) SELECT @project_id::uuid, unnest(@users::uuid[]) ON CONFLICT DO NOTHING;

-- name: AppointMembers :exec
INSERT INTO project_members (project_id, user_id, is_admin) SELECT @project_id::uuid, unnest(@users::uuid[]), true
ON CONFLICT (project_id, user_id) DO UPDATE SET is_admin = true;

-- name: DismissMembers :exec
UPDATE project_members SET is_admin = false WHERE project_id = @project_id AND user_id = ANY(@users::uuid[]) AND is_admin;

-- name: RemoveMembers :exec
DELETE FROM project_members WHERE project_id = @project_id AND user_id = ANY(@users::uuid[]);

-- name: AdminsAmong :one
-- How many of some users administer a project.
SELECT count(*) FROM project_members WHERE project_id = @project_id AND user_id = ANY(@users::uuid[]) AND is_admin;

-- name: GroupsOfProjects :many
SELECT project_id, resource_group FROM resource_groups_for_projects WHERE project_id = ANY(@ids::uuid[]) ORDER BY resource_group;

-- name: DomainsByName :many
SELECT * FROM domains WHERE name = ANY(@names::text[]);

-- name: ProjectsByID :many
SELECT * FROM projects WHERE id = ANY(@ids::uuid[]);


-- name: MembersAmong :many
-- What some users, by email address, are in a project.
SELECT u.email, m.is_admin FROM project_members m JOIN users u ON u.id = m.user_id WHERE m.project_id = @project_id AND u.email = ANY(@emails::text[]);
