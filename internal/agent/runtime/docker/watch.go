package docker

import (
	"context"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// maxPending bounds the hints that wait for a slow receiver; beyond it, one hint for all replaces them.
const maxPending = 1024

const (
	reconnectMin = 100 * time.Millisecond
	reconnectMax = 5 * time.Second
)

// Watch sends hints until ctx ends; see runtime.Runtime. The first hint, without kernel, says that the
// stream is connected.
func (r *Runtime) Watch(ctx context.Context) <-chan runtime.Hint {
	out := make(chan runtime.Hint)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(r.closing, cancel)
	r.watchers.Go(func() {
		defer close(out)
		defer cancel()
		defer stop()
		p := pending{out: out, waiting: map[cluster.KernelID]bool{}}
		wait := reconnectMin
		for ctx.Err() == nil {
			connected := r.follow(ctx, &p)
			if connected {
				wait = reconnectMin
			}
			// Hints that still wait are delivered while the engine is away.
			if !p.drain(ctx, time.After(wait)) {
				return
			}
			wait = min(2*wait, reconnectMax)
		}
	})
	return out
}

// follow forwards the engine's events until the stream breaks; it reports whether it ever stood.
func (r *Runtime) follow(ctx context.Context, p *pending) bool {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the reader of the client
	filters := r.mine().Add("type", string(events.ContainerEventType)).
		Add("event", string(events.ActionStart), string(events.ActionDie), string(events.ActionOOM), string(events.ActionDestroy))
	stream := r.api.Events(ctx, client.EventsListOptions{Filters: filters})
	select {
	case err := <-stream.Err:
		r.log.Debug("the engine's event stream did not open", "error", err)
		return false
	default:
	}
	p.add(runtime.Hint{})
	for {
		to, hint := p.next()
		select {
		case to <- hint:
			p.sent(hint)
		case m := <-stream.Messages:
			if m.Action != events.ActionStart {
				r.seen.drop(m.Actor.ID)
			}
			p.add(runtime.Hint{
				Kernel: cluster.KernelID(m.Actor.Attributes[labelKernel]),
				OOM:    m.Action == events.ActionOOM,
			})
		case err := <-stream.Err:
			if ctx.Err() == nil {
				r.log.Debug("the engine's event stream broke", "error", err)
			}
			return true
		}
	}
}

// pending is the bounded set of hints not yet taken: one per kernel, or a single one for all.
type pending struct {
	out     chan<- runtime.Hint
	waiting map[cluster.KernelID]bool // kernel -> OOM seen
}

func (p *pending) add(h runtime.Hint) {
	if len(p.waiting) >= maxPending {
		clear(p.waiting)
		h = runtime.Hint{}
	}
	p.waiting[h.Kernel] = p.waiting[h.Kernel] || h.OOM
}

// next returns one waiting hint and where to send it; a nil channel when there is none.
func (p *pending) next() (chan<- runtime.Hint, runtime.Hint) {
	for k, oom := range p.waiting {
		return p.out, runtime.Hint{Kernel: k, OOM: oom}
	}
	return nil, runtime.Hint{}
}

func (p *pending) sent(h runtime.Hint) { delete(p.waiting, h.Kernel) }

// drain delivers what waits until the timer fires; false when ctx ended before.
func (p *pending) drain(ctx context.Context, timer <-chan time.Time) bool {
	for {
		to, hint := p.next()
		select {
		case to <- hint:
			p.sent(hint)
		case <-timer:
			return true
		case <-ctx.Done():
			return false
		}
	}
}
