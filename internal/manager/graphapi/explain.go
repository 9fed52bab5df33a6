package graphapi

import (
	"context"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/graphapi/model"
)

// Explanation says why a session waits.
func (s sessions) Explanation(ctx context.Context, obj *model.ComputeSession) (*model.SessionExplanation, error) {
	if value(obj.Status) != string(cluster.Pending) {
		return nil, nil
	}
	_, e, err := s.sessions.Explain(ctx, s.who(ctx), *obj.ID, "")
	if err != nil || e.Reason == "" {
		return nil, err
	}
	m := &model.SessionExplanation{
		Reason: &e.Reason, Msg: &e.Text, RejectedAgents: jsonObject(e.Rejected), Shortfall: slotsText(e.Shortfall), Position: &e.Position,
		Queue: &e.Queue, Remedies: texts(e.Remedies), AsOf: &e.AsOf,
	}
	if !e.Estimate.IsZero() {
		m.Estimate = &e.Estimate
	}
	return m, nil
}
