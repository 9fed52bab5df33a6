-- Everything that is sealed with the master key, page by page: read when that key is replaced.

-- name: SealedOfKeypairs :many
SELECT access_key, secret_sealed, ssh_private_sealed FROM keypairs WHERE access_key > @after AND deleted_at IS NULL ORDER BY access_key LIMIT @page FOR UPDATE;

-- name: ResealKeypair :exec
UPDATE keypairs SET secret_sealed = @secret_sealed, ssh_private_sealed = @ssh_private_sealed WHERE access_key = @access_key;

-- name: SealedOfResourceGroups :many
SELECT name, wsproxy_api_token_sealed FROM resource_groups WHERE name > @after AND wsproxy_api_token_sealed IS NOT NULL
ORDER BY name LIMIT @page FOR UPDATE;

-- name: ResealResourceGroup :exec
UPDATE resource_groups SET wsproxy_api_token_sealed = @sealed WHERE name = @name;

-- name: SealedSettings :many
SELECT key, value FROM cluster_settings WHERE key > @after AND starts_with(key, @prefix::text) ORDER BY key LIMIT @page FOR UPDATE;

-- name: WaitForWritersOfSecrets :exec
-- Returns when every transaction that was writing a secret has ended.
LOCK TABLE keypairs, resource_groups, cluster_settings, user_totp, notice_preferences, session_secrets IN SHARE MODE;

-- name: SealedOfNotices :many
SELECT user_id, webhook_secret_sealed FROM notice_preferences WHERE user_id > @after::uuid AND webhook_secret_sealed IS NOT NULL ORDER BY user_id LIMIT @page FOR UPDATE;

-- name: ResealNotices :exec
UPDATE notice_preferences SET webhook_secret_sealed = @sealed WHERE user_id = @user_id;
