package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/api"
)

// fakeFolders is a manager's folders and the storage proxy that keeps them, from memory.
type fakeFolders struct {
	mu      sync.Mutex
	list    []*fakeFolder
	uploads map[string]*fakeUpload
	reads   map[string][]byte
	limit   *int64
	asked   []map[string]any // bodies of requests that are only written down
	// drop makes the storage proxy end that many connections.
	drop int
}

type fakeFolder struct {
	api.Folder
	others bool              // belongs to somebody else: lists of administrators do not have it
	files  map[string]string // path -> content
	dirs   map[string]bool
}

type fakeUpload struct {
	f    *fakeFolder
	path string
	size int
	body []byte
}

var fakeModified = time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC)

func (s *fakeFolders) find(w http.ResponseWriter, name string) *fakeFolder {
	for _, f := range s.list {
		if f.ID == name || f.Name == name && !strings.HasPrefix(f.Status, "delete-") {
			return f
		}
	}
	problem(w, 404, api.SlugNotFound, "there is no folder "+name, "")
	return nil
}

func (f *fakeFolder) put(name, body string) {
	f.files[name] = body
	for d := path.Dir(name); !f.dirs[d]; d = path.Dir(d) {
		f.dirs[d] = true
	}
}

// add makes a folder without asking the wire.
func (s *fakeFolders) add(name string) *fakeFolder {
	f := &fakeFolder{files: map[string]string{}, dirs: map[string]bool{".": true}}
	f.ID, f.Name, f.Host, f.Status, f.Permission = fmt.Sprintf("%032x", len(s.list)+1), name, "local:volume1", api.FolderReady, "rw"
	f.UserEmail, f.QuotaScope, f.UsageMode, f.CreatedAt = new("admin@berth.local"), "user:u", "general", "2026-11-20T08:00:00+00:00"
	s.list = append(s.list, f)
	return f
}

func (f *fakeManager) folderRoutes(mux *http.ServeMux, handle func(string, func(http.ResponseWriter, *http.Request))) {
	s := &f.folders
	s.uploads, s.reads = map[string]*fakeUpload{}, map[string][]byte{}
	// on registers a route of one folder, with its decoded body.
	on := func(pattern string, h func(w http.ResponseWriter, r *http.Request, d *fakeFolder, q map[string]any)) {
		handle(pattern, func(w http.ResponseWriter, r *http.Request) {
			s.mu.Lock()
			defer s.mu.Unlock()
			q := map[string]any{}
			_ = json.NewDecoder(r.Body).Decode(&q)
			var d *fakeFolder
			if name := r.PathValue("v"); name != "" {
				if d = s.find(w, name); d == nil {
					return
				}
			}
			h(w, r, d, q)
		})
	}
	// note writes the body down and answers v.
	note := func(pattern string, status int, v any) {
		on(pattern, func(w http.ResponseWriter, r *http.Request, _ *fakeFolder, q map[string]any) {
			q["route"] = r.Method + " " + r.URL.Path
			s.asked = append(s.asked, q)
			reply(w, status, v)
		})
	}
	on("POST /folders", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, q map[string]any) {
		for _, d := range s.list {
			if d.Name == q["name"] {
				problem(w, 400, "vfolder-already-exists", "a folder called "+d.Name+" exists already", "")
				return
			}
		}
		s.asked = append(s.asked, q)
		reply(w, 201, s.add(q["name"].(string)).Folder)
	})
	on("GET /folders", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, _ map[string]any) {
		list := []api.Folder{}
		for _, d := range s.list {
			if !d.others {
				list = append(list, d.Folder)
			}
		}
		reply(w, 200, list)
	})
	status := func(pattern, to string) {
		on(pattern, func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, q map[string]any) {
			id, _ := q["id"].(string)
			if d := s.find(w, id); d != nil {
				d.Status = to
				w.WriteHeader(204)
			}
		})
	}
	status("DELETE /folders", api.FolderDeletePending)
	status("POST /folders/restore-from-trash-bin", api.FolderReady)
	status("POST /folders/delete-from-trash-bin", api.FolderDeleteOngoing)
	on("GET /folders/{v}", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, _ map[string]any) { reply(w, 200, d.Folder) })
	on("POST /folders/{v}/rename", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		d.Name = q["new_name"].(string)
		w.WriteHeader(201)
	})
	on("POST /folders/{v}/clone", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, q map[string]any) {
		made := s.add(q["target_name"].(string)).Folder
		made.TaskID = "task-1"
		reply(w, 201, made)
	})
	note("POST /folders/{v}/invite", 201, map[string]any{"invited_ids": []string{"ada@example.org"}})
	invitations := map[string]any{"invitations": []api.Invitation{
		{
			ID: "inv-1", Inviter: "ada@example.org", Invitee: "admin@berth.local", Permission: "ro", FolderName: "maps",
			CreatedAt: "2026-11-20T08:00:00+00:00",
		},
		{ID: "inv-2", Inviter: "ada@example.org", Invitee: "admin@berth.local", Permission: "rw", FolderName: "twice"},
		{ID: "inv-3", Inviter: "bob@example.org", Invitee: "admin@berth.local", Permission: "rw", FolderName: "twice"},
	}}
	note("GET /folders/invitations/list", 200, invitations)
	note("GET /folders/invitations/list-sent", 200, invitations)
	note("POST /folders/invitations/accept", 200, map[string]any{"msg": ""})
	note("DELETE /folders/invitations/delete", 200, map[string]any{"msg": ""})
	note("POST /folders/{v}/update-options", 201, nil)
	note("POST /folders/{v}/share", 201, map[string]any{"shared_emails": []string{"ada@example.org"}})
	note("DELETE /folders/{v}/unshare", 200, map[string]any{"unshared_emails": []string{"ada@example.org"}})
	note("POST /folders/{v}/leave", 200, map[string]any{"msg": ""})
	note("POST /folders/{v}/import", 202, map[string]any{"bgtask_id": "task-1"})
	note("POST /folders/{v}/export", 202, map[string]any{"bgtask_id": "task-1"})
	on("GET /folders/_/shared", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, _ map[string]any) {
		reply(
			w,
			200,
			map[string]any{
				"shared": []any{
					map[string]any{"vfolder_name": "data", "shared_to": map[string]string{"email": "ada@example.org"}, "perm": "ro"},
				},
			},
		)
	})
	on("GET /folders/_/hosts", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, _ map[string]any) {
		reply(
			w,
			200,
			map[string]any{"default": "local:volume1", "allowed": []string{"nas:a", "local:volume1"}, "volume_info": map[string]any{
				"local:volume1": map[string]any{
					"backend": "posix", "capabilities": []string{"vfolder"}, "usage": map[string]any{"percentage": 14.2},
				},
				"nas:a": map[string]any{"backend": "xfs", "problem": "it does not answer"},
			}},
		)
	})
	quota := func(w http.ResponseWriter) {
		reply(w, 200, api.Quota{UsedBytes: new(int64(2048)), LimitBytes: s.limit})
	}
	on("GET /folders/_/quota", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, _ map[string]any) { quota(w) })
	on("POST /folders/_/quota", func(w http.ResponseWriter, _ *http.Request, _ *fakeFolder, q map[string]any) {
		s.limit = new(int64(q["input"].(map[string]any)["size_bytes"].(float64)))
		quota(w)
	})
	f.fileRoutes(mux, on)
}

func (f *fakeManager) fileRoutes(
	mux *http.ServeMux, on func(string, func(http.ResponseWriter, *http.Request, *fakeFolder, map[string]any)),
) {
	s := &f.folders
	on("GET /folders/{v}/files", func(w http.ResponseWriter, r *http.Request, d *fakeFolder, _ map[string]any) {
		dir, after := path.Clean(r.URL.Query().Get("path")), r.URL.Query().Get("after")
		if !d.dirs[dir] {
			problem(w, 404, api.SlugNotFound, "there is no directory "+dir, "")
			return
		}
		items := []api.FolderEntry{}
		for name, body := range d.files {
			if path.Dir(name) == dir {
				items = append(
					items,
					api.FolderEntry{
						Name: path.Base(name), Type: api.EntryFile, Size: int64(len(body)), Mode: "644",
						Modified: "2026-11-20T08:00:00.000000+00:00",
					},
				)
			}
		}
		for name := range d.dirs {
			if name != "." && path.Dir(name) == dir {
				items = append(
					items,
					api.FolderEntry{
						Name: path.Base(name), Type: api.EntryDirectory, Mode: "755", Modified: "2026-11-20T08:00:00.000000+00:00",
					},
				)
			}
		}
		slices.SortFunc(items, func(a, b api.FolderEntry) int { return strings.Compare(a.Name, b.Name) })
		items = slices.DeleteFunc(items, func(e api.FolderEntry) bool { return e.Name <= after })
		page := api.FolderPage{Items: items}
		if len(items) > 2 {
			page = api.FolderPage{Items: items[:2], Next: items[1].Name, Truncated: true}
		}
		reply(w, 200, page)
	})
	on("POST /folders/{v}/mkdir", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		for _, p := range q["path"].([]any) {
			if d.dirs[p.(string)] && q["exist_ok"] != true {
				reply(w, 207, map[string]any{"results": map[string]any{"failed": []any{map[string]any{"item": p, "msg": "it exists"}}}})
				return
			}
			d.put(p.(string)+"/.", "")
			delete(d.files, p.(string)+"/.")
		}
		reply(w, 200, map[string]any{"results": map[string]any{}})
	})
	on("POST /folders/{v}/move-file", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		src, dst := q["src"].(string), q["dst"].(string)
		body, ok := d.files[src]
		if !ok {
			problem(w, 404, api.SlugNotFound, "there is no "+src, "")
			return
		}
		delete(d.files, src)
		d.put(dst, body)
		reply(w, 200, map[string]any{})
	})
	on("POST /folders/{v}/delete-files", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		for _, p := range q["files"].([]any) {
			if d.dirs[p.(string)] && q["recursive"] != true {
				problem(w, 400, "vfolder-operation-failed", p.(string)+" is not empty", "")
				return
			}
			for name := range d.files {
				if name == p || strings.HasPrefix(name, p.(string)+"/") {
					delete(d.files, name)
				}
			}
		}
		reply(w, 200, map[string]any{})
	})
	on("POST /folders/{v}/request-upload", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		u := &fakeUpload{f: d, path: q["path"].(string), size: int(q["size"].(float64))}
		if u.size == 0 {
			d.put(u.path, "")
		}
		token := fmt.Sprintf("token-%d", len(s.uploads))
		s.uploads[token] = u
		reply(w, 200, api.Ticket{Token: token, URL: f.URL + "/upload"})
	})
	on("POST /folders/{v}/request-download", func(w http.ResponseWriter, _ *http.Request, d *fakeFolder, q map[string]any) {
		body, ok := d.files[q["path"].(string)]
		if !ok {
			problem(w, 404, api.SlugNotFound, "there is no file "+q["path"].(string), "")
			return
		}
		token := fmt.Sprintf("token-%d", len(s.reads))
		s.reads[token] = []byte(body)
		reply(w, 200, api.Ticket{Token: token, URL: f.URL + "/download"})
	})
	store := func(h func(w http.ResponseWriter, r *http.Request, token string, body []byte)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body) // may come from our own /download
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.drop > 0 {
				s.drop--
				panic(http.ErrAbortHandler)
			}
			h(w, r, r.URL.Query().Get("token"), body)
		}
	}
	mux.HandleFunc("/upload", store(func(w http.ResponseWriter, r *http.Request, token string, body []byte) {
		u := s.uploads[token]
		u.body = append(u.body, body...)
		if len(u.body) == u.size {
			u.f.put(u.path, string(u.body))
		}
		w.Header().Set("Upload-Offset", strconv.Itoa(len(u.body)))
		if r.Method == http.MethodPatch {
			w.WriteHeader(204)
		}
	}))
	mux.HandleFunc("/download", store(func(w http.ResponseWriter, r *http.Request, token string, _ []byte) {
		http.ServeContent(w, r, "", fakeModified, strings.NewReader(string(s.reads[token])))
	}))
}
