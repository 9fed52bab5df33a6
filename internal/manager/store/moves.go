package store

import (
	"context"
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
	// HostEndpoint is where the others of its session reach it in the network of its host.
	HostEndpoint string
	StartedAt    time.Time
	Log          *string
	// Force asks the agent for an end without grace.
	Force bool
	// AgentsFault: it failed for something of the agent's making, which uses up no attempt of its session.
	AgentsFault bool
	// Data is merged into status_data.
	Data map[string]any
	// Agent and Allocation (alloc.Allocation as JSON) are where a PENDING kernel becomes SCHEDULED.
	Agent      cluster.AgentID
	Allocation string
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
// allow and a kernel that is not in From (or of another generation) are both a Conflict; the latter may come
// from the transaction's next statement or its commit, because moves are written together.
func (t *Tx) MoveKernel(ctx context.Context, m KernelMove) error {
	session, err := t.direct.SessionOfKernel(ctx, string(m.Kernel))
	if err != nil && !Missing(err) {
		return fmt.Errorf("find kernel %s: %w", m.Kernel, err)
	}
	return t.moveKernel(ctx, cluster.SessionID(session), m)
}

func (t *Tx) moveKernel(ctx context.Context, session cluster.SessionID, m KernelMove) error {
	if !cluster.KernelMayMove(m.From, m.To) {
		return fault.Conflictf("kernel %s may not go from %s to %s", m.Kernel, m.From, m.To)
	}
	if m.To != cluster.Pending {
		return t.writes.addKernel(session, m)
	}
	_, err := t.Queries.RequeueKernel(ctx, dbgen.RequeueKernelParams{Reason: string(m.Reason), ID: string(m.Kernel),
		FromStatus: string(m.From),
		Generation: m.Generation, Detail: Text(m.Detail)})
	if Missing(err) {
		return goneFrom("kernel", string(m.Kernel), m.From, m.To)
	}
	if err != nil {
		return fmt.Errorf("give kernel %s back to the queue: %w", m.Kernel, err)
	}
	return nil
}

// MoveSession makes a move, notes it as an event, and a callback where one is asked for. Conflicts are as with MoveKernel.
func (t *Tx) MoveSession(_ context.Context, m SessionMove) error {
	if !cluster.SessionMayMove(m.From, m.To) {
		return fault.Conflictf("session %s may not go from %s to %s", m.Session, m.From, m.To)
	}
	if err := t.writes.addSession(m); err != nil {
		return err
	}
	t.Wake(TopicEvents, SessionTopic(string(m.Session)))
	return nil
}

// callbackEvent is the name of an event in a callback's body: without its noun.
func callbackEvent(e cluster.EventName) string { return strings.TrimPrefix(string(e), "session_") }

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
