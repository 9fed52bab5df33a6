-- +goose Up
-- Events are only ever written by the statement that finds or inserts their session (WriteMoves, RequeueKernel, InsertSessions), several
-- for each session. Checking each against its session again was a quarter of what moves cost. Sessions are kept;
-- whoever deletes one deletes its events too.
ALTER TABLE session_events DROP CONSTRAINT session_events_session_id_fkey;
