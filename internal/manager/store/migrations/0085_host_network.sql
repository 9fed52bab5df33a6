-- +goose Up
-- Where the other kernels of a session reach a kernel's SSH server in the network of its host (ADDRESS:PORT), as its agent observed it; ''
-- for kernels with a network of their own, and while nothing is known. Writer: package node, with the kernel's moves.
ALTER TABLE kernels ADD COLUMN host_endpoint text NOT NULL DEFAULT '' CHECK (length(host_endpoint) <= 64);

-- The kernels of a session whose kernels run in the network of their hosts, in the order of their ranks.
-- +goose StatementBegin
CREATE FUNCTION host_peers_of_session(session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_agg(jsonb_build_object('name', k.cluster_hostname, 'endpoint', k.host_endpoint) ORDER BY k.local_rank, k.id)
    FROM kernels k WHERE k.session_id = session
$$;
-- +goose StatementEnd
