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

// recent remembers answers that every request needs for a moment. Who changes what an answer was made from calls forget
// after the commit; the hub does so for changes elsewhere.
type recent[K comparable, V any] struct {
	mu    sync.Mutex
	known map[K]believed[V]
	// turn counts what was forgotten: an answer that was read before a change must not be kept after it.
	turn int64
}

type believed[V any] struct {
	value   V
	expires time.Time
}

// find returns what is known. Who finds nothing passes turn on to keep.
func (c *recent[K, V]) find(key K, now time.Time) (v V, turn int64, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.known[key]
	if !ok || !now.Before(b.expires) {
		return v, c.turn, false
	}
	return b.value, c.turn, true
}

// keep remembers an answer unless something was forgotten since find.
func (c *recent[K, V]) keep(key K, v V, turn int64, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if turn != c.turn {
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
	c.turn++
	for key, b := range c.known {
		if concern == nil || concern(key, b.value) {
			delete(c.known, key)
		}
	}
}
