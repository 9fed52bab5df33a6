package runner

import (
	"context"
	"strings"
	"sync"
	"time"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/runner/output"
	"berth.dev/berth/internal/runner/zmtp"
	"berth.dev/berth/internal/wire/run"
)

// queue holds the runs of a session. They execute one after the other, in the order of
// their start, because they share one interpreter and one working directory.
type queue struct {
	limits   run.Limits
	spillDir string
	mirror   func(stream string) *mirror

	mu      sync.Mutex
	jobs    map[string]*job
	waiting []*job
	ended   []*job // oldest first
	current *job
	count   int64
	closed  bool
	wake    chan struct{} // holds one token when something waits
}

func newQueue(l run.Limits, spillDir string, m func(string) *mirror) *queue {
	return &queue{limits: l, spillDir: spillDir, mirror: m, jobs: map[string]*job{}, wake: make(chan struct{}, 1)}
}

// step is POST /v1/runs/{id}/step.
func (q *queue) step(ctx context.Context, id string, req run.StepRequest) (run.StepResult, func(), error) {
	if id == "" || len(id) > run.MaxRunID {
		return run.StepResult{}, nil, fault.Invalidf("a run id has 1 to %d bytes", run.MaxRunID)
	}
	if req.WaitMS < 0 || req.FlushMS < 0 || req.MaxBytes < 0 || req.LeaseMS < 0 || req.From != nil && *req.From < 0 {
		return run.StepResult{}, nil, fault.Invalidf("step of run %s: a number is negative", id)
	}
	var j *job
	var err error
	switch req.Mode {
	case run.ModeQuery, run.ModeBatch:
		j, err = q.start(id, req)
	case run.ModeInput, run.ModeContinue:
		if j = q.find(id); j == nil {
			err = fault.NotFoundf("there is no run %s in this session", id).WithReason("run-not-found").WithNext("start the code again")
		} else if req.Mode == run.ModeInput {
			err = j.answer(req)
		}
	default:
		err = fault.Invalidf("mode %q is none of query, batch, input, continue", req.Mode)
	}
	if err != nil {
		return run.StepResult{}, nil, err
	}
	return j.step(ctx, req)
}

func (q *queue) find(id string) *job {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.jobs[id]
}

// start makes a run, or finds the one that an earlier copy of the request made.
func (q *queue) start(id string, req run.StepRequest) (*job, error) {
	hash := hashOf(req)
	q.mu.Lock()
	defer q.mu.Unlock()
	if j := q.jobs[id]; j != nil {
		j.mu.Lock()
		over, delivered := j.done || j.delivered, j.delivered
		j.mu.Unlock()
		same := j.hash == hash
		switch {
		case same && (req.From != nil || !over || !delivered):
			return j, nil // the same request again
		case !over:
			return nil, fault.Conflictf("run %s is still going on with other code", id).WithReason("run-in-progress").
				WithNext("wait for its end, or interrupt it")
		}
		q.forget(j)
	}
	if q.closed {
		return nil, fault.Unavailablef("the session is ending")
	}
	if id == run.BatchRunID {
		return nil, fault.Conflictf("the run id %s is reserved", id)
	}
	if len(q.waiting) >= q.limits.MaxRuns {
		return nil, fault.Exhaustedf("%d runs wait for their turn in this session already", len(q.waiting)).WithReason("too-many-runs").
			WithNext("wait for the running code, or interrupt it")
	}
	j := q.newJob(id, output.Wait)
	j.mode, j.code, j.hash = req.Mode, req.Code, hash
	if req.Options != nil {
		j.opts = *req.Options
	}
	q.waiting = append(q.waiting, j)
	q.kick()
	return j, nil
}

// newJob registers a run; q.mu is held.
func (q *queue) newJob(id string, p output.Policy) *job {
	j := &job{id: id, maxItem: q.limits.MaxMedia, mirror: q.mirror, read: time.Now()}
	j.log = output.NewLog(output.Limits{Memory: q.limits.OutputMemory, Spill: q.limits.OutputSpill, Overshoot: zmtp.MaxMessage + 8<<20,
		SpillDir: q.spillDir}, p)
	j.ctx, j.cancel = context.WithCancel(context.Background())
	q.jobs[id] = j
	return j
}

func (q *queue) kick() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// forget drops an ended run; q.mu is held.
func (q *queue) forget(j *job) {
	if q.jobs[j.id] == j {
		delete(q.jobs, j.id)
	}
	for i, e := range q.ended {
		if e == j {
			q.ended = append(q.ended[:i:i], q.ended[i+1:]...)
			break
		}
	}
	j.log.Close()
}

// next returns the run whose turn it is, waiting for one; nil when ctx ends.
func (q *queue) next(ctx context.Context) *job {
	for {
		q.mu.Lock()
		if len(q.waiting) > 0 {
			j := q.waiting[0]
			q.waiting = q.waiting[1:]
			q.current = j
			j.mu.Lock()
			j.started = true
			j.mu.Unlock()
			q.mu.Unlock()
			return j
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// end notes that a run is over and keeps it for its reader; of too many kept ones the oldest
// goes, delivered ones first.
func (q *queue) end(j *job, status run.Status, exit int) {
	q.mu.Lock()
	if q.current == j {
		q.current = nil
	}
	q.count++
	q.ended = append(q.ended, j)
	for len(q.ended) > q.limits.KeepRuns {
		victim := q.ended[0]
		for _, e := range q.ended {
			e.mu.Lock()
			delivered := e.delivered
			e.mu.Unlock()
			if delivered {
				victim = e
				break
			}
		}
		q.forget(victim)
	}
	q.mu.Unlock()
	j.finish(status, exit)
}

// interrupt finds the run to interrupt: the named one, or the current one. A run that still
// waits is ended here.
func (q *queue) interrupt(id string) *job {
	q.mu.Lock()
	j := q.current
	if id != "" {
		j = q.jobs[id]
	}
	if j == nil {
		q.mu.Unlock()
		return nil
	}
	for i, w := range q.waiting {
		if w == j {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			q.mu.Unlock()
			j.TextNow("stderr", "The run was cancelled before its turn came.\n")
			q.end(j, run.StatusFinished, 130)
			return j
		}
	}
	q.mu.Unlock()
	return j
}

// crowded reports that runs wait.
func (q *queue) crowded() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.waiting) > 0
}

// close ends all waiting: nothing starts any more and output that nobody reads is dropped.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	jobs := make([]*job, 0, len(q.jobs))
	for _, j := range q.jobs {
		jobs = append(jobs, j)
	}
	q.mu.Unlock()
	for _, j := range jobs {
		j.log.Loosen()
		j.cancel()
	}
}

// cleanCommand reads a batch command: empty means to skip it.
func cleanCommand(s *string) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(*s)
}
