-- +goose Up
-- Sessions that their client holds. A client that made a session only for itself (berth run without a name) renews the lease; a session
-- whose lease ran out is ended by the leader, so that a client that is gone for good leaves nothing behind. Written by package session.
CREATE TABLE session_leases (
    session_id uuid PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    seconds    integer NOT NULL CHECK (seconds BETWEEN 10 AND 86400),
    until      timestamptz NOT NULL
);
CREATE INDEX session_leases_until ON session_leases (until);

-- What sessions get that name no amounts: administrators may change or remove it. New clusters get theirs at the first start.
INSERT INTO resource_presets (id, name, resource_slots)
SELECT gen_random_uuid(), 'default', '{"cpu": 1000, "mem": 2147483648000}'
WHERE EXISTS (SELECT FROM domains) AND NOT EXISTS (SELECT FROM resource_presets WHERE name = 'default' AND resource_group IS NULL);
