package reconcile

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/store"
	"berth.dev/berth/internal/scheduler"
)

// predicate is one entry of the wire's lists of scheduling predicates.
type predicate struct {
	Name string `json:"name"`
	Msg  string `json:"msg,omitempty"`
}

// explanation is the scheduler part of a waiting session's status_data: the wire's keys first, then ours.
type explanation struct {
	LastTry          string            `json:"last_try"`
	Msg              string            `json:"msg"`
	FailedPredicates []predicate       `json:"failed_predicates"`
	PassedPredicates []predicate       `json:"passed_predicates"`
	Reason           string            `json:"reason"`
	Rejected         map[string]int    `json:"rejected_agents,omitempty"`
	Shortfall        map[string]string `json:"shortfall,omitempty"`
	Position         int               `json:"position"`
}

// predicates in the order in which a session passes them.
var predicates = []scheduler.Reason{
	scheduler.WaitsForStartTime, scheduler.WaitsForDependency, scheduler.WaitsForQuota, scheduler.WaitsForAgent,
	scheduler.TooBig, scheduler.WaitsForCapacity, scheduler.WaitsForDevices, scheduler.WaitsBehind,
}

func explain(h *scheduler.Explanation, now string) explanation {
	e := explanation{LastTry: now, Msg: h.Text, Reason: string(h.Reason), Rejected: h.Rejected, Position: h.Position,
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
	return e
}

// told is the part of a stored explanation that decides whether it has to be written again:
// everything but the time of the try.
func told(data map[string]any) string {
	stored, ok := data["scheduler"].(map[string]any)
	if !ok {
		return ""
	}
	return fmt.Sprint(stored["msg"], "\x00", stored["position"])
}

// tell writes why sessions wait, for those where it changed.
func (l *Loops) tell(ctx context.Context, token int64, p *picture, decisions []scheduler.Decision) error {
	var ids, infos []string
	var datas []json.RawMessage
	now := l.deps.Clock.Now().UTC().Format("2006-01-02T15:04:05.000000+00:00")
	for _, d := range decisions {
		if d.Hold == nil {
			continue
		}
		e := explain(d.Hold, now)
		info := string(d.Hold.Reason)
		if p.told[d.Session] == info+"\x00"+fmt.Sprint(e.Msg, "\x00", float64(e.Position)) {
			continue
		}
		raw, err := json.Marshal(map[string]any{"scheduler": e})
		if err != nil {
			return fmt.Errorf("render explanation: %w", err)
		}
		ids, infos, datas = append(ids, string(d.Session)), append(infos, info), append(datas, raw)
	}
	if len(ids) == 0 {
		return nil
	}
	return l.fenced(ctx, token, func(ctx context.Context, tx *store.Tx) error {
		if err := tx.ExplainPending(ctx, infos, datas, ids); err != nil {
			return fmt.Errorf("explain pending sessions: %w", err)
		}
		for _, id := range ids {
			tx.Wake(store.SessionTopic(string(cluster.SessionID(id))))
		}
		return nil
	})
}
