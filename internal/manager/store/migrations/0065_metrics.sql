-- +goose Up
-- History of use. Managers insert a minute of each kernel and agent that they hear (package metric); the leader sums minutes up to hours,
-- makes the tables of coming days and drops those of old ones. What was not measured is null, never zero.
-- cpu: percent, 100 is one core; mem: bytes; io and net: bytes a second; devices: other measurements by name, such as cuda_util.
CREATE TABLE kernel_minutes (
    kernel_id uuid NOT NULL,
    at        timestamptz NOT NULL,
    cpu real, mem bigint, io_read real, io_write real, net_rx real, net_tx real,
    devices   jsonb,
    PRIMARY KEY (kernel_id, at)
) PARTITION BY RANGE (at);
CREATE TABLE kernel_hours (LIKE kernel_minutes INCLUDING ALL) PARTITION BY RANGE (at);
CREATE TABLE agent_minutes (
    agent_id text NOT NULL,
    at       timestamptz NOT NULL,
    cpu real, mem bigint, io_read real, io_write real, net_rx real, net_tx real,
    devices  jsonb,
    PRIMARY KEY (agent_id, at)
) PARTITION BY RANGE (at);
CREATE TABLE agent_hours (LIKE agent_minutes INCLUDING ALL) PARTITION BY RANGE (at);

-- Up to where minutes are summed up. One row; writer: the leader (package metric).
CREATE TABLE metric_progress (
    one   boolean PRIMARY KEY DEFAULT true CHECK (one),
    until timestamptz NOT NULL
);

-- +goose StatementBegin
-- Makes the tables of the day of a moment, if need be.
CREATE FUNCTION make_metric_day(moment timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE parent text; day date := (moment AT TIME ZONE 'UTC')::date;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('make_metric_day'));
    FOREACH parent IN ARRAY ARRAY['kernel_minutes', 'kernel_hours', 'agent_minutes', 'agent_hours'] LOOP
        IF to_regclass(parent || to_char(day, '_YYYYMMDD')) IS NULL THEN
            EXECUTE format('CREATE TABLE %I PARTITION OF %I FOR VALUES FROM (%L) TO (%L)', parent || to_char(day, '_YYYYMMDD'), parent,
                day::text || ' 00:00+00', (day + 1)::text || ' 00:00+00');
        END IF;
    END LOOP;
END $$;

-- Drops the tables of days before moments, of minutes and of hours, and tells how many. The day is in the name of a table. More minutes of
-- kernels than most drop further days, the oldest first, but never the newest two.
CREATE FUNCTION drop_metric_days(minutes_before timestamptz, hours_before timestamptz, most bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE t record; n int := 0;
BEGIN
    FOR t IN SELECT c.oid::regclass AS name, p.relname AS parent, right(c.relname, 8)::date AS day FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class p ON p.oid = i.inhparent
        WHERE p.oid IN ('kernel_minutes'::regclass, 'kernel_hours'::regclass, 'agent_minutes'::regclass, 'agent_hours'::regclass) LOOP
        IF t.day < (hours_before AT TIME ZONE 'UTC')::date OR t.parent LIKE '%minutes' AND t.day < (minutes_before AT TIME ZONE 'UTC')::date THEN
            EXECUTE 'DROP TABLE ' || t.name;
            n := n + 1;
        END IF;
    END LOOP;
    FOR t IN SELECT c.oid::regclass AS name, sum(greatest(c.reltuples, 0)) OVER (ORDER BY right(c.relname, 8)::date DESC) AS rows
        FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid WHERE i.inhparent = 'kernel_minutes'::regclass
        ORDER BY right(c.relname, 8)::date DESC OFFSET 2 LOOP
        IF t.rows > most THEN
            EXECUTE 'DROP TABLE ' || t.name;
            n := n + 1;
        END IF;
    END LOOP;
    RETURN n;
END $$;
-- +goose StatementEnd
