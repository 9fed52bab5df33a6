package simulation

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/cluster"
)

// kernelRow and sessionRow are what the checks look at.
type kernelRow struct {
	ID, Session, Agent string
	Generation         int64
	Desired, Status    string
	Allocation         string
	Deadline           *time.Time
	Changed            time.Time
	Info               string
}

type sessionRow struct {
	ID, Name, Type, Status, Info, Result string
	Explained                            bool
	Changed                              time.Time
}

// checks is what the checks remember of earlier looks.
type checks struct {
	events  int64 // newest of the history
	count   int64
	final   map[string]sessionRow
	kernels []kernelRow
	rows    map[string]sessionRow
	change  string
	looked  time.Time
}

func newChecks() checks { return checks{final: map[string]sessionRow{}, rows: map[string]sessionRow{}} }

func (c checks) ended() map[string]int {
	out := map[string]int{}
	for _, r := range c.rows {
		out[r.Type+" "+r.Status+" "+r.Result+" "+r.Info]++
	}
	return out
}

// quiet is how long a part must have been without any fault before it is held to bounds of time.
const (
	quiet = 25 * time.Second
	// overdue is how long after a deadline something must have happened.
	overdue = time.Minute
	// looksEvery is how often the promises about time are checked although nothing changed.
	looksEvery = 5 * time.Second
)

// look checks every promise that can be checked at any instant. It runs outside of the bubble, after the transactions of one call.
func (s *sim) look(ctx context.Context, now time.Time, what string) {
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
	if change == c.change && now.Sub(c.looked) < looksEvery {
		return
	}
	c.change, c.looked = change, now
	if err := s.read(ctx, at); err != nil {
		s.fail(at, "the simulation works", "read what the checks need: %v", err)
		return
	}
	s.roomHolds(at)
	s.runsOnce(at)
	s.quotaHolds(at)
	s.gangsHold(at)
	s.deadlinesHold(now)
	s.ordersArrive(now)
	s.reasonsAreGiven(now)
}

// read loads the rows, adds new events to the history and checks that what is written stays.
func (s *sim) read(ctx context.Context, at time.Duration) error {
	c := &s.checks
	b := &pgx.Batch{}
	b.Queue(`SELECT id::text, session_id::text, coalesce(agent_id, ''), generation, desired, status, allocation::text, deadline,
		status_changed, status_info FROM kernels ORDER BY id`)
	b.Queue(`SELECT id::text, name, type, status, status_info, result, status_info <> '' OR status_data ? 'scheduler', status_changed
		FROM sessions ORDER BY created_at, id`)
	b.Queue(`SELECT seq, session_id::text, coalesce(kernel_id::text, ''), from_status, to_status, reason, detail FROM session_events
		WHERE seq > $1 ORDER BY seq`, c.events)
	b.Queue(`SELECT count(*) FROM session_events`)
	br := s.db.store.Pool().SendBatch(ctx, b)
	defer br.Close()
	rows, err := br.Query()
	if err != nil {
		return err
	}
	if c.kernels, err = pgx.CollectRows(rows, pgx.RowToStructByPos[kernelRow]); err != nil {
		return err
	}
	if rows, err = br.Query(); err != nil {
		return err
	}
	sessions, err := pgx.CollectRows(rows, pgx.RowToStructByPos[sessionRow])
	if err != nil {
		return err
	}
	was := c.rows
	c.rows = make(map[string]sessionRow, len(sessions))
	for _, r := range sessions {
		c.rows[r.ID] = r
		old, ended := c.final[r.ID]
		if ended && (old.Status != r.Status || old.Result != r.Result) {
			s.fail(at, "acknowledged is durable", "session %s was %s %s and is %s %s", r.Name, old.Status, old.Result, r.Status, r.Result)
		}
		if cluster.Status(r.Status).Final() {
			c.final[r.ID] = r
		}
	}
	for id, r := range was {
		if _, there := c.rows[id]; !there {
			s.fail(at, "acknowledged is durable", "session %s is gone", r.Name)
		}
	}
	if rows, err = br.Query(); err != nil {
		return err
	}
	added := int64(0)
	for rows.Next() {
		var id, kernel, from, to, reason, detail string
		if err := rows.Scan(&c.events, &id, &kernel, &from, &to, &reason, &detail); err != nil {
			return err
		}
		added++
		if kernel != "" {
			kernel = " kernel " + short(kernel)
		}
		s.noteAt(at, "session %s%s: %s > %s %s %s", c.rows[id].Name, kernel, from, to, reason, detail)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	var count int64
	if err := br.QueryRow().Scan(&count); err != nil {
		return err
	}
	if count != c.count+added {
		s.fail(at, "history only grows", "there were %d events, %d were added, there are %d", c.count, added, count)
	}
	c.count = count
	return nil
}

func (s *sim) noteAt(at time.Duration, format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = append(s.history, fmt.Sprintf("%9s  ", stamp(at))+fmt.Sprintf(format, args...))
}

func live(k kernelRow) bool {
	return !cluster.Status(k.Status).Final() && k.Status != string(cluster.Pending)
}

// roomHolds: what is given away on an agent together with what running containers still hold there is not more than it has.
func (s *sim) roomHolds(at time.Duration) {
	for _, h := range s.hosts {
		holds := h.used()
		for _, k := range s.checks.kernels {
			if k.Agent != h.id || !live(k) {
				continue
			}
			if a, err := alloc.Parse(k.Allocation); err == nil {
				holds[cluster.KernelID(k.ID)] = a
			}
		}
		sum := alloc.Allocation{}
		for _, a := range holds {
			sum = sum.Add(a)
		}
		for _, d := range h.devices.Allocatable() {
			if got := sum[d.Slot][d.ID]; got > d.Capacity {
				s.fail(at, "no over-allocation", "%s %s of %s is given away %s times over: %s", d.Slot, d.ID, h.id, got, s.holders(h, holds))
				return
			}
		}
	}
}

func (s *sim) holders(h *machine, holds map[cluster.KernelID]alloc.Allocation) string {
	rows := map[string]kernelRow{}
	for _, k := range s.checks.kernels {
		rows[k.ID] = k
	}
	used := h.used()
	var out []string
	for _, id := range slices.Sorted(maps.Keys(holds)) {
		k := rows[string(id)]
		_, runs := used[id]
		out = append(out, fmt.Sprintf("kernel %s of %s is %s on %q, its container runs: %t", short(string(id)), s.checks.rows[k.Session].Name,
			k.Status, k.Agent, runs))
	}
	return strings.Join(out, "; ")
}

// runsOnce: no batch job is started twice, wherever and in whatever generation.
func (s *sim) runsOnce(at time.Duration) {
	for _, k := range s.checks.kernels {
		r := s.checks.rows[k.Session]
		if r.Type != string(cluster.Batch) {
			continue
		}
		var where []string
		for _, h := range s.hosts {
			for range h.engine.Starts(scope, cluster.AgentID(h.id), cluster.KernelID(k.ID)) {
				where = append(where, h.id)
			}
		}
		if len(where) > 1 {
			s.fail(at, "at most one run of a batch job", "the job of %s (kernel %s gen %d) was started on %s", r.Name, short(k.ID), k.Generation,
				strings.Join(where, " and "))
			return
		}
	}
}

// quotaHolds: the user has no more sessions with slots than its policy allows.
func (s *sim) quotaHolds(at time.Duration) {
	n := 0
	for _, r := range s.checks.rows {
		if st := cluster.Status(r.Status); !st.Final() && st != cluster.Pending {
			n++
		}
	}
	if n > maxSessions {
		s.fail(at, "quotas hold", "%d sessions have slots, %d may", n, maxSessions)
	}
}

// gangsHold: the kernels of a session are placed all or none.
func (s *sim) gangsHold(at time.Duration) {
	waiting, placed := map[string]bool{}, map[string]bool{}
	for _, k := range s.checks.kernels {
		waiting[k.Session] = waiting[k.Session] || k.Status == string(cluster.Pending)
		placed[k.Session] = placed[k.Session] || live(k)
	}
	for id := range waiting {
		if waiting[id] && placed[id] {
			s.fail(at, "gangs all or none", "session %s has kernels that wait and kernels that have slots", s.checks.rows[id].Name)
		}
	}
}

// deadlinesHold: every state that is not final has a deadline, and something happens when it is missed.
func (s *sim) deadlinesHold(now time.Time) {
	for _, k := range s.checks.kernels {
		switch st := cluster.Status(k.Status); {
		case st.Final(), st == cluster.Pending, st == cluster.Running:
		case k.Deadline == nil && st != cluster.Lost:
			s.fail(now.Sub(s.began), "every state has a deadline", "kernel %s is %s without one", short(k.ID), st)
		case k.Deadline != nil && now.Sub(*k.Deadline) > overdue && s.calm(everything, now) > overdue:
			s.fail(now.Sub(s.began), "deadlines fire", "kernel %s is %s, %s after its deadline", short(k.ID), st, now.Sub(*k.Deadline))
		}
	}
}

// ordersArrive: an agent that is connected hears soon what is placed on it.
func (s *sim) ordersArrive(now time.Time) {
	for _, k := range s.checks.kernels {
		if k.Status != string(cluster.Scheduled) || k.Desired != "run" || now.Sub(k.Changed) < quiet {
			continue
		}
		for _, h := range s.hosts {
			p := h.process()
			if h.id != k.Agent || p == nil || s.calm(h.id, now) < quiet || h.knows(cluster.KernelID(k.ID), k.Generation) {
				continue
			}
			since := p.connected.Load()
			if since == 0 || now.Sub(time.Unix(0, since)) < quiet {
				continue
			}
			s.fail(now.Sub(s.began), "orders arrive", "kernel %s was placed on %s %s ago, which has been connected for %s and was not told",
				short(k.ID), h.id, now.Sub(k.Changed), now.Sub(time.Unix(0, since)))
		}
	}
}

// reasonsAreGiven: a session that waits says why.
func (s *sim) reasonsAreGiven(now time.Time) {
	for _, r := range s.checks.rows {
		if r.Status == string(cluster.Pending) && !r.Explained && now.Sub(r.Changed) > quiet && s.calm(everything, now) > quiet {
			s.fail(now.Sub(s.began), "every waiting session has a reason", "session %s has waited since %s", r.Name, stamp(r.Changed.Sub(s.began)))
		}
	}
}

// ending checks an agent that is about to end a container: nobody may end one that runs and is wanted.
func (s *sim) ending(h *machine, kernel cluster.KernelID, verb string) {
	var o *runtime.Observed
	for _, c := range h.engine.Containers() {
		if c.Identity.Kernel == kernel && c.Phase == runtime.PhaseRunning {
			o = &c
		}
	}
	if o == nil {
		return
	}
	s.note("%s %s the running container of kernel %s gen %d", h.id, verb, short(string(kernel)), o.Identity.Generation)
	now := time.Now()
	_ = s.db.do(now, func(ctx context.Context) error {
		var status, desired, agent string
		var generation int64
		err := s.db.store.Pool().QueryRow(ctx, `SELECT status, desired, coalesce(agent_id, ''), generation FROM kernels WHERE id = $1`,
			string(kernel)).Scan(&status, &desired, &agent, &generation)
		if err == nil && status == string(cluster.Running) && desired == "run" && agent == h.id && generation == o.Identity.Generation {
			s.fail(now.Sub(s.began), "what is wanted runs on", "%s %s the container of kernel %s, which is RUNNING and wanted", h.id, verb,
				short(string(kernel)))
		}
		return nil
	})
	s.announce()
}

// left names what is left when everything should have ended.
func (s *sim) left() (why string) {
	now := time.Now()
	err := s.db.do(now, func(ctx context.Context) error {
		if err := s.read(ctx, now.Sub(s.began)); err != nil {
			return err
		}
		for _, r := range s.checks.rows {
			if !cluster.Status(r.Status).Final() {
				why = fmt.Sprintf("session %s is %s %s", r.Name, r.Status, r.Info)
				return nil
			}
		}
		var removals int
		if err := s.db.store.Pool().QueryRow(ctx, `SELECT count(*) FROM kernel_removals`).Scan(&removals); err != nil {
			return err
		}
		if removals > 0 {
			why = fmt.Sprintf("%d removals are pending", removals)
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	for _, h := range s.hosts {
		p := h.process()
		files, _ := os.ReadDir(filepath.Join(h.dir, "kernels"))
		switch {
		case why != "":
		case p == nil:
			why = h.id + " does not run"
		case h.engine.Count() > 0:
			why = fmt.Sprintf("%s has %d containers", h.id, h.engine.Count())
		case len(p.ledger.Records()) > 0:
			why = fmt.Sprintf("%s has %d records in its ledger", h.id, len(p.ledger.Records()))
		case len(files) > 0:
			why = fmt.Sprintf("%s has %d directories of kernels", h.id, len(files))
		}
	}
	return why
}
