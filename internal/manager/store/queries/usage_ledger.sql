-- The usage ledger. Intervals are written by the triggers of migration 0038 alone, prices by package usage.

-- name: UsagePrices :many
SELECT id, slot, resource_group, per_hour::text AS per_hour, valid_from FROM usage_prices ORDER BY slot, resource_group, valid_from LIMIT @max_rows;

-- name: SetUsagePrice :one
-- A price that is there for the same slot, group and instant is replaced.
INSERT INTO usage_prices (id, slot, resource_group, per_hour, valid_from)
VALUES (@id, @slot, @resource_group, CAST(@per_hour::text AS numeric), @valid_from)
ON CONFLICT (resource_group, slot, valid_from) DO UPDATE SET per_hour = excluded.per_hour
RETURNING id, slot, resource_group, per_hour::text AS per_hour, valid_from;

-- name: RemoveUsagePrice :execrows
DELETE FROM usage_prices WHERE id = $1;

-- name: CountUsagePrices :one
SELECT count(*) FROM usage_prices;

-- name: AllowUsageRetention :exec
SELECT set_config('berth.usage_retention', 'on', true);

-- name: PruneUsageIntervals :execrows
-- Forgets some intervals that ended longer ago than the age; the transaction has berth.usage_retention on.
DELETE FROM usage_intervals WHERE id IN (
    SELECT i.id FROM usage_intervals i WHERE coalesce(i.to_at, 'infinity') < now() - @age::interval ORDER BY coalesce(i.to_at, 'infinity') LIMIT @max_rows);
