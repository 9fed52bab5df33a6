-- +goose Up
-- Amounts of slots are jsonb maps of slot name to thousandths of the unit (integers):
-- {"cpu": 2000, "mem": 1073741824000}. An absent slot in a limit means unlimited.
-- Secrets are sealed (bytea) with the master key; passwords are argon2id in PHC text.

CREATE TABLE cluster_settings (
    key        text PRIMARY KEY,
    value      jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE domains (
    name                     text PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 64),
    description              text,
    is_active                boolean NOT NULL DEFAULT true,
    created_at               timestamptz NOT NULL DEFAULT now(),
    modified_at              timestamptz NOT NULL DEFAULT now(),
    total_resource_slots     jsonb NOT NULL DEFAULT '{}',
    allowed_vfolder_hosts    jsonb NOT NULL DEFAULT '{}',
    allowed_docker_registries text[] NOT NULL DEFAULT '{}',
    integration_id           text,
    dotfiles                 jsonb NOT NULL DEFAULT '[]'
);

CREATE TABLE keypair_resource_policies (
    name                     text PRIMARY KEY,
    created_at               timestamptz NOT NULL DEFAULT now(),
    default_for_unspecified  text NOT NULL DEFAULT 'UNLIMITED' CHECK (default_for_unspecified IN ('LIMITED','UNLIMITED')),
    total_resource_slots     jsonb NOT NULL DEFAULT '{}',
    max_session_lifetime     integer NOT NULL DEFAULT 0,
    max_concurrent_sessions  integer NOT NULL DEFAULT 30,
    max_concurrent_sftp_sessions integer NOT NULL DEFAULT 1,
    max_pending_session_count integer,
    max_pending_session_resource_slots jsonb,
    max_priority             integer CHECK (max_priority BETWEEN 0 AND 100),
    max_containers_per_session integer NOT NULL DEFAULT 1,
    idle_timeout             bigint NOT NULL DEFAULT 3600,
    allowed_vfolder_hosts    jsonb NOT NULL DEFAULT '{}'
);

CREATE TABLE user_resource_policies (
    name                     text PRIMARY KEY,
    created_at               timestamptz NOT NULL DEFAULT now(),
    max_vfolder_count        integer NOT NULL DEFAULT 0,
    max_quota_scope_size     bigint NOT NULL DEFAULT -1,
    max_session_count_per_model_session integer NOT NULL DEFAULT 10,
    max_customized_image_count integer NOT NULL DEFAULT 3
);

CREATE TABLE project_resource_policies (
    name                     text PRIMARY KEY,
    created_at               timestamptz NOT NULL DEFAULT now(),
    max_vfolder_count        integer NOT NULL DEFAULT 0,
    max_quota_scope_size     bigint NOT NULL DEFAULT -1,
    max_network_count        integer NOT NULL DEFAULT 3
);

CREATE TABLE projects (
    id                       uuid PRIMARY KEY,
    name                     text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    description              text,
    is_active                boolean NOT NULL DEFAULT true,
    created_at               timestamptz NOT NULL DEFAULT now(),
    modified_at              timestamptz NOT NULL DEFAULT now(),
    domain_name              text NOT NULL REFERENCES domains(name),
    total_resource_slots     jsonb NOT NULL DEFAULT '{}',
    allowed_vfolder_hosts    jsonb NOT NULL DEFAULT '{}',
    integration_id           text,
    type                     text NOT NULL DEFAULT 'general' CHECK (type IN ('general','model-store')),
    resource_policy          text NOT NULL REFERENCES project_resource_policies(name),
    dotfiles                 jsonb NOT NULL DEFAULT '[]',
    UNIQUE (domain_name, name)
);

CREATE TABLE users (
    id                       uuid PRIMARY KEY,
    username                 text NOT NULL UNIQUE CHECK (char_length(username) <= 64),
    email                    text NOT NULL UNIQUE CHECK (char_length(email) <= 64),
    password_hash            text,
    need_password_change     boolean NOT NULL DEFAULT false,
    password_changed_at      timestamptz,
    full_name                text NOT NULL DEFAULT '',
    description              text NOT NULL DEFAULT '',
    status                   text NOT NULL DEFAULT 'active' CHECK (status IN ('active','inactive','deleted','before-verification')),
    status_info              text,
    domain_name              text NOT NULL REFERENCES domains(name),
    role                     text NOT NULL DEFAULT 'user' CHECK (role IN ('superadmin','admin','user','monitor')),
    resource_policy          text NOT NULL REFERENCES user_resource_policies(name),
    allowed_client_ip        text[],
    totp_activated           boolean NOT NULL DEFAULT false,
    sudo_session_enabled     boolean NOT NULL DEFAULT false,
    main_access_key          text,
    container_uid            integer,
    container_main_gid       integer,
    container_gids           integer[],
    integration_id           text,
    created_at               timestamptz NOT NULL DEFAULT now(),
    modified_at              timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE project_members (
    project_id uuid NOT NULL REFERENCES projects(id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    PRIMARY KEY (project_id, user_id)
);
CREATE INDEX project_members_user ON project_members (user_id);

CREATE TABLE keypairs (
    access_key       text PRIMARY KEY CHECK (char_length(access_key) <= 20),
    secret_sealed    bytea NOT NULL,
    user_id          uuid NOT NULL REFERENCES users(id),
    is_active        boolean NOT NULL DEFAULT true,
    is_admin         boolean NOT NULL DEFAULT false,
    resource_policy  text NOT NULL REFERENCES keypair_resource_policies(name),
    rate_limit       integer NOT NULL DEFAULT 10000,
    num_queries      bigint NOT NULL DEFAULT 0,
    last_used        timestamptz,
    ssh_public_key   text,
    ssh_private_sealed bytea,
    dotfiles         jsonb NOT NULL DEFAULT '[]',
    bootstrap_script text NOT NULL DEFAULT '',
    created_at       timestamptz NOT NULL DEFAULT now(),
    modified_at      timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX keypairs_user ON keypairs (user_id);
ALTER TABLE users ADD CONSTRAINT users_main_access_key FOREIGN KEY (main_access_key) REFERENCES keypairs(access_key) DEFERRABLE INITIALLY DEFERRED;

CREATE TABLE resource_groups (
    name               text PRIMARY KEY CHECK (char_length(name) BETWEEN 1 AND 64),
    description        text,
    is_active          boolean NOT NULL DEFAULT true,
    is_public          boolean NOT NULL DEFAULT true,
    created_at         timestamptz NOT NULL DEFAULT now(),
    wsproxy_addr       text,
    wsproxy_api_token_sealed bytea,
    driver             text NOT NULL DEFAULT 'static',
    driver_opts        jsonb NOT NULL DEFAULT '{}',
    scheduler          text NOT NULL DEFAULT 'fifo',
    scheduler_opts     jsonb NOT NULL DEFAULT '{}',
    use_host_network   boolean NOT NULL DEFAULT false
);
CREATE TABLE resource_groups_for_domains (
    resource_group text NOT NULL REFERENCES resource_groups(name) ON DELETE CASCADE,
    domain_name    text NOT NULL REFERENCES domains(name) ON DELETE CASCADE,
    PRIMARY KEY (resource_group, domain_name)
);
CREATE TABLE resource_groups_for_projects (
    resource_group text NOT NULL REFERENCES resource_groups(name) ON DELETE CASCADE,
    project_id     uuid NOT NULL REFERENCES projects(id) ON DELETE CASCADE,
    PRIMARY KEY (resource_group, project_id)
);
CREATE TABLE resource_groups_for_keypairs (
    resource_group text NOT NULL REFERENCES resource_groups(name) ON DELETE CASCADE,
    access_key     text NOT NULL REFERENCES keypairs(access_key) ON DELETE CASCADE,
    PRIMARY KEY (resource_group, access_key)
);
CREATE TABLE resource_presets (
    id             uuid PRIMARY KEY,
    name           text NOT NULL,
    resource_group text REFERENCES resource_groups(name) ON DELETE CASCADE,
    resource_slots jsonb NOT NULL,
    shared_memory  bigint,
    UNIQUE NULLS NOT DISTINCT (name, resource_group)
);

-- Agents: status and lease columns are written by the manager that holds the stream;
-- resource_group and schedulable by administrators; facts by the agent's reports.
CREATE TABLE agents (
    id              text PRIMARY KEY CHECK (char_length(id) BETWEEN 1 AND 64),
    status          text NOT NULL CHECK (status IN ('ALIVE','LOST','RESTARTING','TERMINATED')),
    status_changed  timestamptz NOT NULL DEFAULT now(),
    region          text NOT NULL DEFAULT '',
    resource_group  text NOT NULL REFERENCES resource_groups(name),
    schedulable     boolean NOT NULL DEFAULT true,
    addr            text NOT NULL DEFAULT '',
    first_contact   timestamptz NOT NULL DEFAULT now(),
    lost_at         timestamptz,
    last_seen       timestamptz NOT NULL DEFAULT now(),
    version         text NOT NULL DEFAULT '',
    architecture    text NOT NULL DEFAULT '',
    epoch           bigint NOT NULL DEFAULT 0,
    boot_id         text NOT NULL DEFAULT '',
    capacity        jsonb NOT NULL DEFAULT '{}',
    slot_kinds      jsonb NOT NULL DEFAULT '{}',
    devices         jsonb NOT NULL DEFAULT '[]',
    engine          text NOT NULL DEFAULT '',
    engine_ok       boolean NOT NULL DEFAULT false,
    engine_error    text NOT NULL DEFAULT '',
    warnings        text[] NOT NULL DEFAULT '{}',
    facts_revision  bigint NOT NULL DEFAULT 0,
    certificate_serial text NOT NULL DEFAULT ''
);
CREATE INDEX agents_group ON agents (resource_group, status);

CREATE TABLE images (
    id             uuid PRIMARY KEY,
    reference      text NOT NULL,           -- canonical: registry/project/name:tag, "local" images as the engine knows them
    registry       text NOT NULL DEFAULT 'local',
    registry_type  text NOT NULL DEFAULT 'local',
    project        text NOT NULL DEFAULT '',
    name           text NOT NULL,
    tag            text NOT NULL,
    architecture   text NOT NULL,
    digest         text NOT NULL,
    size_bytes     bigint NOT NULL DEFAULT 0,
    labels         jsonb NOT NULL DEFAULT '{}',
    resources      jsonb NOT NULL DEFAULT '{}', -- slot -> {min,max} overrides
    status         text NOT NULL DEFAULT 'ALIVE' CHECK (status IN ('ALIVE','DELETED')),
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_used_at   timestamptz,
    UNIQUE (reference, architecture)
);
CREATE TABLE image_aliases (
    alias    text PRIMARY KEY CHECK (char_length(alias) BETWEEN 1 AND 255),
    image_id uuid NOT NULL REFERENCES images(id) ON DELETE CASCADE
);
CREATE TABLE agent_images (
    agent_id text NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    image_id uuid NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    digest   text NOT NULL,
    PRIMARY KEY (agent_id, image_id)
);

CREATE TABLE sessions (
    id               uuid PRIMARY KEY,
    name             text NOT NULL,
    type             text NOT NULL CHECK (type IN ('interactive','batch','inference','system')),
    priority         integer NOT NULL DEFAULT 10 CHECK (priority BETWEEN 0 AND 100),
    cluster_mode     text NOT NULL DEFAULT 'single-node' CHECK (cluster_mode IN ('single-node','multi-node')),
    cluster_size     integer NOT NULL DEFAULT 1 CHECK (cluster_size >= 1),
    domain_name      text NOT NULL REFERENCES domains(name),
    project_id       uuid NOT NULL REFERENCES projects(id),
    user_id          uuid NOT NULL REFERENCES users(id),
    access_key       text NOT NULL REFERENCES keypairs(access_key),
    resource_group   text NOT NULL REFERENCES resource_groups(name),
    designated_agents text[] NOT NULL DEFAULT '{}',
    failed_agents    text[] NOT NULL DEFAULT '{}',
    image_id         uuid REFERENCES images(id) ON DELETE SET NULL,
    image            text NOT NULL,
    tag              text,
    status           text NOT NULL,
    status_info      text NOT NULL DEFAULT '',
    status_data      jsonb NOT NULL DEFAULT '{}',
    status_changed   timestamptz NOT NULL DEFAULT now(),
    result           text NOT NULL DEFAULT 'UNDEFINED' CHECK (result IN ('UNDEFINED','SUCCESS','FAILURE')),
    requested_slots  jsonb NOT NULL,
    resource_opts    jsonb NOT NULL DEFAULT '{}',
    environ          jsonb NOT NULL DEFAULT '{}',
    startup_command  text,
    bootstrap_script text,
    callback_url     text,
    batch_timeout_ms bigint,
    starts_at        timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    scheduled_at     timestamptz,
    started_at       timestamptz,
    ended_at         timestamptz,
    attempts         integer NOT NULL DEFAULT 0,    -- placements that failed and were given back to the queue
    num_queries      bigint NOT NULL DEFAULT 0,
    CHECK (status IN ('PENDING','SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','TERMINATING','TERMINATED','CANCELLED','ERROR')),
    CONSTRAINT sessions_final_has_end CHECK ((status IN ('TERMINATED','CANCELLED','ERROR')) = (ended_at IS NOT NULL)),
    CHECK (type <> 'batch' OR startup_command IS NOT NULL)
);
CREATE UNIQUE INDEX sessions_live_name ON sessions (access_key, name) WHERE ended_at IS NULL;
CREATE INDEX sessions_live ON sessions (status) WHERE ended_at IS NULL;
CREATE INDEX sessions_pending ON sessions (resource_group, priority DESC, created_at) WHERE status = 'PENDING';
CREATE INDEX sessions_by_owner ON sessions (access_key, created_at DESC);
CREATE INDEX sessions_created ON sessions (created_at DESC);

CREATE TABLE session_dependencies (
    session_id uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    depends_on uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    PRIMARY KEY (session_id, depends_on),
    CHECK (session_id <> depends_on)
);
CREATE INDEX session_dependencies_on ON session_dependencies (depends_on);

-- Kernels. Written by the manager: agent_id, allocation, generation, desired, status.
-- observed_* and container facts are written only from the agent's reports.
CREATE TABLE kernels (
    id               uuid PRIMARY KEY,
    session_id       uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    cluster_role     text NOT NULL DEFAULT 'main',
    cluster_idx      integer NOT NULL DEFAULT 1,
    local_rank       integer NOT NULL DEFAULT 0,
    cluster_hostname text NOT NULL DEFAULT 'main1',
    image            text NOT NULL,
    architecture     text NOT NULL,
    registry         text NOT NULL DEFAULT 'local',
    agent_id         text REFERENCES agents(id),
    generation       bigint NOT NULL DEFAULT 1,
    desired          text NOT NULL DEFAULT 'run' CHECK (desired IN ('run','stop')),
    force_stop       boolean NOT NULL DEFAULT false,
    stop_reason      text NOT NULL DEFAULT '',
    status           text NOT NULL CHECK (status IN ('PENDING','SCHEDULED','PREPARING','PULLING','PREPARED','CREATING','RUNNING','RESTARTING','LOST','TERMINATING','TERMINATED','CANCELLED','ERROR')),
    status_before_lost text,
    status_info      text NOT NULL DEFAULT '',
    status_data      jsonb NOT NULL DEFAULT '{}',
    status_changed   timestamptz NOT NULL DEFAULT now(),
    deadline         timestamptz,                   -- when the present state is missed; null only while PENDING, RUNNING or final
    requested_slots  jsonb NOT NULL,
    allocation       jsonb NOT NULL DEFAULT '{}',   -- alloc.Allocation
    container_id     text,
    exit_code        integer,
    signal           integer,
    oom_killed       boolean NOT NULL DEFAULT false,
    service_ports    jsonb NOT NULL DEFAULT '[]',
    preopen_ports    integer[] NOT NULL DEFAULT '{}',
    started_at       timestamptz,
    ended_at         timestamptz,
    created_at       timestamptz NOT NULL DEFAULT now(),
    scheduled_at     timestamptz,
    last_stat        jsonb,
    log              text,                          -- the end of the container's log, kept at the end
    log_truncated    boolean NOT NULL DEFAULT false,
    absences         integer NOT NULL DEFAULT 0,    -- full reports in a row that lacked it
    CONSTRAINT kernels_final_has_end CHECK ((status IN ('TERMINATED','CANCELLED','ERROR')) = (ended_at IS NOT NULL)),
    CONSTRAINT kernels_placed_has_agent CHECK (status IN ('PENDING','TERMINATED','CANCELLED','ERROR') OR agent_id IS NOT NULL)
);
CREATE INDEX kernels_session ON kernels (session_id);
CREATE INDEX kernels_live_agent ON kernels (agent_id) WHERE ended_at IS NULL;
CREATE INDEX kernels_deadline ON kernels (deadline) WHERE deadline IS NOT NULL AND ended_at IS NULL;

-- What an agent must still remove although the kernel's row has moved on: ended by force, given up with a lost
-- agent, or placed elsewhere as a later generation. A row goes when the agent no longer has that generation.
CREATE TABLE kernel_removals (
    kernel_id  uuid NOT NULL REFERENCES kernels(id) ON DELETE CASCADE,
    generation bigint NOT NULL,
    agent_id   text NOT NULL REFERENCES agents(id) ON DELETE CASCADE,
    session_id uuid NOT NULL,
    reason     text NOT NULL,
    absences   integer NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kernel_id, generation, agent_id)
);
CREATE INDEX kernel_removals_agent ON kernel_removals (agent_id);

-- Every move of a session or kernel, and the batch results: history, SSE and callbacks.
CREATE TABLE session_events (
    seq         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id  uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    kernel_id   uuid,
    event       text NOT NULL DEFAULT '',           -- wire name; '' for moves without one
    from_status text NOT NULL DEFAULT '',
    to_status   text NOT NULL DEFAULT '',
    reason      text NOT NULL DEFAULT '',
    detail      text NOT NULL DEFAULT '',
    exit_code   integer,
    at          timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX session_events_session ON session_events (session_id, seq);

CREATE TABLE callbacks (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    session_id  uuid NOT NULL REFERENCES sessions(id) ON DELETE CASCADE,
    url         text NOT NULL,
    body        jsonb NOT NULL,
    attempts    integer NOT NULL DEFAULT 0,
    next_at     timestamptz NOT NULL DEFAULT now(),
    last_error  text NOT NULL DEFAULT ''
);

CREATE INDEX callbacks_due ON callbacks (next_at);

CREATE TABLE background_tasks (
    id          uuid PRIMARY KEY,
    kind        text NOT NULL,
    owner       uuid REFERENCES users(id) ON DELETE CASCADE,
    subject     text NOT NULL DEFAULT '',           -- for example the session of a commit
    status      text NOT NULL DEFAULT 'started' CHECK (status IN ('started','done','cancelled','failed')),
    message     text NOT NULL DEFAULT '',
    current     bigint NOT NULL DEFAULT 0,
    total       bigint NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);
