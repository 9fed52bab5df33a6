package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi"
	"berth.dev/berth/internal/manager/nouns"
	"berth.dev/berth/internal/wire/storage"
)

// proxies are storage proxies that keep nothing: local answers, gone was there before. Of paths, those that begin with "bad"
// fail. What they answer is of the manager-facing API.
type proxies struct {
	mu    sync.Mutex
	asked []string // path and body of every request
	limit *int64   // of every scope
}

const proxiesKnown = `[{"proxy":"local","node":"n1","client_url":"https://files.example","sftp_scaling_groups":["upload"],
	"volumes":[{"name":"volume1","backend":"posix","path":"/vol1","fsprefix":".","capabilities":["vfolder","quota"],"capacity_bytes":1000,
		"used_bytes":250}]}]`
const proxiesGone = `[{"proxy":"gone","node":"n2","volumes":[{"name":"old","backend":"posix","path":"/old","capabilities":["vfolder"]}]}]`

func read[T any](text string) (v T) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

// discovered is what the manager sees of proxies.
type discovered struct{ *proxies }

func (discovered) View() (live, gone []storage.Presence) {
	return read[[]storage.Presence](proxiesKnown), read[[]storage.Presence](proxiesGone)
}

func (discovered) ClientURL(proxy string) (string, error) {
	if proxy != "local" {
		return "", fault.Unavailablef("no storage proxy %s is connected", proxy)
	}
	return "https://files.example", nil
}

func (p *proxies) Do(_ context.Context, proxy, method, path string, request, reply any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.asked = append(p.asked, path+" "+string(body))
	if q, ok := request.(storage.ScopeRequest); ok && method != "GET" {
		p.limit = nil
		if q.Options != nil {
			p.limit = &q.Options.LimitBytes
		}
	}
	if r, ok := reply.(*storage.ScopeReply); ok {
		*r = storage.ScopeReply{UsedBytes: new(int64(30)), LimitBytes: p.limit}
	}
	p.mu.Unlock()
	if proxy != "local" {
		return fault.Unavailablef("no storage proxy %s is connected", proxy)
	}
	answer := p.answer(path, body)
	if answer == "" || reply == nil {
		return nil
	}
	return json.Unmarshal([]byte(answer), reply)
}

func (p *proxies) answer(at string, body []byte) string {
	var in struct {
		Paths []string `json:"relpaths"`
		Path  any      `json:"relpath"`
		Task  string   `json:"task_id"`
	}
	_ = json.Unmarshal(body, &in)
	if list, ok := in.Path.([]any); ok {
		for _, one := range list {
			in.Paths = append(in.Paths, fmt.Sprint(one))
		}
	}
	task := `{"bgtask_id":"` + in.Task + `"}`
	switch at {
	case "/folder/file/mkdir", "/folder/file/delete":
		var done, failed []string
		for _, one := range in.Paths {
			item, _ := json.Marshal(map[string]string{"item": one, "msg": ""})
			if strings.HasPrefix(path.Base(one), "bad") {
				item, _ = json.Marshal(map[string]string{"item": one, "msg": "it is bad"})
				failed = append(failed, string(item))
				continue
			}
			done = append(done, string(item))
		}
		return `{"success":[` + strings.Join(done, ",") + `],"failed":[` + strings.Join(failed, ",") + `]}`
	case "/folder/file/list":
		return `{"items":[{"name":"a.txt","type":"FILE","stat":{"mode":"644","size":5,"created":"2026-01-02T03:04:05.5Z",
			"modified":"2026-01-02T03:04:05.5Z"},"symlink_target":""},
			{"name":"d","type":"DIRECTORY","stat":{"mode":"755","size":0,"created":"2026-01-02T03:04:05Z","modified":"2026-01-02T03:04:05Z"},
				"symlink_target":""}]}`
	case "/folder/file/upload", "/folder/file/download", "/folder/file/archive-download-token":
		return `{"token":"the-token"}`
	case "/folder/usage", "/folder/used-bytes":
		return `{"file_count":3,"used_bytes":30,"complete":true,"at":"2026-01-02T03:04:05Z"}`
	case "/volume/performance-metric":
		return `{"metric":{"iops_read":1.5},"observed_at":"2026-01-02T03:04:05Z"}`
	case "/folder/delete", "/folder/clone", "/folder/file/delete-async", "/folder/object-store/import", "/folder/object-store/export":
		return task
	}
	return ""
}

// withFolders gives a site folders on the volumes local:volume1 and gone:old.
func withFolders(t *testing.T) (*site, *proxies) {
	t.Helper()
	p := &proxies{}
	s := newSite(t, p.folders())
	s.allowHosts()
	return s, p
}

// folders gives a site folders on what the proxies have.
func (p *proxies) folders() siteOption {
	return func(d *nouns.Deps, _ *httpapi.Deps) { d.Proxies = discovered{p} }
}

// allowHosts lets everybody of the domain do everything on both volumes.
func (s *site) allowHosts() {
	s.t.Helper()
	all := `["create-vfolder","modify-vfolder","delete-vfolder","mount-in-session","upload-file","download-file",` +
		`"invite-others","set-user-specific-permission"]`
	_, err := s.store.Pool().Exec(s.t.Context(),
		`UPDATE domains SET allowed_vfolder_hosts = jsonb_build_object('local:volume1', $1::jsonb, 'gone:old', $1::jsonb)`, all)
	require.NoError(s.t, err)
}

// made creates a folder and returns its id of 32 digits.
func (s *site) made(body string) string {
	s.t.Helper()
	a := s.call("POST", "/folders", body)
	require.Equal(s.t, 201, a.status, a.body)
	var f struct{ ID string }
	a.into(s.t, &f)
	require.Len(s.t, f.ID, 32)
	return f.ID
}

func dashed(id string) string { return uuid.MustParse(id).String() }

func (s *site) list(query string) []map[string]any {
	s.t.Helper()
	var out []map[string]any
	a := s.call("GET", "/folders"+query, "")
	require.Equal(s.t, 200, a.status, a.body)
	a.into(s.t, &out)
	return out
}

func TestFoldersAreMadeAndDescribed(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	ada, eve := s.user("ada", "user", true), s.user("eve", "user", false)
	a := ada.call(
		"POST", "/folders",
		`{"name":"data","host":"local:volume1","unmanaged_path":null,"group":null,"usage_mode":"general","permission":"rw",`+
			`"quota":"0","cloneable":true}`,
	)
	require.Equal(t, 201, a.status, a.body)
	var made map[string]any
	a.into(t, &made)
	id, _ := made["id"].(string)
	require.Len(t, id, 32)
	me := made["user"].(string)
	require.Equal(
		t,
		map[string]any{
			"id": id, "name": "data", "quota_scope_id": "user:" + me, "host": "local:volume1", "usage_mode": "general", "permission": "rw",
			"max_size": 0.0, "creator": "ada@x", "ownership_type": "user", "user": me, "group": nil, "cloneable": true, "status": "ready",
			"unmanaged_path": nil,
		},
		made,
	)

	list := ada.list("")
	require.Len(t, list, 1)
	for _, member := range []string{
		"name", "id", "quota_scope_id", "host", "status", "usage_mode", "created_at", "is_owner", "permission", "user", "group", "creator",
		"user_email", "group_name", "ownership_type", "type", "cloneable", "max_files", "max_size", "cur_size",
	} {
		require.Contains(t, list[0], member)
	}
	require.Equal(t, []any{true, "rw"}, []any{list[0]["is_owner"], list[0]["permission"]}, "owners see what they chose")
	require.Equal(t, "ada@x", list[0]["user_email"])
	require.Nil(t, list[0]["group_name"])
	_, err := time.Parse(time.RFC3339Nano, list[0]["created_at"].(string))
	require.NoError(t, err)

	// A name, an id with and without dashes are the same folder.
	for _, ref := range []string{"data", id, dashed(id), strings.ToUpper(id)} {
		a := ada.call("GET", "/folders/"+ref, "")
		require.Equal(t, 200, a.status, a.body)
		var info map[string]any
		a.into(t, &info)
		require.Equal(t, id, info["id"])
		for member, want := range map[string]any{
			"numFiles": 3.0, "num_files": 3.0, "used_bytes": 30.0, "cur_size": 30.0, "type": "user", "is_owner": true, "group": nil,
			"user": me, "cloneable": true, "last_used": nil,
		} {
			require.Equal(t, want, info[member], member)
		}
	}
	var named map[string]string
	ada.call("GET", "/folders/_/id", `{"name":"data"}`).into(t, &named)
	require.Equal(t, map[string]string{"id": dashed(id), "name": "data"}, named)
	ada.call("GET", "/folders/_/id?vfolder_name=data", "").into(t, &named)
	require.Equal(t, dashed(id), named["id"])

	// Strangers see nothing, administrators everything.
	require.Empty(t, eve.list(""))
	for _, r := range []struct{ method, target, body string }{
		{
			"GET", "/folders/" + id, "",
		}, {
			"POST", "/folders/" + id + "/rename", `{"new_name":"mine"}`,
		}, {
			"DELETE", "/folders/" + id, "",
		}, {
			"DELETE", "/folders", `{"id":"` + id + `"}`,
		},
		{
			"GET", "/folders/" + id + "/files?path=.", "",
		}, {
			"POST", "/folders/" + id + "/request-download", `{"path":"a"}`,
		}, {
			"POST", "/folders/" + id + "/clone", `{"target_name":"x"}`,
		},
		{
			"POST", "/folders/" + id + "/invite", `{"perm":"ro","emails":["eve@x"]}`,
		}, {
			"POST", "/folders/_/shared", `{"vfolder":"` + id + `","user":"` + me + `","perm":"rw"}`,
		},
		{
			"POST", "/folders/purge", `{"id":"` + id + `"}`,
		}, {
			"POST", "/folders/" + id + "/import", `{"store":{"endpoint":"https://s3","bucket":"b"}}`,
		},
	} {
		a := eve.call(r.method, r.target, r.body)
		require.Contains(t, []int{403, 404}, a.status, "%s %s: %s", r.method, r.target, a.body)
	}
	eve.call("GET", "/folders/data", "").problem(t, 404, "object-not-found")
	require.Empty(t, s.list(""))
	require.Len(t, s.list("?all=true"), 1)
	var all []any
	s.call("GET", "/folders", `{"all":true}`).into(t, &all)
	require.Len(t, all, 1, "parameters may come in the body of a GET")
	require.Len(t, s.list("?owner_user_email=ada@x"), 1)

	ada.call("POST", "/folders", `{"name":"data","host":"local:volume1"}`).problem(t, 400, "vfolder-already-exists")
	require.Equal(t, 201, ada.call("POST", "/folders/data/rename", `{"new_name":"papers"}`).status)
	a = ada.call("POST", "/folders/"+dashed(id)+"/update-options", `{"cloneable":false,"permission":"ro"}`)
	require.Equal(t, 201, a.status, a.body)
	require.Empty(t, a.body)
	list = ada.list("")
	require.Equal(t, []any{"papers", false, "ro"}, []any{list[0]["name"], list[0]["cloneable"], list[0]["permission"]})
	require.Equal(t, 201, ada.call("POST", "/folders/papers/update-options", `{"cloneable":true,"permission":"rw"}`).status)
	a = ada.call(
		"POST", "/folders/papers/clone", `{"target_name":"copy","target_host":"local:volume1","usage_mode":"general","permission":"rw"}`,
	)
	require.Equal(t, 201, a.status, a.body)
	var clone map[string]any
	a.into(t, &clone)
	for _, member := range []string{
		"id", "name", "host", "usage_mode", "permission", "creator", "ownership_type", "user", "group", "cloneable", "bgtask_id",
	} {
		require.Contains(t, clone, member)
	}
	require.Equal(t, "cloning", clone["status"])
	_, err = uuid.Parse(clone["bgtask_id"].(string))
	require.NoError(t, err)
}

// What a request leaves out is the default of whoever will own the folder: in a model store members only read.
func TestPermissionsThatAreLeftOut(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	_, err := s.store.Pool().Exec(t.Context(), `UPDATE projects SET type = 'model-store' WHERE name = 'default'`)
	require.NoError(t, err)
	s.made(`{"name":"models","group":"default","usage_mode":"model"}`)
	s.made(`{"name":"chosen","group":"default","permission":"rw"}`)
	s.made(`{"name":"mine"}`)
	bob := s.user("bobb", "user", true)
	got := map[string]any{}
	for _, f := range append(bob.list(""), s.list("")...) {
		if got[f["name"].(string)] == nil {
			got[f["name"].(string)] = f["permission"]
		}
	}
	require.Equal(t, map[string]any{"models": "ro", "chosen": "rw", "mine": "rw"}, got)
	bob.call("POST", "/folders/models/request-upload", `{"path":"x","size":1}`).problem(t, 400, "vfolder-permission-error")
}

func TestFoldersOfTheTrashBin(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	ada := s.user("ada", "user", true)
	status := func(id string) string {
		for _, f := range ada.list("") {
			if f["id"] == id {
				return f["status"].(string)
			}
		}
		return ""
	}
	id := ada.made(`{"name":"data"}`)
	require.Equal(t, 204, ada.call("DELETE", "/folders", `{"vfolder_id":"`+dashed(id)+`"}`).status)
	require.Equal(t, "delete-pending", status(id))
	ada.call("POST", "/folders/"+id+"/rename", `{"new_name":"x"}`).problem(t, 400, "vfolder-filter-status-failed")
	require.Equal(t, 204, ada.call("POST", "/folders/restore-from-trash-bin", `{"vfolder_id":"`+id+`"}`).status)
	require.Equal(t, "ready", status(id))
	ada.call("POST", "/folders/delete-from-trash-bin", `{"id":"`+id+`"}`).problem(t, 400, "vfolder-filter-status-failed")
	require.Equal(t, 204, ada.call("DELETE", "/folders/data", "").status)
	require.Equal(t, 204, ada.call("POST", "/folders/delete-from-trash-bin", `{"vfolder_id":"`+id+`"}`).status)
	require.NotEqual(t, "delete-pending", status(id))

	forced := ada.made(`{"name":"forced"}`)
	require.Equal(t, 204, ada.call("DELETE", "/folders/forced/force", "").status)
	require.NotContains(t, []string{"ready", "delete-pending"}, status(forced))

	// Two folders of one name in the trash bin are told apart by their ids by whoever takes one out of it. For all others they
	// make no name ambiguous.
	for range 2 {
		require.Equal(t, 204, ada.call("DELETE", "/folders/"+ada.made(`{"name":"twin"}`), "").status)
	}
	require.Equal(t, 200, ada.call("GET", "/folders/twin", "").status)
	a := ada.call("POST", "/folders/restore-from-trash-bin", `{"id":"twin"}`)
	require.Contains(t, a.problem(t, 404, "too-many-vfolders"), "twin")
	var p struct {
		Data struct{ Matches []map[string]any }
	}
	a.into(t, &p)
	require.Len(t, p.Data.Matches, 2)

	purged := ada.made(`{"name":"purged"}`)
	require.Equal(t, 204, ada.call("DELETE", "/folders/purged", "").status)
	ada.call("POST", "/folders/purge", `{"id":"`+purged+`"}`).problem(t, 403, "generic-forbidden")
	require.Equal(t, 204, s.call("POST", "/folders/purge", `{"id":"`+purged+`"}`).status)
}

func TestFilesOfFolders(t *testing.T) {
	t.Parallel()
	s, proxies := withFolders(t)
	ada := s.user("ada", "user", true)
	id := ada.made(`{"name":"data"}`)
	at := func(verb string) string { return "/folders/" + id + "/" + verb }

	a := ada.call("POST", at("mkdir"), `{"path":"one","parents":false,"exist_ok":false}`)
	require.Equal(t, 200, a.status, a.body)
	require.JSONEq(t, `{"results":{"success":[{"msg":null,"item":"one"}],"failed":[]}}`, a.body)
	a = ada.call("POST", at("mkdir"), `{"path":["one","bad"]}`)
	require.Equal(t, 207, a.status, a.body)
	require.JSONEq(t, `{"results":{"success":[{"msg":null,"item":"one"}],"failed":[{"msg":"it is bad","item":"bad"}]}}`, a.body)
	a = ada.call("POST", at("mkdir"), `{"path":["bad"]}`)
	require.Equal(t, 400, a.status, a.body)
	require.Contains(t, a.body, "it is bad")

	for _, r := range []struct{ verb, body, url string }{
		{"request-upload", `{"path":"a.txt","size":5}`, "/upload"}, {"request-upload", `{"path":"empty","size":0}`, "/upload"},
		{"request-download", `{"path":"a.txt"}`, "/download"}, {"request-download", `{"file":"./d","archive":true}`, "/download"},
		{"request-download-archive", `{"files":["a.txt","d"],"filename":"x.zip"}`, "/download-archive"},
	} {
		a := ada.call("POST", at(r.verb), r.body)
		require.Equal(t, 200, a.status, "%s: %s", r.verb, a.body)
		require.JSONEq(t, `{"token":"the-token","url":"https://files.example`+r.url+`"}`, a.body, r.verb)
	}
	for _, r := range []struct{ method, verb, body string }{
		{
			"POST", "rename-file", `{"target_path":"a.txt","new_name":"b.txt"}`,
		}, {
			"POST", "rename_file", `{"target_path":"./d","new_name":"e","is_dir":true}`,
		},
		{"POST", "move-file", `{"src":"a.txt","dst":"d/a.txt"}`}, {"DELETE", "delete-files", `{"files":["a.txt"],"recursive":false}`},
		{"POST", "delete-files", `{"files":["./d"],"recursive":true}`},
	} {
		a := ada.call(r.method, at(r.verb), r.body)
		require.Equal(t, 200, a.status, "%s: %s", r.verb, a.body)
		require.Equal(t, "{}", strings.TrimSpace(a.body))
	}
	require.Contains(
		t, ada.call("DELETE", at("delete-files"), `{"files":["a","bad"]}`).problem(t, 400, "vfolder-operation-failed"), "it is bad",
	)
	eve := s.user("eve", "user", false)
	for verb, body := range map[string]string{
		"delete-files-async": `{"files":["d"],"recursive":true}`,
		"import": `{"path":"in","prefix":"p/","store":{"endpoint":"https://s3.example","bucket":"b",` +
			`"access_key":"k","secret_key":"very secret"}}`,
		"export": `{"store":{"endpoint":"https://s3.example","bucket":"b","access_key":"k","secret_key":"very secret"}}`,
	} {
		a := ada.call("POST", at(verb), body)
		require.Equal(t, 202, a.status, "%s: %s", verb, a.body)
		var task struct {
			ID string `json:"bgtask_id"`
		}
		a.into(t, &task)
		_, err := uuid.Parse(task.ID)
		require.NoError(t, err, a.body)
		// Its progress is an event stream as that of all background tasks, for nobody else.
		eve.call("GET", "/events/background-task?task_id="+task.ID, "").problem(t, 404, "object-not-found")
	}

	for _, r := range []struct{ target, body string }{{at("files") + "?path=.", ""}, {at("files"), `{"path":"."}`}, {
		"/folders/data/files", "",
	}} {
		a := ada.call("GET", r.target, r.body)
		require.Equal(t, 200, a.status, a.body)
		var list struct {
			Items []map[string]any
			Files string
		}
		a.into(t, &list)
		require.Equal(
			t,
			map[string]any{
				"name": "a.txt", "type": "FILE", "size": 5.0, "mode": "644", "created": "2026-01-02T03:04:05.500000+00:00",
				"modified": "2026-01-02T03:04:05.500000+00:00",
			},
			list.Items[0],
		)
		require.Equal(t, "DIRECTORY", list.Items[1]["type"])
		var old []map[string]any
		require.NoError(t, json.Unmarshal([]byte(list.Files), &old))
		require.Equal(t, "a.txt", old[0]["filename"])
		require.InDelta(t, 1767323045.5, old[0]["mtime"], 0.001)
	}
	require.NotContains(t, s.log.String(), "very secret")
	require.NotContains(t, s.log.String(), "the-token")
	require.NotEmpty(t, proxies.asked)

	bob := s.user("bob", "user", true)
	for _, r := range []struct{ method, target, body, slug string }{
		{"POST", at("mkdir"), `{}`, "invalid-api-params"}, {"POST", at("mkdir"), `{"path":"x","parents":"maybe"}`, "invalid-api-params"},
		{"POST", at("mkdir"), `{"path":[` + strings.Repeat(`"x",`, 50) + `"x"]}`, "invalid-api-params"},
		{"POST", at("mkdir"), `{"path":"../x"}`, "invalid-api-params"}, {"POST", at("mkdir"), `{"path":"a\u0000b"}`, "invalid-api-params"},
		{"POST", at("request-upload"), `{"path":"x"}`, "invalid-api-params"},
		{"POST", at("request-upload"), `{"path":"x","size":-1}`, "invalid-api-params"},
		{"POST", at("request-upload"), `{"path":"/etc/passwd/../../x/../..","size":1}`, "invalid-api-params"},
		{"POST", at("request-upload"), `{"size":1}`, "invalid-api-params"},
		{"POST", at("request-download"), `{}`, "invalid-api-params"},
		{"POST", at("request-download"), `{"path":"../../other"}`, "invalid-api-params"},
		{"POST", at("request-download-archive"), `{"files":[]}`, "invalid-api-params"},
		{"POST", at("rename-file"), `{"target_path":"a","new_name":"b/c"}`, "invalid-api-params"},
		{"POST", at("rename-file"), `{"target_path":"a"}`, "invalid-api-params"},
		{"POST", at("move-file"), `{"src":"a","dst":"../b"}`, "invalid-api-params"},
		{"DELETE", at("delete-files"), `{"files":"` + strings.Repeat("x", 5000) + `"}`, "invalid-api-params"},
		{"DELETE", at("delete-files"), `[1]`, "invalid-api-params"},
		{"POST", at("import"), `{"store":{"endpoint":"https://x"}}`, "invalid-api-params"},
		{"POST", at("import"), `{"store":"text"}`, "invalid-api-params"},
		{"POST", at("export"), `{"store":{"endpoint":"file:///etc","bucket":"b"}}`, "invalid-api-params"},
	} {
		msg := ada.call(r.method, r.target, r.body).problem(t, 400, r.slug)
		require.NotEmpty(t, msg)
		a := bob.call(r.method, r.target, r.body)
		require.GreaterOrEqual(t, a.status, 400)
	}
}

func TestFoldersAmongPeople(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	ada, bob, eve := s.user("ada", "user", true), s.user("bob", "user", true), s.user("eve", "user", false)
	id := ada.made(`{"name":"data"}`)

	a := ada.call("POST", "/folders/data/invite", `{"perm":"ro","user_ids":["bob@x"]}`)
	require.Equal(t, 201, a.status, a.body)
	require.JSONEq(t, `{"invited_ids":["bob@x"]}`, a.body)
	ada.call("POST", "/folders/data/invite", `{"perm":"ro","user_ids":["nobody@x"]}`).problem(t, 404, "object-not-found")
	var list struct{ Invitations []map[string]any }
	bob.call("GET", "/folders/invitations/list", "").into(t, &list)
	require.Len(t, list.Invitations, 1)
	inv := list.Invitations[0]
	for member, want := range map[string]any{"inviter": "ada@x", "invitee": "bob@x", "perm": "ro", "state": "pending",
		"vfolder_id": dashed(id), "vfolder_name": "data"} {
		require.Equal(t, want, inv[member], member)
	}
	ada.call("GET", "/folders/invitations/list-sent", "").into(t, &list)
	require.Len(t, list.Invitations, 1)
	eve.call("GET", "/folders/invitations/list", "").into(t, &list)
	require.Empty(t, list.Invitations)
	ref := inv["id"].(string)
	body := `{"inv_id":"` + ref + `"}`
	eve.call("POST", "/folders/invitations/accept", body).problem(t, 404, "object-not-found")
	eve.call("DELETE", "/folders/invitations/delete", body).problem(t, 404, "object-not-found")
	require.Equal(t, 200, ada.call("POST", "/folders/invitations/update/"+ref, `{"perm":"rw"}`).status)
	ada.call("POST", "/folders/invitations/update/"+ref, `{"perm":"xx"}`).problem(t, 400, "invalid-api-params")
	require.Equal(t, 200, ada.call("POST", "/folders/invitations/update/"+ref, `{"perm":"ro"}`).status)
	a = bob.call("POST", "/folders/invitations/accept", body)
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `"msg"`)
	seen := bob.list("")
	require.Len(t, seen, 1)
	require.Equal(
		t, []any{"data", "ro", false, "user", "ada@x"},
		[]any{seen[0]["name"], seen[0]["permission"], seen[0]["is_owner"], seen[0]["type"], seen[0]["user_email"]},
	)
	bob.call("POST", "/folders/data/request-upload", `{"path":"x","size":1}`).problem(t, 400, "vfolder-permission-error")
	require.Equal(t, 200, bob.call("POST", "/folders/data/request-download", `{"path":"x"}`).status)
	bob.call("POST", "/folders/data/rename", `{"new_name":"mine"}`).problem(t, 403, "generic-forbidden")
	bob.call("POST", "/folders/data/clone", `{"target_name":"mine"}`).problem(t, 403, "generic-forbidden") // it is not cloneable

	var shared struct{ Shared []map[string]any }
	ada.call("GET", "/folders/_/shared?vfolder_id="+id, "").into(t, &shared)
	require.Len(t, shared.Shared, 1)
	to := shared.Shared[0]["shared_to"].(map[string]any)
	require.Equal(
		t,
		map[string]any{"vfolder_id": dashed(id), "vfolder_name": "data", "status": "ready", "owner": "ada@x", "type": "user", "perm": "ro",
			"shared_to": map[string]any{"uuid": to["uuid"], "email": "bob@x"}},
		shared.Shared[0],
	)
	bobID := to["uuid"].(string)
	perm := func(p string) string { return `{"vfolder":"` + id + `","user":"` + bobID + `","perm":` + p + `}` }
	require.Equal(t, 200, ada.call("POST", "/folders/_/shared", perm(`"rw"`)).status)
	require.Equal(t, "rw", bob.list("")[0]["permission"])
	require.Equal(
		t, 201,
		ada.call("POST", "/folders/_/sharing", `{"vfolder_id":"`+id+`","user_perm_list":[{"user_id":"`+bobID+`","perm":"wd"}]}`).status,
	)
	require.Equal(t, "wd", bob.list("")[0]["permission"])
	for _, bad := range []string{
		`{}`, `{"vfolder_id":"` + id + `"}`, `{"vfolder_id":"` + id + `","user_perm_list":[]}`,
		`{"vfolder_id":"` + id + `","user_perm_list":[1]}`, `{"vfolder_id":"` + id + `","user_perm_list":[{"user_id":"x","perm":"wd"}]}`,
	} {
		ada.call("POST", "/folders/_/sharing", bad).problem(t, 400, "invalid-api-params")
	}
	a = bob.call("POST", "/folders/data/leave", `{"shared_user_uuid":null}`)
	require.Equal(t, 200, a.status, a.body)
	require.Empty(t, bob.list(""))
	ada.call("POST", "/folders/data/invite", `{"perm":"ro","emails":["bob@x"]}`)
	bob.call("GET", "/folders/invitations/list", "").into(t, &list)
	a = bob.call("DELETE", "/folders/invitations/delete", `{"inv_id":"`+list.Invitations[0]["id"].(string)+`"}`)
	require.Equal(t, 200, a.status, a.body)
	require.Contains(t, a.body, `"msg"`)
	ada.call("POST", "/folders/_/shared", perm(`null`))

	// Folders of projects are shared with single members by administrators.
	project := s.made(`{"name":"team","group":"default","permission":"ro"}`)
	require.Equal(t, "group", bob.list("")[0]["type"])
	require.Equal(t, "default", bob.list("")[0]["group_name"])
	a = s.call("POST", "/folders/team/share", `{"permission":"rw","emails":["bob@x"]}`)
	require.Equal(t, 201, a.status, a.body)
	require.JSONEq(t, `{"shared_emails":["bob@x"]}`, a.body)
	require.Equal(t, "rw", bob.list("")[0]["permission"])
	ada.call("POST", "/folders/team/share", `{"permission":"rw","emails":["ada@x"]}`).problem(t, 403, "generic-forbidden")
	a = s.call("DELETE", "/folders/"+project+"/unshare", `{"emails":["bob@x"]}`)
	require.Equal(t, 200, a.status, a.body)
	require.JSONEq(t, `{"unshared_emails":["bob@x"]}`, a.body)
	require.Equal(t, "ro", bob.list("")[0]["permission"])

	ada.call("POST", "/folders/_/change-ownership", `{"vfolder":"`+id+`","user_email":"bob@x"}`).problem(t, 403, "generic-forbidden")
	a = s.call("POST", "/folders/_/change-ownership", `{"vfolder":"`+id+`","user_email":"bob@x"}`)
	require.Equal(t, 200, a.status, a.body)
	require.Equal(t, "{}", strings.TrimSpace(a.body))
	for _, f := range bob.list("") {
		if f["name"] == "data" {
			require.Equal(t, true, f["is_owner"])
		}
	}
}

func TestFolderHostsAndQuotas(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	ada := s.user("ada", "user", true)
	id := ada.made(`{"name":"data","host":"local:volume1"}`)
	var hosts struct {
		Default any
		Allowed []string
		Info    map[string]map[string]any `json:"volume_info"`
	}
	ada.call("GET", "/folders/_/hosts", "").into(t, &hosts)
	require.Contains(t, hosts.Allowed, "local:volume1")
	i := hosts.Info["local:volume1"]
	require.Equal(t, "posix", i["backend"])
	require.Equal(t, []any{"vfolder", "quota"}, i["capabilities"])
	require.Equal(t, map[string]any{"percentage": 25.0}, i["usage"])
	require.Equal(t, []any{"upload"}, i["sftp_scaling_groups"])
	if gone, there := hosts.Info["gone:old"]; there {
		require.NotEmpty(t, gone["problem"], "a proxy that is down leaves a partial answer")
	}
	ada.call("GET", "/folders/_/hosts?group_id=nowhere", "").problem(t, 404, "object-not-found")
	for _, spelling := range []string{"all_hosts", "all-hosts"} {
		var all struct {
			Default any
			Allowed []string
		}
		s.call("GET", "/folders/_/"+spelling, "").into(t, &all)
		require.Contains(t, all.Allowed, "local:volume1")
		ada.call("GET", "/folders/_/"+spelling, "").problem(t, 403, "generic-forbidden")
	}
	for _, spelling := range []string{"allowed_types", "allowed-types"} {
		require.JSONEq(t, `["user","group"]`, ada.call("GET", "/folders/_/"+spelling, "").body)
	}
	require.Contains(t, ada.call("GET", "/acl", "").body, `"set-user-specific-permission"`)
	metric := s.call("GET", "/folders/_/perf-metric", `{"folder_host":"local:volume1"}`)
	require.Equal(t, 200, metric.status, metric.body)
	require.JSONEq(t, `{"metric":{"iops_read":1.5},"observed_at":"2026-01-02T03:04:05Z"}`, metric.body)
	s.call("GET", "/folders/_/perf-metric", "").problem(t, 400, "invalid-api-params")
	s.call("GET", "/folders/_/perf-metric?folder_host=no:where", "").problem(t, 404, "object-not-found")
	ada.call("GET", "/folders/_/perf-metric?folder_host=local:volume1", "").problem(t, 403, "generic-forbidden")

	var quota map[string]any
	ada.call("GET", "/folders/_/quota?folder_host=local:volume1&id="+id, "").into(t, &quota)
	require.EqualValues(t, 30, quota["used_bytes"])
	require.Nil(t, quota["size_bytes"])
	set := `{"folder_host":"local:volume1","id":"` + id + `","input":{"size_bytes":4096}}`
	ada.call("POST", "/folders/_/quota", set).problem(t, 403, "generic-forbidden")
	a := s.call("POST", "/folders/_/quota", set)
	require.Equal(t, 200, a.status, a.body)
	a.into(t, &quota)
	require.EqualValues(t, 4096, quota["size_bytes"])
	for _, bad := range []string{
		`{}`, `{"id":"` + id + `"}`, `{"id":"` + id + `","input":{"size_bytes":-5}}`, `{"id":"` + id + `","input":{"size_bytes":"much"}}`,
		`{"id":"` + id + `","input":7}`,
	} {
		s.call("POST", "/folders/_/quota", bad).problem(t, 400, "invalid-api-params")
	}
	var usage map[string]any
	s.call("GET", "/folders/_/usage", `{"folder_host":"local:volume1","id":"`+id+`"}`).into(t, &usage)
	require.EqualValues(t, 3, usage["file_count"])
	require.EqualValues(t, 30, usage["used_bytes"])
	require.JSONEq(t, `{"used_bytes":30}`, s.call("GET", "/folders/_/used-bytes?id="+id, "").body)
	ada.call("GET", "/folders/_/usage?id="+id, "").problem(t, 403, "generic-forbidden")

	var mounts map[string]map[string]any
	s.call("GET", "/folders/_/mounts", "").into(t, &mounts)
	require.Equal(t, true, mounts["manager"]["success"])
	require.Contains(t, mounts["storage-proxy"]["mounts"], "local:volume1 /vol1")
	require.Empty(t, mounts["agents"])
	ada.call("GET", "/folders/_/mounts", "").problem(t, 403, "generic-forbidden")
	for _, r := range []string{"POST /folders/_/mounts", "DELETE /folders/_/mounts", "POST /folders/_/umounts", "GET /folders/_/fstab"} {
		method, target, _ := strings.Cut(r, " ")
		require.Contains(t, s.call(method, target, `{"name":"x","fs_location":"nfs:/x"}`).problem(t, 400, "not-implemented"), "fstab")
		ada.call(method, target, `{"name":"x"}`).problem(t, 403, "generic-forbidden")
	}
}

func TestBadRequestsForFolders(t *testing.T) {
	t.Parallel()
	s, _ := withFolders(t)
	ada := s.user("ada", "user", true)
	for _, r := range []struct {
		method, target, body string
		status               int
		slug                 string
	}{
		{"POST", "/folders", `{}`, 400, "invalid-api-params"}, {"POST", "/folders", `{"name":""}`, 400, "invalid-api-params"},
		{"POST", "/folders", `{"name":"a/b"}`, 400, "invalid-api-params"}, {"POST", "/folders", `{"name":".."}`, 400, "invalid-api-params"},
		{"POST", "/folders", `{"name":"` + strings.Repeat("x", 65) + `"}`, 400, "invalid-api-params"}, {
			"POST", "/folders", `{"name":"a","usage_mode":"x"}`, 400, "invalid-api-params",
		},
		{
			"POST", "/folders", `{"name":"a","permission":"xx"}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders", `{"name":"a","host":"nowhere"}`, 400, "invalid-api-params",
		},
		{
			"POST", "/folders", `{"name":"a","quota":"100m"}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders", `{"name":"a","group":"no-such"}`, 404, "object-not-found",
		},
		{
			"POST", "/folders", `{"name":"a","host":"gone:old"}`, 503, "service-unavailable",
		}, {
			"POST", "/folders", `{"name":"a","unmanaged_path":"/etc"}`, 403, "generic-forbidden",
		},
		{
			"POST", "/folders", `{"name":"team","group":"default"}`, 403, "generic-forbidden",
		}, {
			"POST", "/folders", `{"name":["a"]}`, 400, "invalid-api-params",
		},
		{
			"DELETE", "/folders", `{}`, 400, "invalid-api-params",
		}, {
			"DELETE", "/folders/nothing", "", 404, "object-not-found",
		}, {
			"GET", "/folders/nothing", "", 404, "object-not-found",
		},
		{
			"GET", "/folders/%00", "", 404, "object-not-found",
		}, {
			"GET", "/folders/_/id", "", 400, "invalid-api-params",
		}, {
			"GET", "/folders/_/id?name=nothing", "", 404, "object-not-found",
		},
		{
			"POST", "/folders/purge", `{}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders/restore-from-trash-bin", `{"id":"nothing"}`, 404, "object-not-found",
		},
		{
			"POST", "/folders/delete-from-trash-bin", `{"id":7}`, 404, "object-not-found",
		}, {
			"POST", "/folders/nothing/rename", `{"new_name":"x"}`, 404, "object-not-found",
		},
		{
			"POST", "/folders/nothing/rename", `{}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders/nothing/update-options", `{"permission":"x"}`, 400, "invalid-api-params",
		},
		{
			"POST", "/folders/nothing/clone", `{}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders/nothing/invite", `{"perm":"ro"}`, 400, "invalid-api-params",
		},
		{
			"POST", "/folders/invitations/accept", `{}`, 400, "invalid-api-params",
		}, {
			"POST", "/folders/invitations/accept", `{"inv_id":"x"}`, 404, "object-not-found",
		},
		{
			"GET", "/folders?group_id=nothing", "", 404, "object-not-found",
		}, {
			"GET", "/folders?owner_user_email=nobody@x", "", 404, "object-not-found",
		},
		{
			"PUT", "/folders/x", "", 405, "method-not-allowed",
		}, {
			"GET", "/folders/x/nothing", "", 404, "url-not-found",
		}, {
			"POST", "/folders/nothing/leave", `{"shared_user_uuid":"x"}`, 400, "invalid-api-params",
		},
	} {
		a := ada.call(r.method, r.target, r.body)
		require.Equal(t, r.status, a.status, "%s %s %.80s: %s", r.method, r.target, r.body, a.body)
		a.problem(t, r.status, r.slug)
	}
	s.send(s.request("GET", "/folders", "", "")).problem(t, 401, "auth-failed")
}
