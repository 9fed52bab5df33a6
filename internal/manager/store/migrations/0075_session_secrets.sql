-- +goose Up
-- What only the kernels of one session know, sealed with the master key: the keys with which they log in to each other come of it. A row is
-- made when a session of several kernels is first told to an agent, and goes with the session. Written by package node.
CREATE TABLE session_secrets (
    session_id uuid PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    sealed     bytea NOT NULL,
    made_at    timestamptz NOT NULL DEFAULT now()
);
