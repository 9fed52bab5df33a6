package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/httpapi/scim"
	"berth.dev/berth/internal/manager/httpapi/signature"
	wire "berth.dev/berth/internal/manager/scim"
	"berth.dev/berth/internal/manager/tenancy"
)

// problemBase is put before every slug to make the type of a problem document.
const problemBase = api.ProblemPrefix

// Reasons that only this package raises.
const (
	reasonURLNotFound      = "url-not-found"
	reasonMethodNotAllowed = "method-not-allowed"
	reasonInvalidAuth      = signature.ReasonInvalid
	reasonAuthFailed       = "auth-failed"
	reasonBadRequest       = "generic-bad-request"
	reasonInvalidParams    = "invalid-api-params"
	reasonTooLarge         = "request-too-large"
	reasonRateLimit        = "rate-limit-exceeded"
	reasonNotImplemented   = "not-implemented"
	reasonInternal         = "internal-server-error"
)

// outcome is what a reason looks like on the wire.
type outcome struct {
	status int
	title  string
}

// outcomes is the table from reasons to statuses and titles. Reasons are wire slugs; a reason that is
// missing here gets the status of its kind.
var outcomes = map[string]outcome{
	reasonInvalidParams:            {http.StatusBadRequest, "Missing or invalid API parameters."},
	reasonBadRequest:               {http.StatusBadRequest, "Bad request."},
	reasonInvalidAuth:              {http.StatusBadRequest, "Missing or invalid authorization parameters."},
	reasonNotImplemented:           {http.StatusBadRequest, "This API is not implemented."},
	"rejected-by-hook":             {http.StatusBadRequest, "Operation rejected by a hook."},
	"invalid-credentials":          {http.StatusBadRequest, "Authentication credentials not valid."},
	"deprecated":                   {http.StatusBadRequest, "This API is deprecated."},
	"graphql-error":                {http.StatusBadRequest, "GraphQL-generated error."},
	"session-already-exists":       {http.StatusBadRequest, "The session already exists but you requested not to reuse existing one."},
	"vfolder-already-exists":       {http.StatusBadRequest, "The virtual folder already exists with the same name."},
	"vfolder-creation-failed":      {http.StatusBadRequest, "Virtual folder creation has failed."},
	"vfolder-operation-failed":     {http.StatusBadRequest, "Virtual folder operation has failed."},
	"vfolder-permission-error":     {http.StatusBadRequest, "The virtual folder does not permit the specified permission."},
	"vfolder-filter-status-failed": {http.StatusBadRequest, "The status of the virtual folder does not allow this."},
	reasonAuthFailed:               {http.StatusUnauthorized, "Credential or signature mismatch."},
	tenancy.ReasonPasswordExpired:  {http.StatusUnauthorized, "Password has expired."},
	tenancy.ReasonOTPNeeded:        {http.StatusUnauthorized, "Second factor is required."},
	tenancy.ReasonOTPRegistration:  {http.StatusUnauthorized, "A second factor must be registered."},
	tenancy.ReasonLoginExpired:     {http.StatusUnauthorized, "The login session has ended."},
	tenancy.ReasonLoginExists:      {http.StatusConflict, "There is an active login session already."},
	"generic-forbidden":            {http.StatusForbidden, "Forbidden operation."},
	"insufficient-privilege":       {http.StatusForbidden, "Insufficient privilege."},
	"object-not-found":             {http.StatusNotFound, "No such object."},
	"too-many-sessions-matched":    {http.StatusNotFound, "Too many sessions matched."},
	"too-many-kernels":             {http.StatusNotFound, "There are two or more matching kernels."},
	"too-many-vfolders":            {http.StatusNotFound, "There are two or more matching virtual folders."},
	reasonURLNotFound:              {http.StatusNotFound, "No such URL."},
	reasonMethodNotAllowed:         {http.StatusMethodNotAllowed, "HTTP method not allowed."},
	"quota-exceeded":               {http.StatusPreconditionFailed, "You have reached your resource limit."},
	reasonTooLarge:                 {http.StatusRequestEntityTooLarge, "The request is too large."},
	reasonRateLimit:                {http.StatusTooManyRequests, "You have reached your API query rate limit."},
	reasonInternal:                 {http.StatusInternalServerError, "Internal server error."},
	"server-misconfigured":         {http.StatusInternalServerError, "The server is misconfigured."},
	"kernel-creation-failed":       {http.StatusInternalServerError, "Kernel creation has failed."},
	"kernel-destruction-failed":    {http.StatusInternalServerError, "Kernel destruction has failed."},
	"kernel-restart-failed":        {http.StatusInternalServerError, "Kernel restart has failed."},
	"kernel-execution-failed":      {http.StatusInternalServerError, "Executing user code in the kernel has failed."},
	"service-unavailable":          {http.StatusServiceUnavailable, "Service unavailable."},
	"server-frozen":                {http.StatusServiceUnavailable, "The server is frozen due to maintenance."},
	"instance-not-available":       {http.StatusServiceUnavailable, "There is no available instance."},
	"storage-proxy-error":          {http.StatusBadGateway, "The storage proxy has failed."},
	"identity-provider-error":      {http.StatusBadGateway, "The identity provider has failed."},
	"agent-timeout":                {http.StatusGatewayTimeout, "The agent did not answer in time."},
}

// kindReasons gives every kind the slug that it has without a reason of its own.
var kindReasons = map[fault.Kind]string{
	fault.Internal:        reasonInternal,
	fault.NotFound:        "object-not-found",
	fault.Conflict:        reasonBadRequest,
	fault.Denied:          "generic-forbidden",
	fault.Unauthenticated: reasonAuthFailed,
	fault.Invalid:         reasonInvalidParams,
	fault.Exhausted:       "quota-exceeded",
	fault.Unavailable:     "service-unavailable",
	fault.Timeout:         "agent-timeout",
}

// problem is the document of an error with the status that it is answered under.
type problem struct {
	api.Problem
	status int
}

// problemOf turns any error into its document. Msg says what happened, to which object, and what to do next in one text,
// because official clients show nothing else.
func problemOf(err error) problem {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		err = fault.New(fault.Exhausted, "the request's body is larger than %d bytes", tooLarge.Limit).
			WithReason(reasonTooLarge).WithNext("send less at once; upload files in several requests")
	}
	kind, reason := fault.KindOf(err), fault.ReasonOf(err)
	if reason == "" {
		reason = kindReasons[kind]
	}
	o, known := outcomes[reason]
	slug := reason
	if !known {
		// Clients know a closed list of types; what is ours goes into the code.
		slug = kindReasons[kind]
		o = outcomes[slug]
	}
	p := problem{Problem: api.Problem{Type: problemBase + slug, Title: o.title, Code: reason, Next: fault.NextOf(err)}, status: o.status}
	data := fault.DataOf(err)
	if kind == fault.Internal && p.status >= 500 {
		// What went wrong inside is for the log, not for strangers.
		p.Msg = "the manager met an error that it did not expect"
		p.Next = "try again; if it happens again, give your administrator the request id"
		data = nil
	} else {
		p.Msg = err.Error()
	}
	if d, ok := data.(map[string]string); ok && d["object"] != "" {
		noun := api.WireNoun(d["object"])
		p.Msg = api.WireMessage(p.Msg, d["object"])
		if slug == "object-not-found" {
			p.Title = "No such " + noun + "."
		}
		if noun != d["object"] {
			d = maps.Clone(d)
			d["object"] = noun
			data = d
		}
	}
	if p.Next != "" && !strings.Contains(p.Msg, p.Next) {
		p.Msg = strings.TrimSuffix(p.Msg, ".") + "; " + p.Next
	}
	// The official command line indexes the data of these two without asking.
	if data == nil && (slug == api.SlugTooManySessions || slug == api.SlugSessionExists) {
		data = api.SessionMatches{Matches: []api.SessionMatch{}}
	}
	if data != nil {
		if b, err := json.Marshal(data); err == nil { // what cannot be encoded is left out: the rest says what is needed
			p.Data = b
		}
	}
	return p
}

// respondError writes err as a problem document and logs what only the log may know. It does nothing but log
// when the reply has begun already.
func (a *API) respondError(w *responseWriter, r *http.Request, err error) {
	if errors.Is(err, errResponded) {
		return
	}
	if errors.Is(err, errClientGone) || r.Context().Err() != nil && errors.Is(err, context.Canceled) {
		w.note = "client left"
		return
	}
	p := problemOf(err)
	var said *wire.Error
	ofSCIM := strings.HasPrefix(r.URL.Path, scim.Prefix)
	if ofSCIM && errors.As(err, &said) {
		p.status = said.Status
	}
	p.RequestID = w.requestID
	if code := newerCode(r, p); code != "" {
		p.OwnCode, p.Code = p.Code, code
	}
	if p.status >= 500 {
		a.log.LogAttrs(
			r.Context(), slog.LevelError, "request failed", slog.String("request", w.requestID), slog.String("path", r.URL.Path),
			slog.Any("error", err),
		)
	}
	w.note = p.Type[len(problemBase):]
	if w.status != 0 {
		return // too late to say anything
	}
	body, merr := json.Marshal(p.Problem)
	if merr != nil {
		p.Data = nil
		body, _ = json.Marshal(p.Problem)
	}
	contentType := "application/problem+json"
	if ofSCIM {
		contentType = wire.ContentType
		body, _ = json.Marshal(scim.ErrorOf(err, p.status, p.Msg)) // texts and numbers
	}
	h := w.Header()
	for _, k := range []string{"Content-Disposition", "Content-Encoding", "ETag", "Last-Modified", "Cache-Control"} {
		h.Del(k)
	}
	if p.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", retryAfter)
	}
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(p.status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // nobody is left to tell
	}
}

// retryAfter is what clients are told to wait, in seconds, when a part of the cluster is away.
const retryAfter = "2"

// newerCode is the error code that managers from 25.x on answer, as domain, operation and detail; "" where there is none beside ours.
func newerCode(r *http.Request, p problem) string {
	switch p.Type {
	case problemBase + reasonInvalidParams:
		return "api_generic_invalid-parameters"
	case problemBase + "service-unavailable", problemBase + "instance-not-available", problemBase + "server-frozen":
		if r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, "/session") || strings.Contains(r.URL.Path, "/session/_/create")) {
			return "session_create_unavailable"
		}
	}
	return ""
}

// errResponded is returned by handlers that answered in their own way after a failure.
var errResponded = errors.New("already responded")
