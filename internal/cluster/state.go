package cluster

import "slices"

// Status is the state of a session or of a kernel; both share one vocabulary.
type Status string

// The statuses. Kernels also know LOST, which the manager alone sets and takes back.
const (
	Pending     Status = "PENDING"
	Scheduled   Status = "SCHEDULED"
	Preparing   Status = "PREPARING"
	Pulling     Status = "PULLING"
	Prepared    Status = "PREPARED"
	Creating    Status = "CREATING"
	Running     Status = "RUNNING"
	Restarting  Status = "RESTARTING"
	Lost        Status = "LOST"
	Terminating Status = "TERMINATING"
	Terminated  Status = "TERMINATED"
	Cancelled   Status = "CANCELLED"
	Error       Status = "ERROR"
)

// AllStatuses lists every status in life-cycle order.
var AllStatuses = []Status{Pending, Scheduled, Preparing, Pulling, Prepared, Creating, Running, Restarting, Lost, Terminating, Terminated,
	Cancelled, Error}

// moves is the table of allowed moves of kernels: the single source for the guarded
// SQL, the schema's checks, the drawing in docs/ and the walking test.
// A forward jump over preparatory states is allowed because the manager may see only
// the last of several quick moves of an agent. No move leads out of a final state.
var moves = map[Status][]Status{
	Pending:     {Scheduled, Terminating, Cancelled, Error},
	Scheduled:   {Preparing, Pulling, Prepared, Creating, Running, Lost, Pending, Terminating, Terminated, Cancelled, Error},
	Preparing:   {Pulling, Prepared, Creating, Running, Lost, Pending, Terminating, Terminated, Cancelled, Error},
	Pulling:     {Prepared, Creating, Running, Lost, Pending, Terminating, Terminated, Cancelled, Error},
	Prepared:    {Creating, Running, Lost, Pending, Terminating, Terminated, Cancelled, Error},
	Creating:    {Running, Lost, Pending, Terminating, Terminated, Cancelled, Error},
	Running:     {Restarting, Lost, Terminating, Terminated, Error},
	Restarting:  {Preparing, Pulling, Prepared, Creating, Running, Lost, Terminating, Terminated, Error},
	Lost:        {Scheduled, Preparing, Pulling, Prepared, Creating, Running, Restarting, Pending, Terminating, Terminated, Error},
	Terminating: {Pending, Terminated, Error},
}

// sessionMoveDenied: sessions are never LOST themselves; a session with a lost kernel
// keeps its status and says so in status_info.
func sessionMoveDenied(from, to Status) bool { return from == Lost || to == Lost }

// KernelMayMove reports whether a kernel may go from one status to another.
func KernelMayMove(from, to Status) bool { return slices.Contains(moves[from], to) }

// SessionMayMove reports whether a session may go from one status to another.
func SessionMayMove(from, to Status) bool {
	return !sessionMoveDenied(from, to) && slices.Contains(moves[from], to)
}

// Final reports whether nothing follows the status.
func (s Status) Final() bool { return s == Terminated || s == Cancelled || s == Error }

// Valid reports whether s is one of AllStatuses.
func (s Status) Valid() bool { return slices.Contains(AllStatuses, s) }

// HoldsSlots reports whether a kernel in this status occupies its slots on its agent.
func (s Status) HoldsSlots() bool { return s != Pending && !s.Final() }

// SessionStatus derives a session's status from its kernels' statuses. The rule: all
// final gives TERMINATED (ERROR when one erred, CANCELLED when all were cancelled); a
// single final kernel beside live ones gives TERMINATING; otherwise the least advanced
// kernel speaks. LOST kernels count as RUNNING: the session keeps its status.
// kernels must not be empty.
func SessionStatus(kernels []Status) Status {
	final, errored, cancelled := 0, 0, 0
	least, terminating := -1, false
	for _, k := range kernels {
		switch {
		case k.Final():
			final++
			if k == Error {
				errored++
			}
			if k == Cancelled {
				cancelled++
			}
			continue
		case k == Terminating:
			terminating = true
			continue
		case k == Lost:
			k = Running
		}
		if i := slices.Index(AllStatuses, k); least < 0 || i < least {
			least = i
		}
	}
	switch {
	case final == len(kernels) && errored > 0:
		return Error
	case final == len(kernels) && cancelled == len(kernels):
		return Cancelled
	case final == len(kernels):
		return Terminated
	case final > 0 || terminating:
		return Terminating
	default:
		return AllStatuses[least]
	}
}

// SessionType says what a session is for.
type SessionType string

// The session types of the wire.
const (
	Interactive SessionType = "interactive"
	Batch       SessionType = "batch"
	Inference   SessionType = "inference"
	System      SessionType = "system"
)

// Result is what became of a batch session.
type Result string

// The results; UNDEFINED until a batch job ends.
const (
	ResultUndefined Result = "UNDEFINED"
	ResultSuccess   Result = "SUCCESS"
	ResultFailure   Result = "FAILURE"
)

// Reason says why a session or kernel moved; the names are the wire's.
type Reason string

// The reasons in use. The first final reason of a kernel wins.
const (
	ReasonUserRequested   Reason = "user-requested"
	ReasonForced          Reason = "force-terminated"
	ReasonAdministrator   Reason = "admin-terminated" // somebody else than its user ended it
	ReasonSelfTerminated  Reason = "self-terminated"
	ReasonTaskFinished    Reason = "task-finished"
	ReasonTaskFailed      Reason = "task-failed"
	ReasonTaskTimeout     Reason = "task-timeout"
	ReasonTaskCancelled   Reason = "task-cancelled"
	ReasonFailedToCreate  Reason = "failed-to-create"
	ReasonFailedToStart   Reason = "failed-to-start"
	ReasonFailedToPull    Reason = "failed-to-pull"
	ReasonPullTimeout     Reason = "pull-timeout"
	ReasonCreateTimeout   Reason = "create-timeout"
	ReasonNotDelivered    Reason = "not-delivered" // the agent could not be told of it
	ReasonStartTimeout    Reason = "start-timeout"
	ReasonStopTimeout     Reason = "stop-timeout"
	ReasonAgentLost       Reason = "agent-lost"
	ReasonOutOfMemory     Reason = "out-of-memory"
	ReasonDiskFull        Reason = "disk-full"   // the agent ended it, because the disk of its host was full
	ReasonClientGone      Reason = "client-gone" // the client that held it did not renew its lease
	ReasonPendingTimeout  Reason = "pending-timeout"
	ReasonIdleTimeout     Reason = "idle-timeout"
	ReasonIdleLifetime    Reason = "idle-session-lifetime"
	ReasonIdleUtilization Reason = "idle-utilization"
	ReasonDependency      Reason = "dependency-failed"
	ReasonPreempted       Reason = "preempted"
	ReasonRightEnded      Reason = "right-ended" // its owner left the project that it ran in, or whose folders it mounted
	ReasonUserPurged      Reason = "user-purged" // its owner or project is being forgotten
	// ReasonRescheduled: preempted too, but given back to the queue once it has stopped.
	ReasonRescheduled Reason = "rescheduled"
	ReasonRestarting  Reason = "restarting"
	// ReasonStartUnknown: the manager cannot tell whether a batch session's command started. The session goes back to the queue once
	// the agents of all its kernels have said that nothing was started, and ends otherwise.
	ReasonStartUnknown Reason = "start-unknown"
	// ReasonBusy: an agent still held the devices that it was to give, for longer than it waits for them.
	ReasonBusy Reason = "agent-busy"
	// ReasonDeviceLost: a device that it held broke.
	ReasonDeviceLost Reason = "device-lost"
	// ReasonCrashed: a container ended without its runner's word, so the engine, its shim or the runner crashed.
	ReasonCrashed Reason = "container-crashed"
	// ReasonPeersMissing: a kernel waited in vain for the others of its session, so that nothing of its owner's began.
	ReasonPeersMissing Reason = "peers-missing"
	ReasonNotFound     Reason = "container-not-found"
)

// AgentStatus is the manager's view of an agent.
type AgentStatus string

// The agent statuses of the wire.
const (
	AgentAlive      AgentStatus = "ALIVE"
	AgentLost       AgentStatus = "LOST"
	AgentRestarting AgentStatus = "RESTARTING"
	AgentTerminated AgentStatus = "TERMINATED"
)
