package platform

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

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
	if manager.RotationStep(step) == manager.RotateAll && len(cfg.Etcd.Endpoints) > 0 {
		n, err := announcedManagers(ctx, cfg.Etcd)
		if err == nil {
			err = manager.MayRotate(manager.RotateAll, n)
		}
		if err != nil {
			return Rotation{}, err
		}
	}
	done, err := manager.RotateMasterKeyInDatabase(ctx, cfg, manager.RotationStep(step))
	return Rotation(done), err
}

// announcedManagers is how many managers announce themselves in etcd.
func announcedManagers(ctx context.Context, cfg manager.EtcdConfig) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	etcd, err := clientv3.New(clientv3.Config{Endpoints: cfg.Endpoints, DialTimeout: 5 * time.Second, Context: ctx})
	var list *clientv3.GetResponse
	if err == nil {
		defer etcd.Close()
		list, err = etcd.Get(ctx, cfg.Prefix+"/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	}
	if err != nil {
		return 0, fault.Unavailablef("etcd at %v does not say how many managers run", cfg.Endpoints).WithCause(err).
			WithNext("start it; or go step by step, beginning with: berth admin rotate-master-key --step prepare")
	}
	n := 0
	for _, kv := range list.Kvs {
		if announcesManager(cfg.Prefix, string(kv.Key)) {
			n++
		}
	}
	return n, nil
}

// announcesManager reports whether a key of etcd is the announcement of a manager: PREFIX/CLUSTER/managers/ID.
func announcesManager(prefix, key string) bool {
	rest, ok := strings.CutPrefix(key, prefix+"/")
	parts := strings.Split(rest, "/")
	return ok && len(parts) == 3 && parts[1] == "managers"
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
