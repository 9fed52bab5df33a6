package e2e_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A client that starts anew for each command takes a second each time. A story with many commands has one process of it (driver.py) that
// loads the client once and forks for each command.

// generation is one of the official clients.
type generation struct {
	version string
	venv    func() (string, error)
}

var generations = []generation{{"23.9.10", officialVenv}, {"26.4.10", newestVenv}}

// driven is one user with one client.
type driven struct {
	t     testing.TB
	name  string
	stdin io.WriteCloser
	out   *os.File
	lines *bufio.Reader
}

type driverAsk struct {
	Args  []string          `json:"args,omitempty"`
	Stdin string            `json:"stdin,omitempty"`
	Files map[string]string `json:"files,omitempty"`
	List  bool              `json:"list,omitempty"`
	// Python is a program that uses the client's library, with Args.
	Python string `json:"python,omitempty"`
	// Dir is where the command runs; "" means a new directory with Files.
	Dir string `json:"dir,omitempty"`
}

type driverReply struct {
	Code     int
	Stdout   string
	Stderr   string
	Commands []string
}

// drive starts the client of a generation as the user of an environment; it skips the test where that client cannot be made.
func drive(t *testing.T, g generation, name string, env []string) *driven {
	t.Helper()
	venv, err := g.venv()
	if err != nil && g.version != "23.9.10" {
		t.Skipf("the newer official client cannot be made here (scripts/official-client-26.sh): %v", err)
	}
	require.NoError(t, err, "make the official client's environment")
	return loadClient(t, name, venv, append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "TERM=dumb",
		"COLUMNS=400", "PYTHONWARNINGS=ignore"}, env...))
}

// loadClient starts a client that has the whole environment env. Without HOME in it, it has a home of its own.
func loadClient(t testing.TB, name, venv string, env []string) *driven {
	t.Helper()
	script, err := os.ReadFile("testdata/official/driver.py")
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), filepath.Join(venv, "bin", "python"), "-c", string(script))
	if inRoot(venv) {
		cmd = exec.CommandContext(t.Context(), "chroot", filepath.Join(venv, "root"), "/opt/client/bin/python", "-c", string(script))
	}
	cmd.Env = env
	out, theirs, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stdout = theirs
	d := &driven{t: t, name: name, out: out, lines: bufio.NewReader(out)}
	d.stdin, err = cmd.StdinPipe()
	require.NoError(t, err)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	require.NoError(t, theirs.Close())
	t.Cleanup(func() {
		_ = d.stdin.Close()
		_ = cmd.Wait()
		_ = out.Close()
		if t.Failed() {
			t.Logf("%s: %s", name, stderr.String())
		}
	})
	return d
}

// inRoot says that a client is in a root file system of its own, and sees no files of the host.
func inRoot(venv string) bool { return isDirectory(filepath.Join(venv, "root")) }

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (d *driven) ask(q driverAsk) (r driverReply) {
	d.t.Helper()
	raw, err := json.Marshal(q)
	require.NoError(d.t, err)
	_, err = fmt.Fprintf(d.stdin, "%s\n", raw)
	require.NoError(d.t, err)
	require.NoError(d.t, d.out.SetReadDeadline(time.Now().Add(patience)))
	line, err := d.lines.ReadBytes('\n')
	require.NoError(d.t, err, "%s: %s", d.name, strings.Join(q.Args, " "))
	require.NoError(d.t, json.Unmarshal(line, &r), "%s: %s", d.name, strings.Join(q.Args, " "))
	return r
}

// run runs a command with what its files hold and what is typed.
func (d *driven) run(q driverAsk) (code int, said string) {
	d.t.Helper()
	r := d.ask(q)
	return r.Code, r.Stdout + r.Stderr
}

// must runs a command that has to succeed.
func (d *driven) must(args ...string) string {
	d.t.Helper()
	code, said := d.run(driverAsk{Args: args, Stdin: "y\n"})
	require.Zero(d.t, code, "%s: backend.ai %s:\n%s", d.name, strings.Join(args, " "), said)
	require.NotContains(d.t, said, "Traceback", "%s: backend.ai %s", d.name, strings.Join(args, " "))
	return said
}

// refused runs a command that has to fail with words for people. Some commands of the older client end well all the same.
func (d *driven) refused(args ...string) string {
	d.t.Helper()
	code, said := d.run(driverAsk{Args: args, Stdin: "y\n"})
	require.True(d.t, code != 0 || strings.ContainsAny(said, "✘✗"), "%s: backend.ai %s:\n%s", d.name, strings.Join(args, " "), said)
	require.NotContains(d.t, said, "Traceback", "%s: backend.ai %s", d.name, strings.Join(args, " "))
	return said
}

// eventually repeats a command until its words are good.
func (d *driven) eventually(good func(said string) bool, args ...string) {
	d.t.Helper()
	require.True(d.t, settles(func() bool { _, said := d.run(driverAsk{Args: args}); return good(said) }))
}
