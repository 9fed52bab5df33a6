package docker_test

import (
	"context"
	"os/exec"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/runtime"
	"berth.dev/berth/internal/agent/runtime/testimage"
	"berth.dev/berth/internal/cluster"
)

// BenchmarkEnsure compares the start of a container with "docker run" of the same limits; read the
// two lines of one run as a ratio, and mind that docker run also waits for the end and removes.
func BenchmarkEnsure(b *testing.B) {
	api := testimage.Engine(b)
	ref, _ := boxImage(b, api)
	b.Run("docker-run", func(b *testing.B) {
		for b.Loop() {
			out, err := exec.CommandContext(b.Context(), "docker", "run", "--rm", "--memory=256m", "--memory-swap=256m", "--cpuset-cpus=0",
				"--pids-limit=4096", "--security-opt=no-new-privileges", ref, "/box", "true").CombinedOutput()
			require.NoError(b, err, "%s", out)
		}
	})
	b.Run("ensure", func(b *testing.B) {
		rt := newRuntime(b, api.DaemonHost(), "bench-"+uuid.NewString(), "i-bench")
		for b.Loop() {
			k := cluster.KernelID(uuid.NewString())
			_, err := rt.Ensure(b.Context(), runtime.Spec{
				Identity: runtime.Identity{Cluster: rt.Cluster(), Agent: "i-bench", Kernel: k, Generation: 1, Schema: 1},
				Image:    ref, Entry: []string{"/box", "wait"}, MemoryMax: 256 << 20, CPUSet: []int{0},
			})
			require.NoError(b, err)
			b.StopTimer()
			require.NoError(b, rt.Remove(context.Background(), k))
			b.StartTimer()
		}
	})
	b.Run("remove", func(b *testing.B) {
		rt := newRuntime(b, api.DaemonHost(), "bench-"+uuid.NewString(), "i-bench")
		for b.Loop() {
			b.StopTimer()
			k := cluster.KernelID(uuid.NewString())
			_, err := rt.Ensure(b.Context(), runtime.Spec{
				Identity: runtime.Identity{Cluster: rt.Cluster(), Agent: "i-bench", Kernel: k, Generation: 1, Schema: 1},
				Image:    ref, Entry: []string{"/box", "wait"}, MemoryMax: 256 << 20, CPUSet: []int{0},
			})
			require.NoError(b, err)
			b.StartTimer()
			require.NoError(b, rt.Remove(context.Background(), k))
		}
	})
}
