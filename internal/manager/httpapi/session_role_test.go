package httpapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/api"
)

// rolesBody is a request for a session with roles.
func rolesBody(t *testing.T, name string, roles any, change ...func(map[string]any)) string {
	t.Helper()
	body := map[string]any{"name": name, "image": "python", "enqueueOnly": true, "clusterMode": "multi-node", "roles": roles,
		"fail_if_impossible": true, "config": map[string]any{"resources": map[string]any{"cpu": "1", "mem": "256m"}}}
	for _, c := range change {
		c(body)
	}
	raw, err := json.Marshal(body)
	require.NoError(t, err)
	return string(raw)
}

type role map[string]any

func (s *site) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.store.Pool().Exec(s.t.Context(), sql, args...)
	require.NoError(s.t, err)
}

func (s *site) sessions() (n int) {
	s.t.Helper()
	require.NoError(s.t, s.store.Pool().QueryRow(s.t.Context(), `SELECT count(*) FROM sessions`).Scan(&n))
	return n
}

// TestRolesThatAreRefused: each mistake in a role has an answer that names the role or the member, is short however long the mistake is,
// and leaves nothing.
func TestRolesThatAreRefused(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	a.exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, labels, scope)
		SELECT '00000000-0000-4000-8000-000000000001', 'r.example/team/tool:1', 'r.example', 'tool', '1', architecture, 'sha256:7', labels,
		'global' FROM images LIMIT 1`)
	a.exec(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, labels, scope, owner_id)
		SELECT '00000000-0000-4000-8000-000000000002', 'berth/private:1', registry, 'private', '1', architecture, 'sha256:8', labels, 'user', u.id
		FROM images i, users u WHERE i.reference = 'berth/python:1.0' AND u.username = 'mallory'`)
	many := make([]role, 17)
	for i := range many {
		many[i] = role{"name": "r" + strings.Repeat("x", i)}
	}
	long := strings.Repeat("x", 1<<20)
	for name, c := range map[string]struct {
		roles  any
		status int
		slug   string
		words  string
	}{
		"twice":                {[]role{{"name": "worker"}, {"name": "worker"}}, 400, "invalid-api-params", "role worker is named twice"},
		"none of it":           {[]role{{"name": "worker", "count": 0}}, 400, "invalid-api-params", "role worker has 0 kernels"},
		"fewer than none":      {[]role{{"name": "worker", "count": -1}}, 400, "invalid-api-params", "roles[0].count"},
		"half a kernel":        {[]role{{"name": "worker", "count": 1.5}}, 400, "invalid-api-params", "roles[0].count"},
		"a text for a number":  {[]role{{"name": "worker", "count": "many"}}, 400, "invalid-api-params", "roles[0].count"},
		"more than a cluster":  {[]role{{"name": "worker", "count": 256}}, 400, "invalid-api-params", "1 to 256 containers"},
		"beyond all":           {[]role{{"name": "worker", "count": 1 << 40}}, 400, "invalid-api-params", "roles[0].count"},
		"many roles":           {many, 400, "invalid-api-params", "the request has 17 roles, 16 are allowed"},
		"no name":              {[]role{{"count": 1}}, 400, "invalid-api-params", "roles[0].name: is required"},
		"main":                 {[]role{{"name": "main"}}, 400, "invalid-api-params", "main is a role that every session has"},
		"a path":               {[]role{{"name": "../../etc"}}, 400, "invalid-api-params", "not the name of a role"},
		"a statement":          {[]role{{"name": "x'; DROP TABLE sessions; --"}}, 400, "invalid-api-params", "not the name of a role"},
		"markup":               {[]role{{"name": "<script>"}}, 400, "invalid-api-params", "not the name of a role"},
		"two lines":            {[]role{{"name": "a\nb"}}, 400, "invalid-api-params", "not the name of a role"},
		"NUL":                  {[]role{{"name": "a\x00b"}}, 400, "invalid-api-params", "not the name of a role"},
		"a name of a megabyte": {[]role{{"name": long}}, 400, "invalid-api-params", "not the name of a role"},
		"a list for a name":    {[]role{{"name": []string{"worker"}}}, 400, "invalid-api-params", "roles[0].name"},
		"no object":            {[]any{"worker"}, 400, "invalid-api-params", "roles: must be a list of objects"},
		"no list":              {map[string]any{"worker": 1}, 400, "invalid-api-params", "roles: must be a list of objects"},
		"a text of them":       {`[{"name":"worker"}]`, 400, "invalid-api-params", "roles: must be a list of objects"},
		"an unknown member":    {[]role{{"name": "worker", "env": role{"A": "1"}}}, 400, "invalid-api-params", "roles[0].env"},
		"folders":              {[]role{{"name": "worker", "mounts": []string{"data"}}}, 400, "invalid-api-params", "roles[0].mounts"},
		"a long unknown one":   {[]role{{"name": "worker", long: 1}}, 400, "invalid-api-params", "roles[0].xxx"},
		"a startup command": {[]role{{"name": "worker", "startupCommand": "true"}}, 400, "invalid-api-params",
			"roles[0].startup_command"},
		"a megabyte of variables": {[]role{{"name": "worker", "environ": role{"A": long}}}, 400, "invalid-api-params",
			"role worker: environ has"},
		"a variable's long name": {[]role{{"name": "worker", "environ": role{long + "=": "1"}}}, 400, "invalid-api-params",
			"role worker: environment variable"},
		"an object in a variable": {[]role{{"name": "worker", "environ": role{"A": role{}}}}, 400, "invalid-api-params", "roles[0].environ"},
		"an object under a long name": {[]role{{"name": "worker", "environ": role{long: role{}}}}, 400, "invalid-api-params",
			"roles[0].environ"},
		"a long script": {[]role{{"name": "worker", "bootstrap_script": long}}, 400, "invalid-api-params",
			"the bootstrap script of role worker"},
		"an unknown slot":      {[]role{{"name": "worker", "resources": role{"toy": "1"}}}, 400, "invalid-api-params", "role worker"},
		"a slot's long name":   {[]role{{"name": "worker", "resources": role{long: "1"}}}, 400, "invalid-api-params", "role worker"},
		"a long amount":        {[]role{{"name": "worker", "resources": role{"cpu": long}}}, 400, "invalid-api-params", "role worker"},
		"a long unknown image": {[]role{{"name": "worker", "image": long}}, 404, "object-not-found", "role worker"},
		"a long architecture":  {[]role{{"name": "worker", "architecture": long}}, 404, "object-not-found", "role worker"},
		"less than nothing":    {[]role{{"name": "worker", "resources": role{"cpu": "-1"}}}, 400, "invalid-api-params", "role worker"},
		"more than any agent":  {[]role{{"name": "worker", "resources": role{"cpu": "9"}}}, 400, "invalid-api-params", "role worker"},
		"an unknown image":     {[]role{{"name": "worker", "image": "nowhere:1"}}, 404, "object-not-found", "role worker"},
		"of another's":         {[]role{{"name": "worker", "image": "berth/private:1"}}, 404, "object-not-found", "role worker"},
		"of a registry":        {[]role{{"name": "worker", "image": "r.example/team/tool:1"}}, 404, "object-not-found", "role worker"},
		"an isolation": {[]role{{"name": "worker", "resource_opts": role{"isolation": "hard"}}}, 400, "invalid-api-params",
			"isolation"},
		"an isolation of no sort": {[]role{{"name": "worker", "resource_opts": role{"isolation": long}}}, 400, "invalid-api-params",
			"role worker"},
		"no shared memory": {[]role{{"name": "worker", "resource_opts": role{"shmem": "some"}}}, 400, "invalid-api-params", "role worker"},
	} {
		t.Run(name, func(t *testing.T) {
			got := a.owner.call("POST", "/session", rolesBody(t, strings.ReplaceAll(strings.ReplaceAll("case "+name, "'", "-"), " ", "-"), c.roles))
			msg := got.problem(t, c.status, c.slug)
			require.Contains(t, msg, c.words)
			require.Less(t, len(got.body), 4<<10, "an answer does not repeat a megabyte")
		})
	}
	// Who may see the image is told which registry the domain does not allow, and for which role.
	msg := a.call("POST", "/session", rolesBody(t, "mixed", []role{{"name": "fine"}, {"name": "worker", "image": "r.example/team/tool:1"}})).
		problem(t, 403, "generic-forbidden")
	require.Contains(t, msg, "role worker")
	require.Contains(t, msg, "r.example")
	require.NotContains(t, msg, "role fine")
	require.Zero(t, a.sessions())
}

// TestRolesCountForLimits: what all roles together are and take is limited as a session's is, and the refusal names the level or policy.
func TestRolesCountForLimits(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	require.Equal(t, 200, a.call("POST", "/quotas", `{"path":"default/default","limit":{"cpu":"5"}}`).status)
	two := []role{{"name": "worker", "count": 2, "resources": role{"cpu": "2", "mem": "256m"}}}
	require.Equal(t, 201, a.owner.call("POST", "/session", rolesBody(t, "just", two)).status, "1 + 2×2 cores are 5")
	for name, roles := range map[string]any{
		"one role":  []role{{"name": "worker", "count": 3, "resources": role{"cpu": "2", "mem": "256m"}}},
		"two roles": append(two, role{"name": "logger"}),
	} {
		msg := a.owner.call("POST", "/session", rolesBody(t, "over", roles)).problem(t, 412, "quota-exceeded")
		require.Contains(t, msg, "default/default", name)
		require.Contains(t, msg, "cpu", name)
	}
	a.exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 3`)
	msg := a.owner.call("POST", "/session", rolesBody(t, "over", []role{{"name": "worker", "count": 2}, {"name": "logger"}})).
		problem(t, 412, "quota-exceeded")
	require.Contains(t, msg, "3 containers under policy default, not 4")
	require.Contains(t, msg, "roles")
	a.exec(`UPDATE keypair_resource_policies SET max_containers_per_session = 16, max_pending_session_resource_slots = '{"cpu": 6000}'`)
	msg = a.owner.call("POST", "/session", rolesBody(t, "over", []role{{"name": "worker"}})).problem(t, 412, "quota-exceeded")
	require.Contains(t, msg, "policy default", "5 cores wait already, 2 more do not fit 6")
	require.Equal(t, 1, a.sessions())
}

// TestRolesOfOthers: a stranger finds nothing of a session with roles, makes none for another, and uses no key of another's.
func TestRolesOfOthers(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	one := []role{{"name": "worker", "environ": role{"TOKEN": "hidden-word"}}}
	made := a.owner.call("POST", "/session", rolesBody(t, "mixed", one))
	require.Equal(t, 201, made.status, made.body)
	var created api.CreatedSession
	made.into(t, &created)
	for _, ref := range []string{"mixed", created.ID} {
		a.another.call("GET", "/session/"+ref, "").problem(t, 404, "object-not-found")
		a.another.call("GET", "/session/"+ref+"/explain", "").problem(t, 404, "object-not-found")
		a.another.call("GET", "/session/"+ref+"/logs?kernel_id=sub1", "").problem(t, 404, "object-not-found")
	}
	a.another.call("POST", "/session", rolesBody(t, "other", one)).problem(t, 404, "object-not-found") // it is in no project
	theirKey := func(b map[string]any) { b["owner_access_key"] = string(a.owner.admin.AccessKey) }
	got := a.another.call("POST", "/session", rolesBody(t, "other", one, theirKey))
	require.Contains(t, []int{403, 404}, got.status, got.body)
	a.send(a.request("POST", "/session", "application/json", rolesBody(t, "other", one))).problem(t, 401, "auth-failed")
	require.Equal(t, 1, a.sessions())
}

// TestSecretsOfRolesStay: what a role has in its variables and its script is kept where the session's is and is told to agents alone:
// no answer, log, event or record of what was done has it, not in an error either.
func TestSecretsOfRolesStay(t *testing.T) {
	t.Parallel()
	const secret, script = "swordfish-of-a-role", "script-of-a-role"
	a := newAdmins(t)
	roles := []role{{"name": "worker", "environ": role{"TOKEN": secret}, "bootstrap_script": "echo " + script}}
	made := a.owner.call("POST", "/session", rolesBody(t, "mixed", roles))
	require.Equal(t, 201, made.status, made.body)
	answers := []answer{made}
	for _, target := range []string{"/session/mixed", "/session/mixed/explain", "/session/mixed/events", "/session/mixed/logs",
		"/session/mixed/dependency-graph", "/session/_/match?id=mix", "/audit/records", "/logs/error"} {
		answers = append(answers, a.owner.call("GET", target, ""), a.call("GET", target, ""))
	}
	for _, bad := range []role{
		{"name": "worker", "environ": role{"A=B": secret}},
		{"name": "worker", "environ": role{"TOKEN": secret + "\x00"}, "bootstrap_script": script + "\x00"},
		{"name": "worker", "environ": role{"TOKEN": secret, "MORE": []string{secret}}},
		{"name": "worker", "environ": "TOKEN=" + secret},
		{"name": "worker", "environ": `{"TOKEN":"` + secret},
		{"name": "worker", "environ": role{"TOKEN": secret}, "bootstrap_script": script + strings.Repeat("x", 64<<10)},
		{"name": "worker", "environ": role{"TOKEN": secret}, "bootstrap_script": script, "resources": role{"cpu": "99"}},
		{"name": "worker", "environ": role{"TOKEN": secret}, "bootstrap_script": []string{script}},
	} {
		got := a.owner.call("POST", "/session", rolesBody(t, "other", []role{bad}))
		require.Equal(t, 400, got.status, got.body)
		answers = append(answers, got)
	}
	for _, got := range answers {
		require.NotContains(t, got.body, secret)
		require.NotContains(t, got.body, script)
	}
	require.NotContains(t, a.log.String(), secret)
	require.NotContains(t, a.log.String(), script)

	rows, err := a.store.Pool().Query(t.Context(), `SELECT format('%I', c.relname) FROM pg_class c
		JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'public' AND c.relkind = 'r'`)
	require.NoError(t, err)
	var tables, found []string
	for rows.Next() {
		var table string
		require.NoError(t, rows.Scan(&table))
		tables = append(tables, table)
	}
	require.NoError(t, rows.Err())
	for _, table := range tables {
		var n int
		require.NoError(t, a.store.Pool().QueryRow(t.Context(), `SELECT count(*) FROM `+table+` x WHERE x::text LIKE '%' || $1 || '%'
			OR x::text LIKE '%' || $2 || '%'`, secret, script).Scan(&n))
		if n > 0 {
			found = append(found, table)
		}
	}
	require.Equal(t, []string{"session_roles"}, found)
}

const (
	taskDocument = `{"apiVersion":"6","kind":"taskTemplate","metadata":{"name":"NAME"},"spec":{"kernel":{"image":"python",
		"environ":{"TOKEN":"hidden-word"}},"resources":{"cpu":"1","mem":"256m"}}}`
	clusterDocument = `{"apiVersion":"6","kind":"clusterTemplate","metadata":{"name":"NAME"},"mode":"multi-node","spec":{"nodes":[
		{"role":"main","sessionTemplate":"MAIN","replicas":1},{"role":"worker","sessionTemplate":"ROLE","replicas":2}]}}`
)

func (s *site) storeTemplate(kind, document string) answer {
	s.t.Helper()
	return s.call("POST", "/template/"+kind, `{"payload":`+document+`,"group_name":"default"}`)
}

func (s *site) templateID(kind, document string) string {
	s.t.Helper()
	a := s.storeTemplate(kind, document)
	require.Equal(s.t, 200, a.status, a.body)
	var made []struct{ ID string }
	a.into(s.t, &made)
	require.Len(s.t, made, 1)
	return made[0].ID
}

// TestTemplatesOfOthersInRoles: nobody gets at a template of another tenant by naming it in a role, and one that was deleted meanwhile
// or is not for everybody who uses the cluster template is named with its role; no session is made.
func TestTemplatesOfOthersInRoles(t *testing.T) {
	t.Parallel()
	a := newAdmins(t)
	named := func(document string, names ...string) string { return strings.NewReplacer(names...).Replace(document) }
	a.exec(`INSERT INTO domains (name) VALUES ('rival')`)
	a.exec(`INSERT INTO projects (id, name, domain_name, resource_policy)
		VALUES ('00000000-0000-4000-8000-0000000000aa', 'default', 'rival', 'default')`)
	rival := a.user("rival", "user", false)
	a.exec(`UPDATE users SET domain_name = 'rival' WHERE username = 'rival'`)
	a.exec(`INSERT INTO project_members (project_id, user_id)
		SELECT '00000000-0000-4000-8000-0000000000aa', id FROM users WHERE username = 'rival'`)
	theirs := rival.templateID("session", named(taskDocument, "NAME", "theirs"))
	base := a.owner.templateID("session", named(taskDocument, "NAME", "base"))
	part := a.owner.templateID("session", named(taskDocument, "NAME", "part"))

	msg := a.owner.storeTemplate("cluster", named(clusterDocument, "NAME", "stolen", "MAIN", base, "ROLE", theirs)).
		problem(t, 404, "object-not-found")
	require.Contains(t, msg, "role worker")
	require.NotContains(t, msg, "hidden-word")
	whole := a.owner.templateID("cluster", named(clusterDocument, "NAME", "whole", "MAIN", base, "ROLE", part))
	a.owner.call("PUT", "/template/cluster/"+whole, `{"payload":`+named(clusterDocument, "NAME", "whole", "MAIN", base, "ROLE", theirs)+`}`).
		problem(t, 404, "object-not-found")
	start := func(s *site, id string) answer {
		return s.call("POST", "/session/_/create-cluster", `{"template_id":"`+id+`","name":"mixed","enqueueOnly":true}`)
	}
	start(rival, whole).problem(t, 404, "object-not-found")

	// As if it had been stored before its session template went to somebody else's.
	a.exec(`UPDATE session_templates SET document = replace(document::text, $1, $2)::jsonb WHERE id = $3`, part, theirs, whole)
	msg = start(a.owner, whole).problem(t, 404, "object-not-found")
	require.Contains(t, msg, "role worker")
	require.NotContains(t, msg, "hidden-word")
	a.exec(`UPDATE session_templates SET document = replace(document::text, $2, $1)::jsonb WHERE id = $3`, part, theirs, whole)

	require.Equal(t, 200, a.owner.call("DELETE", "/template/session/"+part, "").status)
	msg = start(a.owner, whole).problem(t, 404, "object-not-found")
	require.Contains(t, msg, "role worker")
	require.Contains(t, msg, part)
	require.Zero(t, a.sessions())

	again := a.owner.templateID("session", named(taskDocument, "NAME", "again"))
	require.Equal(t, 200, a.owner.call("PUT", "/template/cluster/"+whole,
		`{"payload":`+named(clusterDocument, "NAME", "whole", "MAIN", base, "ROLE", again)+`}`).status)
	require.Equal(t, http.StatusCreated, start(a.owner, whole).status)
	require.Equal(t, 200, a.owner.call("DELETE", "/template/session/"+again, "").status)
	require.Equal(t, 200, a.owner.call("GET", "/session/mixed", "").status, "what was made of a template stays")
}
