package httpapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"berth.dev/berth/api"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/session"
)

// keepAlive is how often a silent event stream says that it is alive.
const keepAlive = 15 * time.Second

// lastWords is how long a stream stays open after the end of its session, for events that come in the same moment.
const lastWords = 300 * time.Millisecond

func (a *API) eventRoutes() {
	a.handle(signedOnly, a.lasting(a.sessionEvents), "GET /events/session", "GET /stream/session/_/events", "GET /stream/kernel/_/events")
	a.handle(signedOnly, a.lasting(a.taskEvents), "GET /events/background-task")
}

// eventStream writes server-sent events.
type eventStream struct {
	c   *call
	buf bytes.Buffer
}

// sse begins the reply.
func (c *call) sse() *eventStream {
	h := c.w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no") // a reverse proxy must not gather events
	c.w.WriteHeader(http.StatusOK)
	c.w.Flush()
	return &eventStream{c: c}
}

// send writes one event; id 0 means none, retry 0 leaves the client's own.
func (s *eventStream) send(name string, id int64, retry int, data any) error {
	s.buf.Reset()
	if id != 0 {
		fmt.Fprintf(&s.buf, "id: %d\n", id)
	}
	if retry != 0 {
		fmt.Fprintf(&s.buf, "retry: %d\n", retry)
	}
	b, err := json.Marshal(data) // holds no line break
	if err != nil {
		return fmt.Errorf("encode event %s: %w", name, err)
	}
	fmt.Fprintf(&s.buf, "event: %s\ndata: %s\n\n", name, b)
	return s.flush()
}

func (s *eventStream) object(o session.ObjectChange) error {
	if o.Kind == session.ObjectsResync {
		return s.send(api.ObjectsResync, 0, 0, api.Empty{})
	}
	return s.send(api.ObjectEvent, 0, 0, api.ObjectChange{Noun: o.Noun, ID: o.ID, Kind: o.Kind})
}

func (s *eventStream) comment() error {
	s.buf.Reset()
	s.buf.WriteString(": keep-alive\n\n")
	return s.flush()
}

func (s *eventStream) flush() error {
	if _, err := s.c.w.Write(s.buf.Bytes()); err != nil {
		return errClientGone
	}
	s.c.w.Flush()
	return nil
}

func (a *API) sessionEvents(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	f := session.EventFilter{Owner: owner(p), FromNow: true}
	if id := p.UUID("sessionId|session_id"); id != "" {
		f.Session = id
	} else {
		f.Session = p.Text("sessionName|name|session_name", "*")
	}
	if f.Session == "*" {
		f.Session = ""
	}
	for scope := range strings.SplitSeq(p.Text("scope", "*"), ",") {
		switch strings.TrimSpace(scope) {
		case "*":
			f.Sessions, f.Kernels = true, true
		case "session":
			f.Sessions = true
		case "kernel":
			f.Kernels = true
		default:
			p.Fail("scope", "must be *, session or kernel")
		}
	}
	last := c.r.Header.Get("Last-Event-ID")
	if last == "" {
		last = p.Text("after", "") // our extension, for clients that cannot set the header
	}
	if last == "" && !p.Flag("follow", true) {
		last = "0"
	}
	if last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < 0 {
			p.Fail("after", "must be the id of an event")
		}
		f.After, f.FromNow = n, false
	}
	if err := p.Err(); err != nil {
		return err
	}
	follow := p.Flag("follow", true)
	f.Objects = p.Flag("objects", false) // our extension: official clients do not know these events
	if f.Objects && f.Session != "" {
		p.Fail("objects", "goes with the events of all sessions only")
	}
	if err := p.Err(); err != nil {
		return err
	}
	wanted := f.Sessions
	if f.Session != "" {
		f.Sessions = true // the end of the session ends the stream, whatever the scope
	}
	f.NoFollow = !follow
	events, err := a.sessions.Events(c.ctx(), c.actor, f)
	if err != nil {
		return err
	}
	// Once the followed session has ended, what is still on the way is sent and then the stream closed.
	var over <-chan time.Time
	if f.Session != "" {
		s, err := a.sessions.Find(c.ctx(), c.actor, f.Session, f.Owner)
		if err != nil && !fault.Is(err, fault.NotFound) { // Events knows which names may come into being later
			return err
		}
		if err == nil && s.Status.Final() {
			over = time.After(lastWords)
		}
	}
	s := c.sse()
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case <-c.ctx().Done():
			return errClientGone
		case <-over:
			return s.send("server_close", 0, 0, api.Empty{})
		case <-alive.C:
			if err := s.comment(); err != nil {
				return err
			}
		case e, open := <-events:
			if !open && !follow {
				return s.send("server_close", 0, 0, api.Empty{})
			}
			if !open {
				return nil // a client that was too slow comes back with the last id it saw
			}
			if e.Object != nil {
				if err := s.object(*e.Object); err != nil {
					return err
				}
				continue
			}
			if f.Session != "" && e.Kernel == "" && (e.Name == cluster.SessionTerminated || e.Name == cluster.SessionCancelled) {
				over = time.After(lastWords)
			}
			if e.Kernel == "" && !wanted {
				continue
			}
			if err := s.send(string(e.Name), e.Seq, 0, eventData(e)); err != nil {
				return err
			}
		}
	}
}

func eventData(e session.Event) api.SessionEvent {
	d := api.SessionEvent{
		Reason: string(e.Reason), SessionName: e.SessionName, OwnerAccessKey: string(e.OwnerAccessKey), SessionID: string(e.SessionID),
		ExitCode: e.ExitCode, Status: string(e.Status), At: isoTime(e.At), Detail: e.Detail,
	}
	if e.Kernel != "" {
		d.KernelID, d.ClusterRole, d.ClusterIdx = string(e.Kernel), &e.ClusterRole, &e.ClusterIdx
	}
	return d
}

// taskHeadStart is the time between the headers and the first event of a task. The official client prepares its progress bar in it.
const taskHeadStart = 200 * time.Millisecond

// taskNames maps the states of a task to the names of its events.
var taskNames = map[string]string{"done": "bgtask_done", "cancelled": "bgtask_cancelled", "failed": "bgtask_failed"}

func (a *API) taskEvents(c *call) error {
	p, err := c.params()
	if err != nil {
		return err
	}
	id := p.Need("task_id|taskId")
	if err := p.Err(); err != nil {
		return err
	}
	canonical, ok := cluster.CanonicalUUID(id)
	if !ok {
		return fault.NotFoundf("No such background task: %.80s", id).WithData(map[string]string{"object": "background task"})
	}
	states, err := a.operations.TaskEvents(c.ctx(), c.actor, canonical)
	if err != nil {
		return err
	}
	s := c.sse()
	// Clients have the headers before anything happens: the official one fails on an event that comes with them.
	settled := time.NewTimer(taskHeadStart)
	defer settled.Stop()
	select {
	case <-c.ctx().Done():
		return errClientGone
	case <-settled.C:
	}
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case <-c.ctx().Done():
			return errClientGone
		case <-alive.C:
			if err := s.comment(); err != nil {
				return err
			}
		case t, open := <-states:
			if !open {
				return s.send("server_close", 0, 0, api.Empty{})
			}
			d := api.TaskEvent{TaskID: t.ID, Message: t.Message, Current: float64(t.Current), Total: float64(t.Total), Subject: t.Subject}
			name, retry := taskNames[t.Status], 0
			if name == "" {
				name, retry = "bgtask_updated", 5
			}
			if err := s.send(name, 0, retry, d); err != nil {
				return err
			}
		}
	}
}
