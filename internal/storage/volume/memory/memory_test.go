package memory_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/conformance"
	"berth.dev/berth/internal/storage/volume/memory"
	"berth.dev/berth/internal/testkit/await"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	conformance.Run(t, func(t *testing.T) volume.Volume {
		v := memory.New(memory.Options{Name: "m"})
		t.Cleanup(func() { v.Close() })
		return v
	})
}

func folder(t *testing.T, v *memory.Volume) (cluster.FolderRef, volume.Tree) {
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.UserScope, ID: uuid.NewString()},
		Folder: cluster.FolderID(uuid.NewString())}
	require.NoError(t, v.CreateFolder(t.Context(), ref, 0o755))
	tree, err := v.OpenFolder(t.Context(), ref)
	require.NoError(t, err)
	return ref, tree
}

func TestReplicasShareFilesAndNotLocks(t *testing.T) {
	t.Parallel()
	a := memory.New(memory.Options{Name: "m"})
	b := a.Replica()
	ref, _ := folder(t, a)
	on := func(v *memory.Volume) volume.Staged {
		s, err := v.Stage(t.Context(), ref, "u", true)
		require.NoError(t, err)
		return s
	}
	first, second := on(a), on(b)
	_, err := first.Lock(t.Context())
	require.NoError(t, err)
	_, err = first.Append(t.Context(), 0, strings.NewReader("durable"), 7)
	require.NoError(t, err)
	require.NoError(t, first.Sync())
	_, err = first.Append(t.Context(), 7, strings.NewReader(" lost"), 5)
	require.NoError(t, err)
	_, ok, err := a.Tasks().Claim("t")
	require.NoError(t, err)
	require.True(t, ok)
	_, ok, err = b.Tasks().Claim("t")
	require.NoError(t, err)
	require.False(t, ok)

	got := make(chan error, 1)
	go func() {
		_, err := second.Lock(context.Background())
		got <- err
	}()
	a.Crash(true)
	require.NoError(t, await.Value(t, got), "the lock ends with its holder")
	size, err := second.Size()
	require.NoError(t, err)
	require.EqualValues(t, 7, size, "what was not synced is gone")
	_, ok, err = b.Tasks().Claim("t")
	require.NoError(t, err)
	require.True(t, ok)
	_, err = first.Size()
	require.True(t, fault.Is(err, fault.Unavailable), err)
	require.NoError(t, second.Commit("f"))
}

func TestFaultsOnDemand(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "m", CapacityBytes: 1000})
	_, tree := folder(t, v)
	ctx, cancel := context.WithCancel(t.Context())
	resume := v.Hang()
	got := make(chan error, 1)
	go func() {
		_, err := v.Space(ctx)
		got <- err
	}()
	cancel()
	require.True(t, fault.Is(await.Value(t, got), fault.Unavailable))
	go func() {
		_, err := tree.Stat(".")
		got <- err
	}()
	resume()
	resume()
	require.NoError(t, await.Value(t, got))

	v.Break(fault.Unavailablef("away"))
	_, err := v.Space(t.Context())
	require.True(t, fault.Is(err, fault.Unavailable))
	_, err = v.Replica().Space(t.Context())
	require.NoError(t, err, "a fault is of one proxy")
	v.Break(nil)

	v.FullAfter(10)
	err = tree.WriteFile(t.Context(), "f", strings.NewReader(strings.Repeat("x", 11)), 0o644)
	require.True(t, fault.Is(err, fault.Exhausted), err)
	v.FullAfter(-1)
	require.NoError(t, tree.WriteFile(t.Context(), "f", strings.NewReader(strings.Repeat("x", 1000)), 0o644))
	s, err := v.Space(t.Context())
	require.NoError(t, err)
	require.Equal(t, volume.Space{CapacityBytes: 1000, UsedBytes: 1000}, s)

	mine := errors.New("mine")
	w := memory.New(memory.Options{Name: "w", Before: func(_ context.Context, op, _ string) error {
		if op == "reap" {
			return mine
		}
		return nil
	}})
	_, err = w.Reap(t.Context(), 1)
	require.ErrorIs(t, err, mine)
}

func TestLinksStayInside(t *testing.T) {
	t.Parallel()
	v := memory.New(memory.Options{Name: "m"})
	ref, tree := folder(t, v)
	require.NoError(t, tree.WriteFile(t.Context(), "d/f", strings.NewReader("x"), 0o644))
	for link, target := range map[string]string{"in": "d/../d", "d/up": "../d/f", "out": "../x", "abs": "/etc/passwd", "loop": "loop",
		"void": "nothing"} {
		require.NoError(t, v.Symlink(ref, link, target))
	}
	require.NoError(t, v.Special(ref, "pipe"))
	for p, want := range map[string]bool{"in/f": true, "d/up": true, "in/up": true, "out": false, "abs": false, "loop": false, "pipe": false,
		"in": false} {
		_, err := tree.Open(p)
		require.Equal(t, want, err == nil, "%s: %v", p, err)
	}
	require.NoError(t, tree.WriteFile(t.Context(), "in/new", strings.NewReader("x"), 0o644))
	_, err := tree.Stat("d/new")
	require.NoError(t, err)
	for _, p := range []string{"void/x", "out/x", "abs", "pipe"} {
		require.Error(t, tree.WriteFile(t.Context(), p, strings.NewReader("x"), 0o644), p)
	}
	s, err := v.Stage(t.Context(), ref, "u", true)
	require.NoError(t, err)
	require.True(t, fault.Is(s.Commit("in/y"), fault.Invalid), "a write of an upload follows no link")
	e, err := tree.Stat("in")
	require.NoError(t, err)
	require.Equal(t, volume.KindSymlink, e.Kind)
	require.Equal(t, "d/../d", e.Target)
}
