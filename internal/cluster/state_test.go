package cluster_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/cluster"
)

var update = flag.Bool("update", false, "rewrite golden files")

// meanings says what happens in each state.
var meanings = map[cluster.Status]string{
	cluster.Pending:     "it waits for a place",
	cluster.Scheduled:   "it has an agent and devices; the agent has not begun",
	cluster.Preparing:   "the agent reserves its devices and attaches its folders",
	cluster.Pulling:     "the agent fetches its image; progress extends the deadline",
	cluster.Prepared:    "the image is there; the container is next",
	cluster.Creating:    "the container is created and started; the agent waits for the runner in it",
	cluster.Running:     "it can be used; a session is RUNNING when all its kernels are",
	cluster.Restarting:  "its container is made anew, as its owner asked",
	cluster.Lost:        "its agent does not answer (kernels only); it keeps its slots for the grace that the agent has to return",
	cluster.Terminating: "it is being stopped",
	cluster.Terminated:  "it has ended",
	cluster.Cancelled:   "it was ended before it ran",
	cluster.Error:       "it failed; its reason says why",
}

func TestNothingFollowsAFinalStatus(t *testing.T) {
	t.Parallel()

	for _, from := range cluster.AllStatuses {
		for _, to := range cluster.AllStatuses {
			if from.Final() || from == to {
				require.False(t, cluster.KernelMayMove(from, to), "%s -> %s", from, to)
			}
			if from == cluster.Lost || to == cluster.Lost {
				require.False(t, cluster.SessionMayMove(from, to), "%s -> %s", from, to)
			}
		}
	}
}

func TestEveryStatusReachesAnEnd(t *testing.T) {
	t.Parallel()

	for _, start := range cluster.AllStatuses {
		seen, todo, ends := map[cluster.Status]bool{}, []cluster.Status{start}, false
		for len(todo) > 0 {
			from := todo[0]
			todo = todo[1:]
			if seen[from] {
				continue
			}
			seen[from] = true
			ends = ends || from.Final()
			for _, to := range cluster.AllStatuses {
				if cluster.KernelMayMove(from, to) {
					todo = append(todo, to)
				}
			}
		}
		require.True(t, ends, "%s never ends", start)
	}
}

func TestSessionStatusFollowsItsKernels(t *testing.T) {
	t.Parallel()

	for _, c := range []struct {
		kernels []cluster.Status
		want    cluster.Status
	}{
		{[]cluster.Status{cluster.Pending}, cluster.Pending},
		{[]cluster.Status{cluster.Running, cluster.Pulling}, cluster.Pulling},
		{[]cluster.Status{cluster.Running, cluster.Running}, cluster.Running},
		{[]cluster.Status{cluster.Running, cluster.Lost}, cluster.Running},
		{[]cluster.Status{cluster.Running, cluster.Terminated}, cluster.Terminating},
		{[]cluster.Status{cluster.Running, cluster.Terminating}, cluster.Terminating},
		{[]cluster.Status{cluster.Terminated, cluster.Cancelled}, cluster.Terminated},
		{[]cluster.Status{cluster.Cancelled}, cluster.Cancelled},
		{[]cluster.Status{cluster.Error, cluster.Terminated}, cluster.Error},
	} {
		require.Equal(t, c.want, cluster.SessionStatus(c.kernels), "%v", c.kernels)
	}
}

// TestDrawing keeps docs/state-machines.md equal to the table; -update redraws it.
func TestDrawing(t *testing.T) {
	t.Parallel()

	var b strings.Builder
	b.WriteString("# State machines\n\nGenerated from the table in `internal/cluster` by `make gen`; do not edit.\n")
	b.WriteString("\n## What the states mean\n\n| state | what happens | at most | then |\n|---|---|---|---|\n")
	for _, s := range cluster.AllStatuses {
		most, then := "", ""
		if d, ok := cluster.KernelDeadline(s); ok {
			if most, then = d.After.String(), "`"+string(d.Reason)+"`, it ends"; d.Retry {
				then = "`" + string(d.Reason) + "`, another agent is tried"
			}
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", s, meanings[s], most, then)
	}
	fmt.Fprintf(&b, "\nA session is placed at most %d times; failures that are the agent's own fault do not count. A batch job that may have "+
		"started\nis started elsewhere only after its agent has said that it did not, or where its owner allowed it.\n", cluster.MaxPlacements)
	draw := func(title string, may func(from, to cluster.Status) bool) {
		fmt.Fprintf(&b, "\n## %s\n\n```mermaid\nstateDiagram-v2\n    [*] --> PENDING\n", title)
		for _, from := range cluster.AllStatuses {
			for _, to := range cluster.AllStatuses {
				if may(from, to) {
					fmt.Fprintf(&b, "    %s --> %s\n", from, to)
				}
			}
			if from.Final() {
				fmt.Fprintf(&b, "    %s --> [*]\n", from)
			}
		}
		b.WriteString("```\n")
	}
	draw("Session", cluster.SessionMayMove)
	draw("Kernel", cluster.KernelMayMove)
	b.WriteString("\n## Folder\n\n```mermaid\nstateDiagram-v2\n    [*] --> performing: created\n    [*] --> cloning: copied\n")
	for _, m := range cluster.FolderMoves {
		if m.From != cluster.FolderMounted { // nobody writes it; it stands for ready folders in older words
			fmt.Fprintf(&b, "    %s --> %s: %s\n", m.From, m.To, m.Why)
		}
	}
	fmt.Fprintf(&b, "    %s --> [*]\n```\n", cluster.FolderDeleteComplete)

	path := filepath.Join("..", "..", "docs", "state-machines.md")
	if *update {
		require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	}
	have, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(have), b.String(), "run make gen")
}
