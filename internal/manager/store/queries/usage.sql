-- What owners used, by day, for fair-share. Written by the leader alone.

-- name: FirstUse :one
-- When the earliest kernel started that may count; now when there is none.
SELECT coalesce(min(started_at), now())::timestamptz AS at FROM kernels WHERE started_at > now() - @lookback::interval;

-- name: AddUsage :exec
-- Adds what kernels held between two instants of one UTC day.
INSERT INTO usage_daily (day, resource_group, domain_name, project_id, user_id, slot, amount)
SELECT CAST(timezone('UTC', @from_at::timestamptz) AS date), s.resource_group, s.domain_name, s.project_id, s.user_id, v.key,
       sum(v.value::numeric * extract(epoch FROM least(k.ended_at, @to_at::timestamptz) - greatest(k.started_at, @from_at::timestamptz)))
FROM (SELECT session_id, requested_slots, started_at, ended_at FROM kernels WHERE ended_at IS NULL AND agent_id IS NOT NULL
      UNION ALL SELECT session_id, requested_slots, started_at, ended_at FROM kernels WHERE ended_at > @from_at::timestamptz) k
JOIN sessions s ON s.id = k.session_id, jsonb_each_text(k.requested_slots) v
WHERE k.started_at < @to_at::timestamptz AND s.type <> 'system' GROUP BY 1, 2, 3, 4, 5, 6
ON CONFLICT (day, resource_group, domain_name, project_id, user_id, slot) DO UPDATE SET amount = usage_daily.amount + excluded.amount;

-- name: UsageSince :many
SELECT resource_group, domain_name, project_id, user_id, (day::timestamp AT TIME ZONE 'UTC')::timestamptz AS day, slot, amount::float8 AS amount
FROM usage_daily WHERE resource_group = ANY(@groups::text[]) AND day >= CAST(timezone('UTC', @since::timestamptz) AS date);

-- name: ForgetUsage :exec
DELETE FROM usage_daily WHERE day < (now() AT TIME ZONE 'UTC')::date - 400;
