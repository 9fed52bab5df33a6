package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// checks is what the looks remember of earlier ones.
type checks struct {
	last   *snapshot
	newest int64 // event of the history that was noted last
	change string
	// digested is the newest event of the last digest, which was made at.
	digested   int64
	digestedAt time.Time
}

func newChecks() checks { return checks{last: &snapshot{}} }

func (c checks) ended() map[string]int {
	out := map[string]int{}
	for _, r := range c.last.sessions {
		out[r.Type+" "+r.Status+" "+r.Result+" "+r.Info]++
	}
	return out
}

const (
	// looksEvery is how often the promises about time are checked although nothing changed.
	looksEvery = 5 * time.Second
	// digestsEvery is how often the whole history is read.
	digestsEvery = 20 * time.Second
)

// look checks every promise that can be checked at any instant. It runs outside of the bubble, after the transactions of one call.
func (s *sim) look(ctx context.Context, now time.Time) {
	at := now.Sub(s.began)
	s.mu.Lock()
	s.calls++
	s.mu.Unlock()
	c := &s.checks
	var change string
	if err := s.db.store.Pool().QueryRow(ctx, `SELECT pg_snapshot_xmax(pg_current_snapshot())::text`).Scan(&change); err != nil {
		s.fail(at, "the simulation works", "%v", err)
		return
	}
	if change == c.change && now.Sub(c.last.now) < looksEvery {
		return
	}
	c.change = change
	was := c.last
	if err := s.read(ctx, now); err != nil {
		s.fail(at, "the simulation works", "read what the checks need: %v", err)
		return
	}
	for _, p := range promises {
		if text := p.broken(was, c.last); text != "" {
			s.fail(at, p.rule, "%s", text)
			return
		}
	}
}

// read makes the next snapshot and adds new events to the history.
func (s *sim) read(ctx context.Context, now time.Time) error {
	c := &s.checks
	is := &snapshot{now: now, sessions: map[string]sessionRow{}, created: map[string]bool{}, asked: map[string]bool{},
		calm: s.calm(everything, now)}
	b := &pgx.Batch{}
	b.Queue(`SELECT id::text, session_id::text, coalesce(agent_id, ''), generation, desired, status, allocation::text,
		requested_slots::text, local_rank, deadline, status_changed FROM kernels ORDER BY id`)
	b.Queue(`SELECT id::text, name, access_key, type, status, status_info, result, cluster_size,
		coalesce(status_info <> '' AND status_data->'scheduler'->>'reason' = status_info, false), status_changed
		FROM sessions ORDER BY created_at, id`)
	b.Queue(`SELECT seq, session_id::text, coalesce(kernel_id::text, ''), from_status, to_status, reason, detail FROM session_events
		WHERE seq > $1 ORDER BY seq`, c.newest)
	b.Queue(`SELECT (SELECT count(*) FROM session_events), (SELECT count(*) FROM kernel_removals),
		(SELECT coalesce(jsonb_object_agg(id, kernel_id), '{}') FROM circuits)`)
	digest := now.Sub(c.digestedAt) >= digestsEvery
	if digest {
		b.Queue(historyDigest, c.digested)
	}
	br := s.db.store.Pool().SendBatch(ctx, b)
	defer br.Close()
	rows, err := br.Query()
	if err != nil {
		return err
	}
	if is.kernels, err = pgx.CollectRows(rows, pgx.RowToStructByPos[kernelRow]); err != nil {
		return err
	}
	if rows, err = br.Query(); err != nil {
		return err
	}
	sessions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sessionRow])
	if err != nil {
		return err
	}
	for _, r := range sessions {
		is.sessions[r.ID] = r
	}
	if rows, err = br.Query(); err != nil {
		return err
	}
	for rows.Next() {
		var id, kernel, from, to, reason, detail string
		if err := rows.Scan(&c.newest, &id, &kernel, &from, &to, &reason, &detail); err != nil {
			return err
		}
		is.added++
		if kernel != "" {
			kernel = " kernel " + short(kernel)
		}
		s.noteAt(now.Sub(s.began), "session %s%s: %s > %s %s %s", is.sessions[id].Name, kernel, from, to, reason, detail)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if err := br.QueryRow().Scan(&is.events, &is.removals, &is.circuits); err != nil {
		return err
	}
	is.oldDigest, is.digest = c.last.digest, c.last.digest
	if digest {
		if err := br.QueryRow().Scan(&is.oldDigest, &is.digest); err != nil {
			return err
		}
		c.digested, c.digestedAt = c.newest, now
	}
	s.addLimits(is)
	for _, h := range s.hosts {
		is.hosts = append(is.hosts, h.state(now, is))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	is.stale = s.stale
	for id := range s.created {
		is.created[string(id)] = true
	}
	for id := range s.asked {
		is.asked[string(id)] = true
	}
	is.published = maps.Clone(s.published)
	c.last = is
	return nil
}

// historyDigest digests the events up to one, and all.
const historyDigest = `SELECT coalesce(sum(e.hash) FILTER (WHERE e.seq <= $1), 0)::bigint, coalesce(sum(e.hash), 0)::bigint FROM (
	SELECT seq, hashtext(concat_ws(',', seq, session_id, kernel_id, event, from_status, to_status, reason, detail, exit_code, at)) AS hash
	FROM session_events) e`

func (s *sim) addLimits(is *snapshot) {
	is.cores, is.limits = manyCores, map[string]limit{}
	for _, o := range s.db.owners {
		is.limits[string(o.actor.AccessKey)] = o.limit
	}
}

func (s *sim) noteAt(at time.Duration, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, fmt.Sprintf("%9s  ", stamp(at))+fmt.Sprintf(format, args...))
}

// state is what the machine looks like now.
func (h *machine) state(now time.Time, is *snapshot) hostState {
	out := hostState{id: h.id, devices: h.devices.Allocatable(), running: map[string]container{}, starts: map[string]int{},
		calm: h.s.calm(h.id, now), containers: h.engine.Count()}
	for _, o := range h.engine.Containers() {
		if o.Phase == runtime.PhaseRunning {
			a, _ := alloc.Parse(o.Identity.Allocation) // what cannot be read holds nothing
			out.running[string(o.Identity.Kernel)] = container{o.Identity.Generation, a}
		}
	}
	for _, k := range is.kernels {
		if n := h.engine.Starts(scope, cluster.AgentID(h.id), cluster.KernelID(k.ID)); n > 0 {
			out.starts[k.ID] = n
		}
	}
	if files, err := os.ReadDir(filepath.Join(h.dir, "kernels")); err == nil {
		out.files = len(files)
	}
	p := h.process()
	if out.up = p != nil; !out.up {
		return out
	}
	h.mu.Lock()
	out.told = map[string]int64{}
	for k, generation := range h.told {
		out.told[string(k)] = generation
	}
	h.mu.Unlock()
	// A stream to a manager that stands still, is cut off or died is none.
	since, home := p.connected.Load(), p.home.Load()
	if since > 0 && home != nil && home.well(now) > quiet {
		out.connected = now.Sub(time.Unix(0, since))
	}
	return out
}

// well is for how long a manager has had no fault of its own.
func (m *managerRole) well(now time.Time) time.Duration {
	if m.dead.Load() {
		return 0
	}
	return m.s.calm(m.seat.name(), now)
}

// cores is how many whole cores the text of a kernel's slots names.
func cores(text string) int {
	var slots cluster.Slots
	if json.Unmarshal([]byte(text), &slots) != nil {
		return 0
	}
	return int(slots[cluster.SlotCPU] / cluster.Whole(1))
}

// ending checks an agent that is about to end a container: nobody may end one that runs and is wanted.
func (s *sim) ending(h *machine, kernel cluster.KernelID, verb string) {
	for _, c := range h.engine.Containers() {
		if c.Identity.Kernel != kernel || c.Phase != runtime.PhaseRunning {
			continue
		}
		s.note("%s %s the running container of kernel %s gen %d", h.id, verb, short(string(kernel)), c.Identity.Generation)
		now := time.Now()
		_ = s.db.do(now, func(ctx context.Context) error {
			k := kernelRow{ID: string(kernel)}
			err := s.db.store.Pool().QueryRow(ctx, `SELECT status, desired, coalesce(agent_id, ''), generation FROM kernels WHERE id = $1`,
				k.ID).Scan(&k.Status, &k.Desired, &k.Agent, &k.Generation)
			if err == nil && wanted(k, h.id, c.Identity.Generation) {
				s.fail(now.Sub(s.began), "what is wanted runs on", "%s %s the container of kernel %s, which is RUNNING and wanted", h.id, verb,
					short(k.ID))
			}
			return nil
		})
		s.announce()
		return
	}
}

// left names what is left when everything should have ended, and the promise that this breaks.
func (s *sim) left() (rule, why string) {
	now := time.Now()
	err := s.db.do(now, func(ctx context.Context) error { return s.read(ctx, now) })
	if err != nil {
		return "the simulation works", err.Error()
	}
	records := map[string]int{}
	for _, h := range s.hosts {
		if p := h.process(); p != nil {
			records[h.id] = len(p.ledger.Records())
		}
	}
	return remains(s.checks.last, records)
}
