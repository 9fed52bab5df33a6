package folder_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/clientaddr"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/wire/storage"
)

func TestCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	if f.Status != cluster.FolderReady || f.Ownership != folder.OfUser || f.UserEmail != "alice@x" ||
		f.Scope.String() != "user:"+string(r.alice.UserID) ||
		f.Permission != cluster.ReadWrite || f.Usage != folder.UsageGeneral || !f.IsOwner || f.Effective != cluster.ReadWriteDelete {
		t.Errorf("folder = %+v", f)
	}
	if ref := f.Scope.String() + "/" + string(f.ID); !r.proxy.folders[ref] {
		t.Errorf("the proxy has no %s: %v", ref, r.proxy.folders)
	}
	_, err := r.Create(ctx, r.alice, folder.CreateInput{Name: "data", Host: host})
	if fault.ReasonOf(err) != "vfolder-already-exists" {
		t.Errorf("a second folder of the name: %v", err)
	}
	r.create(r.bob, "data") // names are of an owner
	g := r.create(r.admin, "shared", of(r.project))
	if g.Ownership != folder.OfProject || g.ProjectName != "proj" || g.Scope.String() != "project:"+string(r.project) {
		t.Errorf("project folder = %+v", g)
	}
	m := r.create(r.alice, "model", of(r.models))
	if m.Permission != cluster.ReadOnly || m.Effective != cluster.ReadWriteDelete || !m.IsOwner {
		t.Errorf("model folder = %+v", m)
	}
	seen, err := r.Find(ctx, r.bob, "model")
	r.must(err)
	if seen.Effective != cluster.ReadOnly || seen.IsOwner {
		t.Errorf("bob sees %+v", seen)
	}
	r.must(r.SetDefaultHost(ctx, r.super, host))
	if d := r.create(r.alice, "by-default", func(in *folder.CreateInput) { in.Host = "" }); d.Host != host {
		t.Errorf("default host is %s", d.Host)
	}
	for _, c := range []struct {
		name string
		a    authz.Actor
		in   folder.CreateInput
		kind fault.Kind
	}{
		{"nobody", authz.Actor{}, folder.CreateInput{Name: "n", Host: host}, fault.Denied},
		{"member in a general project", r.alice, folder.CreateInput{Name: "n", Host: host, Project: "proj"}, fault.Denied},
		{"stranger's project", r.carol, folder.CreateInput{Name: "n", Host: host, Project: "proj"}, fault.NotFound},
		{"other domain's administrator", r.foreign, folder.CreateInput{Name: "n", Host: host, Project: string(r.project)}, fault.NotFound},
		{"host without permission", r.alice, folder.CreateInput{Name: "n", Host: "p:w"}, fault.Denied},
		{"no host", r.alice, folder.CreateInput{Name: "n", Host: "pv"}, fault.Invalid},
		{"slash", r.alice, folder.CreateInput{Name: "a/b", Host: host}, fault.Invalid},
		{"reserved", r.alice, folder.CreateInput{Name: ".ssh", Host: host}, fault.Invalid},
		{"rc", r.alice, folder.CreateInput{Name: ".bashrc", Host: host}, fault.Invalid},
		{"dot data folder", r.alice, folder.CreateInput{Name: ".x", Host: host, Usage: folder.UsageData}, fault.Invalid},
		{"dot project folder", r.admin, folder.CreateInput{Name: ".x", Host: host, Project: "proj"}, fault.Invalid},
		{"an id", r.alice, folder.CreateInput{Name: strings.Repeat("a", 32), Host: host}, fault.Invalid},
		{"long", r.alice, folder.CreateInput{Name: strings.Repeat("ä", 65), Host: host}, fault.Invalid},
		{"permission", r.alice, folder.CreateInput{Name: "n", Host: host, Permission: "x"}, fault.Invalid},
		{"usage", r.alice, folder.CreateInput{Name: "n", Host: host, Usage: "x"}, fault.Invalid},
		{"unmanaged by a user", r.alice, folder.CreateInput{Name: "n", Host: host, UnmanagedPath: "/mnt/x"}, fault.Denied},
		{"unmanaged, not clean", r.super, folder.CreateInput{Name: "n", Host: host, UnmanagedPath: "/mnt/../x"}, fault.Invalid},
	} {
		_, err := r.Create(ctx, c.a, c.in)
		wantKind(t, err, c.kind, c.name)
	}
	un := r.create(r.super, "legacy", func(in *folder.CreateInput) { in.UnmanagedPath = "/mnt/x" })
	if un.Status != cluster.FolderReady || un.UnmanagedPath != "/mnt/x" {
		t.Errorf("unmanaged = %+v", un)
	}
	_, err = r.ListFiles(ctx, r.super, string(un.ID), ".", "", 0)
	wantKind(t, err, fault.Invalid, "files of an unmanaged path")
}

func TestProjectsThatEndedGetNoFolders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.create(r.admin, "data", of(r.project))
	r.sql("UPDATE projects SET is_active = false WHERE id = $1", r.project)
	_, err := r.Create(t.Context(), r.admin, folder.CreateInput{Name: "more", Host: host, Project: "proj"})
	wantKind(t, err, fault.Invalid, "create in a project that is not active")
	_, _, err = r.Clone(t.Context(), r.admin, string(f.ID), folder.CloneInput{Name: "copy", Project: "proj"})
	wantKind(t, err, fault.Invalid, "clone into it")
	_, err = r.RequestDownload(t.Context(), r.alice, string(f.ID), "x", false) // what is there can be fetched
	r.must(err)
}

func TestHostRefusalNamesHostAndPermission(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql(`UPDATE domains SET allowed_vfolder_hosts = '{"p:v": ["create-vfolder"]}' WHERE name = 'd'`)
	f := r.create(r.alice, "data")
	_, err := r.RequestUpload(t.Context(), r.alice, "data", "x", 1, "")
	wantKind(t, err, fault.Denied, "upload")
	for _, word := range []string{"upload-file", "data", host, "alice@x"} {
		if err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not name %s", err, word)
		}
	}
	// A keypair's policy and an older plain list add to it.
	r.sql(`UPDATE keypair_resource_policies SET allowed_vfolder_hosts = '["p:v"]'`)
	ticket, err := r.RequestUpload(t.Context(), r.alice, string(f.ID), "./x", 1, "")
	r.must(err)
	if ticket.URL != "http://clients/upload" || ticket.Token != "t" {
		t.Errorf("ticket = %+v", ticket)
	}
}

func TestConcurrentCreatesStayBelowTheLimit(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.sql("UPDATE user_resource_policies SET max_vfolder_count = 5")
	var all sync.WaitGroup
	var mu sync.Mutex
	made, refused := 0, 0
	for i := range 16 {
		all.Go(func() {
			_, err := r.Create(t.Context(), r.alice, folder.CreateInput{Name: "f" + string(rune('a'+i)), Host: host})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				made++
			case fault.Is(err, fault.Exhausted):
				refused++
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made != 5 || refused != 11 {
		t.Errorf("%d were made, %d refused", made, refused)
	}
	// What is in the trash bin still counts; what is removed does not.
	_, err := r.Trash(t.Context(), r.alice, r.any("alice"))
	r.must(err)
	_, err = r.Create(t.Context(), r.alice, folder.CreateInput{Name: "more", Host: host})
	wantKind(t, err, fault.Exhausted, "with one in the trash bin")
}

// any is the id of some folder of a user.
func (r *rig) any(user string) string {
	r.t.Helper()
	var id string
	if err := r.store.Pool().QueryRow(r.t.Context(),
		"SELECT f.id::text FROM folders f JOIN users u ON u.id = f.user_id WHERE u.username = $1 LIMIT 1", user).Scan(&id); err != nil {
		r.t.Fatal(err)
	}
	return id
}

func TestConcurrentCreatesOfOneName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 8 {
		all.Go(func() {
			_, err := r.Create(t.Context(), r.alice, folder.CreateInput{Name: "one", Host: host})
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				made++
			} else if fault.ReasonOf(err) != "vfolder-already-exists" {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if made != 1 {
		t.Errorf("%d folders of one name", made)
	}
}

func TestAScopeGetsItsLimitAtFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.sql("UPDATE user_resource_policies SET max_quota_scope_size = 1000")
	f := r.create(r.alice, "a")
	scope := f.Scope.String()
	if r.proxy.limits[scope] != 1000 {
		t.Errorf("limit = %d", r.proxy.limits[scope])
	}
	r.create(r.alice, "b")
	if n := r.proxy.calls[storage.PathScope]; n != 1 {
		t.Errorf("the scope was made %d times", n)
	}
	// A policy that changes reaches the proxy by the loop, a limit of its own stays.
	r.sql("UPDATE user_resource_policies SET max_quota_scope_size = 2000")
	r.sql("UPDATE folder_scopes SET tried_at = NULL")
	r.pass()
	if r.proxy.limits[scope] != 2000 {
		t.Errorf("limit after the policy changed = %d", r.proxy.limits[scope])
	}
	q, err := r.SetQuota(ctx, r.super, "", string(f.ID), 500)
	r.must(err)
	if !q.Own || q.LimitBytes == nil || *q.LimitBytes != 500 || *q.UsedBytes != 7 || q.Folders != 2 {
		t.Errorf("quota = %+v", q)
	}
	r.sql("UPDATE user_resource_policies SET max_quota_scope_size = 3000")
	r.sql("UPDATE folder_scopes SET tried_at = NULL")
	r.pass()
	if r.proxy.limits[scope] != 500 {
		t.Errorf("own limit became %d", r.proxy.limits[scope])
	}
	_, err = r.UnsetQuota(ctx, r.super, host, string(f.ID))
	r.must(err)
	if r.proxy.limits[scope] != 3000 {
		t.Errorf("limit after unset = %d", r.proxy.limits[scope])
	}
	for _, a := range []authz.Actor{r.alice, r.admin, r.monitor} {
		_, err = r.SetQuotaScope(ctx, a, host, scope, 1)
		wantKind(t, err, fault.Denied, "set by "+a.Email)
	}
	_, err = r.QuotaScope(ctx, r.alice, host, scope)
	r.must(err)
	_, err = r.QuotaScope(ctx, r.admin, host, scope)
	r.must(err)
	_, err = r.QuotaScope(ctx, r.bob, host, scope)
	wantKind(t, err, fault.NotFound, "a stranger's scope")
	_, err = r.QuotaScope(ctx, r.foreign, host, scope)
	wantKind(t, err, fault.NotFound, "another domain's scope")
}

func TestCreateOnAProxyThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.proxy.before[storage.PathFolderCreate] = func() error { return fault.Unavailablef("gone") }
	_, err := r.Create(ctx, r.alice, folder.CreateInput{Name: "data", Host: host})
	wantKind(t, err, fault.Unavailable, "create")
	// The name is free at once, and nothing remains of it.
	r.proxy.set(func() { delete(r.proxy.before, storage.PathFolderCreate) })
	f := r.create(r.alice, "data")
	for r.pass() {
		r.advance(time.Minute)
	}
	var n int
	if err := r.store.Pool().QueryRow(ctx, "SELECT count(*) FROM folders").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
	if len(r.proxy.folders) != 1 || !r.proxy.folders[f.Scope.String()+"/"+string(f.ID)] {
		t.Errorf("the proxy has %v", r.proxy.folders)
	}
	r.proxy.set(func() { r.proxy.away = true })
	_, err = r.Create(ctx, r.alice, folder.CreateInput{Name: "more", Host: host})
	wantKind(t, err, fault.Unavailable, "without a proxy")
}

// A manager that dies before or after the proxy made the folder leaves a row that the leader finishes.
func TestCreationIsFinishedAfterACrash(t *testing.T) {
	t.Parallel()
	for _, reached := range []bool{false, true} {
		r := newRig(t)
		f := r.create(r.alice, "data")
		r.sql("UPDATE folders SET status = 'performing', status_changed = now() WHERE id = $1", f.ID)
		if !reached {
			r.proxy.set(func() { clear(r.proxy.folders) })
		}
		r.pass()
		if st := r.status(f.ID); st != cluster.FolderPerforming {
			t.Fatalf("the loop took it from its request: %s", st)
		}
		r.advance(5 * time.Second) // soon after the manager was killed
		r.proxy.set(func() { r.proxy.away = true })
		r.pass() // tries
		r.proxy.set(func() { r.proxy.away = false })
		r.advance(2 * time.Minute)
		r.pass()
		if st := r.status(f.ID); st != cluster.FolderReady || len(r.proxy.folders) != 1 {
			t.Errorf("reached %v: %s, %v", reached, st, r.proxy.folders)
		}
		r.sql("UPDATE folders SET status = 'performing', tried = 0, tried_at = NULL WHERE id = $1", f.ID)
		r.proxy.before[storage.PathFolderCreate] = func() error { return fault.Exhaustedf("full") }
		r.pass() // cannot be: undone
		r.pass()
		r.pass()
		if st := r.status(f.ID); st != "none" || len(r.proxy.folders) != 0 {
			t.Errorf("undone: %s, %v", st, r.proxy.folders)
		}
	}
}

func TestAClientThatLeavesDoesNotLeaveHalfAFolder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx, cancel := context.WithCancel(t.Context())
	r.proxy.before[storage.PathFolderCreate] = func() error { cancel(); return nil }
	_, _ = r.Create(ctx, r.alice, folder.CreateInput{Name: "data", Host: host})
	f, err := r.Find(t.Context(), r.alice, "data")
	r.must(err)
	if f.Status != cluster.FolderReady {
		t.Errorf("it is %s", f.Status)
	}
}

// The tokens of a user who may come from some networks only are bound to these.
func TestTokensCarryTheNetworksOfTheirUser(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.create(r.alice, "data")
	id := string(f.ID)
	ask := func(a authz.Actor) {
		_, err := r.RequestUpload(t.Context(), a, id, "x", 1, "")
		r.must(err)
		_, err = r.RequestDownload(t.Context(), a, id, "x", false)
		r.must(err)
		_, err = r.RequestArchive(t.Context(), a, id, []string{"x"}, "")
		r.must(err)
	}
	sent := func() (out [][]string) {
		r.proxy.set(func() {
			out = [][]string{
				r.proxy.last[storage.PathUpload].(storage.UploadRequest).Clients, r.proxy.last[storage.PathDownload].(storage.DownloadRequest).Clients,
				r.proxy.last[storage.PathArchive].(storage.ArchiveRequest).Clients,
			}
		})
		return out
	}
	ask(r.alice)
	require.Equal(t, [][]string{nil, nil, nil}, sent())
	bound := r.alice
	bound.AllowedClientIP = clientaddr.ParseNetworks([]string{"10.1.*.*", "192.0.2.7"})
	ask(bound)
	want := []string{"10.1.0.0/16", "192.0.2.7/32"}
	require.Equal(t, [][]string{want, want, want}, sent())
}
