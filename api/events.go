package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Names of the session events; those of kernels begin with kernel_.
const (
	EventSessionEnqueued    = "session_enqueued"
	EventSessionScheduled   = "session_scheduled"
	EventSessionStarted     = "session_started"
	EventSessionCancelled   = "session_cancelled"
	EventSessionTerminating = "session_terminating"
	EventSessionTerminated  = "session_terminated"
	EventSessionSuccess     = "session_success"
	EventSessionFailure     = "session_failure"
	EventKernelPulling      = "kernel_pulling"

	EventTaskUpdated   = "bgtask_updated"
	EventTaskDone      = "bgtask_done"
	EventTaskPartial   = "bgtask_partial_success"
	EventTaskCancelled = "bgtask_cancelled"
	EventTaskFailed    = "bgtask_failed"

	// EventServerClose ends a stream that has nothing more to say.
	EventServerClose = "server_close"
)

// maxEvent bounds one line of an event stream in bytes.
const maxEvent = 1 << 20

// Limits of the reconnection of event streams.
const (
	eventRetry    = time.Second
	eventRetryMax = 15 * time.Second
	eventRetries  = 8
	// eventSilence is how long a stream may say nothing; the manager comments every 15 s.
	eventSilence = 90 * time.Second
)

// Event is one server-sent event.
type Event struct {
	// ID resumes the stream after this event; "" when the server gives none.
	ID   string          `json:"id,omitempty"`
	Name string          `json:"event"`
	Data json.RawMessage `json:"data"`
}

// SessionEvent is the data of session and kernel events.
type SessionEvent struct {
	Reason         string `json:"reason"`
	SessionName    string `json:"sessionName"`
	OwnerAccessKey string `json:"ownerAccessKey"`
	SessionID      string `json:"sessionId"`
	ExitCode       *int   `json:"exitCode"`
	// Status, At (ISO time) and Detail (a sentence for people) are extensions.
	Status string `json:"status"`
	At     string `json:"at"`
	Detail string `json:"detail,omitempty"`
	// The next are set in events of a container.
	KernelID    string  `json:"kernelId,omitempty"`
	ClusterRole *string `json:"clusterRole,omitempty"`
	ClusterIdx  *int    `json:"clusterIdx,omitempty"`
}

// Session decodes the data of a session or kernel event.
func (e Event) Session() (SessionEvent, error) {
	var s SessionEvent
	if err := json.Unmarshal(e.Data, &s); err != nil {
		return s, fmt.Errorf("read event %s: %w", e.Name, err)
	}
	return s, nil
}

// The names of events of a stream that was asked for with objects=true. ObjectsResync has no data: look at everything again.
const (
	ObjectEvent   = "object_changed"
	ObjectsResync = "resync"
)

// ObjectChange is the data of object_changed: what happened to an object that is no session, without its content.
type ObjectChange struct {
	Noun string `json:"noun"` // such as folder, agent, user
	ID   string `json:"id"`
	Kind string `json:"kind"` // made, changed or deleted
}

// TaskEvent is the data of background-task events.
type TaskEvent struct {
	TaskID  string  `json:"task_id"`
	Message string  `json:"message"`
	Current float64 `json:"current_progress"`
	Total   float64 `json:"total_progress"`
	Subject string  `json:"subject"`
}

// Task decodes the data of a background-task event.
func (e Event) Task() (TaskEvent, error) {
	var t TaskEvent
	if err := json.Unmarshal(e.Data, &t); err != nil {
		return t, fmt.Errorf("read event %s: %w", e.Name, err)
	}
	return t, nil
}

// EventFilter selects session events.
type EventFilter struct {
	// Session is a name or id; "" selects all that the caller may see.
	Session string
	// Scope is *, session or kernel; "" stands for *.
	Scope string
	// After resumes after the event with this id; "0" replays everything that is kept,
	// "" starts with the next event.
	After string
	// Once ends the stream after what is kept instead of waiting for more.
	Once bool
	// Opened, if set, is called when the manager has answered. The iteration then ends with an error when the connection breaks, instead
	// of resuming: the caller does that; see follow.Events.
	Opened func()
}

// SessionEvents follows session events until the server closes the stream, the
// consumer stops or ctx ends. Broken connections are resumed after the last event
// seen; the iteration ends with an error when that fails for good.
func (c *Client) SessionEvents(ctx context.Context, f EventFilter) iter.Seq2[Event, error] {
	q := url.Values{"scope": {or(f.Scope, "*")}}
	switch {
	case f.Session == "":
	case isUUID(f.Session):
		q.Set("sessionId", f.Session)
	default:
		q.Set("sessionName", f.Session)
	}
	if f.Once {
		q.Set("follow", "false")
	}
	return c.events(ctx, "/events/session", q, f.After, f.Opened)
}

// TaskEvents follows a background task to its end.
func (c *Client) TaskEvents(ctx context.Context, taskID string) iter.Seq2[Event, error] {
	return c.events(ctx, "/events/background-task", url.Values{"task_id": {taskID}}, "", nil)
}

func (c *Client) events(ctx context.Context, path string, q url.Values, after string, opened func()) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		s := sseReader{last: after, retry: eventRetry}
		for failures := 0; ; {
			before := s.seen
			err := c.eventsOnce(ctx, path, q, &s, opened, func(e Event) bool { return yield(e, nil) })
			if s.seen > before {
				failures = 0
			}
			var refused *Error
			switch {
			case errors.Is(err, errStop):
				return
			case ctx.Err() != nil:
				yield(Event{}, context.Cause(ctx))
				return
			case errors.As(err, &refused) && refused.Status < 500, errors.Is(err, errEventSize):
				yield(Event{}, err)
				return
			}
			failures++
			if opened != nil || failures > eventRetries {
				yield(Event{}, fmt.Errorf("follow events: %w", err))
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(min(s.retry<<(failures-1), eventRetryMax)):
			}
		}
	}
}

// errEventSize ends a stream for good: the same event would come again.
var errEventSize = fmt.Errorf("follow events: an event is larger than %d KiB", maxEvent>>10)

// errStop means that the stream is over and must not be resumed.
var errStop = errors.New("stream over")

// eventsOnce reads one connection to its end. One that is silent for too long is broken.
func (c *Client) eventsOnce(ctx context.Context, path string, q url.Values, s *sseReader, opened func(), yield func(Event) bool) error {
	alive, cancel := context.WithCancel(ctx)
	defer cancel()
	silence := time.AfterFunc(eventSilence, cancel)
	defer silence.Stop()
	r := request{method: http.MethodGet, path: path, query: q, accept: "text/event-stream"}
	if s.last != "" {
		r.header = http.Header{"Last-Event-Id": {s.last}}
	}
	resp, err := c.send(alive, r)
	if err == nil {
		defer resp.Body.Close()
		if opened != nil {
			opened()
		}
		err = s.read(resp.Body, func() { silence.Reset(eventSilence) }, yield)
	}
	if err == nil || alive.Err() != nil && ctx.Err() == nil && !errors.Is(err, errStop) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// sseReader keeps what survives a reconnection.
type sseReader struct {
	last  string
	retry time.Duration
	seen  int
}

// read parses a stream. It returns errStop when the stream said that it is over or the
// consumer stopped, nil or a read error when it broke.
func (s *sseReader) read(body io.Reader, alive func(), yield func(Event) bool) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 0, 4096), maxEvent)
	var e Event
	var data [][]byte
	size := 0
	for lines.Scan() {
		alive()
		line := lines.Text()
		if line == "" {
			e.Data = bytes.Join(data, []byte("\n"))
			done := e.Name == EventServerClose
			if e.Name != "" || len(data) > 0 {
				s.seen++
				if e.ID != "" {
					s.last = e.ID
				}
				if done || !yield(e) {
					return errStop
				}
			}
			e, data, size = Event{}, nil, 0
			continue
		}
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch field {
		case "event":
			e.Name = value
		case "data":
			if size += len(value); size > maxEvent {
				return errEventSize
			}
			data = append(data, []byte(value))
		case "id":
			e.ID = value
		case "retry":
			// The wire counts milliseconds; some servers mean seconds by small numbers.
			if ms, err := strconv.Atoi(value); err == nil && ms >= 100 {
				s.retry = min(time.Duration(ms)*time.Millisecond, eventRetryMax)
			}
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return errEventSize
	}
	return lines.Err()
}

// isUUID accepts the dashed and the bare form.
func isUUID(s string) bool {
	hex := strings.ReplaceAll(s, "-", "")
	if len(hex) != 32 || len(s) != 32 && len(s) != 36 {
		return false
	}
	return strings.Trim(hex, "0123456789abcdefABCDEF") == ""
}
