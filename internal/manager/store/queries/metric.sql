-- History of use: minutes and hours of kernels and agents.

-- name: MakeMetricDay :exec
SELECT make_metric_day(@moment::timestamptz);

-- name: DropMetricDays :one
SELECT drop_metric_days(@minutes_before::timestamptz, @hours_before::timestamptz, @most::bigint)::int;

-- name: AddKernelMinutes :exec
-- The first manager that tells a minute of a kernel is believed.
INSERT INTO kernel_minutes (kernel_id, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices)
SELECT (r ->> 'kernel_id')::uuid, (r ->> 'at')::timestamptz, (r ->> 'cpu')::real, (r ->> 'mem')::double precision::bigint, (r ->> 'io_read')::real,
    (r ->> 'io_write')::real, (r ->> 'net_rx')::real, (r ->> 'net_tx')::real, nullif(r -> 'devices', 'null')
FROM jsonb_array_elements(@rows::jsonb) AS r ON CONFLICT DO NOTHING;

-- name: AddAgentMinutes :exec
INSERT INTO agent_minutes (agent_id, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices)
SELECT (r ->> 'agent_id')::text, (r ->> 'at')::timestamptz, (r ->> 'cpu')::real, (r ->> 'mem')::double precision::bigint, (r ->> 'io_read')::real,
    (r ->> 'io_write')::real, (r ->> 'net_rx')::real, (r ->> 'net_tx')::real, nullif(r -> 'devices', 'null')
FROM jsonb_array_elements(@rows::jsonb) AS r ON CONFLICT DO NOTHING;

-- name: MetricProgress :one
-- Up to where minutes are summed up; the beginning of time for none.
SELECT coalesce((SELECT until FROM metric_progress), 'epoch'::timestamptz)::timestamptz AS until;

-- name: FirstMetricMinute :one
-- The oldest minute from a time on; now for none.
WITH since AS (SELECT @since::timestamptz AS at)
SELECT coalesce(least((SELECT min(k.at) FROM kernel_minutes k, since WHERE k.at >= since.at),
    (SELECT min(a.at) FROM agent_minutes a, since WHERE a.at >= since.at)), now())::timestamptz AS at;

-- name: SumKernelMinutes :exec
-- An hour is summed up once: what comes later stays in the minutes alone.
WITH h AS (SELECT @hour::timestamptz AS at),
m AS (SELECT k.* FROM kernel_minutes k, h WHERE k.at >= h.at AND k.at < h.at + interval '1 hour'),
d AS (SELECT m.kernel_id, e.name, avg(e.value::double precision) AS mean FROM m, jsonb_each_text(m.devices) AS e(name, value) GROUP BY 1, 2),
o AS (SELECT d.kernel_id, jsonb_object_agg(d.name, d.mean) AS devices FROM d GROUP BY 1),
s AS (SELECT m.kernel_id, avg(m.cpu) AS cpu, avg(m.mem)::bigint AS mem, avg(m.io_read) AS io_read, avg(m.io_write) AS io_write,
    avg(m.net_rx) AS net_rx, avg(m.net_tx) AS net_tx FROM m GROUP BY 1)
INSERT INTO kernel_hours (kernel_id, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices)
SELECT s.kernel_id, h.at, s.cpu, s.mem, s.io_read, s.io_write, s.net_rx, s.net_tx, o.devices
FROM s CROSS JOIN h LEFT JOIN o ON o.kernel_id = s.kernel_id ON CONFLICT DO NOTHING;

-- name: SumAgentMinutes :exec
WITH h AS (SELECT @hour::timestamptz AS at),
m AS (SELECT k.* FROM agent_minutes k, h WHERE k.at >= h.at AND k.at < h.at + interval '1 hour'),
d AS (SELECT m.agent_id, e.name, avg(e.value::double precision) AS mean FROM m, jsonb_each_text(m.devices) AS e(name, value) GROUP BY 1, 2),
o AS (SELECT d.agent_id, jsonb_object_agg(d.name, d.mean) AS devices FROM d GROUP BY 1),
s AS (SELECT m.agent_id, avg(m.cpu) AS cpu, avg(m.mem)::bigint AS mem, avg(m.io_read) AS io_read, avg(m.io_write) AS io_write,
    avg(m.net_rx) AS net_rx, avg(m.net_tx) AS net_tx FROM m GROUP BY 1)
INSERT INTO agent_hours (agent_id, at, cpu, mem, io_read, io_write, net_rx, net_tx, devices)
SELECT s.agent_id, h.at, s.cpu, s.mem, s.io_read, s.io_write, s.net_rx, s.net_tx, o.devices
FROM s CROSS JOIN h LEFT JOIN o ON o.agent_id = s.agent_id ON CONFLICT DO NOTHING;

-- name: SetMetricProgress :exec
INSERT INTO metric_progress (until) VALUES (@until) ON CONFLICT (one) DO UPDATE SET until = excluded.until;
