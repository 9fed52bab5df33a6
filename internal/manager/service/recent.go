package service

import (
	"sync"
	"time"
)

const (
	// recentMemory bounds how long an answer is believed without hearing of a change: also how long another manager
	// may go on with what this one has just changed when the hint gets lost.
	recentMemory = time.Second
	maxRecent    = 5000
)

// recent remembers answers that every request needs for a moment. All are forgotten when the turn of actors ends, because each
// holds a decision about an actor; forget drops those that a change of something else concerns.
type recent[K comparable, V any] struct {
	// actors is store.ActorsTurn.
	actors func() uint64

	mu    sync.Mutex
	known map[K]believed[V]
	// turn changes with everything that was forgotten: an answer that was read before a change must not be kept after it.
	turn turn
}

type turn struct {
	actors    uint64
	forgotten int64
}

type believed[V any] struct {
	value   V
	expires time.Time
}

// find returns what is known. Who finds nothing passes turn on to keep.
func (c *recent[K, V]) find(key K, now time.Time) (v V, t turn, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	b, ok := c.known[key]
	if !ok || !now.Before(b.expires) {
		return v, c.turn, false
	}
	return b.value, c.turn, true
}

// follow forgets everything when the turn of actors has ended.
func (c *recent[K, V]) follow() {
	if now := c.actors(); now != c.turn.actors {
		c.turn.actors = now
		clear(c.known)
	}
}

// keep remembers an answer unless something was forgotten since find.
func (c *recent[K, V]) keep(key K, v V, t turn, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.follow()
	if t != c.turn {
		return
	}
	if c.known == nil || len(c.known) >= maxRecent {
		c.known = map[K]believed[V]{}
	}
	c.known[key] = believed[V]{v, now.Add(recentMemory)}
}

// forget drops the answers that concern is true for; nil drops all.
func (c *recent[K, V]) forget(concern func(K, V) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.turn.forgotten++
	for key, b := range c.known {
		if concern == nil || concern(key, b.value) {
			delete(c.known, key)
		}
	}
}
