package mount

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/testkit/await"
)

// TestAHungVolumeIsCalledNoMore: a call that does not return keeps a thread of the process until it does, so there must not be more and
// more of them.
func TestAHungVolumeIsCalledNoMore(t *testing.T) {
	t.Parallel()
	v := newVolume("local:volume1", t.TempDir())
	answer, discarded, changed := make(chan struct{}), make(chan int, 1), make(chan struct{}, 10)
	var calls atomic.Int32
	call := func(patience time.Duration) error {
		_, err := do(t.Context(), v, patience, func() { changed <- struct{}{} }, func() (int, error) {
			<-answer
			return int(calls.Add(1)), nil
		}, func(n int) { discarded <- n })
		return err
	}
	require.Error(t, call(time.Millisecond))
	await.Value(t, changed)
	for range 3 * maxStuck {
		require.ErrorContains(t, call(time.Hour), "local:volume1 does not answer")
	}
	require.Len(t, v.calls, 1)
	close(answer)
	await.Value(t, changed)
	require.Equal(t, 1, await.Value(t, discarded))
	require.EqualValues(t, 1, calls.Load())
	require.NoError(t, call(time.Hour))
}

// TestCallersBeforeAVolumeHangsAreBounded: those who came before it was known to hang do not all wait inside the file system.
func TestCallersBeforeAVolumeHangsAreBounded(t *testing.T) {
	t.Parallel()
	v := newVolume("local:volume1", t.TempDir())
	answer, inside := make(chan struct{}), make(chan struct{}, 3*maxStuck)
	failed := make(chan error, 3*maxStuck)
	ctx, leave := context.WithCancel(t.Context())
	call := func() {
		_, err := do(ctx, v, time.Hour, func() {}, func() (int, error) {
			inside <- struct{}{}
			<-answer
			return 0, nil
		}, func(int) {})
		failed <- err
	}
	for range maxStuck {
		go call()
	}
	for range maxStuck {
		await.Value(t, inside)
	}
	for range 2 * maxStuck {
		go call()
	}
	leave() // they give up, and nobody says that it hangs
	for range 3 * maxStuck {
		require.ErrorIs(t, await.Value(t, failed), context.Canceled)
	}
	require.Empty(t, inside)
	close(answer)
}
