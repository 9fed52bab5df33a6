package scheduling

import (
	"context"

	"berth.dev/berth/internal/chassis"
)

// kept guards a memory: one goroutine at a time may use it. It is a lock, made of a channel so that waiting for it can end with a context.
type kept struct {
	gate chan struct{} // holds one token while nobody uses the memory
	m    *memory
}

func newKept(clock chassis.Clock) *kept {
	k := &kept{gate: make(chan struct{}, 1), m: newMemory(clock)}
	k.gate <- struct{}{}
	return k
}

// with runs fn while it holds the memory.
func (k *kept) with(ctx context.Context, fn func(m *memory) error) error {
	select {
	case <-k.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { k.gate <- struct{}{} }()
	return fn(k.m)
}
