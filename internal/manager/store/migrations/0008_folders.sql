-- +goose Up
-- Folders lie on the volumes of storage proxies; these rows are what managers know of them. Writers: folder.Service the
-- rows, folder.Loop (on the leader) the statuses that wait for a proxy. A folder's scope says where its files lie and
-- stays when its owner changes.

CREATE TABLE folders (
    id             uuid PRIMARY KEY,
    name           text NOT NULL CHECK (char_length(name) BETWEEN 1 AND 64),
    host           text NOT NULL,               -- proxy:volume
    domain_name    text NOT NULL REFERENCES domains(name),
    quota_scope    text NOT NULL,               -- user:<uuid> or project:<uuid>
    usage_mode     text NOT NULL CHECK (usage_mode IN ('general','model','data')),
    permission     text NOT NULL CHECK (permission IN ('ro','rw','wd')),
    user_id        uuid REFERENCES users(id),
    project_id     uuid REFERENCES projects(id),
    creator_id     uuid REFERENCES users(id),
    cloneable      boolean NOT NULL DEFAULT false,
    unmanaged_path text,
    status         text NOT NULL CHECK (status IN ('ready','performing','cloning','mounted','error','delete-pending','delete-ongoing','delete-complete','delete-error')),
    status_info    text NOT NULL DEFAULT '',
    status_changed timestamptz NOT NULL DEFAULT now(),
    source_id      uuid REFERENCES folders(id) ON DELETE SET NULL,  -- what it is a copy of, while cloning
    task_id        uuid,                        -- of the copy or the removal on the proxy
    tried          integer NOT NULL DEFAULT 0,  -- failed requests in this status
    tried_at       timestamptz,                 -- the last of them
    created_at     timestamptz NOT NULL DEFAULT now(),
    last_used      timestamptz,
    num_files      bigint,                      -- null is unknown
    cur_size       bigint,
    size_complete  boolean NOT NULL DEFAULT false,
    sized_at       timestamptz,
    CHECK (num_nonnulls(user_id, project_id) = 1)
);
-- Names are unique among what an owner has outside of the trash bin.
CREATE UNIQUE INDEX folders_user_name ON folders (user_id, name) WHERE status NOT LIKE 'delete-%';
CREATE UNIQUE INDEX folders_project_name ON folders (project_id, name) WHERE status NOT LIKE 'delete-%';
CREATE INDEX folders_user ON folders (user_id);
CREATE INDEX folders_project ON folders (project_id);
CREATE INDEX folders_name ON folders (name);
CREATE INDEX folders_scope ON folders (host, quota_scope);
CREATE INDEX folders_source ON folders (source_id) WHERE source_id IS NOT NULL;
CREATE INDEX folders_unsettled ON folders (status_changed) WHERE status IN ('performing','cloning','delete-ongoing');
CREATE INDEX folders_removed ON folders (status_changed) WHERE status = 'delete-complete';
CREATE INDEX folders_sized ON folders (sized_at NULLS FIRST) WHERE status = 'ready' AND unmanaged_path IS NULL;

-- What single users may do with a folder that is not theirs.
CREATE TABLE folder_permissions (
    folder_id  uuid NOT NULL REFERENCES folders(id) ON DELETE CASCADE,
    user_id    uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    permission text NOT NULL CHECK (permission IN ('ro','rw','wd')),
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (folder_id, user_id)
);
CREATE INDEX folder_permissions_user ON folder_permissions (user_id);

CREATE TABLE folder_invitations (
    id          uuid PRIMARY KEY,
    folder_id   uuid NOT NULL REFERENCES folders(id) ON DELETE CASCADE,
    inviter_id  uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    invitee_id  uuid NOT NULL REFERENCES users(id) ON DELETE CASCADE,
    permission  text NOT NULL CHECK (permission IN ('ro','rw','wd')),
    state       text NOT NULL DEFAULT 'pending' CHECK (state IN ('pending','canceled','accepted','rejected')),
    created_at  timestamptz NOT NULL DEFAULT now(),
    modified_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX folder_invitations_pending ON folder_invitations (folder_id, invitee_id) WHERE state = 'pending';
CREATE INDEX folder_invitations_invitee ON folder_invitations (invitee_id) WHERE state = 'pending';
CREATE INDEX folder_invitations_inviter ON folder_invitations (inviter_id) WHERE state = 'pending';

-- Limits of scopes: what an administrator set (null: the policy's holds) and what the proxy was last told. -1 is no limit.
CREATE TABLE folder_scopes (
    host          text NOT NULL,
    quota_scope   text NOT NULL,
    own_bytes     bigint CHECK (own_bytes >= 0),
    applied_bytes bigint NOT NULL DEFAULT -1,
    applied_at    timestamptz,                   -- null: not yet
    tried_at      timestamptz,
    PRIMARY KEY (host, quota_scope)
);

-- Background tasks that proxies carry out; a row goes when its task has ended. folder_id may outlive its folder.
CREATE TABLE folder_tasks (
    task_id    uuid PRIMARY KEY REFERENCES background_tasks(id) ON DELETE CASCADE,
    folder_id  uuid NOT NULL,
    proxy      text NOT NULL,
    kind       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
