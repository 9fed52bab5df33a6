-- +goose Up
-- The agent has been sent every desired state that was committed before orders_at. The manager that it is connected to notes it every few
-- seconds. A kernel that was given to the agent later is one that the agent may not know of: that is nobody's failed attempt.
ALTER TABLE agents ADD COLUMN orders_at timestamptz NOT NULL DEFAULT now();
