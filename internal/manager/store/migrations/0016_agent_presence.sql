-- +goose Up
-- Whether the registration in agent_connections is still open: every manager must be able to tell whether an agent is connected to
-- any of them. A manager that died closes none, so the agent's last_seen counts too.
ALTER TABLE agent_connections ADD COLUMN connected boolean NOT NULL DEFAULT true;
