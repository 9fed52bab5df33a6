package keeper

import (
	"maps"
	"os"
	"slices"
	"time"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// report collects which kernels changed since the manager was last told. It holds no events: a slow connection gets the
// newest state of each kernel, and the report cannot grow beyond the number of kernels.
type report struct {
	dirty    map[cluster.KernelID]bool
	changed  chan struct{}
	progress map[cluster.KernelID]Progress
}

// Progress is how far the pull for a kernel's image got.
type Progress struct {
	Kernel     cluster.KernelID
	Generation int64
	runtime.PullProgress
}

// progressEvery is the shortest time between two reports of one kernel's pull.
const progressEvery = 300 * time.Millisecond

func newReport() report {
	return report{dirty: map[cluster.KernelID]bool{}, changed: make(chan struct{}, 1), progress: map[cluster.KernelID]Progress{}}
}

func (r *report) notify() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// Changed receives whenever TakeChanges has something new.
func (k *Keeper) Changed() <-chan struct{} { return k.report.changed }

// Pressing reports whether one of the changes should be sent at once: a kernel ended or began to run. Other changes may wait for a moment,
// which the caller bounds. That a kernel runs may wait, too, while others of its session are on their way here: a session is RUNNING only
// when all its kernels are.
func (k *Keeper) Pressing() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	running := map[cluster.SessionID]bool{} // sessions of which a kernel began to run
	for id := range k.report.dirty {
		switch n := k.kernels[id]; {
		case n == nil:
		case n.obs.Phase == cluster.PhaseEnded:
			return true
		case n.obs.Phase == cluster.PhaseRunning:
			running[n.obs.Session] = true
		}
	}
	if len(running) == 0 {
		return false
	}
	for _, n := range k.kernels {
		if n.desired != nil && !n.desired.Stop && n.obs.Phase < cluster.PhaseRunning {
			delete(running, n.desired.Session)
		}
	}
	return len(running) > 0
}

// TakeAll returns all kernels in order and marks them as told. LogTail is empty: see LogTail.
func (k *Keeper) TakeAll() []cluster.KernelObservation {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.report.dirty)
	var out []cluster.KernelObservation
	for _, id := range slices.Sorted(maps.Keys(k.kernels)) {
		switch n := k.kernels[id]; {
		case n.obs.Phase != cluster.PhaseUnknown:
			out = append(out, n.obs)
		case n.desired != nil:
			// It was accepted and nothing is done yet. Left out of a full report it would count as lost.
			o := cluster.KernelObservation{Kernel: id, Session: n.desired.Session, Generation: n.desired.Generation, Phase: cluster.PhasePreparing}
			if n.desired.Stop {
				o.Phase = cluster.PhaseTerminating
			}
			out = append(out, o)
		}
	}
	return out
}

// TakeChanges returns at most limit kernels that changed since they were last taken, and the
// progress of pulls.
func (k *Keeper) TakeChanges(limit int) (kernels []cluster.KernelObservation, progress []Progress) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(k.report.dirty)) {
		if len(kernels) == limit {
			k.report.notify()
			break
		}
		delete(k.report.dirty, id)
		if n := k.kernels[id]; n != nil && n.obs.Phase != cluster.PhaseUnknown {
			kernels = append(kernels, n.obs)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(k.report.progress)) {
		progress = append(progress, k.report.progress[id])
	}
	clear(k.report.progress)
	return kernels, progress
}

// Retell marks kernels as changed again, because their state could not be sent.
func (k *Keeper) Retell(ids ...cluster.KernelID) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		k.report.dirty[id] = true
	}
	k.report.notify()
}

// LogTail returns the kept log of an ended kernel, "" when there is none.
func (k *Keeper) LogTail(id cluster.KernelID) string {
	b, err := os.ReadFile(k.logFile(id))
	if err != nil {
		return ""
	}
	return string(b)
}

// publish moves a kernel's reported phase; it never goes back within a generation. The
// caller holds mu.
func (n *kernel) publish(phase cluster.Phase) {
	r := n.record
	if r == nil {
		return
	}
	old := n.obs
	if old.Generation == r.Generation && old.Phase >= phase {
		phase = old.Phase
	}
	o := cluster.KernelObservation{
		Kernel: n.id, Session: r.Session, Generation: r.Generation, Phase: phase, Batch: r.Batch,
		StartedAt: r.StartedAt, Allocation: r.Allocation, Detail: n.waits,
		HostEndpoint: r.HostEndpoint,
	}
	if o.Detail == "" && phase == cluster.PhaseRunning {
		o.Detail = n.note
	}
	o.OOMKilled = n.starved && phase == cluster.PhaseRunning
	if n.container != nil && n.container.Identity.Generation == r.Generation {
		o.ContainerID = n.container.ID
	}
	if phase == cluster.PhaseEnded {
		o = *r.Final
	}
	if old.Generation == o.Generation && old.Phase == o.Phase && old.ContainerID == o.ContainerID && old.StartedAt.Equal(o.StartedAt) &&
		old.Detail == o.Detail && old.OOMKilled == o.OOMKilled {
		return
	}
	n.obs = o
	n.k.report.dirty[n.id] = true
	n.k.report.notify()
}

func (n *kernel) progress(p runtime.PullProgress) {
	k := n.k
	k.mu.Lock()
	defer k.mu.Unlock()
	if n.record != nil {
		k.report.progress[n.id] = Progress{Kernel: n.id, Generation: n.record.Generation, PullProgress: p}
		// Engines report many times a second for every layer. The end of a pull is reported by the next phase.
		if now := k.o.Clock.Now(); now.Sub(n.told) >= progressEvery {
			n.told = now
			k.report.notify()
		}
	}
}
