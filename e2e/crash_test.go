package e2e_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCrashLosesNothing kills the all-in-one process with live sessions, one of which is a
// batch job that ends while nobody watches.
func TestCrashLosesNothing(t *testing.T) {
	p := up(t)

	const n = 20
	for i := range n - 2 {
		p.must("session", "create", "python", "--detach", "--name", fmt.Sprintf("crash-%02d", i), "-r", "cpu=1", "-r", "mem=128m")
	}
	p.must("session", "create", "python", "--detach", "--name", "crash-job-ok", "--batch", "while [ ! -e /home/work/go ]; do sleep 0.1; done; exit 0", "-r", "mem=128m")
	p.must("session", "create", "python", "--detach", "--name", "crash-job-bad", "--batch", "sleep 2; exit 7", "-r", "mem=128m")
	p.eventually("all sessions run", func() bool {
		running := 0
		for _, s := range p.sessions() {
			if s.Status == "RUNNING" || s.Name == "crash-job-bad" && s.Status == "TERMINATED" {
				running++
			}
		}
		return running == n
	})
	before := containers(t, "label=berth.kernel")

	p.kill()
	p.start()

	p.eventually("the job that ended meanwhile is known with its result", func() bool {
		s := p.sessions()["crash-job-bad"]
		return s.Status == "TERMINATED" && s.Result == "FAILURE"
	})
	for i := range n - 2 {
		s := p.sessions()[fmt.Sprintf("crash-%02d", i)]
		require.Equal(t, "RUNNING", s.Status, s.Name)
	}
	after := containers(t, "label=berth.kernel")
	for _, id := range after {
		require.Contains(t, before, id, "a container was started twice")
	}
	require.Equal(t, "42\n", p.must("session", "exec", "crash-00", "--", "python3", "-c", "print(42)"))
	p.must("session", "exec", "crash-job-ok", "--", "touch", "/home/work/go")
	p.eventually("the other job succeeds", func() bool {
		s := p.sessions()["crash-job-ok"]
		return s.Status == "TERMINATED" && s.Result == "SUCCESS"
	})
	for i := range n - 2 {
		p.must("session", "rm", "--yes", fmt.Sprintf("crash-%02d", i))
	}
	p.eventually("everything has ended", func() bool { return strings.TrimSpace(p.must("session", "list", "--json")) == "[]" })
	p.clean()
}
