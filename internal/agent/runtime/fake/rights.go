package fake

import (
	"context"
	"net/http"
	"slices"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/wire/run"
)

var _ runtime.MountHolder = (*Runtime)(nil)

// Withhold remembers the folders that a container lost; see runtime.MountHolder.
func (r *Runtime) Withhold(ctx context.Context, kernel cluster.KernelID, list []cluster.Withheld) error {
	done, err := r.e.enter(ctx, Withhold, kernel)
	if err != nil {
		return err
	}
	r.e.mu.Lock()
	if c, err := r.find(kernel); err == nil && c.phase == runtime.PhaseRunning {
		c.withheld = append(c.withheld, list...)
	}
	r.e.mu.Unlock()
	return done(nil)
}

// Withheld are the folders that a kernel's container lost, in order.
func (e *Engine) Withheld(clusterID string, agent cluster.AgentID, kernel cluster.KernelID) []cluster.Withheld {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containers[key{clusterID, agent, kernel}]; c != nil {
		return slices.Clone(c.withheld)
	}
	return nil
}

func (e *Engine) serveKeys(_ context.Context, r *runner, req *http.Request) (any, error) {
	var in run.KeysRequest
	if err := decode(req, &in); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	r.c.keys = append([]string{}, in.Keys...)
	return run.KeysResult{}, nil
}

// Keys are the SSH keys that a kernel's runner was told after its start, nil when it was told none.
func (e *Engine) Keys(clusterID string, agent cluster.AgentID, kernel cluster.KernelID) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if c := e.containers[key{clusterID, agent, kernel}]; c != nil {
		return slices.Clone(c.keys)
	}
	return nil
}
