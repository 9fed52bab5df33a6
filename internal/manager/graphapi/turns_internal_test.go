package graphapi

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func TestTurnsBoundTheOperationsOfEachUser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &turns{most: 2}
		var leaves []func()
		for range 2 {
			leave, err := q.enter(t.Context(), "ada")
			require.NoError(t, err)
			leaves = append(leaves, leave)
		}
		// Two more wait, the next is refused at once, and another user is not concerned.
		results := make(chan error, 2)
		for range 2 {
			go func() {
				leave, err := q.enter(t.Context(), "ada")
				if err == nil {
					defer leave()
				}
				results <- err
			}()
		}
		synctest.Wait()
		_, err := q.enter(t.Context(), "ada")
		require.True(t, fault.Is(err, fault.Exhausted))
		require.ErrorContains(t, err, "2 GraphQL operations running and 2 waiting")
		leave, err := q.enter(t.Context(), "bob")
		require.NoError(t, err)
		leave()
		leaves[0]()
		require.NoError(t, <-results)
		require.NoError(t, <-results)
		leaves[1]()
		require.Empty(t, q.m, "nothing is kept of users who do nothing")
	})
}

func TestTurnsEndWithTheirCallerAndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &turns{most: 1}
		leave, err := q.enter(t.Context(), "ada")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = q.enter(ctx, "ada")
		require.ErrorIs(t, err, context.Canceled)
		_, err = q.enter(t.Context(), "ada") // the fake clock passes maxTurnWait
		require.True(t, fault.Is(err, fault.Exhausted))
		leave()
		require.Empty(t, q.m)
	})
}
