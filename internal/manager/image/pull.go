package image

import (
	"context"
	"encoding/json"
	"fmt"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/audit"
	"berth.dev/berth/internal/manager/authz"
	"berth.dev/berth/internal/manager/store"
)

// settingAutoPull is when agents pull images of registries. The trigger of migration 0081 and the query KernelFacts read it, too.
const settingAutoPull = "image-auto-pull"

// Settings is what AutoPullOf reads.
type Settings interface {
	GetSetting(ctx context.Context, key string) (json.RawMessage, error)
}

// AutoPullOf tells when agents pull images of registries: cluster.PullDigest where nobody said otherwise.
func AutoPullOf(ctx context.Context, s Settings) (string, error) {
	policy := cluster.PullDigest
	raw, err := s.GetSetting(ctx, settingAutoPull)
	if err == nil {
		err = json.Unmarshal(raw, &policy)
	}
	if err != nil && !store.Missing(err) {
		return "", fmt.Errorf("read setting %s: %w", settingAutoPull, err)
	}
	return policy, nil
}

// AutoPull tells what SetAutoPull decided (superadmins, monitors).
func (s *Service) AutoPull(ctx context.Context, a authz.Actor) (string, error) {
	if err := authz.Cluster.Need(a, authz.See, authz.Object{}, "look at settings of the cluster"); err != nil {
		return "", err
	}
	return AutoPullOf(ctx, s.d.Store)
}

// SetAutoPull says when agents pull images of registries (superadmins). It holds for kernels that start from then on. The note says in
// words what of the policy is not obeyed here; "" when all of it is.
func (s *Service) SetAutoPull(ctx context.Context, a authz.Actor, policy string) (note string, err error) {
	ctx, end := audit.Begin(ctx, s.d.Store, a, "cluster.set-auto-pull", "")
	defer end(&err)
	if err := authz.Cluster.Need(a, authz.Administer, authz.Object{}, "say when images are pulled"); err != nil {
		return "", err
	}
	switch policy {
	case cluster.PullDigest:
	case cluster.PullTag:
		note = "a kernel runs the content that its image had in the catalogue when its session was created: where a host has something else " +
			"under that tag, nothing is pulled and nothing runs, and the session is tried on another agent"
	case cluster.PullNone:
	default:
		return "", fault.Invalidf("auto_pull is digest, tag or none, not %.40q", policy)
	}
	raw, err := json.Marshal(policy)
	if err != nil {
		return "", fmt.Errorf("write setting %s: %w", settingAutoPull, err)
	}
	err = s.d.Store.Tx(ctx, func(ctx context.Context, tx *store.Tx) error {
		tx.Wake(store.TopicSchedule)
		return tx.SetSetting(ctx, settingAutoPull, raw)
	})
	if err != nil {
		return "", fmt.Errorf("store setting %s: %w", settingAutoPull, err)
	}
	return note, nil
}
