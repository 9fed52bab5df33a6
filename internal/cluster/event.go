package cluster

// EventName is the name of a session or kernel event on the wire (SSE and callbacks).
type EventName string

// The session and kernel events.
const (
	SessionEnqueued    EventName = "session_enqueued"
	SessionScheduled   EventName = "session_scheduled"
	SessionPreparing   EventName = "session_preparing"
	SessionStarted     EventName = "session_started"
	SessionCancelled   EventName = "session_cancelled"
	SessionTerminating EventName = "session_terminating"
	SessionTerminated  EventName = "session_terminated"
	SessionSuccess     EventName = "session_success"
	SessionFailure     EventName = "session_failure"
	SessionIdleWarning EventName = "session_idle_warning"
	// SessionFolderWithheld: its owner lost a right to a folder that it mounts, which is taken away or made read-only.
	SessionFolderWithheld EventName = "session_folder_withheld"
	// SessionDeviceLost: a device of one of its kernels broke while it ran.
	SessionDeviceLost EventName = "session_device_lost"
	KernelPreparing   EventName = "kernel_preparing"
	KernelPulling     EventName = "kernel_pulling"
	KernelCreating    EventName = "kernel_creating"
	KernelStarted     EventName = "kernel_started"
	KernelCancelled   EventName = "kernel_cancelled"
	KernelTerminating EventName = "kernel_terminating"
	KernelTerminated  EventName = "kernel_terminated"
	KernelOutOfMemory EventName = "kernel_out_of_memory" // processes were killed for want of memory, and the kernel goes on
)

// SessionEvent returns the event that announces a session's arrival in a status, or "".
func SessionEvent(to Status) EventName {
	switch to {
	case Pending:
		return SessionEnqueued
	case Scheduled:
		return SessionScheduled
	case Preparing:
		return SessionPreparing
	case Running:
		return SessionStarted
	case Cancelled:
		return SessionCancelled
	case Terminating:
		return SessionTerminating
	case Terminated, Error:
		return SessionTerminated
	}
	return ""
}

// KernelEvent returns the event that announces a kernel's arrival in a status, or "".
func KernelEvent(to Status) EventName {
	switch to {
	case Preparing:
		return KernelPreparing
	case Pulling:
		return KernelPulling
	case Creating:
		return KernelCreating
	case Running:
		return KernelStarted
	case Cancelled:
		return KernelCancelled
	case Terminating:
		return KernelTerminating
	case Terminated, Error:
		return KernelTerminated
	}
	return ""
}
