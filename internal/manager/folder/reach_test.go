package folder_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/store/list"
	"berth.dev/berth/internal/wire/storage"
)

var allRights = []string{"read_attribute", "update_attribute", "delete_vfolder", "read_content", "write_content", "delete_content",
	"mount_ro", "mount_rw", "mount_wd", "clone", "assign_permission_to_others"}

// What a search finds in SQL is what the decision in Go allows, for everybody, every folder and every right.
func TestSearchAgreesWithAccess(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	folders := []folder.Folder{
		r.create(r.alice, "alices"), r.create(r.alice, "alices-ro", perm(cluster.ReadOnly)), r.create(r.super, "supers"),
		r.create(r.admin, "proj-rw", of(r.project)), r.create(r.admin, "proj-ro", of(r.project), perm(cluster.ReadOnly)),
		r.create(r.admin, "other", of(r.other)), r.create(r.alice, "model", of(r.models)),
	}
	r.share(folders[0], r.alice, r.bob, cluster.ReadWrite)
	r.share(folders[0], r.alice, r.admin, cluster.ReadOnly)
	r.share(folders[2], r.super, r.carol, cluster.ReadWriteDelete)
	_, err := r.Share(ctx, r.admin, "proj-rw", cluster.ReadOnly, []string{"bob@x"})
	r.must(err)
	ids := make([]cluster.FolderID, len(folders))
	for i, f := range folders {
		ids[i] = f.ID
	}
	for _, a := range []authz.Actor{r.super, r.admin, r.monitor, r.foreign, r.alice, r.bob, r.carol} {
		seen, err := r.Load(ctx, a, ids)
		r.must(err)
		for _, right := range allRights {
			page, err := r.Search(ctx, a, folder.SearchQuery{Right: right, Query: list.Query{Limit: 100}})
			r.must(err)
			for _, id := range ids {
				want := slices.Contains(seen[id].Rights, right)
				got := slices.ContainsFunc(page.Items, func(f folder.Folder) bool { return f.ID == id })
				if want != got {
					t.Errorf("%s, %s of %s: found %v, allowed %v", a.Email, right, name(folders, id), got, want)
				}
			}
			if page.Total != len(page.Items) {
				t.Errorf("%s, %s: total %d of %d", a.Email, right, page.Total, len(page.Items))
			}
		}
	}
	names := func(a authz.Actor, q folder.ListQuery) string {
		list, err := r.List(ctx, a, q)
		r.must(err)
		var out []string
		for _, f := range list {
			out = append(out, f.Name)
		}
		return strings.Join(out, " ")
	}
	for _, c := range []struct {
		what, got, want string
	}{
		{"alice", names(r.alice, folder.ListQuery{}), "alices alices-ro model other proj-ro proj-rw"},
		{"bob", names(r.bob, folder.ListQuery{}), "alices model proj-ro proj-rw"},
		{"carol", names(r.carol, folder.ListQuery{}), "supers"},
		{"carol asks for all", names(r.carol, folder.ListQuery{All: true}), "supers"},
		{"administrator", names(r.admin, folder.ListQuery{All: true}), "alices alices-ro model other proj-ro proj-rw"},
		{"other administrator", names(r.foreign, folder.ListQuery{All: true}), ""},
		{"superadmin", names(r.super, folder.ListQuery{All: true}), "alices alices-ro model other proj-ro proj-rw supers"},
		{"superadmin, own", names(r.super, folder.ListQuery{}), "supers"},
		{"of a project", names(r.alice, folder.ListQuery{Project: "other"}), "alices alices-ro other"},
		{"as bob", names(r.admin, folder.ListQuery{OwnerEmail: "bob@x"}), "alices model proj-ro proj-rw"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %q, want %q", c.what, c.got, c.want)
		}
	}
	for who, want := range map[*authz.Actor]string{&r.admin: "", &r.monitor: "supers", &r.super: "supers", &r.carol: "supers"} {
		if got := names(*who, folder.ListQuery{OwnerEmail: "carol@x"}); got != want {
			t.Errorf("%s looks at what carol has: %q, want %q", who.Email, got, want)
		}
	}
	_, err = r.List(ctx, r.carol, folder.ListQuery{OwnerEmail: "bob@x"})
	wantKind(t, err, fault.NotFound, "list as another user")
	_, err = r.List(ctx, r.admin, folder.ListQuery{OwnerEmail: "super@x"})
	wantKind(t, err, fault.NotFound, "list as a superadmin")
	_, err = r.List(ctx, r.carol, folder.ListQuery{Project: "proj"})
	wantKind(t, err, fault.NotFound, "list of a stranger's project")
	page, err := r.Search(ctx, r.super, folder.SearchQuery{
		Query: list.Query{Filter: `name ilike "alices%" & ownership_type == "user"`, Order: "-name", Limit: 1, Offset: 1}})
	r.must(err)
	if page.Total != 2 || len(page.Items) != 1 || page.Items[0].Name != "alices" {
		t.Errorf("page = %+v", page)
	}
	page, err = r.Search(ctx, r.super, folder.SearchQuery{Scope: "project:" + string(r.other), Of: folder.ProjectFolders})
	r.must(err)
	if page.Total != 1 || page.Items[0].Name != "other" {
		t.Errorf("scope = %+v", page)
	}
	_, err = r.Search(ctx, r.super, folder.SearchQuery{Scope: "x"})
	wantKind(t, err, fault.Invalid, "scope")
	_, err = r.Search(ctx, r.super, folder.SearchQuery{Right: "own"})
	wantKind(t, err, fault.Invalid, "right")
}

func name(folders []folder.Folder, id cluster.FolderID) string {
	return folders[slices.IndexFunc(folders, func(f folder.Folder) bool { return f.ID == id })].Name
}

// Strangers learn nothing from any use case, and those who may only read change nothing.
func TestStrangersAndReaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.share(f, r.alice, r.bob, cluster.ReadOnly)
	id, put := string(f.ID), storage.ObjectStore{Endpoint: "https://s3", Bucket: "b"}
	cases := []struct {
		name string
		do   func(a authz.Actor) error
		// reads: readers may; writes: only those who may write; else only owners.
		reads, writes bool
		super         bool // denied even to the owner
	}{
		{name: "Find", reads: true, do: func(a authz.Actor) error { _, err := r.Find(ctx, a, id); return err }},
		{name: "Get", reads: true, do: func(a authz.Actor) error { _, err := r.Get(ctx, a, id); return err }},
		{name: "ListFiles", reads: true, do: func(a authz.Actor) error { _, err := r.ListFiles(ctx, a, id, ".", "", 0); return err }},
		{name: "RequestDownload", reads: true, do: func(a authz.Actor) error { _, err := r.RequestDownload(ctx, a, id, "x", false); return err }},
		{name: "RequestArchive", reads: true, do: func(a authz.Actor) error {
			_,
				err := r.RequestArchive(ctx, a, id, []string{"x"}, "")
			return err
		}},
		{name: "Export", reads: true, do: func(a authz.Actor) error {
			_, err := r.Export(ctx, a, id, folder.TransferInput{Store: put})
			return err
		}},
		{name: "Import", writes: true, do: func(a authz.Actor) error {
			_, err := r.Import(ctx, a, id, folder.TransferInput{Store: put})
			return err
		}},
		{name: "RequestUpload", writes: true, do: func(a authz.Actor) error { _, err := r.RequestUpload(ctx, a, id, "x", 0, ""); return err }},
		{name: "RenameFile", writes: true, do: func(a authz.Actor) error { return r.RenameFile(ctx, a, id, "x", "y") }},
		{name: "MoveFile", writes: true, do: func(a authz.Actor) error { return r.MoveFile(ctx, a, id, "x", "y") }},
		{name: "DeleteFilesAsync", writes: true, do: func(a authz.Actor) error {
			_, err := r.DeleteFilesAsync(ctx, a, id, []string{"x"}, true)
			return err
		}},
		{name: "Rename", do: func(a authz.Actor) error { _, err := r.Rename(ctx, a, id, "data"); return err }},
		{name: "UpdateOptions", do: func(a authz.Actor) error {
			_, err := r.UpdateOptions(ctx, a, id, folder.Options{Cloneable: new(false)})
			return err
		}},
		{name: "Invite", do: func(a authz.Actor) error {
			_, err := r.Invite(ctx, a, id, cluster.ReadOnly, []string{"bob@x"})
			return err
		}},
		{name: "Shared", do: func(a authz.Actor) error { _, err := r.Shared(ctx, a, id); return err }},
		{name: "UpdateSharing", do: func(a authz.Actor) error {
			return r.UpdateSharing(ctx, a, id, []folder.SharingChange{{User: r.bob.UserID, Permission: new(cluster.ReadOnly)}})
		}},
		{name: "GetQuota", do: func(a authz.Actor) error { _, err := r.GetQuota(ctx, a, "", id); return err }},
		{name: "Usage", super: true, do: func(a authz.Actor) error { _, err := r.Usage(ctx, a, "", id); return err }},
		{name: "ChangeOwnership", super: true, do: func(a authz.Actor) error { return r.ChangeOwnership(ctx, a, id, "alice@x") }},
		{name: "Trash", do: func(a authz.Actor) error { _, err := r.Trash(ctx, a, id); return err }},
		{name: "Restore", do: func(a authz.Actor) error { _, err := r.Restore(ctx, a, id); return err }},
	}
	for _, c := range cases {
		for _, a := range []authz.Actor{{}, r.carol, r.foreign} {
			err := c.do(a)
			if a.UserID == "" || c.super {
				wantKind(t, err, fault.Denied, c.name+" by nobody or without the role")
			} else {
				wantKind(t, err, fault.NotFound, c.name+" by stranger "+a.Email)
			}
		}
		if err := c.do(r.bob); c.reads && err != nil {
			t.Errorf("%s by a reader: %v", c.name, err)
		} else if !c.reads {
			wantKind(t, err, fault.Denied, c.name+" by a reader")
		}
		if err := c.do(r.monitor); c.name != "Find" && c.name != "Get" && c.name != "GetQuota" {
			wantKind(t, err, fault.Denied, c.name+" by a monitor")
		}
		if err := c.do(r.alice); c.super {
			wantKind(t, err, fault.Denied, c.name+" by the owner")
		} else if err != nil {
			t.Errorf("%s by the owner: %v", c.name, err)
		}
		for _, a := range []authz.Actor{r.admin, r.super} {
			if c.super && a.Role != authz.RoleSuperadmin {
				continue
			}
			if c.name == "Trash" || c.name == "Restore" { // changes the state that the owner's call left
				r.sql("UPDATE folders SET status = $1 WHERE id = $2", map[string]string{"Trash": "ready", "Restore": "delete-pending"}[c.name], id)
			}
			if err := c.do(a); err != nil {
				t.Errorf("%s by %s: %v", c.name, a.Email, err)
			}
		}
	}
}

// A list is no longer than it is wanted, and asks no more of the proxy.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.alice, "data")
	for i := range 2500 {
		r.proxy.entries = append(r.proxy.entries, fmt.Sprintf("%05d", i))
	}
	for _, c := range []struct {
		after             string
		limit, got, asked int
		next              string
	}{{"", 0, 2500, 3, ""}, {"", 1, 1, 1, "00000"}, {"00000", 1200, 1200, 2, "01200"}, {"01200", 1299, 1299, 2, ""},
		{"02400", 10_000, 99, 1, ""}} {
		before := r.proxy.calls[storage.PathList]
		l, err := r.ListFiles(ctx, r.alice, "data", ".", c.after, c.limit)
		r.must(err)
		if asked := r.proxy.calls[storage.PathList] - before; len(l.Items) != c.got || l.Next != c.next || l.Cut != (c.next != "") ||
			asked != c.asked {
			t.Errorf("%d after %q: %d, cut %v, next %q, asked %d times", c.limit, c.after, len(l.Items), l.Cut, l.Next, asked)
		}
	}
	for _, limit := range []int{-1, 10_001} {
		_, err := r.ListFiles(ctx, r.alice, "data", ".", "", limit)
		wantKind(t, err, fault.Invalid, fmt.Sprint(limit))
	}
}

func TestAmbiguousNames(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.alice, "same")
	r.create(r.admin, "same", of(r.project))
	_, err := r.Find(ctx, r.alice, "same")
	if !fault.Is(err, fault.NotFound) || fault.ReasonOf(err) != "too-many-vfolders" {
		t.Errorf("ambiguous: %v", err)
	}
	var e *fault.Error
	if !asFault(err, &e) || len(e.Data.(map[string]any)["matches"].([]map[string]any)) != 2 {
		t.Errorf("matches = %+v", e)
	}
	f, err := r.Find(ctx, r.bob, "same")
	if err != nil || f.Ownership != folder.OfProject {
		t.Errorf("bob finds %+v, %v", f, err)
	}
	_, err = r.Find(ctx, r.carol, "same")
	wantKind(t, err, fault.NotFound, "carol")
}

// What lies in the trash bin, however much, does not hide the living folder of the name.
func TestTheTrashBinHidesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	for range 22 {
		r.create(r.alice, "data")
		_, err := r.Trash(ctx, r.alice, "data")
		r.must(err)
	}
	f := r.create(r.alice, "data")
	for _, a := range []authz.Actor{r.alice, r.admin, r.super} {
		if found, err := r.Find(ctx, a, "data"); err != nil || found.ID != f.ID {
			t.Errorf("%s finds %v, %v", a.Email, found.ID, err)
		}
	}
	mounts, err := r.ResolveMounts(ctx, r.store.Queries, r.alice, folder.MountRequest{Mounts: []string{"data"}, Project: r.project})
	if err != nil || len(mounts) != 1 || mounts[0].Folder != f.ID {
		t.Errorf("mounts = %v, %v", mounts, err)
	}
	_, err = r.Restore(ctx, r.alice, "data")
	if fault.ReasonOf(err) != "too-many-vfolders" {
		t.Errorf("restore of one of many: %v", err)
	}
}

// Whoever may share a folder may withdraw what was offered, and only they may offer more.
func TestWhoseInvitationsAre(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	invite := func(by authz.Actor) string {
		_, err := r.Invite(ctx, by, string(f.ID), cluster.ReadOnly, []string{"bob@x"})
		r.must(err)
		list, err := r.ListInvitations(ctx, r.bob)
		r.must(err)
		return list[0].ID
	}
	id := invite(r.admin)
	wantKind(t, r.DeleteInvitation(ctx, r.carol, id), fault.NotFound, "withdrawn by a stranger")
	r.must(r.UpdateInvitation(ctx, r.alice, id, cluster.ReadWrite))
	demoted := r.admin
	demoted.Role = authz.RoleUser
	wantKind(t, r.UpdateInvitation(ctx, demoted, id, cluster.ReadWriteDelete), fault.Denied,
		"more is offered by one who administrates no more")
	r.must(r.DeleteInvitation(ctx, r.alice, id))
	id = invite(r.admin)
	r.must(r.DeleteInvitation(ctx, demoted, id))
	wantKind(t, r.AcceptInvitation(ctx, r.bob, id), fault.Conflict, "accept what was withdrawn")
}

// Permissions are taken back from users whoever they are by now.
func TestUnshare(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.share(f, r.alice, r.bob, cluster.ReadWrite)
	r.share(f, r.alice, r.carol, cluster.ReadWrite)
	r.sql("UPDATE users SET status = 'inactive' WHERE id = $1", r.bob.UserID)
	_, err := r.Unshare(ctx, r.bob, "data", []string{"carol@x"})
	wantKind(t, err, fault.Denied, "by another who has it")
	who, err := r.Unshare(ctx, r.alice, "data", []string{"bob@x", "carol@x"})
	if err != nil || fmt.Sprint(who) != "[bob@x carol@x]" {
		t.Errorf("unshared %v, %v", who, err)
	}
	_, err = r.Find(ctx, r.carol, string(f.ID))
	wantKind(t, err, fault.NotFound, "afterwards")
	_, err = r.Unshare(ctx, r.alice, "data", []string{"nobody@x"})
	wantKind(t, err, fault.NotFound, "nobody")
	r.create(r.admin, "team", of(r.project))
	_, err = r.Share(ctx, r.admin, "team", cluster.ReadOnly, []string{"alice@x"})
	r.must(err)
	r.sql("UPDATE users SET status = 'deleted' WHERE id = $1", r.alice.UserID)
	if who, err = r.Unshare(ctx, r.admin, "team", []string{"alice@x"}); err != nil || len(who) != 1 {
		t.Errorf("of a project %v, %v", who, err)
	}
	_, err = r.Share(ctx, r.admin, "team", cluster.ReadOnly, []string{"alice@x"})
	wantKind(t, err, fault.NotFound, "share with one who was deleted")
}

func TestInvitations(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.create(r.bob, "data")
	who, err := r.Invite(ctx, r.alice, "data", cluster.ReadWrite, []string{"bob@x", "carol@x", "alice@x"})
	r.must(err)
	if fmt.Sprint(who) != "[bob@x carol@x]" {
		t.Errorf("invited %v", who)
	}
	who, err = r.Invite(ctx, r.alice, "data", cluster.ReadWrite, []string{"bob@x"})
	if err != nil || len(who) != 0 {
		t.Errorf("invited again: %v, %v", who, err)
	}
	_, err = r.Invite(ctx, r.alice, "data", cluster.ReadWrite, []string{"nobody@x"})
	wantKind(t, err, fault.NotFound, "invite nobody")
	sent, err := r.ListSentInvitations(ctx, r.alice)
	r.must(err)
	if len(sent) != 2 {
		t.Errorf("sent = %+v", sent)
	}
	got, err := r.ListInvitations(ctx, r.bob)
	r.must(err)
	if len(got) != 1 || got[0].Inviter != "alice@x" || got[0].FolderName != "data" || got[0].State != "pending" {
		t.Fatalf("got = %+v", got)
	}
	id := got[0].ID
	err = r.AcceptInvitation(ctx, r.bob, id)
	wantKind(t, err, fault.Conflict, "accept with a name that is taken")
	if err != nil && !strings.Contains(err.Error(), "data") {
		t.Errorf("words: %v", err)
	}
	for _, a := range []authz.Actor{r.carol, r.admin, r.alice} {
		wantKind(t, r.AcceptInvitation(ctx, a, id), fault.NotFound, "accept by "+a.Email)
	}
	wantKind(t, r.DeleteInvitation(ctx, r.carol, id), fault.NotFound, "delete by another")
	wantKind(t, r.UpdateInvitation(ctx, r.bob, id, cluster.ReadWriteDelete), fault.NotFound, "update by the invitee")
	r.must(r.UpdateInvitation(ctx, r.alice, id, cluster.ReadOnly))
	_, err = r.Rename(ctx, r.bob, "data", "mine")
	r.must(err)
	r.must(r.AcceptInvitation(ctx, r.bob, id))
	wantKind(t, r.AcceptInvitation(ctx, r.bob, id), fault.Conflict, "accept twice")
	seen, err := r.Find(ctx, r.bob, "data")
	r.must(err)
	if !seen.Granted || seen.Effective != cluster.ReadOnly || seen.ID != f.ID {
		t.Errorf("bob sees %+v", seen)
	}
	_, err = r.Create(ctx, r.bob, folder.CreateInput{Name: "data", Host: host})
	wantKind(t, err, fault.Conflict, "create with the name of a shared folder")

	shared, err := r.Shared(ctx, r.alice, "")
	r.must(err)
	if len(shared) != 1 || shared[0].UserEmail != "bob@x" || shared[0].Owner != "alice@x" {
		t.Errorf("shared = %+v", shared)
	}
	r.must(r.UpdateSharing(ctx, r.alice, "data", []folder.SharingChange{{User: r.bob.UserID, Permission: new(cluster.ReadWriteDelete)}}))
	err = r.UpdateSharing(ctx, r.alice, "data", []folder.SharingChange{{User: r.bob.UserID, Permission: new(cluster.ReadOnly)},
		{User: r.carol.UserID, Permission: new(cluster.ReadOnly)}})
	wantKind(t, err, fault.NotFound, "change what carol does not have")
	if seen, err = r.Find(ctx, r.bob, "data"); err != nil || seen.Effective != cluster.ReadWriteDelete {
		t.Errorf("all or none: %s, %v", seen.Effective, err)
	}
	wantKind(t, r.Leave(ctx, r.alice, "data", nil), fault.Invalid, "the owner leaves")
	r.must(r.Leave(ctx, r.bob, "data", nil))
	_, err = r.Find(ctx, r.bob, string(f.ID))
	wantKind(t, err, fault.NotFound, "after leaving")

	carols, err := r.ListInvitations(ctx, r.carol)
	r.must(err)
	_, err = r.Trash(ctx, r.alice, "data")
	r.must(err)
	wantKind(t, r.AcceptInvitation(ctx, r.carol, carols[0].ID), fault.Conflict, "accept of a folder in the trash bin")
	hidden := r.create(r.alice, ".local")
	_, err = r.Invite(ctx, r.alice, string(hidden.ID), cluster.ReadOnly, []string{"bob@x"})
	wantKind(t, err, fault.Invalid, "share a dot-folder")
}

func TestProjectSharing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.admin, "shared", of(r.project))
	_, err := r.Share(ctx, r.bob, "shared", cluster.ReadOnly, []string{"alice@x"})
	wantKind(t, err, fault.Denied, "share by a member")
	_, err = r.Share(ctx, r.admin, "shared", cluster.ReadOnly, []string{"carol@x"})
	wantKind(t, err, fault.Invalid, "share with one who is no member")
	_, err = r.Invite(ctx, r.admin, "shared", cluster.ReadOnly, []string{"carol@x"})
	wantKind(t, err, fault.Invalid, "invite to a project folder")
	who, err := r.Share(ctx, r.admin, "shared", cluster.ReadOnly, []string{"bob@x"})
	if err != nil || len(who) != 1 {
		t.Fatal(who, err)
	}
	_, err = r.RequestUpload(ctx, r.bob, "shared", "x", 1, "")
	wantKind(t, err, fault.Denied, "upload of one with ro")
	if err != nil && fault.ReasonOf(err) != "vfolder-permission-error" {
		t.Errorf("reason %s", fault.ReasonOf(err))
	}
	_, err = r.RequestUpload(ctx, r.alice, "shared", "x", 1, "")
	r.must(err)
	_, err = r.DeleteFiles(ctx, r.alice, "shared", []string{"x"}, false)
	wantKind(t, err, fault.Denied, "delete with rw")
	wantKind(t, r.Leave(ctx, r.bob, "shared", nil), fault.Invalid, "leave a project folder")
	demoted := r.admin
	demoted.Role = authz.RoleUser
	for _, c := range []struct {
		who  authz.Actor
		want int
	}{{r.admin, 1}, {demoted, 0}, {r.bob, 0}} {
		list, err := r.Shared(ctx, c.who, "")
		if err != nil || len(list) != c.want {
			t.Errorf("%s (%s) sees who shares: %v, %v", c.who.Email, c.who.Role, list, err)
		}
	}
	who, err = r.Unshare(ctx, r.admin, "shared", []string{"bob@x", "alice@x"})
	if err != nil || fmt.Sprint(who) != "[bob@x]" {
		t.Error(who, err)
	}
	res, err := r.Mkdir(ctx, r.bob, "shared", folder.MkdirInput{Paths: []string{"x"}})
	wantKind(t, err, fault.Invalid, "mkdir that fails for all")
	if len(res.Failed) != 1 || res.Success == nil {
		t.Errorf("results = %+v", res)
	}
}

func TestChangeOwnership(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.share(f, r.alice, r.bob, cluster.ReadOnly)
	r.must(r.ChangeOwnership(ctx, r.super, string(f.ID), "bob@x"))
	g, err := r.Find(ctx, r.bob, "data")
	r.must(err)
	if !g.IsOwner || g.Granted || g.Scope != f.Scope || g.CreatorID != r.alice.UserID {
		t.Errorf("bob's = %+v", g)
	}
	_, err = r.Find(ctx, r.alice, string(f.ID))
	wantKind(t, err, fault.NotFound, "the former owner")
	r.create(r.carol, "data")
	wantKind(t, r.ChangeOwnership(ctx, r.super, string(f.ID), "carol@x"), fault.Conflict, "name taken")
}

func TestHosts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.must(r.SetDefaultHost(ctx, r.super, host))
	h, err := r.Hosts(ctx, r.alice, "")
	r.must(err)
	info := h.Info[host]
	if h.Default != host || fmt.Sprint(h.Allowed) != "[p:v]" || info.UsedPercent == nil || *info.UsedPercent != 25 ||
		len(info.Permissions) != 8 || info.Problem != "" {
		t.Errorf("hosts = %+v", h)
	}
	r.proxy.set(func() { r.proxy.away = true })
	h, err = r.Hosts(ctx, r.alice, "proj")
	r.must(err)
	if len(h.Allowed) != 1 || h.Info[host].Problem == "" {
		t.Errorf("without its proxy = %+v", h)
	}
	_, err = r.AllHosts(ctx, r.admin)
	wantKind(t, err, fault.Denied, "all hosts")
	every, err := r.AllHosts(ctx, r.super)
	if err != nil || len(every.Allowed) != 2 {
		t.Errorf("all = %+v, %v", every, err)
	}
	v, err := r.Volume(ctx, r.super, host)
	if err != nil || v.Nodes != 0 || v.Problem == "" {
		t.Errorf("volume = %+v, %v", v, err)
	}
}

func TestResolveMounts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	data := r.create(r.alice, "data")
	r.create(r.alice, ".local")
	shared := r.create(r.bob, "bobs")
	r.share(shared, r.bob, r.alice, cluster.ReadOnly)
	r.create(r.admin, "proj", of(r.project))
	r.create(r.admin, "far", of(r.other))
	r.create(r.admin, "data", of(r.other)) // does not make data ambiguous for sessions of another project
	resolve := func(req folder.MountRequest) (string, error) {
		if req.Project == "" {
			req.Project = r.project
		}
		mounts, err := r.ResolveMounts(ctx, r.store.Queries, r.alice, req)
		var out []string
		for _, m := range mounts {
			out = append(out, fmt.Sprintf("%s@%s(%s)", m.Name, m.Target, m.Perm))
			if m.VolumePath != "/vol" || m.OwnerUID != 9001 || m.OwnerGID != 9002 || m.Host != host {
				t.Errorf("mount = %+v", m)
			}
		}
		return strings.Join(out, " "), err
	}
	for _, c := range []struct {
		name string
		r    folder.MountRequest
		want string
		kind fault.Kind
	}{
		{name: "automatic alone", want: ".local@/home/work/.local(wd)"},
		{name: "system session", r: folder.MountRequest{SessionType: cluster.System}, want: ""},
		{name: "all", r: folder.MountRequest{Mounts: []string{"data", "bobs", "proj", "far"}},
			want: "data@/home/work/data(wd) bobs@/home/work/bobs(ro) proj@/home/work/proj(rw) .local@/home/work/.local(wd)"},
		{name: "by id", r: folder.MountRequest{MountIDs: []string{data.ID.Hex()}, MountIDMap: map[string]string{data.ID.Hex(): "/mnt/x"},
			SessionType: cluster.System}, want: "data@/mnt/x(wd)"},
		{name: "id among names", r: folder.MountRequest{Mounts: []string{string(data.ID)}, SessionType: cluster.System},
			want: "data@/home/work/data(wd)"},
		{name: "ambiguous there", r: folder.MountRequest{Mounts: []string{"data"}, Project: r.other}, kind: fault.NotFound},
		{name: "nothing of the name", r: folder.MountRequest{Mounts: []string{"nothing"}}, kind: fault.NotFound},
		{name: "rw of ro", r: folder.MountRequest{Mounts: []string{"bobs"},
			Options: map[string]folder.MountOption{"bobs": {Permission: cluster.ReadWrite}}}, kind: fault.Invalid},
	} {
		got, err := resolve(c.r)
		if c.kind != 0 {
			wantKind(t, err, c.kind, c.name)
		} else if err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, got, err, c.want)
		}
	}
	// Administrators manage folders of others but do not mount them.
	_, err := r.ResolveMounts(ctx, r.store.Queries, r.super, folder.MountRequest{MountIDs: []string{string(data.ID)}})
	wantKind(t, err, fault.NotFound, "mount what one only manages")
	// A manager that starts while the proxy is away knows its volumes from the leader's notes.
	r.pass()
	r.proxy.set(func() { r.proxy.unheard = true })
	if got, err := resolve(folder.MountRequest{Mounts: []string{"data"}}); err != nil || !strings.HasPrefix(got, "data@") {
		t.Errorf("before the proxy is heard of: %q, %v", got, err)
	}
	r.proxy.set(func() { r.proxy.unheard = false })
	// Files are mounted by agents: a proxy that is away does not matter. What is in the trash bin does.
	r.proxy.set(func() { r.proxy.away = true })
	if got, err := resolve(folder.MountRequest{Mounts: []string{"data"}}); err != nil || !strings.HasPrefix(got, "data@") {
		t.Errorf("without the proxy: %q, %v", got, err)
	}
	for _, n := range []string{".local", "data"} {
		f, err := r.Find(ctx, r.alice, n)
		if err != nil { // data is ambiguous for its owner
			f = data
		}
		_, err = r.Trash(ctx, r.alice, string(f.ID))
		r.must(err)
	}
	if got, err := resolve(folder.MountRequest{}); err != nil || got != "" {
		t.Errorf("with a dot-folder in the trash bin: %q, %v", got, err)
	}
	if got, err := resolve(folder.MountRequest{Mounts: []string{"data"}}); err != nil || got != "" {
		t.Errorf("only the foreign project's is left, which is skipped: %q, %v", got, err)
	}
	_, err = resolve(folder.MountRequest{MountIDs: []string{string(data.ID)}})
	wantKind(t, err, fault.Conflict, "mount from the trash bin")
	gone, err := r.Hold(ctx, r.store.Queries, []cluster.FolderID{data.ID, shared.ID})
	if err != nil || len(gone) != 1 || gone[0] != data.ID {
		t.Errorf("gone = %v, %v", gone, err)
	}
	// Without mount-in-session dot-folders are left out, and others named in the refusal.
	r.sql(`UPDATE domains SET allowed_vfolder_hosts = '{"p:v": ["create-vfolder"]}' WHERE name = 'd'`)
	_, err = resolve(folder.MountRequest{Mounts: []string{"proj"}})
	wantKind(t, err, fault.Denied, "without mount-in-session")
}
