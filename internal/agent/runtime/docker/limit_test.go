package docker

import (
	"testing"
	"testing/fstest"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
)

const procLimits = `Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 20000                files
Max locked memory         8388608              8388608              bytes
Max file locks            unlimited            unlimited            locks
`

func engineProc(caps string) fstest.MapFS {
	return fstest.MapFS{
		"42/limits":      {Data: []byte(procLimits)},
		"42/status":      {Data: []byte("Name:\tdockerd\nCapEff:\t" + caps + "\n")},
		"sys/fs/nr_open": {Data: []byte("1048576\n")},
	}
}

func TestEngineLimits(t *testing.T) {
	t.Parallel()
	weak := engineLimits(engineProc("000001fffeffffff"), 42)
	for _, c := range []struct{ want, got runtime.Ulimit }{
		{runtime.Ulimit{Name: "nofile", Soft: 1024, Hard: 4096}, runtime.Ulimit{Name: "nofile", Soft: 1024, Hard: 4096}},
		{runtime.Ulimit{Name: "nofile", Soft: 1048576, Hard: 1048576}, runtime.Ulimit{Name: "nofile", Soft: 20000, Hard: 20000}},
		{runtime.Ulimit{Name: "nofile", Soft: 100, Hard: -1}, runtime.Ulimit{Name: "nofile", Soft: 100, Hard: 20000}},
		{runtime.Ulimit{Name: "memlock", Soft: -1, Hard: -1}, runtime.Ulimit{Name: "memlock", Soft: 8388608, Hard: 8388608}},
		{runtime.Ulimit{Name: "cpu", Soft: -1, Hard: -1}, runtime.Ulimit{Name: "cpu", Soft: -1, Hard: -1}},
		{runtime.Ulimit{Name: "unheard", Soft: 5, Hard: 5}, runtime.Ulimit{Name: "unheard", Soft: 5, Hard: 5}},
	} {
		require.Equal(t, c.got, lower(c.want, weak))
	}
	strong := engineLimits(engineProc("000001ffffffffff"), 42)
	memlock := runtime.Ulimit{Name: "memlock", Soft: -1, Hard: -1}
	require.Equal(t, memlock, lower(memlock, strong), "an engine that may raise limits is not bound by its own")
	require.Equal(t, runtime.Ulimit{Name: "nofile", Soft: 1048576, Hard: 1048576}, lower(runtime.Ulimit{Name: "nofile", Soft: -1, Hard: -1},
		strong))
	unknown := engineLimits(fstest.MapFS{}, 42)
	require.Equal(t, memlock, lower(memlock, unknown))
}

func TestCPUSets(t *testing.T) {
	t.Parallel()
	numa := readNUMA(fstest.MapFS{
		"node0/cpulist": {Data: []byte("0-2,6\n")}, "node1/cpulist": {Data: []byte("3-5\n")}, "nodes": {Data: []byte("x")},
	})
	for _, c := range []struct {
		cores      []int
		cpus, mems string
	}{
		{nil, "", ""},
		{[]int{6, 0}, "0,6", "0"},
		{[]int{5, 3}, "3,5", "1"},
		{[]int{2, 3}, "2,3", ""},
		{[]int{9}, "9", ""},
	} {
		cpus, mems := cpusets(c.cores, numa)
		require.Equal(t, c.cpus, cpus)
		require.Equal(t, c.mems, mems, "%v", c.cores)
	}
	_, mems := cpusets([]int{0}, nil)
	require.Empty(t, mems)
}

func TestPullProgress(t *testing.T) {
	t.Parallel()
	layers := map[string]jsonstream.Progress{}
	step := func(id, status string, current, total int64) runtime.PullProgress {
		m := jsonstream.Message{ID: id, Status: status}
		if total > 0 {
			m.Progress = &jsonstream.Progress{Current: current, Total: total}
		}
		return addProgress(layers, m)
	}
	require.Equal(t, runtime.PullProgress{Message: "1 Pulling from box"}, step("1", "Pulling from box", 0, 0))
	require.Equal(t, runtime.PullProgress{Current: 5, Total: 10, Message: "a Downloading"}, step("a", "Downloading", 5, 10))
	require.Equal(t, runtime.PullProgress{Current: 8, Total: 40, Message: "b Downloading"}, step("b", "Downloading", 3, 30))
	require.Equal(t, runtime.PullProgress{Current: 13, Total: 40, Message: "a Download complete"}, step("a", "Download complete", 0, 0))
	require.Equal(t, runtime.PullProgress{Current: 13, Total: 40, Message: "a Extracting"}, step("a", "Extracting", 1, 10))
	require.Equal(t, runtime.PullProgress{Current: 40, Total: 40, Message: "b Pull complete"}, step("b", "Pull complete", 0, 0))
}
