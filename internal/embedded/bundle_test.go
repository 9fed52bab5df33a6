//go:build pgbundle

package embedded_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/embedded"
)

// TestBundleServes runs the bundled server as if the machine had none.
func TestBundleServes(t *testing.T) {
	dir := stateDir(t)
	bin, err := embedded.UnpackBundle(dir)
	require.NoError(t, err)
	again, err := embedded.UnpackBundle(dir)
	require.NoError(t, err)
	require.Equal(t, bin, again)
	pg := embedded.NewPostgres(embedded.PostgresConfig{StateDir: dir, BinDir: bin, UnsafeNoSync: true}, logger(t))
	g, err := chassis.NewGroup(logger(t), pg.Service())
	require.NoError(t, err)
	require.NoError(t, g.Start(t.Context()))
	require.True(t, strings.HasPrefix(pg.Version(), "18."), pg.Version())
	require.NoError(t, g.Stop(t.Context()))
}
