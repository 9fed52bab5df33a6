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
	// probeEvery is how often a proxy that does not answer is asked for the sake of a folder whose own turn comes later: work goes on
	// within seconds of its return. These attempts do not count.
	probeEvery = 3 * time.Second
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

// Loop runs on the leader. Rows of folders say what should be true; only storage proxies can make some of it true. The loop asks them:
// to finish folders whose creation was interrupted, to copy, to remove, to limit scopes; and it follows their background tasks.
//
// Each pass compares all rows that are not settled with what proxies say. Requests carry ids that the manager chose, so repeating a
// request after a crash of the manager or the proxy changes nothing.
type Loop struct {
	s      *Service
	commit Commit

	houseAt time.Time
	known   map[string]knownVolume // what the setting settingKnown holds
	// uncounted holds folders (by id) and hosts whose size could not be counted, with the time of that attempt.
	uncounted map[string]time.Time

	mu sync.Mutex
	// probes holds folders (by id) whose proxy did not answer, with the time when it is asked again.
	probes map[string]time.Time
	silent map[string]bool // proxies that did not answer in this pass
	// away holds proxies that have not answered since the given time.
	away map[string]time.Time
	// passed are folders that this pass skipped because their proxy is silent.
	passed []string
}

// NewLoop makes the loop of one leader's term.
func (s *Service) NewLoop(commit Commit) *Loop {
	return &Loop{s: s, commit: commit, away: map[string]time.Time{}, probes: map[string]time.Time{}}
}

// Pass looks at everything that is not settled once. live says that there was something, so the next pass should come soon.
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
	// Each query is bounded. Tasks of proxies that did not answer are read separately, so that they do not fill the bound.
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
	copying, waiting := map[string]bool{}, map[string]bool{}
	for _, f := range folders {
		if f.TaskID != nil {
			copying[*f.TaskID] = true
		}
		waiting[f.ID] = true
		now := l.s.d.Clock()
		at, asked := l.probes[f.ID]
		if turn := due(f, now); turn || asked && !now.Before(at) {
			work = append(work, func() error { return l.settle(ctx, f, turn) })
		}
	}
	maps.DeleteFunc(l.probes, func(id string, _ time.Time) bool { return !waiting[id] })
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

// due reports whether the loop should work on a folder in this pass. After a failure it waits, longer each time. A folder that is being
// created belongs to the request that creates it alone until unsettledFor has passed.
func due(f dbgen.Folder, now time.Time) bool {
	if f.TriedAt != nil && f.Tried > 0 {
		wait := min(time.Second<<min(f.Tried-1, 10), maxBackoff)
		return now.Sub(*f.TriedAt) >= wait
	}
	return cluster.FolderStatus(f.Status) != cluster.FolderPerforming || now.Sub(f.StatusChanged) >= unsettledFor
}

// definite reports whether an error is final: the proxy has answered, and the same request would fail again.
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

// unless runs a step that asks a proxy. If the proxy did not answer an earlier step of this pass, it returns errSilent at once. So a
// proxy that hangs delays a pass by one timeout only.
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

// errSilent means that the proxy was not asked. It does not count as an attempt.
var errSilent = fault.Unavailablef("the storage proxy does not answer")

// settle makes the next step for a folder that is being made, copied or removed, and notes a failure in its row; one that only tells that
// its proxy is still away counts if it is the folder's turn.
func (l *Loop) settle(ctx context.Context, f dbgen.Folder, turn bool) error {
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
	if !definite(err) {
		l.mu.Lock()
		l.probes[f.ID] = l.s.d.Clock().Add(probeEvery)
		l.mu.Unlock()
		if !turn {
			return nil
		}
	}
	l.s.d.Log.Warn("a folder cannot go on yet", "folder", f.ID, "host", f.Host, "status", f.Status, "tried", f.Tried+1, "error", err)
	return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
		return tx.FolderTried(ctx, store.Text("trying again: "+err.Error()), f.ID, f.Status)
	})
}

func (l *Loop) write(ctx context.Context, fn func(ctx context.Context, tx *store.Tx) error) error {
	return l.commit(ctx, fn)
}

// finish completes a folder whose creating request ended early. When that cannot succeed, the folder is marked for removal.
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
		// If no row moves, the creating request was still running and has marked the folder ready itself.
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

// noViewer is an id that no user has, for queries that want a viewer although no rights are read.
const noViewer = "00000000-0000-0000-0000-000000000000"

// beginCopy asks the proxy to start the copy.
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

// copied records that a copy ended: the folder is ready, or in error if failure is set.
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

// remove asks a proxy to remove a folder. Before it answers, the proxy moves the directory into its trash; its task deletes the files.
func (l *Loop) remove(ctx context.Context, f dbgen.Folder, host cluster.VolumeHost, scope cluster.QuotaScope) error {
	if f.UnmanagedPath != nil {
		return l.removed(ctx, f, nil)
	}
	task := f.ID // a failed creation that is undone has no task id of its own
	if f.TaskID != nil {
		task = *f.TaskID
	}
	t, err := l.task(ctx, host.Proxy, task)
	if err == nil && t == nil {
		ref := cluster.FolderRef{Scope: scope, Folder: cluster.FolderID(f.ID)}
		err = l.do(ctx, host.Proxy, "POST", storage.PathFolderDelete,
			storage.FolderRequest{Volume: host.Volume, VFID: ref.String(), TaskID: task}, nil)
		if fault.Is(err, fault.NotFound) && fault.ReasonOf(err) != "volume-not-found" {
			return l.removed(ctx, f, nil) // there was no directory
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

// removed records that a removal ended. A folder whose creation failed leaves no row.
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
			_, err := tx.ForgetFolder(ctx, f.ID) // its creation failed: nobody has ever seen it
			return err
		}
		return nil
	})
}

// follow asks a proxy about a background task and records its progress or its end.
func (l *Loop) follow(ctx context.Context, row dbgen.LiveFolderTasksRow) error {
	end := func(status, words string, t storage.Task) error {
		return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
			return closeTask(ctx, tx, row.TaskID, status, words, t.Current, t.Total)
		})
	}
	if row.TaskStatus != "started" || row.Kind == taskClone { // a clone whose folder is settled
		return l.write(ctx, func(ctx context.Context, tx *store.Tx) error {
			// The clone may have come after the pass had read the folders.
			if copying, err := tx.IsCopying(ctx, &row.TaskID); err != nil || copying {
				return err
			}
			return closeTask(ctx, tx, row.TaskID, "failed", "the folder was deleted", 0, 0)
		})
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

// keepHouse does periodic work: it stores what is known of volumes, counts the folders whose sizes are oldest, deletes the rows of
// folders that were removed long ago, and notes that mounted folders are in use.
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

// maxUncounted bounds Loop.uncounted. While it is full, nothing is counted; its entries expire.
const maxUncounted = 1000

// countStale counts a few of the folders whose sizes are oldest. Folders and hosts in uncounted are left out, so that one which cannot be
// counted does not keep the others from their turn.
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
