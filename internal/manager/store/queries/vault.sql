-- name: LockSetting :exec
-- Changes of one setting take turns, also while it has no row yet.
SELECT pg_advisory_xact_lock(hashtextextended('setting ' || @key::text, 0));
