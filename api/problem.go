package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// ProblemPrefix begins the type of every problem.
const ProblemPrefix = "https://api.backend.ai/probs/"

// Slugs of the problems that clients act upon.
const (
	SlugAuthFailed      = "auth-failed"
	SlugLoginExpired    = "login-session-expired"
	SlugForbidden       = "generic-forbidden"
	SlugNotFound        = "object-not-found"
	SlugTooManySessions = "too-many-sessions-matched"
	SlugSessionExists   = "session-already-exists"
	SlugInvalidParams   = "invalid-api-params"
	SlugInvalidAuth     = "invalid-auth-params"
	SlugGraphQL         = "graphql-error"
	SlugUnavailable     = "service-unavailable"
	SlugQuotaExceeded   = "quota-exceeded"
	SlugRateLimit       = "rate-limit-exceeded"
)

// CodeNoAppProxy is the code of a problem that says that no app proxy is connected to the manager.
const CodeNoAppProxy = "no-app-proxy"

// CodeAppRefused is the code of a problem that says that the way to an app is there, but nothing listens at its end.
const CodeAppRefused = "app-refused"

// CodeAppMissing is the code of a problem that says that the session has no program for an app that is known.
const CodeAppMissing = "app-missing"

// maxProblem bounds the size of an error body in bytes.
const maxProblem = 1 << 20

// Problem is the body of every failed request, of type application/problem+json.
type Problem struct {
	// Type is ProblemPrefix followed by a stable slug.
	Type  string `json:"type"`
	Title string `json:"title"`
	// Msg says what happened, to which object.
	Msg string `json:"msg,omitempty"`
	// Next tells the reader what to do now.
	Next string `json:"next,omitempty"`
	// RequestID finds the request in the manager's log.
	RequestID string `json:"request_id,omitempty"`
	// Code is the precise reason where Type names only its class. Where newer managers of the wire have a code of their own, error_code
	// holds theirs and OwnCode is ours.
	Code    string `json:"error_code,omitempty"`
	OwnCode string `json:"berth_code,omitempty"`
	// Data holds details whose shape depends on Type.
	Data json.RawMessage `json:"data,omitempty"`
}

// Slug is the stable part of the type.
func (p Problem) Slug() string { return p.Type[strings.LastIndexByte(p.Type, '/')+1:] }

// Error is a request that the manager refused.
type Error struct {
	// Status is the HTTP status.
	Status int
	// Op is the method and path of the request.
	Op string
	Problem
}

func (e *Error) Error() string {
	switch {
	case e.Msg != "":
		return e.Msg
	case e.Title != "":
		return e.Title
	}
	return fmt.Sprintf("%s: the manager answered %d %s", e.Op, e.Status, http.StatusText(e.Status))
}

// IsNotFound reports whether err says that an object does not exist for this caller.
func IsNotFound(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Status == http.StatusNotFound && e.Slug() != SlugTooManySessions
}

// IsDenied reports whether err says that the caller is unknown or may not do this.
func IsDenied(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.Status == http.StatusUnauthorized || e.Status == http.StatusForbidden)
}

// HasSlug reports whether err is a problem with the given slug.
func HasSlug(err error, slug string) bool {
	var e *Error
	return errors.As(err, &e) && e.Slug() == slug
}

// HasCode reports whether err is a problem with the given code.
func HasCode(err error, code string) bool {
	var e *Error
	return errors.As(err, &e) && (e.Code == code || e.OwnCode == code)
}

func notFound(op, format string, args ...any) *Error {
	return &Error{Status: http.StatusNotFound, Op: op, Problem: Problem{
		Type: ProblemPrefix + SlugNotFound, Title: "No such object", Msg: fmt.Sprintf(format, args...),
	}}
}

// readProblem turns a failed response into an Error. Bodies that are not problems,
// as those of proxies on the way, keep the start of their text.
func readProblem(op string, status int, body io.Reader) *Error {
	e := &Error{Status: status, Op: op}
	text, err := io.ReadAll(io.LimitReader(body, maxProblem))
	if err == nil {
		var failure struct { // of an app proxy
			Reason string `json:"reason"`
		}
		if err = json.Unmarshal(text, &e.Problem); err == nil && e.Code == "" && json.Unmarshal(text, &failure) == nil {
			e.Code = failure.Reason
		}
	}
	// The manager's msg ends with next for the sake of clients that show nothing else.
	if e.Next != "" {
		e.Msg = strings.TrimSuffix(e.Msg, "; "+e.Next)
	}
	if err != nil || e.Type == "" && e.Title == "" && e.Msg == "" { // app proxies send a msg alone
		e.Problem = Problem{Title: fmt.Sprintf("%s: the server answered %d %s", op, status, http.StatusText(status))}
		if s := strings.TrimSpace(string(text)); s != "" && len(s) < 300 && !strings.HasPrefix(s, "<") {
			e.Title += ": " + s
		}
	}
	return e
}
