package transfer

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"berth.dev/berth/internal/fault"
)

// problemBase is put before every slug to make the type of a problem document.
const problemBase = "https://api.backend.ai/probs/storage/"

// Reasons are slugs below problemBase; the first five are the wire's, the others are ours.
const (
	reasonInvalidParams     = "invalid-api-params"
	reasonNoFile            = "file-not-found"
	reasonNoSession         = "no-such-upload-session"
	reasonOffset            = "upload-offset-mismatch"
	reasonInternal          = "internal-server-error"
	reasonTooLarge          = "upload-too-large"
	reasonLocked            = "upload-locked"
	reasonChecksum          = "checksum-mismatch"
	reasonFull              = "quota-exceeded"
	reasonBusy              = "too-many-transfers"
	reasonUnavailable       = "service-unavailable"
	reasonConflict          = "conflict"
	reasonDenied            = "forbidden"
	reasonTusVersion        = "unsupported-tus-version"
	reasonMediaType         = "unsupported-media-type"
	reasonMethod            = "method-not-allowed"
	reasonURL               = "url-not-found"
	reasonCut               = "request-incomplete"
	statusChecksum      int = 460 // of tus
)

// outcome is what a reason looks like on the wire.
type outcome struct {
	status int
	title  string
}

// outcomes is the table from reasons to statuses; a reason that is missing here gets the slug of its kind.
var outcomes = map[string]outcome{
	reasonInvalidParams: {http.StatusBadRequest, "Invalid or missing API parameters."},
	reasonNoFile:        {http.StatusNotFound, "No such file or directory."},
	reasonNoSession:     {http.StatusNotFound, "No such upload session."},
	reasonOffset:        {http.StatusConflict, "The upload is at another offset."},
	reasonInternal:      {http.StatusInternalServerError, "Internal server error."},
	reasonTooLarge:      {http.StatusRequestEntityTooLarge, "More bytes than were declared or are allowed."},
	reasonLocked:        {http.StatusLocked, "Another request writes this upload."},
	reasonChecksum:      {statusChecksum, "The checksum does not match."},
	reasonFull:          {http.StatusInsufficientStorage, "No space is left."},
	reasonBusy:          {http.StatusServiceUnavailable, "Too many transfers at one time."},
	reasonUnavailable:   {http.StatusServiceUnavailable, "Service unavailable."},
	reasonConflict:      {http.StatusConflict, "Something else is in the way."},
	reasonDenied:        {http.StatusForbidden, "Forbidden operation."},
	reasonTusVersion:    {http.StatusPreconditionFailed, "Unsupported version of tus."},
	reasonMediaType:     {http.StatusUnsupportedMediaType, "Unsupported media type."},
	reasonMethod:        {http.StatusMethodNotAllowed, "HTTP method not allowed."},
	reasonURL:           {http.StatusNotFound, "No such URL."},
	reasonCut:           {http.StatusRequestTimeout, "The request ended early."},
}

// kindReasons gives every kind the slug that it has without a known reason of its own.
var kindReasons = map[fault.Kind]string{
	fault.Internal:        reasonInternal,
	fault.NotFound:        reasonNoFile,
	fault.Conflict:        reasonConflict,
	fault.Denied:          reasonDenied,
	fault.Unauthenticated: reasonInvalidParams,
	fault.Invalid:         reasonInvalidParams,
	fault.Exhausted:       reasonFull,
	fault.Unavailable:     reasonUnavailable,
	fault.Timeout:         reasonUnavailable,
}

// problem is the body of every error, with the manager's fields.
type problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"`
	Msg       string `json:"msg,omitempty"`
	Next      string `json:"next,omitempty"`
	RequestID string `json:"request_id,omitempty"`
	Code      string `json:"error_code,omitempty"`
	status    int
}

func problemOf(err error) problem {
	kind, slug := fault.KindOf(err), fault.ReasonOf(err)
	o, known := outcomes[slug]
	if !known {
		slug = kindReasons[kind]
		o = outcomes[slug]
	}
	p := problem{Type: problemBase + slug, Title: o.title, status: o.status, Code: fault.ReasonOf(err), Next: fault.NextOf(err),
		Msg: err.Error()}
	if kind == fault.Internal {
		// What went wrong inside is for the log, not for strangers.
		p.Msg = "the storage proxy met an error that it did not expect"
		p.Next = "try again; if it happens again, give your administrator the request id"
	}
	if p.Next != "" && !strings.Contains(p.Msg, p.Next) {
		p.Msg = strings.TrimSuffix(p.Msg, ".") + "; " + p.Next
	}
	return p
}

// refuse answers with a problem document. A reply that has begun is cut instead.
func (w *reply) refuse(err error) {
	p := problemOf(err)
	p.RequestID = w.id
	w.problem = err
	if w.status != 0 {
		w.abort = true
		return
	}
	body, merr := json.Marshal(p)
	if merr != nil {
		body = []byte("{}")
	}
	h := w.Header()
	for _, k := range []string{"Content-Disposition", "Content-Encoding", "ETag", "Last-Modified", "Accept-Ranges", "Content-Range"} {
		h.Del(k)
	}
	h.Set("Content-Type", "application/problem+json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	if p.status == http.StatusServiceUnavailable {
		h.Set("Retry-After", "5")
	}
	w.WriteHeader(p.status)
	if w.method != http.MethodHead {
		_, _ = w.Write(body) // nobody is left to tell
	}
}
