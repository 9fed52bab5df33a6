package store_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/manager/store"
)

const (
	patience = time.Minute
	tick     = time.Millisecond
)

// held is a group whose batches wait to be let go.
type held struct {
	*store.Group[*int]
	batches chan []*int
	letGo   chan struct{}
}

func newHeld(limit int) *held {
	h := &held{batches: make(chan []*int), letGo: make(chan struct{})}
	h.Group = store.NewGroup(limit, func(_ context.Context, batch []*int) {
		h.batches <- batch
		<-h.letGo
		for _, v := range batch {
			*v++
		}
	})
	return h
}

func TestGroupGathersWhileABatchRuns(t *testing.T) {
	t.Parallel()
	h := newHeld(4)
	var wg sync.WaitGroup
	numbers := make([]int, 8)
	do := func(i int) {
		wg.Go(func() { require.NoError(t, h.Do(t.Context(), &numbers[i])) })
	}
	do(0)
	require.Len(t, <-h.batches, 1, "the first goes at once")
	for i := range 7 {
		do(i + 1)
	}
	require.Eventually(t, func() bool { return h.Waiting() == 7 }, patience, tick)
	h.letGo <- struct{}{}
	require.Len(t, <-h.batches, 4, "at most so many")
	h.letGo <- struct{}{}
	require.Len(t, <-h.batches, 3)
	h.letGo <- struct{}{}
	wg.Wait()
	require.Equal(t, []int{1, 1, 1, 1, 1, 1, 1, 1}, numbers)
	do(0)
	require.Len(t, <-h.batches, 1, "and again at once")
	h.letGo <- struct{}{}
	wg.Wait()
}

func TestGroupGoesOnWithoutThoseWhoLeave(t *testing.T) {
	t.Parallel()
	h := newHeld(4)
	var first, gone, last int
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, h.Do(t.Context(), &first)) })
	<-h.batches
	ctx, cancel := context.WithCancel(t.Context())
	wg.Go(func() { require.ErrorIs(t, h.Do(ctx, &gone), context.Canceled) })
	require.Eventually(t, func() bool { return h.Waiting() == 1 }, patience, tick)
	wg.Go(func() { require.NoError(t, h.Do(t.Context(), &last)) })
	require.Eventually(t, func() bool { return h.Waiting() == 2 }, patience, tick)
	cancel()
	require.Eventually(t, func() bool { return h.Waiting() == 1 }, patience, tick)
	h.letGo <- struct{}{}
	require.Len(t, <-h.batches, 1)
	h.letGo <- struct{}{}
	wg.Wait()
	require.Equal(t, []int{1, 0, 1}, []int{first, gone, last})
}

func TestGroupSurvivesAPanic(t *testing.T) {
	t.Parallel()
	h := newHeld(4)
	var first, follower, last int
	bad := store.NewGroup(4, func(ctx context.Context, batch []*int) {
		_ = h.Do(ctx, batch[0])
		if len(batch) > 1 {
			panic("a bug")
		}
	})
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, bad.Do(t.Context(), &first)) })
	<-h.batches
	errs := make(chan error, 2)
	for _, v := range []*int{&follower, &last} {
		wg.Go(func() {
			defer func() {
				if recover() != nil {
					errs <- nil // the leader's own goroutine
				}
			}()
			errs <- bad.Do(t.Context(), v)
		})
	}
	require.Eventually(t, func() bool { return bad.Waiting() == 2 }, patience, tick)
	h.letGo <- struct{}{}
	<-h.batches
	h.letGo <- struct{}{}
	a, b := <-errs, <-errs
	if a == nil {
		a = b
	}
	require.True(t, fault.Is(a, fault.Internal), "the other one hears of it: %v", a)
	wg.Wait()
	wg.Go(func() { require.NoError(t, bad.Do(t.Context(), &last)) })
	<-h.batches
	h.letGo <- struct{}{}
	wg.Wait()
}

// Whoever gives up while the group rests gives the lead on, so that nobody waits for somebody who left.
func TestGroupRestsAndLosesNobodyMeanwhile(t *testing.T) {
	t.Parallel()
	h := newHeld(4)
	h.Rest = func(batch []*int, _ time.Duration) time.Duration {
		require.Len(t, batch, 1)
		return time.Hour
	}
	var numbers [3]int
	var wg sync.WaitGroup
	wg.Go(func() { require.NoError(t, h.Do(t.Context(), &numbers[0])) })
	<-h.batches
	h.letGo <- struct{}{}
	wg.Wait()
	var cancels []context.CancelFunc
	for i := range 2 {
		ctx, cancel := context.WithCancel(t.Context())
		cancels = append(cancels, cancel)
		wg.Go(func() { require.ErrorIs(t, h.Do(ctx, &numbers[i+1]), context.Canceled) })
		require.Eventually(t, func() bool { return h.Waiting() == i+1 }, patience, tick)
	}
	cancels[0]()
	require.Eventually(t, func() bool { return h.Waiting() == 1 }, patience, tick)
	cancels[1]()
	wg.Wait()
	require.Zero(t, h.Waiting())
	require.Equal(t, [3]int{1, 0, 0}, numbers)
}
