-- +goose Up
-- What app proxies may do (decision 21).

-- Agents refuse the grants of circuits that ended while their kernel runs on: the removal says of which kernel it was. Removals
-- of before have none; proxies had no grants then.
ALTER TABLE circuit_removals ADD COLUMN kernel_id uuid;
CREATE INDEX circuit_removals_at ON circuit_removals (at);

-- A launch token works for one launch, of what it was made for.
ALTER TABLE app_launches
    ADD COLUMN started jsonb,                     -- app.startOptions that the app was started with; null without any
    ADD COLUMN request jsonb,                     -- app.launchRequest: what exactly may be launched; null: the first use decides
    ADD COLUMN used_at timestamptz,               -- null until it is used up
    ADD COLUMN used_by text;                      -- what used it: further tries of the same launch may go on

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION circuit_gone() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO circuit_removals (circuit_id, kernel_id) VALUES (OLD.id, OLD.kernel_id);
    INSERT INTO circuit_addresses (proxy, address, user_id, freed_at)
    VALUES (OLD.proxy, coalesce(OLD.label, OLD.port::text), OLD.user_id, clock_timestamp())
    ON CONFLICT (proxy, address) DO UPDATE SET user_id = excluded.user_id, freed_at = excluded.freed_at;
    RETURN NULL;
END $$;
-- +goose StatementEnd
