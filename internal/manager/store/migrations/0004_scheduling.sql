-- +goose Up
-- What schedulers that keep the cluster in memory must look at again. Transactions become visible in another order than
-- their numbers or times, so no "newer than the last one seen" finds all. Instead every row remembers the
-- transaction that last changed it. With S the snapshot of one look and T that of the next,
-- `changed >= pg_snapshot_xmin(S) AND NOT pg_visible_in_snapshot(changed, S)`, evaluated under T, is exactly
-- what was committed between the two: what S saw is excluded by S itself, and what S did not see has a
-- number of at least its xmin. Rows that T does not see come with the next look, for T does not see their number either.

-- Sessions change often, so they carry the number themselves. Only columns of interest move it; kernels are placed
-- and requeued together with their session.
ALTER TABLE sessions ADD COLUMN changed xid8 NOT NULL DEFAULT pg_current_xact_id();
CREATE INDEX sessions_changed ON sessions (changed);

-- +goose StatementBegin
CREATE FUNCTION session_changed() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.changed := pg_current_xact_id();
    RETURN NEW;
END $$;
-- +goose StatementEnd
CREATE TRIGGER session_changed BEFORE UPDATE ON sessions FOR EACH ROW WHEN (
    OLD.status <> NEW.status AND (OLD.status = 'PENDING' OR NEW.status IN ('PENDING','RUNNING','TERMINATED','CANCELLED','ERROR'))
    OR OLD.result <> NEW.result OR OLD.priority <> NEW.priority OR OLD.resource_group <> NEW.resource_group OR OLD.type <> NEW.type
    OR OLD.designated_agents <> NEW.designated_agents OR OLD.failed_agents <> NEW.failed_agents OR OLD.cluster_mode <> NEW.cluster_mode
    OR OLD.starts_at IS DISTINCT FROM NEW.starts_at OR OLD.batch_timeout_ms IS DISTINCT FROM NEW.batch_timeout_ms
    OR OLD.preemptible <> NEW.preemptible OR OLD.created_at <> NEW.created_at
    OR OLD.user_id <> NEW.user_id OR OLD.access_key <> NEW.access_key OR OLD.project_id <> NEW.project_id OR OLD.domain_name <> NEW.domain_name
) EXECUTE FUNCTION session_changed();

-- Everything else changes rarely and is noted here. Written by triggers only; the leader drops old rows.
CREATE TABLE scheduling_changes (
    kind    text NOT NULL CHECK (kind IN ('session','agent','group','quota')),
    id      text NOT NULL,                          -- '' for quotas: look at all of them
    changed xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX scheduling_changes_changed ON scheduling_changes (changed);

-- +goose StatementBegin
CREATE FUNCTION scheduling_changed() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    it text := '';
BEGIN
    IF TG_NARGS > 1 THEN
        IF TG_OP = 'DELETE' THEN
            EXECUTE format('SELECT ($1).%I::text', TG_ARGV[1]) INTO it USING OLD;
        ELSE
            EXECUTE format('SELECT ($1).%I::text', TG_ARGV[1]) INTO it USING NEW;
        END IF;
    END IF;
    INSERT INTO scheduling_changes (kind, id) VALUES (TG_ARGV[0], it);
    RETURN NULL;
END $$;

-- A kernel that ends before its siblings gives back its slots although its session does not change.
CREATE FUNCTION kernel_ended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM kernels k WHERE k.session_id = NEW.session_id AND k.id <> NEW.id) THEN
        INSERT INTO scheduling_changes (kind, id) VALUES ('session', NEW.session_id::text);
    END IF;
    RETURN NULL;
END $$;
-- +goose StatementEnd
CREATE TRIGGER kernel_ended AFTER UPDATE OF ended_at ON kernels FOR EACH ROW
    WHEN (OLD.ended_at IS NULL AND NEW.ended_at IS NOT NULL) EXECUTE FUNCTION kernel_ended();
CREATE TRIGGER session_deleted AFTER DELETE ON sessions FOR EACH ROW EXECUTE FUNCTION scheduling_changed('session', 'id');

CREATE TRIGGER agent_added AFTER INSERT OR DELETE ON agents FOR EACH ROW EXECUTE FUNCTION scheduling_changed('agent', 'id');
CREATE TRIGGER agent_changed AFTER UPDATE OF status, resource_group, schedulable, architecture, devices, engine_ok ON agents FOR EACH ROW WHEN (
    OLD.status <> NEW.status OR OLD.resource_group <> NEW.resource_group OR OLD.schedulable <> NEW.schedulable
    OR OLD.architecture <> NEW.architecture OR OLD.engine_ok <> NEW.engine_ok OR OLD.devices <> NEW.devices
) EXECUTE FUNCTION scheduling_changed('agent', 'id');
CREATE TRIGGER agent_image_changed AFTER INSERT OR DELETE ON agent_images FOR EACH ROW EXECUTE FUNCTION scheduling_changed('agent', 'agent_id');

CREATE TRIGGER group_added AFTER INSERT OR DELETE ON resource_groups FOR EACH ROW EXECUTE FUNCTION scheduling_changed('group', 'name');
CREATE TRIGGER group_changed AFTER UPDATE ON resource_groups FOR EACH ROW WHEN (
    OLD.is_active <> NEW.is_active OR OLD.scheduler <> NEW.scheduler OR OLD.scheduler_opts <> NEW.scheduler_opts
) EXECUTE FUNCTION scheduling_changed('group', 'name');

CREATE TRIGGER keypair_policy_changed AFTER UPDATE ON keypair_resource_policies FOR EACH STATEMENT EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER project_limit_changed AFTER UPDATE ON projects FOR EACH ROW
    WHEN (OLD.total_resource_slots <> NEW.total_resource_slots OR OLD.name <> NEW.name) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER domain_limit_changed AFTER UPDATE ON domains FOR EACH ROW
    WHEN (OLD.total_resource_slots <> NEW.total_resource_slots) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER user_limit_changed AFTER UPDATE OF main_access_key, email ON users FOR EACH ROW
    WHEN (OLD.main_access_key IS DISTINCT FROM NEW.main_access_key OR OLD.email <> NEW.email) EXECUTE FUNCTION scheduling_changed('quota');
CREATE TRIGGER keypair_limit_changed AFTER UPDATE OF resource_policy ON keypairs FOR EACH ROW
    WHEN (OLD.resource_policy <> NEW.resource_policy) EXECUTE FUNCTION scheduling_changed('quota');

-- Owners' live and waiting sessions are counted under their limits.
DROP INDEX sessions_live;
CREATE INDEX sessions_live ON sessions (status, user_id) WHERE ended_at IS NULL;
DROP INDEX sessions_pending;                        -- the queue is kept in memory

-- Use by owner and day for fair-share, added up by the leader alone. Thousandths of a slot's unit times seconds.
CREATE TABLE usage_daily (
    day            date NOT NULL,
    resource_group text NOT NULL,
    domain_name    text NOT NULL,
    project_id     uuid NOT NULL,
    user_id        uuid NOT NULL,
    slot           text NOT NULL,
    amount         numeric NOT NULL,
    PRIMARY KEY (day, resource_group, domain_name, project_id, user_id, slot)
);
CREATE INDEX kernels_ended ON kernels (ended_at) WHERE ended_at IS NOT NULL;
