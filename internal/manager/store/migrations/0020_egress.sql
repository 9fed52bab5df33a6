-- +goose Up
-- What sessions of a resource group may reach from inside: 'open', 'none' or 'proxy:ADDRESS:PORT' (cluster.Egress). Written by
-- administrators alone. Groups that exist stay as open as they were.
ALTER TABLE resource_groups ADD COLUMN egress text NOT NULL DEFAULT 'open'
    CHECK (egress IN ('open', 'none') OR egress ~ '^proxy:[0-9.]{7,15}:[0-9]{1,5}$');
