package bench_test

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlclient"
	"berth.dev/berth/internal/chassis"
)

// How often an agent asks by default, see agent.Config.
const (
	lookEvery   = 10 * time.Second
	sampleEvery = 5 * time.Second
)

// BenchmarkCostOfSixteenGPUs is what facts and measurements of 16 GPUs, each with one process, cost agent and helper together, in per
// cent of a core. A library in C stands for NVIDIA's: what its driver takes is not in the figure, everything of ours is.
func BenchmarkCostOfSixteenGPUs(b *testing.B) {
	program := os.Getenv("BERTH_NVML")
	if program == "" {
		b.Skip("BERTH_NVML does not name the built berth-nvml; make nvml builds it")
	}
	dir := b.TempDir()
	out, err := exec.Command(cmp.Or(os.Getenv("CC"), "gcc"), "-shared", "-fPIC", "-O2", "-DCARDS=16", "-o",
		filepath.Join(dir, "libnvidia-ml.so.1"), filepath.Join("..", "internal", "nvmlhelper", "testdata", "nvml.c")).CombinedOutput()
	if err != nil {
		b.Skipf("the library cannot be compiled: %v %s", err, out)
	}
	b.Setenv("LD_LIBRARY_PATH", dir)
	c := nvmlclient.New(nvmlclient.Options{Path: program, Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	facts, err := c.Look(ctx)
	require.NoError(b, err)
	require.Len(b, facts.GPUs, 16)

	// The time of a helper is known when it has ended; its start is in the figure.
	before, start := used(b, syscall.RUSAGE_SELF), time.Now()
	loops := 0
	for b.Loop() {
		for range int(rounds * sampleEvery.Seconds()) {
			_, err := c.Look(ctx)
			require.NoError(b, err)
		}
		for range int(rounds * lookEvery.Seconds()) {
			s, err := c.Sample(ctx)
			require.NoError(b, err)
			require.Len(b, s.Uses, 16)
		}
		loops++
	}
	wall := time.Since(start)
	agent := used(b, syscall.RUSAGE_SELF) - before
	children := used(b, syscall.RUSAGE_CHILDREN)
	stop()
	<-ended
	helper := used(b, syscall.RUSAGE_CHILDREN) - children
	// A round is what an agent asks in lookEvery × sampleEvery, in seconds.
	simulated := float64(loops*rounds) * lookEvery.Seconds() * sampleEvery.Seconds()
	b.ReportMetric(100*agent.Seconds()/simulated, "%core-agent")
	b.ReportMetric(100*helper.Seconds()/simulated, "%core-helper")
	b.ReportMetric(100*(agent+helper).Seconds()/simulated, "%core")
	b.ReportMetric(wall.Seconds()/simulated*100, "%time")
}

// used is the processor time of this process, or of its children that have ended.
func used(b *testing.B, who int) time.Duration {
	b.Helper()
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(who, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
