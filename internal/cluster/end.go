package cluster

import "slices"

// What an end of a session is to its user. Notices and the console decide by these; web/src/session/ends.ts has the same, which a test of
// notice/rule holds.
var (
	// ownEnds are the reasons of an end that the user asked for, or after which nobody is there to be told.
	ownEnds = []Reason{ReasonUserRequested, ReasonForced, ReasonUserPurged}
	// failing are the reasons with which a session fails although its status does not say so.
	failing = []Reason{ReasonTaskFailed, ReasonTaskTimeout, ReasonFailedToCreate, ReasonFailedToStart, ReasonFailedToPull, ReasonPullTimeout,
		ReasonCreateTimeout, ReasonNotDelivered, ReasonStartTimeout, ReasonAgentLost, ReasonOutOfMemory, ReasonDiskFull, ReasonPendingTimeout,
		ReasonDependency, ReasonStartUnknown, ReasonBusy, ReasonCrashed, ReasonNotFound, ReasonPeersMissing,
		ReasonDeviceLost}
)

// OwnEnds are the reasons of ends that are no news to the session's user.
func OwnEnds() []Reason { return slices.Clone(ownEnds) }

// Failing are the reasons with which a session fails although its status does not say so.
func Failing() []Reason { return slices.Clone(failing) }

// OwnEnd reports whether an end is no news to the session's user.
func OwnEnd(r Reason) bool { return slices.Contains(ownEnds, r) }

// FailedEnd reports whether an end is a failure.
func FailedEnd(s Status, result Result, r Reason) bool {
	return s == Error || result == ResultFailure || slices.Contains(failing, r)
}
