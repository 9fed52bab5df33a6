package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConsole uses the console that is inside the binary in a browser: sessions with their terminals and logs, batch jobs, files, sharing
// between users, second factors, logins that expire, long tables, hostile names, uploads that go on in another browser, a cluster that is
// killed and comes back, the clicks of frequent tasks. What the browser refuses because of the policy of the pages fails it, and so does
// what axe finds.
func TestConsole(t *testing.T) {
	t.Parallel()
	needEngine(t)
	tools, err := browserTools()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("needs Chromium, Node.js 18 and playwright-core: run scripts/install-deps.sh test, see scripts/browser.sh")
	}
	require.NoError(t, err, "scripts/browser.sh")
	p := up(t)
	var me struct {
		User struct {
			UUID string `json:"uuid"`
		} `json:"user"`
	}
	p.graphql(`query { user { uuid } }`, nil, &me)
	t.Cleanup(func() { p.forgetCommits(me.User.UUID) })
	ctx, cancel := context.WithTimeout(t.Context(), 14*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../scripts/web.sh", "modules").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, script := range []string{"console", "stories", "admin", "lists", "user"} {
		c := exec.CommandContext(ctx, "node", "test/"+script+".mjs")
		c.Dir = "../web"
		c.Env = append(p.environ(), "BERTH_WEB="+p.web(), "BERTH_ADMIN_EMAIL="+p.of("BERTH_ADMIN_EMAIL"),
			"BERTH_ADMIN_PASSWORD="+p.of("BERTH_ADMIN_PASSWORD"), "CHROMIUM="+tools[1], "BERTH_BIN="+binary,
			"BERTH_STOP=kill -9 "+strconv.Itoa(p.pid()), "BERTH_START="+binary+" up --detach --ports auto")
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s: %s", script, out)
		require.Contains(t, string(out), script+": well")
	}
	p.clean()
}

// TestConsoleDevices looks at devices in the console: of a machine that does not exist, with eight GPUs on two sockets.
func TestConsoleDevices(t *testing.T) {
	t.Parallel()
	needEngine(t)
	tools, err := browserTools()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("needs Chromium, Node.js 18 and playwright-core: run scripts/install-deps.sh test, see scripts/browser.sh")
	}
	require.NoError(t, err, "scripts/browser.sh")
	machine, err := filepath.Abs("../deploy/devices/eight-a100.toml")
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "berth-e2e-") // short: unix sockets live below it
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o755)) //nolint:gosec // sessions enter it
	p := &platform{t: t, dir: dir, more: []string{"BERTH_AGENT__MOCK_DEVICES=" + machine}}
	t.Cleanup(func() {
		if t.Failed() {
			p.dumpLog()
		}
		p.try("down", "--sessions")
		_ = os.RemoveAll(dir)
	})
	p.start()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../scripts/web.sh", "modules").CombinedOutput()
	require.NoError(t, err, string(out))
	c := exec.CommandContext(ctx, "node", "test/devices.mjs")
	c.Dir = "../web"
	c.Env = append(p.environ(), "BERTH_WEB="+p.web(), "BERTH_ADMIN_EMAIL="+p.of("BERTH_ADMIN_EMAIL"),
		"BERTH_ADMIN_PASSWORD="+p.of("BERTH_ADMIN_PASSWORD"), "CHROMIUM="+tools[1])
	if out, err = c.CombinedOutput(); err != nil {
		require.NoError(t, err, "devices: %s", out)
	}
	require.Contains(t, string(out), "devices: well")
	p.clean()
}
