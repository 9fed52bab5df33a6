// Package recent remembers answers that every request needs, such as who an access key belongs to, for a moment. Who hears
// that the facts below an answer changed calls Forget. It reads nothing itself.
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

// Cache remembers answers by key. The zero value is ready.
type Cache[K comparable, V any] struct {
	mu    sync.Mutex
	known map[K]answer[V]
	// turn counts calls of Forget: an answer that was read before one must not be kept after it.
	turn int64
}

type answer[V any] struct {
	value   V
	expires time.Time
}

// Find returns what is known. Who finds nothing passes turn on to Keep.
func (c *Cache[K, V]) Find(key K, now time.Time) (v V, turn int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a, ok := c.known[key]
	if !ok || !now.Before(a.expires) {
		return v, c.turn, false
	}
	return a.value, c.turn, true
}

// Keep remembers an answer unless something was forgotten since Find.
func (c *Cache[K, V]) Keep(key K, v V, turn int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
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
	c.turn++
	for key, a := range c.known {
		if concerns == nil || concerns(key, a.value) {
			delete(c.known, key)
		}
	}
}
