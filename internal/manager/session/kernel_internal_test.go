package session

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

func TestKernelOf(t *testing.T) {
	t.Parallel()
	kernels := []Kernel{{ID: "k0", ClusterHostname: "main1"}, {ID: "k1", ClusterHostname: "sub1"}}
	for name, id := range map[string]string{"": "k0", "main1": "k0", "sub1": "k1", "k1": "k1"} {
		k, err := kernelOf(kernels, name, "trio")
		require.NoError(t, err)
		require.EqualValues(t, id, k.ID, name)
	}
	_, err := kernelOf(kernels, "sub9", "trio")
	require.True(t, fault.Is(err, fault.NotFound))
	require.Equal(t, "name one of main1, sub1", fault.NextOf(err))
}
