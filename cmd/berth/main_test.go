package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/platform"
	"berth.dev/berth/internal/platform/doctor"
)

// actAsBerth turns the test binary into berth, so that tests run whole processes without a build.
const actAsBerth = "BERTH_TEST_ACT_AS_BERTH"

func TestMain(m *testing.M) {
	if os.Getenv(actAsBerth) != "" {
		main()
		return
	}
	os.Exit(func() int {
		self, err := os.Executable()
		if err != nil {
			panic(err)
		}
		// A cluster whose engine is dead never starts the runner, but looks for it.
		runner := filepath.Join(filepath.Dir(self), "berth-runner")
		if err := os.WriteFile(runner, []byte("#!/bin/false\n"), 0o755); err != nil {
			panic(err)
		}
		defer os.Remove(runner)
		return m.Run()
	}())
}

type result struct {
	stdout, stderr string
	code           int
}

// berth runs a command against a state directory, with no container engine in reach.
func berth(t *testing.T, dir string, args ...string) result {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(os.Environ(), actAsBerth+"=1", "BERTH_STATE_DIR="+dir, "DOCKER_HOST=unix://"+dir+"/no-engine.sock")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	if cmd.ProcessState == nil {
		require.NoError(t, err)
	}
	return result{out.String(), errs.String(), cmd.ProcessState.ExitCode()}
}

// newStateDir is short, because sockets live below it, and open to the children's users.
func newStateDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "berth-up-")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func needPostgres(t *testing.T) {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	require.NoError(t, err)
	if _, err := exec.LookPath("postgres"); err != nil && len(found) == 0 {
		t.Skip("no PostgreSQL is installed")
	}
}

// TestClusterWithoutEngine walks through the life of a cluster on a machine whose container
// engine is dead: it starts, says so, survives being killed, and stops.
func TestClusterWithoutEngine(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir := newStateDir(t)
	t.Cleanup(func() { berth(t, dir, "down") })

	first := berth(t, dir, "up", "--detach")
	require.Zero(t, first.code, first.stderr)
	require.Contains(t, first.stdout, "is up")
	require.Contains(t, first.stdout, "the container engine does not answer")
	env, err := platform.ReadEnvFile(filepath.Join(dir, "client.env"))
	require.NoError(t, err)
	for _, name := range []string{"BACKEND_ENDPOINT", "BACKEND_ENDPOINT_TYPE", "BACKEND_ACCESS_KEY", "BACKEND_SECRET_KEY", "BERTH_ADMIN_EMAIL",
		"BERTH_ADMIN_PASSWORD"} {
		require.NotEmpty(t, env[name], name)
	}
	require.Contains(t, first.stdout, "storage     http://127.0.0.1:")
	secret, err := os.Stat(filepath.Join(dir, platform.StorageSecretFile))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), secret.Mode())
	require.FileExists(t, filepath.Join(dir, "volumes", platform.FirstVolume, ".berth", "volume.json"))
	require.Contains(t, berth(t, dir, "status").stdout, "local:"+platform.FirstVolume)
	log, err := os.ReadFile(filepath.Join(dir, "berth.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), env["BERTH_ADMIN_PASSWORD"])
	require.NotContains(t, string(log), env["BACKEND_SECRET_KEY"])

	second := berth(t, dir, "up")
	require.Equal(t, 1, second.code)
	require.Contains(t, second.stderr, "runs on "+dir+" already")
	require.Contains(t, second.stderr, "next: berth status")

	var status struct {
		Pid   int  `json:"pid"`
		Ready bool `json:"ready"`
	}
	require.NoError(t, json.Unmarshal([]byte(berth(t, dir, "status", "--json").stdout), &status))
	require.True(t, status.Ready)
	require.NotZero(t, status.Pid)
	require.Contains(t, second.stderr, "pid ")

	examined := berth(t, dir, "doctor")
	require.Equal(t, 1, examined.code)
	require.Contains(t, examined.stdout, "engine")

	require.NoError(t, syscall.Kill(status.Pid, syscall.SIGKILL))
	require.Eventually(t, func() bool { _, running := platform.StateDir(dir).Owner(); return !running }, time.Minute, 5*time.Millisecond)
	again := berth(t, dir, "up", "--detach")
	require.Zero(t, again.code, again.stderr)
	after, err := platform.ReadEnvFile(filepath.Join(dir, "client.env"))
	require.NoError(t, err)
	require.Equal(t, env, after, "addresses, keys and the password stay")
	checkJoinTokens(t, dir)

	reset := berth(t, dir, "admin", "reset-password", "--json")
	require.Zero(t, reset.code, reset.stderr)
	var fresh struct {
		Email, Password string
	}
	require.NoError(t, json.Unmarshal([]byte(reset.stdout), &fresh))
	require.NotEqual(t, env["BERTH_ADMIN_PASSWORD"], fresh.Password)
	after["BERTH_ADMIN_PASSWORD"] = fresh.Password
	env, err = platform.ReadEnvFile(filepath.Join(dir, "client.env"))
	require.NoError(t, err)
	require.Equal(t, after, env, "nothing but the password changes")
	info, err := os.Stat(filepath.Join(dir, "client.env"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	log, err = os.ReadFile(filepath.Join(dir, "berth.log"))
	require.NoError(t, err)
	require.NotContains(t, string(log), fresh.Password)

	before, err := os.ReadFile(filepath.Join(dir, "manager", "master.key"))
	require.NoError(t, err)
	rotated := berth(t, dir, "admin", "rotate-master-key")
	require.Zero(t, rotated.code, rotated.stderr)
	require.Contains(t, rotated.stdout, "sealed again")
	now, err := os.ReadFile(filepath.Join(dir, "manager", "master.key"))
	require.NoError(t, err)
	require.NotEqual(t, before, now)
	require.Len(t, strings.Fields(string(now)), 1, "the old key has gone")
	require.Zero(t, berth(t, dir, "session", "list").code, "signed requests are verified with the secret of the keypair")

	down := berth(t, dir, "down")
	require.Zero(t, down.code, down.stderr)
	reset = berth(t, dir, "admin", "reset-password")
	require.Equal(t, 5, reset.code)
	require.Contains(t, reset.stderr, "next: berth up --detach")
	for _, f := range doctor.Examine(t.Context(), platform.StateDir(dir)).Findings {
		require.NotEqual(t, "process", f.Kind, "children are left: %+v", f)
	}
	require.Zero(t, berth(t, dir, "down").code, "down of a stopped cluster is no error")
	gone := berth(t, dir, "status")
	require.Equal(t, 5, gone.code)
	require.Contains(t, gone.stderr, "next: berth up --detach")
}

func TestFailedStartTellsWhy(t *testing.T) {
	t.Parallel()
	needPostgres(t)
	dir := newStateDir(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "postgres"), nil, 0o600)) // in the way of the directory
	r := berth(t, dir, "up", "--detach")
	require.NotZero(t, r.code)
	require.Contains(t, r.stderr, "did not start")
	require.Contains(t, r.stderr, filepath.Join(dir, "postgres"))
	require.Contains(t, r.stderr, "next: ")
}

func TestConfigIsCheckedAndPrinted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "c.toml")
	for name, tc := range map[string]struct {
		role, text string
		want       []string
	}{
		"unknown key":  {"up", "[manager]\nlissten = \"x\"\n", []string{"lissten", `did you mean "manager.listen"`}},
		"no database":  {"manager", "", []string{"manager.postgres.dsn is not set", "next: "}},
		"no address":   {"up", "[manager]\nlisten = \"nonsense\"\n", []string{"manager.listen", "host:port"}},
		"syntax":       {"up", "[log]\nformat = \"text\"\n[manager\n", []string{"line 3"}},
		"bad agent id": {"agent", "[agent]\nid = \"a b\"\n", []string{"a b"}},
		"unknown role": {"king", "", []string{"there is no role"}},
		"no secret":    {"storage", "", []string{"storage.secret is not set", "next: "}},
		"no volumes":   {"storage", "[storage]\nsecret = \"0123456789abcdef\"\n", []string{"storage.volumes"}},
		"no etcd": {"storage", "[storage]\nsecret = \"0123456789abcdef\"\n[storage.volumes.v]\nbackend = \"posix\"\npath = \"/x\"\n",
			[]string{"storage.etcd.endpoints"}},
		"wrong backend":  {"storage", "[storage.volumes.v]\nbackend = \"tape\"\npath = \"/x\"\n", []string{"tape", "cephfs, posix, xfs"}},
		"unknown field":  {"up", "[storage.volumes.v]\nbakend = \"posix\"\n", []string{"backend, path, options"}},
		"unknown format": {"up", "[log]\nformat = \"xml\"\n", []string{"log.format"}},
	} {
		require.NoError(t, os.WriteFile(file, []byte(tc.text), 0o600))
		r := berth(t, dir, "config", "check", "--role", tc.role, "--config", file)
		require.NotZero(t, r.code, name)
		for _, w := range tc.want {
			require.Contains(t, r.stderr, w, name)
		}
	}
	require.NoError(t, os.WriteFile(file, []byte("[manager.postgres]\ndsn = \"postgres://u:hunter2@h/d\"\n"), 0o600))
	r := berth(t, dir, "config", "print", "--role", "manager", "--config", file)
	require.Zero(t, r.code, r.stderr)
	require.NotContains(t, r.stdout, "hunter2")
	require.Contains(t, r.stdout, "[manager.etcd]")
	require.NotContains(t, r.stdout, "[agent]")
	// What is printed can be read again.
	require.NoError(t, os.WriteFile(file, []byte(berth(t, dir, "config", "print").stdout), 0o600))
	require.Zero(t, berth(t, dir, "config", "check", "--config", file).code)
}

func TestEveryCommandExplainsItself(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"up", "down", "status", "doctor", "admin", "manager", "config", "version", "run", "session", "agent",
		"image"} {
		r := berth(t, t.TempDir(), name, "--help")
		require.Zero(t, r.code, name)
		require.Contains(t, r.stdout, "Usage:", name)
	}
	require.True(t, strings.HasPrefix(berth(t, t.TempDir(), "version").stdout, "berth "))
	require.Equal(t, 2, berth(t, t.TempDir(), "nonsense").code)
}
