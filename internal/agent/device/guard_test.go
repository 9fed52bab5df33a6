package device_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/testkit/await"
)

// TestWorkThatHangs: who waits for it gives up with its context, nothing is begun beside it, and all is well when it has ended.
func TestWorkThatHangs(t *testing.T) {
	t.Parallel()
	g := device.NewGuard()
	begun, release := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := device.Guarded(ctx, g, func() (int, error) { begun <- struct{}{}; <-release; return 1, nil })
		failed <- err
	}()
	await.Value(t, begun)
	cancel()
	err := await.Value(t, failed)
	require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	require.ErrorContains(t, err, "the host's kernel does not answer")

	later, stop := context.WithCancel(t.Context())
	go func() {
		_, err := device.Guarded(later, g, func() (int, error) { return 2, nil })
		failed <- err
	}()
	stop()
	require.Error(t, await.Value(t, failed), "nothing is begun beside it")
	close(release)
	got, err := device.Guarded(t.Context(), g, func() (int, error) { return 3, nil })
	require.NoError(t, err)
	require.Equal(t, 3, got)
}
