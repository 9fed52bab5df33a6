-- +goose Up
-- Apps of every kernel of a session can be published, not only those of its main kernel. circuits.kernel_id names the kernel as before; a
-- launch token now does, too. Null is the main kernel: tokens of older managers, and those of clients that name a session alone.
-- Writer: app.Service.
ALTER TABLE app_launches ADD COLUMN kernel_id uuid REFERENCES kernels(id) ON DELETE CASCADE;
CREATE INDEX app_launches_kernel ON app_launches (kernel_id) WHERE kernel_id IS NOT NULL;

-- Kernels of one session may differ. Roles of the request have a label (cluster_role; cluster_idx counts within a role), slots, and where
-- they say so an image and shared memory of their own. Null is what the session says: the image too, where both name the same. Names of
-- hosts do not depend on roles. Writer: session.Service, with the session.
ALTER TABLE kernels ADD COLUMN image_id uuid REFERENCES images(id) ON DELETE SET NULL;
ALTER TABLE kernels ADD COLUMN image_digest text NOT NULL DEFAULT '';
ALTER TABLE kernels ADD COLUMN shmem_bytes bigint;
CREATE INDEX kernels_image ON kernels (image_id) WHERE image_id IS NOT NULL;

-- The roles of a session's kernels with how many there are of each, in the order of their ranks: main:1,sub:3.
-- +goose StatementBegin
CREATE FUNCTION roles_of_session(session uuid) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT string_agg(r.role || ':' || r.n, ',' ORDER BY r.first) FROM (
        SELECT k.cluster_role AS role, count(*) AS n, min(k.local_rank) AS first FROM kernels k WHERE k.session_id = session
        GROUP BY k.cluster_role) r
$$;
-- +goose StatementEnd

-- The members of a session's network in the order of their addresses, which is that of their ranks. Roles do not change it.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION members_of_session(session uuid) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_agg(jsonb_build_object('kernel', k.id, 'name', k.cluster_hostname, 'agent', coalesce(k.agent_id, ''),
        'host', coalesce(a.network_address, '')) ORDER BY k.local_rank, k.cluster_role <> 'main', k.cluster_role, k.cluster_idx, k.id)
    FROM kernels k LEFT JOIN agents a ON a.id = k.agent_id WHERE k.session_id = session
$$;
-- +goose StatementEnd
