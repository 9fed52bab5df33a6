-- +goose Up
-- Whether networks of sessions that begin from now on are carried in encrypted tunnels between agents. Writer: resource.Service.
ALTER TABLE resource_groups ADD COLUMN encrypted_networks boolean NOT NULL DEFAULT false;

CREATE TRIGGER group_encryption_changed AFTER UPDATE OF encrypted_networks ON resource_groups FOR EACH ROW
    WHEN (OLD.encrypted_networks <> NEW.encrypted_networks) EXECUTE FUNCTION scheduling_changed('group', 'name');

-- The same of one network; it does not change. Writer: package session/scheduling, with the row.
ALTER TABLE session_networks ADD COLUMN encrypted boolean NOT NULL DEFAULT false;

-- An agent's end of encrypted tunnels: its public key and UDP port, '' and 0 when it has none, and why it carries no encrypted networks
-- now; what agents of earlier versions do not say is a reason, too. No two agents have one key. Writer: package node.
ALTER TABLE agents ADD COLUMN tunnel_key text NOT NULL DEFAULT '' CHECK (length(tunnel_key) <= 64);
ALTER TABLE agents ADD COLUMN tunnel_port integer NOT NULL DEFAULT 0 CHECK (tunnel_port BETWEEN 0 AND 65535);
ALTER TABLE agents ADD COLUMN tunnel_problem text NOT NULL DEFAULT '';
CREATE TRIGGER agent_tunnel_changed AFTER UPDATE OF tunnel_key, tunnel_problem ON agents FOR EACH ROW
    WHEN ((OLD.tunnel_key = '') <> (NEW.tunnel_key = '') OR OLD.tunnel_problem <> NEW.tunnel_problem)
    EXECUTE FUNCTION scheduling_changed('agent', 'id');
CREATE UNIQUE INDEX agents_tunnel_key ON agents (tunnel_key) WHERE tunnel_key <> '';

-- The members of a session's network in the order of their addresses, which is that of their ranks. Of an encrypted network nobody is told
-- where its agents are reached in clear, so that no agent and no manager of whatever version carries it in clear.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION members_of_session(session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_agg(jsonb_build_object('kernel', k.id, 'name', k.cluster_hostname, 'agent', coalesce(k.agent_id, ''),
        'host', CASE WHEN n.encrypted THEN '' ELSE coalesce(a.network_address, '') END)
        || CASE WHEN n.encrypted AND a.tunnel_key <> '' AND a.status <> 'TERMINATED' THEN jsonb_build_object('tunnel_key', a.tunnel_key,
            'tunnel_host', a.network_address, 'tunnel_port', a.tunnel_port) ELSE '{}'::jsonb END
        ORDER BY k.local_rank, k.cluster_role <> 'main', k.cluster_role, k.cluster_idx, k.id)
    FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id LEFT JOIN session_networks n ON n.session_id = k.session_id
    WHERE k.session_id = session
$$;
-- +goose StatementEnd
