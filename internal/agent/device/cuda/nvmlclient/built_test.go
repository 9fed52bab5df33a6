package nvmlclient_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent/device/cuda/nvmlclient"
	"berth.dev/berth/internal/chassis"
	"berth.dev/berth/internal/testkit/await"
)

// TestTheBuiltHelper asks the real program about this machine, which may have no NVIDIA driver: then the program has to say so.
func TestTheBuiltHelper(t *testing.T) {
	t.Parallel()
	program := os.Getenv("BERTH_NVML")
	if program == "" {
		t.Skip("BERTH_NVML does not name the built berth-nvml; make test-gpu does")
	}
	c := nvmlclient.New(nvmlclient.Options{Path: program, Log: slog.New(slog.DiscardHandler), Clock: chassis.RealClock()})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	patient, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	facts, err := c.Look(patient)
	sample, sampleErr := c.Sample(patient)
	if err != nil {
		t.Logf("this machine: %v", err)
		require.ErrorContains(t, err, "start NVIDIA's library: ")
		require.ErrorContains(t, err, "; next: ")
		require.ErrorContains(t, sampleErr, "start NVIDIA's library: ")
	} else {
		t.Logf("this machine: %+v", facts)
		t.Logf("measured: %+v", sample)
		require.NoError(t, sampleErr)
		require.NotEmpty(t, facts.Driver)
		require.GreaterOrEqual(t, len(sample.Uses), len(facts.GPUs)-len(facts.Problems))
	}
	stop()
	if err := await.Value(t, ended); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}
