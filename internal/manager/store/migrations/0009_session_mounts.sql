-- +goose Up
-- The folders inside the containers of a session, written with it and never changed. Writer: session.Service.
-- A folder that a session with ended_at NULL names here is in use. folder_id may outlive its folder.
CREATE TABLE session_mounts (
    session_id  uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    n           integer NOT NULL,            -- order of the request
    folder_id   uuid NOT NULL,
    name        text NOT NULL,               -- of the folder at that time
    host        text NOT NULL,               -- proxy:volume
    quota_scope text NOT NULL,
    usage_mode  text NOT NULL,
    permission  text NOT NULL CHECK (permission IN ('ro','rw','wd')),
    subpath     text NOT NULL,               -- '.' is all of the folder
    target      text NOT NULL,               -- absolute, in the container
    volume_path text NOT NULL,               -- of the volume's root as its proxy announced it
    owner_uid   integer NOT NULL,            -- of the files on the volume
    owner_gid   integer NOT NULL,
    PRIMARY KEY (session_id, n)
);
CREATE INDEX session_mounts_folder ON session_mounts (folder_id);

-- The mounts of a session as cluster.FolderMount reads them, [] when it has none.
-- +goose StatementBegin
CREATE FUNCTION mounts_of_session(of_session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT coalesce(jsonb_agg(jsonb_build_object('folder', m.folder_id, 'name', m.name, 'host', m.host, 'scope', m.quota_scope,
        'usage_mode', m.usage_mode, 'permission', m.permission, 'subpath', m.subpath, 'target', m.target,
        'volume_path', m.volume_path, 'owner_uid', m.owner_uid, 'owner_gid', m.owner_gid) ORDER BY m.n), '[]')
    FROM session_mounts m WHERE m.session_id = of_session
$$;
-- +goose StatementEnd

-- Hosts (proxy:volume) whose file systems do not answer on the agent. Writer: node.Reports, from the agent's facts.
ALTER TABLE agents ADD COLUMN hung_volumes text[] NOT NULL DEFAULT '{}';
DROP TRIGGER agent_changed ON agents;
CREATE TRIGGER agent_changed AFTER UPDATE OF status, resource_group, schedulable, architecture, devices, engine_ok, hung_volumes ON agents FOR EACH ROW WHEN (
    OLD.status <> NEW.status OR OLD.resource_group <> NEW.resource_group OR OLD.schedulable <> NEW.schedulable
    OR OLD.architecture <> NEW.architecture OR OLD.engine_ok <> NEW.engine_ok OR OLD.devices <> NEW.devices OR OLD.hung_volumes <> NEW.hung_volumes
) EXECUTE FUNCTION scheduling_changed('agent', 'id');
