package folder

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/wire/storage"
)

const (
	passRows   = 100
	atOnce     = 8                // requests of a pass to proxies
	stepTime   = 20 * time.Second // one request of a pass
	maxBackoff = time.Minute
	// maxTries is how often a proxy that does not answer is asked before the folder is given up: about three hours.
	maxTries = 200
	// taskLost is how old a task must be that its proxy does not know before it is taken for one that never began.
	taskLost = time.Minute
	// taskGone is how long a proxy may stay away before its tasks are given up.
	taskGone   = 24 * time.Hour
	scopeRetry = 30 * time.Second
	// sizeAge is how old counts may be; in a pass some of the oldest are counted again.
	sizeAge     = time.Hour
	sizeRows    = 8
	sizeTime    = 10 * time.Second
	houseEvery  = 5 * time.Minute
	rowsKeptFor = 30 * 24 * time.Hour
)

// Commit runs fn in a transaction that commits only while the caller leads.
type Commit func(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error

// Loop makes true, on the leader, what rows of folders say and only proxies can do: folders whose creation nobody confirmed,
// copies, removals, background tasks, limits of scopes. A pass compares everything; requests carry ids of ours, so that
// repeating them after a crash of either side changes nothing.
type Loop struct {
	s      *Service
	commit Commit

	houseAt time.Time
	known   map[string]knownVolume // as stored
	// uncounted are folders, and hosts, that could not be counted, and when that was.
	uncounted map[string]time.Time

	mu     sync.Mutex
	silent map[string]bool // proxies that did not answer in this pass
	// away are proxies that did not answer in any pass since then.
	away map[string]time.Time
	// passed are folders whose proxy was not asked in this pass.
	passed []string
}

// NewLoop makes the loop of one leader's term.
func (s *Service) NewLoop(commit Commit) *Loop {
	return &Loop{s: s, commit: commit, away: map[string]time.Time{}}
}

// Pass looks at everything once. live says that something is going on, which is worth another look soon.
func (l *Loop) Pass(ctx context.Context) (live bool, err error) {
	before := slices.AppendSeq([]string{}, maps.Keys(l.silent)) // did not answer in the last pass
	for proxy := range l.away {
		if !l.silent[proxy] {
			delete(l.away, proxy)
		}
	}
	l.silent, l.passed = map[string]bool{}, nil
	folders, err := l.s.d.Store.UnsettledFolders(ctx, passRows)
	if err != nil {
		return false, fmt.Errorf("read folders that wait: %w", err)
	}
	// A proxy that is away keeps its tasks, which must not be in the way of others.
	tasks, err := l.s.d.Store.LiveFolderTasks(ctx, before, false, 2*passRows)
	if err == nil && len(before) > 0 {
		var more []dbgen.LiveFolderTasksRow
		more, err = l.s.d.Store.LiveFolderTasks(ctx, before, true, passRows)
		tasks = append(tasks, more...)
	}
	if err != nil {
		return false, fmt.Errorf("read tasks of folders: %w", err)
	}
	scopes, err := l.s.d.Store.ScopesToApply(ctx, scopeRetry, passRows)
	if err != nil {
		return false, fmt.Errorf("read limits of scopes: %w", err)
	}
	var work []func() error
	copying := map[string]bool{}
	for _, f := range folders {
		if f.TaskID != nil {
			copying[*f.TaskID] = true
		}
		if due(f, l.s.d.Clock()) {
			work = append(work, func() error { return l.settle(ctx, f) })
		}
	}
	for _, t := range tasks {
		if !copying[t.TaskID] {
			work = append(work, func() error { return l.follow(ctx, t) })
		}
	}
	for _, sc := range scopes {
		work = append(work, func() error { return l.limit(ctx, sc) })
	}
	err = l.each(work)
	if len(l.passed) > 0 {
		over := l.write(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.FoldersPassedOver(ctx, l.passed) })
		if err == nil {
			err = over
		}
	}
	if house := l.keepHouse(ctx); err == nil {
		err = house
	}
	return len(folders)+len(tasks)+len(scopes) > 0, err
}

// each runs work, some at once, and returns the first error; a failure of one does not stop the others.
func (l *Loop) each(work []func() error) (first error) {
	var all sync.WaitGroup
	turn := make(chan struct{}, atOnce)
	for _, w := range work {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			if err := w(); err != nil {
				l.mu.Lock()
				defer l.mu.Unlock()
				if first == nil {
					first = err
				}
			}
		})
	}
	all.Wait()
	return first
}

// due reports whether a folder is to be asked about now: failures are repeated with growing pauses, and a creation is left to
// the request that began it until that has surely ended.
func due(f dbgen.Folder, now time.Time) bool {
	if f.TriedAt != nil && f.Tried > 0 {
		wait := min(time.Second<<min(f.Tried-1, 10), maxBackoff)
		return now.Sub(*f.TriedAt) >= wait
	}
	return cluster.FolderStatus(f.Status) != cluster.FolderPerforming || now.Sub(f.StatusChanged) >= unsettledFor
}

// definite reports whether asking again cannot help.
func definite(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Denied, fault.NotFound, fault.Conflict, fault.Exhausted:
		return true
	}
	return false
}

// do asks a proxy, unless it was silent in this pass already.
func (l *Loop) do(ctx context.Context, proxy, method, path string, request, reply any) error {
	return l.unless(ctx, proxy, func(ctx context.Context) error { return l.s.d.Proxies.Do(ctx, proxy, method, path, request, reply) })
}

// unless runs a step with a proxy, unless that did not answer another one of this pass: a proxy that hangs holds up
// a pass once.
func (l *Loop) unless(ctx context.Context, proxy string, step func(ctx context.Context) error) error {
	l.mu.Lock()
	silent := l.silent[proxy]
	l.mu.Unlock()
	if silent {
		return errSilent
	}
	ctx, cancel := context.WithTimeout(ctx, stepTime)
	defer cancel()
	err := step(ctx)
	if err != nil && !definite(err) {
		l.mu.Lock()
		l.silent[proxy] = true
		if _, known := l.away[proxy]; !known {
			l.away[proxy] = l.s.d.Clock()
		}
		l.mu.Unlock()
	}
	return err
}

// errSilent stands for a question that was not asked; it counts as no try.
var errSilent = fault.Unavailablef("the storage proxy does not answer")

// settle brings one folder forward.
func (l *Loop) settle(ctx context.Context, f dbgen.Folder) error {
	host, err := cluster.ParseVolumeHost(f.Host)
	if err != nil {
		return err
	}
	scope, err := cluster.ParseQuotaScope(f.QuotaScope)
	if err != nil {
		return err
	}
	switch cluster.FolderStatus(f.Status) {
	case cluster.FolderPerforming:
		err = l.finish(ctx, f, host, scope)
	case cluster.FolderCloning:
		err = l.copy(ctx, f, host, scope)
	case cluster.FolderDeleteOngoing:
		err = l.remove(ctx, f, host, scope)
	}
	if errors.Is(err, errSilent) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.passed = append(l.passed, f.ID)
		return nil
	}
	if err == nil || ctx.Err() != nil {
		return nil
	}
	l.s.d.Log.Warn("a folder cannot go on yet", "folder", f.ID, "host", f.Host, "status", f.Status, "tried", f.Tried+1, "error", err)
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		return tx.FolderTried(ctx, store.Text("trying again: "+err.Error()), f.ID, f.Status)
	})
}

func (l *Loop) write(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	return l.commit(ctx, fn)
}

// finish makes a folder whose request died, or gives it up.
func (l *Loop) finish(ctx context.Context, f dbgen.Folder, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	err := l.unless(ctx, host.Proxy, func(ctx context.Context) error { return l.s.make(ctx, f.ID, host, scope) })
	if err != nil && !definite(err) && f.Tried < maxTries {
		return err
	}
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err != nil {
			_, err := tx.MoveFolder(ctx, undoing(f.ID, err))
			return err
		}
		// Nothing moved: the request was still there and did it.
		_, err := tx.MoveFolder(ctx, moveTo(f.ID, cluster.FolderReady, cluster.FolderPerforming))
		return err
	})
}

// task asks how far a task is; nil when its proxy does not know it.
func (l *Loop) task(ctx context.Context, proxy, id string) (*storage.Task, error) {
	var t storage.Task
	err := l.do(ctx, proxy, "GET", storage.PathTask+id, nil, &t)
	if fault.Is(err, fault.NotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &t, nil
}

// copy has a proxy copy the source, and follows it.
func (l *Loop) copy(ctx context.Context, f dbgen.Folder, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	if f.TaskID == nil || f.SourceID == nil {
		return l.copied(ctx, f, fault.Conflictf("its source is gone"), 0, 0)
	}
	t, err := l.task(ctx, host.Proxy, *f.TaskID)
	if err == nil && t == nil {
		err = l.beginCopy(ctx, f, host, scope)
	}
	switch {
	case err != nil && (definite(err) || f.Tried >= maxTries):
		return l.copied(ctx, f, err, 0, 0)
	case err != nil || t == nil:
		return err
	}
	switch t.State {
	case storage.TaskDone:
		return l.copied(ctx, f, nil, t.Current, t.Total)
	case storage.TaskFailed, storage.TaskCancelled:
		return l.copied(ctx, f, fault.Unavailablef("the storage proxy gave up: %s", t.Message), t.Current, t.Total)
	}
	return l.progress(ctx, *f.TaskID, t)
}

// noViewer reads folders for nobody.
const noViewer = "00000000-0000-0000-0000-000000000000"

func (l *Loop) beginCopy(ctx context.Context, f dbgen.Folder, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	rows, err := l.s.d.Store.FolderViews(ctx, noViewer, []string{*f.SourceID})
	if err != nil {
		return fmt.Errorf("read the source: %w", err)
	}
	if len(rows) == 0 {
		return fault.NotFoundf("its source is gone")
	}
	from, err := cluster.ParseQuotaScope(rows[0].Folder.QuotaScope)
	if err != nil {
		return err
	}
	if err := l.unless(ctx, host.Proxy, func(ctx context.Context) error { return l.s.ensureScope(ctx, host, scope) }); err != nil {
		return err
	}
	src, dst := cluster.FolderRef{Scope: from, Folder: cluster.FolderID(*f.SourceID)},
		cluster.FolderRef{Scope: scope, Folder: cluster.FolderID(f.ID)}
	return l.do(ctx, host.Proxy, "POST", storage.PathFolderClone,
		storage.CloneRequest{SrcVolume: host.Volume, SrcVFID: src.String(), DstVFID: dst.String(), TaskID: *f.TaskID}, nil)
}

// copied writes the end of a copy.
func (l *Loop) copied(ctx context.Context, f dbgen.Folder, failure error, current, total int64) error {
	move, status, words := moveTo(f.ID, cluster.FolderReady, cluster.FolderCloning), "done", ""
	if failure != nil {
		move, status, words = moveTo(f.ID, cluster.FolderError, cluster.FolderCloning), "failed", store.Text("copying failed: "+failure.Error())
		move.Info = words
	}
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.MoveFolder(ctx, move); err != nil {
			return err
		}
		if f.TaskID == nil {
			return nil
		}
		return closeTask(ctx, tx, *f.TaskID, status, words, current, total)
	})
}

// remove has a proxy remove a folder. The proxy has renamed it away before it answers; its task is the rest.
func (l *Loop) remove(ctx context.Context, f dbgen.Folder, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	if f.UnmanagedPath != nil {
		return l.removed(ctx, f, nil)
	}
	task := f.ID // of a creation that is undone
	if f.TaskID != nil {
		task = *f.TaskID
	}
	t, err := l.task(ctx, host.Proxy, task)
	if err == nil && t == nil {
		ref := cluster.FolderRef{Scope: scope, Folder: cluster.FolderID(f.ID)}
		err = l.do(ctx, host.Proxy, "POST", storage.PathFolderDelete,
			storage.FolderRequest{Volume: host.Volume, VFID: ref.String(), TaskID: task}, nil)
		if fault.Is(err, fault.NotFound) && fault.ReasonOf(err) != "volume-not-found" {
			return l.removed(ctx, f, nil) // there is nothing
		}
	}
	switch {
	case err != nil && (definite(err) || f.Tried >= maxTries):
		return l.removed(ctx, f, err)
	case err != nil || t == nil:
		return err
	}
	switch t.State {
	case storage.TaskDone:
		return l.removed(ctx, f, nil)
	case storage.TaskFailed, storage.TaskCancelled:
		return l.removed(ctx, f, fault.Unavailablef("the storage proxy gave up: %s", t.Message))
	}
	return nil
}

func (l *Loop) removed(ctx context.Context, f dbgen.Folder, failure error) error {
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		move := moveTo(f.ID, cluster.FolderDeleteComplete, cluster.FolderDeleteOngoing)
		if failure != nil {
			move = moveTo(f.ID, cluster.FolderDeleteError, cluster.FolderDeleteOngoing)
			move.Info = store.Text("removing failed: " + failure.Error())
		}
		if _, err := tx.MoveFolder(ctx, move); err != nil {
			return err
		}
		if failure == nil && f.TaskID == nil {
			_, err := tx.ForgetFolder(ctx, f.ID) // it never was
			return err
		}
		return nil
	})
}

// follow writes how far a background task is.
func (l *Loop) follow(ctx context.Context, row dbgen.LiveFolderTasksRow) error {
	end := func(status, words string, t storage.Task) error {
		return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
			return closeTask(ctx, tx, row.TaskID, status, words, t.Current, t.Total)
		})
	}
	if row.TaskStatus != "started" || row.Kind == taskClone { // a clone whose folder is settled
		return end("failed", "the folder was deleted", storage.Task{})
	}
	t, err := l.task(ctx, row.Proxy, row.TaskID)
	switch {
	case err != nil:
		l.mu.Lock()
		since, away := l.away[row.Proxy]
		l.mu.Unlock()
		if away && l.s.d.Clock().Sub(since) > taskGone {
			return end("failed", "the storage proxy has not answered for a day", storage.Task{Current: row.Current, Total: row.Total})
		}
		return nil // the next pass asks again
	case t == nil && l.s.d.Clock().Sub(row.CreatedAt) > taskLost:
		return end("failed", "the storage proxy does not know the task: it never began, or ended more than a day ago", storage.Task{})
	case t == nil:
		return nil
	}
	switch t.State {
	case storage.TaskDone:
		return end("done", t.Message, *t)
	case storage.TaskFailed:
		return end("failed", t.Message, *t)
	case storage.TaskCancelled:
		return end("cancelled", t.Message, *t)
	}
	if t.Message == row.Message && t.Current == row.Current && t.Total == row.Total {
		return nil
	}
	return l.progress(ctx, row.TaskID, t)
}

func (l *Loop) progress(ctx context.Context, id string, t *storage.Task) error {
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		tx.Wake(taskTopic(id))
		return tx.SetTask(ctx, dbgen.SetTaskParams{ID: id, Status: "started", Message: store.Text(t.Message), Current: t.Current, Total: t.Total})
	})
}

// limit tells a proxy the limit of a scope.
func (l *Loop) limit(ctx context.Context, row dbgen.ScopesToApplyRow) error {
	host, err := cluster.ParseVolumeHost(row.Host)
	if err != nil {
		return err
	}
	scope, err := cluster.ParseQuotaScope(row.QuotaScope)
	if err != nil {
		return err
	}
	err = l.unless(ctx, host.Proxy, func(ctx context.Context) error { return l.s.applyScope(ctx, host, scope, row.WantBytes) })
	if err == nil {
		return nil
	}
	if !errors.Is(err, errSilent) {
		l.s.d.Log.Warn("could not limit a scope; trying again", "host", row.Host, "scope", row.QuotaScope, "error", err)
	}
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error { return tx.ScopeTried(ctx, row.Host, row.QuotaScope) })
}

// keepHouse counts what was counted longest ago and forgets what was removed long ago, now and then.
func (l *Loop) keepHouse(ctx context.Context) error {
	if err := l.remember(ctx); err != nil {
		return err
	}
	if err := l.countStale(ctx); err != nil {
		return err
	}
	now := l.s.d.Clock()
	if !l.houseAt.IsZero() && now.Sub(l.houseAt) < houseEvery {
		return nil
	}
	l.houseAt = now
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		if _, err := tx.ForgetRemovedFolders(ctx, rowsKeptFor, passRows); err != nil {
			return fmt.Errorf("forget removed folders: %w", err)
		}
		return tx.MountedFoldersUsed(ctx)
	})
}

// maxUncounted bounds what is remembered not to be counted; with more, nothing is counted until the first of them may be again.
const maxUncounted = 1000

// countStale counts some of the folders that were counted longest ago. What could not be counted keeps its size and its time;
// others have their turn.
func (l *Loop) countStale(ctx context.Context) error {
	now := l.s.d.Clock()
	besides, hosts := []string{}, []string{}
	for key, at := range l.uncounted {
		_, err := cluster.ParseVolumeHost(key)
		switch {
		case err == nil && now.Sub(at) < houseEvery:
			hosts = append(hosts, key)
		case err != nil && now.Sub(at) < sizeAge:
			besides = append(besides, key)
		default:
			delete(l.uncounted, key)
		}
	}
	if len(l.uncounted) >= maxUncounted {
		return nil
	}
	stale, err := l.s.d.Store.StaleSizes(ctx, sizeAge, besides, hosts, sizeRows)
	if err != nil {
		return fmt.Errorf("look for sizes: %w", err)
	}
	var work []func() error
	for _, r := range stale {
		work = append(work, func() error { return l.size(ctx, r) })
	}
	return l.each(work)
}

func (l *Loop) size(ctx context.Context, r dbgen.StaleSizesRow) error {
	host, err := cluster.ParseVolumeHost(r.Host)
	if err != nil {
		return err
	}
	scope, err := cluster.ParseQuotaScope(r.QuotaScope)
	if err != nil {
		return err
	}
	p := place{Folder: Folder{ID: cluster.FolderID(r.ID), Host: r.Host, Scope: scope}, host: host}
	p.vfid = p.ref().String()
	err = l.unless(ctx, host.Proxy, func(ctx context.Context) error {
		_, err := l.s.count(ctx, p, sizeTime)
		return err
	})
	if err == nil || ctx.Err() != nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.uncounted == nil {
		l.uncounted = map[string]time.Time{}
	}
	if definite(err) {
		l.uncounted[r.ID] = l.s.d.Clock()
	} else {
		l.uncounted[r.Host] = l.s.d.Clock()
	}
	return nil
}
