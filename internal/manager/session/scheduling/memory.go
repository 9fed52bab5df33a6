package scheduling

import (
	"context"
	"crypto/sha256"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"berth.dev/berth/internal/alloc"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/resource/limit"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
	"berth.dev/berth/internal/manager/store/feed"
	"berth.dev/berth/internal/scheduler"
	"berth.dev/berth/internal/scheduler/quota"
)

// lookChunk is how many sessions one query reads. It bounds the memory that the rows take, and keeps the number of queries small, each of
// which may scan the whole table when it is asked for many ids.
const lookChunk = 20_000

// memory is a manager's copy of what the scheduler needs to know about the cluster. The method look brings it up to date with the
// database: it reads only what changed since the last look. A memory is not safe for concurrent use (kept guards it).
//
// Invariant: after a look, the copy equals what the transaction of that look saw. A scheduling pass then changes the copy before the
// database: it places sessions in the copy, and the commit may still refuse them. Such sessions are noted in stale, so that the next
// look reads them from the database again.
type memory struct {
	// cluster is the scheduler with its own state. The maps below hold what the manager knows besides.
	cluster *scheduler.Cluster
	// changes finds out which rows have changed since the last look.
	changes  *feed.Follower
	sessions map[cluster.SessionID]*entry
	agents   map[cluster.AgentID]supply
	groups   map[string]*groupEntry
	owners   map[scheduler.Scope]seen
	// slots are the names of all slots that an agent has or a session asks for. A policy that allows only the slots it lists (see listed)
	// forbids all others of these.
	slots map[cluster.SlotName]bool
	// stale and staleAgents are sessions and agents that the next look reads although their rows may not have changed.
	stale       map[cluster.SessionID]struct{}
	staleAgents map[cluster.AgentID]struct{}
	// trials are agents in quarantine, each with when somebody else may try it.
	trials map[cluster.AgentID]time.Time
	clock  chassis.Clock
	// doomed are waiting sessions that can never start, each with the reason.
	doomed map[cluster.SessionID]string
	// unconnected are sessions of several kernels that found a place in the last pass and no network, each with why.
	unconnected map[cluster.SessionID]string
	// listed is set when some policy allows only the slots that it lists. A new name in slots then changes its limits.
	listed bool
	// fresh are waiting sessions whose explanation has not been stored yet. round are the other waiting sessions: collect checks in turn
	// whether their stored explanations are still right. turn is its position in round. A session that no longer waits is removed from
	// these lists when collect comes to it.
	fresh, round []cluster.SessionID
	turn         int
	// tree is the hierarchical quotas as scheduler.Cluster knows them; treeDigest is 0 before they were read. weighed are members whose
	// share was made with a weight of their own.
	tree       *limit.Tree
	treeDigest uint64
	weighed    map[quota.ID]bool
	// sharesAt is when fair shares are computed again from past use.
	sharesAt time.Time
	// changed is set when something happened after which stored explanations may be wrong.
	changed bool
	// texts and requests hold one copy of each value that many sessions have in common, to save memory.
	texts    map[string]string
	requests map[string]cluster.Slots
	// devices holds one copy of each list of devices that agents have in common.
	devices map[[sha256.Size]byte][]alloc.Device
	// digest is a buffer, reused for every digest.
	digest []byte
	// passedAt is the time of the leader's last pass over the groups. drift is the number of differences that its full comparisons have
	// corrected. Both are zero while another manager leads.
	passedAt time.Time
	drift    int
}

// seen is what the memory keeps of every object that it has read: a digest of its row and its resource group. When the object is read
// again and the digest is the same, nothing has changed.
type seen struct {
	digest uint64
	group  string
}

// supply is what the memory keeps of an agent besides what scheduler.Cluster has.
type supply struct {
	seen
	usable   bool          // it is alive and takes sessions
	capacity cluster.Slots // of its healthy devices
}

// entry is what the memory keeps of a live session besides what scheduler.Cluster has.
type entry struct {
	seen
	status cluster.Status
	since  time.Time // when it was created
	owner  scheduler.Owner
	// private sessions (system sessions) have a limit of their own and count against no other.
	private bool
	// host sessions run in the network of their hosts.
	host bool
	// kernels are those of a waiting session; generations[i] is the generation of kernels[i]. Both are nil when the session does not wait.
	kernels     []scheduler.Kernel
	generations []int64
	// told is the explanation, as stored in the database, of why the session waits. toldAt is when it was written.
	told   told
	toldAt time.Time
}

// told is the part of a stored explanation that decides whether it must be written again.
type told struct{ reason, text string }

// looked is the result of a look.
type looked struct {
	feed.Report
	token int64 // the fencing token of the newest leader, whoever that is
}

// look brings the memory up to date. q must be the queries of one transaction that sees one snapshot of the database.
func (m *memory) look(ctx context.Context, s *store.Store, q *dbgen.Queries) (looked, error) {
	m.ripen(m.clock.Now())
	source := feed.Scheduling(q, s)
	report, err := m.changes.Look(ctx, source, memoryReader{m, q})
	return looked{report, source.Token}, err
}

// memoryReader reads rows into a memory; it satisfies feed.Consumer.
type memoryReader struct {
	m *memory
	q *dbgen.Queries
}

// Apply reads the rows that changed, and those that are stale.
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
		if _, err := m.readTree(ctx, q); err != nil {
			return err
		}
	}
	clear(m.stale)
	clear(m.staleAgents)
	return nil
}

// Compare reads everything and returns how many differences it corrected.
func (r memoryReader) Compare(ctx context.Context, why feed.Reason) (differences int, err error) {
	differences, err = r.m.readAll(ctx, r.q)
	if err != nil {
		return differences, err
	}
	if !why.Missed() { // this comparison took the place of the changes, so they count as having happened
		r.m.changed, r.m.sharesAt = true, time.Time{}
	}
	clear(r.m.stale)
	clear(r.m.staleAgents)
	return differences, nil
}

// readAll reads everything from the database, corrects what differs and returns how many objects differed (drift). It fills an empty
// memory. On a filled one it is the safety net: looks should have found every difference before.
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
	if err == nil {
		count(m.readTree(ctx, q))
	}
	return drift, err
}

// readSessions reads sessions by id and forgets those that are no longer live. changed is how many differed from the copy.
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

// dependency is a session that another one waits for: it has not succeeded yet. If failed is set, it never will.
type dependency struct {
	id, name string
	failed   bool
}

// openDependencies returns, for each waiting session among rows that depends on others, one that has not succeeded yet. One that has
// failed is chosen before others, because the waiting session can then never start.
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

// setSession takes over one live session from the database: into the memory, and into scheduler.Cluster as waiting or running. It does
// nothing when the session's digest is unchanged and the session is not stale. on is what the session waits for; nil: nothing.
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
		Connected: r.ClusterMode != "single-node" && len(kernels) > 1 && !r.HostNetwork, Encrypted: r.Encrypted,
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
	e.host, e.kernels, e.generations = r.HostNetwork, nil, nil
	delete(m.doomed, id)
	if r.Status == cluster.Pending {
		m.group(e.group).waiting++
		for _, k := range kernels {
			s.Kernels = append(s.Kernels, m.kernel(&k, r.Isolation))
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
		s.Kernels = append(s.Kernels, m.kernel(k, r.Isolation))
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

func (m *memory) kernel(k *dbgen.KernelFactsRow, isolation string) scheduler.Kernel {
	for slot := range k.RequestedSlots {
		m.slots[slot] = true
	}
	return scheduler.Kernel{
		ID: cluster.KernelID(k.ID), Slots: m.request(k.RequestedSlots), Architecture: m.text(k.Architecture), Image: m.text(k.Image),
		Local: k.LocalImage, Isolation: cluster.Isolation(m.text(isolation)), Role: roleText(m.text(k.ClusterRole)),
	}
}

// roleText is a role in words of the scheduler: kernels that a request gives no role have none.
func roleText(role string) string {
	if role == cluster.RoleMain || role == cluster.RoleSub {
		return ""
	}
	return role
}

// request returns a shared copy of what a kernel asks for. Callers must not change it. The shared copies are bounded by dropping all.
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

// forget removes a session that is no longer live, and reports whether it was there.
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

// digestSession is a digest of everything about a session that the scheduler looks at.
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
	if r.Encrypted {
		b = append(b, "encrypted|"...)
	}
	for _, k := range kernels {
		b = fmt.Appendf(b, "%s %d %s %s %t ", k.ID, k.Generation, k.Architecture, k.Image, k.LocalImage)
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

// waiting reduces a live session's status to what matters to the scheduler: whether it waits.
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

// text returns a shared copy of a text. The shared copies are bounded by dropping all of them.
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
		stale: map[cluster.SessionID]struct{}{}, staleAgents: map[cluster.AgentID]struct{}{},
		trials: map[cluster.AgentID]time.Time{}, clock: clock, doomed: map[cluster.SessionID]string{},
		unconnected: map[cluster.SessionID]string{},
		tree:        &limit.Tree{}, weighed: map[quota.ID]bool{},
		texts: map[string]string{}, requests: map[string]cluster.Slots{},
	}
}

// ripen marks agents as stale that may be tried by now, or by others than before.
func (m *memory) ripen(now time.Time) {
	for id, at := range m.trials {
		if !at.After(now) {
			m.staleAgents[id] = struct{}{}
		}
	}
}

// nextTrial is when the next agent may be tried; zero: none waits for that.
func (m *memory) nextTrial() (next time.Time) {
	for _, at := range m.trials {
		next = soonest(next, at)
	}
	return next
}

// doubt marks the sessions that a pass has placed as stale, because the commit of these placements may fail.
func (m *memory) doubt(decisions []scheduler.Decision) {
	for _, d := range decisions {
		if len(d.Placements) > 0 {
			m.stale[d.Session] = struct{}{}
		}
		m.changed = true
	}
}
