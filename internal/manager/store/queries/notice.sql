-- Notices by e-mail and webhook; written by package notice.

-- name: NoticePreferences :one
SELECT email_kinds, webhook_url, webhook_kinds, webhook_secret_sealed FROM notice_preferences WHERE user_id = $1;

-- name: LockNoticePreferences :one
-- Makes the row where there is none, so that two who change it wait for each other.
INSERT INTO notice_preferences AS p (user_id) VALUES ($1) ON CONFLICT (user_id) DO UPDATE SET user_id = p.user_id
RETURNING email_kinds, webhook_url, webhook_kinds, webhook_secret_sealed;

-- name: SetNoticePreferences :exec
UPDATE notice_preferences SET email_kinds = @email_kinds::text[], webhook_url = sqlc.narg('webhook_url'), webhook_kinds = @webhook_kinds::text[],
    webhook_secret_sealed = sqlc.narg('webhook_secret_sealed'), modified_at = now()
WHERE user_id = @user_id;

-- name: DropNoticePreferences :exec
DELETE FROM notice_preferences WHERE user_id = $1;

-- name: NoticeReader :one
SELECT (u.status = 'active' AND d.is_active)::boolean AS active, u.is_service FROM users u JOIN domains d ON d.name = u.domain_name WHERE u.id = $1;

-- name: NoticeSources :many
-- What is to be decided, the oldest first, with who would be told of it and how much of theirs waits.
SELECT s.id, s.user_id, s.event, s.subject, s.name, s.status, s.result, s.reason, s.detail, s.at, p.email_kinds, p.webhook_kinds,
       (p.webhook_url IS NOT NULL)::boolean AS has_webhook, (u.status = 'active' AND d.is_active)::boolean AS active, u.is_service,
       coalesce((SELECT i.state FROM folder_invitations i WHERE i.id = s.invitation), '')::text AS invitation_state,
       (s.event = 'granted' AND EXISTS (SELECT 1 FROM folder_invitations i WHERE i.folder_id = s.subject AND i.invitee_id = s.user_id
            AND i.state = 'accepted' AND i.modified_at = s.at))::boolean AS was_asked,
       (SELECT count(*) FROM notice_deliveries w WHERE w.user_id = s.user_id AND w.channel = 'webhook' AND w.state = 'waiting')::bigint AS webhooks_waiting,
       (SELECT count(*) FROM notice_deliveries w WHERE w.user_id = s.user_id AND w.channel = 'email' AND w.made_at > @hour_ago::timestamptz)::bigint AS emails_lately
FROM notice_sources s JOIN notice_preferences p ON p.user_id = s.user_id JOIN users u ON u.id = s.user_id JOIN domains d ON d.name = u.domain_name
ORDER BY s.at, s.id LIMIT @max_rows FOR UPDATE OF s;

-- name: DropNoticeSources :exec
DELETE FROM notice_sources WHERE id = ANY(@ids::uuid[]);

-- name: DropOrphanedNoticeSources :exec
-- Of users who want nothing any more.
DELETE FROM notice_sources s WHERE NOT EXISTS (SELECT 1 FROM notice_preferences p WHERE p.user_id = s.user_id);

-- name: AddNoticeDelivery :exec
INSERT INTO notice_deliveries (notice_id, channel, user_id, kind, subject_kind, subject, name, reason, words, at, state, next_at, last_error, made_at, done_at)
VALUES (@notice_id, @channel, @user_id, @kind, @subject_kind, @subject, @name, @reason, @words, @at, @state, @now::timestamptz, @last_error,
    @now::timestamptz, CASE WHEN @state::text <> 'waiting' THEN @now::timestamptz END);

-- name: ClaimNotices :many
-- Claims due notices until a moment, at most one for each user and channel, those first that have waited longest.
WITH first AS (
    SELECT DISTINCT ON (d.user_id, d.channel) d.notice_id, d.channel, d.next_at FROM notice_deliveries d
    WHERE d.state = 'waiting' AND d.next_at <= @now::timestamptz ORDER BY d.user_id, d.channel, d.made_at, d.notice_id
), picked AS (SELECT notice_id, channel FROM first ORDER BY next_at, notice_id LIMIT @max_rows)
UPDATE notice_deliveries d SET next_at = @until::timestamptz, attempts = d.attempts + 1
FROM picked JOIN notice_deliveries o ON o.notice_id = picked.notice_id AND o.channel = picked.channel
    JOIN users u ON u.id = o.user_id JOIN domains m ON m.name = u.domain_name LEFT JOIN notice_preferences p ON p.user_id = o.user_id
WHERE d.notice_id = picked.notice_id AND d.channel = picked.channel AND d.state = 'waiting'
RETURNING d.notice_id, d.channel, d.user_id, d.kind, d.subject_kind, d.subject, d.name, d.reason, d.words, d.at, d.attempts, u.email,
    u.is_service, (u.status = 'active' AND m.is_active)::boolean AS active, coalesce(p.email_kinds, '{}')::text[] AS email_kinds,
    coalesce(p.webhook_kinds, '{}')::text[] AS webhook_kinds, p.webhook_url, p.webhook_secret_sealed;

-- name: NoticeDone :exec
-- The end of a notice on a channel: sent, or failed for a reason.
UPDATE notice_deliveries SET state = @state, last_error = @last_error, done_at = @now::timestamptz
WHERE notice_id = @notice_id AND channel = @channel AND state = 'waiting';

-- name: NoticeLater :exec
-- A notice is tried again at a moment, and what else waits for the same receiver is not tried before.
UPDATE notice_deliveries d SET next_at = CASE WHEN d.notice_id = @notice_id THEN @at::timestamptz ELSE greatest(d.next_at, @at::timestamptz) END,
    last_error = CASE WHEN d.notice_id = @notice_id THEN @last_error ELSE d.last_error END
WHERE d.user_id = @user_id AND d.channel = @channel AND d.state = 'waiting';

-- name: NextNotice :one
-- When the next notice is due.
SELECT min(next_at)::timestamptz AS next_at FROM notice_deliveries WHERE state = 'waiting' HAVING count(*) > 0;

-- name: TrimNotices :exec
-- Forgets what is done of users, except the newest.
DELETE FROM notice_deliveries d WHERE d.user_id = ANY(@users::uuid[]) AND d.state <> 'waiting' AND (d.notice_id, d.channel) NOT IN (
    SELECT k.notice_id, k.channel FROM unnest(@users::uuid[]) AS u (id) CROSS JOIN LATERAL (
        SELECT o.notice_id, o.channel FROM notice_deliveries o WHERE o.user_id = u.id AND o.state <> 'waiting'
        ORDER BY o.made_at DESC, o.notice_id, o.channel LIMIT @kept) k);

-- name: PruneNotices :exec
-- Forgets some of what was done before a moment.
DELETE FROM notice_deliveries WHERE (notice_id, channel) IN (
    SELECT d.notice_id, d.channel FROM notice_deliveries d WHERE d.state <> 'waiting' AND d.done_at < @before::timestamptz ORDER BY d.done_at LIMIT @max_rows);

-- name: NoticesOf :many
SELECT notice_id, channel, kind, subject_kind, subject, name, reason, words, at, state, attempts, next_at, last_error, made_at, done_at
FROM notice_deliveries WHERE user_id = @user_id ORDER BY made_at DESC, notice_id, channel LIMIT @max_rows;

-- name: CountNoticeTests :one
SELECT count(*) FROM notice_deliveries WHERE user_id = @user_id AND kind = 'test' AND made_at > @since::timestamptz;
