package manager

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"berth.dev/berth/internal/chassis"
)

// Presence is how a manager announces itself in etcd under <prefix>/<cluster>/managers/<id>.
type Presence struct {
	ID        string    `json:"id"`
	API       string    `json:"api"`    // host:port of REST and GraphQL
	Agents    string    `json:"agents"` // host:port of the agent port
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
}

// presenceTTL is how long the announcement of a manager that died stays, in seconds.
const presenceTTL = 15

// announce keeps the manager's announcement alive until ctx ends. etcd being away costs
// nothing but the announcement.
func (m *Manager) announce(ctx context.Context) error {
	p := Presence{ID: m.cfg.id(), API: m.APIAddr(), Agents: m.AgentAddr(), Version: m.deps.Build.Version, StartedAt: m.deps.Clock.Now().UTC()}
	raw, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("render announcement: %w", err)
	}
	backoff := chassis.Backoff{Min: 200 * time.Millisecond, Max: 5 * time.Second}
	for {
		err := announceOnce(ctx, m.deps.Etcd, m.cfg.Etcd.Prefix+"/"+m.admin.ClusterID+"/managers/"+p.ID, string(raw))
		if ctx.Err() != nil {
			return nil
		}
		wait := backoff.Next()
		m.log.Warn("the announcement of this manager in etcd ended; announcing again", "err", err, "retry_in", wait)
		if chassis.Wait(ctx, m.deps.Clock, wait) != nil {
			return nil
		}
	}
}

func announceOnce(ctx context.Context, etcd *clientv3.Client, key, value string) error {
	lease, err := etcd.Grant(ctx, presenceTTL)
	if err != nil {
		return fmt.Errorf("get a lease: %w", err)
	}
	defer func() {
		rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_, _ = etcd.Revoke(rctx, lease.ID) // else it runs out by itself
	}()
	if _, err := etcd.Put(ctx, key, value, clientv3.WithLease(lease.ID)); err != nil {
		return fmt.Errorf("put: %w", err)
	}
	alive, err := etcd.KeepAlive(ctx, lease.ID)
	if err != nil {
		return fmt.Errorf("keep the lease: %w", err)
	}
	for range alive {
	}
	return errors.New("the lease ran out")
}
