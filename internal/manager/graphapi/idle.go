package graphapi

import (
	"context"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/manager/graphapi/model"
)

// IdleChecks is how a running session stands with idle checks, by their type; {} for others.
func (s sessions) IdleChecks(ctx context.Context, obj *model.ComputeSession) (*string, error) {
	if obj.Status == nil || *obj.Status != string(cluster.Running) {
		return new("{}"), nil
	}
	r, err := loadersOf(ctx).idle.load(ctx, cluster.SessionID(*obj.ID))
	if err != nil {
		return nil, err
	}
	return jsonText(r.ByType()), nil
}
