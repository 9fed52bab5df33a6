package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"berth.dev/berth/internal/cluster"
	"berth.dev/berth/internal/fault"
)

const (
	scopeUUID  = "0123abcd-4567-89ef-0123-456789abcdef"
	folderUUID = "fedcba98-7654-3210-fedc-ba9876543210"
)

// uuids draws canonical UUIDs.
var uuids = rapid.StringMatching(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)

// The layout on disk is shared with storage proxies and agents of other versions: it must not change.
func TestDirectoriesOfFolders(t *testing.T) {
	t.Parallel()
	ref := cluster.FolderRef{Scope: cluster.QuotaScope{Kind: cluster.ProjectScope, ID: scopeUUID}, Folder: folderUUID}
	require.Equal(t, "fedcba9876543210fedcba9876543210", ref.Folder.Hex())
	require.Equal(t, "0123abcd456789ef0123456789abcdef", ref.Scope.Dir())
	require.Equal(t, "0123abcd456789ef0123456789abcdef/fe/dc/ba9876543210fedcba9876543210", ref.Dir())
	require.Equal(t, "project:"+scopeUUID, ref.Scope.String())
	require.Equal(t, "project:"+scopeUUID+"/"+folderUUID, ref.String())
}

func TestFolderRefsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := cluster.FolderRef{
			Scope: cluster.QuotaScope{
				Kind: rapid.SampledFrom([]cluster.ScopeKind{cluster.UserScope, cluster.ProjectScope}).Draw(t, "kind"), ID: uuids.Draw(t, "scope"),
			},
			Folder: cluster.FolderID(uuids.Draw(t, "folder")),
		}
		got, err := cluster.ParseFolderRef(want.String())
		require.NoError(t, err)
		require.Equal(t, want, got)
		undashed := fmt.Sprintf("%s:%s/%s", want.Scope.Kind, want.Scope.Dir(), strings.ToUpper(want.Folder.Hex()))
		got, err = cluster.ParseFolderRef(undashed)
		require.NoError(t, err, "the wire writes ids without dashes too")
		require.Equal(t, want, got)
		mounted, err := cluster.FolderMount{Scope: want.Scope.String(), Folder: want.Folder}.Ref()
		require.NoError(t, err)
		require.Equal(t, want, mounted)
	})
}

func TestFolderRefsThatAreNone(t *testing.T) {
	t.Parallel()
	refused := func(err error, text string) {
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
		require.NotEmpty(t, fault.NextOf(err), text)
	}
	for _, scope := range []string{
		"", "user", "user:", ":" + scopeUUID, "group:" + scopeUUID, "user:me", scopeUUID, "user:" + scopeUUID + "0",
	} {
		got, err := cluster.ParseQuotaScope(scope)
		refused(err, scope)
		require.Zero(t, got)
		ref, err := cluster.ParseFolderRef(scope + "/" + folderUUID)
		refused(err, scope)
		require.Zero(t, ref)
		_, err = cluster.FolderMount{Scope: scope, Folder: folderUUID}.Ref()
		require.Error(t, err, scope)
	}
	for _, folder := range []string{"", "/", "/data", "/..", folderUUID, "/" + folderUUID + "/"} {
		ref, err := cluster.ParseFolderRef("user:" + scopeUUID + folder)
		refused(err, folder)
		require.Zero(t, ref)
	}
}

func TestVolumeHosts(t *testing.T) {
	t.Parallel()
	got, err := cluster.ParseVolumeHost("local:volume1")
	require.NoError(t, err)
	require.Equal(t, cluster.VolumeHost{Proxy: "local", Volume: "volume1"}, got)
	require.Equal(t, "local:volume1", got.String())
	for _, text := range []string{"", ":", "local", "local:", ":volume1", "local:a/b", "../x:v", "local:a b", "local:a\n", "local:a\x00"} {
		got, err := cluster.ParseVolumeHost(text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
		require.NotEmpty(t, fault.NextOf(err), text)
		require.Zero(t, got)
	}
}

func TestMountPermissions(t *testing.T) {
	t.Parallel()
	for p, want := range map[cluster.MountPermission]struct{ valid, writes bool }{
		cluster.ReadOnly: {true, false}, cluster.ReadWrite: {true, true}, cluster.ReadWriteDelete: {true, true}, "": {}, "RW": {}, "own": {},
	} {
		require.Equal(t, want.valid, p.Valid(), p)
		require.Equal(t, want.writes, p.CanWrite(), p)
	}
}

// What a user may do with a folder in each status of its life.
func TestFolderStatuses(t *testing.T) {
	t.Parallel()
	for status, want := range map[cluster.FolderStatus]struct{ readable, updatable, mountable, deleting, dead bool }{
		cluster.FolderPerforming:     {readable: true},
		cluster.FolderCloning:        {readable: true},
		cluster.FolderReady:          {readable: true, updatable: true, mountable: true},
		cluster.FolderMounted:        {readable: true, updatable: true, mountable: true},
		cluster.FolderError:          {readable: true},
		cluster.FolderDeletePending:  {readable: true, deleting: true},
		cluster.FolderDeleteOngoing:  {deleting: true, dead: true},
		cluster.FolderDeleteComplete: {deleting: true, dead: true},
		cluster.FolderDeleteError:    {deleting: true, dead: true},
		"unknown":                    {},
	} {
		require.Equal(t, want.readable, status.Readable(), status)
		require.Equal(t, want.updatable, status.Updatable(), status)
		require.Equal(t, want.mountable, status.Mountable(), status)
		require.Equal(t, want.deleting, status.Deleting(), status)
		require.Equal(t, want.dead, status.Dead(), status)
	}
	require.ElementsMatch(t, []string{"ready", "mounted", "error"}, cluster.FolderSources(cluster.FolderDeletePending))
	require.Empty(t, cluster.FolderSources(cluster.FolderMounted))
	require.False(t, cluster.FolderMayMove(cluster.FolderDeleteComplete, cluster.FolderReady))
	require.False(t, cluster.FolderMayMove(cluster.FolderCloning, cluster.FolderDeleteComplete))
}
