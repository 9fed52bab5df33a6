package cluster

import "time"

// Deadline is how long a kernel may stay in a state and what it is called when it stays longer.
type Deadline struct {
	After  time.Duration
	Reason Reason
	// Retry: another agent may succeed, so the session goes back into the queue while it has attempts left.
	Retry bool
}

// StopGrace is the time between SIGTERM and SIGKILL.
const StopGrace = 10 * time.Second

// MaxPlacements is how often a session is placed before its failure is final.
const MaxPlacements = 3

// deadlines has a class for every state that an agent must leave. PULLING is extended by
// progress; LOST has the grace that its agent has to return (LongLostKernels); PENDING and RUNNING wait for others.
var deadlines = map[Status]Deadline{
	Scheduled:   {30 * time.Second, ReasonCreateTimeout, true},
	Preparing:   {2 * time.Minute, ReasonCreateTimeout, true},
	Pulling:     {10 * time.Minute, ReasonPullTimeout, true},
	Prepared:    {2 * time.Minute, ReasonCreateTimeout, true},
	Creating:    {2 * time.Minute, ReasonStartTimeout, true},
	Restarting:  {2 * time.Minute, ReasonStartTimeout, false},
	Terminating: {StopGrace + 30*time.Second, ReasonStopTimeout, false},
}

// KernelDeadline returns the class of a status; ok is false where nothing is due.
func KernelDeadline(s Status) (d Deadline, ok bool) {
	d, ok = deadlines[s]
	return d, ok
}
