-- API tokens and service accounts; written by package tenancy/token.

-- name: TokenByHash :one
SELECT id, access_key, read_only, areas, projects::text[] AS projects, provider, expires_at FROM api_tokens WHERE token_hash = $1;

-- name: TokenByID :one
SELECT id, access_key, read_only, areas, projects::text[] AS projects, provider, expires_at FROM api_tokens WHERE id = $1;

-- name: TouchToken :exec
-- At most once a minute.
UPDATE api_tokens SET last_used = now() WHERE id = $1 AND (last_used IS NULL OR last_used < now() - interval '1 minute');

-- name: LockTokensOf :one
-- Whoever makes a token of a user waits here for others who do.
SELECT id FROM users WHERE id = $1 FOR NO KEY UPDATE;

-- name: ForgetExpiredTokens :exec
DELETE FROM api_tokens WHERE user_id = $1 AND expires_at < @before::timestamptz;

-- name: CountTokens :one
SELECT count(*) FROM api_tokens WHERE user_id = $1;

-- name: InsertToken :exec
INSERT INTO api_tokens (id, token_hash, user_id, access_key, name, read_only, areas, projects, provider, expires_at)
VALUES (@id, @token_hash, @user_id, @access_key, @name, @read_only, @areas, @projects::uuid[], @provider, @expires_at);

-- name: DeleteToken :execrows
DELETE FROM api_tokens WHERE id = $1;

-- name: TokenViews :many
SELECT t.id, t.user_id, u.email, u.role, u.domain_name, u.is_service, t.access_key, t.name, t.read_only, t.areas,
       t.projects::text[] AS projects, t.provider, t.created_at, t.expires_at, t.last_used
FROM api_tokens t JOIN users u ON u.id = t.user_id WHERE t.id = ANY(@ids::uuid[]);

-- name: OwnerOfTokens :one
SELECT u.id, u.email, u.role, u.domain_name, u.is_service, u.status, coalesce(u.main_access_key, '')::text AS main_access_key
FROM users u WHERE u.email = @email;

-- name: MakeServiceAccount :exec
UPDATE users SET is_service = true WHERE id = $1;
