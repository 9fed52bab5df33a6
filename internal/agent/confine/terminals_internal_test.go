package confine

import (
	"bufio"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTerminalsAreBounded gives a process a devpts of its own, as an engine does, and bounds it.
func TestTerminalsAreBounded(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may mount file systems")
	}
	cmd := exec.Command("sh", "-c", "mount --make-rprivate / && "+
		"mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts && echo ready && read line && "+
		"i=0; while [ $i -lt 200 ]; do eval \"exec $((i + 10))<>/dev/pts/ptmx\" || exit 3; i=$((i + 1)); done")
	cmd.Path, cmd.Args[0] = "/bin/bash", "bash" // descriptors above 9
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	var words strings.Builder
	cmd.Stderr = &words
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Skipf("this process may not mount a devpts: %v %s", err, words.String())
	}

	m := New("/", slog.New(slog.DiscardHandler))
	require.NoError(t, m.boundTerminals(cmd.Process.Pid))
	require.NoError(t, m.boundTerminals(cmd.Process.Pid), "after a restart of the agent, once more")
	info, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/mountinfo")
	require.NoError(t, err)
	require.Contains(t, string(info), "gid=5,mode=620,ptmxmode=666,max="+strconv.Itoa(maxTerminals), "what the engine chose stays")
	_, err = io.WriteString(in, "go\n")
	require.NoError(t, err)
	require.Error(t, cmd.Wait())
	require.Contains(t, words.String(), "No space left on device")

	// The host's own terminals are never bounded.
	require.ErrorIs(t, m.boundTerminals(os.Getpid()), os.ErrNotExist)
}
