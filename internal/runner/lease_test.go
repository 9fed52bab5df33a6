package runner_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/run"
)

// Code whose reader does not come back within its lease is interrupted; a reader without a lease may stay away.
func TestARunWithoutItsReaderIsInterrupted(t *testing.T) {
	t.Parallel()
	cfg := config(t)
	cfg.Limits.AbandonMS = 60 // how often readers are looked for
	b := start(t, cfg)
	line := "exec sleep 600"
	_, err := b.c.Step(ctx(t), "left",
		run.StepRequest{Mode: run.ModeBatch, Options: &run.BatchOptions{Exec: &line}, From: new(int64(0)), LeaseMS: 1})
	require.NoError(t, err)
	deadline := time.Now().Add(patience)
	for {
		h, err := b.c.Hello(ctx(t))
		require.NoError(t, err)
		if h.Kernel.Runs == 1 {
			break
		}
		require.True(t, time.Now().Before(deadline), "the run goes on without its reader")
	}
	res, err := b.c.Step(ctx(t), "left", run.StepRequest{Mode: run.ModeContinue, From: new(int64(0)), WaitMS: waitMS})
	require.NoError(t, err)
	require.Equal(t, run.StatusFinished, res.Status)
	require.Equal(t, 130, *res.ExitCode)
}
