package fake

import (
	"context"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// maxPending bounds the hints that wait for a slow receiver; beyond it, one hint for all replaces them.
const maxPending = 1024

// watcher holds the hints that one Watch has not delivered yet.
type watcher struct {
	cluster string
	agent   cluster.AgentID
	wake    chan struct{} // holds one token while something waits
	waiting map[cluster.KernelID]bool
}

// add is called with the engine's mutex held.
func (w *watcher) add(h runtime.Hint) {
	if len(w.waiting) >= maxPending {
		clear(w.waiting)
		h = runtime.Hint{}
	}
	w.waiting[h.Kernel] = w.waiting[h.Kernel] || h.OOM
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// Watch sends hints until ctx ends; see runtime.Runtime.
func (r *Runtime) Watch(ctx context.Context) <-chan runtime.Hint {
	out := make(chan runtime.Hint)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.closing, cancel)
	w := &watcher{cluster: r.cluster, agent: r.agent, wake: make(chan struct{}, 1), waiting: map[cluster.KernelID]bool{}}
	r.e.mu.Lock()
	r.e.watchers[w] = true
	if !r.e.lost {
		w.add(runtime.Hint{})
	}
	r.e.mu.Unlock()
	r.watches.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		defer r.e.forget(w)
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.wake:
			}
			for _, h := range r.e.takeHints(w) {
				select {
				case out <- h:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	return out
}

func (e *Engine) forget(w *watcher) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.watchers, w)
}

// takeHints empties the watcher; a lost engine tells nothing, and what happened meanwhile is
// covered by the hint that Restore sends.
func (e *Engine) takeHints(w *watcher) []runtime.Hint {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost {
		clear(w.waiting)
		return nil
	}
	out := make([]runtime.Hint, 0, len(w.waiting))
	for k, oom := range w.waiting {
		out = append(out, runtime.Hint{Kernel: k, OOM: oom})
	}
	clear(w.waiting)
	return out
}
