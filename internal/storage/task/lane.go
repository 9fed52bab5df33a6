package task

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/task/s3"
	"berth.dev/berth/internal/storage/volume"
	wire "berth.dev/berth/internal/wire/storage"
)

var errCancelled = errors.New("the task was cancelled")

// serve looks for tasks that nobody works on, at once and then again and again.
func (l *lane) serve(ctx context.Context) {
	defer l.running.Wait()
	for {
		if v, err := l.e.o.Volumes.Volume(l.name); err == nil {
			if err := l.scan(ctx, v); err != nil && ctx.Err() == nil {
				l.e.o.Log.Warn("could not look for tasks", "volume", l.name, "error", err)
			}
		}
		if !l.idle(ctx, l.wake, scanEvery) {
			return
		}
	}
}

// idle waits for a wake, or for d at most; false when ctx ends.
func (l *lane) idle(ctx context.Context, wake <-chan struct{}, d time.Duration) bool {
	wctx, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := make(chan struct{})
	go func() {
		defer close(timer)
		_ = l.e.o.Clock.Wait(wctx, d) // ends with the wait
	}()
	select {
	case <-wake:
	case <-timer:
	case <-ctx.Done():
	}
	cancel()
	<-timer
	return ctx.Err() == nil
}

// scan reads the journal, forgets old results and begins what nobody works on, oldest first.
func (l *lane) scan(ctx context.Context, v volume.Volume) error {
	journal := v.Tasks()
	names, err := journal.List()
	if err != nil {
		return err
	}
	now := l.e.o.Clock.Now()
	var open []document
	present := map[string]bool{}
	for _, name := range names {
		id, ok := strings.CutPrefix(name, documentPrefix)
		if !ok {
			continue
		}
		present[id] = true
		l.mu.Lock()
		_, done := l.finished[id]
		j := l.active[id]
		l.mu.Unlock()
		if done {
			continue
		}
		if j != nil {
			open = append(open, j.snapshot())
			continue
		}
		d, err := read(journal, id)
		switch {
		case fault.Is(err, fault.NotFound):
			delete(present, id)
		case fault.Is(err, fault.Unavailable):
			return err
		case err != nil: // one bad document must not hold up the others
			l.mu.Lock()
			l.broken[id] = err.Error()
			l.mu.Unlock()
		case d.final():
			l.mu.Lock()
			l.finished[id] = d.Ended
			l.mu.Unlock()
		default:
			open = append(open, d)
		}
	}
	for _, name := range names { // of tasks that have ended, or never began
		if id, ok := strings.CutPrefix(name, cancelPrefix); ok && !slices.ContainsFunc(open, func(d document) bool { return d.ID == id }) {
			if err := journal.Delete(name); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
	}
	slices.SortFunc(open, func(a, b document) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	l.mu.Lock()
	l.unfinished = map[string]int{}
	for _, d := range open {
		l.unfinished[d.scope()]++
	}
	for id := range l.finished {
		if !present[id] {
			delete(l.finished, id)
		}
	}
	for id := range l.broken {
		if !present[id] {
			delete(l.broken, id)
		}
	}
	l.mu.Unlock()
	if err := l.forget(journal, now); err != nil {
		return err
	}
	orphans := map[string]time.Time{}
	for _, d := range open {
		if ctx.Err() != nil {
			return nil
		}
		if now.Before(d.NotFor) {
			continue
		}
		mine, busy, wait := l.turn(d)
		if busy {
			break
		}
		if mine || wait {
			continue
		}
		began, err := l.begin(ctx, v, d.ID)
		if err != nil {
			return err
		}
		if !began && now.Sub(d.Updated) > 10*time.Minute {
			orphans[d.ID] = d.Updated // somebody holds it and reports nothing
		}
	}
	l.mu.Lock()
	l.orphans = orphans
	l.mu.Unlock()
	return nil
}

// turn tells whether this process works on d already, whether it has no worker left, and whether d has to wait
// although there is one: what depends on strangers' servers never takes all workers, nor does one quota scope.
func (l *lane) turn(d document) (mine, busy, wait bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	stores, scope := 0, 0
	for _, j := range l.active {
		if j.kind.transfers() {
			stores++
		}
		if j.scope == d.scope() {
			scope++
		}
	}
	most := l.e.o.Workers
	wait = d.Kind.transfers() && stores >= max(most/2, 1) || scope >= max(most-1, 1)
	return l.active[d.ID] != nil, len(l.active) >= most, wait
}

// forget deletes results that are a day old, and the oldest where there are too many.
func (l *lane) forget(journal volume.Journal, now time.Time) error {
	l.mu.Lock()
	type result struct {
		id    string
		ended time.Time
	}
	var results []result
	for id, ended := range l.finished {
		results = append(results, result{id, ended})
	}
	l.mu.Unlock()
	slices.SortFunc(results, func(a, b result) int { return a.ended.Compare(b.ended) })
	for i, r := range results {
		if now.Sub(r.ended) < keepFor && len(results)-i <= keepMost {
			return nil
		}
		if err := journal.Delete(documentPrefix + r.id); err != nil && !fault.Is(err, fault.NotFound) {
			return err
		}
		l.mu.Lock()
		delete(l.finished, r.id)
		l.mu.Unlock()
	}
	return nil
}

// job is a task that this process works on.
type job struct {
	cancel context.CancelCauseFunc
	kind   Kind
	scope  string

	mu     sync.Mutex
	doc    document
	dirty  bool
	resume func() s3.Resume // of transfers
}

func (j *job) snapshot() document {
	j.mu.Lock()
	d, resume := j.doc, j.resume
	j.mu.Unlock()
	if resume != nil {
		d.Resume = resume()
	}
	return d
}

func (j *job) change(f func(d *document)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.doc)
	j.dirty = true
}

func (j *job) tell(p volume.Progress) {
	j.change(func(d *document) { d.Current, d.Total, d.Message = p.Current, p.Total, p.Message })
}

// begin claims a task and works on it in the background; false when somebody else does.
func (l *lane) begin(ctx context.Context, v volume.Volume, id string) (bool, error) {
	journal := v.Tasks()
	release, ok, err := journal.Claim(documentPrefix + id)
	if err != nil || !ok {
		return false, err
	}
	d, err := read(journal, id) // as its last holder left it
	if err != nil || d.final() {
		release()
		if fault.Is(err, fault.NotFound) {
			err = nil
		}
		return false, err
	}
	jctx, cancel := context.WithCancelCause(ctx)
	j := &job{cancel: cancel, kind: d.Kind, scope: d.scope(), doc: d}
	l.mu.Lock()
	l.active[id] = j
	l.mu.Unlock()
	l.running.Go(func() {
		defer cancel(nil)
		l.work(ctx, jctx, v, j)
		release()
		l.mu.Lock()
		delete(l.active, id)
		l.mu.Unlock()
		poke(l.wake)
	})
	return true, nil
}

// journal is the volume's journal as it is open now: a volume that had failed is opened anew, and v, with which a task
// began, is closed then.
func (l *lane) journal(v volume.Volume) volume.Journal {
	if now, err := l.e.o.Volumes.Volume(l.name); err == nil {
		v = now
	}
	return v.Tasks()
}

// work does the task, saves its progress meanwhile and its result at the end. ctx ends with the process, jctx
// with the task.
func (l *lane) work(ctx, jctx context.Context, v volume.Volume, j *job) {
	log := l.e.o.Log.With("task", j.doc.ID, "kind", string(j.doc.Kind), "volume", l.name)
	j.change(func(d *document) {
		d.Begun++
		d.Updated = l.e.o.Clock.Now().UTC()
		if d.Kind.transfers() && d.Silent.IsZero() {
			d.Silent = d.Updated
		}
	})
	err := write(l.journal(v), j.snapshot())
	if err == nil || fault.Is(err, fault.Exhausted) { // on a full disk, deleting is what helps
		sctx, stop := context.WithCancel(jctx)
		var saving sync.WaitGroup
		saving.Go(func() { l.save(sctx, v, j) })
		err = l.do(jctx, v, j)
		stop()
		saving.Wait()
	}
	if ctx.Err() != nil && err != nil && !errors.Is(err, errCancelled) {
		// An orderly stop is no failed attempt; the next process goes on.
		j.change(func(d *document) { d.Begun-- })
		if werr := write(l.journal(v), j.snapshot()); werr != nil {
			log.Warn("could not save the progress of a task", "error", werr)
		}
		return
	}
	d := l.conclude(j.snapshot(), err)
	j.change(func(old *document) { *old = d })
	switch {
	case !d.final():
		log.Warn("a task is tried again", "error", err, "at", d.NotFor)
	case d.State == wire.TaskFailed:
		log.Warn("a task failed", "error", err)
	default:
		log.Info("a task ended", "state", string(d.State), "result", d.Message)
	}
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		err := write(l.journal(v), d)
		if err == nil {
			break
		}
		log.Warn("could not save the result of a task; trying again", "error", err)
		if l.e.o.Clock.Wait(ctx, wait) != nil {
			return // begun again by the next process
		}
	}
	if d.final() {
		if err := l.journal(v).Delete(cancelPrefix + d.ID); err != nil && !fault.Is(err, fault.NotFound) {
			log.Warn("could not delete the request to cancel a task", "error", err)
		}
	}
}

// conclude decides what an attempt that ended with err means for the task.
func (l *lane) conclude(d document, err error) document {
	now := l.e.o.Clock.Now().UTC()
	d.Updated = now
	if n := d.Resume.Count.Objects + d.Resume.Count.Skipped + d.Resume.Count.Refused; n > d.Seen {
		d.Seen, d.Silent = n, time.Time{}
	}
	if d.Kind.transfers() && d.Silent.IsZero() { // it got further: what failed before is forgotten
		d.Silent, d.Begun = now, 1
	}
	switch {
	case err == nil:
		d.State = wire.TaskDone
		if d.Total > 0 {
			d.Current = d.Total
		}
	case errors.Is(err, errCancelled):
		d.State, d.Message = wire.TaskCancelled, errCancelled.Error()
	case fault.ReasonOf(err) == s3.ReasonAway && d.Begun >= silentTries && now.Sub(d.Silent) >= patienceWith(d):
		d.State = wire.TaskFailed
		d.Message = fmt.Sprintf("the object store brought this no further for %s and it was given up: %s; check the endpoint and start it again",
			now.Sub(d.Silent).Round(time.Second), fault.Clip(err.Error(), maxReason))
	case d.Begun < maxBegun && (fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Timeout)):
		d.Message = "trying again: " + fault.Clip(err.Error(), maxEcho)
		d.NotFor = now.Add(min(time.Duration(1)<<min(d.Begun, 10)*time.Second, 5*time.Minute))
	default:
		d.State, d.Message = wire.TaskFailed, fault.Clip(err.Error(), maxReason)
		if next := fault.NextOf(err); next != "" {
			d.Message += "; " + next
		}
	}
	if d.final() {
		d.Ended = now
		// Whatever a finished task knew of the store is of no more use.
		d.Store, d.Resume = nil, s3.Resume{}
	}
	return d
}

// patienceWith is how long a transfer waits for its object store: one that never answered is mostly a wrong address.
func patienceWith(d document) time.Duration {
	if d.Best == 0 && d.Seen == 0 {
		return neverPatience
	}
	return silentPatience
}

// maxReason bounds the reason of a failure in a document.
const maxReason = 1000

// save writes the progress down every second, and looks whether somebody wants the task to end.
func (l *lane) save(ctx context.Context, v volume.Volume, j *job) {
	id := j.snapshot().ID
	for {
		journal := l.journal(v)
		if _, err := journal.Get(cancelPrefix + id); err == nil {
			j.cancel(errCancelled)
			return
		}
		if l.e.o.Clock.Wait(ctx, saveEvery) != nil {
			return
		}
		j.mu.Lock()
		dirty := j.dirty
		j.dirty = false
		j.doc.Updated = l.e.o.Clock.Now().UTC()
		j.mu.Unlock()
		if !dirty {
			continue
		}
		if err := write(journal, j.snapshot()); err != nil {
			l.e.o.Log.Warn("could not save the progress of a task", "task", id, "error", err)
		}
	}
}

// do does the work of one attempt.
func (l *lane) do(ctx context.Context, v volume.Volume, j *job) error {
	d := j.snapshot()
	if d.Begun > maxBegun {
		return fault.New(fault.Internal, "the task was begun %d times and never ended", maxBegun).WithNext("look at the proxy's log")
	}
	if _, err := v.Tasks().Get(cancelPrefix + d.ID); err == nil {
		return errCancelled
	}
	folder, err := cluster.ParseFolderRef(d.Folder)
	if err != nil {
		return err
	}
	switch d.Kind {
	case Clone:
		source, err := cluster.ParseFolderRef(d.Source)
		if err != nil {
			return err
		}
		err = v.CloneFolder(ctx, source, folder, j.tell)
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, errCancelled) {
			// What is half copied is nobody's folder.
			return errors.Join(cause, v.TrashFolder(context.WithoutCancel(ctx), folder))
		}
		return settle(ctx, err)
	case DeleteFiles:
		return settle(ctx, l.deleteFiles(ctx, v, folder, j))
	case Import, Export:
		return settle(ctx, l.transfer(ctx, v, folder, j))
	case DeleteFolder:
		defer poke(l.reap)
		return settle(ctx, v.TrashFolder(ctx, folder))
	}
	return fault.Invalidf("%q is no kind of task", d.Kind).WithNext("it was written by a newer proxy: bring this one up to date")
}

// settle names why the context ended, where that is what the error is about.
func settle(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// deleteFiles removes path after path. A path that is not there is done, because an earlier attempt may have
// removed it.
func (l *lane) deleteFiles(ctx context.Context, v volume.Volume, folder cluster.FolderRef, j *job) (err error) {
	tree, err := v.OpenFolder(ctx, folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tree.Close()) }()
	defer poke(l.reap)
	d := j.snapshot()
	total := int64(len(d.Paths))
	for i := d.Next; i < len(d.Paths); i++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		failed := ""
		if err := tree.Remove(d.Paths[i], d.Deep); err != nil && !fault.Is(err, fault.NotFound) {
			if fault.Is(err, fault.Unavailable) || fault.Is(err, fault.Internal) {
				return err
			}
			failed = d.Paths[i] + ": " + err.Error()
		}
		j.change(func(d *document) {
			d.Next, d.Current, d.Total = i+1, int64(i)+1, total
			if failed != "" && len(d.Failed) < 100 {
				d.Failed = append(slices.Clone(d.Failed), fault.Clip(failed, maxEcho))
			}
		})
	}
	if failed := j.snapshot().Failed; len(failed) > 0 {
		return fault.Conflictf("%d of %d paths were not deleted: %s", len(failed), total, strings.Join(failed[:min(3, len(failed))], "; "))
	}
	j.change(func(d *document) { d.Message = fmt.Sprintf("%d paths deleted", total) })
	return nil
}

// transfer copies from or to an object store.
func (l *lane) transfer(ctx context.Context, v volume.Volume, folder cluster.FolderRef, j *job) error {
	d := j.snapshot()
	if d.Store == nil {
		return fault.New(fault.Internal, "the task's document names no object store")
	}
	store, err := d.Store.open(l.e.o.SealKey, d.ID)
	if err != nil {
		return err
	}
	bucket, err := s3.Open(store, l.e.o.Stores)
	if err != nil {
		return err
	}
	defer bucket.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	var told atomic.Int64
	var watching sync.WaitGroup
	watching.Go(func() { l.watch(ctx, cancel, &told) })
	defer watching.Wait()
	defer cancel(nil)
	t := s3.Transfer{Volume: v, Folder: folder, Path: d.Path, Prefix: d.Prefix, Task: d.ID,
		Tell: func(p volume.Progress, resume func() s3.Resume) {
			told.Add(1)
			j.change(func(d *document) {
				d.Current, d.Total, d.Message = p.Current, p.Total, p.Message
				if p.Current > d.Best {
					d.Best, d.Silent = p.Current, time.Time{}
				}
			})
			j.mu.Lock()
			j.resume = resume
			j.mu.Unlock()
		}}
	move := bucket.Import
	if d.Kind == Export {
		move = bucket.Export
	}
	count, err := move(ctx, t, d.Resume)
	// From here on the document itself holds where to go on.
	j.change(func(d *document) {
		if j.resume != nil {
			d.Resume, j.resume = j.resume(), nil
		}
		if err == nil {
			d.Message = count.String()
		}
	})
	return err
}

// watch ends an attempt in which nothing happens any more.
func (l *lane) watch(ctx context.Context, end context.CancelCauseFunc, told *atomic.Int64) {
	for last := int64(-1); last != told.Load(); {
		last = told.Load()
		if l.e.o.Clock.Wait(ctx, stallPatience) != nil {
			return
		}
	}
	end(fault.Unavailablef("nothing was transferred for %s", stallPatience).WithReason(s3.ReasonAway).
		WithNext("check the endpoint, or try again later"))
}
