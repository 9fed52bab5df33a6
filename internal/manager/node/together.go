package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/manager/store/dbgen"
)

// When sessions come and go in crowds, most of the cost is in the number of transactions.
const (
	// maxReports is how many calls of Observe share their transactions.
	maxReports = 64
	// observeTogether is how many sessions one transaction takes.
	observeTogether = 256
	// crowd is how many sessions with reports make a rush, mostRest bounds the pause that follows.
	crowd    = 8
	mostRest = 20 * time.Millisecond
)

// reportRest lets reports gather in a rush for as long as storing the last ones took; a single session's go at once, however many kernels
// it has.
func reportRest(batch []*report, took time.Duration) time.Duration {
	sessions := map[cluster.SessionID]bool{}
	for _, r := range batch {
		for _, o := range r.list {
			if sessions[o.Session] = true; len(sessions) == crowd {
				return min(took, mostRest)
			}
		}
	}
	return 0
}

// report is one call of Observe.
type report struct {
	agent cluster.AgentID
	epoch int64
	list  []cluster.KernelObservation

	acked   []cluster.Tombstone
	refused error // nothing of it was stored
	failed  error // some of it was not stored
}

// reported is what one agent says of one kernel.
type reported struct {
	cluster.KernelObservation
	agent cluster.AgentID
	from  *report
	// starts: its container runs now and did not before. again: it ran before, in an earlier generation or this one. quarantined: the
	// agent was set aside when the report came.
	starts, again, quarantined bool
}

// storeReports stores some agents' reports, together when all goes well.
func (n *Reports) storeReports(ctx context.Context, batch []*report) {
	trials := &trials{}
	bySession, forget, err := n.sort(ctx, batch, trials)
	if err != nil {
		for _, r := range batch {
			r.refused = err
		}
		return
	}
	sessions := make([]cluster.SessionID, 0, len(bySession))
	for id := range bySession {
		sessions = append(sessions, id)
	}
	slices.Sort(sessions)
	for chunk := range slices.Chunk(sessions, observeTogether) {
		for _, id := range n.observeSessions(ctx, chunk, bySession) {
			for _, o := range bySession[id] {
				trials.note(o)
				if o.Phase == cluster.PhaseEnded {
					forget.add(o.agent, o.Kernel, o.Generation)
					o.from.acked = append(o.from.acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
				}
			}
		}
	}
	n.judge(ctx, trials)
	if err := forget.store(ctx, n.Store); err != nil {
		for _, r := range batch {
			r.refused = errors.Join(r.refused, err)
		}
	}
}

// starts reports whether an observation says that a container has come up since the row was written. The status does not tell: the lease
// of the agent may have ended meanwhile, and the kernel is LOST then.
func starts(row dbgen.KernelsByIDRow, o cluster.KernelObservation) bool {
	if row.HasStarted || row.Status == cluster.Pending || row.Status == cluster.Terminating || row.Status.Final() {
		return false
	}
	return o.Phase == cluster.PhaseRunning || o.Phase == cluster.PhaseEnded && !o.Failed && !o.StartedAt.IsZero()
}

// sort refuses reports of streams that are not their agent's newest, acknowledges what nobody waits for, leaves out what is known
// and returns the rest by session.
func (n *Reports) sort(ctx context.Context, batch []*report, trials *trials) (map[cluster.SessionID][]reported, *removals, error) {
	agents, ids := []string{}, []string{}
	for _, r := range batch {
		agents = append(agents, string(r.agent))
		for _, o := range r.list {
			if id, ok := cluster.CanonicalUUID(string(o.Kernel)); ok && id == string(o.Kernel) {
				ids = append(ids, id)
			}
		}
	}
	epochs, err := n.Store.AgentEpochs(ctx, agents)
	if err != nil {
		return nil, nil, fmt.Errorf("read epochs of agents: %w", err)
	}
	epoch := make(map[string]int64, len(epochs))
	quarantined := map[cluster.AgentID]bool{}
	for _, e := range epochs {
		epoch[e.ID] = e.Epoch
		quarantined[cluster.AgentID(e.ID)] = e.Quarantined
		if e.Suspect {
			trials.suspect(cluster.AgentID(e.ID))
		}
	}
	rows, err := n.Store.KernelsByID(ctx, ids)
	if err != nil {
		return nil, nil, fmt.Errorf("read observed kernels: %w", err)
	}
	known := make(map[cluster.KernelID]dbgen.KernelsByIDRow, len(rows))
	forget := &removals{owed: map[cluster.KernelID]string{}}
	for _, r := range rows {
		known[cluster.KernelID(r.ID)] = r
		if r.HasRemovals {
			forget.owed[cluster.KernelID(r.ID)] = r.SessionID
		}
	}
	bySession := map[cluster.SessionID][]reported{}
	for _, r := range batch {
		newest, registered := epoch[string(r.agent)]
		switch {
		case !registered:
			r.refused = fault.NotFoundf("agent %s is not registered", r.agent)
			continue
		case newest != r.epoch:
			r.refused = fault.Conflictf("the report of agent %s belongs to epoch %d, the newest is %d", r.agent, r.epoch, newest).
				WithReason("stale-epoch")
			continue
		}
		for _, o := range r.list {
			row, ok := known[o.Kernel]
			if ok && o.Generation == row.Generation && o.Generation > 1 {
				// An agent that has the new generation has removed the old ones.
				forget.add(r.agent, o.Kernel, o.Generation-1)
			}
			switch {
			case o.Phase == cluster.PhaseEnded && (!ok || o.Generation < row.Generation || row.Status.Final() && row.HasLog):
				// Nobody waits for this end any more: never heard of, of an earlier life, or told already.
				r.acked = append(r.acked, cluster.Tombstone{Kernel: o.Kernel, Generation: o.Generation})
				forget.add(r.agent, o.Kernel, o.Generation)
			case !ok, o.Generation > row.Generation:
				// An orphan, or a generation that this database does not know: the agent's desired state says what is right.
			case o.Generation == row.Generation && quiet(r.agent, row, o):
			default:
				id := cluster.SessionID(row.SessionID)
				bySession[id] = append(bySession[id], reported{o, r.agent, r, starts(row, o), row.HasStarted, quarantined[r.agent]})
			}
		}
	}
	return bySession, forget, nil
}

// observeSessions applies reports about some sessions, together when all goes well. Otherwise each is
// taken alone, so that one that cannot be stored does not hold up the others. done are those that were stored.
func (n *Reports) observeSessions(ctx context.Context, ids []cluster.SessionID,
	reports map[cluster.SessionID][]reported) (done []cluster.SessionID) {
	if len(ids) > 1 {
		err := n.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
			locked, err := tx.Lock(ctx, ids...)
			if err != nil {
				return err
			}
			for _, l := range locked {
				if l.CallbackUrl != nil {
					tx.Wake(store.TopicCallbacks)
				}
				if err := n.observe(ctx, l, reports[cluster.SessionID(l.ID)]); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			return ids
		}
		n.Log.Debug("reports cannot be stored together; each session is tried alone", "sessions", len(ids), "error", err)
	}
	for _, id := range ids {
		stored, err := n.inSession(ctx, id, func(ctx context.Context, l *store.Locked) error { return n.observe(ctx, l, reports[id]) })
		if err != nil {
			for _, o := range reports[id] {
				o.from.failed = errors.Join(o.from.failed, err)
			}
			continue
		}
		if stored {
			done = append(done, id)
		}
	}
	return done
}

// removals are generations that agents no longer have.
type removals struct {
	owed        map[cluster.KernelID]string // the sessions of kernels of which some agent must remove something
	agents, ids []string
	sessions    []string
	generations []int64
}

func (r *removals) add(agent cluster.AgentID, kernel cluster.KernelID, generation int64) {
	session, owed := r.owed[kernel]
	if !owed {
		return
	}
	r.agents, r.ids, r.generations = append(r.agents, string(agent)), append(r.ids, string(kernel)), append(r.generations, generation)
	r.sessions = append(r.sessions, session)
}

func (r *removals) store(ctx context.Context, s *store.Store) error {
	if len(r.ids) == 0 {
		return nil
	}
	if err := s.Removed(ctx, r.ids, r.agents, r.generations); err != nil {
		return fmt.Errorf("note removals: %w", err)
	}
	s.Wake(store.TopicSchedule) // what was removed holds nothing any more
	for _, id := range r.sessions {
		s.Wake(store.SessionTopic(id)) // whoever waits for the end of the containers
	}
	return nil
}
