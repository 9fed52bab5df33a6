package proc_test

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/runner/proc"
)

// asRunner makes the test binary start one program through a Table, as the runner does.
const asRunner = "start-cat-of-status"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == asRunner {
		os.Exit(catStatus())
	}
	if len(os.Args) == 2 && os.Args[1] == proc.AsIdle {
		<-time.After(time.Hour)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// catStatus prints what the kernel tells about the program that it starts.
func catStatus() int {
	t := proc.NewTable()
	defer t.Close()
	p, err := t.Start(proc.Spec{Path: "/bin/cat", Argv: []string{"cat", "/proc/self/status"}, Dir: "/",
		Files: []*os.File{nil, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return p.Status().Code
}

// TestDefaultDispositions: nohup, a shell's background jobs and some service managers start their programs with signals
// ignored. The programs of a session must not inherit that: Ctrl-C and a closed terminal would not end them.
func TestDefaultDispositions(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	require.NoError(t, err)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	p, err := table().Start(shell("trap '' HUP INT QUIT TERM PIPE TSTP TTIN TTOU USR1 CHLD; exec "+self+" "+asRunner, nil, w, w))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, r.SetReadDeadline(time.Now().Add(time.Minute)))
	out, err := io.ReadAll(r)
	require.NoError(t, err)
	require.Equal(t, 0, p.Status().Code, "%s", out)
	var ignored string
	for line := range strings.Lines(string(out)) {
		if mask, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			ignored = strings.TrimSpace(mask)
		}
	}
	mask, err := strconv.ParseUint(ignored, 16, 64)
	require.NoError(t, err)
	// Signals 32 and 33 belong to the C library. Go leaves them alone in a binary with cgo, as the race detector makes it; the
	// runner is built without.
	require.Zero(t, mask&^(1<<31|1<<32), "the program ignores signals that its parent's parent ignored: %s", ignored)
}
