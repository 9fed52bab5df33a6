package hoststats_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime/hoststats"
)

func TestLayers(t *testing.T) {
	t.Parallel()
	layer := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(layer, "a", "b"), 0o755))
	big := filepath.Join(layer, "a", "b", "big")
	require.NoError(t, os.WriteFile(big, make([]byte, 1<<20), 0o644))
	require.NoError(t, os.Link(big, filepath.Join(layer, "again")))
	require.NoError(t, os.Symlink("/", filepath.Join(layer, "root")))
	sparse := filepath.Join(layer, "sparse")
	require.NoError(t, os.WriteFile(sparse, nil, 0o644))
	require.NoError(t, os.Truncate(sparse, 1<<40))

	pid := os.Getpid()
	proc := "proc/" + strconv.Itoa(pid)
	procs := "sys/fs/cgroup/pids/docker/" + id
	root := host(t, map[string]string{
		proc + "/cgroup": "4:pids:/docker/" + id + "\n",
		proc + "/mountinfo": "1 2 0:5 / / rw,relatime - overlay overlay rw,lowerdir=/l,upperdir=" + layer + ",workdir=/w\n" +
			"2 1 0:6 / /proc rw - proc proc rw\n",
		proc + "/io":                           "rchar: 9\nwrite_bytes: 5000\ncancelled_write_bytes: 1000\n",
		"proc/4194300/io":                      "write_bytes: 70\ncancelled_write_bytes: 0\n",
		"proc/self/mountinfo":                  "30 1 0:9 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n",
		procs + "/cgroup.procs":                strconv.Itoa(pid) + "\n",
		procs + "/session/cgroup.procs":        "4194300\n4194301\n",
		procs + "/session/deeper/cgroup.procs": "",
	})
	r := hoststats.New(root)
	use, err := r.Layer(t.Context(), id, pid, 1000)
	require.NoError(t, err)
	require.Equal(t, layer, use.Dir)
	require.True(t, use.Complete)
	require.InDelta(t, 1<<20, use.Bytes, 64<<10, "links and holes count nothing")
	require.EqualValues(t, 4070, use.Written, "of all processes, also in groups below")

	use, err = r.Layer(t.Context(), id, pid, 2)
	require.NoError(t, err)
	require.False(t, use.Complete)
	_, err = r.Layer(t.Context(), id, 4194300, 2)
	require.Error(t, err)
}
