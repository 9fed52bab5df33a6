package keeper

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/cluster"
)

func TestPickedUserNumbersAreFree(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		u := Users{First: rapid.IntRange(1, 100).Draw(t, "first"), Count: rapid.IntRange(0, 12).Draw(t, "count")}
		taken := map[int]bool{0: true}
		for _, n := range rapid.SliceOf(rapid.IntRange(1, 120)).Draw(t, "taken") {
			taken[n] = true
		}
		free := 0
		for n := range u.Count {
			if !taken[u.First+n] {
				free++
			}
		}
		last := rapid.IntRange(0, 130).Draw(t, "last")
		n := u.pick(last, taken)
		if (n == 0) != (free == 0) || n != 0 && (taken[n] || n < u.First || n >= u.First+u.Count) {
			t.Fatalf("%+v after %d of %v: %d", u, last, taken, n)
		}
		if n == last && free > 1 {
			t.Fatalf("%d is given out again at once", n)
		}
	})
}

func TestWhoSharesAUserNumberForItsImage(t *testing.T) {
	t.Parallel()
	labels := func(files string) runtime.Image {
		l := map[string]string{cluster.LabelCustomizedOwner: "user:ada"}
		if files != "" {
			l[cluster.LabelSessionFiles] = files
		}
		return runtime.Image{Labels: l}
	}
	plain := []byte("root:x:0:0::/root:/bin/sh\nnode:x:1000:9001::/home/node:/bin/sh\n")
	require.Empty(t, sharedBy(runtime.Image{}, plain, 9001))
	require.Empty(t, sharedBy(labels(cluster.NoSessionFiles), plain, 9001))
	require.Equal(t, sharedCommit, sharedBy(labels(cluster.SessionFiles), plain, 9001))
	require.Equal(t, sharedCommit, sharedBy(labels(""), plain, 9001), "made by an agent that did not look")
	require.Contains(t, sharedBy(runtime.Image{}, []byte("me:x:9001:9001::/:/bin/sh\n"), 9001), "a user of the number 9001")
}
