// Package fault gives every error of Berth a kind, a stable reason and the next step for its reader.
//
// It is not a logging package and holds no transport: httpapi maps kinds to
// HTTP statuses, link/agent to gRPC codes, cli to exit codes, each in one place.
// Create a fault at the origin; wrap it on the way up with fmt.Errorf and %w.
package fault

import (
	"errors"
	"fmt"
)

// Kind says what sort of failure happened, independent of transport.
type Kind int

// The closed list of kinds.
const (
	// Internal is a defect or an unexpected failure below us; the zero value.
	Internal Kind = iota
	// NotFound also stands for objects that the actor may not see.
	NotFound
	// Conflict means that the object is not in the state the request needs.
	Conflict
	// Denied means that the actor is known but may not do this.
	Denied
	// Unauthenticated means that the actor is not known.
	Unauthenticated
	// Invalid means that the request can never succeed as it is.
	Invalid
	// Exhausted means that a quota, a rate or a size is used up.
	Exhausted
	// Unavailable means that a part we need is away; a retry may succeed.
	Unavailable
	// Timeout means that the deadline passed before the result was known.
	Timeout
)

var kindNames = [...]string{"internal", "not-found", "conflict", "denied", "unauthenticated", "invalid", "exhausted", "unavailable",
	"timeout"}

func (k Kind) String() string {
	if k < 0 || int(k) >= len(kindNames) {
		return fmt.Sprintf("kind(%d)", int(k))
	}
	return kindNames[k]
}

// DatabaseAway is the reason of errors that say that PostgreSQL cannot be used now.
const DatabaseAway = "database-unavailable"

// Error is a failure with a kind. Build it with the constructors below.
type Error struct {
	Kind Kind
	// Reason is a stable machine-readable slug such as "session-already-exists"; may be empty.
	Reason string
	// Msg says what happened, to which object.
	Msg string
	// Next tells the reader what to do now; may be empty.
	Next string
	// Data is carried to API clients as structured details; may be nil.
	Data any
	// Err is the cause; may be nil.
	Err error
}

func (e *Error) Error() string {
	s := e.Msg
	if e.Err == nil {
		return s
	}
	cause := e.Err.Error()
	if s != "" && cause != "" {
		s += ": "
	}
	return s + cause
}

func (e *Error) Unwrap() error { return e.Err }

// WithReason returns e with its reason set.
func (e *Error) WithReason(slug string) *Error { e.Reason = slug; return e }

// WithNext returns e with the advice set.
func (e *Error) WithNext(format string, args ...any) *Error {
	e.Next = fmt.Sprintf(format, args...)
	return e
}

// WithData returns e with details for API clients set.
func (e *Error) WithData(data any) *Error { e.Data = data; return e }

// WithCause returns e with the underlying error set.
func (e *Error) WithCause(err error) *Error { e.Err = err; return e }

// New makes an error of the given kind.
func New(kind Kind, format string, args ...any) *Error {
	return &Error{Kind: kind, Msg: fmt.Sprintf(format, args...)}
}

// NotFoundf reports an object that does not exist for this actor.
func NotFoundf(format string, args ...any) *Error { return New(NotFound, format, args...) }

// Conflictf reports an object in the wrong state.
func Conflictf(format string, args ...any) *Error { return New(Conflict, format, args...) }

// Deniedf reports a missing permission.
func Deniedf(format string, args ...any) *Error { return New(Denied, format, args...) }

// Invalidf reports a request that can never succeed.
func Invalidf(format string, args ...any) *Error { return New(Invalid, format, args...) }

// Exhaustedf reports a used-up quota, rate or size.
func Exhaustedf(format string, args ...any) *Error { return New(Exhausted, format, args...) }

// Unavailablef reports a missing dependency.
func Unavailablef(format string, args ...any) *Error { return New(Unavailable, format, args...) }

// KindOf returns the kind of the first fault in err's chain, Internal when there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// Is reports whether err's chain holds a fault of the given kind.
func Is(err error, kind Kind) bool {
	var e *Error
	return errors.As(err, &e) && e.Kind == kind
}

// ReasonOf returns the first non-empty reason in err's chain.
func ReasonOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Reason != "" {
			return e.Reason
		}
		err = e.Err
	}
	return ""
}

// DataOf returns the first details in err's chain, nil when there are none.
func DataOf(err error) any {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return nil
		}
		if e.Data != nil {
			return e.Data
		}
		err = e.Err
	}
	return nil
}

// NextOf returns the first non-empty advice in err's chain.
func NextOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Next != "" {
			return e.Next
		}
		err = e.Err
	}
	return ""
}
