package store

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// KernelMove is one guarded move of a kernel. From must be what the caller saw under the session's lock.
type KernelMove struct {
	Kernel     cluster.KernelID
	Generation int64
	From, To   cluster.Status
	Reason     cluster.Reason
	Detail     string
	// What the agent reported with it; zero values leave the columns alone.
	ExitCode    *int
	Signal      int
	OOMKilled   bool
	ContainerID string
	StartedAt   time.Time
	Log         *string
	// Force asks the agent for an end without grace.
	Force bool
	// Data is merged into status_data.
	Data map[string]any
}

// SessionMove is one guarded move of a session.
type SessionMove struct {
	Session  cluster.SessionID
	From, To cluster.Status
	Reason   cluster.Reason
	Detail   string
	ExitCode *int
	Data     map[string]any
}

// MoveKernel makes a move, notes it as an event and sets the deadline of the new status. A move that the table does not
// allow and a kernel that is not in From (or of another generation) are both a Conflict.
func (t *Tx) MoveKernel(ctx context.Context, m KernelMove) error {
	if !cluster.KernelMayMove(m.From, m.To) {
		return fault.Conflictf("kernel %s may not go from %s to %s", m.Kernel, m.From, m.To)
	}
	if m.To == cluster.Pending {
		_, err := t.Queries.RequeueKernel(ctx, dbgen.RequeueKernelParams{Reason: string(m.Reason), ID: string(m.Kernel), FromStatus: string(m.From),
			Generation: m.Generation, Detail: Text(m.Detail)})
		return moved(err, "kernel", string(m.Kernel), m.From, m.To)
	}
	event := cluster.KernelEvent(m.To)
	if m.From == cluster.Lost {
		event = "" // a return is no second start
		if m.To.Final() || m.To == cluster.Terminating {
			event = cluster.KernelEvent(m.To)
		}
	}
	arg := dbgen.MoveKernelParams{
		Event: string(event), FromStatus: string(m.From), ToStatus: string(m.To), Reason: string(m.Reason), Detail: Text(m.Detail),
		ExitCode: int32p(m.ExitCode), ForceStop: m.Force, Final: m.To.Final(), OomKilled: m.OOMKilled, Log: m.Log,
		StatusData: object(m.Data), ID: string(m.Kernel), Generation: m.Generation,
	}
	if d, due := cluster.KernelDeadline(m.To); due {
		arg.Deadline = &d.After
	}
	if !m.StartedAt.IsZero() {
		arg.StartedAt = &m.StartedAt
	}
	if m.Signal != 0 {
		arg.Signal = int32p(&m.Signal)
	}
	if m.ContainerID != "" {
		arg.ContainerID = &m.ContainerID
	}
	if m.Log != nil {
		log := Text(*m.Log)
		arg.Log = &log
	}
	_, err := t.Queries.MoveKernel(ctx, arg)
	return moved(err, "kernel", string(m.Kernel), m.From, m.To)
}

// MoveSession makes a move, notes it as an event, and a callback where one is asked for.
func (t *Tx) MoveSession(ctx context.Context, m SessionMove) error {
	if !cluster.SessionMayMove(m.From, m.To) {
		return fault.Conflictf("session %s may not go from %s to %s", m.Session, m.From, m.To)
	}
	event := cluster.SessionEvent(m.To)
	_, err := t.Queries.MoveSession(ctx, dbgen.MoveSessionParams{
		Event: string(event), FromStatus: string(m.From), ToStatus: string(m.To), Reason: string(m.Reason), Detail: Text(m.Detail),
		ExitCode: int32p(m.ExitCode), Final: m.To.Final(), StatusData: object(m.Data), ID: string(m.Session),
		CallbackEvent: callbackEvent(event),
	})
	if err == nil {
		t.Wake(TopicEvents, SessionTopic(string(m.Session)))
	}
	return moved(err, "session", string(m.Session), m.From, m.To)
}

// callbackEvent is the name of an event in a callback's body: without its noun.
func callbackEvent(e cluster.EventName) string { return strings.TrimPrefix(string(e), "session_") }

func moved(err error, noun, id string, from, to cluster.Status) error {
	switch {
	case err == nil:
		return nil
	case Missing(err):
		return fault.Conflictf("%s %s is no longer %s and cannot become %s", noun, id, from, to)
	}
	return fmt.Errorf("move %s %s from %s to %s: %w", noun, id, from, to, err)
}

// Text makes any bytes storable: PostgreSQL takes neither NUL nor broken UTF-8.
func Text(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

func int32p(v *int) *int32 {
	if v == nil {
		return nil
	}
	n := int32(*v)
	return &n
}

func object(m map[string]any) json.RawMessage {
	if len(m) == 0 {
		return json.RawMessage(`{}`)
	}
	b, err := json.Marshal(m)
	if err != nil {
		return json.RawMessage(`{}`) // details for people only
	}
	return b
}
