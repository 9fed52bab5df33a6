-- +goose Up
-- Events are followed as sessions and circuits are (migration 0004): each row carries the number of the transaction that wrote it. A
-- reader that asks what became visible since its last snapshot misses no event, whatever order transactions commit in. The sequence
-- number cannot tell that: it is given before the commit, so a lower number may become visible after a higher one.
-- Existing rows get the number of this migration; no follower starts before it. Events are never updated, so no trigger is needed.
ALTER TABLE session_events ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();
-- Moves without a wire name are history only, which nobody follows.
CREATE INDEX session_events_changed ON session_events (changed) WHERE event <> '';
