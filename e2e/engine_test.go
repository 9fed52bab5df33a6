package e2e_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// engineDeadline bounds one command of the engine's: an engine that hangs fails a story with words, it does not stop the run.
const engineDeadline = 3 * time.Minute

// dockerTo runs the engine's command line on standard input stdin (nil: none) and returns its standard output.
func dockerTo(stdin io.Reader, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), engineDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker", args...)
	cmd.WaitDelay = time.Second // a child of it may hold the pipes
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", fmt.Errorf("the container engine did not end 'docker %s' within %s; look at it with scripts/engine.sh status",
			strings.Join(args, " "), engineDeadline)
	}
	if err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// docker is dockerTo without input.
func docker(args ...string) (string, error) { return dockerTo(nil, args...) }
