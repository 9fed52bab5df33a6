-- +goose Up
-- The app proxy that a manager sent the holder of a launch token to; '' when none is known by that address, or for tokens of the
-- release before. A proxy gets launch tokens of sessions that a manager named to it, and of no others.
ALTER TABLE app_launches ADD COLUMN proxy text NOT NULL DEFAULT '';

-- The addresses of app proxies: url, domain and ports, each as it was announced first. They stay their proxy's while it is down;
-- `berth admin certificate revoke` frees them. The noun app takes them, the manager role frees them.
CREATE TABLE app_proxy_addresses (
    proxy     text NOT NULL,
    kind      text NOT NULL CHECK (kind IN ('url', 'domain', 'ports')),
    address   text NOT NULL,
    port_from integer NOT NULL DEFAULT 0,
    port_to   integer NOT NULL DEFAULT 0,
    PRIMARY KEY (proxy, kind, address, port_from, port_to)
);
-- Proxies of the release before keep what they have, also where two have the same.
INSERT INTO app_proxy_addresses (proxy, kind, address)
SELECT name, 'url', lower(rtrim(instance->>'url', '/')) FROM app_proxies WHERE coalesce(instance->>'url', '') <> ''
UNION SELECT name, 'domain', lower(ltrim(instance->>'domain', '.')) FROM app_proxies WHERE coalesce(instance->>'domain', '') <> '';
INSERT INTO app_proxy_addresses (proxy, kind, address, port_from, port_to)
SELECT DISTINCT name, 'ports', lower(instance->>'port_host'), (instance->>'port_from')::integer, (instance->>'port_to')::integer
FROM app_proxies WHERE coalesce(instance->>'port_host', '') <> '' AND coalesce((instance->>'port_from')::integer, 0) > 0;
