package posix_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/storage/volume"
	"berth.dev/berth/internal/storage/volume/conformance"
	"berth.dev/berth/internal/storage/volume/posix"
)

func open(t *testing.T, path string) volume.Volume {
	t.Helper()
	v, err := posix.Open(posix.Options{Name: "volume1", Path: path, UID: 9001, GID: 9001})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestConformance(t *testing.T) {
	conformance.Run(t, func(t *testing.T) volume.Volume { return open(t, t.TempDir()) })
}

func TestConformanceOnDisk(t *testing.T) {
	conformance.RunOnDisk(t, func(t *testing.T) string { return t.TempDir() }, open)
}
