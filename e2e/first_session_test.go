package e2e_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
)

func TestFirstSession(t *testing.T) {
	t.Parallel()
	p := up(t)
	smoke(t, p)
	p.clean()
}

// smoke is what every kind of cluster must be able to do.
func smoke(t *testing.T, p *platform) {
	t.Helper()
	t.Run("a cell prints", func(t *testing.T) {
		require.Equal(t, "42\n", p.must("run", "python", "-c", "print(6*7)"))
	})
	t.Run("the exit code is passed on", func(t *testing.T) {
		require.Equal(t, 3, p.run("", "run", "python", "-c", "import sys; sys.exit(3)").code)
	})
	t.Run("standard input is passed on", func(t *testing.T) {
		r := p.run("Ada\n", "run", "python", "-c", `print("hi", input())`)
		require.Zero(t, r.code, r.stderr)
		require.Contains(t, r.stdout, "hi Ada\n")
	})
	t.Run("an error goes to standard error", func(t *testing.T) {
		r := p.run("", "run", "python", "-c", "1/0")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "ZeroDivisionError")
	})
	t.Run("an unknown image says what to do", func(t *testing.T) {
		r := p.run("", "run", "no-such-image", "-c", "1")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "no-such-image")
		require.Contains(t, r.stderr, "berth image list")
	})
	t.Run("a request over every agent's size names the slot", func(t *testing.T) {
		r := p.run("", "run", "python", "-r", "cpu=9999", "--fail-if-impossible", "-c", "1")
		require.NotZero(t, r.code)
		require.Contains(t, r.stderr, "cpu")
	})
	t.Run("a batch job's exit code is the command's", func(t *testing.T) {
		r := p.run("", "run", "python", "--batch", "echo from the job; exit 5")
		require.Equal(t, 5, r.code, r.stderr)
		require.Contains(t, r.stdout, "from the job")
	})
}

// TestSessionsOfAStoppedClusterEnd: an operator can end what a stopped cluster left running.
func TestSessionsOfAStoppedClusterEnd(t *testing.T) {
	t.Parallel()
	p := up(t)
	p.must("session", "create", "python", "--name", "left-behind")
	p.must("down")
	label := "label=berth.cluster=" + agent.Config{StateDir: filepath.Join(p.dir, "agent")}.Scope()
	require.NotEmpty(t, containers(t, label))
	p.must("down", "--sessions")
	require.Empty(t, containers(t, label))
	p.start()
	p.eventually("the session has ended", func() bool { return p.sessions()["left-behind"].Status == "TERMINATED" })
	require.Equal(t, "user-requested", p.sessions()["left-behind"].Info)
	p.clean()
}

func TestTwoClustersSideBySide(t *testing.T) {
	t.Parallel()
	a, b := up(t), up(t)

	a.must("session", "create", "python", "--name", "only-in-a")
	b.must("session", "create", "python", "--name", "only-in-b")
	require.Contains(t, a.sessions(), "only-in-a")
	require.NotContains(t, a.sessions(), "only-in-b")
	a.clean()
	b.clean()
}
