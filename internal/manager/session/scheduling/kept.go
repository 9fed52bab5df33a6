package scheduling

import (
	"context"

	"berth.dev/berth/internal/chassis"
)

// kept is a memory that one goroutine at a time may use; waiting for it ends with the context.
type kept struct {
	gate chan struct{} // holds one token while nobody uses the memory
	m    *memory
}

func newKept(clock chassis.Clock) *kept {
	k := &kept{gate: make(chan struct{}, 1), m: newMemory(clock)}
	k.gate <- struct{}{}
	return k
}

func (k *kept) with(ctx context.Context, fn func(m *memory) error) error {
	select {
	case <-k.gate:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { k.gate <- struct{}{} }()
	return fn(k.m)
}
