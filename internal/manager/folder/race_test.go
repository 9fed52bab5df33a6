package folder_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/store/storetest"
	"berth.dev/berth/internal/wire/storage"
)

// until waits for a condition that others make true.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	again, enough := time.NewTicker(5*time.Millisecond), time.After(time.Minute)
	defer again.Stop()
	for !cond() {
		select {
		case <-again.C:
		case <-enough:
			r.t.Fatal("waited too long for: " + what)
		}
	}
}

// meanwhile runs act while a transaction of the test has the folder's row, lets that change things once act waits for it,
// and returns how act ended.
func (r *rig) meanwhile(id cluster.FolderID, act func() error, change func(tx pgx.Tx)) error {
	r.t.Helper()
	ctx := r.t.Context()
	tx, err := r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	_, err = tx.Exec(ctx, "SELECT 1 FROM folders WHERE id = $1 FOR UPDATE", id)
	r.must(err)
	done := make(chan error, 1)
	go func() { done <- act() }()
	ended := false
	r.until("the use case to wait", func() bool {
		select {
		case err = <-done:
			ended = true
			return true
		default:
		}
		return storetest.Waiting(r.t, r.store) > 0
	})
	change(tx)
	r.must(tx.Commit(ctx))
	if ended {
		return err
	}
	return <-done
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	r.must(r.store.Pool().QueryRow(r.t.Context(), sql, args...).Scan(&n))
	return n
}

// Who stops being the owner at the moment of giving others a folder gives nothing.
func TestOnlyTheOwnerOfThatMomentShares(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	r.share(f, r.alice, r.carol, cluster.ReadOnly)
	id := string(f.ID)
	owner := func(to cluster.UserID) func(pgx.Tx) {
		return func(tx pgx.Tx) {
			_, err := tx.Exec(ctx, "UPDATE folders SET user_id = $1 WHERE id = $2", to, id)
			r.must(err)
		}
	}
	for name, act := range map[string]func() error{
		"Invite": func() error {
			_, err := r.Invite(ctx, r.alice, id, cluster.ReadWriteDelete, []string{"foreign@x"})
			return err
		},
		"UpdateSharing": func() error {
			return r.UpdateSharing(ctx, r.alice, id, []folder.SharingChange{{User: r.carol.UserID, Permission: new(cluster.ReadWriteDelete)}})
		},
	} {
		err := r.meanwhile(f.ID, act, owner(r.bob.UserID))
		if !fault.Is(err, fault.NotFound) && !fault.Is(err, fault.Denied) {
			t.Errorf("%s by the former owner: %v", name, err)
		}
		r.sql("UPDATE folders SET user_id = $1 WHERE id = $2", r.alice.UserID, id)
	}
	if n := r.count("SELECT count(*) FROM folder_invitations WHERE state = 'pending'"); n != 0 {
		t.Errorf("%d invitations of the former owner", n)
	}
	if n := r.count("SELECT count(*) FROM folder_permissions WHERE permission <> 'ro'"); n != 0 {
		t.Errorf("%d permissions were changed by the former owner", n)
	}
	// In a project, the folder's administrator is who counts.
	p := r.create(r.admin, "team", of(r.project))
	err := r.meanwhile(p.ID, func() error {
		_, err := r.Share(ctx, r.admin, string(p.ID), cluster.ReadWriteDelete, []string{"bob@x"})
		return err
	}, func(tx pgx.Tx) {
		_, err := tx.Exec(ctx, "UPDATE folders SET status = 'delete-pending' WHERE id = $1", p.ID)
		r.must(err)
	})
	wantKind(t, err, fault.Conflict, "share what goes into the trash bin at this moment")
}

// An invitation is either accepted before the folder goes, or not at all.
func TestAcceptAgainstTrashAndNewOwners(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	invited := func(name string) (folder.Folder, string) {
		f := r.create(r.alice, name)
		_, err := r.Invite(ctx, r.alice, string(f.ID), cluster.ReadWrite, []string{"bob@x"})
		r.must(err)
		list, err := r.ListInvitations(ctx, r.bob)
		r.must(err)
		return f, list[len(list)-1].ID
	}
	for name, change := range map[string]func(id cluster.FolderID, tx pgx.Tx) error{
		"trash": func(id cluster.FolderID, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE folders SET status = 'delete-pending' WHERE id = $1", id)
			return err
		},
		"new-owner": func(id cluster.FolderID, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE folders SET user_id = $2 WHERE id = $1", id, r.bob.UserID)
			return err
		},
	} {
		f, inv := invited(name)
		err := r.meanwhile(f.ID, func() error { return r.AcceptInvitation(ctx, r.bob, inv) }, func(tx pgx.Tx) {
			r.must(change(f.ID, tx))
			// As Trash and ChangeOwnership do at their end.
			_, err := tx.Exec(ctx, "UPDATE folder_invitations SET state = 'canceled' WHERE folder_id = $1 AND state = 'pending'", f.ID)
			r.must(err)
		})
		wantKind(t, err, fault.Conflict, name)
		if n := r.count("SELECT count(*) FROM folder_permissions WHERE folder_id = $1", f.ID); n != 0 {
			t.Errorf("%s: bob was given it all the same", name)
		}
	}
	// The real use cases against each other, either way round: whoever owns a folder has no permission besides, which would
	// stay when the next one owns it.
	for i := range 8 {
		f, inv := invited(fmt.Sprintf("race%d", i))
		accepted := make(chan error, 1)
		go func() { accepted <- r.AcceptInvitation(ctx, r.bob, inv) }()
		r.must(r.ChangeOwnership(ctx, r.super, string(f.ID), "bob@x"))
		if err := <-accepted; err != nil && !fault.Is(err, fault.Conflict) {
			t.Errorf("accept: %v", err)
		}
		if n := r.count("SELECT count(*) FROM folder_permissions WHERE folder_id = $1", f.ID); n != 0 {
			t.Fatalf("round %d: the owner has a permission besides", i)
		}
	}
}

// Two who limit a scope at the same moment leave what the last of them wrote, whichever request reached the proxy last.
func TestLimitsThatCross(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	scope := f.Scope.String()
	landed, noted := make(chan struct{}), make(chan struct{})
	second := make(chan error, 1)
	first := true
	r.proxy.set(func() {
		r.proxy.before[storage.PathScope] = func() error {
			if !first {
				return nil
			}
			first = false
			go func() {
				_, err := r.SetQuotaScope(ctx, r.super, host, scope, 10)
				second <- err
			}()
			<-landed
			return nil
		}
		r.proxy.after = map[string]func(){storage.PathScope: func() {
			select {
			case <-landed:
			default: // the second's request: its answer is late
				close(landed)
				<-noted
			}
		}}
	})
	_, err := r.SetQuotaScope(ctx, r.super, host, scope, 5)
	r.must(err)
	close(noted)
	r.must(<-second)
	r.proxy.set(func() { r.proxy.before, r.proxy.after = map[string]func() error{}, nil })
	r.pass()
	if got := r.proxy.limits[scope]; got != 10 {
		t.Errorf("the proxy holds %d, and 10 was written last", got)
	}
}

// A proxy that hangs with very many folders does not hold up those of another.
func TestOneProxyThatHangsHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	f := r.create(r.alice, "data")
	_, err := r.Trash(ctx, r.alice, "data")
	r.must(err)
	_, err = r.DeleteForever(ctx, r.alice, "data")
	r.must(err)
	task, err := r.DeleteFilesAsync(ctx, r.alice, string(r.create(r.alice, "files").ID), []string{"x"}, true)
	r.must(err)
	for range 400 {
		id := uuid.NewString()
		r.sql(`INSERT INTO folders (id, name, host, domain_name, quota_scope, usage_mode, permission, user_id, status, task_id, status_changed)
			VALUES ($1::uuid, left($1::text, 32), 'deaf:v', 'd', 'user:' || $2::text, 'general', 'rw', $2::uuid, 'delete-ongoing', $1::uuid,
			now() - interval '1 hour')`, id, r.alice.UserID)
		r.sql(`INSERT INTO background_tasks (id, kind, status, updated_at) VALUES ($1, 'delete_folder_files', 'started', `+
			`now() - interval '1 hour')`, id)
		r.sql(`INSERT INTO folder_tasks (task_id, folder_id, proxy, kind) VALUES ($1, $1, 'deaf', 'delete_folder_files')`, id)
	}
	r.proxy.set(func() { r.proxy.deaf = "deaf" })
	for range 6 {
		r.pass()
	}
	if st := r.status(f.ID); st != cluster.FolderDeleteComplete {
		t.Errorf("the folder is %s", st)
	}
	if status, _ := r.task(task); status != "done" {
		t.Errorf("the task is %s", status)
	}
	if n := r.proxy.callsTo["deaf"]; n > 6*8*2 {
		t.Errorf("the proxy that hangs was asked %d times", n)
	}
}

// A clone that is asked for while a pass reads what there is to do is not given up: the pass sees the task and not the folder.
func TestACloneThatComesDuringAPass(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.alice, "data")
	c, task, err := r.Clone(ctx, r.alice, "data", folder.CloneInput{Name: "copy"})
	r.must(err)
	r.sql("UPDATE folders SET status = 'ready' WHERE id = $1", c.ID) // as if the pass read the folders before the clone came
	tx, err := r.store.Pool().Begin(ctx)
	r.must(err)
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	_, err = tx.Exec(ctx, "LOCK TABLE folder_tasks IN ACCESS EXCLUSIVE MODE")
	r.must(err)
	done := make(chan error, 1)
	go func() {
		_, err := r.loop.Pass(ctx)
		done <- err
	}()
	r.until("the pass to read the tasks", func() bool {
		return storetest.Waiting(r.t, r.store) > 0
	})
	_, err = tx.Exec(ctx, "UPDATE folders SET status = 'cloning' WHERE id = $1", c.ID)
	r.must(err)
	r.must(tx.Commit(ctx))
	r.must(<-done)
	if status, message := r.task(task); status != "started" {
		t.Errorf("the task is %s: %s", status, message)
	}
}

// However long a proxy was away, what waits for it goes on within seconds of its return, and asking for it uses up no attempt.
func TestWorkGoesOnWhenAProxyIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	f := r.create(r.alice, "data")
	_, err := r.Trash(t.Context(), r.alice, "data")
	r.must(err)
	_, err = r.DeleteForever(t.Context(), r.alice, "data")
	r.must(err)
	r.proxy.set(func() { r.proxy.away = true })
	r.sql("UPDATE folders SET tried = 9 WHERE id = $1", f.ID) // it has been away for long
	r.pass()
	tried := func() (n int) {
		r.must(r.store.Pool().QueryRow(t.Context(), "SELECT tried FROM folders WHERE id = $1", f.ID).Scan(&n))
		return n
	}
	if n := tried(); n != 10 {
		t.Fatalf("tried %d times", n)
	}
	for range 5 {
		r.advance(5 * time.Second)
		r.pass()
	}
	if n := tried(); n != 10 {
		t.Errorf("looking whether the proxy is back counts as %d attempts", n-10)
	}
	r.proxy.set(func() { r.proxy.away = false })
	for range 5 { // within five seconds
		r.advance(time.Second)
		r.pass()
	}
	if st := r.status(f.ID); st != cluster.FolderDeleteComplete {
		t.Errorf("the folder is %s", st)
	}
}

// A task ends when its proxy stays away for good; one that comes back goes on with it.
func TestATaskOfAProxyThatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.alice, "data")
	r.proxy.hold = true
	task, err := r.DeleteFilesAsync(ctx, r.alice, "data", []string{"x"}, true)
	r.must(err)
	away := func(is bool, d time.Duration) string {
		r.proxy.set(func() { r.proxy.away = is })
		r.pass()
		r.advance(d)
		r.pass()
		status, _ := r.task(task)
		return status
	}
	for _, c := range []struct {
		away bool
		d    time.Duration
		want string
	}{{true, 20 * time.Hour, "started"}, {false, time.Hour, "started"}, {true, 20 * time.Hour, "started"}, {true, 5 * time.Hour, "failed"}} {
		if got := away(c.away, c.d); got != c.want {
			t.Fatalf("away %v for %s: the task is %s, want %s", c.away, c.d, got, c.want)
		}
	}
	if _, words := r.task(task); words == "" {
		t.Error("it does not say why")
	}
}

// A proxy that begins a task and dies before it answers has begun it: the task is followed, not called failed.
func TestATaskWhoseBeginningWasNotHeardOf(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	ctx := t.Context()
	r.create(r.alice, "data")
	r.proxy.set(func() {
		r.proxy.fail = map[string]error{storage.PathDeleteAsync: fault.New(fault.Timeout, "no answer")}
	})
	_, err := r.DeleteFilesAsync(ctx, r.alice, "data", []string{"x"}, true)
	wantKind(t, err, fault.Timeout, "begin")
	var task string
	r.must(r.store.Pool().QueryRow(ctx, "SELECT id FROM background_tasks").Scan(&task))
	r.pass()
	if status, words := r.task(task); status != "done" {
		t.Errorf("the task is %s: %s", status, words)
	}
}
