-- +goose Up
-- Published ways to apps. Writer: app.Service; rows go by trigger when their kernel leaves RUNNING (a kernel that is LOST may
-- come back and keeps them). Whether a circuit is published is derived by join and never stored.

CREATE SEQUENCE circuit_revisions;

CREATE TABLE circuits (
    id            uuid PRIMARY KEY,
    proxy         text NOT NULL,                  -- name of the app proxy, as its certificate says
    mode          text NOT NULL CHECK (mode IN ('subdomain','port')),
    label         text CHECK (label ~ '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'),
    port          integer CHECK (port BETWEEN 1 AND 65535),
    session_id    uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    kernel_id     uuid NOT NULL REFERENCES kernels(id) ON DELETE CASCADE,
    app           text NOT NULL,
    protocol      text NOT NULL,
    target        integer NOT NULL CHECK (target BETWEEN 1 AND 65535), -- inside the kernel
    path          text NOT NULL,                  -- where visitors begin
    user_id       uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE, -- the session's owner
    created_by    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    public        boolean NOT NULL,
    allowed       text[] NOT NULL,                -- prefixes that visitors may come from; empty is all
    epoch         bigint NOT NULL DEFAULT 1,      -- raising it ends all tickets
    limits        jsonb NOT NULL DEFAULT '{}',    -- proxy.Limits
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz,
    last_activity timestamptz,                    -- of visitors; written without a new revision
    revision      bigint NOT NULL DEFAULT 0,      -- by trigger, like changed
    changed       xid8 NOT NULL DEFAULT pg_current_xact_id(),
    CHECK (mode = 'subdomain' AND label IS NOT NULL AND port IS NULL OR mode = 'port' AND port IS NOT NULL AND label IS NULL)
);
CREATE UNIQUE INDEX circuits_label ON circuits (proxy, label);
CREATE UNIQUE INDEX circuits_port ON circuits (proxy, port);
CREATE INDEX circuits_session ON circuits (session_id);
CREATE INDEX circuits_kernel ON circuits (kernel_id);
CREATE INDEX circuits_user ON circuits (user_id);
CREATE INDEX circuits_expiry ON circuits (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX circuits_changed ON circuits (changed);

-- Circuits that are gone: managers that follow the table learn of them here (migration 0004 says why nothing is missed).
CREATE TABLE circuit_removals (
    circuit_id uuid NOT NULL,
    changed    xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at         timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX circuit_removals_changed ON circuit_removals (changed);

-- When labels and ports became free, and of whom: what others may still have open or written down is not given to the next
-- owner while there is anything else.
CREATE TABLE circuit_addresses (
    proxy    text NOT NULL,
    address  text NOT NULL,                       -- label or port
    user_id  uuid NOT NULL,
    freed_at timestamptz NOT NULL,
    PRIMARY KEY (proxy, address)
);

-- Users and projects that a circuit is shared with, besides its owner.
CREATE TABLE circuit_shares (
    circuit_id uuid NOT NULL REFERENCES circuits(id) ON DELETE CASCADE,
    user_id    uuid REFERENCES users(id) ON DELETE CASCADE,
    project_id uuid REFERENCES projects(id) ON DELETE CASCADE,
    CHECK (num_nonnulls(user_id, project_id) = 1),
    UNIQUE NULLS NOT DISTINCT (circuit_id, user_id, project_id)
);
CREATE INDEX circuit_shares_user ON circuit_shares (user_id) WHERE user_id IS NOT NULL;
CREATE INDEX circuit_shares_project ON circuit_shares (project_id) WHERE project_id IS NOT NULL;

-- Addresses from which raw TCP is admitted to a circuit's own port.
CREATE TABLE circuit_admissions (
    circuit_id uuid NOT NULL REFERENCES circuits(id) ON DELETE CASCADE,
    address    text NOT NULL,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (circuit_id, address)
);
CREATE INDEX circuit_admissions_expiry ON circuit_admissions (expires_at);

-- One-time codes of visitors, hashed. Redeeming one deletes it.
CREATE TABLE circuit_codes (
    code_hash  bytea PRIMARY KEY,
    circuit_id uuid NOT NULL REFERENCES circuits(id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    epoch      bigint NOT NULL,                   -- of the circuit when it was made
    expires_at timestamptz NOT NULL
);
CREATE INDEX circuit_codes_circuit ON circuit_codes (circuit_id);
CREATE INDEX circuit_codes_expiry ON circuit_codes (expires_at);

-- Tokens with which a proxy may publish a session's apps on behalf of a user, hashed. What was started for the token is kept
-- for managers that the session's agent is not connected to.
CREATE TABLE app_launches (
    token_hash bytea PRIMARY KEY,
    session_id uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    app        text NOT NULL,                     -- '' when nothing was started
    asked_port integer NOT NULL,                  -- as the client named it, 0 for the app's first
    protocol   text NOT NULL,
    target     integer NOT NULL,
    path       text NOT NULL,
    expires_at timestamptz NOT NULL
);
CREATE INDEX app_launches_session ON app_launches (session_id);
CREATE INDEX app_launches_expiry ON app_launches (expires_at);

-- App proxies as they announced themselves; the manager that a replica watches keeps its row fresh.
CREATE TABLE app_proxies (
    name     text NOT NULL,
    node     text NOT NULL,
    instance jsonb NOT NULL,                      -- proxy.Instance
    seen_at  timestamptz NOT NULL,
    PRIMARY KEY (name, node)
);

-- +goose StatementBegin
CREATE FUNCTION circuit_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.revision := nextval('circuit_revisions');
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END $$;

CREATE FUNCTION circuit_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO circuit_removals (circuit_id) VALUES (OLD.id);
    INSERT INTO circuit_addresses (proxy, address, user_id, freed_at)
    VALUES (OLD.proxy, coalesce(OLD.label, OLD.port::text), OLD.user_id, clock_timestamp())
    ON CONFLICT (proxy, address) DO UPDATE SET user_id = excluded.user_id, freed_at = excluded.freed_at;
    RETURN NULL;
END $$;

-- A kernel that leaves RUNNING takes its circuits along, for good: ids are never used again. A LOST one keeps them.
CREATE FUNCTION circuit_of_kernel() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM circuits WHERE kernel_id = NEW.id;
    RETURN NULL;
END $$;

-- What proxies are told of a circuit is partly its agent's and session's.
CREATE FUNCTION circuit_of_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE circuits SET revision = 0 WHERE session_id = NEW.id;
    RETURN NULL;
END $$;

CREATE FUNCTION circuit_of_agent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE circuits SET revision = 0 WHERE kernel_id IN (SELECT k.id FROM kernels k WHERE k.agent_id = NEW.id AND k.ended_at IS NULL);
    RETURN NULL;
END $$;

CREATE FUNCTION circuit_of_admission() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE circuits SET revision = 0 WHERE id = coalesce(NEW.circuit_id, OLD.circuit_id);
    RETURN NULL;
END $$;
-- Whoever loses the right to visit by leaving a project, or by being made inactive, is thrown out with all tickets of the
-- circuit; the others enter anew. An owner who is made inactive publishes nothing.
CREATE FUNCTION circuit_of_member() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    lost uuid[];
BEGIN
    IF TG_TABLE_NAME = 'users' THEN
        DELETE FROM circuits WHERE user_id = NEW.id;
        lost := ARRAY(SELECT h.circuit_id FROM circuit_shares h WHERE h.user_id = NEW.id
            OR h.project_id IN (SELECT m.project_id FROM project_members m WHERE m.user_id = NEW.id));
    ELSE
        lost := ARRAY(SELECT h.circuit_id FROM circuit_shares h WHERE h.project_id = OLD.project_id);
    END IF;
    DELETE FROM circuit_admissions WHERE circuit_id = ANY(lost);
    UPDATE circuits SET epoch = epoch + 1 WHERE id = ANY(lost);
    RETURN NULL;
END $$;
-- +goose StatementEnd

CREATE TRIGGER circuit_of_member AFTER DELETE ON project_members FOR EACH ROW EXECUTE FUNCTION circuit_of_member();
CREATE TRIGGER circuit_of_user AFTER UPDATE OF status ON users FOR EACH ROW WHEN (OLD.status = 'active' AND NEW.status <> 'active') EXECUTE FUNCTION circuit_of_member();
CREATE TRIGGER circuit_changed BEFORE INSERT OR UPDATE OF public, allowed, epoch, limits, expires_at, revision ON circuits
    FOR EACH ROW EXECUTE FUNCTION circuit_changed();
CREATE TRIGGER circuit_gone AFTER DELETE ON circuits FOR EACH ROW EXECUTE FUNCTION circuit_gone();
CREATE TRIGGER circuit_admitted AFTER INSERT OR DELETE ON circuit_admissions FOR EACH ROW EXECUTE FUNCTION circuit_of_admission();
CREATE TRIGGER circuit_of_kernel AFTER UPDATE OF status ON kernels FOR EACH ROW
    WHEN (OLD.status IN ('RUNNING','LOST') AND NEW.status NOT IN ('RUNNING','LOST')) EXECUTE FUNCTION circuit_of_kernel();
CREATE TRIGGER circuit_of_session AFTER UPDATE OF name ON sessions FOR EACH ROW WHEN (OLD.name <> NEW.name) EXECUTE FUNCTION circuit_of_session();
CREATE TRIGGER circuit_of_agent AFTER UPDATE ON agents FOR EACH ROW WHEN (
    OLD.boot_id <> NEW.boot_id OR OLD.data_address <> NEW.data_address OR OLD.data_socket <> NEW.data_socket
) EXECUTE FUNCTION circuit_of_agent();
