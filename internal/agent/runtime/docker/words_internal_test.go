package docker

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/fault"
)

// TestTheEnginesWordsStayInTheAgentsLog holds that nothing of what the engine says reaches the text of an error.
func TestTheEnginesWordsStayInTheAgentsLog(t *testing.T) {
	t.Parallel()
	const leak = "/var/lib/docker/overlay2/s3cret"
	for raw, want := range map[error]string{
		fmt.Errorf("Error response from daemon: OCI runtime create failed: exec: \"/x\": stat %s: no such file or directory",
			leak): "start kernel k: the program /x, or its interpreter, is not in the image",
		fmt.Errorf("Error response from daemon: %s: exec format error", leak): "start kernel k: the image is made for another kind of processor",
		fmt.Errorf("Error response from daemon: mkdir %s: not a directory: mount it", leak): "start kernel k: a mount is a file on one side " +
			"and a directory on the other",
		fmt.Errorf("Error response from daemon: no space left on device: %s", leak): "start kernel k: " +
			"the disk of the container engine is full",
		fmt.Errorf("Error response from daemon: mkdir %s at \"/data/no space left on device/x\": file name too long", leak): "start kernel k: " +
			"the container engine refused it", // a target that an owner chose
		fmt.Errorf("Error response from daemon: %s: something new", leak):                  "start kernel k: the container engine refused it",
		fmt.Errorf("Error response from daemon: %s %w", leak, cerrdefs.ErrNotFound):        "start kernel k: the container engine refused it",
		fmt.Errorf("Error response from daemon: %s %w", leak, cerrdefs.ErrInvalidArgument): "start kernel k: the container engine refused it",
	} {
		var log bytes.Buffer
		r := &Runtime{log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
		err := r.failure(raw, "start kernel %s", "k")
		require.EqualError(t, err, want)
		require.NotEmpty(t, fault.NextOf(err))
		require.ErrorIs(t, err, raw, "its kind can still be asked for")
		require.Contains(t, log.String(), leak)
	}
	r := &Runtime{log: slog.New(slog.DiscardHandler)}
	for _, raw := range []string{"pull access denied", "unauthorized: authentication required", "dial tcp 10.0.0.7:5000: refused", "strange"} {
		err := r.pullFailure(errors.New(raw+" https://user:s3cret@registry"), "registry/x:1")
		require.NotContains(t, err.Error(), "s3cret")
		require.NotContains(t, err.Error(), "10.0.0.7")
		require.NotEmpty(t, fault.NextOf(err))
	}
	require.NotContains(t, stateWords("failed to create task: "+leak), leak)
	require.Empty(t, stateWords(""))
}
