-- +goose Up
-- What agents are told of kernels, and what a scheduling pass reads, calls these functions for every row. PostgreSQL plans the query of a
-- function in SQL again in every statement that calls it, that of one in PL/pgSQL once for a connection. What they answer is unchanged.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION mounts_of_session(of_session uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('folder', m.folder_id, 'name', m.name, 'host', m.host, 'scope', m.quota_scope,
        'usage_mode', m.usage_mode, 'permission', CASE m.allowed WHEN 'ro' THEN 'ro' ELSE m.permission END, 'subpath', m.subpath, 'target', m.target,
        'volume_path', m.volume_path, 'owner_uid', m.owner_uid, 'owner_gid', m.owner_gid) ORDER BY m.n), '[]')
    FROM session_mounts m WHERE m.session_id = of_session AND m.allowed <> '');
END $$;

CREATE OR REPLACE FUNCTION withheld_of_session(of_session uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT coalesce(jsonb_agg(jsonb_build_object('folder', w.folder_id, 'name', w.name, 'scope', w.quota_scope, 'read_only', w.ro)
        ORDER BY w.folder_id), '[]')
    FROM (SELECT m.folder_id, min(m.name) AS name, min(m.quota_scope) AS quota_scope, bool_and(m.allowed <> '') AS ro FROM session_mounts m
          WHERE m.session_id = of_session AND (m.allowed = '' OR m.allowed = 'ro' AND m.permission <> 'ro') GROUP BY m.folder_id) w);
END $$;

CREATE OR REPLACE FUNCTION ssh_keys_of(of_key text) RETURNS text[] LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (WITH RECURSIVE line (access_key, n) AS (
        SELECT of_key, 0
        UNION ALL
        SELECT k.replaced_by, l.n + 1 FROM line l JOIN keypairs k ON k.access_key = l.access_key WHERE k.replaced_by IS NOT NULL AND l.n < 8
    )
    SELECT coalesce(array_agg(DISTINCT k.ssh_public_key ORDER BY k.ssh_public_key), '{}')
    FROM line l JOIN keypairs k ON k.access_key = l.access_key WHERE k.is_active AND k.ssh_public_key IS NOT NULL);
END $$;

CREATE OR REPLACE FUNCTION key_lives_on(key text) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (WITH RECURSIVE later AS (
        SELECT k.access_key, k.replaced_by, k.is_active FROM keypairs k WHERE k.access_key = key
        UNION SELECT k.access_key, k.replaced_by, k.is_active FROM later JOIN keypairs k ON k.access_key = later.replaced_by
    )
    SELECT coalesce(bool_or(is_active), false) FROM later);
END $$;

CREATE OR REPLACE FUNCTION roles_of_session(session uuid) RETURNS text LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT string_agg(r.role || ':' || r.n, ',' ORDER BY r.first) FROM (
        SELECT k.cluster_role AS role, count(*) AS n, min(k.local_rank) AS first FROM kernels k WHERE k.session_id = session
        GROUP BY k.cluster_role) r);
END $$;

CREATE OR REPLACE FUNCTION members_of_session(session uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_build_object('kernel', k.id, 'name', k.cluster_hostname, 'agent', coalesce(k.agent_id, ''),
        'host', CASE WHEN n.encrypted THEN '' ELSE coalesce(a.network_address, '') END)
        || CASE WHEN n.encrypted AND a.tunnel_key <> '' AND a.status <> 'TERMINATED' THEN jsonb_build_object('tunnel_key', a.tunnel_key,
            'tunnel_host', a.network_address, 'tunnel_port', a.tunnel_port) ELSE '{}'::jsonb END
        ORDER BY k.local_rank, k.cluster_role <> 'main', k.cluster_role, k.cluster_idx, k.id)
    FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id LEFT JOIN session_networks n ON n.session_id = k.session_id
    WHERE k.session_id = session);
END $$;

CREATE OR REPLACE FUNCTION host_peers_of_session(session uuid) RETURNS jsonb LANGUAGE plpgsql STABLE AS $$
BEGIN
    RETURN (SELECT jsonb_agg(jsonb_build_object('name', k.cluster_hostname, 'endpoint', k.host_endpoint) ORDER BY k.local_rank, k.id)
    FROM kernels k WHERE k.session_id = session);
END $$;
-- +goose StatementEnd
