package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// kernel is one kernel with its goroutine.
type kernel struct {
	id cluster.KernelID
	k  *Keeper

	// Guarded by Keeper.mu. The goroutine alone replaces record and container once it runs;
	// what they point to is never changed in place.
	desired   *cluster.DesiredKernel
	absent    int
	record    *ledger.Record
	container *runtime.Observed
	missing   int
	scratch   bool
	uid       int   // the user number that no other kernel may get
	ports     []int // of the host, chosen and not recorded yet
	acked     bool
	oom       bool
	stale     bool // the container must be looked at again
	obs       cluster.KernelObservation
	reserved  alloc.Allocation
	waits     string                  // what the step that is tried again waits for
	note      string                  // what the owner should know of a kernel that runs
	starved   bool                    // processes of it were killed for want of memory while it ran
	stays     string                  // sum of rights that this host cannot take from a container
	evicted   *eviction               // set by the agent, never taken back within its generation
	unsaved   bool                    // the record is newer than the ledger, which could not be written
	told      time.Time               // when the progress of a pull was last reported
	cancel    context.CancelCauseFunc // of the step under way

	wake chan struct{}

	// Owned by the goroutine.
	image    runtime.Image
	folders  []runtime.Mount // of generation mounted
	mounted  int64
	started  int64         // the generation whose container this process has started
	step     Step          // tried last
	attempts int           // of that step
	since    time.Time     // by Keeper.awake
	slept    time.Duration // gaps that were known when the step began
	backoff  chassis.Backoff
	seat     bool // holds a place among those being created
}

// errReplan cancels a step because something else is wanted now.
var errReplan = errors.New("something else is wanted")

// poke wakes the kernel's goroutine; look makes it ask the runtime first. The caller holds mu.
func (n *kernel) poke(look bool) {
	n.stale = n.stale || look
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// want merges what the manager wants; the caller holds mu.
func (n *kernel) want(d cluster.DesiredKernel) {
	n.absent = 0
	old := n.desired
	if old != nil {
		switch {
		case d.Generation < old.Generation:
			return
		case d.Generation == old.Generation:
			if d.Spec == nil {
				d.Spec = old.Spec
			}
			if d.AuthorizedKeys == nil {
				d.AuthorizedKeys = old.AuthorizedKeys
			}
			if old.Stop && !d.Stop {
				return
			}
			d.Force = d.Force || old.Force
		}
	}
	n.desired = &d
	if nw := n.k.o.Network; nw != nil && !d.Stop {
		nw.SetEgress(n.id, d.Egress)
		nw.SetNetwork(n.id, d.Network)
	}
	same := old != nil && old.Generation == d.Generation && old.Stop == d.Stop && old.Force == d.Force
	if same {
		if !slices.Equal(old.Withheld, d.Withheld) || !slices.Equal(old.AuthorizedKeys, d.AuthorizedKeys) ||
			old.AllRun != d.AllRun || !old.Network.Equal(d.Network) || !slices.Equal(old.HostPeers, d.HostPeers) {
			n.poke(false)
		}
		return
	}
	if n.cancel != nil {
		n.cancel(errReplan)
	}
	n.poke(false)
}

// settle lets the kernel be forgotten: nobody waits for the end of this generation any more, and nobody's order asks for it. The caller
// holds mu.
func (n *kernel) settle(generation int64) {
	n.acked = true
	if n.desired != nil && n.desired.Generation <= generation {
		n.desired = nil
	}
	n.poke(false)
}

// run is the kernel's goroutine: look, plan, do, until nothing of the kernel is left.
func (n *kernel) run(ctx context.Context) {
	defer n.giveSeat()
	n.backoff = chassis.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second}
	for ctx.Err() == nil {
		v, ok := n.view(ctx)
		if !ok {
			continue
		}
		n.save()
		steps := plan(v)
		if len(steps) == 0 {
			if n.rest(v) {
				return
			}
			n.giveSeat()
			select {
			case <-ctx.Done():
			case <-n.wake:
			}
			continue
		}
		if stageOf(steps[0]) != stageOf(n.step) {
			n.attempts, n.since = 0, n.k.awake.Now()
			n.backoff.Reset()
		}
		n.step = steps[0]
		n.do(ctx, v)
	}
}

// stageOf groups steps that share one count of attempts and one deadline.
func stageOf(s Step) Step {
	switch s {
	case StepReserve, StepMount, StepImage, StepScratch, StepCreate:
		return StepCreate
	case StepStop, StepCollect, StepRemove, StepRelease:
		return StepStop
	}
	return s
}

// view takes a snapshot, after asking the runtime when somebody hinted at a change. ok
// is false when the runtime does not answer.
func (n *kernel) view(ctx context.Context) (view, bool) {
	k := n.k
	k.mu.Lock()
	stale := n.stale
	n.stale = false
	k.mu.Unlock()
	if stale {
		if err := n.look(ctx); err != nil {
			k.mu.Lock()
			n.stale = true
			k.mu.Unlock()
			k.o.Log.Debug("look at container", "kernel", n.id, "err", err)
			_ = chassis.Wait(ctx, k.o.Clock, n.backoff.Next()) // the loop sees the context's end
			return view{}, false
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return view{desired: n.desired, absent: n.absent, record: n.record, container: n.container,
		missing: n.missing, scratch: n.scratch, acked: n.acked, evicted: n.evicted.of(n.record), stays: n.stays}, true
}

// look asks the runtime about the container.
func (n *kernel) look(ctx context.Context) error {
	k := n.k
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	o, err := k.o.Runtime.Inspect(ctx, n.id)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case err == nil:
		n.container, n.missing = &o, 0
	case fault.Is(err, fault.NotFound):
		if n.container != nil || n.record != nil && n.record.Running && n.record.Final == nil {
			n.missing++
		}
		n.container = nil
	default:
		return fmt.Errorf("look at container: %w", err)
	}
	return nil
}

// rest is called when there is nothing to do; it reports, and returns true when the
// kernel is gone for good.
func (n *kernel) rest(v view) bool {
	k := n.k
	k.mu.Lock()
	defer k.mu.Unlock()
	n.step = ""
	switch r := n.record; {
	case r == nil && n.desired == nil && n.container == nil && !n.stale:
		delete(k.kernels, n.id)
		delete(k.report.progress, n.id)
		if k.o.Network != nil {
			k.o.Network.Release(n.id) // a peer may have asked for its address before it began
		}
		return true
	case r != nil && r.Final != nil:
		n.reserved = nil
		n.publish(cluster.PhaseEnded)
	case r != nil && r.Running:
		n.publish(cluster.PhaseRunning)
	}
	return false
}

// do carries out one step and decides what a failure means.
func (n *kernel) do(ctx context.Context, v view) {
	k := n.k
	n.slept = k.awake.Gaps()
	stepCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	k.mu.Lock()
	n.cancel = cancel
	if d := n.desired; d != v.desired {
		cancel(errReplan)
	}
	k.mu.Unlock()
	err := k.o.Before(stepCtx, n.id, string(n.step)+":before")
	if err == nil {
		err = n.perform(stepCtx, v)
	}
	if err == nil {
		err = k.o.Before(stepCtx, n.id, string(n.step)+":after")
	}
	k.mu.Lock()
	n.cancel = nil
	if err == nil && n.waits != "" {
		n.waits = ""
		n.publish(n.obs.Phase)
	}
	k.mu.Unlock()
	switch {
	case err == nil, ctx.Err() != nil:
	case errors.Is(context.Cause(stepCtx), errReplan):
		k.mu.Lock()
		n.stale = true // a cancelled call may have had its effect
		k.mu.Unlock()
	default:
		n.attempts++
		n.failed(ctx, v, err)
	}
}

// failed decides between another attempt and a named end.
func (n *kernel) failed(ctx context.Context, v view, err error) {
	k := n.k
	n.giveSeat()
	spent := k.awake.Now().Sub(n.since)
	switch {
	case !errors.Is(err, context.DeadlineExceeded):
	case k.awake.Gaps() > n.slept:
		err = fault.Unavailablef("this agent did not run for a while").WithCause(err)
	default:
		err = fault.New(fault.Timeout, "it took too long").WithCause(err)
	}
	k.mu.Lock()
	n.stale = true
	k.mu.Unlock()
	switch n.step {
	case StepReserve, StepMount, StepImage, StepScratch, StepCreate, StepAwait:
		reason, limit := cluster.ReasonFailedToCreate, k.times.Create
		late := cluster.ReasonCreateTimeout
		switch n.step {
		case StepImage:
			reason, late = cluster.ReasonFailedToPull, cluster.ReasonPullTimeout
		case StepAwait:
			reason, late, limit = cluster.ReasonFailedToStart, cluster.ReasonStartTimeout, k.times.Start
		}
		if fault.ReasonOf(err) == ReasonHostPorts {
			reason, late = cluster.ReasonBusy, cluster.ReasonBusy
		}
		if fault.ReasonOf(err) == string(cluster.ReasonBusy) {
			reason, late, limit = cluster.ReasonBusy, cluster.ReasonBusy, k.times.Busy
		}
		if !n.hopeless(err) && spent < limit {
			n.tell(err)
			break
		}
		if fault.Is(err, fault.Timeout) || fault.Is(err, fault.Unavailable) && spent >= limit {
			reason = late
		}
		if unsure := n.settleStart(ctx, v); unsure != nil {
			k.o.Log.Warn("whether a batch command started is not known yet, so its failure is not reported", "kernel", n.id, "err", unsure)
			n.tell(unsure)
			break
		}
		if n.begun(v) {
			return // its command has started: it is no failed creation
		}
		n.giveUp(v, reason, err)
		return
	case StepStop, StepRemove, StepRelease, StepCollect:
		if limit := n.grace(v) + k.times.Stop; spent < limit {
			break
		}
		k.o.Log.Error("a kernel resists its removal; it is fenced and tried again", "kernel", n.id, "step", n.step, "err", err)
		n.fence(v, err)
	}
	wait := n.backoff.Next()
	k.o.Log.Warn("a step failed and will be tried again", "kernel", n.id, "step", n.step, "attempt", n.attempts, "in", wait, "err", err)
	t := k.o.Clock.NewTimer(wait)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C():
			return
		case <-n.wake:
			k.mu.Lock()
			changed := n.desired != v.desired
			k.mu.Unlock()
			if changed {
				return
			}
		}
	}
}

// tell reports what a kernel waits for that cannot be created yet.
func (n *kernel) tell(err error) {
	if fault.KindOf(err) != fault.Unavailable {
		return // it is tried again a few times at once
	}
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.waits = err.Error()
	n.publish(n.obs.Phase)
}

// hopeless reports whether the same attempt would fail in the same way.
func (n *kernel) hopeless(err error) bool {
	switch fault.KindOf(err) {
	case fault.Unavailable:
		return false
	case fault.Invalid, fault.Exhausted, fault.Denied, fault.Timeout:
		return true
	case fault.NotFound:
		return n.step == StepImage || n.attempts >= 3
	case fault.Conflict:
		return n.step == StepReserve || n.step == StepImage || n.attempts >= 3
	}
	return n.attempts >= 3
}

// elsewhere reports whether another agent may succeed where this one failed.
func elsewhere(err error) bool {
	switch fault.KindOf(err) {
	case fault.Invalid, fault.Denied:
		return false
	}
	return fault.ReasonOf(err) != host.ReasonOwnDisk // it would be as full there
}

// agentsFault reports whether a step plainly failed for something of this agent's making, so that every other session would have
// failed as well: its disk, its engine, its network. A folder's volume and an image's registry are not the agent's. What is not known to
// be so is not plain: what owners choose (names, targets, files of a home) leads to errors of all kinds, and one of them must not be able
// to close agents.
func agentsFault(step Step, err error) bool {
	kind, reason := fault.KindOf(err), fault.ReasonOf(err)
	switch {
	case kind == fault.Invalid, kind == fault.Denied, kind == fault.Conflict, reason == host.ReasonOwnDisk:
		return false
	case reason == runtime.ReasonDisk, reason == runtime.ReasonEngine:
		return true
	}
	switch step {
	case StepReserve, StepScratch, StepCreate:
	default:
		return false
	}
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EROFS, syscall.EIO, syscall.ENFILE, syscall.EMFILE} {
		if errors.Is(err, full) {
			return true
		}
	}
	return kind == fault.Unavailable
}

func (n *kernel) grace(v view) time.Duration {
	switch d := v.desired; {
	case v.evicted, d != nil && d.Stop && d.Force:
		return 0
	case d != nil && d.Stop && d.Grace > 0:
		return d.Grace
	}
	return cluster.StopGrace
}

// update changes the record, in memory and on disk. It is for ends alone, which never wait for the disk: a record that cannot be
// written now is written later. An agent that is killed before that finds the container gone and reports its end as such.
func (n *kernel) update(change func(r *ledger.Record)) {
	r := n.record.Clone()
	change(r)
	n.keep(r)
}

// keep makes r the record and writes it, now or later.
func (n *kernel) keep(r *ledger.Record) {
	err := n.k.o.Ledger.Put(r)
	if err != nil {
		n.k.o.Log.Error("the end of a kernel cannot be recorded yet; it goes on all the same", "kernel", n.id, "err", err)
	}
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.record, n.unsaved = r, err != nil
}

// save writes a record that could not be written before. Every sweep tries again.
func (n *kernel) save() {
	n.k.mu.Lock()
	r, unsaved := n.record, n.unsaved
	n.k.mu.Unlock()
	if !unsaved || r == nil {
		return
	}
	if err := n.k.o.Ledger.Put(r); err != nil {
		n.k.o.Log.Debug("the end of a kernel cannot be recorded yet", "kernel", n.id, "err", err)
		return
	}
	n.k.o.Log.Info("the end of a kernel is recorded", "kernel", n.id)
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.unsaved = false
}

// giveUp records a failure of creation; the plan then cleans up.
func (n *kernel) giveUp(v view, reason cluster.Reason, cause error) {
	k := n.k
	k.o.Log.Warn("a kernel could not be created", "kernel", n.id, "reason", reason, "err", cause)
	d := v.desired
	now := k.o.Clock.Now()
	detail := cause.Error()
	if next := fault.NextOf(cause); next != "" {
		detail += "; " + next
	}
	r := n.record.Clone()
	if r == nil || d != nil && d.Generation > r.Generation {
		r = &ledger.Record{Kernel: n.id, Session: d.Session, Generation: d.Generation, UID: n.uid}
	}
	r.EndsAt = now
	r.Final = &cluster.KernelObservation{
		Kernel: n.id, Session: r.Session, Generation: r.Generation, Phase: cluster.PhaseEnded, Reason: reason, Detail: detail,
		Failed: true, RetryElsewhere: elsewhere(cause), AgentsFault: agentsFault(n.step, cause), EndedAt: now, Allocation: r.Allocation,
		Batch: r.Batch,
	}
	if r.Rows != nil {
		n.saveLog(context.WithoutCancel(k.ctx))
	}
	n.keep(r)
	k.mu.Lock()
	defer k.mu.Unlock()
	n.stale, n.scratch = true, true
	n.publish(cluster.PhaseTerminating)
}

// fence reports the end of a kernel whose container cannot be removed. Its devices stay reserved, and the removal is tried
// again.
func (n *kernel) fence(v view, cause error) {
	k := n.k
	if n.record == nil || n.record.Fenced {
		return
	}
	n.update(func(r *ledger.Record) {
		r.Fenced = true
		if r.Final == nil {
			o := finalOf(ending{record: r, container: v.container, desired: v.desired, now: k.o.Clock.Now(), traces: n.traces()})
			r.Final, r.EndsAt = &o, k.o.Clock.Now()
		}
		r.Final.Detail = "it could not be removed from its host: " + cause.Error()
		// What still runs may start a batch session's command after this.
		r.Final.RetryElsewhere = r.Final.Failed && !r.Batch
	})
	k.mu.Lock()
	defer k.mu.Unlock()
	n.publish(cluster.PhaseEnded)
}

// takeSeat waits for a place among the kernels being created.
func (n *kernel) takeSeat(ctx context.Context) error {
	if n.seat {
		return nil
	}
	select {
	case n.k.creating <- struct{}{}:
		n.seat = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (n *kernel) giveSeat() {
	if n.seat {
		n.seat = false
		<-n.k.creating
	}
}

// remember keeps the generation of a forgotten kernel; the caller holds mu. The oldest are dropped first: late messages arrive soon.
func (k *Keeper) remember(id cluster.KernelID, generation int64) {
	if len(k.forgotten) >= maxForgotten {
		k.forgotten, k.longForgotten = map[cluster.KernelID]int64{}, k.forgotten
	}
	k.forgotten[id] = generation
}
