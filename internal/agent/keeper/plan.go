package keeper

import (
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// Step is one thing to do for a kernel. Every step may be repeated: it looks before it acts.
type Step string

// The steps.
const (
	// StepAdopt writes a record for a container that the ledger does not know, from its labels.
	StepAdopt Step = "adopt"
	// StepReserve claims devices and records what is about to be made.
	StepReserve Step = "reserve"
	// StepMount attaches the kernel's folders. It comes before the image, because it may have to wait.
	StepMount Step = "mount"
	// StepImage makes sure that the image is on the host.
	StepImage Step = "image"
	// StepScratch writes the kernel's directory.
	StepScratch Step = "scratch"
	// StepCreate creates and starts the container.
	StepCreate Step = "create"
	// StepAwait waits until the runner answers; then the kernel runs.
	StepAwait Step = "await"
	// StepRights takes from a running container what its owner has lost: folders and SSH keys.
	StepRights Step = "rights"
	// StepPeers tells a running kernel of the others of its session.
	StepPeers Step = "peers"
	// StepStop ends the container: politely, then by force.
	StepStop Step = "stop"
	// StepCollect records how it ended, before anything is removed.
	StepCollect Step = "collect"
	// StepBury records the end of a kernel that was to be stopped and never existed here.
	StepBury Step = "bury"
	// StepRemove removes the container.
	StepRemove Step = "remove"
	// StepRelease puts the kernel's directory away.
	StepRelease Step = "release"
	// StepForget deletes the tombstone.
	StepForget Step = "forget"
	// StepLook looks a second time before a difference is acted upon.
	StepLook Step = "look"
)

// looks is how often a difference must be seen before something is destroyed because of it.
const looks = 2

// view is everything that plan may look at.
type view struct {
	// desired is what the manager wants; nil when it did not mention the kernel.
	desired *cluster.DesiredKernel
	// absent counts the looks at a complete desired state in which the kernel was missing.
	absent int
	record *ledger.Record
	// container is what the runtime showed last; nil when there is none.
	container *runtime.Observed
	// missing counts the looks in which a container that ran was not there any more.
	missing int
	// scratch: the kernel's directory may exist.
	scratch bool
	// acked: the manager has stored the end.
	acked bool
	// evicted: the agent itself ends the recorded generation.
	evicted bool
	// stays is the sum of rights that this host cannot take from the container.
	stays string
}

// wish is what should become of a kernel.
type wish int

const (
	leave   wish = iota // nothing is known: observe only
	exist               // it should run
	end                 // it should not
	replace             // a newer generation should run in its place
)

func (v view) wish() wish {
	d, r := v.desired, v.record
	switch {
	case v.evicted:
		return end
	case d == nil && v.absent >= looks:
		return end
	case d == nil:
		if r.Stopping != nil && !r.Stopping.Restart {
			return end
		}
		return leave
	case d.Generation > r.Generation:
		if d.Stop {
			return end
		}
		return replace
	case d.Generation < r.Generation:
		return leave // an old message
	case d.Stop || r.Stopping != nil && !r.Stopping.Restart:
		return end
	}
	return exist
}

var creation = []Step{StepReserve, StepMount, StepImage, StepScratch, StepCreate, StepAwait}

// plan says what to do next, in order. It is pure. Only the first step is carried out
// before the world is looked at again; the rest tells where the way leads. No steps means
// that all is as it should be.
func plan(v view) []Step {
	r, c, d := v.record, v.container, v.desired
	switch {
	case r == nil && c != nil:
		return []Step{StepAdopt}
	case r == nil && d == nil:
		return nil
	case r == nil && d.Stop:
		return []Step{StepBury}
	case r == nil:
		return creation
	case r.Final != nil:
		return planEnded(v)
	}
	running := c != nil && c.Phase == runtime.PhaseRunning
	switch v.wish() {
	case end:
		switch {
		case c == nil:
			return []Step{StepCollect, StepRelease}
		case running:
			return []Step{StepStop, StepCollect, StepRemove, StepRelease}
		}
		return []Step{StepCollect, StepRemove, StepRelease}
	case replace:
		switch {
		case running:
			return append([]Step{StepStop, StepRemove}, creation...)
		case c != nil:
			return append([]Step{StepRemove}, creation...)
		}
		return creation
	case leave:
		switch {
		case c == nil && r.Running && r.Stopping == nil:
			return planMissing(v)
		case c == nil || c.Phase == runtime.PhaseCreated:
			return nil
		case c.Phase == runtime.PhaseExited && r.Stopping != nil && r.Stopping.Restart:
			return nil // the newer generation will be wanted again
		}
	}
	switch {
	case c == nil && r.Running:
		return planMissing(v)
	case c == nil:
		return creation[1:]
	case c.Phase == runtime.PhaseExited:
		return []Step{StepCollect, StepRemove, StepRelease}
	case c.Phase == runtime.PhaseCreated:
		return []Step{StepCreate, StepAwait}
	case !r.Running:
		return []Step{StepAwait}
	case peersDiffer(d, v.container, r):
		return []Step{StepPeers}
	case d != nil && rightsDiffer(d, r) && rightsOf(d) != v.stays:
		return []Step{StepRights}
	}
	return nil
}

func planMissing(v view) []Step {
	if v.missing >= looks {
		return []Step{StepCollect, StepRelease}
	}
	return []Step{StepLook}
}

// planEnded cleans up behind a kernel whose end is recorded.
func planEnded(v view) []Step {
	r, c, d := v.record, v.container, v.desired
	switch {
	case c != nil && c.Identity.Generation <= r.Generation:
		return []Step{StepRemove, StepRelease}
	case c != nil:
		return []Step{StepAdopt} // a newer one lives: the record is the older truth
	case v.scratch:
		return []Step{StepRelease}
	case d != nil && d.Generation > r.Generation && !d.Stop:
		return creation
	case v.acked:
		return []Step{StepForget}
	}
	return nil
}
