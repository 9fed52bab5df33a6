package folder_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"crypto/rand"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/seal"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/manager/tenancy"
	"berth.dev/berth/internal/wire/storage"
)

const host = "p:v"

// proxy is a storage proxy that remembers instead of storing. It is idempotent as the real one is.
type proxy struct {
	mu      sync.Mutex
	away    bool
	unheard bool             // never announced itself
	folders map[string]bool  // by vfid
	limits  map[string]int64 // by scope
	tasks   map[string]*storage.Task
	calls   map[string]int
	// before runs ahead of an answer to a path, outside of the lock; its error is the answer.
	before map[string]func() error
	// after runs once a path was acted on, ahead of the answer; fail is the answer then.
	after map[string]func()
	fail  map[string]error
	// deaf is the name of a proxy that never answers.
	deaf    string
	callsTo map[string]int // by proxy
	entries []string       // of every directory, in order; nil is one file
	// hold keeps tasks running until they are finished by hand.
	hold bool
	last map[string]any // the last request by path
}

func newProxy() *proxy {
	return &proxy{folders: map[string]bool{}, limits: map[string]int64{}, tasks: map[string]*storage.Task{}, calls: map[string]int{},
		before: map[string]func() error{}, last: map[string]any{}, callsTo: map[string]int{}}
}

func (p *proxy) View() (live, gone []storage.Presence) {
	p.mu.Lock()
	defer p.mu.Unlock()
	one := storage.Presence{Proxy: "p", Node: "n", ClientURL: "http://clients",
		Volumes: []storage.Volume{{Name: "v", Backend: "posix", Path: "/vol", OwnerUID: 9001,
			OwnerGID: 9002, CapacityBytes: 100, UsedBytes: 25, Capabilities: []string{"vfolder"}}, {Name: "w", Backend: "posix", Path: "/vol2"}}}
	if p.unheard {
		return nil, nil
	}
	if p.away {
		return nil, []storage.Presence{one}
	}
	return []storage.Presence{one}, nil
}

func (p *proxy) ClientURL(string) (string, error) { return "http://clients/", nil }

func (p *proxy) Do(ctx context.Context, name, method, path string, request, reply any) error {
	p.mu.Lock()
	key := path
	if len(path) > len(storage.PathTask) && path[:len(storage.PathTask)] == storage.PathTask {
		key = storage.PathTask
	}
	before := p.before[key]
	after, fail := p.after[key], p.fail[key]
	p.calls[key]++
	p.callsTo[name]++
	p.last[key] = request
	away := p.away || p.deaf == name
	p.mu.Unlock()
	if away {
		return fault.Unavailablef("storage proxy %s does not answer", name)
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	answer, err := p.act(method, path, request)
	var raw []byte
	if err == nil {
		raw, err = json.Marshal(answer)
	}
	p.mu.Unlock()
	if after != nil {
		after()
	}
	if err == nil {
		err = fail
	}
	if err != nil || reply == nil {
		return err
	}
	return json.Unmarshal(raw, reply)
}

func (p *proxy) act(method, path string, request any) (any, error) {
	if len(path) > len(storage.PathTask) && path[:len(storage.PathTask)] == storage.PathTask {
		t, ok := p.tasks[path[len(storage.PathTask):]]
		if !ok {
			return nil, fault.NotFoundf("no such task")
		}
		return t, nil
	}
	begin := func(id, kind string) {
		if p.tasks[id] == nil {
			p.tasks[id] = &storage.Task{ID: id, Kind: kind, State: storage.TaskDone, Current: 3, Total: 3}
			if p.hold {
				p.tasks[id].State, p.tasks[id].Current = storage.TaskRunning, 1
			}
		}
	}
	switch path {
	case storage.PathScope:
		r := request.(storage.ScopeRequest)
		if method == "GET" {
			limit, ok := p.limits[r.Scope]
			if !ok {
				return nil, fault.NotFoundf("no such scope")
			}
			return storage.ScopeReply{UsedBytes: new(int64(7)), LimitBytes: &limit}, nil
		}
		p.limits[r.Scope] = -1
		if r.Options != nil {
			p.limits[r.Scope] = r.Options.LimitBytes
		}
	case storage.PathScopeQuota:
		p.limits[request.(storage.ScopeRequest).Scope] = -1
	case storage.PathFolderCreate:
		p.folders[request.(storage.FolderRequest).VFID] = true
	case storage.PathFolderDelete:
		r := request.(storage.FolderRequest)
		delete(p.folders, r.VFID)
		begin(r.TaskID, "delete-folder")
	case storage.PathFolderClone:
		r := request.(storage.CloneRequest)
		if !p.folders[r.SrcVFID] {
			return nil, fault.NotFoundf("no such folder")
		}
		begin(r.TaskID, "clone")
		p.folders[r.DstVFID] = true
	case storage.PathDeleteAsync:
		begin(request.(storage.DeleteRequest).TaskID, "delete-files")
	case storage.PathImport, storage.PathExport:
		begin(request.(storage.TransferRequest).TaskID, "import")
	case storage.PathFolderUsage:
		return storage.UsageReply{FileCount: 2, UsedBytes: 5, Complete: true}, nil
	case storage.PathList:
		if r := request.(storage.ListRequest); p.entries != nil {
			var out storage.ListReply
			at, _ := slices.BinarySearch(p.entries, r.After+"\x00")
			end := min(at+r.Limit, len(p.entries))
			for _, name := range p.entries[at:end] {
				out.Items = append(out.Items, storage.Entry{Name: name, Type: "FILE"})
			}
			if end < len(p.entries) {
				out.Next = p.entries[end-1]
			}
			return out, nil
		}
		return storage.ListReply{Items: []storage.Entry{{Name: "a", Type: "FILE"}}}, nil
	case storage.PathMkdir, storage.PathDelete:
		return storage.ResultsReply{Failed: []storage.PathResult{{Item: "x", Msg: "is not there"}}}, nil
	case storage.PathUpload, storage.PathDownload, storage.PathArchive:
		return storage.TokenReply{Token: "t"}, nil
	case storage.PathMetric:
		return map[string]int{"iops": 1}, nil
	}
	return nil, nil
}

func (p *proxy) finish(state storage.TaskState, words string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tasks {
		t.State, t.Message = state, words
	}
}

func (p *proxy) set(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
}

// rig is a cluster with two domains and people in them.
type rig struct {
	*folder.Service
	t       *testing.T
	store   *store.Store
	proxy   *proxy
	mu      sync.Mutex
	now     time.Time
	loop    *folder.Loop
	project cluster.ProjectID // of domain d
	other   cluster.ProjectID // of domain d as well
	models  cluster.ProjectID // a model store

	super, admin, monitor, foreign authz.Actor // foreign administrates domain e
	alice, bob, carol              authz.Actor // alice and bob are in project, carol in nothing
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, store: storetest.New(t), proxy: newProxy(), now: time.Now()}
	ctx := t.Context()
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	key, err := seal.New([]byte("0123456789abcdef0123456789abcdef"), rand.Reader)
	r.must(err)
	people, err := tenancy.New(tenancy.Deps{Store: r.store, Seal: key, Clock: r.clock, Log: log})
	r.must(err)
	r.Service, err = folder.New(folder.Deps{Store: r.store, Tenancy: people, Proxies: r.proxy, Clock: r.clock, Log: log})
	r.must(err)
	hosts := fmt.Sprintf(`{"%s": %s}`, host, all())
	for _, d := range []string{"d", "e"} {
		_, err := r.store.AddDomain(ctx, d, nil)
		r.must(err)
		r.sql("UPDATE domains SET allowed_vfolder_hosts = $1 WHERE name = $2", hosts, d)
	}
	r.must(r.store.AddDefaultPolicies(ctx))
	for _, p := range []*cluster.ProjectID{&r.project, &r.other, &r.models} {
		*p = cluster.ProjectID(uuid.NewString())
	}
	r.must(r.store.AddProject(ctx, string(r.project), "proj", nil, "d"))
	r.must(r.store.AddProject(ctx, string(r.other), "other", nil, "d"))
	r.must(r.store.AddProject(ctx, string(r.models), "models", nil, "d"))
	r.sql("UPDATE projects SET type = 'model-store' WHERE id = $1", r.models)
	r.super = r.person("super", "d", authz.RoleSuperadmin)
	r.admin = r.person("admin", "d", authz.RoleAdmin)
	r.monitor = r.person("monitor", "d", authz.RoleMonitor)
	r.foreign = r.person("foreign", "e", authz.RoleAdmin)
	r.alice = r.person("alice", "d", authz.RoleUser, r.project, r.other, r.models)
	r.bob = r.person("bob", "d", authz.RoleUser, r.project, r.models)
	r.carol = r.person("carol", "d", authz.RoleUser)
	r.loop = r.NewLoop(r.store.Tx)
	return r
}

func all() string {
	raw, _ := json.Marshal(folder.AllPermissions())
	return string(raw)
}

func (r *rig) clock() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *rig) advance(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

func (r *rig) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) sql(text string, args ...any) {
	r.t.Helper()
	if _, err := r.store.Pool().Exec(r.t.Context(), text, args...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) person(name, domain string, role authz.Role, projects ...cluster.ProjectID) authz.Actor {
	r.t.Helper()
	ctx := r.t.Context()
	a := authz.Actor{UserID: cluster.UserID(uuid.NewString()), Email: name + "@x", Username: name, Role: role, Domain: domain,
		AccessKey: cluster.AccessKey("K" + name), Projects: projects}
	r.must(r.store.AddUser(ctx, dbgen.AddUserParams{ID: string(a.UserID), Username: name, Email: a.Email, DomainName: domain,
		Role: string(role)}))
	r.must(r.store.AddKeypair(ctx, dbgen.AddKeypairParams{AccessKey: string(a.AccessKey), SecretSealed: []byte{1}, UserID: string(a.UserID),
		ResourcePolicy: "default"}))
	for _, p := range projects {
		r.must(r.store.AddMember(ctx, string(p), string(a.UserID)))
	}
	return a
}

func (r *rig) create(a authz.Actor, name string, change ...func(*folder.CreateInput)) folder.Folder {
	r.t.Helper()
	in := folder.CreateInput{Name: name, Host: host}
	for _, c := range change {
		c(&in)
	}
	f, err := r.Create(r.t.Context(), a, in)
	r.must(err)
	return f
}

func of(p cluster.ProjectID) func(*folder.CreateInput) {
	return func(in *folder.CreateInput) { in.Project = string(p) }
}

func perm(p cluster.MountPermission) func(*folder.CreateInput) {
	return func(in *folder.CreateInput) { in.Permission = p }
}

// pass runs the leader's loop once.
func (r *rig) pass() bool {
	r.t.Helper()
	live, err := r.loop.Pass(r.t.Context())
	r.must(err)
	return live
}

func (r *rig) status(id cluster.FolderID) cluster.FolderStatus {
	r.t.Helper()
	var s string
	if err := r.store.Pool().QueryRow(r.t.Context(), "SELECT coalesce((SELECT status FROM folders WHERE id = $1), 'none')", id).
		Scan(&s); err != nil {
		r.t.Fatal(err)
	}
	return cluster.FolderStatus(s)
}

func (r *rig) task(id string) (status, message string) {
	r.t.Helper()
	if err := r.store.Pool().QueryRow(r.t.Context(), "SELECT status, message FROM background_tasks WHERE id = $1", id).
		Scan(&status, &message); err != nil {
		r.t.Fatal(err)
	}
	return status, message
}

func wantKind(t *testing.T, err error, kind fault.Kind, what string) {
	t.Helper()
	if !fault.Is(err, kind) {
		t.Errorf("%s: got %v (%v), want %v", what, err, fault.KindOf(err), kind)
	}
}

func (r *rig) addMount(db dbgen.DBTX, session string, f folder.Folder) {
	r.t.Helper()
	_, err := db.Exec(r.t.Context(), `INSERT INTO session_mounts (session_id, n, folder_id, name, host, quota_scope, usage_mode,
		permission, subpath, target, volume_path, owner_uid, owner_gid)
		VALUES ($1, 0, $2, $3, $4, $5, 'general', 'rw', '.', '/home/work/x', '/vol', 1, 1)`, session, f.ID, f.Name, f.Host, f.Scope.String())
	if err != nil {
		r.t.Error(err)
	}
}

func asFault(err error, e **fault.Error) bool { return errors.As(err, e) }
