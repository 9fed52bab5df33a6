-- +goose Up
-- What of its folders a running session may have now. session_mounts says what it was started with, which never changes; this column is
-- what its owner's rights give today: 'ro', 'rw', 'wd', or '' when nothing is left. Writer: the loop "mounts" of package folder.
ALTER TABLE session_mounts ADD COLUMN allowed text NOT NULL DEFAULT 'wd' CHECK (allowed IN ('', 'ro', 'rw', 'wd'));

-- A container that is made anew gets what its owner may have now.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION mounts_of_session(of_session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('folder', m.folder_id, 'name', m.name, 'host', m.host, 'scope', m.quota_scope,
        'usage_mode', m.usage_mode, 'permission', CASE m.allowed WHEN 'ro' THEN 'ro' ELSE m.permission END, 'subpath', m.subpath, 'target', m.target,
        'volume_path', m.volume_path, 'owner_uid', m.owner_uid, 'owner_gid', m.owner_gid) ORDER BY m.n), '[]')
    FROM session_mounts m WHERE m.session_id = of_session AND m.allowed <> ''
$$;

-- The folders that containers of a session must lose, or must not change any more, as cluster.Withheld reads them.
CREATE FUNCTION withheld_of_session(of_session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('folder', w.folder_id, 'name', w.name, 'scope', w.quota_scope, 'read_only', w.ro) ORDER BY w.folder_id), '[]')
    FROM (SELECT m.folder_id, min(m.name) AS name, min(m.quota_scope) AS quota_scope, bool_and(m.allowed <> '') AS ro FROM session_mounts m
          WHERE m.session_id = of_session AND (m.allowed = '' OR m.allowed = 'ro' AND m.permission <> 'ro') GROUP BY m.folder_id) w
$$;

-- The SSH keys that log in to sessions of a keypair: its own, and those of the keypairs that replaced it, as long as each is active.
CREATE FUNCTION ssh_keys_of(of_key text) RETURNS text[] LANGUAGE sql STABLE AS $$
    WITH RECURSIVE line (access_key, n) AS (
        SELECT of_key, 0
        UNION ALL
        SELECT k.replaced_by, l.n + 1 FROM line l JOIN keypairs k ON k.access_key = l.access_key WHERE k.replaced_by IS NOT NULL AND l.n < 8
    )
    SELECT coalesce(array_agg(DISTINCT k.ssh_public_key ORDER BY k.ssh_public_key), '{}')
    FROM line l JOIN keypairs k ON k.access_key = l.access_key WHERE k.is_active AND k.ssh_public_key IS NOT NULL
$$;

-- Wakes the agents that hold sessions of a keypair, or of one that it replaced.
CREATE FUNCTION ssh_keys_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('berth_wake', 'agent:' || a.agent_id) FROM (
        WITH RECURSIVE line (access_key, n) AS (
            SELECT NEW.access_key::text, 0
            UNION ALL
            SELECT k.access_key::text, l.n + 1 FROM line l JOIN keypairs k ON k.replaced_by = l.access_key WHERE l.n < 8
        )
        SELECT DISTINCT k.agent_id FROM line l JOIN sessions s ON s.access_key = l.access_key AND s.ended_at IS NULL
        JOIN kernels k ON k.session_id = s.id WHERE k.ended_at IS NULL AND k.agent_id IS NOT NULL) a;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER ssh_keys_changed AFTER UPDATE OF ssh_public_key, is_active, replaced_by ON keypairs FOR EACH ROW WHEN (
        OLD.ssh_public_key IS DISTINCT FROM NEW.ssh_public_key OR OLD.is_active <> NEW.is_active OR OLD.replaced_by IS DISTINCT FROM NEW.replaced_by
    ) EXECUTE FUNCTION ssh_keys_changed();
