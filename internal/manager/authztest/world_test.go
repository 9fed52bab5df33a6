package authztest

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/managertest"
)

// set is what belongs to one owner, fresh for each call because calls change it.
type set struct {
	user, email, key, extra        string // extra is another keypair
	session, kernel, circuit, task string
	folder, image, token           string
	template, clusterTemplate      string
	errorLog                       string
	role                           authz.Role
}

// world is a cluster of which the matrix speaks: a user and a superadmin who own something in domain d, and people around them.
type world struct {
	*managertest.World
	serial int
	spent  bool // a call may have changed what renew made
	owner  set  // of a user
	root   set  // of a superadmin of the same domain
	// project is the one that the owner and the member are in; other has one member.
	project, other string
	projectFolder  string
	price          string // of an hour of a core
	image          string // of a registry that no domain allows
	projectImage   string
	service        string // email of a service account of the domain
}

// people are the columns of the matrix, in their order.
var people = []string{"owner", "member", "project admin", "other project", "stranger", "domain admin", "superadmin", "monitor", "inactive"}

const hosts = `{"p:v":
["create-vfolder","modify-vfolder","delete-vfolder","mount-in-session","upload-file",
"download-file","invite-others","set-user-specific-permission"]}`

func (w *world) id() string {
	w.serial++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", w.serial)
}

func newWorld(t *testing.T) (*world, map[string]authz.Actor) {
	w := &world{World: managertest.New(t), spent: true}
	w.Agent("a1", 8, 16*managertest.GiB)
	w.Exec(`INSERT INTO domains (name, allowed_vfolder_hosts) VALUES ('d', $1), ('e', $1)`, hosts)
	w.project, w.other = w.id(), w.id()
	w.Exec(
		`INSERT INTO projects (id, name, domain_name, resource_policy) VALUES ($1, 'p', 'd', 'default'), ($2, 'q', 'd', 'default')`,
		w.project,
		w.other,
	)
	w.Exec(`INSERT INTO resource_groups (name) VALUES ('g')`)
	w.Exec(`INSERT INTO resource_groups_for_domains VALUES ('g', 'd')`)
	w.Exec(`INSERT INTO agents (id, status, resource_group) VALUES ('of-g', 'ALIVE', 'g')`)
	w.Exec(`INSERT INTO keypair_resource_policies (name) VALUES ('unused')`)
	w.Exec(`UPDATE images SET registry = 'r.example'`) // which no domain allows
	require.NoError(t, w.Store.Pool().QueryRow(t.Context(), `SELECT id::text FROM images`).Scan(&w.image))
	w.Exec(
		`INSERT INTO idle_checkers (name, type, target_session_types, spec) VALUES ('c', 'session_lifetime', '{interactive}',
'{"max_lifetime_seconds": 60}')`,
	)
	actors := map[string]authz.Actor{}
	add := func(name, domain string, role authz.Role, projects ...string) set {
		s := set{user: w.id(), email: name + "@x", key: fmt.Sprintf("AKIA%016d", w.serial), role: role}
		w.Exec(
			`INSERT INTO users (id, username, email, domain_name, role, resource_policy) VALUES ($1, $2, $2, $3, $4, 'default')`,
			s.user,
			s.email,
			domain,
			string(role),
		)
		sealed, err := managertest.Key(t).Seal("secret", "keypair "+s.key)
		require.NoError(t, err)
		w.Exec(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, $2, $3, 'default')`, s.key, sealed, s.user)
		for _, p := range projects {
			w.Exec(`INSERT INTO project_members (project_id, user_id, is_admin) VALUES ($1, $2, $3)`, p, s.user, name == "project admin")
		}
		a, _, err := w.Tenancy.Authenticate(t.Context(), cluster.AccessKey(s.key))
		require.NoError(t, err)
		actors[name] = a
		return s
	}
	w.owner = add("owner", "d", authz.RoleUser, w.project)
	w.root = add("root", "d", authz.RoleSuperadmin, w.project)
	add("member", "d", authz.RoleUser, w.project)
	add("project admin", "d", authz.RoleUser, w.project)
	add("other project", "d", authz.RoleUser, w.other)
	add("stranger", "e", authz.RoleUser)
	add("domain admin", "d", authz.RoleAdmin)
	add("superadmin", "d", authz.RoleSuperadmin)
	add("monitor", "d", authz.RoleMonitor)
	for _, role := range []authz.Role{authz.RoleUser, authz.RoleSuperadmin} {
		add("spare "+string(role), "d", role)
		delete(actors, "spare "+string(role))
	}
	w.service = add("robot", "d", authz.RoleUser).email
	w.Exec(`UPDATE users SET is_service = true, main_access_key = (SELECT access_key FROM keypairs k WHERE k.user_id = users.id)
WHERE email = $1`, w.service)
	delete(actors, "robot")
	gone := add("inactive", "d", authz.RoleUser, w.project)
	// Who was made inactive is nobody: the door says so, and use cases get an actor that is not known.
	w.Exec(`UPDATE users SET status = 'inactive' WHERE id = $1`, gone.user)
	a, _, err := w.Tenancy.Authenticate(t.Context(), cluster.AccessKey(gone.key))
	require.Error(t, err)
	actors["inactive"] = a
	delete(actors, "root")
	return w, actors
}

// renew gives both owners fresh things, and the project a fresh folder, when a call may have changed those that they have.
func (w *world) renew() {
	w.T.Helper()
	if !w.spent {
		return
	}
	w.spent = false
	var b pgx.Batch
	for _, s := range []*set{&w.owner, &w.root} {
		s.session, s.kernel, s.circuit, s.task, s.folder, s.token = w.id(), w.id(), w.id(), w.id(), w.id(), w.id()
		s.extra = fmt.Sprintf("EXTRA%015d", w.serial)
		b.Queue(`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, '', $2, 'default')`, s.extra, s.user)
		b.Queue(`DELETE FROM api_tokens WHERE user_id = $1`, s.user)
		b.Queue(`INSERT INTO api_tokens (id, token_hash, user_id, access_key, name, read_only, areas, projects, expires_at)
VALUES ($1::uuid, sha256(($1::uuid)::text::bytea), $2, $3, ($1::uuid)::text, false, '{}', '{}', now() + interval '1 day')`,
			s.token, s.user, s.key)
		b.Queue(
			`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
VALUES ($1, $5, 'interactive', 'd', $2, $3, $4, 'g', 'x', 'RUNNING', '{}')`,
			s.session,
			w.project,
			s.user,
			s.key,
			"s"+s.session,
		)
		b.Queue(
			`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots, agent_id, allocation) VALUES ($1, $2, 'x', 'y',
'RUNNING', '{"cpu": 1000}', 'a1', '{}')`,
			s.kernel,
			s.session,
		)
		b.Queue(
			`INSERT INTO circuits (id, proxy, mode, label, session_id, kernel_id, app, protocol, target, path, user_id, created_by, public,
allowed, created_at)
VALUES ($1, 'p', 'subdomain', $2, $3, $4, 'a', 'http', 1, '/', $5, $5, false, '{}', now())`,
			s.circuit,
			fmt.Sprint("l", w.serial),
			s.session,
			s.kernel,
			s.user,
		)
		b.Queue(`INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key, address, request_id)
VALUES (gen_random_uuid(), 'x', 'y', 'done', $1, $2, $3, 'd', $4, '', '')`, s.user, s.email, string(s.role), s.key)
		b.Queue(`INSERT INTO background_tasks (id, kind, owner, status) VALUES ($1, 'x', $2, 'done')`, s.task, s.user)
		s.image = w.id()
		s.template, s.clusterTemplate = w.id(), w.id()
		b.Queue(`DELETE FROM session_templates WHERE user_id = $1`, s.user)
		b.Queue(templateSQL, s.template, "session", "mine", s.user, w.project, sessionTemplate)
		b.Queue(templateSQL, s.clusterTemplate, "cluster", "ours", s.user, w.project, fmt.Sprintf(clusterTemplate, s.template))
		s.errorLog = w.id()
		b.Queue(`INSERT INTO error_logs (id, user_id, severity, source, message, context_lang, context_env)
VALUES ($1, $2, 'error', 'x', 'y', 'z', '{}')`, s.errorLog, s.user)
		b.Queue(`DELETE FROM images WHERE owner_id = $1`, s.user)
		b.Queue(imageSQL, s.image, "local/"+s.user+"/mine:1", "user", s.user, nil)
		b.Queue(folderSQL, s.folder, "user:"+s.user, s.user, nil, "f"+s.folder)
	}
	b.Queue(`UPDATE projects SET is_active = true`)
	w.projectFolder = w.id()
	b.Queue(folderSQL, w.projectFolder, "project:"+w.project, nil, w.project, "f"+w.projectFolder)
	w.projectImage = w.id()
	b.Queue(`DELETE FROM images WHERE project_id IS NOT NULL`)
	b.Queue(imageSQL, w.projectImage, "team/tool:1", "project", nil, w.project)
	b.Queue(`UPDATE images SET status = 'ALIVE'`)
	w.price = w.id()
	b.Queue(`INSERT INTO usage_prices (id, slot, per_hour, valid_from) VALUES ($1, 'cpu', 1, now())`, w.price)
	b.Queue(`INSERT INTO image_aliases (alias, image_id) VALUES ('alias', $1) ON CONFLICT DO NOTHING`, w.image)
	b.Queue(`INSERT INTO resource_presets (id, name, resource_slots) VALUES ($1, 'small', '{}') ON CONFLICT DO NOTHING`, w.id())
	require.NoError(w.T, w.Store.Pool().SendBatch(w.T.Context(), &b).Close())
}

const templateSQL = `INSERT INTO session_templates (id, kind, name, user_id, project_id, document) VALUES ($1, $2, $3, $4, $5, $6)`

const (
	sessionTemplate = `{"apiVersion": "6", "kind": "taskTemplate", "metadata": {"name": "a template"}, "spec": {"kernel": {"image": "x"}}}`
	clusterTemplate = `{"apiVersion": "6", "kind": "clusterTemplate", "metadata": {"name": "ours"},
"spec": {"nodes": [{"role": "main", "sessionTemplate": "%s", "replicas": 1}]}}`
)

const imageSQL = `INSERT INTO images (id, reference, name, tag, architecture, digest, scope, owner_id, project_id, origin)
VALUES ($1, $2, 'x', 'y', 'z', '', $3, $4, $5, CASE WHEN $4::uuid IS NULL THEN 'import' ELSE 'commit' END)`

const folderSQL = `INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, project_id, cloneable,
status)
VALUES ($1, $5, 'p:v', 'd', $2, 'general', 'rw', $3, $4, true, 'ready')`
