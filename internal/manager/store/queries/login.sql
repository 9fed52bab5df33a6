-- name: LoginStanding :one
-- What decides whether a login still counts, and what it stands for.
SELECT u.id, u.email, u.role, u.status, u.domain_name, u.password_changed_at, d.is_active AS domain_active, p.max_concurrent_logins,
       k.access_key, k.secret_sealed, k.is_active AS key_active
FROM users u JOIN domains d ON d.name = u.domain_name JOIN user_resource_policies p ON p.name = u.resource_policy
JOIN keypairs k ON k.user_id = u.id AND k.access_key = @access_key
WHERE u.id = @user_id;

-- name: PasswordStanding :one
SELECT password_hash, password_changed_at, username, login_directory FROM users WHERE id = $1;

-- name: ChangePassword :one
-- Replaces a password that is still the one that was checked.
UPDATE users SET password_hash = @fresh, password_changed_at = now(), need_password_change = false, modified_at = now()
WHERE id = @id AND password_hash IS NOT DISTINCT FROM @old
RETURNING password_changed_at;

-- name: SignOutUser :exec
UPDATE users SET status = 'inactive', status_info = 'signed out', modified_at = now() WHERE id = $1;
