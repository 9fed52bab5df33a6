package e2e_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recipe is the shell script below a heading of docs/cluster-sessions.md, as users copy it.
func recipe(t *testing.T, heading string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "docs", "cluster-sessions.md"))
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), "\n## "+heading+"\n")
	require.True(t, found, "docs/cluster-sessions.md has no heading %q", heading)
	section, _, _ := strings.Cut(rest, "\n## ")
	_, rest, found = strings.Cut(section, "```sh\n")
	require.True(t, found, "%q has no script", heading)
	script, _, _ := strings.Cut(rest, "```")
	return script
}

// torchImage is what images/torch.recipe builds.
const torchImage = "berth/torch:1.13"

// train adds the ranks of all processes. Every process says what it knows.
const train = `
import os, socket
import torch, torch.distributed as dist
dist.init_process_group("gloo")
sum = torch.tensor([float(dist.get_rank())])
dist.all_reduce(sum)
print("on", socket.gethostname(), "sum", int(sum.item()), "of", dist.get_world_size(), flush=True)
dist.destroy_process_group()
`

// TestClusterPrograms runs the recipes of docs/cluster-sessions.md for PyTorch and Dask, as they stand there, in a session of four kernels.
// Their image takes minutes to build, so the story runs where somebody has built it.
func TestClusterPrograms(t *testing.T) {
	t.Parallel()
	needEngine(t)
	if _, err := docker("image", "inspect", torchImage); err != nil {
		t.Skipf("there is no image %s; next: images/build.sh torch, which takes minutes and 1.1 GB", torchImage)
	}
	p := up(t)
	p.must("session", "create", torchImage, "--name", "quartet", "--cluster-size", "4", "-r", "cpu=1", "-r", "mem=512m")
	hosts := []string{"main1", "sub1", "sub2", "sub3"}
	inside := func(script string) string {
		t.Helper()
		r := p.inside("quartet", script)
		require.Zero(t, r.code, r.stdout+r.stderr)
		return r.stdout
	}

	t.Run("torchrun", func(t *testing.T) {
		inside("cat > train.py <<'X'" + train + "X\nfor h in sub1 sub2 sub3; do scp -q train.py $h: || exit 1; done")
		out := inside(recipe(t, "torchrun"))
		for _, host := range hosts {
			require.Contains(t, out, "on "+host+" sum 6 of 4")
		}
	})
	t.Run("Dask", func(t *testing.T) {
		out := inside(recipe(t, "Dask"))
		require.Regexp(t, regexp.MustCompile(`(?m)^\['sub1', 'sub2', 'sub3'\] 6$`), out, "each worker has worked")
	})
	p.must("session", "rm", "-y", "quartet")
	p.clean()
}
