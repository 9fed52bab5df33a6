package e2e_test

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// wheels downloads Python packages with all they need, as the sessions' Python 3.11 takes them, once for a machine. Sessions of a
// test machine may have no way to a package index.
func wheels(t testing.TB, packages ...string) (dir string) {
	t.Helper()
	cache := os.Getenv("BERTH_CACHE_DIR")
	if cache == "" {
		home, err := os.UserCacheDir()
		require.NoError(t, err)
		cache = filepath.Join(home, "berth")
	}
	venv, err := exec.Command("../scripts/official-client.sh").Output() // it has a pip
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("needs Python 3.11 with venv and a package index: run scripts/official-client.sh")
	}
	require.NoError(t, err)
	dir = filepath.Join(cache, fmt.Sprintf("wheels-%x", sha256.Sum256([]byte(strings.Join(packages, " ")+runtime.GOARCH)))[:15])
	require.NoError(t, os.MkdirAll(cache, 0o700))
	lock, err := os.OpenFile(dir+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	require.NoError(t, err)
	defer lock.Close()
	require.NoError(t, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	fresh := dir + ".new"
	require.NoError(t, os.RemoveAll(fresh))
	argv := append([]string{"download", "--quiet", "--dest", fresh, "--only-binary=:all:"}, packages...)
	out, err := exec.Command(filepath.Join(strings.TrimSpace(string(venv)), "bin", "pip"), argv...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Rename(fresh, dir))
	return dir
}

// install installs Python packages in a session, as its user does.
func (p *platform) install(session string, packages ...string) {
	p.t.Helper()
	from := wheels(p.t, packages...)
	r := p.tool(from, "", "sh", "-c", `tar -c . | "$0" ssh "$1" "mkdir -p wheels && tar -x -C wheels"`, binary, session)
	require.Zero(p.t, r.code, r.stdout+r.stderr)
	p.must(append([]string{"session", "exec", session, "--", "pip", "install", "--user", "--quiet", "--no-compile", "--no-index",
		"--find-links", "/home/work/wheels"}, packages...)...)
}

// curves writes what a training run would: a falling loss.
const curves = `
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
w = EventFileWriter('/home/work/runs/first')
for step in range(50):
    w.add_event(Event(step=step, wall_time=1e9 + step,
        summary=Summary(value=[Summary.Value(tag='loss/train', simple_value=1 / (1 + step))])))
w.close()
`

// TestInstalledApps: somebody installs TensorBoard in a session whose image knows nothing of it, and opens it.
func TestInstalledApps(t *testing.T) {
	t.Parallel()
	needEngine(t)
	b := newBrowser(t)
	p := up(t)
	p.session("python", "board")
	r := p.run("", "app", "open", "board", "tensorboard", "--no-browser")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "pip install --user tensorboard")
	require.NotContains(t, p.must("app", "list", "board"), "tensorboard")

	p.install("board", "tensorboard==2.20.0", "setuptools==80.9.0")
	p.sessionHome("board", "curves.py", curves)
	p.must("session", "exec", "board", "--", "python3", "curves.py")
	require.Contains(t, p.must("app", "list", "board"), "installed")
	r = p.run("", "app", "open", "board", "tensorboard", "--no-browser", "--arg", "--bind_all")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "--logdir", "which arguments it takes")

	for i, mode := range modes {
		t.Run("TensorBoard draws scalars, "+mode, func(t *testing.T) {
			argv := []string{"app", "open", "board", "tensorboard", "--no-browser", "--mode", mode}
			if i == 0 {
				argv = append(argv, "--arg", "--logdir=/home/work/runs")
			}
			tab := b.page("board-"+mode, "owner-"+mode)
			tab.t = t
			v := tab.enters(strings.TrimSpace(p.must(argv...)))
			require.Equal(t, 200, v.Status)
			// The card of the scalar, with the row of the run that shows its last step.
			tab.until(`document.title === 'TensorBoard' && document.querySelector('scalar-card') && ` +
				`/first[^]*49/.test(document.querySelector('scalar-card').innerText)`)
			var tags map[string]map[string]any
			tab.eval(`fetch('data/plugin/scalars/tags').then(r => r.json())`, &tags)
			require.Contains(t, tags["first"], "loss/train")
		})
	}
	r = p.run("", "app", "open", "board", "tensorboard", "--no-browser", "--arg", "--logdir=/elsewhere")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "berth app stop board tensorboard")
	p.must("app", "stop", "board", "tensorboard")

	t.Run("a page server that was started by hand, under a prefix of its own", func(t *testing.T) {
		p.must("session", "exec", "board", "--", "sh", "-c",
			"mkdir -p www/deep && echo '<h1>by hand</h1>' > www/deep/index.html && cd www && (setsid python3 -m http.server --bind 127.0.0.1 8123 "+
				"</dev/null >/dev/null 2>&1 &)")
		p.eventually("the port is noticed", func() bool {
			var list []struct{ Name, Protocol, Origin string }
			require.NoError(t, json.Unmarshal([]byte(p.must("app", "list", "board", "--json")), &list))
			for _, a := range list {
				if a.Name == "port-8123" {
					return a.Protocol == "http" && a.Origin == "noticed"
				}
			}
			return false
		})
		for _, mode := range modes {
			tab := b.page("served-"+mode, "owner-"+mode)
			tab.t = t
			v := tab.open(strings.TrimSpace(p.must("app", "open", "board", "8123", "--no-browser", "--mode", mode)))
			require.Equal(t, 200, v.Status)
			v = tab.open(strings.TrimSuffix(v.URL, "/") + "/deep") // the server leads to deep/
			require.True(t, strings.HasSuffix(v.URL, "/deep/"), v.URL)
			require.Equal(t, "by hand", tab.text("h1"))
		}
	})
	p.must("session", "rm", "--yes", "board")
	p.clean()
}
