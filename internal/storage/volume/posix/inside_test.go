package posix

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// hashed is a directory as htrees give it: entries in the order of positions that may collide.
type hashed struct {
	at []int64 // of entry i
	i  int
}

func (h *hashed) seek(pos int64) error {
	h.i = slices.IndexFunc(h.at, func(p int64) bool { return p >= pos })
	if h.i < 0 {
		h.i = len(h.at)
	}
	return nil
}

func (h *hashed) next() (dirent, error) {
	if h.i == len(h.at) {
		return dirent{}, io.EOF
	}
	e := dirent{name: fmt.Sprint(h.i), before: h.at[h.i], after: 1 << 40}
	if h.i++; h.i < len(h.at) {
		e.after = h.at[h.i]
	}
	return e, nil
}

func TestPagesOfCollidingPositionsGiveEachEntryOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := rapid.SliceOf(rapid.Int64Range(1, 12)).Draw(t, "positions")
		slices.Sort(at)
		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		h := &hashed{at: at}
		var got []string
		pos := int64(0)
		for rounds := 0; ; rounds++ {
			if rounds > len(at)+1 {
				t.Fatal("the listing does not end")
			}
			names, next, more, err := pageByPosition(context.Background(), h, pos, limit)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, names...)
			if !more {
				break
			}
			pos = next
		}
		if len(got) != len(at) || len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(at) {
			t.Fatalf("%d entries gave %v", len(at), got)
		}
	})
}

func TestCursorsAreCheckedAndCarried(t *testing.T) {
	for _, c := range []cursor{{byName: true, name: "a\xffb"}, {inode: 12, pos: 1 << 60}} {
		got, err := parseCursor(c.String())
		require.NoError(t, err)
		require.Equal(t, c, got)
	}
	for _, s := range []string{"x", "n", "n!", "p", "p1", "p1.", "p1.-5", "p1.0", "p.1"} {
		_, err := parseCursor(s)
		require.True(t, fault.Is(err, fault.Invalid), s)
	}
}

// A file system that hangs holds one goroutine and no caller.
func TestSpaceOfAFileSystemThatHangs(t *testing.T) {
	v, err := open(Options{Name: "volume1", Path: t.TempDir(), UID: -1, GID: -1})
	require.NoError(t, err)
	hung, asked := make(chan struct{}), make(chan struct{}, 10)
	v.(*vol).ask = func() (volume.Space, error) {
		asked <- struct{}{}
		<-hung
		return volume.Space{CapacityBytes: 5}, nil
	}
	for range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := v.Space(ctx)
		require.True(t, fault.Is(err, fault.Unavailable), "%v", err)
	}
	close(hung)
	s, err := v.Space(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 5, s.CapacityBytes)
	require.LessOrEqual(t, len(asked), 2)
	require.NoError(t, v.Close())
}

// What the proxy did not write is counted again after a while, behind the callers.
func TestCountsWhatSessionsWrite(t *testing.T) {
	now := time.Now()
	v, err := open(Options{Name: "volume1", Path: t.TempDir(), UID: -1, GID: -1, Now: func() time.Time { return now }})
	require.NoError(t, err)
	defer v.Close()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: "6a3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b11"},
		Folder: "7b3a0c1e-0d35-4f0b-9d4e-6f3d8f3c7b12"}
	require.NoError(t, v.SetScope(t.Context(), ref.Scope, 1000))
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	require.NoError(t, v.Charge(t.Context(), ref.Scope, 900))
	base, err := v.Scope(t.Context(), ref.Scope)
	require.NoError(t, err)
	require.True(t, base.Complete)

	direct, err := v.(*vol).root.dir(ref.Dir(), noLinks)
	require.NoError(t, err)
	defer direct.Close()
	require.NoError(t, direct.put("by-a-session", make([]byte, 500), owner{-1, -1}))
	require.NoError(t, v.Charge(t.Context(), ref.Scope, 900), "nobody counted yet")
	now = now.Add(2 * countEvery)
	require.Eventually(t, func() bool {
		u, err := v.Scope(t.Context(), ref.Scope)
		require.NoError(t, err)
		return u.UsedBytes == base.UsedBytes+500
	}, 30*time.Second, time.Millisecond)
	require.True(t, fault.Is(v.Charge(t.Context(), ref.Scope, 900), fault.Exhausted))
}
