-- +goose Up
-- Idle checks. Checkers and bindings are written by administrators, accesses by the managers that serve them,
-- keep-alives by whoever grants them, warnings by the leader's idle loop alone.

-- Seconds for which owners may keep a session alive without using it; 0 forbids it.
ALTER TABLE keypair_resource_policies ADD COLUMN max_keep_alive bigint NOT NULL DEFAULT 86400 CHECK (max_keep_alive >= 0);

CREATE TABLE idle_checkers (
    name                 text PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 64),
    description          text NOT NULL DEFAULT '',
    type                 text NOT NULL CHECK (type IN ('session_lifetime','network_timeout','utilization')),
    target_session_types text[] NOT NULL,
    initial_grace_period bigint NOT NULL DEFAULT 0 CHECK (initial_grace_period >= 0),   -- seconds since the session's start
    new_user_grace       bigint NOT NULL DEFAULT 0 CHECK (new_user_grace >= 0),         -- seconds since its user was made
    warn_before          bigint NOT NULL DEFAULT 300 CHECK (warn_before >= 0),          -- seconds
    dry_run              boolean NOT NULL DEFAULT false,
    enabled              boolean NOT NULL DEFAULT true,
    spec                 jsonb NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT now(),
    modified_at          timestamptz NOT NULL DEFAULT now()
);

-- Where a checker applies; a row without any scope means the whole cluster.
CREATE TABLE idle_checker_bindings (
    checker        text NOT NULL REFERENCES idle_checkers(name) ON DELETE CASCADE,
    domain_name    text REFERENCES domains(name) ON DELETE CASCADE,
    project_id     uuid REFERENCES projects(id) ON DELETE CASCADE,
    resource_group text REFERENCES resource_groups(name) ON DELETE CASCADE,
    CHECK (num_nonnulls(domain_name, project_id, resource_group) <= 1),
    UNIQUE NULLS NOT DISTINCT (checker, domain_name, project_id, resource_group)
);

CREATE TABLE session_accesses (
    session_id  uuid PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    last_access timestamptz NOT NULL
);

CREATE TABLE keep_alive_grants (
    session_id uuid PRIMARY KEY REFERENCES sessions(id) ON DELETE CASCADE,
    until      timestamptz NOT NULL,
    by_admin   boolean NOT NULL,                    -- an administrator's grant holds against the lifetime too
    granted_by text NOT NULL,                       -- email
    reason     text NOT NULL DEFAULT '',
    granted_at timestamptz NOT NULL DEFAULT now()
);

-- Sessions that were told that they will end. The row goes when the session is in use again.
CREATE TABLE session_idle_warnings (
    session_id uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    checker    text NOT NULL,                       -- name, or 'policy:<type>' for the limits of keypair policies
    warned_at  timestamptz NOT NULL,
    deadline   timestamptz NOT NULL,
    dry_run    boolean NOT NULL DEFAULT false,
    evidence   jsonb NOT NULL,
    PRIMARY KEY (session_id, checker)
);
