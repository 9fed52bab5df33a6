package keeper

import (
	"berth.dev/berth/internal/agent/ledger"
	"berth.dev/berth/internal/cluster"
)

// eviction is the agent's own decision to end one generation of a kernel.
type eviction struct {
	generation int64
	reason     cluster.Reason
	detail     string
}

// of reports whether the eviction is of the recorded generation.
func (e *eviction) of(r *ledger.Record) bool {
	return e != nil && r != nil && r.Generation == e.generation
}

// Evict ends one generation of a kernel by force because this host cannot bear it. The reason and its words are reported as those of
// the end. It returns at once; a kernel that ends already, or is of another generation, is left alone. Nothing is written before the
// container is killed that could fail for want of space.
func (k *Keeper) Evict(id cluster.KernelID, generation int64, reason cluster.Reason, detail string) (evicted bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.kernels[id]
	if n == nil || n.record == nil || n.record.Generation != generation || n.record.Final != nil || n.record.Stopping != nil ||
		n.evicted.of(n.record) {
		return false
	}
	n.evicted = &eviction{generation: generation, reason: reason, detail: detail}
	if n.cancel != nil {
		n.cancel(errReplan)
	}
	n.poke(false)
	return true
}

// OutOfMemory tells the owner of a kernel that runs that processes of it were killed for want of memory. The kernel goes on.
func (k *Keeper) OutOfMemory(id cluster.KernelID, generation int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.kernels[id]
	if n == nil || n.record == nil || n.record.Generation != generation || n.obs.Phase != cluster.PhaseRunning {
		return
	}
	n.starved, n.note = true, "a process was "+outOfMemory(n.record)
	n.publish(n.obs.Phase)
}

// Note tells the owner of a kernel that runs what to know of it; "" takes nothing back, it only tells no more.
func (k *Keeper) Note(id cluster.KernelID, generation int64, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := k.kernels[id]
	if n == nil || n.record == nil || n.record.Generation != generation || n.note == text {
		return
	}
	n.note = text
	n.publish(n.obs.Phase)
}
