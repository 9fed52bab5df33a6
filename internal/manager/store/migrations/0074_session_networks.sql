-- +goose Up
-- The address at which other agents reach an agent for the networks of sessions; '' when it cannot have any. Written by package node.
ALTER TABLE agents ADD COLUMN network_address text NOT NULL DEFAULT '';

-- The network that the kernels of one session have in common. A row is made when a session of several kernels is placed for the first
-- time. When it has ended and all agents have let go of its kernels, the next such placement takes the row away, and gives number and
-- addresses on. Written by package session/scheduling under the lock of placements.
CREATE TABLE session_networks (
    number     integer PRIMARY KEY CHECK (number BETWEEN 0 AND 1048575),
    subnet     cidr NOT NULL UNIQUE,
    session_id uuid NOT NULL UNIQUE REFERENCES sessions(id) ON DELETE CASCADE,
    made_at    timestamptz NOT NULL DEFAULT now()
);

-- The members of a session's network in the order of their addresses: main first, then the others by their index. The address of the
-- n-th is the n-th after the first of the subnet.
-- +goose StatementBegin
CREATE FUNCTION members_of_session(session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_agg(jsonb_build_object('kernel', k.id, 'name', k.cluster_hostname, 'agent', coalesce(k.agent_id, ''),
        'host', coalesce(a.network_address, '')) ORDER BY k.cluster_role <> 'main', k.cluster_role, k.cluster_idx, k.id)
    FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id WHERE k.session_id = session
$$;
-- +goose StatementEnd
