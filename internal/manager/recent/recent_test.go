package recent_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/recent"
)

// TestAnswersAreForgotten: by time, by a change of actors, by a caller who heard of a change, and when there are too many.
func TestAnswersAreForgotten(t *testing.T) {
	t.Parallel()
	turn := uint64(1)
	c := recent.New[string, int](func() uint64 { return turn })
	now := time.Unix(1000, 0)
	keep := func(key string, v int) {
		_, seen, _ := c.Find(key, now)
		c.Keep(key, v, seen, now)
	}
	known := func(key string) bool {
		_, _, ok := c.Find(key, now)
		return ok
	}
	require.False(t, known("a"))
	keep("a", 1)
	v, _, ok := c.Find("a", now)
	require.True(t, ok)
	require.Equal(t, 1, v)
	now = now.Add(recent.Memory)
	require.False(t, known("a"), "an answer is believed for a moment only")

	keep("a", 1)
	turn++
	require.False(t, known("a"), "something about actors changed")

	keep("a", 1)
	keep("b", 2)
	c.Forget(func(_ string, v int) bool { return v == 1 })
	require.False(t, known("a"))
	require.True(t, known("b"))
	c.Forget(nil)
	require.False(t, known("b"))
}

// TestAnAnswerFromBeforeAChangeIsNotKept: it was read before something was forgotten, and may be what is wrong now.
func TestAnAnswerFromBeforeAChangeIsNotKept(t *testing.T) {
	t.Parallel()
	turn := uint64(1)
	c := recent.New[string, int](func() uint64 { return turn })
	now := time.Unix(1000, 0)
	changes := map[string]func(){
		"actors":    func() { turn++ },
		"forgotten": func() { c.Forget(func(string, int) bool { return false }) },
	}
	for name, change := range changes {
		_, before, _ := c.Find("a", now)
		change()
		c.Keep("a", 1, before, now)
		_, _, ok := c.Find("a", now)
		require.False(t, ok, name)
	}
}

// TestTheMemoryIsBounded: more answers than are remembered begin a new memory.
func TestTheMemoryIsBounded(t *testing.T) {
	t.Parallel()
	c := recent.New[int, int](func() uint64 { return 1 })
	now := time.Unix(1000, 0)
	const many = 5001
	for i := range many {
		_, turn, _ := c.Find(i, now)
		c.Keep(i, i, turn, now)
	}
	_, _, first := c.Find(0, now)
	_, _, last := c.Find(many-1, now)
	require.False(t, first)
	require.True(t, last)
}
