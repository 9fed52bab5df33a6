package conformance

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
)

// quota: the numbers leave room for what file systems allocate besides the bytes of a file.
func quota(t *testing.T, v volume.Volume) {
	const mib = 1 << 20
	ref, tr := folder(t, v)
	require.NoError(t, v.SetScope(t.Context(), ref.Scope, 16*mib))
	data := noise(32 * mib)
	require.NoError(t, tr.WriteFile(t.Context(), "first", bytes.NewReader(data[:6*mib]), 0o644))
	eventually(t, "usage", func() bool {
		u, err := v.Scope(t.Context(), ref.Scope)
		require.NoError(t, err)
		return u.Complete && u.UsedBytes >= 6*mib && u.UsedBytes < 7*mib
	})
	require.NoError(t, v.Charge(t.Context(), ref.Scope, 8*mib))
	is(t, fault.Exhausted, v.Charge(t.Context(), ref.Scope, 12*mib))

	s := stage(t, v, ref, "u", true)
	lock(t, s)
	n, err := s.Append(t.Context(), 0, bytes.NewReader(data), int64(len(data)))
	is(t, fault.Exhausted, err, "an upload stops at the quota")
	require.NotEmpty(t, fault.NextOf(err), "with words")
	require.LessOrEqual(t, n, int64(10*mib))
	require.GreaterOrEqual(t, n, int64(8*mib))
	size, err := s.Size()
	require.NoError(t, err)
	require.Equal(t, n, size, "what was written is what it says")
	is(t, fault.Exhausted, tr.WriteFile(t.Context(), "second", bytes.NewReader(data[:3*mib]), 0o644), "uploads count")
	_, err = tr.Stat("second")
	is(t, fault.NotFound, err, "nothing half")

	require.NoError(t, s.Discard())
	eventually(t, "room after a discard", func() bool {
		return tr.WriteFile(t.Context(), "second", bytes.NewReader(data[:3*mib]), 0o644) == nil
	})
	require.NoError(t, tr.Mkdir("d", false, false))
	require.NoError(t, tr.Rename("first", "d/first"))
	require.NoError(t, tr.Remove("d", true))
	is(t, fault.Exhausted, v.Charge(t.Context(), ref.Scope, 10*mib), "trash counts")
	reapAll(t, v)
	eventually(t, "room after reaping", func() bool { return v.Charge(t.Context(), ref.Scope, 10*mib) == nil })

	// Another scope is not concerned, and a lifted limit is lifted.
	_, other := folder(t, v)
	require.NoError(t, other.WriteFile(t.Context(), "f", bytes.NewReader(data[:18*mib]), 0o644))
	require.NoError(t, v.SetScope(t.Context(), ref.Scope, volume.NoLimit))
	require.NoError(t, tr.WriteFile(t.Context(), "third", bytes.NewReader(data[:20*mib]), 0o644))

	// A limit below what is used stops writing and loses nothing.
	require.NoError(t, v.SetScope(t.Context(), ref.Scope, 4*mib))
	is(t, fault.Exhausted, tr.WriteFile(t.Context(), "fourth", bytes.NewReader(data[:mib]), 0o644))
	require.Equal(t, string(data[:20*mib]), read(t, tr, "third"))

	// A clone keeps the limit of the scope it goes to.
	dst := newRef(newScope())
	require.NoError(t, v.SetScope(t.Context(), dst.Scope, 8*mib))
	is(t, fault.Exhausted, v.CloneFolder(t.Context(), ref, dst, nil))
	_, err = v.OpenFolder(t.Context(), dst)
	is(t, fault.NotFound, err, "nothing half")
}

func usage(t *testing.T, v volume.Volume) {
	ref, tr := folder(t, v)
	u, err := v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, u.Complete)
	require.Zero(t, u.Files)
	require.Zero(t, u.Bytes)
	for i := range 50 {
		write(t, tr, fmt.Sprintf("d%d/f%d", i%5, i), strings.Repeat("x", 100))
	}
	u, err = v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, u.Complete)
	require.EqualValues(t, 50, u.Files)
	require.EqualValues(t, 5000, u.Bytes)
	require.False(t, u.At.IsZero())
	u, err = v.Usage(ended(t), ref)
	require.NoError(t, err, "an expired deadline is a lower bound")
	require.LessOrEqual(t, u.Files, int64(50))
	require.LessOrEqual(t, u.Bytes, int64(5000))
	require.GreaterOrEqual(t, u.Bytes, int64(0))
	if u.Complete {
		require.EqualValues(t, 5000, u.Bytes)
	}
	u, err = v.Usage(t.Context(), ref)
	require.NoError(t, err)
	require.True(t, u.Complete)
	require.EqualValues(t, 5000, u.Bytes)
}

// grow fills a folder and returns what is in it.
func grow(t *testing.T, tr volume.Tree) map[string]string {
	t.Helper()
	want := map[string]string{"empty": "", "deep/a/b/c": "deep"}
	for i := range 60 {
		want[fmt.Sprintf("dir%d/file%02d", i%4, i)] = string(noise(i * 1000))
	}
	want["big"] = string(noise(2<<20 + 1))
	for p, text := range want {
		write(t, tr, p, text)
	}
	require.NoError(t, tr.Mkdir("void/dir", true, false))
	return want
}

func contents(t *testing.T, tr volume.Tree) map[string]string {
	t.Helper()
	got := map[string]string{}
	require.NoError(t, tr.Walk(t.Context(), ".", func(p string, e volume.Entry) error {
		if e.Kind == volume.KindFile {
			got[p] = read(t, tr, p)
		}
		return nil
	}))
	return got
}

func sameFiles(t *testing.T, want, got map[string]string) {
	t.Helper()
	require.Len(t, got, len(want))
	for p := range want {
		require.True(t, want[p] == got[p], p)
	}
}

func clone(t *testing.T, v volume.Volume) {
	src, tr := folder(t, v)
	want := grow(t, tr)
	dst := newRef(newScope())
	var last volume.Progress
	require.NoError(t, v.CloneFolder(t.Context(), src, dst, func(p volume.Progress) {
		require.GreaterOrEqual(t, p.Current, last.Current)
		last = p
	}))
	require.Positive(t, last.Total)
	require.Equal(t, last.Total, last.Current)
	copied := tree(t, v, dst)
	sameFiles(t, want, contents(t, copied))
	_, err := copied.Stat("void/dir")
	require.NoError(t, err)

	// Asked again, because the answer was lost: nothing changes, whatever happened to the copy meanwhile.
	write(t, copied, "mine", "1")
	require.NoError(t, copied.Remove("big", false))
	require.NoError(t, v.CloneFolder(t.Context(), src, dst, nil))
	_, err = copied.Stat("big")
	is(t, fault.NotFound, err)
	write(t, copied, "empty", "changed")
	require.Equal(t, "", read(t, tr, "empty"), "the source is untouched")

	is(t, fault.NotFound, v.CloneFolder(t.Context(), newRef(newScope()), newRef(newScope()), nil))
	is(t, fault.Invalid, v.CloneFolder(t.Context(), src, src, nil))
	taken, takenTree := folder(t, v)
	write(t, takenTree, "f", "1")
	is(t, fault.Conflict, v.CloneFolder(t.Context(), src, taken, nil), "files of another folder are not mixed")
	void := newRef(src.Scope)
	require.NoError(t, v.CreateFolder(t.Context(), void, 0o755))
	require.NoError(t, v.CloneFolder(t.Context(), src, void, nil), "an empty folder is filled")
	sameFiles(t, want, contents(t, tree(t, v, void)))

	require.NoError(t, v.TrashFolder(t.Context(), dst))
	require.NoError(t, v.CloneFolder(t.Context(), src, dst, nil), "a deleted clone can be made again")
	sameFiles(t, want, contents(t, tree(t, v, dst)))
}

// cloneGoesOn stops a clone again and again until it is through.
func cloneGoesOn(t *testing.T, v volume.Volume) {
	src, tr := folder(t, v)
	want := grow(t, tr)
	dst := newRef(newScope())
	rounds := 0
	for ; ; rounds++ {
		require.Less(t, rounds, 500)
		// Where a single write takes a second the last rounds have several.
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration((rounds+1)*max(rounds/10, 1))*500*time.Microsecond)
		err := v.CloneFolder(ctx, src, dst, nil)
		cancel()
		if err == nil {
			break
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		_, err = v.OpenFolder(t.Context(), dst)
		is(t, fault.NotFound, err, "nothing half is seen")
	}
	sameFiles(t, want, contents(t, tree(t, v, dst)))
	t.Logf("stopped %d times", rounds)

	// Deleting the folder of a clone that was given up leaves nothing behind.
	gone := newRef(dst.Scope)
	ctx, cancel := context.WithCancel(t.Context())
	err := v.CloneFolder(ctx, src, gone, func(volume.Progress) { cancel() })
	cancel()
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	require.NoError(t, v.TrashFolder(t.Context(), gone))
	_, err = v.OpenFolder(t.Context(), gone)
	is(t, fault.NotFound, err)
}

func reapAll(t *testing.T, v volume.Volume) (removed int) {
	t.Helper()
	for {
		n, err := v.Reap(t.Context(), 1000)
		require.NoError(t, err)
		if n == 0 {
			return removed
		}
		removed += n
	}
}

func reap(t *testing.T, v volume.Volume) {
	n, err := v.Reap(t.Context(), 10)
	require.NoError(t, err)
	require.Zero(t, n)
	ref, tr := folder(t, v)
	keep := newRef(ref.Scope)
	require.NoError(t, v.CreateFolder(t.Context(), keep, 0o755))
	write(t, tree(t, v, keep), "kept", "1")
	for i := range 30 {
		write(t, tr, fmt.Sprintf("d%d/e/f%d", i%3, i), "x")
	}
	write(t, tr, "file", "x")
	require.NoError(t, tr.Remove("d0", true))
	require.NoError(t, v.TrashFolder(t.Context(), ref))
	second, tr2 := folder(t, v)
	write(t, tr2, "f", "x")
	require.NoError(t, v.TrashFolder(t.Context(), second))
	require.NoError(t, v.DeleteScope(t.Context(), second.Scope))

	total := 0
	for rounds := 0; ; rounds++ {
		require.Less(t, rounds, 1000)
		n, err := v.Reap(t.Context(), 7)
		require.NoError(t, err)
		require.LessOrEqual(t, n, 7, "in limits")
		if n == 0 {
			break
		}
		total += n
	}
	// 31 files, 6 directories below the folder and the folder at least; then another folder with a file.
	require.GreaterOrEqual(t, total, 31+6+1+2)
	n, err = v.Reap(t.Context(), 7)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Equal(t, "1", read(t, tree(t, v, keep), "kept"))

	stop, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, v.TrashFolder(t.Context(), keep))
	_, err = v.Reap(stop, 1000)
	if err != nil {
		require.ErrorIs(t, err, context.Canceled)
	}
	reapAll(t, v)
	require.NoError(t, v.DeleteScope(t.Context(), ref.Scope))
}
