package e2e_test

import (
	"context"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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
	chromium := needBrowser(t)[1]
	p := up(t)
	var me struct {
		User struct {
			UUID string `json:"uuid"`
		} `json:"user"`
	}
	p.graphql(`query { user { uuid } }`, nil, &me)
	p.forgetCommits(me.User.UUID)
	for _, script := range []string{"console", "stories", "admin", "lists", "user"} {
		p.browse(chromium, script, 20*time.Minute)
	}
	p.clean()
}

// TestConsoleDevices looks at devices in the console: of a machine that does not exist, with eight GPUs on two sockets.
func TestConsoleDevices(t *testing.T) {
	t.Parallel()
	chromium := needBrowser(t)[1]
	machine, err := filepath.Abs("../deploy/devices/eight-a100.toml")
	require.NoError(t, err)
	p := up(t, "BERTH_AGENT__MOCK_DEVICES="+machine)
	p.browse(chromium, "devices", 10*time.Minute)
	p.clean()
}

// browse runs one script of web/test against the cluster.
func (p *platform) browse(chromium, script string, limit time.Duration) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "../scripts/web.sh", "modules").CombinedOutput()
	require.NoError(p.t, err, string(out))
	c := exec.CommandContext(ctx, "node", "test/"+script+".mjs")
	c.Dir = "../web"
	c.Env = append(p.environ(), "BERTH_WEB="+p.web(), "BERTH_ADMIN_EMAIL="+p.of("BERTH_ADMIN_EMAIL"),
		"BERTH_ADMIN_PASSWORD="+p.of("BERTH_ADMIN_PASSWORD"), "CHROMIUM="+chromium, "BERTH_BIN="+binary,
		"BERTH_STOP=kill -9 "+strconv.Itoa(p.pid()), "BERTH_START="+binary+" up --detach --ports auto")
	var complaint strings.Builder
	c.Stderr = &complaint
	steps, err := c.Output() // with the time that each took
	require.NoError(p.t, err, "%s%s", steps, complaint.String())
	require.Contains(p.t, string(steps), script+": well")
	p.t.Logf("%s", steps)
}
