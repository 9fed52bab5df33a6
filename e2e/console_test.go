package e2e_test

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestConsole uses the console that is inside the binary in a browser: sessions with their terminals and logs, batch jobs, files, sharing
// between users, second factors, logins that expire, long tables, hostile names. What the browser refuses because of the policy of the
// pages fails it.
func TestConsole(t *testing.T) {
	t.Parallel()
	needEngine(t)
	tools, err := browserTools()
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("needs Chromium, Node.js 18 and playwright-core: run scripts/install-deps.sh test, see scripts/browser.sh")
	}
	require.NoError(t, err, "scripts/browser.sh")
	p := up(t)
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../scripts/web.sh", "modules").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, script := range []string{"console", "stories", "admin"} {
		c := exec.CommandContext(ctx, "node", "test/"+script+".mjs")
		c.Dir = "../web"
		c.Env = append(os.Environ(), "BERTH_WEB="+p.web(), "BERTH_ADMIN_EMAIL="+p.of("BERTH_ADMIN_EMAIL"),
			"BERTH_ADMIN_PASSWORD="+p.of("BERTH_ADMIN_PASSWORD"), "CHROMIUM="+tools[1])
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s: %s", script, out)
		require.Contains(t, string(out), script+": well")
	}
	p.clean()
}
