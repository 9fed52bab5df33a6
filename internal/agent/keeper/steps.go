package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sync"
	"time"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/agent/host"
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/network"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/run"
)

// perform carries out the kernel's present step.
func (n *kernel) perform(ctx context.Context, v view) error {
	switch n.step {
	case StepAdopt:
		return n.adopt(v)
	case StepReserve:
		return n.reserve(ctx, v)
	case StepMount:
		return n.mount(ctx, v)
	case StepImage:
		return n.findImage(ctx, v)
	case StepScratch:
		return n.prepare(ctx, v)
	case StepCreate:
		return n.create(ctx, v)
	case StepAwait:
		return n.await(ctx, v)
	case StepRights:
		return n.rights(ctx, v)
	case StepPeers:
		return n.tellPeers(ctx, v)
	case StepStop:
		return n.stop(ctx, v)
	case StepCollect:
		return n.collect(ctx, v)
	case StepBury:
		return n.bury(v)
	case StepRemove:
		return n.remove(ctx, v)
	case StepRelease:
		return n.release(ctx, v)
	case StepForget:
		return n.forget(v)
	case StepLook:
		if err := chassis.Wait(ctx, n.k.o.Clock, 500*time.Millisecond); err != nil {
			return err
		}
		return n.look(ctx)
	}
	return fmt.Errorf("unknown step %q", n.step)
}

// show publishes a phase.
func (n *kernel) show(p cluster.Phase) {
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.publish(p)
}

// adopt writes a record for a container that only its labels describe.
func (n *kernel) adopt(v view) error {
	c := v.container
	r := &ledger.Record{
		Kernel: n.id, Session: c.Identity.Session, Generation: c.Identity.Generation, Allocation: c.Identity.Allocation,
		Rows: rows(n.id, c.Identity.Generation, 0),
		// Whether its runner ever answered is unknown; a running container is taken as it is.
		Running: c.Phase == runtime.PhaseRunning, StartedAt: c.StartedAt,
	}
	if conf, err := n.k.o.Host.Runner(n.id); err == nil {
		r.Token, r.Batch, r.HostPorts = conf.Token, conf.Batch != nil, conf.HostPorts
	}
	n.k.mu.Lock()
	r.UID = n.uid
	n.k.mu.Unlock()
	a, err := alloc.Parse(r.Allocation)
	if err != nil {
		n.k.o.Log.Warn("the allocation in a container's labels cannot be read", "kernel", n.id, "err", err)
	}
	if err := n.k.o.Ledger.Put(r); err != nil {
		return err
	}
	n.k.o.Log.Info("adopted a container", "kernel", n.id, "generation", r.Generation, "phase", c.Phase)
	n.k.mu.Lock()
	defer n.k.mu.Unlock()
	n.record, n.reserved, n.scratch = r, a, true
	if r.Running {
		n.publish(cluster.PhaseRunning)
	} else {
		n.publish(cluster.PhaseCreating)
	}
	return nil
}

func rows(id cluster.KernelID, generation int64, mounts int) []ledger.Row {
	out := []ledger.Row{{Kind: ledger.RowScratch, Key: string(id)}}
	for i := range mounts {
		out = append(out, ledger.Row{Kind: ledger.RowMount, Key: fmt.Sprint(i)})
	}
	return append(out, ledger.Row{Kind: ledger.RowDevices, Key: fmt.Sprint(generation)},
		ledger.Row{Kind: ledger.RowContainer, Key: fmt.Sprint(generation)})
}

// reserve claims the devices and records what will be made.
func (n *kernel) reserve(ctx context.Context, v view) error {
	k, d := n.k, v.desired
	if d.Spec == nil {
		return fault.Invalidf("the manager sent no specification for kernel %s", n.id)
	}
	if err := n.takeSeat(ctx); err != nil {
		return err
	}
	chosen, err := alloc.Parse(d.Spec.Allocation)
	if err != nil {
		return fault.Invalidf("the manager's choice of devices cannot be read").WithCause(err)
	}
	devices := k.o.Devices.Allocatable()
	k.mu.Lock()
	used := k.used(n)
	if d.Spec.Allocation != "" {
		err = alloc.Check(devices, used, d.Spec.Slots, chosen)
	} else {
		chosen, err = alloc.Fit(devices, used, d.Spec.Slots, alloc.Policy{})
	}
	if err == nil {
		n.reserved = chosen
	}
	k.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("reserve devices: %w", err)
		never := alloc.Check(devices, nil, d.Spec.Slots, chosen)
		if d.Spec.Allocation == "" {
			_, never = alloc.Fit(devices, nil, d.Spec.Slots, alloc.Policy{})
		}
		if never == nil {
			// The devices are there and others still hold them: the manager expects these to end, or does not know of them.
			return fault.Unavailablef("its devices are still held by another kernel").WithReason(string(cluster.ReasonBusy)).WithCause(err)
		}
		return err
	}
	r := &ledger.Record{
		Kernel: n.id, Session: d.Session, Generation: d.Generation, Image: d.Spec.Image,
		Batch: d.Spec.RunsJob(), Allocation: chosen.Text(), Token: newToken(),
		Rows: rows(n.id, d.Generation, len(d.Spec.Mounts)), Marks: true,
	}
	r.UID, r.Shared = n.userNumber(d.Spec)
	r.Keys = sumOfKeys(keysOf(d.Spec))
	r.HostPorts, r.HostEndpoint = n.keptPorts(d.Spec)
	if err := k.o.Ledger.Put(r); err != nil {
		return err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tellShared(r.Shared)
	n.record, n.scratch, n.acked, n.missing, n.oom, n.waits, n.note, n.mounted = r, true, false, 0, false, "", "", 0
	n.starved, n.unsaved = false, false
	n.publish(cluster.PhasePreparing)
	return nil
}

// mount attaches the folders and goes on to the image. Attaching may wait for a volume; it holds no place among the kernels
// being created, so that others are created meanwhile.
func (n *kernel) mount(ctx context.Context, v view) error {
	if err := n.leasePorts(v.desired); err != nil {
		return err
	}
	if len(v.desired.Spec.Mounts) > 0 {
		n.giveSeat()
	}
	if err := n.attach(ctx, v); err != nil {
		return err
	}
	n.step = StepImage
	return n.findImage(ctx, v)
}

// attach makes the mounts of the present generation's folders. They are needed until the container runs.
func (n *kernel) attach(ctx context.Context, v view) error {
	k, s := n.k, v.desired.Spec
	if len(s.Mounts) == 0 || n.mounted == v.record.Generation {
		return nil
	}
	n.show(cluster.PhasePreparing)
	if err := k.o.Before(ctx, n.id, "mounts:before"); err != nil {
		return err
	}
	folders, err := n.attachAs(ctx, s, mountsOf(v.desired))
	if err != nil {
		return err
	}
	if err := k.o.Before(ctx, n.id, "mounts:after"); err != nil {
		return err
	}
	n.folders, n.mounted = folders, v.record.Generation
	return nil
}

// findImage holds no place among the kernels being created while it pulls, because a pull may take long.
func (n *kernel) findImage(ctx context.Context, v view) error {
	pulled := false
	img, err := n.k.images.need(ctx, v.desired.Spec, func() {
		pulled = true
		n.giveSeat()
		n.show(cluster.PhasePulling)
	}, n.progress)
	if err != nil {
		return err
	}
	n.image = img
	n.step = StepScratch // the plan has no memory of images: go on with the next step
	if pulled {
		n.since = n.k.awake.Now() // a pull has its own deadline
	}
	n.show(cluster.PhasePrepared)
	return n.prepare(ctx, v)
}

// prepare writes the kernel's directory and goes on to create the container.
func (n *kernel) prepare(ctx context.Context, v view) error {
	k := n.k
	if started, err := n.hasStarted(ctx); err != nil || started {
		return err
	}
	if err := n.takeSeat(ctx); err != nil {
		return err
	}
	base, err := k.images.files(ctx, n.image, v.desired.Spec.Image)
	if err != nil {
		return err
	}
	if reason := sharedBy(n.image, base.passwd, k.o.UID); reason != "" && n.record.UID > 0 {
		if err := n.share(reason); err != nil {
			return err
		}
	}
	if err := n.attach(ctx, v); err != nil {
		return err
	}
	grant, err := n.grantOf(v)
	if err != nil {
		return err
	}
	if err := k.images.check(ctx, n.image, v.desired.Spec); err != nil {
		return err
	}
	if err := n.prepareDevices(ctx, v); err != nil {
		return err
	}
	var place network.Place
	if v.desired.Spec.HostNetwork {
		if place, err = n.hostPlace(v.desired); err != nil {
			return err
		}
	} else if k.o.Network != nil {
		if place, err = k.o.Network.Join(n.id, v.desired.Egress); err != nil {
			return err
		}
	}
	user := n.owner(v.desired.Spec)
	b, err := newBuild(buildInput{
		identity: runtime.Identity{Cluster: k.o.Scope, Agent: k.o.Agent, Kernel: n.id, Session: v.record.Session,
			Generation: v.record.Generation, Allocation: v.record.Allocation, Schema: 1, Address: place.Address,
			HostNetwork: v.desired.Spec.HostNetwork},
		desired: v.desired, record: n.record, image: n.image, passwd: base.passwd, group: base.group, place: place,
		user: user, grant: grant, folders: n.foldersOf(v), logLevel: k.o.LogLevel,
	})
	if err != nil {
		return err
	}
	if err := k.o.Before(ctx, n.id, "scratch:before"); err != nil {
		return err
	}
	files, err := k.o.Host.Prepare(n.id, b.content)
	if err != nil {
		return err
	}
	b.spec.Mounts = append(b.spec.Mounts, files...) // the runner's is the last
	if err := k.o.Before(ctx, n.id, "scratch:after"); err != nil {
		return err
	}
	n.step = StepCreate
	n.show(cluster.PhaseCreating)
	if err := k.o.Before(ctx, n.id, "create:before"); err != nil {
		return err
	}
	return n.ensure(ctx, v, b.spec)
}

// foldersOf are what attach made for the specification at hand.
func (n *kernel) foldersOf(v view) []runtime.Mount {
	if len(v.desired.Spec.Mounts) == 0 {
		return nil
	}
	return n.folders
}

// grantOf returns what the container needs to use its reserved devices. It is a Conflict if one of them broke meanwhile.
func (n *kernel) grantOf(v view) (device.Grant, error) {
	chosen, err := alloc.Parse(v.record.Allocation)
	if err != nil {
		return device.Grant{}, err
	}
	if err := n.k.o.Devices.Usable(chosen); err != nil {
		return device.Grant{}, err
	}
	return n.k.o.Devices.Grant(chosen)
}

// prepareDevices makes on the host what the reserved devices need; the ledger names them already.
func (n *kernel) prepareDevices(ctx context.Context, v view) error {
	chosen, err := alloc.Parse(v.record.Allocation)
	if err != nil {
		return err
	}
	if err := n.k.o.Before(ctx, n.id, "devices:before"); err != nil {
		return err
	}
	if err := n.k.o.Devices.Prepare(ctx, n.id, chosen); err != nil {
		return err
	}
	return n.k.o.Before(ctx, n.id, "devices:after")
}

// create starts a container that was left half-made: it needs no new directory.
func (n *kernel) create(ctx context.Context, v view) error {
	if v.desired == nil || v.desired.Spec == nil {
		return fault.Invalidf("the manager sent no specification for kernel %s", n.id)
	}
	img, err := n.k.o.Runtime.Image(ctx, v.desired.Spec.Image)
	if err != nil {
		return err
	}
	n.image = img
	return n.prepare(ctx, v)
}

func (n *kernel) ensure(ctx context.Context, v view, spec runtime.Spec) error {
	k := n.k
	ctx, cancel := context.WithTimeout(ctx, k.times.Create)
	defer cancel()
	// A hint that arrives from here on may be newer than the engine's answer: a short job may end before the answer arrives.
	k.mu.Lock()
	n.stale = false
	k.mu.Unlock()
	o, err := k.o.Runtime.Ensure(ctx, spec)
	if err != nil {
		return fmt.Errorf("create the container: %w", err)
	}
	k.mu.Lock()
	n.container, n.missing = &o, 0
	n.publish(cluster.PhaseCreating)
	k.mu.Unlock()
	n.started = spec.Identity.Generation
	if o.Phase != runtime.PhaseCreated && n.mounted != 0 {
		// The container has mounts of its own by now. Mounts left on the host would expose folders to whoever deletes the
		// agent's state directory.
		n.mounted = 0
		if err := k.o.Host.Detach(n.id); err != nil {
			k.o.Log.Warn("the mounts of a running kernel stay until its end", "kernel", n.id, "err", err)
		}
	}
	// Containers learn their own id from this file; nothing depends on it.
	if a, err := alloc.Parse(spec.Identity.Allocation); err == nil {
		_ = k.o.Host.AddConfig(n.id, host.File{Path: "resource.txt", Mode: 0o644, Data: resourceText(v.desired.Spec, a, o.ID)})
	}
	return nil
}

// await asks the runner until it answers, or until the container has ended.
func (n *kernel) await(ctx context.Context, v view) error {
	k := n.k
	n.show(cluster.PhaseCreating)
	if err := n.connect(); err != nil {
		return err
	}
	deadline := k.awake.Now().Add(k.times.Start)
	delay := 2 * time.Millisecond
	var last error
	for {
		callCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
		hello, err := k.o.Host.Hello(callCtx, n.id, n.record.Generation, n.record.Token)
		if err == nil && n.container != nil && slices.Contains(hello.Capabilities, run.CanConfine) {
			err = k.o.Host.Confine(callCtx, n.id, n.record.Token, *n.container)
		}
		cancel()
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		last = err
		if kind := fault.KindOf(err); kind == fault.Unauthenticated || kind == fault.Invalid {
			return fmt.Errorf("greet the runner: %w", err)
		}
		if !k.awake.Now().Before(deadline) {
			return fault.New(fault.Timeout, "the runner did not answer within %s", k.times.Start).WithCause(last).
				WithNext("look at the session's log; the image may lack what its runtime needs")
		}
		t := k.o.Clock.NewTimer(delay)
		select {
		case <-ctx.Done():
		case <-t.C():
		case <-n.wake:
			k.mu.Lock()
			stale := n.stale
			n.stale = false
			k.mu.Unlock()
			if stale {
				if err := n.look(ctx); err != nil {
					k.mu.Lock()
					n.stale = true
					k.mu.Unlock()
				}
			}
		}
		t.Stop()
		k.mu.Lock()
		c := n.container
		k.mu.Unlock()
		if c == nil || c.Phase != runtime.PhaseRunning {
			return nil // it ended: the plan goes another way
		}
		delay = min(delay*3/2, 100*time.Millisecond)
	}
	if err := n.verify(ctx); err != nil {
		return err
	}
	if err := n.tellPeers(ctx, v); err != nil {
		return err
	}
	n.giveSeat()
	now := k.o.Clock.Now()
	if c := n.container; c != nil && !c.StartedAt.IsZero() {
		now = c.StartedAt
	}
	// It is reported before it is recorded. After a crash between the two it is reported again, which changes nothing.
	r := n.record.Clone()
	r.Running, r.StartedAt = true, now
	k.mu.Lock()
	n.record = r
	n.publish(cluster.PhaseRunning)
	k.mu.Unlock()
	if err := k.o.Before(ctx, n.id, "running:before"); err != nil {
		return err
	}
	return k.o.Ledger.Put(r)
}

// connect connects a running container to the network. The runner waits for that before it runs anything of the session's.
func (n *kernel) connect() error {
	k := n.k
	k.mu.Lock()
	c := n.container
	k.mu.Unlock()
	if k.o.Network == nil || c == nil || c.Phase != runtime.PhaseRunning || c.Identity.HostNetwork {
		return nil
	}
	return k.o.Network.Connect(n.id, c.Pid)
}

// verify ends a container at once in which something else than the runner was started. An agent knows the runner of the containers
// that it has started itself; those of an older agent may have an older runner.
func (n *kernel) verify(ctx context.Context) error {
	if n.started != n.record.Generation || n.container == nil {
		return nil
	}
	err := n.k.o.Host.Verify(*n.container)
	if err == nil || !fault.Is(err, fault.Denied) {
		return err
	}
	if serr := n.k.o.Runtime.Stop(ctx, n.id, 0); serr != nil {
		n.k.o.Log.Error("a container without a runner cannot be stopped", "kernel", n.id, "err", serr)
	}
	return err
}

// stop ends the container: with a grace in the first attempt, by force in later ones.
func (n *kernel) stop(ctx context.Context, v view) error {
	k := n.k
	restart := v.wish() == replace
	if r := v.record; r.Stopping == nil || r.Stopping.Restart && !restart {
		stop := ledger.Stop{Reason: wantedReason(v.desired), Restart: restart}
		switch {
		case v.evicted:
			k.mu.Lock()
			stop.Reason, stop.Detail = n.evicted.reason, n.evicted.detail
			k.mu.Unlock()
		case restart:
			stop.Reason = cluster.ReasonRestarting
		}
		n.update(func(r *ledger.Record) { r.Stopping = &stop })
	}
	if !restart {
		n.show(cluster.PhaseTerminating)
	}
	if err := k.o.Before(ctx, n.id, "stopping:recorded"); err != nil {
		return err
	}
	grace := n.grace(v)
	if n.attempts > 0 {
		grace = 0
	}
	if n.attempts >= 3 && !restart {
		// It does not stop. Its end is recorded with what is known, and then the container is removed by force.
		return n.collect(ctx, v)
	}
	callCtx, cancel := context.WithTimeout(ctx, grace+20*time.Second)
	defer cancel()
	if err := n.endContainer(callCtx, grace); err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("stop the container: %w", err)
	}
	if err := n.look(ctx); err != nil {
		return err
	}
	k.mu.Lock()
	c := n.container
	k.mu.Unlock()
	if c != nil && c.Phase == runtime.PhaseRunning {
		return fault.Unavailablef("the container still runs after it was stopped")
	}
	return nil
}

// drainTime is how long programs on shared devices may take to let go of them after the grace, before the engine kills them.
const drainTime = 10 * time.Second

// endContainer has the engine end the container. Programs that still use shared devices when the grace is over are ended by the driver
// first: killed in the middle of their work they can take others on the same device with them.
func (n *kernel) endContainer(ctx context.Context, grace time.Duration) error {
	k := n.k
	if !slices.Contains(k.o.Devices.Prepared(), n.id) {
		return k.o.Runtime.Stop(ctx, n.id, grace)
	}
	ended := make(chan struct{})
	var drain sync.WaitGroup
	drain.Go(func() {
		t := k.o.Clock.NewTimer(grace)
		defer t.Stop()
		select {
		case <-ended:
			return
		case <-ctx.Done():
			return
		case <-t.C():
		}
		if err := k.o.Devices.Release(ctx, n.id); err != nil {
			k.o.Log.Warn("the devices of a kernel cannot be released before its container is killed", "kernel", n.id, "err", err)
		}
	})
	err := k.o.Runtime.Stop(ctx, n.id, grace+drainTime)
	close(ended)
	drain.Wait()
	return err
}

// collect records the end, with the log, before anything is removed.
func (n *kernel) collect(ctx context.Context, v view) error {
	k := n.k
	n.show(cluster.PhaseTerminating)
	if v.desired != nil && v.desired.StopReason == cluster.ReasonStartUnknown {
		if err := n.settleStart(ctx, v); err != nil { // the manager places the session elsewhere if it has not started
			return err
		}
		k.mu.Lock()
		v.container = n.container
		k.mu.Unlock()
	}
	e := ending{record: n.record, container: v.container, desired: v.desired, absent: v.absent >= looks, now: k.o.Clock.Now(),
		traces: n.traces()}
	k.mu.Lock()
	e.oom = n.oom
	k.mu.Unlock()
	if n.record.Batch {
		res, err := k.o.Host.Result(n.id)
		if err != nil {
			k.o.Log.Warn("the result of a batch job cannot be read", "kernel", n.id, "err", err)
		}
		e.result = res
	}
	if v.container != nil {
		n.saveLog(ctx)
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("read the log: %w", err) // given up, not failed: the next look reads it
		}
	}
	if err := k.o.Before(ctx, n.id, "collect:record"); err != nil {
		return err
	}
	n.update(func(r *ledger.Record) {
		o := finalOf(e)
		r.Final, r.EndsAt = &o, e.now
	})
	return nil
}

// maxLog bounds the log that is kept of an ended kernel.
const maxLog = cluster.LogTailBytes

// saveLog keeps the end of the container's output. A log that cannot be read does not keep the kernel from ending. When ctx
// has ended, the caller must read the log again later.
func (n *kernel) saveLog(ctx context.Context) {
	k := n.k
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	rc, err := k.o.Runtime.Logs(ctx, n.id, runtime.LogOptions{Tail: cluster.LogTailLines})
	if err != nil {
		if !fault.Is(err, fault.NotFound) {
			k.o.Log.Warn("the log of a kernel cannot be read", "kernel", n.id, "err", err)
		}
		return
	}
	defer rc.Close()
	tail := tailBuffer{max: maxLog}
	_, err = io.Copy(&tail, rc)
	if err != nil {
		k.o.Log.Warn("the log of a kernel ends early", "kernel", n.id, "err", err)
	}
	if len(tail.bytes()) == 0 {
		return
	}
	err = os.MkdirAll(k.o.LogDir, 0o700)
	if err == nil {
		tmp := k.logFile(n.id) + ".new"
		if err = os.WriteFile(tmp, tail.bytes(), 0o600); err == nil {
			err = os.Rename(tmp, k.logFile(n.id))
		}
	}
	if err != nil {
		k.o.Log.Warn("the log of a kernel cannot be kept", "kernel", n.id, "err", err)
	}
}

// tailBuffer keeps the last max bytes written to it.
type tailBuffer struct {
	max int
	b   []byte
}

func (t *tailBuffer) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > t.max {
		p = p[len(p)-t.max:]
	}
	if len(t.b)+len(p) > 2*t.max {
		t.b = append(t.b[:0], t.b[len(t.b)-t.max:]...)
	}
	t.b = append(t.b, p...)
	return n, nil
}

func (t *tailBuffer) bytes() []byte { return t.b[max(0, len(t.b)-t.max):] }

// bury records the end of a kernel that is to be stopped and never existed here, so that the manager gets an answer.
func (n *kernel) bury(v view) error {
	k, d := n.k, v.desired
	now := k.o.Clock.Now()
	denied := wantedReason(d) == cluster.ReasonStartUnknown
	r := &ledger.Record{
		Kernel: n.id, Session: d.Session, Generation: d.Generation, EndsAt: now,
		Final: &cluster.KernelObservation{
			Kernel: n.id, Session: d.Session, Generation: d.Generation, Phase: cluster.PhaseEnded,
			Reason: wantedReason(d), Detail: "it was not on this agent", EndedAt: now, Failed: denied, RetryElsewhere: denied,
		},
	}
	n.keep(r)
	return nil
}

// mayForget reports whether the container may go. While the ledger cannot be written, the container is the only proof of a start
// that the ledger does not know: without both, the next agent would start the generation once more.
func (n *kernel) mayForget() bool {
	n.k.mu.Lock()
	unsaved := n.unsaved
	n.k.mu.Unlock()
	if !unsaved {
		return true
	}
	for _, r := range n.k.o.Ledger.Records() {
		if r.Kernel == n.id {
			return r.Running || r.Stopping != nil || r.Final != nil
		}
	}
	return false
}

func (n *kernel) remove(ctx context.Context, v view) error {
	k := n.k
	if v.record.Final != nil {
		n.show(cluster.PhaseTerminating)
	}
	if !n.mayForget() {
		return fault.Unavailablef("the end of kernel %s cannot be recorded yet, so its container stays", n.id)
	}
	callCtx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := k.o.Runtime.Remove(callCtx, n.id); err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("remove the container: %w", err)
	}
	k.o.Host.Forget(n.id, v.record.Generation)
	if k.o.Network != nil {
		k.o.Network.Release(n.id)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	n.container = nil
	// The engine's own message about the removal is expected and needs no second look.
	n.stale = false
	return nil
}

func (n *kernel) release(ctx context.Context, v view) error {
	k := n.k
	if err := k.o.Devices.Release(ctx, n.id); err != nil {
		return err
	}
	if err := k.o.Host.Release(n.id); err != nil {
		return err
	}
	n.mounted = 0
	if k.o.Network != nil {
		k.o.Network.Release(n.id) // what was chosen for a container that was never made
	}
	n.givePorts()
	k.wakeReaper()
	k.mu.Lock()
	defer k.mu.Unlock()
	n.scratch = false
	return nil
}

// forget deletes the tombstone after the manager has stored the end.
func (n *kernel) forget(v view) error {
	k := n.k
	if err := k.o.Ledger.Delete(n.id); err != nil {
		return err
	}
	if err := os.Remove(k.logFile(n.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.o.Log.Warn("the log of a forgotten kernel cannot be removed", "kernel", n.id, "err", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remember(n.id, v.record.Generation)
	n.record, n.reserved, n.acked, n.unsaved, n.evicted, n.uid = nil, nil, false, false, nil, 0
	n.obs = cluster.KernelObservation{}
	delete(k.report.dirty, n.id)
	return nil
}
