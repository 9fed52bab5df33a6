package testkit

import (
	"sync"
	"time"
)

// Held is the statement of a job that lasts until Release: how long anything takes on the way there
// does not matter then.
const Held = "sleep 3600"

const heldFor = time.Hour

// holds is the engines' clock. Everything on it is real but the sleeps of Held.
type holds struct {
	mu      sync.Mutex
	serial  int
	waiting map[int]func()
}

func (h *holds) after(d time.Duration, f func()) (stop func() bool) {
	if d != heldFor {
		return time.AfterFunc(d, f).Stop
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.waiting == nil {
		h.waiting = map[int]func(){}
	}
	h.serial++
	me := h.serial
	h.waiting[me] = f
	return func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		_, there := h.waiting[me]
		delete(h.waiting, me)
		return there
	}
}

// Release lets every job go on that is at its Held now.
func (c *Cluster) Release() {
	h := &c.held
	h.mu.Lock()
	waiting := h.waiting
	h.waiting = nil
	h.mu.Unlock()
	for _, f := range waiting {
		f()
	}
}
