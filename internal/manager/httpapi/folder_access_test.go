package httpapi_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/dbgen"
)

// visitor is somebody with what the rules of access make of them for one folder.
type visitor struct {
	who   string
	as    *site
	sees  bool
	files string // ro, rw, wd or nothing
	owner bool   // may change the folder itself
	scope bool   // may see what the folder's quota scope holds
	given bool   // has a permission of their own on a user's folder
	admin bool   // administrates some domain
	super bool
	reads bool // reads everything there is
	gone  bool // was deactivated
}

// What requests end with.
const (
	allowed = "allowed"
	refused = "refused"    // 403, or 400 vfolder-permission-error
	hidden  = "hidden"     // 404 object-not-found
	invalid = "invalid"    // 400 for other reasons: the visitor may, but it cannot be
	unknown = "not let in" // 401
)

// need decides what a request of a visitor ends with.
type need func(v visitor) string

func seen(v visitor, may bool) string {
	switch {
	case !v.sees:
		return hidden
	case !may:
		return refused
	}
	return allowed
}

func files(least string) need {
	return func(v visitor) string {
		rank := func(p string) int { return strings.Index("--rorwwd", p) }
		return seen(v, v.files != "" && rank(v.files) >= rank(least))
	}
}

var (
	anybody   need = func(visitor) string { return allowed }
	nobody    need = func(visitor) string { return hidden }
	seeing    need = func(v visitor) string { return seen(v, true) }
	owning    need = func(v visitor) string { return seen(v, v.owner) }
	ofScope   need = func(v visitor) string { return seen(v, v.scope) }
	offering  need = func(v visitor) string { return map[bool]string{true: allowed, false: hidden}[v.owner] }
	superOnly need = func(v visitor) string { return map[bool]string{true: allowed, false: refused}[v.super] }
	readAll   need = func(v visitor) string { return map[bool]string{true: allowed, false: refused}[v.reads] }
)

// but is n, except that who may is told that it cannot be.
func but(n need) need {
	return func(v visitor) string {
		if got := n(v); got != allowed {
			return got
		}
		return invalid
	}
}

// folderRequest is one way to call a route of folders. In target and body V is the folder's id, I an invitation to it, N a new name,
// G the id of one who has a permission on it.
type folderRequest struct {
	pattern string
	query   string
	body    string
	user    need // for a user's folder
	project need // for a folder of a project; nil is the same
	status  string
	shared  bool // the folder may be cloned by who reads it
}

var folderRequests = []folderRequest{
	{pattern: "POST /folders", body: `{"name":"N","host":"local:volume1"}`, user: func(v visitor) string {
		return map[bool]string{true: refused, false: allowed}[v.who == "monitor"] // they change nothing
	}},
	{pattern: "POST /folders", body: `{"name":"N","host":"local:volume1","group":"default"}`, user: func(v visitor) string {
		switch {
		case v.super || v.admin && v.sees:
			return allowed
		case v.reads, v.who == "member":
			return refused // they know the project
		}
		return hidden
	}, project: func(v visitor) string {
		switch {
		case v.owner:
			return allowed
		case v.sees:
			return refused
		}
		return hidden
	}},
	{pattern: "POST /folders", body: `{"name":"N","unmanaged_path":"/x"}`, user: superOnly},
	{pattern: "GET /folders", user: anybody},
	{pattern: "GET /folders", query: "?all=true", user: anybody}, // TestListsShowWhatMayBeSeen
	{pattern: "DELETE /folders", body: `{"id":"V"}`, user: owning},
	{pattern: "DELETE /folders/{v}", user: owning},
	{pattern: "GET /folders/_/id", query: "?name=V", user: seeing},
	{pattern: "GET /folders/{v}", user: seeing},
	{pattern: "POST /folders/purge", body: `{"id":"V"}`, status: "delete-pending", user: func(v visitor) string {
		if !v.admin {
			return refused
		}
		return owning(v)
	}},
	{pattern: "POST /folders/restore-from-trash-bin", body: `{"id":"V"}`, status: "delete-pending", user: owning},
	{pattern: "POST /folders/delete-from-trash-bin", body: `{"id":"V"}`, status: "delete-pending", user: owning},
	{pattern: "DELETE /folders/{v}/force", user: owning},
	{pattern: "DELETE /folders/{v}/force", status: "delete-pending", user: owning},
	{pattern: "DELETE /folders/{v}/force", status: "delete-ongoing", user: owning},
	{pattern: "POST /folders/{v}/rename", body: `{"new_name":"N"}`, user: owning},
	{pattern: "POST /folders/{v}/update-options", body: `{"cloneable":true}`, user: owning},
	{pattern: "POST /folders/{v}/clone", body: `{"target_name":"N"}`, user: owning},
	{pattern: "POST /folders/{v}/clone", body: `{"target_name":"N"}`, shared: true, user: files("ro")},

	{pattern: "GET /folders/_/hosts", user: anybody},
	{pattern: "GET /folders/_/all_hosts", user: superOnly}, {pattern: "GET /folders/_/all-hosts", user: superOnly},
	{pattern: "GET /folders/_/allowed_types", user: anybody}, {pattern: "GET /folders/_/allowed-types", user: anybody},
	{pattern: "GET /acl", user: anybody},
	{pattern: "GET /folders/_/perf-metric", query: "?folder_host=local:volume1", user: superOnly},
	{pattern: "GET /folders/_/quota", query: "?folder_host=local:volume1&id=V", user: ofScope},
	{pattern: "POST /folders/_/quota", body: `{"folder_host":"local:volume1","id":"V","input":{"size_bytes":5}}`, user: superOnly},
	{pattern: "GET /folders/_/usage", query: "?id=V", user: superOnly},
	{pattern: "GET /folders/_/used-bytes", query: "?id=V", user: superOnly},
	{pattern: "GET /folders/_/mounts", user: readAll},
	{pattern: "POST /folders/_/mounts", body: `{}`, user: but(superOnly)}, {pattern: "DELETE /folders/_/mounts", user: but(superOnly)},
	{pattern: "POST /folders/_/umounts", body: `{}`, user: but(superOnly)}, {pattern: "DELETE /folders/_/umounts", user: but(superOnly)},
	{pattern: "GET /folders/_/fstab", user: but(superOnly)},

	{pattern: "POST /folders/{v}/mkdir", body: `{"path":"a"}`, user: files("rw")},
	{pattern: "POST /folders/{v}/request-upload", body: `{"path":"a","size":1}`, user: files("rw")},
	{pattern: "POST /folders/{v}/request-download", body: `{"path":"a"}`, user: files("ro")},
	{pattern: "POST /folders/{v}/request-download-archive", body: `{"files":["a"]}`, user: files("ro")},
	{pattern: "POST /folders/{v}/rename-file", body: `{"target_path":"a","new_name":"b"}`, user: files("rw")},
	{pattern: "POST /folders/{v}/rename_file", body: `{"target_path":"a","new_name":"b"}`, user: files("rw")},
	{pattern: "POST /folders/{v}/move-file", body: `{"src":"a","dst":"b"}`, user: files("rw")},
	{pattern: "POST /folders/{v}/move_file", body: `{"src":"a","dst":"b"}`, user: files("rw")},
	{pattern: "POST /folders/{v}/delete-files", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "DELETE /folders/{v}/delete-files", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "POST /folders/{v}/delete_files", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "DELETE /folders/{v}/delete_files", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "POST /folders/{v}/delete-files-async", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "DELETE /folders/{v}/delete-files-async", body: `{"files":["a"]}`, user: files("wd")},
	{pattern: "GET /folders/{v}/files", user: files("ro")},
	{pattern: "POST /folders/{v}/import", body: `{"store":{"endpoint":"https://s3","bucket":"b"}}`, user: files("rw")},
	{pattern: "POST /folders/{v}/export", body: `{"store":{"endpoint":"https://s3","bucket":"b"}}`, user: files("ro")},

	{pattern: "POST /folders/{v}/invite", body: `{"perm":"ro","emails":["hank@x"]}`, user: owning, project: but(owning)},
	{pattern: "GET /folders/invitations/list", user: anybody},
	{pattern: "GET /folders/invitations/list-sent", user: anybody}, {pattern: "GET /folders/invitations/list_sent", user: anybody},
	{pattern: "POST /folders/invitations/accept", body: `{"inv_id":"I"}`, user: nobody},
	{pattern: "POST /folders/invitations/delete", body: `{"inv_id":"I"}`, user: offering},
	{pattern: "DELETE /folders/invitations/delete", body: `{"inv_id":"I"}`, user: offering},
	{pattern: "POST /folders/invitations/update/{inv}", body: `{"perm":"wd"}`, user: offering},
	{pattern: "POST /folders/{v}/share", body: `{"permission":"wd","emails":["roer@x"]}`, user: but(owning), project: owning},
	{pattern: "DELETE /folders/{v}/unshare", body: `{"emails":["roer@x"]}`, user: owning},
	{pattern: "POST /folders/{v}/unshare", body: `{"emails":["roer@x"]}`, user: owning},
	{pattern: "POST /folders/{v}/leave", body: `{}`, user: func(v visitor) string {
		switch {
		case v.given:
			return allowed
		case v.who == "owner":
			return invalid
		}
		return hidden // also: not shared with who asks
	}, project: but(seeing)},
	{pattern: "POST /folders/{v}/leave", body: `{"shared_user_uuid":"G"}`, user: owning, project: but(owning)},
	{pattern: "GET /folders/_/shared", user: anybody}, // one's own
	{pattern: "GET /folders/_/shared", query: "?vfolder_id=V", user: owning},
	{pattern: "POST /folders/_/shared", body: `{"vfolder":"V","user":"G","perm":"wd"}`, user: owning},
	{pattern: "POST /folders/_/shared", body: `{"vfolder":"V","user":"G","perm":null}`, user: owning},
	{pattern: "POST /folders/_/sharing", body: `{"vfolder_id":"V","user_perm_list":[{"user_id":"G","perm":"wd"}]}`, user: owning},
	{pattern: "POST /folders/_/change-ownership", body: `{"vfolder":"V","user_email":"hank@x"}`, user: superOnly, project: but(superOnly)},
	{pattern: "POST /folders/_/change_ownership", body: `{"vfolder":"V","user_email":"hank@x"}`, user: superOnly, project: but(superOnly)},
}

// accessRig is a site with one folder and everybody who may come by.
type accessRig struct {
	*site
	folder   string // id
	project  bool
	visitors []visitor
	given    map[string]string // permissions of their own by user id
	invite   string
	fresh    int
	clean    string // what reset left, "" once something may have changed
}

const (
	idOfOwner = "00000000-0000-4000-8000-00006f776e65" // of site.user("owne")
	idOfGuest = "00000000-0000-4000-8000-000068616e6b" // of site.user("hank")
)

func newAccessRig(t *testing.T, project bool) *accessRig {
	t.Helper()
	s, _ := withFolders(t)
	r := &accessRig{site: s, project: project, given: map[string]string{}, invite: "11111111-1111-4111-8111-111111111111"}
	exec := func(sql string, args ...any) {
		_, err := s.store.Pool().Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	_, err := s.store.AddDomain(t.Context(), "elsewhere", nil)
	require.NoError(t, err)
	exec(
		`UPDATE domains SET allowed_vfolder_hosts = (SELECT allowed_vfolder_hosts FROM domains WHERE name = 'default') WHERE name = 'elsewhere'`,
	)
	add := func(name, role string, member bool, v visitor) *site {
		v.as = s.user(name, role, member)
		r.visitors = append(r.visitors, v)
		return v.as
	}
	give := func(name, perm string) { r.given[fmt.Sprintf("00000000-0000-4000-8000-%012x", name)] = perm }
	owner := add(
		"owne", "user", project,
		visitor{who: "owner", sees: true, files: map[bool]string{false: "wd", true: "rw"}[project], owner: !project, scope: true},
	)
	if project {
		r.visitors[0].who = "member"
	}
	for _, perm := range []string{"ro", "rw", "wd"} {
		name := perm + "er"
		add(name, "user", project, visitor{who: "one with " + perm, sees: true, files: perm, given: !project, scope: project})
		give(name, perm)
	}
	add("memb", "user", !project, visitor{who: "member"}) // of the project, which is not the folder's
	if project {
		r.visitors[len(r.visitors)-1].who = "former member"
		give("memb", "wd")
	}
	add("eve_", "user", false, visitor{who: "stranger"})
	add("admi", "admin", false, visitor{who: "domain admin", sees: true, files: "wd", owner: true, scope: true, admin: true})
	add("fore", "admin", false, visitor{who: "admin of another domain", admin: true})
	exec(`UPDATE users SET domain_name = 'elsewhere' WHERE username = 'fore'`)
	add("moni", "monitor", false, visitor{who: "monitor", sees: true, scope: true, reads: true})
	add("gone", "user", project, visitor{who: "deactivated", gone: true})
	give("gone", "wd")
	exec(`UPDATE users SET status = 'inactive' WHERE username = 'gone'`)
	r.visitors = append(
		r.visitors,
		visitor{who: "superadmin", as: s, sees: true, files: "wd", owner: true, scope: true, admin: true, super: true, reads: true},
	)
	s.user("hank", "user", project)
	maker, body := owner, `{"name":"papers","host":"local:volume1"}`
	if project {
		maker, body = s, `{"name":"papers","host":"local:volume1","group":"default"}`
	}
	r.folder = maker.made(body)
	r.reset(folderRequest{})
	return r
}

// reset makes the folder as it was at first, in the status that a request is about.
func (r *accessRig) reset(q folderRequest) {
	r.t.Helper()
	exec := func(sql string, args ...any) {
		_, err := r.store.Pool().Exec(r.t.Context(), sql, args...)
		require.NoError(r.t, err)
	}
	status := q.status
	if status == "" {
		status = "ready"
	}
	state := fmt.Sprint(status, q.shared)
	if r.clean == state {
		return
	}
	r.clean = state
	exec(`DELETE FROM folders WHERE id <> $1`, dashed(r.folder))
	exec(`UPDATE folders SET status = $2, status_info = '', name = 'papers', permission = 'rw', cloneable = $3, task_id = NULL,
		user_id = CASE WHEN project_id IS NULL THEN $4::uuid END, domain_name = 'default' WHERE id = $1`, dashed(r.folder), status, q.shared,
		idOfOwner)
	exec(`DELETE FROM folder_permissions`)
	for user, perm := range r.given {
		require.NoError(r.t, r.store.GrantFolder(r.t.Context(), dashed(r.folder), user, perm))
	}
	exec(`DELETE FROM folder_invitations`)
	_, err := r.store.AddInvitation(
		r.t.Context(),
		dbgen.AddInvitationParams{ID: r.invite, FolderID: dashed(r.folder), InviterID: idOfOwner, InviteeID: idOfGuest, Permission: "ro"},
	)
	require.NoError(r.t, err)
}

func (r *accessRig) send(as *site, q folderRequest) answer {
	r.t.Helper()
	r.fresh++
	method, path, _ := strings.Cut(q.pattern, " ")
	guest := idOfGuest
	for id := range r.given {
		guest = min(guest, id)
	}
	fill := strings.NewReplacer(
		`"V"`, `"`+r.folder+`"`, "=V", "="+r.folder, "{v}", r.folder, `"I"`, `"`+r.invite+`"`, "{inv}", r.invite, `"N"`,
		fmt.Sprintf(`"new%d"`, r.fresh), `"G"`, `"`+guest+`"`,
	)
	a := as.call(method, fill.Replace(path+q.query), fill.Replace(q.body))
	if a.status < 300 && method != "GET" {
		r.clean = ""
	}
	return a
}

// outcomeOf words an answer as needs do.
func outcomeOf(t *testing.T, a answer) string {
	t.Helper()
	var p struct{ Type, Msg string }
	if a.status >= 400 {
		a.into(t, &p)
	}
	slug := p.Type[strings.LastIndex(p.Type, "/")+1:]
	switch {
	case a.status < 300:
		return allowed
	case a.status == 401:
		return unknown
	case a.status == 403 && slug == "generic-forbidden", a.status == 400 && slug == "vfolder-permission-error":
		return refused
	case a.status == 404 && slug == "object-not-found":
		return hidden
	case a.status == 400:
		return invalid
	}
	return a.body
}

// Every route of folders, everybody who may come by: what they may do is what the rules say, and refusals tell nobody more
// than they see anyway.
func TestWhoMayDoWhatWithFolders(t *testing.T) {
	t.Parallel()
	covered := map[string]bool{}
	for _, project := range []bool{false, true} {
		r := newAccessRig(t, project)
		for _, q := range folderRequests {
			covered[q.pattern] = true
			want := q.user
			if project && q.project != nil {
				want = q.project
			}
			for _, v := range r.visitors {
				if project && strings.Contains(q.pattern, "/invitations/") && want(v) != allowed && v.who == "member" {
					continue // wrote the invitation of the rig, which projects do not have
				}
				r.reset(q)
				expected := unknown
				if !v.gone {
					expected = want(v)
				}
				a := r.send(v.as, q)
				if got := outcomeOf(t, a); got != expected {
					t.Errorf(
						"project %v: %s%s %s %s by %s: %s, want %s: %.300s", project, q.pattern, q.query, q.body, q.status, v.who, got,
						expected, a.body,
					)
				}
				if expected == hidden && !v.sees {
					for _, secret := range []string{"owne@x", "local:volume1", "papers"} {
						if strings.Contains(a.body, secret) && !strings.Contains(q.body+q.query, secret) {
							t.Errorf("%s by %s tells %s: %s", q.pattern, v.who, secret, a.body)
						}
					}
				}
			}
		}
	}
	pattern := regexp.MustCompile(`"((?:GET|POST|PUT|PATCH|DELETE) /(?:folders|acl)[^"]*)"`)
	sources, err := filepath.Glob("folder*.go")
	require.NoError(t, err)
	routes := 0
	for _, name := range sources {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		for _, m := range pattern.FindAllStringSubmatch(string(text), -1) {
			routes++
			if !covered[m[1]] {
				t.Errorf("nobody asks who may call %s", m[1])
			}
		}
	}
	require.Greater(t, routes, 50)
}

// Lists hold what may be seen, and nothing else.
func TestListsShowWhatMayBeSeen(t *testing.T) {
	t.Parallel()
	for _, project := range []bool{false, true} {
		r := newAccessRig(t, project)
		for _, v := range r.visitors {
			if v.gone {
				continue
			}
			for query, want := range map[string]bool{"": v.sees && !v.admin && !v.reads, "?all=true": v.sees} {
				if v.super && project {
					want = true // is a member
				}
				list := v.as.list(query)
				found := false
				for _, f := range list {
					found = found || f["id"] == r.folder
				}
				require.Equal(t, want, found, "project %v: %s by %s", project, query, v.who)
				if found && !v.owner {
					require.Equal(t, v.files != "", list[0]["permission"] == v.files, "%s: %v", v.who, list)
				}
			}
		}
	}
}
