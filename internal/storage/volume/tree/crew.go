package tree

import "sync"

// crew lets workers share a stack of things to do, each of which may add more. The last one added comes first,
// which keeps the stack as short as a walk into the depth can be.
type crew[T any] struct {
	mu      sync.Mutex
	wake    sync.Cond
	items   []T
	busy    int
	stopped bool
}

func newCrew[T any](items ...T) *crew[T] {
	c := &crew[T]{items: items}
	c.wake.L = &c.mu
	return c
}

// add puts items on the stack, the last on top.
func (c *crew[T]) add(items ...T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.items = append(c.items, items...)
	if len(items) == 1 {
		c.wake.Signal()
	} else {
		c.wake.Broadcast()
	}
}

func (c *crew[T]) height() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.items)
}

// stop lets nobody take another item; what is left stays on the stack.
func (c *crew[T]) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	c.wake.Broadcast()
}

func (c *crew[T]) take() (item T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.items) == 0 && c.busy > 0 && !c.stopped {
		c.wake.Wait()
	}
	if c.stopped || len(c.items) == 0 {
		return item, false
	}
	last := len(c.items) - 1
	item = c.items[last]
	var none T
	c.items[last] = none
	c.items = c.items[:last]
	c.busy++
	return item, true
}

func (c *crew[T]) finished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.busy--; c.busy == 0 && len(c.items) == 0 {
		c.wake.Broadcast()
	}
}

// run works until nothing is left or stop was called. hire makes the function of one worker.
func (c *crew[T]) run(workers int, hire func(worker int) func(T)) {
	var group sync.WaitGroup
	for i := range workers {
		group.Go(func() {
			work := hire(i)
			for {
				item, ok := c.take()
				if !ok {
					return
				}
				work(item)
				c.finished()
			}
		})
	}
	group.Wait()
}
