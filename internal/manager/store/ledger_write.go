package store

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// absent stands for NULL in an array of numbers.
const absent = math.MinInt32

// writes are the moves of a transaction that PostgreSQL has not seen yet. Sessions move in crowds, so a transaction
// gathers what it does to all of them and writes it in one statement: before its next other statement, which
// therefore sees it, and before its commit. Several moves of one row become one update; each keeps its event.
type writes struct {
	kernels   []*kernelWrite
	sessions  []*sessionWrite
	kernel    map[cluster.KernelID]*kernelWrite
	session   map[cluster.SessionID]*sessionWrite
	events    []eventWrite
	callbacks []callbackWrite
}

// kernelWrite is where a kernel comes from and what its last move leaves.
type kernelWrite struct {
	id                  cluster.KernelID
	generation          int64
	from, to            cluster.Status
	reason              cluster.Reason
	beforeLost          cluster.Status
	deadlineMS          int64
	stops               bool
	stopReason          cluster.Reason
	force, placed, runs bool
	startedUS           int64
	exitCode, signal    int32
	oom                 bool
	container           string
	endpoint            string
	log                 *string
	data                map[string]any
	agent               cluster.AgentID
	allocation          string
}

type sessionWrite struct {
	id                  cluster.SessionID
	from, to            cluster.Status
	moved               bool
	reason              cluster.Reason
	placed, waits, runs bool
	result              cluster.Result
	data                map[string]any
}

type eventWrite struct {
	session        cluster.SessionID
	kernel         cluster.KernelID
	event          cluster.EventName
	from, to       cluster.Status
	reason, detail string
	exitCode       int32
}

type callbackWrite struct {
	session cluster.SessionID
	event   string
}

func newWrites() writes {
	return writes{kernel: map[cluster.KernelID]*kernelWrite{}, session: map[cluster.SessionID]*sessionWrite{}}
}

func (w *writes) empty() bool { return len(w.kernels)+len(w.sessions)+len(w.events) == 0 }

// addKernel merges a move that the table allows; session is the kernel's.
func (w *writes) addKernel(session cluster.SessionID, m KernelMove) error {
	k := w.kernel[m.Kernel]
	if k == nil {
		k = &kernelWrite{id: m.Kernel, generation: m.Generation, from: m.From, exitCode: absent, signal: absent}
		w.kernel[m.Kernel] = k
		w.kernels = append(w.kernels, k)
	} else if k.to != m.From || k.generation != m.Generation {
		return goneFrom("kernel", string(m.Kernel), m.From, m.To)
	}
	k.to, k.reason, k.beforeLost, k.deadlineMS = m.To, m.Reason, "", 0
	if d, due := cluster.KernelDeadline(m.To); due {
		k.deadlineMS = d.After.Milliseconds()
	}
	switch {
	case m.To == cluster.Lost:
		k.beforeLost = m.From
	case m.To == cluster.Scheduled && m.From == cluster.Pending:
		k.placed, k.agent, k.allocation = true, m.Agent, m.Allocation
	case m.To == cluster.Running:
		k.runs = true
		if k.startedUS == 0 && !m.StartedAt.IsZero() {
			k.startedUS = m.StartedAt.UnixMicro()
		}
	case m.To == cluster.Terminating || m.To.Final():
		k.stops = true
		if k.stopReason == "" {
			k.stopReason = m.Reason
		}
	}
	k.force, k.oom = k.force || m.Force, k.oom || m.OOMKilled
	if m.ExitCode != nil {
		k.exitCode = int32(*m.ExitCode)
	}
	if m.Signal != 0 {
		k.signal = int32(m.Signal)
	}
	if m.ContainerID != "" {
		k.container = m.ContainerID
	}
	if m.HostEndpoint != "" {
		k.endpoint = m.HostEndpoint
	}
	if m.Log != nil {
		log := Text(*m.Log)
		k.log = &log
	}
	k.data = merged(k.data, m.Data)
	event := cluster.KernelEvent(m.To)
	if m.From == cluster.Lost && !m.To.Final() && m.To != cluster.Terminating {
		event = "" // a return is no second start
	}
	w.events = append(w.events, eventWrite{session: session, kernel: m.Kernel, event: event, from: m.From, to: m.To,
		reason: string(m.Reason), detail: Text(m.Detail), exitCode: number(m.ExitCode)})
	return nil
}

func (w *writes) of(id cluster.SessionID, from cluster.Status) (*sessionWrite, error) {
	s := w.session[id]
	if s == nil {
		s = &sessionWrite{id: id, from: from, to: from}
		w.session[id] = s
		w.sessions = append(w.sessions, s)
	}
	if s.to != from {
		return nil, goneFrom("session", string(id), from, s.to)
	}
	return s, nil
}

// addSession merges a move that the table allows.
func (w *writes) addSession(m SessionMove) error {
	s, err := w.of(m.Session, m.From)
	if err != nil {
		return err
	}
	s.to, s.reason, s.moved = m.To, m.Reason, true
	switch m.To {
	case cluster.Scheduled:
		s.placed, s.waits, s.data = true, false, nil
	case cluster.Pending:
		s.placed, s.waits, s.data = false, true, nil
	case cluster.Running:
		s.runs = true
	}
	s.data = merged(s.data, m.Data)
	event := cluster.SessionEvent(m.To)
	w.events = append(w.events, eventWrite{session: m.Session, event: event, from: m.From, to: m.To,
		reason: string(m.Reason), detail: Text(m.Detail), exitCode: number(m.ExitCode)})
	w.call(m.Session, event)
	return nil
}

// addResult notes the result of a batch session that has none.
func (w *writes) addResult(id cluster.SessionID, status cluster.Status, result cluster.Result, event cluster.EventName,
	reason cluster.Reason, exitCode *int) error {
	s, err := w.of(id, status)
	if err != nil {
		return err
	}
	s.result = result
	w.events = append(w.events, eventWrite{session: id, event: event, from: status, to: status, reason: string(reason),
		exitCode: number(exitCode)})
	w.call(id, event)
	return nil
}

// addEvent tells of something that happened to a kernel and moved nothing.
func (w *writes) addEvent(session cluster.SessionID, kernel cluster.KernelID, event cluster.EventName, status cluster.Status,
	reason cluster.Reason, detail string) {
	w.events = append(w.events, eventWrite{session: session, kernel: kernel, event: event, from: status, to: status, reason: string(reason),
		detail: Text(detail), exitCode: absent})
}

func (w *writes) call(id cluster.SessionID, event cluster.EventName) {
	if name := callbackEvent(event); name != "" {
		w.callbacks = append(w.callbacks, callbackWrite{id, name})
	}
}

// merged lays objects over each other as || does.
func merged(a, b map[string]any) map[string]any {
	if len(b) == 0 {
		return a
	}
	if a == nil {
		a = make(map[string]any, len(b))
	}
	maps.Copy(a, b)
	return a
}

func number(v *int) int32 {
	if v == nil {
		return absent
	}
	return int32(*v)
}

// params lays the writes out as the statement's arrays.
func (w *writes) params() dbgen.WriteMovesParams {
	var p dbgen.WriteMovesParams
	for _, k := range w.kernels {
		p.KIds, p.KGenerations = append(p.KIds, string(k.id)), append(p.KGenerations, k.generation)
		p.KFrom, p.KTo, p.KReasons = append(p.KFrom, string(k.from)), append(p.KTo, string(k.to)), append(p.KReasons, string(k.reason))
		p.KBeforeLost, p.KDeadlineMs = append(p.KBeforeLost, string(k.beforeLost)), append(p.KDeadlineMs, k.deadlineMS)
		p.KStops, p.KStopReasons = append(p.KStops, k.stops), append(p.KStopReasons, string(k.stopReason))
		p.KForce, p.KFinal, p.KPlaced, p.KRuns = append(p.KForce, k.force), append(p.KFinal, k.to.Final()), append(p.KPlaced, k.placed),
			append(p.KRuns, k.runs)
		p.KStartedUs, p.KExitCodes, p.KSignals = append(p.KStartedUs, k.startedUS), append(p.KExitCodes, k.exitCode), append(p.KSignals, k.signal)
		p.KEndpoints = append(p.KEndpoints, k.endpoint)
		p.KOom, p.KContainers, p.KData = append(p.KOom, k.oom), append(p.KContainers, k.container), append(p.KData, data(k.data))
		p.KAgents, p.KAllocations = append(p.KAgents, string(k.agent)), append(p.KAllocations, k.allocation)
		log := ""
		if k.log != nil {
			log = *k.log
		}
		p.KHasLog, p.KLogs = append(p.KHasLog, k.log != nil), append(p.KLogs, log)
	}
	for _, s := range w.sessions {
		p.SIds, p.SFrom, p.STo = append(p.SIds, string(s.id)), append(p.SFrom, string(s.from)), append(p.STo, string(s.to))
		p.SMoved, p.SReasons, p.SFinal = append(p.SMoved, s.moved), append(p.SReasons, string(s.reason)), append(p.SFinal, s.to.Final())
		p.SPlaced, p.SWaits, p.SRuns = append(p.SPlaced, s.placed), append(p.SWaits, s.waits), append(p.SRuns, s.runs)
		p.SResults, p.SData = append(p.SResults, string(s.result)), append(p.SData, data(s.data))
	}
	for _, c := range w.callbacks {
		p.CSessions, p.CEvents = append(p.CSessions, string(c.session)), append(p.CEvents, c.event)
	}
	for _, e := range w.events {
		p.ESessions, p.EKernels, p.EEvents = append(p.ESessions, string(e.session)), append(p.EKernels, string(e.kernel)),
			append(p.EEvents, string(e.event))
		p.EFrom, p.ETo = append(p.EFrom, string(e.from)), append(p.ETo, string(e.to))
		p.EReasons, p.EDetails, p.EExitCodes = append(p.EReasons, e.reason), append(p.EDetails, e.detail), append(p.EExitCodes, e.exitCode)
	}
	return p
}

func data(m map[string]any) string {
	if len(m) == 0 {
		return ""
	}
	b, err := json.Marshal(m)
	if err != nil {
		return "" // details for people only
	}
	return string(b)
}

// flush writes what has gathered. A row that is not where its move began is a Conflict, and the transaction cannot go on.
func (t *Tx) flush(ctx context.Context) error {
	w := t.writes
	if w.empty() {
		return nil
	}
	t.writes = newWrites()
	n, err := t.direct.WriteMoves(ctx, w.params())
	if err != nil {
		return fmt.Errorf("write moves: %w", err)
	}
	if int(n.Kernels) == len(w.kernels) && int(n.Sessions) == len(w.sessions) {
		return nil
	}
	if len(w.kernels) == 1 && n.Kernels == 0 {
		k := w.kernels[0]
		return goneFrom("kernel", string(k.id), k.from, k.to)
	}
	if len(w.sessions) == 1 && n.Sessions == 0 {
		s := w.sessions[0]
		return goneFrom("session", string(s.id), s.from, s.to)
	}
	return fault.Conflictf("%d of %d kernels and %d of %d sessions were moved by others", len(w.kernels)-int(n.Kernels), len(w.kernels),
		len(w.sessions)-int(n.Sessions), len(w.sessions))
}

func goneFrom(noun, id string, from, to cluster.Status) error {
	return fault.Conflictf("%s %s is no longer %s and cannot become %s", noun, id, from, to)
}

// flushed runs statements after what has gathered before them, so that every statement sees the moves before it.
type flushed struct{ t *Tx }

func (f flushed) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	if err := f.t.flush(ctx); err != nil {
		return pgconn.CommandTag{}, err
	}
	return f.t.raw.Exec(ctx, sql, args...)
}

func (f flushed) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if err := f.t.flush(ctx); err != nil {
		return nil, err
	}
	return f.t.raw.Query(ctx, sql, args...)
}

func (f flushed) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	if err := f.t.flush(ctx); err != nil {
		return failedRow{err}
	}
	return f.t.raw.QueryRow(ctx, sql, args...)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }
