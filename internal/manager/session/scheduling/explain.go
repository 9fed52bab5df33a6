package scheduling

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

const (
	// looksPerSecond and writesPerSecond bound the cost of storing explanations, however long the queue is. Stored explanations are for
	// lists and events; a question about one session is answered from the memory.
	looksPerSecond  = 1000
	writesPerSecond = 250
	// rewordEvery is how long a stored explanation stays while its reason is the same and only its text changes.
	rewordEvery = 15 * time.Second
	// tellPause is the time between two turns while explanations are left to be stored.
	tellPause = 100 * time.Millisecond
)

// predicate is one entry of the wire's lists of scheduling predicates.
type predicate struct {
	Name string `json:"name"`
	Msg  string `json:"msg,omitempty"`
}

// explanation is the scheduler part of a waiting session's status_data: the wire's keys first, then ours. The place in the
// queue is as of the last try.
type explanation struct {
	LastTry          string            `json:"last_try"`
	Msg              string            `json:"msg"`
	FailedPredicates []predicate       `json:"failed_predicates"`
	PassedPredicates []predicate       `json:"passed_predicates"`
	Reason           string            `json:"reason"`
	Rejected         map[string]int    `json:"rejected_agents,omitempty"`
	Shortfall        map[string]string `json:"shortfall,omitempty"`
	Position         int               `json:"position"`
	Estimate         string            `json:"estimate,omitempty"`
	Remedies         []string          `json:"remedies,omitempty"`
}

// predicates are the checks of a session in the order in which it passes them.
var predicates = []scheduler.Reason{
	scheduler.WaitsForStartTime, scheduler.WaitsForDependency, scheduler.WaitsForOwner, scheduler.WaitsForConcurrency, scheduler.WaitsForQuota,
	scheduler.WaitsForAgent, scheduler.TooBig, scheduler.WaitsForCapacity, scheduler.WaitsForDevices, scheduler.WaitsForVictims,
	scheduler.WaitsBehind, WaitsForNetwork,
}

const wireTime = "2006-01-02T15:04:05.000000+00:00"

func explain(h *scheduler.Explanation, now time.Time) explanation {
	e := explanation{LastTry: now.UTC().Format(wireTime), Msg: h.Text, Reason: string(h.Reason), Rejected: h.Rejected, Position: h.Position,
		Remedies:         h.Remedies,
		FailedPredicates: []predicate{{Name: string(h.Reason), Msg: h.Text}}, PassedPredicates: []predicate{}}
	for _, name := range predicates {
		if name == h.Reason {
			break
		}
		e.PassedPredicates = append(e.PassedPredicates, predicate{Name: string(name)})
	}
	if len(h.Shortfall) > 0 {
		e.Shortfall = h.Shortfall.Wire()
	}
	if !h.Estimate.IsZero() {
		e.Estimate = h.Estimate.UTC().Format(wireTime)
	}
	return e
}

// telling bounds how many explanations are looked at and written: two token buckets, and what is left of the current round.
type telling struct {
	looks, writes float64
	filledAt      time.Time
	// left is how many sessions in memory.round have not been looked at since something last changed.
	left int
	// heldBack is when all texts may be stored that the last round found changed and held back (rewordEvery); zero: there are none.
	heldBack time.Time
}

// fill adds the tokens of the time since the last call.
func (t *telling) fill(now time.Time) {
	seconds := now.Sub(t.filledAt).Seconds()
	if t.filledAt.IsZero() || seconds < 0 {
		seconds = 1
	}
	t.filledAt = now
	t.looks = min(t.looks+seconds*looksPerSecond, looksPerSecond)
	t.writes = min(t.writes+seconds*writesPerSecond, writesPerSecond)
}

// note is one explanation to store.
type note struct {
	id   cluster.SessionID
	told told
	data explanation
}

// tell stores why sessions wait, for those where that changed and as many as the budgets allow: new sessions first, then the others in
// turn. again is when to go on if some are left or held back; zero: none are until something changes.
func (d *desk) tell(ctx context.Context, now time.Time) (again time.Time, err error) {
	var notes []note
	d.telling.fill(now)
	err = d.kept.with(ctx, func(m *memory) error {
		notes = d.collect(m, now)
		if len(m.fresh)+d.telling.left > 0 {
			again = now.Add(tellPause)
		}
		again = soonest(again, d.telling.heldBack)
		d.gauge(m, now)
		return nil
	})
	if err != nil || len(notes) == 0 {
		return again, err
	}
	var ids, infos []string
	var datas []json.RawMessage
	for _, n := range notes {
		raw, err := json.Marshal(map[string]any{"scheduler": n.data})
		if err != nil {
			return again, fmt.Errorf("render explanation: %w", err)
		}
		ids, infos, datas = append(ids, string(n.id)), append(infos, n.told.reason), append(datas, raw)
	}
	err = d.term.Commit(ctx, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.ExplainPending(ctx, infos, datas, ids); err != nil {
			return fmt.Errorf("explain pending sessions: %w", err)
		}
		tx.Wake(store.TopicEvents)
		for _, id := range ids {
			tx.Wake(store.SessionTopic(id))
		}
		return nil
	})
	if err != nil {
		return again, err
	}
	return again, d.kept.with(ctx, func(m *memory) error {
		for _, n := range notes {
			if e := m.sessions[n.id]; e != nil && e.status == cluster.Pending {
				e.told, e.toldAt = n.told, now
			}
		}
		return nil
	})
}

// collect looks at waiting sessions until the budgets are used up, and returns the explanations that must be stored.
func (d *desk) collect(m *memory, now time.Time) (notes []note) {
	t := &d.telling
	if m.changed || !t.heldBack.IsZero() && !now.Before(t.heldBack) {
		m.changed = false
		t.left, t.heldBack = len(m.round), time.Time{}
	}
	look := func(id cluster.SessionID) (waits bool) {
		e := m.sessions[id]
		if e == nil || e.status != cluster.Pending {
			return false
		}
		t.looks--
		h, ok := m.explain(id)
		if !ok || h.Reason == scheduler.WaitsForPass {
			return true
		}
		words := told{string(h.Reason), h.Text}
		if e.told == words {
			return true
		}
		if may := e.toldAt.Add(rewordEvery); e.told.reason == words.reason && now.Before(may) {
			if may.After(t.heldBack) {
				t.heldBack = may
			}
			return true
		}
		t.writes--
		notes = append(notes, note{id, words, explain(&h, now)})
		return true
	}
	for len(m.fresh) > 0 && t.looks >= 1 && t.writes >= 1 {
		id := m.fresh[0]
		if m.fresh = m.fresh[1:]; look(id) {
			m.round = append(m.round, id)
		}
	}
	for t.left > 0 && len(m.round) > 0 && t.looks >= 1 && t.writes >= 1 {
		t.left--
		m.turn++
		if m.turn >= len(m.round) {
			m.turn = 0
		}
		if !look(m.round[m.turn]) { // it no longer waits: remove it; the last of the list takes its place
			last := len(m.round) - 1
			m.round[m.turn] = m.round[last]
			m.round = m.round[:last]
			m.turn--
		}
	}
	t.left = min(t.left, len(m.round))
	return notes
}
