package graphapi

import (
	"context"
	"sync"
)

// together reads for all rows of a page what one of them asks for. Lists announce their rows with expect; the first row that asks reads for
// all of them, and the others take what was read. It needs no clock, so a page costs one reading however busy the machine is. One belongs
// to one request.
type together[K comparable, V any] struct {
	read func(context.Context, []K) (map[K]V, error)

	mu sync.Mutex
	of map[K]*reading[K, V]
}

// reading is what rows that were announced together share.
type reading[K comparable, V any] struct {
	keys  []K
	once  sync.Once
	found map[K]V
	err   error
}

func newTogether[K comparable, V any](read func(context.Context, []K) (map[K]V, error)) *together[K, V] {
	return &together[K, V]{read: read, of: map[K]*reading[K, V]{}}
}

// expect announces rows; those that were announced before stay where they are.
func (t *together[K, V]) expect(keys []K) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := &reading[K, V]{}
	for _, k := range keys {
		if t.of[k] == nil {
			t.of[k] = r
			r.keys = append(r.keys, k)
		}
	}
}

// load returns what was found for a key; the zero value for what is not there.
func (t *together[K, V]) load(ctx context.Context, key K) (V, error) {
	t.mu.Lock()
	r := t.of[key]
	if r == nil {
		r = &reading[K, V]{keys: []K{key}}
		t.of[key] = r
	}
	t.mu.Unlock()
	r.once.Do(func() { r.found, r.err = t.read(ctx, r.keys) })
	return r.found[key], r.err
}
