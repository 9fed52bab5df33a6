package platform

import (
	"context"
	"net/http"
	"net/url"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager"
)

// Rotation is what a step of replacing the master key did.
type Rotation struct {
	Key      string `json:"key"`      // id of the key that seals now
	Prepared string `json:"prepared"` // id of the key that the next step uses; "" when none waits
	Resealed int    `json:"resealed"` // rows and settings that were sealed again
}

// RotateMasterKey replaces the master key of a cluster that `berth up` started. step is "all", "prepare", "use" or "finish".
func RotateMasterKey(ctx context.Context, dir StateDir, step string) (done Rotation, err error) {
	if _, running := dir.Owner(); !running {
		return done, fault.Unavailablef("no cluster runs in %s", dir).WithNext("berth up --detach --state-dir %s, then try again", dir)
	}
	err = dir.call(ctx, http.MethodPost, "/admin/rotate-master-key?step="+url.QueryEscape(step), nil, &done)
	return done, err
}

// RotateMasterKeyInDatabase does the same with the state directory and the database of a manager that runs alone.
func RotateMasterKeyInDatabase(ctx context.Context, cfg manager.Config, step string) (Rotation, error) {
	done, err := manager.RotateMasterKeyInDatabase(ctx, cfg, manager.RotationStep(step))
	return Rotation(done), err
}

// serveRotate answers on the control socket, which only the cluster's own user and root may open.
func (p *platform) serveRotate(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	m := p.manager
	p.mu.Unlock()
	if m == nil {
		http.Error(w, "the cluster is still starting", http.StatusServiceUnavailable)
		return
	}
	done, err := m.RotateMasterKey(r.Context(), manager.RotationStep(r.URL.Query().Get("step")))
	if err != nil {
		text := err.Error()
		if next := fault.NextOf(err); next != "" {
			text += "; next: " + next
		}
		http.Error(w, text, http.StatusServiceUnavailable)
		return
	}
	p.log.Warn("the master key was replaced from this machine", "key", done.Key, "prepared", done.Prepared, "resealed", done.Resealed)
	writeJSON(w, done)
}
