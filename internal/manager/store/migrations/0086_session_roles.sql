-- +goose Up
-- What a role of a session's request says for all its kernels, stored once however many they are: all of their environment variables, and a
-- bootstrap script. Null is what the session says, and a role that says neither has no row.
-- Writer: session.Service, with the session.
CREATE TABLE session_roles (
    session_id uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    role text NOT NULL,
    environ jsonb,
    bootstrap_script text,
    PRIMARY KEY (session_id, role)
);
