package runner_test

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/wire/run"
)

const connects = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect(sys.argv[1])
try:
    print("ended" if s.recv(1) == b"" else "answered")
except socket.timeout:
    print("open")
`

// TestNobodyInsideTakesPlaces: programs of the session can reach the runner's socket, and get no connection from it.
func TestNobodyInsideTakesPlaces(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root to make the runner PID 1 of a namespace")
	}
	b := start(t, config(t), func(c *exec.Cmd) { c.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID })
	s, err := b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"sh", "-c", "echo $PPID"}})
	require.NoError(t, err)
	var out bytes.Buffer
	_, err = s.Wait(&out, nil)
	require.NoError(t, err)
	require.Equal(t, "1\n", out.String())
	s.Close()
	s, err = b.c.Exec(ctx(t), run.ExecStart{Argv: []string{"python3", "-c", connects, b.cfg.Socket}})
	require.NoError(t, err)
	out.Reset()
	_, err = s.Wait(&out, &out)
	require.NoError(t, err)
	require.Equal(t, "ended\n", out.String())
	s.Close()
}
