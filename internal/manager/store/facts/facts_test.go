package facts_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store/facts"
	"berth.dev/berth/internal/manager/store/storetest"
)

// On generated worlds in a real PostgreSQL the rows that a predicate selects are those for which the decision in Go is yes:
// for every kind of object, every verb and every actor.
func TestPredicatesAgreeWithDecisions(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	ctx := t.Context()
	yes, no := map[string]int{}, map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		tx, err := s.Pool().Begin(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		defer tx.Rollback(ctx) //nolint:errcheck // the world is thrown away
		w := &world{rapid: rt, tx: tx, ctx: ctx}
		w.build()
		actors := w.actors()
		for _, a := range w.actors() {
			actors = append(actors, a.Within(w.scope()))
		}
		for _, a := range actors {
			for name, source := range facts.Sources() {
				w.compare(a, name, source, yes, no)
			}
		}
	})
	// The worlds were rich enough to tell: of every verb there was something allowed and, where rules leave anybody out, something refused.
	for name, source := range facts.Sources() {
		for _, v := range source.Kind.Verbs() {
			key := name + ": " + string(v)
			if yes[key] == 0 {
				t.Errorf("%s: nobody was ever allowed", key)
			}
			if no[key] == 0 {
				t.Errorf("%s: nobody was ever refused", key)
			}
		}
	}
}

// compare asks the database about all rows of a source and decides about each in Go.
func (w *world) compare(a authz.Actor, name string, source facts.Source, yes, no map[string]int) {
	verbs, known := source.Kind.Verbs(), slices.Sorted(maps.Keys(source.Columns))
	var args []any
	arg := func(v any) string { args = append(args, v); return fmt.Sprintf("$%d", len(args)) }
	selected := []string{source.Key}
	for _, f := range known {
		selected = append(selected, "to_json("+fill(a, source.Columns[f], arg)+")::text")
	}
	for _, v := range verbs {
		selected = append(selected, "("+source.Where(a, v, arg)+") IS TRUE")
	}
	sql := "SELECT " + strings.Join(selected, ", ") + " FROM " + source.From
	rows, err := w.tx.Query(w.ctx, sql, args...)
	if err != nil {
		w.rapid.Fatalf("%s: %v\n%s", name, err, sql)
	}
	defer rows.Close()
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			w.rapid.Fatal(err)
		}
		o := authz.Object{Name: values[0].(string)}
		for i, f := range known {
			if text, there := values[1+i].(string); there {
				set(w.rapid, &o, f, text)
			}
		}
		for i, v := range verbs {
			inSQL, inGo := values[1+len(known)+i].(bool), source.Kind.May(a, v, o)
			if inSQL != inGo {
				w.rapid.Fatalf("%s: may %s %s (%s of %s) %+v? SQL says %t, Go says %t\n%s", name, a.Email, v, a.Role, a.Domain, o, inSQL, inGo, sql)
			}
			key := name + ": " + string(v)
			if inGo {
				yes[key]++
			} else {
				no[key]++
			}
		}
	}
	if err := rows.Err(); err != nil {
		w.rapid.Fatalf("%s: %v\n%s", name, err, sql)
	}
}

// fill puts the actor into an expression, as Where does.
func fill(a authz.Actor, text string, arg func(any) string) string {
	projects := []string{}
	for _, p := range a.Projects {
		projects = append(projects, string(p))
	}
	user := string(a.UserID)
	if user == "" {
		user = "00000000-0000-0000-0000-000000000000"
	}
	for token, value := range map[string]func() string{
		"{user}": func() string { return arg(user) + "::uuid" }, "{projects}": func() string { return arg(projects) + "::uuid[]" },
		"{key}": func() string { return arg(string(a.AccessKey)) + "::text" },
	} {
		if strings.Contains(text, token) {
			text = strings.ReplaceAll(text, token, value())
		}
	}
	return text
}

func set(rt *rapid.T, o *authz.Object, f authz.Fact, text string) {
	var to any
	switch f {
	case authz.Owner:
		to = &o.Owner
	case authz.OwnerRole:
		to = &o.OwnerRole
	case authz.Domain:
		to = &o.Domain
	case authz.Project:
		to = &o.Project
	case authz.ProjectType:
		to = &o.ProjectType
	case authz.Creator:
		to = &o.Creator
	case authz.Permission:
		to = &o.Permission
	case authz.Granted:
		to = &o.Granted
	case authz.Given:
		to = &o.Given
	case authz.Public:
		to = &o.Public
	case authz.Active:
		to = &o.Active
	case authz.Service:
		to = &o.Service
	case authz.Registry:
		to = &o.Registry
	case authz.ToDomains:
		to = &o.Domains
	case authz.ToProjects:
		to = &o.Projects
	case authz.ToKeys:
		to = &o.Keys
	default:
		rt.Fatalf("the fact %q has no place", f)
	}
	if err := json.Unmarshal([]byte(text), to); err != nil {
		rt.Fatal(err)
	}
}

// Every source says where all facts are that the rule of its kind looks at, and nothing else.
func TestSourcesHaveTheFactsOfTheirRules(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for name, source := range facts.Sources() {
		have := slices.Sorted(maps.Keys(source.Columns))
		if want := source.Kind.Facts(); !slices.Equal(have, want) {
			t.Errorf("%s has %v, its rule needs %v", name, have, want)
		}
		seen[source.Kind.Noun] = true
	}
	without := []string{authz.FolderHosts.Noun, authz.Cluster.Noun} // they are in no table
	for _, k := range authz.Kinds() {
		if !seen[k.Noun] && !slices.Contains(without, k.Noun) {
			t.Errorf("%s has no source", k.Noun)
		}
	}
}

// world is a generated cluster.
type world struct {
	rapid    *rapid.T
	tx       pgx.Tx
	ctx      context.Context
	batch    pgx.Batch
	domains  []string
	users    []user
	projects []project
	serial   int
}

type user struct {
	id, domain, role string
	projects, leads  []string
}

type project struct{ id, domain string }

func (w *world) id() string {
	w.serial++
	return fmt.Sprintf("00000000-0000-4000-8000-%012d", w.serial)
}

func (w *world) add(sql string, args ...any) { w.batch.Queue(sql, args...) }

func pick[T any](w *world, label string, of []T) T { return rapid.SampledFrom(of).Draw(w.rapid, label) }

func (w *world) some(label string, most int) int { return rapid.IntRange(1, most).Draw(w.rapid, label) }

func (w *world) flip(label string) bool { return rapid.Bool().Draw(w.rapid, label) }

// registries are those of images and of the lists of domains.
var registries = []string{"local", "a.example", "b.example"}

func (w *world) allowed(domain string) []string {
	switch domain {
	case "d1":
		return []string{"a.example"}
	case "d2":
		return []string{"a.example", "b.example"}
	}
	return []string{}
}

func (w *world) build() {
	w.domains = []string{"d1", "d2", "d3"}
	for _, d := range w.domains {
		w.add(`INSERT INTO domains (name, allowed_docker_registries) VALUES ($1, $2)`, d, w.allowed(d))
	}
	policies := []string{"one", "two"}
	for _, p := range policies {
		w.add(`INSERT INTO keypair_resource_policies (name) VALUES ($1)`, p)
		w.add(`INSERT INTO user_resource_policies (name) VALUES ($1)`, p)
		w.add(`INSERT INTO project_resource_policies (name) VALUES ($1)`, p)
	}
	for i := range 4 {
		p := project{w.id(), pick(w, "domain of a project", w.domains)}
		w.projects = append(w.projects, p)
		w.add(
			`INSERT INTO projects (id, name, domain_name, type, resource_policy) VALUES ($1, $2, $3, $4, $5)`,
			p.id,
			fmt.Sprint("p", i),
			p.domain,
			pick(w, "type of a project", []string{"general", "model-store"}),
			pick(w, "policy", policies),
		)
	}
	for i := range w.some("users", 4) + 3 {
		u := user{
			id:     w.id(),
			domain: pick(w, "domain of a user", w.domains),
			role:   pick(w, "role", []string{"superadmin", "admin", "user", "user", "monitor"}),
		}
		w.add(
			`INSERT INTO users (id, username, email, domain_name, role, resource_policy, is_service) VALUES ($1, $2, $2, $3, $4, $5, $6)`,
			u.id,
			fmt.Sprint("u", i),
			u.domain,
			u.role,
			pick(w, "policy", policies),
			w.flip("service"),
		)
		w.add(
			`INSERT INTO keypairs (access_key, secret_sealed, user_id, resource_policy) VALUES ($1, '', $2, $3)`,
			key(u.id),
			u.id,
			pick(w, "policy", policies),
		)
		w.add(`INSERT INTO api_tokens (id, token_hash, user_id, access_key, name, read_only, areas, projects, expires_at)
VALUES ($1::uuid, sha256(($1::uuid)::text::bytea), $2, $3, 't', false, '{}', '{}', now())`, w.id(), u.id, key(u.id))
		for _, p := range w.projects {
			if w.flip("member") {
				u.projects = append(u.projects, p.id)
				leads := w.flip("administrator")
				if leads {
					u.leads = append(u.leads, p.id)
				}
				w.add(`INSERT INTO project_members (project_id, user_id, is_admin) VALUES ($1, $2, $3)`, p.id, u.id, leads)
			}
		}
		w.users = append(w.users, u)
	}
	w.supply()
	w.work()
	w.folders()
	if err := w.tx.SendBatch(w.ctx, &w.batch).Close(); err != nil {
		w.rapid.Fatal(err)
	}
}

func key(user string) string { return "AK" + user[len(user)-12:] }

// supply is what sessions run on.
func (w *world) supply() {
	for _, g := range []string{"g1", "g2", "g3"} {
		w.add(`INSERT INTO resource_groups (name, is_active) VALUES ($1, $2)`, g, g == "g1" || w.flip("active"))
		if w.flip("assigned to a domain") {
			w.add(`INSERT INTO resource_groups_for_domains VALUES ($1, $2)`, g, pick(w, "domain", w.domains))
		}
		if w.flip("assigned to projects") {
			for _, p := range w.projects[:w.some("projects", 2)] {
				w.add(`INSERT INTO resource_groups_for_projects VALUES ($1, $2)`, g, p.id)
			}
		}
		if w.flip("assigned to a key") {
			w.add(`INSERT INTO resource_groups_for_keypairs VALUES ($1, $2)`, g, key(pick(w, "key", w.users).id))
		}
	}
	w.add(`INSERT INTO agents (id, status, resource_group) VALUES ('a', 'ALIVE', 'g1')`)
	w.add(`INSERT INTO resource_presets (id, name, resource_slots) VALUES ($1, 'small', '{}')`, w.id())
	w.add(
		`INSERT INTO resource_presets (id, name, resource_group, resource_slots) VALUES ($1, 'small', 'g1', '{}'), ($2, 'small', 'g2', '{}')`,
		w.id(),
		w.id(),
	)
	w.add(
		`INSERT INTO idle_checkers (name, type, spec, target_session_types) VALUES ('nightly', 'session_lifetime',
'{"max_lifetime_seconds": 60}', '{interactive}')`,
	)
	w.add(`INSERT INTO cluster_settings (key, value) VALUES ('announcement', '"hello"') ON CONFLICT DO NOTHING`)
	for i, u := range w.users {
		w.add(`INSERT INTO session_templates (id, kind, name, user_id, project_id, document) VALUES ($1, 'session', $2, $3, $4, '{}')`,
			w.id(), fmt.Sprint("t", i), u.id, pick(w, "project of a template", w.projects).id)
	}
	for _, u := range w.users {
		w.add(`INSERT INTO error_logs (id, user_id, severity, source, message, context_lang, context_env)
VALUES ($1, $2, 'error', 'x', 'y', 'z', '{}')`, w.id(), u.id)
	}
	serial := 0
	image := func(registry, scope string, owner, project *string) {
		serial++
		w.add(`INSERT INTO images (id, reference, registry, name, tag, architecture, digest, scope, owner_id, project_id)
VALUES ($1, $2, $3, 'x', 'y', 'z', '', $4, $5, $6)`, w.id(), fmt.Sprint("i", serial), registry, scope, owner, project)
	}
	for _, r := range registries {
		image(r, "global", nil, nil)
		image(r, "user", nil, nil)
		image(r, "user", new(pick(w, "owner of an image", w.users).id), nil)
		image(r, "project", nil, new(pick(w, "project of an image", w.projects).id))
	}
}

// work is what users run.
func (w *world) work() {
	for i := range w.some("sessions", 5) {
		u, p, s, k := pick(w, "owner", w.users), pick(w, "project", w.projects), w.id(), w.id()
		w.add(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
VALUES ($1, $2, 'interactive', $3, $4, $5, $6, 'g1', 'x', 'PENDING', '{}')`, s, fmt.Sprint("s", i), u.domain, p.id, u.id, key(u.id))
		w.add(
			`INSERT INTO kernels (id, session_id, image, architecture, status, requested_slots) VALUES ($1, $2, 'x', 'y', 'PENDING', '{}')`,
			k,
			s,
		)
		w.add(`INSERT INTO session_events (session_id, event, from_status, to_status) VALUES ($1, 'x', '', '')`, s)
		w.add(`INSERT INTO background_tasks (id, kind, owner) VALUES ($1, 'x', $2)`, w.id(), u.id)
		w.add(`INSERT INTO audit_log (entry, action, object, result, user_id, email, role, domain_name, access_key, address, request_id)
SELECT gen_random_uuid(), 'x', 'y', 'done', u.id, u.email, u.role, u.domain_name, '', '', '' FROM users u WHERE u.id = $1`, u.id)
		w.add(`INSERT INTO usage_intervals (kernel_id, session_id, session_name, session_type, domain_name, project_id, project_name,
			user_id, email,
access_key, resource_group, agent_id, image, slots, from_at) VALUES ($1, $2, '', '', $3, $4, '', $5, '', '', '', '', '', '{}', now())`,
			k, s, u.domain, p.id, u.id)
		c := w.id()
		w.add(
			`INSERT INTO circuits (id, proxy, mode, label, session_id, kernel_id, app, protocol, target, path, user_id, created_by, public,
allowed, created_at)
VALUES ($1, 'p', 'subdomain', $2, $3, $4, 'a', 'http', 1, '/', $5, $5, $6, '{}', now())`,
			c,
			fmt.Sprint("l", i),
			s,
			k,
			u.id,
			w.flip("public"),
		)
		if w.flip("shared with a user") {
			w.add(`INSERT INTO circuit_shares (circuit_id, user_id) VALUES ($1, $2)`, c, pick(w, "visitor", w.users).id)
		}
		if w.flip("shared with a project") {
			w.add(`INSERT INTO circuit_shares (circuit_id, project_id) VALUES ($1, $2)`, c, pick(w, "visitors", w.projects).id)
		}
	}
	w.add(`INSERT INTO background_tasks (id, kind) VALUES ($1, 'of nobody')`, w.id())
	w.add(`INSERT INTO usage_prices (id, slot, per_hour, valid_from) VALUES ($1, 'cpu', 1, now())`, w.id())
}

func (w *world) folders() {
	permissions := []string{"ro", "rw", "wd"}
	for i := range w.some("folders", 8) + 2 {
		id, creator := w.id(), pick(w, "creator", w.users)
		var owner, project *string
		domain, scope := "", ""
		if w.flip("of a user") {
			u := pick(w, "owner", w.users)
			owner, domain, scope = &u.id, u.domain, "user:"+u.id
		} else {
			p := pick(w, "project", w.projects)
			project, domain, scope = &p.id, p.domain, "project:"+p.id
		}
		w.add(
			`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, project_id, creator_id, cloneable,
status)
VALUES ($1, $2, 'x:y', $3, $4, 'general', $5, $6, $7, $8, false, 'ready')`,
			id,
			fmt.Sprint("f", i),
			domain,
			scope,
			pick(w, "permission", permissions),
			owner,
			project,
			creator.id,
		)
		w.add(`INSERT INTO folder_scopes (host, quota_scope) VALUES ('x:y', $1) ON CONFLICT DO NOTHING`, scope)
		for _, u := range w.users {
			if w.flip("granted") {
				w.add(`INSERT INTO folder_permissions (folder_id, user_id, permission) VALUES ($1, $2, $3)`, id, u.id, pick(w, "grant", permissions))
			}
		}
		w.add(`INSERT INTO folder_invitations (id, folder_id, inviter_id, invitee_id, permission) VALUES ($1, $2, $3, $4, 'ro')`,
			w.id(), id, creator.id, pick(w, "invited", w.users).id)
	}
}

// actors are all users, and nobody.
// scope is that of a token.
func (w *world) scope() *authz.Scope {
	s := &authz.Scope{Token: "t", ReadOnly: w.flip("read only")}
	for _, area := range authz.Areas() {
		if w.flip("area") {
			s.Areas = append(s.Areas, area)
		}
	}
	for _, p := range w.projects {
		if w.flip("project") {
			s.Projects = append(s.Projects, cluster.ProjectID(p.id))
		}
	}
	return s
}

func (w *world) actors() []authz.Actor {
	out := []authz.Actor{{Email: "nobody"}}
	for i, u := range w.users {
		a := authz.Actor{
			UserID:            cluster.UserID(u.id),
			Email:             fmt.Sprint("u", i),
			Role:              authz.Role(u.role),
			Domain:            u.domain,
			AccessKey:         cluster.AccessKey(key(u.id)),
			AllowedRegistries: w.allowed(u.domain),
		}
		for _, p := range u.projects {
			a.Projects = append(a.Projects, cluster.ProjectID(p))
		}
		for _, p := range u.leads {
			a.Leads = append(a.Leads, cluster.ProjectID(p))
		}
		out = append(out, a)
	}
	return out
}
