package node

import (
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/manager/store/dbgen"
)

// TestNobodyElseSaysWhatASessionIs: programs trust what their environment says of their session, so a request does not change that.
func TestNobodyElseSaysWhatASessionIs(t *testing.T) {
	t.Parallel()
	row := dbgen.KernelSpecsRow{ID: "k", SessionID: "s", SessionName: "trio", ClusterSize: 3, Replicas: "main:1,sub:2", ClusterRole: "sub",
		ClusterIdx: 2, LocalRank: 2,
		ClusterHostname: "sub2", Environ: map[string]string{"MINE": "1", "OMPI_MCA_btl_tcp_if_include": "eth9"}}
	own := clusterEnv(row)
	for name := range own {
		row.Environ[name] = "forged"
	}
	env := kernelSpec(row).Env
	for name, v := range own {
		require.Equal(t, v, env[name], name)
	}
	for name, v := range map[string]string{"BACKENDAI_CLUSTER_SIZE": "3", "BACKENDAI_CLUSTER_HOSTS": "main1,sub1,sub2",
		"BACKENDAI_CLUSTER_HOST": "sub2", "BACKENDAI_CLUSTER_REPLICAS": "main:1,sub:2", "BACKENDAI_CLUSTER_ROLE": "sub",
		"BACKENDAI_CLUSTER_IDX": "2", "BACKENDAI_CLUSTER_LOCAL_RANK": "2", "BACKENDAI_KERNEL_ID": "k", "BACKENDAI_SESSION_ID": "s", "MINE": "1"} {
		require.Equal(t, v, env[name], name)
	}
}
