-- +goose Up
-- The usage ledger: from when to when a kernel held which slots, and whose they were. Occupancy is derived from live rows of kernels, so the
-- ledger is, too: a trigger opens an interval in the transaction that gives a kernel its slots and closes it in the one that frees them.
-- Nothing else writes it. An interval is never changed after that; only retention deletes. It refers to no other table: it outlives
-- sessions, users and projects.
CREATE TABLE usage_intervals (
    id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    kernel_id      uuid NOT NULL,
    session_id     uuid NOT NULL,
    session_name   text NOT NULL,
    session_type   text NOT NULL,
    domain_name    text NOT NULL,
    project_id     uuid NOT NULL,
    project_name   text NOT NULL,                   -- of that time, as are the email address and the image
    user_id        uuid NOT NULL,
    email          text NOT NULL,
    access_key     text NOT NULL,
    resource_group text NOT NULL,
    agent_id       text NOT NULL,
    image          text NOT NULL,
    slots          jsonb NOT NULL,                  -- thousandths of each slot's unit
    from_at        timestamptz NOT NULL,
    to_at          timestamptz,                     -- null: held now
    CHECK (to_at >= from_at)
);
CREATE UNIQUE INDEX usage_intervals_open ON usage_intervals (kernel_id) WHERE to_at IS NULL;
CREATE INDEX usage_intervals_to ON usage_intervals (coalesce(to_at, 'infinity'));
CREATE INDEX usage_intervals_project ON usage_intervals (project_id, from_at);
CREATE INDEX usage_intervals_user ON usage_intervals (user_id, from_at);

-- Prices for showback, in the cluster's own unit of account: for an hour of one unit of a slot (of memory: one GiB). Written by package usage.
CREATE TABLE usage_prices (
    id             uuid PRIMARY KEY,
    slot           text NOT NULL CHECK (char_length(slot) BETWEEN 1 AND 64),
    resource_group text NOT NULL DEFAULT '',        -- '': where the group has no price of its own
    per_hour       numeric(20, 9) NOT NULL CHECK (per_hour >= 0),
    valid_from     timestamptz NOT NULL,            -- until the next one of the same slot and group
    UNIQUE (resource_group, slot, valid_from)
);

-- +goose StatementBegin
-- The instant is that of the statement, not of the transaction's begin: what is written under a row's lock comes after what was written
-- under it before, so the intervals of a kernel never overlap.
CREATE FUNCTION usage_of_kernel() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    instant timestamptz := clock_timestamp();
BEGIN
    IF TG_OP <> 'INSERT' THEN
        UPDATE usage_intervals SET to_at = greatest(instant, from_at) WHERE kernel_id = OLD.id AND to_at IS NULL;
    END IF;
    IF TG_OP <> 'DELETE' AND NEW.agent_id IS NOT NULL AND NEW.ended_at IS NULL THEN
        INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name, project_id, project_name, user_id, email,
            access_key, resource_group, agent_id, image, slots, from_at)
        SELECT NEW.id, s.id, s.name, s.type, s.domain_name, s.project_id, p.name, s.user_id, u.email, s.access_key, s.resource_group, NEW.agent_id,
            NEW.image, NEW.requested_slots, instant
        FROM sessions s JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id WHERE s.id = NEW.session_id;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION usage_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' AND current_setting('berth.usage_retention', true) = 'on' THEN
        RETURN OLD;
    END IF;
    IF TG_OP = 'UPDATE' AND OLD.to_at IS NULL AND NEW.to_at IS NOT NULL AND to_jsonb(OLD) - 'to_at' = to_jsonb(NEW) - 'to_at' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the usage ledger is only appended to: % is refused', TG_OP;
END $$;
-- +goose StatementEnd

-- What is known of before: kernels that are still there, from when they were placed.
INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name, project_id, project_name, user_id, email, access_key,
    resource_group, agent_id, image, slots, from_at, to_at)
SELECT k.id, s.id, s.name, s.type, s.domain_name, s.project_id, p.name, s.user_id, u.email, s.access_key, s.resource_group, k.agent_id, k.image,
    k.requested_slots, coalesce(k.scheduled_at, k.started_at, k.created_at), greatest(k.ended_at, coalesce(k.scheduled_at, k.started_at, k.created_at))
FROM kernels k JOIN sessions s ON s.id = k.session_id JOIN projects p ON p.id = s.project_id JOIN users u ON u.id = s.user_id
WHERE k.agent_id IS NOT NULL ORDER BY k.created_at;

CREATE TRIGGER usage_append_only BEFORE UPDATE OR DELETE ON usage_intervals FOR EACH ROW EXECUTE FUNCTION usage_append_only();
CREATE TRIGGER usage_append_only_all BEFORE TRUNCATE ON usage_intervals FOR EACH STATEMENT EXECUTE FUNCTION usage_append_only();
CREATE TRIGGER usage_of_kernel AFTER UPDATE ON kernels FOR EACH ROW WHEN (
    (OLD.agent_id IS NOT NULL AND OLD.ended_at IS NULL) <> (NEW.agent_id IS NOT NULL AND NEW.ended_at IS NULL)
    OR NEW.agent_id IS NOT NULL AND NEW.ended_at IS NULL AND (OLD.agent_id IS DISTINCT FROM NEW.agent_id OR OLD.requested_slots <> NEW.requested_slots)
) EXECUTE FUNCTION usage_of_kernel();
CREATE TRIGGER usage_of_new_kernel AFTER INSERT ON kernels FOR EACH ROW WHEN (NEW.agent_id IS NOT NULL AND NEW.ended_at IS NULL)
    EXECUTE FUNCTION usage_of_kernel();
CREATE TRIGGER usage_of_forgotten_kernel AFTER DELETE ON kernels FOR EACH ROW WHEN (OLD.agent_id IS NOT NULL AND OLD.ended_at IS NULL)
    EXECUTE FUNCTION usage_of_kernel();

CREATE TRIGGER audit_change AFTER INSERT OR DELETE OR UPDATE ON usage_prices FOR EACH ROW
    WHEN (current_setting('berth.audit', true) <> '') EXECUTE FUNCTION audit_change('id');
