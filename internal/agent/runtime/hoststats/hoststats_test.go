package hoststats_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime/hoststats"
	"berth.dev/berth/internal/fault"
)

const id = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789abcdef"

// host writes the files of a host below a directory and returns it.
func host(t *testing.T, files map[string]string) string {
	root := t.TempDir()
	for name, text := range files {
		p := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(p), 0o755))
		require.NoError(t, os.WriteFile(p, []byte(text), 0o644))
	}
	return root
}

const netDev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:  999999      10    0    0    0     0          0         0   999999      10    0    0    0     0       0          0
  eth0:    1500      12    0    0    0     0          0         0      700       8    0    0    0     0       0          0
  eth1:     500       2    0    0    0     0          0         0      300       1    0    0    0     0       0          0
`

func is(t *testing.T, want int64, got *int64) {
	t.Helper()
	require.NotNil(t, got)
	require.Equal(t, want, *got)
}

func TestVersion1(t *testing.T) {
	t.Parallel()
	r := hoststats.New(host(t, map[string]string{
		"proc/77/cgroup": "9:memory:/docker/" + id + "\n8:pids:/docker/" + id + "\n4:cpu,cpuacct:/docker/" + id + "\n2:blkio:/docker/" + id +
			"\n1:name=systemd:/docker/" + id + "\n0::/docker/" + id + "\n",
		"proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
			"31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct\n" +
			"32 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n" +
			"33 25 0:29 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n" +
			"34 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
			"35 25 0:31 / /proc rw - proc proc rw\n",
		"proc/77/net/dev": netDev,
		"sys/fs/cgroup/memory/docker/" + id + "/memory.usage_in_bytes":         "5000\n",
		"sys/fs/cgroup/memory/docker/" + id + "/memory.max_usage_in_bytes":     "9000\n",
		"sys/fs/cgroup/memory/docker/" + id + "/memory.stat":                   "cache 10\ninactive_file 1\ntotal_inactive_file 2000\n",
		"sys/fs/cgroup/memory/docker/" + id + "/memory.oom_control":            "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"sys/fs/cgroup/memory/docker/" + id + "/berth-user/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"sys/fs/cgroup/cpu,cpuacct/docker/" + id + "/cpuacct.usage":            "123456789\n",
		"sys/fs/cgroup/pids/docker/" + id + "/pids.current":                    "7\n",
		"sys/fs/cgroup/blkio/docker/" + id + "/blkio.throttle.io_service_bytes": "8:0 Read 4096\n8:0 Write 100\n8:16 Read 4\n" +
			"8:0 Total 4196\nTotal 4200\n",
		"sys/fs/cgroup/unified/docker/" + id + "/cgroup.procs": "77\n",
		"sys/fs/cgroup/unified/docker/" + id + "/cpu.pressure": "some avg10=50.40 avg60=11.27 avg300=2.44 total=7744633\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=11\n",
	}))
	for range 2 {
		s, err := r.Read(id, 77)
		require.NoError(t, err)
		is(t, 123456789, s.CPUUsedNs)
		is(t, 7_744_633_000, s.CPUWaitNs)
		is(t, 3000, s.MemoryBytes)
		is(t, 9000, s.MemoryPeak)
		is(t, 7, s.Pids)
		is(t, 2, s.OOMKills)
		is(t, 4100, s.IOReadBytes)
		is(t, 100, s.IOWriteByte)
		is(t, 2000, s.NetRxBytes)
		is(t, 1000, s.NetTxBytes)
	}
}

func TestVersion2(t *testing.T) {
	t.Parallel()
	dir := "sys/fs/cgroup/system.slice/docker-" + id + ".scope"
	files := map[string]string{
		// The runner is in a group of its own.
		"proc/77/cgroup":        "0::/system.slice/docker-" + id + ".scope/berth-runner\n",
		"proc/self/mountinfo":   "30 25 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
		dir + "/cpu.stat":       "usage_usec 2500\nuser_usec 2000\n",
		dir + "/memory.current": "10000\n",
		dir + "/memory.stat":    "anon 1\ninactive_file 4000\n",
		dir + "/memory.events":  "low 0\noom 1\noom_kill 1\n",
		dir + "/io.stat":        "8:0 rbytes=10 wbytes=20 rios=1 wios=1\n8:16 rbytes=5 wbytes=6 rios=1\n",
		dir + "/pids.current":   "3\n",
	}
	s, err := hoststats.New(host(t, files)).Read(id, 77)
	require.NoError(t, err)
	is(t, 2_500_000, s.CPUUsedNs)
	is(t, 6000, s.MemoryBytes)
	is(t, 15, s.IOReadBytes)
	is(t, 26, s.IOWriteByte)
	is(t, 3, s.Pids)
	is(t, 1, s.OOMKills)
	require.Nil(t, s.CPUWaitNs, "without pressure it is unknown")
	require.Nil(t, s.MemoryPeak, "a kernel that does not tell is not a kernel that says zero")
	require.Nil(t, s.NetRxBytes)
	require.Nil(t, s.NetTxBytes)
}

// TestVersion2Namespaced sees the hierarchy from inside a container whose own group is its root.
func TestVersion2Namespaced(t *testing.T) {
	t.Parallel()
	s, err := hoststats.New(host(t, map[string]string{
		"proc/77/cgroup":      "0::/outer/docker/" + id + "\n",
		"proc/self/mountinfo": "30 25 0:26 /outer /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/docker/" + id + "/pids.current": "3\n",
	})).Read(id, 77)
	require.NoError(t, err)
	is(t, 3, s.Pids)
}

func TestReusedPid(t *testing.T) {
	t.Parallel()
	r := hoststats.New(host(t, map[string]string{
		"proc/77/cgroup":      "0::/system.slice/docker-ffff.scope\n",
		"proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
	}))
	for _, pid := range []int{77, 78} {
		_, err := r.Read(id, pid)
		require.Equal(t, fault.NotFound, fault.KindOf(err), "%v", err)
	}
}

func TestGroupsThatWentAway(t *testing.T) {
	t.Parallel()
	root := host(t, map[string]string{
		"proc/77/cgroup":      "0::/docker/" + id + "\n",
		"proc/self/mountinfo": "30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
		"sys/fs/cgroup/docker/" + id + "/pids.current": "3\n",
	})
	r := hoststats.New(root)
	_, err := r.Read(id, 77)
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(root, "sys/fs/cgroup/docker")))
	_, err = r.Read(id, 77)
	require.Equal(t, fault.NotFound, fault.KindOf(err), "%v", err)
}
