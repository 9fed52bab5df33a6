package folder_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/wire/storage"
)

// mount writes a live session that mounts the folder.
func (r *rig) mount(a authz.Actor, f folder.Folder) (session string) {
	r.t.Helper()
	session = uuid.NewString()
	r.sql("INSERT INTO resource_groups (name) VALUES ('g') ON CONFLICT DO NOTHING")
	r.sql(`INSERT INTO sessions (id, name, type, domain_name, project_id, user_id, access_key, resource_group, image, status, requested_slots)
		VALUES ($1, 's' || left($1::uuid::text, 8), 'interactive', 'd', $2, $3, $4, 'g', 'i', 'RUNNING', '{}')`, session, r.project, a.UserID,
		a.AccessKey)
	r.addMount(r.store.Pool(), session, f)
	return session
}

func TestTrashRestoreAndRemove(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	session := r.mount(r.alice, f)
	_, err := r.Trash(ctx, r.alice, "data")
	wantKind(t, err, fault.Conflict, "trash while mounted")
	if err != nil && !strings.Contains(err.Error(), "sessions mount it: s") {
		t.Errorf("it does not name the session: %v", err)
	}
	r.sql("UPDATE sessions SET ended_at = now(), status = 'TERMINATED' WHERE id = $1", session)
	_, err = r.DeleteForever(ctx, r.alice, "data")
	wantKind(t, err, fault.Conflict, "delete forever past the trash bin")
	f, err = r.Trash(ctx, r.alice, "data")
	r.must(err)
	if f.Status != cluster.FolderDeletePending || len(r.proxy.folders) != 1 {
		t.Errorf("in the trash bin: %s, %v", f.Status, r.proxy.folders)
	}
	_, err = r.Rename(ctx, r.alice, string(f.ID), "other")
	wantKind(t, err, fault.Conflict, "rename in the trash bin")
	_, err = r.RequestUpload(ctx, r.alice, string(f.ID), "a", 1, "")
	wantKind(t, err, fault.Conflict, "upload into the trash bin")

	// A new folder may have the name; the old one cannot come back then, except after a rename.
	g := r.create(r.alice, "data")
	if found, err := r.Find(ctx, r.alice, "data"); err != nil || found.ID != g.ID {
		t.Errorf("found %v, %v", found.ID, err)
	}
	_, err = r.Restore(ctx, r.alice, "data")
	if fault.ReasonOf(err) != "vfolder-already-exists" {
		t.Errorf("restore over another: %v", err)
	}
	_, err = r.Rename(ctx, r.alice, string(g.ID), "new")
	r.must(err)
	f, err = r.Restore(ctx, r.alice, "data")
	r.must(err)
	if f.Status != cluster.FolderReady {
		t.Errorf("restored is %s", f.Status)
	}

	_, err = r.Trash(ctx, r.alice, f.ID.Hex())
	r.must(err)
	r.proxy.hold = true
	f, err = r.DeleteForever(ctx, r.alice, "data")
	r.must(err)
	if f.Status != cluster.FolderDeleteOngoing {
		t.Errorf("removed is %s", f.Status)
	}
	if again, err := r.DeleteForever(ctx, r.alice, string(f.ID)); err != nil || again.Status != cluster.FolderDeleteOngoing {
		t.Errorf("again: %s, %v", again.Status, err)
	}
	r.pass()
	r.pass()
	if st := r.status(f.ID); st != cluster.FolderDeleteOngoing || r.proxy.calls[storage.PathFolderDelete] != 1 {
		t.Errorf("while the proxy removes: %s, asked %d times", st, r.proxy.calls[storage.PathFolderDelete])
	}
	r.proxy.finish(storage.TaskDone, "")
	r.pass()
	if st := r.status(f.ID); st != cluster.FolderDeleteComplete {
		t.Errorf("after: %s", st)
	}
	list, err := r.List(ctx, r.alice, folder.ListQuery{})
	r.must(err)
	if len(list) != 1 || list[0].Name != "new" {
		t.Errorf("list = %+v", list)
	}
	_, err = r.Purge(ctx, r.alice, string(f.ID))
	wantKind(t, err, fault.Denied, "purge by a user")
	_, err = r.Purge(ctx, r.foreign, string(f.ID))
	wantKind(t, err, fault.NotFound, "purge by another domain's administrator")
	_, err = r.Purge(ctx, r.super, string(f.ID))
	r.must(err)
	if st := r.status(f.ID); st != "none" {
		t.Errorf("purged: %s", st)
	}
}

func TestRemovalThatFails(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	_, err := r.Trash(ctx, r.alice, "data")
	r.must(err)
	r.proxy.hold = true
	_, err = r.DeleteForever(ctx, r.alice, "data")
	r.must(err)
	r.pass()
	r.proxy.finish(storage.TaskFailed, "disk on fire")
	r.pass()
	f, err = r.Find(ctx, r.alice, string(f.ID))
	r.must(err)
	if f.Status != cluster.FolderDeleteError || !strings.Contains(f.StatusInfo, "disk on fire") {
		t.Errorf("%s: %s", f.Status, f.StatusInfo)
	}
	r.proxy.hold = false
	_, err = r.DeleteForever(ctx, r.alice, string(f.ID))
	r.must(err)
	r.pass()
	r.pass()
	if st := r.status(f.ID); st != cluster.FolderDeleteComplete {
		t.Errorf("second try: %s", st)
	}
}

// A session that is created while its folder is deleted: one of the two wins, never both.
func TestTrashAgainstNewSessions(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	for i := range 8 {
		f := r.create(r.alice, "data"+string(rune('a'+i)))
		session := r.mount(r.alice, f)
		r.sql("DELETE FROM session_mounts WHERE session_id = $1", session)
		var mounted, trashed bool
		var both sync.WaitGroup
		both.Go(func() {
			err := r.store.Tx(ctx, func(ctx2 context.Context, tx *store.Tx) error {
				gone, err := r.Hold(ctx2, tx.Queries, []cluster.FolderID{f.ID})
				if err != nil || len(gone) > 0 {
					mounted = false
					return err
				}
				r.addMount(tx.DB(), session, f)
				mounted = true
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
		both.Go(func() {
			_, err := r.Trash(ctx, r.alice, string(f.ID))
			trashed = err == nil
			if err != nil && !fault.Is(err, fault.Conflict) {
				t.Error(err)
			}
		})
		both.Wait()
		if mounted == trashed {
			t.Errorf("mounted %v, trashed %v", mounted, trashed)
		}
	}
}

func TestClone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.proxy.hold = true
	c, task, err := r.Clone(ctx, r.alice, "data", folder.CloneInput{Name: "copy"})
	r.must(err)
	if c.Status != cluster.FolderCloning || c.Host != host || task == "" {
		t.Errorf("copy = %+v", c)
	}
	_, err = r.Trash(ctx, r.alice, "data")
	wantKind(t, err, fault.Conflict, "trash the source meanwhile")
	r.proxy.set(func() { r.proxy.away = true })
	r.pass()
	if st := r.status(c.ID); st != cluster.FolderCloning {
		t.Errorf("without a proxy: %s", st)
	}
	r.proxy.set(func() { r.proxy.away = false })
	r.advance(2 * time.Minute)
	r.pass() // begins
	r.advance(2 * time.Minute)
	// A leader that died after the request and one that comes after it do the same.
	r.loop = r.NewLoop(r.store.Tx)
	r.pass()
	if status, _ := r.task(task); status != "started" || r.proxy.calls[storage.PathFolderClone] != 1 {
		t.Errorf("task %s, asked %d times", status, r.proxy.calls[storage.PathFolderClone])
	}
	r.proxy.finish(storage.TaskDone, "")
	r.pass()
	if st := r.status(c.ID); st != cluster.FolderReady {
		t.Errorf("done: %s", st)
	}
	if status, _ := r.task(task); status != "done" {
		t.Errorf("task is %s", status)
	}
	// A copy that fails is in error, says why, and can be deleted.
	r.proxy.tasks = map[string]*storage.Task{}
	r.proxy.set(func() { delete(r.proxy.folders, f.Scope.String()+"/"+string(f.ID)) })
	c, task, err = r.Clone(ctx, r.alice, "data", folder.CloneInput{Name: "copy2"})
	r.must(err)
	r.pass()
	c, err = r.Find(ctx, r.alice, "copy2")
	r.must(err)
	if c.Status != cluster.FolderError || c.StatusInfo == "" {
		t.Errorf("failed copy is %s: %s", c.Status, c.StatusInfo)
	}
	if status, words := r.task(task); status != "failed" || words == "" {
		t.Errorf("task is %s: %s", status, words)
	}
	_, err = r.Trash(ctx, r.alice, "copy2")
	r.must(err)
	_, err = r.Restore(ctx, r.alice, "copy2") // it never was complete
	wantKind(t, err, fault.Conflict, "restore what was never copied")
	if err != nil && (!strings.Contains(err.Error(), "copying failed") || fault.NextOf(err) == "") {
		t.Errorf("words: %v", err)
	}
	_, err = r.DeleteForever(ctx, r.alice, "copy2")
	r.must(err)

	_, _, err = r.Clone(ctx, r.bob, string(f.ID), folder.CloneInput{Name: "mine"})
	wantKind(t, err, fault.NotFound, "a stranger clones")
	r.share(f, r.alice, r.bob, cluster.ReadOnly)
	_, _, err = r.Clone(ctx, r.bob, string(f.ID), folder.CloneInput{Name: "mine"})
	wantKind(t, err, fault.Denied, "not cloneable")
	_, err = r.UpdateOptions(ctx, r.alice, "data", folder.Options{Cloneable: new(true)})
	r.must(err)
	mine, _, err := r.Clone(ctx, r.bob, string(f.ID), folder.CloneInput{Name: "mine"})
	r.must(err)
	if mine.UserEmail != "bob@x" || mine.Scope.ID != string(r.bob.UserID) {
		t.Errorf("bob's copy = %+v", mine)
	}
	_, _, err = r.Clone(ctx, r.alice, "data", folder.CloneInput{Name: "x", Host: "p:w"})
	wantKind(t, err, fault.Invalid, "to another host")
	_, _, err = r.Clone(ctx, r.alice, "data", folder.CloneInput{Name: "copy"})
	wantKind(t, err, fault.Conflict, "name taken")
}

// share makes bob accept an invitation.
func (r *rig) share(f folder.Folder, from, to authz.Actor, perm cluster.MountPermission) {
	r.t.Helper()
	ctx := r.t.Context()
	who, err := r.Invite(ctx, from, string(f.ID), perm, []string{to.Email})
	r.must(err)
	if len(who) != 1 {
		r.t.Fatalf("invited %v", who)
	}
	invitations, err := r.ListInvitations(ctx, to)
	r.must(err)
	r.must(r.AcceptInvitation(ctx, to, invitations[len(invitations)-1].ID))
}

func TestBackgroundTasks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.proxy.hold = true
	_, err := r.DeleteFilesAsync(ctx, r.alice, "data", []string{"./a", "b/../b"}, true)
	wantKind(t, err, fault.Invalid, "..")
	task, err := r.DeleteFilesAsync(ctx, r.alice, "data", []string{"./a", "/b"}, true)
	r.must(err)
	if req := r.proxy.last[storage.PathDeleteAsync].(storage.DeleteRequest); req.TaskID != task || strings.Join(req.RelPaths, " ") != "a b" {
		t.Errorf("request = %+v", req)
	}
	r.pass()
	if status, _ := r.task(task); status != "started" {
		t.Errorf("task is %s", status)
	}
	r.proxy.finish(storage.TaskDone, "2 deleted")
	r.pass()
	if status, words := r.task(task); status != "done" || words != "2 deleted" {
		t.Errorf("task is %s: %s", status, words)
	}
	// Tasks that a proxy carries out are not abandoned with a manager.
	store := folder.TransferInput{Store: folder.ObjectStore{Endpoint: "https://s3.example", Bucket: "b", SecretKey: "hidden"}}
	task, err = r.Import(ctx, r.alice, "data", store)
	r.must(err)
	r.sql("UPDATE background_tasks SET updated_at = now() - interval '1 hour'")
	if n, err := r.store.AbandonTasks(ctx); err != nil || n != 0 {
		t.Errorf("%d tasks were abandoned, %v", n, err)
	}
	// A task that no proxy knows ends after a while.
	r.proxy.set(func() { clear(r.proxy.tasks) })
	r.pass()
	if status, _ := r.task(task); status != "started" {
		t.Errorf("task is %s at once", status)
	}
	r.advance(5 * time.Minute)
	r.pass()
	if status, _ := r.task(task); status != "failed" {
		t.Errorf("lost task is %s", status)
	}
	r.proxy.before[storage.PathExport] = func() error { return fault.Invalidf("no such bucket") }
	_, err = r.Export(ctx, r.alice, "data", store)
	wantKind(t, err, fault.Invalid, "refused by the proxy")
	store.Store.Endpoint = "ftp://x"
	_, err = r.Export(ctx, r.alice, "data", store)
	wantKind(t, err, fault.Invalid, "endpoint")
	var kept int
	if err := r.store.Pool().QueryRow(ctx, "SELECT count(*) FROM folder_tasks").Scan(&kept); err != nil || kept != 0 {
		t.Errorf("%d rows of tasks, %v", kept, err)
	}
	var text string
	if err := r.store.Pool().QueryRow(ctx, "SELECT string_agg(b::text, '') FROM background_tasks b").Scan(&text); err != nil ||
		strings.Contains(text, "hidden") {
		t.Errorf("keys were kept: %v, %v", text, err)
	}
	_ = f
}

func TestSizesAreKept(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	if f.Bytes != nil {
		t.Errorf("unknown is %d", *f.Bytes)
	}
	r.pass()
	f, err := r.Find(ctx, r.alice, "data")
	r.must(err)
	if f.Bytes == nil || *f.Bytes != 5 || *f.Files != 2 || !f.Complete || f.SizedAt == nil {
		t.Errorf("counted = %+v", f)
	}
	calls := r.proxy.calls[storage.PathFolderUsage]
	_, err = r.Get(ctx, r.alice, "data")
	r.must(err)
	if r.proxy.calls[storage.PathFolderUsage] != calls {
		t.Error("a fresh count was counted again")
	}
	r.advance(2 * time.Second)
	_, err = r.Get(ctx, r.alice, "data")
	r.must(err)
	if r.proxy.calls[storage.PathFolderUsage] == calls {
		t.Error("an old count of a small folder was given again")
	}
	r.advance(time.Hour)
	r.proxy.before[storage.PathFolderUsage] = func() error { return fault.Unavailablef("slow") }
	if f, err = r.Get(ctx, r.alice, "data"); err != nil || f.Bytes == nil {
		t.Errorf("without a new count: %v, %v", f.Bytes, err)
	}
	_, err = r.Usage(ctx, r.alice, "", "data")
	wantKind(t, err, fault.Denied, "usage by a user")
	// A count that fails is no count: what is known stays of its time, others have their turn, and it is tried again later.
	r.sql("UPDATE folders SET sized_at = now() - interval '2 hours'")
	was, err := r.Find(ctx, r.alice, "data")
	r.must(err)
	calls = r.proxy.calls[storage.PathFolderUsage]
	r.pass()
	r.pass()
	if f, err = r.Find(ctx, r.alice, "data"); err != nil || !f.SizedAt.Equal(*was.SizedAt) {
		t.Errorf("counted at %v, which was %v; %v", f.SizedAt, was.SizedAt, err)
	}
	if n := r.proxy.calls[storage.PathFolderUsage]; n != calls+1 {
		t.Errorf("counted %d times", n-calls)
	}
	delete(r.proxy.before, storage.PathFolderUsage)
	r.advance(2 * time.Hour)
	r.pass()
	if f, err = r.Find(ctx, r.alice, "data"); err != nil || f.SizedAt.Equal(*was.SizedAt) {
		t.Errorf("not counted again: %v, %v", f.SizedAt, err)
	}
}
