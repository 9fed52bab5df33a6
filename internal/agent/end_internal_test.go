package agent

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

// lateEngine makes one more container after the first look, as an engine does that had the order before its agent was stopped.
type lateEngine struct {
	runtime.Runtime
	containers map[cluster.KernelID]bool
	looks      int
}

func (e *lateEngine) List(context.Context) (out []runtime.Observed, err error) {
	if e.looks++; e.looks == 2 {
		e.containers["late"] = true
	}
	for id := range e.containers {
		out = append(out, runtime.Observed{Identity: runtime.Identity{Kernel: id}})
	}
	return out, nil
}

func (e *lateEngine) Remove(_ context.Context, id cluster.KernelID) error {
	delete(e.containers, id)
	return nil
}

// TestEveryContainerIsGone: also one that the engine was still making when its agent stopped.
func TestEveryContainerIsGone(t *testing.T) {
	t.Parallel()
	e := &lateEngine{containers: map[cluster.KernelID]bool{"one": true, "two": true}}
	first, err := e.List(t.Context())
	require.NoError(t, err)
	removed, err := removeAll(t.Context(), e, first)
	require.NoError(t, err)
	require.Equal(t, 3, removed)
	require.Empty(t, e.containers)
}
