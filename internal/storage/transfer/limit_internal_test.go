package transfer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

// However many folders somebody has, and however long a volume hangs, others find places.
func TestNobodyTakesAllPlaces(t *testing.T) {
	s := New(Options{MaxTransfers: 8, MaxPerFolder: 3, VolumeNames: func() []string { return []string{"a", "b"} }})
	scope := func(n string) cluster.QuotaScope {
		return cluster.QuotaScope{Kind: cluster.UserScope, ID: "11111111-2222-3333-4444-55555555555" + n}
	}
	folder := func(scope cluster.QuotaScope, n string) cluster.FolderRef {
		return cluster.FolderRef{Scope: scope, Folder: cluster.FolderID("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeee" + n)}
	}
	enter := func(volume string, f cluster.FolderRef) (func(), error) {
		return s.limit.enter(context.Background(), time.Millisecond, s.shares(grant{volume: volume, folder: f}, 8)...)
	}
	taken := func(want int, volume string, f func(i int) cluster.FolderRef) (leave func()) {
		t.Helper()
		for i := range want {
			out, err := enter(volume, f(i))
			require.NoError(t, err, i)
			leave = out
		}
		_, err := enter(volume, f(want))
		require.True(t, fault.Is(err, fault.Unavailable), err)
		return leave
	}
	leave := taken(4, "a", func(i int) cluster.FolderRef { return folder(scope("1"), string(rune('0'+i))) })
	leave()
	taken(1, "a", func(i int) cluster.FolderRef { return folder(scope("1"), string(rune('0'+i))) })
	taken(2, "a", func(int) cluster.FolderRef { return folder(scope("2"), "1") })
	taken(2, "b", func(i int) cluster.FolderRef { return folder(scope("3"), string(rune('0'+i))) })
}
