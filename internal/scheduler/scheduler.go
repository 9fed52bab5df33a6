// Package scheduler decides which session runs where. Plan is a pure function from a
// Snapshot to Decisions: no store, no network, no clock, no randomness. The caller
// commits the decisions with a re-check and retries what was refused with fresher state.
package scheduler

import (
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// Snapshot is everything a pass may look at, for one resource group.
type Snapshot struct {
	// Now is the instant of the pass; the scheduler has no clock of its own.
	Now     time.Time
	Group   string
	Agents  []Agent
	Pending []Session
	// Order and Placement name registered policies; empty means "fifo" and "first-fit".
	Order, Placement string
}

// Agent is one machine as the scheduler sees it.
type Agent struct {
	ID           cluster.AgentID
	Architecture string
	Schedulable  bool
	Alive        bool
	Devices      []alloc.Device
	// Used is what live kernels hold, derived from their rows.
	Used alloc.Allocation
	// Containers counts live kernels; ContainerLimit 0 means unlimited.
	Containers, ContainerLimit int
	// Images are references known to be present; used as a tie-break only.
	Images map[string]bool
}

// Session is a waiting session with its kernels.
type Session struct {
	ID         cluster.SessionID
	Priority   int
	EnqueuedAt time.Time
	StartsAt   time.Time // zero: any time
	// Waiting is set when a dependency is not yet satisfied; its text names it.
	Waiting string
	Kernels []Kernel
	// SingleNode forces all kernels onto one agent.
	SingleNode bool
	// Designated restricts the agents; empty means any.
	Designated []cluster.AgentID
	// Failed lists agents that just failed this session; they are tried last.
	Failed []cluster.AgentID
	// Limit explains a quota that holds the session back; empty when none does.
	Limit string
}

// Kernel is one container to place.
type Kernel struct {
	ID           cluster.KernelID
	Slots        cluster.Slots
	Architecture string
	Image        string
}

// Decision is the outcome for one session: Placements when it starts, Hold when it waits.
type Decision struct {
	Session    cluster.SessionID
	Placements []Placement
	Hold       *Explanation
}

// Placement puts a kernel on an agent with chosen devices.
type Placement struct {
	Kernel     cluster.KernelID
	Agent      cluster.AgentID
	Allocation alloc.Allocation
}

// Reason is the dominant cause of waiting.
type Reason string

// The reasons why a session waits.
const (
	WaitsForStartTime  Reason = "start-time"
	WaitsForDependency Reason = "dependency"
	WaitsForQuota      Reason = "quota"
	WaitsForAgent      Reason = "no-agent"         // no agent of that architecture, alive and schedulable
	WaitsForCapacity   Reason = "capacity"         // fits an empty agent, not now
	TooBig             Reason = "too-big"          // fits no agent even when empty
	WaitsForDevices    Reason = "devices"          // sums fit, single devices do not
	WaitsBehind        Reason = "behind-the-queue" // held so that an earlier session is not delayed
)

// Explanation says why a session waits, in words and numbers.
type Explanation struct {
	Reason Reason
	// Text is one sentence for people.
	Text string
	// Rejected counts agents per filter: "architecture", "not-schedulable", "lost", "cpu", "mem", "designated", "containers".
	Rejected map[string]int
	// Shortfall is what the best agent lacks, per slot.
	Shortfall cluster.Slots
	// Position is the 1-based place in the queue.
	Position int
}
