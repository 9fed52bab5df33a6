// Package recent remembers, for a moment, answers that every request needs, such as who an access key belongs to. Each holds a
// decision about an actor, so all are forgotten when anything about actors changes (store.ActorsTurn). A caller that hears of
// another change below an answer calls Forget. It reads nothing itself. tenancy and session use it.
package recent

import (
	"sync"
	"time"
)

const (
	// Memory bounds how long an answer is believed without hearing of a change.
	Memory = time.Second
	// most is how many answers are remembered.
	most = 5000
)

// Cache remembers answers by key.
type Cache[K comparable, V any] struct {
	// actors is store.ActorsTurn.
	actors func() uint64

	mu    sync.Mutex
	known map[K]answer[V]
	turn  Turn
}

// New makes a cache; actors tells the turn of actors, as store.ActorsTurn does.
func New[K comparable, V any](actors func() uint64) *Cache[K, V] {
	return &Cache[K, V]{actors: actors}
}

// Turn changes whenever something is forgotten: an answer that was read before must not be kept after it.
type Turn struct {
	actors    uint64
	forgotten int64
}

type answer[V any] struct {
	value   V
	expires time.Time
}

// Find returns what is known. Who finds nothing passes turn on to Keep.
func (c *Cache[K, V]) Find(key K, now time.Time) (v V, turn Turn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	a, ok := c.known[key]
	if !ok || !now.Before(a.expires) {
		return v, c.turn, false
	}
	return a.value, c.turn, true
}

// follow forgets everything when the turn of actors has ended.
func (c *Cache[K, V]) follow() {
	if now := c.actors(); now != c.turn.actors {
		c.turn.actors = now
		clear(c.known)
	}
}

// Keep remembers an answer unless something was forgotten since Find.
func (c *Cache[K, V]) Keep(key K, v V, turn Turn, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	if turn != c.turn {
		return
	}
	if c.known == nil || len(c.known) >= most {
		c.known = map[K]answer[V]{}
	}
	c.known[key] = answer[V]{v, now.Add(Memory)}
}

// Forget drops the answers for which concerns is true; nil drops all.
func (c *Cache[K, V]) Forget(concerns func(K, V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn.forgotten++
	for key, a := range c.known {
		if concerns == nil || concerns(key, a.value) {
			delete(c.known, key)
		}
	}
}
