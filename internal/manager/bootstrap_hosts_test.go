package manager_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager"
	"berth.dev/berth/internal/manager/folder"
	"berth.dev/berth/internal/manager/store/storetest"
)

// The first domain may use the first volume; what administrators change stays, also in clusters from before folders.
func TestBootstrapAllowsTheFirstHostOnce(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	d, ctx := deps(t, s), t.Context()
	hosts := func() map[string]any {
		domain, err := s.GetDomain(ctx, "default")
		require.NoError(t, err)
		return domain.AllowedVfolderHosts
	}
	boot := func() {
		_, _, err := manager.Bootstrap(ctx, d)
		require.NoError(t, err)
	}
	boot()
	require.Len(t, hosts()[folder.FirstHost], len(folder.AllPermissions()))

	_, err := s.Pool().Exec(ctx, `UPDATE domains SET allowed_vfolder_hosts = '{}'`)
	require.NoError(t, err)
	boot()
	require.Empty(t, hosts(), "an administrator took it away")

	_, err = s.Pool().Exec(ctx, `DELETE FROM cluster_settings WHERE key = $1`, folder.SettingDefaultHost)
	require.NoError(t, err)
	boot()
	require.Len(t, hosts(), 1, "a cluster from before folders")

	_, err = s.Pool().Exec(ctx, `DELETE FROM cluster_settings WHERE key = $1`, folder.SettingDefaultHost)
	require.NoError(t, err)
	_, err = s.Pool().Exec(ctx, `UPDATE domains SET allowed_vfolder_hosts = '{"other:v": []}'`)
	require.NoError(t, err)
	boot()
	require.NotContains(t, hosts(), folder.FirstHost)
}
