-- +goose Up
-- Whether a session may end for ones of higher priority, where its resource group allows that. Written once, with the session.
ALTER TABLE sessions ADD COLUMN preemptible boolean NOT NULL DEFAULT true;
