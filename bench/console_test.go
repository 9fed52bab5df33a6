package bench_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var figure = regexp.MustCompile(`(?m)^figure (\S+) (\S+)$`)

// BenchmarkConsole measures the console in a browser beside the cluster, see web/test/speed.mjs: first paint (goal: 1,000 ms), change of
// page (100 ms), a changed status until it is seen (500 ms), scrolling through 100,000 sessions (60 frames a second), event streams of a
// tab (one). Browser and cluster share the machine.
func BenchmarkConsole(b *testing.B) {
	if os.Getenv("BERTH_BENCH") == "" {
		b.Skip("needs a container engine and bin/berth: run make bench")
	}
	out, err := exec.Command("../scripts/browser.sh").Output()
	if err != nil {
		b.Skipf("there is no browser: %v", err)
	}
	chromium := strings.Split(strings.TrimSpace(string(out)), "\n")[1]
	said, err := exec.Command("../scripts/web.sh", "modules").CombinedOutput()
	require.NoError(b, err, string(said))
	p := up(b)
	var status struct {
		Web string `json:"web"`
	}
	require.NoError(b, json.Unmarshal([]byte(p.must("status", "--json")), &status))
	env, err := os.ReadFile(filepath.Join(p.dir, "client.env"))
	require.NoError(b, err)
	for b.Loop() {
		c := exec.CommandContext(b.Context(), "node", "test/speed.mjs")
		c.Dir = "../web"
		c.Env = append(os.Environ(), "CHROMIUM="+chromium, "BERTH_WEB="+status.Web)
		for line := range strings.Lines(string(env)) {
			name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
			c.Env = append(c.Env, name+"="+strings.Trim(value, `'"`))
		}
		said, err := c.CombinedOutput()
		require.NoError(b, err, string(said))
		found := figure.FindAllStringSubmatch(string(said), -1)
		require.NotEmpty(b, found, string(said))
		for _, f := range found {
			value, err := strconv.ParseFloat(f[2], 64)
			require.NoError(b, err)
			b.ReportMetric(value, f[1])
		}
	}
}
