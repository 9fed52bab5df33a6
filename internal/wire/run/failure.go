package run

import (
	"encoding/json"
	"errors"
	"net/http"

	"berth.dev/berth/internal/fault"
)

// Failure is the body of every reply that is not 2xx.
type Failure struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"`
	Msg    string `json:"msg"`
	Next   string `json:"next,omitempty"`
}

// statuses maps fault kinds to HTTP statuses; every kind has its own, so the table can be
// read backwards.
var statuses = map[fault.Kind]int{
	fault.Internal:        http.StatusInternalServerError,
	fault.NotFound:        http.StatusNotFound,
	fault.Conflict:        http.StatusConflict,
	fault.Denied:          http.StatusForbidden,
	fault.Unauthenticated: http.StatusUnauthorized,
	fault.Invalid:         http.StatusBadRequest,
	fault.Exhausted:       http.StatusTooManyRequests,
	fault.Unavailable:     http.StatusServiceUnavailable,
	fault.Timeout:         http.StatusGatewayTimeout,
}

// WriteFailure answers a request with the failure that err is.
func WriteFailure(w http.ResponseWriter, err error) {
	kind := fault.KindOf(err)
	f := Failure{Kind: kind.String(), Reason: fault.ReasonOf(err), Msg: err.Error(), Next: fault.NextOf(err)}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(statuses[kind])
	_ = json.NewEncoder(w).Encode(f) // a reader that went away needs no answer
}

// ReasonNoRoute is what a runner says that does not know a route. ReasonTooOld names that to others: containers outlive agents, so a
// session may run with the runner of an earlier release.
const (
	ReasonNoRoute = "no-such-route"
	ReasonTooOld  = "runner-too-old"
)

// TooOld is the failure of a request that the session's runner does not know yet.
func TooOld() *fault.Error {
	return fault.Conflictf("the session runs with an older runner, which cannot do this").WithReason(ReasonTooOld).
		WithNext("restart the session for apps and whatever else came with the newer release")
}

// FaultOf turns a reply that is not 2xx into the fault it reports.
func FaultOf(status int, body []byte) error {
	kind := fault.Internal
	for k, s := range statuses {
		if s == status {
			kind = k
		}
	}
	switch status {
	case http.StatusRequestEntityTooLarge:
		kind = fault.Exhausted
	case http.StatusBadGateway:
		kind = fault.Unavailable
	}
	var f Failure
	if err := json.Unmarshal(body, &f); err != nil || f.Msg == "" {
		return fault.New(kind, "the runner answered %d %s", status, http.StatusText(status))
	}
	if f.Reason == ReasonNoRoute {
		return TooOld().WithCause(errors.New(f.Msg))
	}
	e := fault.New(kind, "%s", f.Msg).WithReason(f.Reason)
	e.Next = f.Next
	return e
}

// ErrStreamEnded is returned by Stream.Wait when the stream ended without an exit frame.
var ErrStreamEnded = errors.New("the stream ended before the process did")
