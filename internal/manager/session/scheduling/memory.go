package scheduling

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/scheduler"
)

// lookChunk is how many sessions one query reads. It bounds the memory that the rows take, and keeps the number of queries small, each of
// which may scan the whole table when it is asked for many ids.
const lookChunk = 20_000

// memory is the leader's copy of what the scheduler needs to know about the cluster. A look (method look) brings it up to date with
// the database and reads only what changed since the look before. It is not safe for concurrent use (kept guards it).
//
// Invariant: after a look, the copy equals what the look's transaction saw. Scheduling passes then change the copy ahead of the
// database: the sessions they place are in stale, and the next look reads those again, because the commit may have failed.
type memory struct {
	cluster *scheduler.Cluster
	// changes follows the rows that the copy is made of.
	changes  *feed.Follower
	sessions map[cluster.SessionID]*entry
	agents   map[cluster.AgentID]supply
	groups   map[string]*groupEntry
	owners   map[scheduler.Scope]seen
	// slots are the kinds that anybody has or wants: a policy that allows listed ones only limits all others.
	slots map[cluster.SlotName]bool
	// stale are sessions that the next look reads even if the database did not change them, staleAgents are such agents.
	stale       map[cluster.SessionID]struct{}
	staleAgents map[cluster.AgentID]struct{}
	// doomed are the waiting sessions that can never start, each with the reason.
	doomed map[cluster.SessionID]string
	// listed says that some policy allows only the slots that it lists.
	listed bool
	// fresh are waiting sessions whose explanation was not stored yet. round are the other ones: their explanations are checked one
	// after the other. Sessions that no longer wait leave both lists when it is their turn.
	fresh, round []cluster.SessionID
	turn         int
	// sharesAt is when shares are computed from past use again.
	sharesAt time.Time
	// changed says that any explanation may have changed.
	changed bool
	// texts and requests hold one copy of values that many sessions have in common.
	texts    map[string]string
	requests map[string]cluster.Slots
	// digest is a buffer that is used again for every digest.
	digest []byte
	// passedAt is the time of the leader's last pass over the groups, drift the number of differences that its full
	// comparisons have corrected. Both are zero in the copy of a manager that does not lead.
	passedAt time.Time
	drift    int
}

// seen is kept of every object whose facts are in the cluster. The digest tells whether the facts in the database differ.
type seen struct {
	digest uint64
	group  string
}

// supply is an agent.
type supply struct {
	seen
	usable   bool // alive and open for sessions
	capacity cluster.Slots
}

// entry is a live session.
type entry struct {
	seen
	status cluster.Status
	since  time.Time // when it was created
	owner  scheduler.Owner
	// private sessions count against their own limit only.
	private bool
	// kernels are those of a waiting session, generations their generations in the same order.
	kernels     []scheduler.Kernel
	generations []int64
	// told is the stored explanation of why the session waits, toldAt when it was written.
	told   told
	toldAt time.Time
}

type told struct{ reason, text string }

// looked is what a look found besides the changes.
type looked struct {
	feed.Report
	token int64 // the newest leader's
}

// look brings the memory up to date. q are the queries of one transaction that sees one snapshot, over the store.
func (m *memory) look(ctx context.Context, s *store.Store, q *dbgen.Queries) (looked, error) {
	source := feed.Scheduling(q, s)
	report, err := m.changes.Look(ctx, source, memoryReader{m, q})
	return looked{report, source.Token}, err
}

// memoryReader reads rows into a memory; it satisfies feed.Consumer.
type memoryReader struct {
	m *memory
	q *dbgen.Queries
}

// Apply reads what changed and what is stale.
func (r memoryReader) Apply(ctx context.Context, changes feed.Changes) error {
	m, q := r.m, r.q
	kinds := len(m.slots)
	m.changed = m.changed || len(changes) > 0
	sessions, agents := changes[feed.KindSession], changes[feed.KindAgent]
	for id := range m.stale {
		sessions = append(sessions, string(id))
	}
	for id := range m.staleAgents {
		agents = append(agents, string(id))
	}
	if len(changes[feed.KindGroup]) > 0 {
		m.sharesAt = time.Time{}
		if _, err := m.readGroups(ctx, q); err != nil {
			return err
		}
	}
	if len(agents) > 0 {
		slices.Sort(agents)
		if _, err := m.readAgents(ctx, q, slices.Compact(agents)); err != nil {
			return err
		}
	}
	if len(sessions) > 0 {
		slices.Sort(sessions)
		if _, err := m.readSessions(ctx, q, slices.Compact(sessions)); err != nil {
			return err
		}
	}
	if len(changes[feed.KindQuota]) > 0 || m.listed && len(m.slots) > kinds {
		if _, err := m.readQuotas(ctx, q, m.knownOwners()); err != nil {
			return err
		}
	}
	clear(m.stale)
	clear(m.staleAgents)
	return nil
}

// Compare reads everything.
func (r memoryReader) Compare(ctx context.Context, why feed.Reason) (differences int, err error) {
	differences, err = r.m.readAll(ctx, r.q)
	if err != nil {
		return differences, err
	}
	if !why.Missed() { // instead of the changes
		r.m.changed, r.m.sharesAt = true, time.Time{}
	}
	clear(r.m.stale)
	clear(r.m.staleAgents)
	return differences, nil
}

// readAll reads everything from the database, corrects what differs and returns how many objects did. It fills an empty memory and is
// the safety net of a filled one.
func (m *memory) readAll(ctx context.Context, q *dbgen.Queries) (drift int, err error) {
	count := func(n int, e error) {
		drift += n
		if err == nil {
			err = e
		}
	}
	count(m.readGroups(ctx, q))
	if err == nil {
		count(m.readAgents(ctx, q, nil))
	}
	if err != nil {
		return drift, err
	}
	ids, err := q.LiveSessionIDs(ctx)
	if err != nil {
		return drift, fmt.Errorf("list live sessions: %w", err)
	}
	count(m.readSessions(ctx, q, ids))
	if err != nil {
		return drift, err
	}
	live := make(map[cluster.SessionID]struct{}, len(ids))
	for _, id := range ids {
		live[cluster.SessionID(id)] = struct{}{}
	}
	for id := range m.sessions {
		if _, ok := live[id]; !ok {
			m.forget(id)
			drift++
		}
	}
	count(m.readQuotas(ctx, q, m.knownOwners()))
	return drift, err
}

// readSessions reads sessions by id; those that are no longer live are forgotten.
func (m *memory) readSessions(ctx context.Context, q *dbgen.Queries, ids []string) (changed int, err error) {
	ended := []string{}
	owners := map[scheduler.Scope]bool{}
	for chunk := range slices.Chunk(ids, lookChunk) {
		rows, err := q.SessionFacts(ctx, chunk)
		if err != nil {
			return changed, fmt.Errorf("read sessions: %w", err)
		}
		kernels, err := q.KernelFacts(ctx, chunk)
		if err != nil {
			return changed, fmt.Errorf("read kernels: %w", err)
		}
		waits, err := openDependencies(ctx, q, rows)
		if err != nil {
			return changed, err
		}
		byID := make(map[string][]dbgen.KernelFactsRow, len(rows))
		for _, k := range kernels {
			byID[k.SessionID] = append(byID[k.SessionID], k)
		}
		found := make(map[string]struct{}, len(rows))
		for i := range rows {
			r := &rows[i]
			found[r.ID] = struct{}{}
			differs, err := m.setSession(r, byID[r.ID], waits[r.ID])
			if err != nil {
				return changed, err
			}
			if differs {
				changed++
			}
			for _, scope := range m.sessions[cluster.SessionID(r.ID)].owner.Scopes() {
				if _, known := m.owners[scope]; !known {
					owners[scope] = true
				}
			}
		}
		for _, id := range chunk {
			if _, ok := found[id]; !ok {
				ended = append(ended, id)
				if m.forget(cluster.SessionID(id)) {
					changed++
				}
			}
		}
	}
	if len(owners) > 0 {
		n, err := m.readQuotas(ctx, q, owners)
		if err != nil {
			return changed, err
		}
		changed += n
	}
	if len(ended) == 0 {
		return changed, nil
	}
	// Sessions that depend on one of them must be read again. They still wait, so they have not ended themselves: this recurses once.
	waiting, err := q.WaitingDependents(ctx, ended)
	if err != nil {
		return changed, fmt.Errorf("look for dependents: %w", err)
	}
	if len(waiting) > 0 {
		n, err := m.readSessions(ctx, q, waiting)
		return changed + n, err
	}
	return changed, nil
}

// dependency is one that is not satisfied yet; failed ones never will be.
type dependency struct {
	id, name string
	failed   bool
}

// openDependencies tells what waiting sessions wait for: one that has failed, if there is one.
func openDependencies(ctx context.Context, q *dbgen.Queries, rows []dbgen.SessionFactsRow) (map[string]*dependency, error) {
	var pending []string
	for _, r := range rows {
		if r.Status == cluster.Pending {
			pending = append(pending, r.ID)
		}
	}
	if len(pending) == 0 {
		return nil, nil
	}
	open, err := q.OpenDependencies(ctx, pending)
	if err != nil {
		return nil, fmt.Errorf("read dependencies: %w", err)
	}
	out := map[string]*dependency{}
	for _, d := range open {
		if known := out[d.SessionID]; known == nil || d.Status.Final() && !known.failed {
			out[d.SessionID] = &dependency{d.ID, d.Name, d.Status.Final()}
		}
	}
	return out, nil
}

func waitsFor(name string) string { return "it waits for session " + name + " to succeed" }

// setSession puts a live session into the cluster if anything about it differs.
func (m *memory) setSession(r *dbgen.SessionFactsRow, kernels []dbgen.KernelFactsRow, on *dependency) (differs bool, err error) {
	id := cluster.SessionID(r.ID)
	e := m.sessions[id]
	digest := m.digestSession(r, kernels, on)
	_, stale := m.stale[id]
	if e != nil && e.digest == digest && !stale {
		return false, nil
	}
	differs = e == nil || e.digest != digest
	if e == nil {
		e = &entry{}
		m.sessions[id] = e
	}
	wasWaiting := e.status == cluster.Pending && e.digest != 0
	s := scheduler.Session{
		ID: id, Name: r.Name, Type: r.Type, Priority: int(r.Priority), EnqueuedAt: r.CreatedAt,
		Owner: scheduler.Owner{AccessKey: cluster.AccessKey(m.text(r.AccessKey)), User: cluster.UserID(m.text(r.UserID)),
			Project: cluster.ProjectID(m.text(r.ProjectID)), Domain: m.text(r.DomainName)},
		SingleNode: r.ClusterMode == "single-node", Private: r.Type == cluster.System, Preemptible: r.Preemptible,
		Designated: agentIDs(r.DesignatedAgents), Failed: agentIDs(r.FailedAgents), Volumes: r.Volumes,
	}
	if on != nil {
		s.Waiting = waitsFor(on.name)
	}
	if r.StartsAt != nil {
		s.StartsAt = *r.StartsAt
	}
	if r.BatchTimeoutMs != nil {
		s.Lifetime = time.Duration(*r.BatchTimeoutMs) * time.Millisecond
	}
	if wasWaiting {
		m.group(e.group).waiting--
	}
	e.seen = seen{digest: digest, group: m.text(r.ResourceGroup)}
	e.status, e.since, e.owner, e.private = r.Status, r.CreatedAt, s.Owner, s.Private
	e.kernels, e.generations = nil, nil
	delete(m.doomed, id)
	if r.Status == cluster.Pending {
		m.group(e.group).waiting++
		for _, k := range kernels {
			s.Kernels = append(s.Kernels, m.kernel(&k))
			e.generations = append(e.generations, k.Generation)
		}
		e.kernels = s.Kernels
		e.told = told{m.text(r.StatusInfo), m.text(r.Told)}
		if on != nil && on.failed {
			m.doomed[id] = fmt.Sprintf("session %s, on which it depends, ended without success", on.name)
			m.cluster.Remove(id)
			return differs, nil
		}
		m.cluster.Enqueue(e.group, s)
		m.group(e.group).wait(id, r.CreatedAt)
		if !wasWaiting {
			m.fresh = append(m.fresh, id)
		}
		return differs, nil
	}
	e.told, e.toldAt = told{}, time.Time{}
	run := scheduler.Running{StartedAt: r.CreatedAt}
	switch {
	case r.StartedAt != nil:
		run.StartedAt = *r.StartedAt
	case r.ScheduledAt != nil:
		run.StartedAt = *r.ScheduledAt
	}
	for i := range kernels {
		k := &kernels[i]
		s.Kernels = append(s.Kernels, m.kernel(k))
		if k.AgentID == nil || k.Status == cluster.Pending {
			continue
		}
		a, err := alloc.Parse(string(k.Allocation))
		if err != nil {
			return false, fmt.Errorf("read allocation of kernel %s: %w", k.ID, err)
		}
		run.Placements = append(run.Placements, scheduler.Placement{
			Kernel: cluster.KernelID(k.ID), Agent: cluster.AgentID(m.text(*k.AgentID)), Allocation: a,
		})
	}
	run.Session = s
	m.cluster.Run(e.group, run)
	return differs, nil
}

func (m *memory) kernel(k *dbgen.KernelFactsRow) scheduler.Kernel {
	for slot := range k.RequestedSlots {
		m.slots[slot] = true
	}
	return scheduler.Kernel{
		ID: cluster.KernelID(k.ID), Slots: m.request(k.RequestedSlots), Architecture: m.text(k.Architecture), Image: m.text(k.Image),
	}
}

// request returns one copy of what many kernels ask for. Nobody changes it.
func (m *memory) request(slots cluster.Slots) cluster.Slots {
	b := m.digest[:0]
	for _, slot := range slots.Names() {
		b = fmt.Appendf(b, "%s %d ", slot, slots[slot])
	}
	m.digest = b
	if shared, ok := m.requests[string(b)]; ok {
		return shared
	}
	if len(m.requests) > 10_000 {
		clear(m.requests)
	}
	m.requests[string(b)] = slots
	return slots
}

// forget removes a session that is no longer live.
func (m *memory) forget(id cluster.SessionID) bool {
	e := m.sessions[id]
	if e == nil {
		return false
	}
	if e.status == cluster.Pending {
		m.group(e.group).waiting--
	}
	delete(m.sessions, id)
	delete(m.doomed, id)
	m.cluster.Remove(id)
	return true
}

func (m *memory) digestSession(r *dbgen.SessionFactsRow, kernels []dbgen.KernelFactsRow, on *dependency) uint64 {
	b := m.digest[:0]
	b = fmt.Appendf(b, "%s %s %d %t %s %d|", r.Type, r.ResourceGroup, r.Priority, r.Preemptible, r.ClusterMode, r.CreatedAt.UnixMicro())
	b = fmt.Appendf(b, "%s %s %s %s|%q %q|", r.DomainName, r.ProjectID, r.UserID, r.AccessKey, r.DesignatedAgents, r.FailedAgents)
	if on != nil {
		b = fmt.Appendf(b, "on %s %t|", on.id, on.failed)
	}
	if r.StartsAt != nil {
		b = fmt.Appendf(b, "at %d|", r.StartsAt.UnixMicro())
	}
	if r.BatchTimeoutMs != nil {
		b = fmt.Appendf(b, "for %d|", *r.BatchTimeoutMs)
	}
	if r.StartedAt != nil {
		b = fmt.Appendf(b, "since %d|", r.StartedAt.UnixMicro())
	}
	for _, k := range kernels {
		b = fmt.Appendf(b, "%s %d %s %s ", k.ID, k.Generation, k.Architecture, k.Image)
		for _, slot := range k.RequestedSlots.Names() {
			b = fmt.Appendf(b, "%s %d ", slot, k.RequestedSlots[slot])
		}
		if k.AgentID != nil && k.Status != cluster.Pending {
			b = fmt.Appendf(b, "%s %s", *k.AgentID, k.Allocation)
		}
		b = append(b, '|')
	}
	m.digest = b
	return sum(append(b, waiting(r.Status)...))
}

// waiting is what matters of a live session's status.
func waiting(s cluster.Status) string {
	if s == cluster.Pending {
		return "waits"
	}
	return "lives"
}

func sum(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}

// text returns one copy of a text that many sessions share. The shared copies are bounded by dropping all of them.
func (m *memory) text(s string) string {
	if len(s) > 512 {
		return s
	}
	if shared, ok := m.texts[s]; ok {
		return shared
	}
	if len(m.texts) > 20_000 {
		clear(m.texts)
	}
	m.texts[s] = s
	return s
}

func newMemory(clock chassis.Clock) *memory {
	return &memory{
		changes:  feed.New(feed.Config{Name: "what the scheduler knows", Clock: clock, CompareEvery: copyCompare}),
		cluster:  scheduler.NewCluster(),
		sessions: map[cluster.SessionID]*entry{}, agents: map[cluster.AgentID]supply{}, groups: map[string]*groupEntry{},
		owners: map[scheduler.Scope]seen{}, slots: map[cluster.SlotName]bool{cluster.SlotCPU: true, cluster.SlotMem: true},
		stale: map[cluster.SessionID]struct{}{}, staleAgents: map[cluster.AgentID]struct{}{}, doomed: map[cluster.SessionID]string{},
		texts: map[string]string{}, requests: map[string]cluster.Slots{},
	}
}

// doubt marks the sessions that a pass has placed as stale: whether the database holds these placements is not known yet.
func (m *memory) doubt(decisions []scheduler.Decision) {
	for _, d := range decisions {
		if len(d.Placements) > 0 {
			m.stale[d.Session] = struct{}{}
		}
		m.changed = true
	}
}
