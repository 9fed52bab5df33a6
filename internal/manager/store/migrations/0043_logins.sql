-- +goose Up
-- How many logins by password each user of a policy may have at one time; null means the manager's own bound.
ALTER TABLE user_resource_policies ADD COLUMN max_concurrent_logins integer CHECK (max_concurrent_logins > 0);
