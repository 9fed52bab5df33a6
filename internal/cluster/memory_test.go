package cluster_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

func TestOutOfMemoryWords(t *testing.T) {
	t.Parallel()
	for limit, want := range map[int64]string{
		512 << 20: "killed: out of memory at 512 MiB; try -r mem=1g",
		2 << 30:   "killed: out of memory at 2 GiB; try -r mem=4g",
		300 << 20: "killed: out of memory at 300 MiB; try -r mem=600m",
		0:         "killed: out of memory; try more with -r mem=",
	} {
		require.Equal(t, want, cluster.OutOfMemoryWords(limit))
	}
}
