package storage

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/wire/storage"
)

const (
	// rightsAlive is how often a proxy hears that nothing changed. It is a small part of the age that a proxy's copy may have.
	rightsAlive = 5 * time.Second
	// rightsWithin bounds one push; rightsAgain is the pause after one that failed.
	rightsWithin = 3 * time.Second
	rightsAgain  = time.Second
)

// RightsWatch is what a manager tells storage proxies; folder.RightsWatch has it. The methods are those of that type.
type RightsWatch interface {
	Changed() <-chan struct{}
	Take(most int) (epochs map[string]int64, asOf time.Time)
	Restart()
	Close()
}

// PushRights tells every node of every storage proxy which epochs changed, until ctx ends. Each node has its own goroutine, so that one
// that does not answer keeps no other waiting.
func (l *Link) PushRights(ctx context.Context, watch func() RightsWatch) error {
	ctx, cancel := context.WithCancel(ctx)
	var nodes sync.WaitGroup
	defer nodes.Wait()
	defer cancel()
	told := map[string]context.CancelFunc{} // by proxy/node
	for {
		changed := l.nodesChanged()
		live := map[string]storage.Presence{}
		l.mu.Lock()
		for key, p := range l.live {
			live[key] = p
		}
		l.mu.Unlock()
		for key, end := range told {
			if _, still := live[key]; !still {
				end()
				delete(told, key)
			}
		}
		for key := range live {
			if told[key] == nil {
				nctx, end := context.WithCancel(ctx)
				told[key] = end
				nodes.Go(func() { l.pushTo(nctx, key, watch()) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil
		}
	}
}

// pushTo tells one node until ctx ends.
func (l *Link) pushTo(ctx context.Context, key string, w RightsWatch) {
	defer w.Close()
	tick := l.deps.Clock.NewTicker(rightsAlive)
	defer tick.Stop()
	boot, failing := "", false
	for {
		moved := l.nodesChanged()
		l.mu.Lock()
		node, live := l.live[key]
		l.mu.Unlock()
		if live && node.Protocol >= 2 {
			err := l.tell(ctx, node, w, &boot)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && !failing:
				l.deps.Log.Warn("cannot tell a storage proxy whose rights changed; it refuses transfers when this lasts", "node", key, "error", err)
			case err == nil && failing:
				l.deps.Log.Info("a storage proxy hears again whose rights changed", "node", key)
			}
			if failing = err != nil; failing {
				boot = ""
				w.Restart()
				if chassis.Wait(ctx, l.deps.Clock, rightsAgain) != nil {
					return
				}
				continue
			}
		}
		select {
		case <-w.Changed():
		case <-moved:
		case <-tick.C():
		case <-ctx.Done():
			return
		}
	}
}

// tell sends a node what it does not know yet. boot is the node's life as it was last told; another one gets everything.
func (l *Link) tell(ctx context.Context, n storage.Presence, w RightsWatch, boot *string) error {
	for {
		epochs, asOf := w.Take(storage.MaxEpochs)
		q := storage.RightsRequest{Boot: *boot, Epochs: epochs}
		if !asOf.IsZero() && *boot != "" {
			q.Complete, q.AgeMS = true, max(l.deps.Clock.Now().Sub(asOf).Milliseconds(), 0)
		}
		body, err := json.Marshal(q)
		if err != nil {
			return err
		}
		var reply storage.RightsReply
		answered, _, err := l.once(ctx, n, manner{rightsWithin, true}, http.MethodPost, storage.PathRights, body, &reply)
		switch {
		case err != nil:
			return err
		case !answered || reply.Boot == "":
			return fault.Unavailablef("storage proxy %s (node %s) did not say who it is", n.Proxy, n.Node)
		case reply.Again:
			*boot = reply.Boot
			w.Restart()
			continue
		}
		first := *boot == ""
		*boot = reply.Boot
		if asOf.IsZero() && len(epochs) == 0 || !asOf.IsZero() && !first {
			return nil
		}
	}
}

// nodesChanged is closed when nodes come or go.
func (l *Link) nodesChanged() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moved == nil {
		l.moved = make(chan struct{})
	}
	return l.moved
}

// nodeMoved says that a node came or went; mu is held.
func (l *Link) nodeMoved() {
	if l.moved != nil {
		close(l.moved)
		l.moved = nil
	}
}
