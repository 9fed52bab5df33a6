-- +goose Up
-- Which manager an agent registered with last, so that every other manager can relay byte streams there. The manager that
-- the agent registered with writes it, fenced by the epoch of that registration. Managers are known by their id; where one
-- is, its announcement in etcd says.
CREATE TABLE agent_connections (
    agent_id text PRIMARY KEY REFERENCES agents(id) ON DELETE CASCADE,
    manager  text NOT NULL,
    epoch    bigint NOT NULL
);
