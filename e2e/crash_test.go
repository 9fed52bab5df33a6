package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"berth.dev/berth/internal/agent"
)

// TestCrashLosesNothing kills the all-in-one process and starts it again.
func TestCrashLosesNothing(t *testing.T) {
	t.Parallel()
	p := up(t)
	survive(t, p, "berth.cluster="+agent.Config{StateDir: filepath.Join(p.dir, "agent")}.Scope(), func() {
		p.kill()
		p.start()
	})
	p.clean()
}

// survive has 20 live sessions, one of them a batch job that ends while nobody watches, lets
// crash kill something and bring it back, and looks that nothing is lost and nothing ran twice.
// label is one that all containers of the cluster have.
func survive(t *testing.T, p *platform, label string, crash func()) {
	t.Helper()
	const n = 20
	tag := fmt.Sprintf("crash-%d", time.Now().UnixMilli()%1e6)
	for i := range n - 2 {
		p.must("session", "create", "python", "--detach", "--name", fmt.Sprintf("%s-%02d", tag, i), "-r", "cpu=1", "-r", "mem=128m")
	}
	p.must("session", "create", "python", "--detach", "--name", tag+"-ok", "--batch",
		"while [ ! -e /home/work/go ]; do sleep 0.1; done; exit 0", "-r", "mem=128m")
	p.must("session", "create", "python", "--detach", "--name", tag+"-bad", "--batch", "sleep 8; exit 7", "-r", "mem=128m")
	p.eventually("all sessions run", func() bool {
		running := 0
		for _, s := range p.sessions() {
			if strings.HasPrefix(s.Name, tag) && (s.Status == "RUNNING" || s.Name == tag+"-bad" && s.Status == "TERMINATED") {
				running++
			}
		}
		return running == n
	})
	before := containers(t, "label="+label)

	crash()

	p.eventually("the job that ended meanwhile is known with its result", func() bool {
		s := p.sessions()[tag+"-bad"]
		return s.Status == "TERMINATED" && s.Result == "FAILURE"
	})
	for i := range n - 2 {
		s := p.sessions()[fmt.Sprintf("%s-%02d", tag, i)]
		require.Equal(t, "RUNNING", s.Status, s.Name)
	}
	after := containers(t, "label="+label)
	for _, id := range after {
		require.Contains(t, before, id, "a container was started twice")
	}
	p.eventually("sessions can be used", func() bool {
		r := p.run("", "session", "exec", tag+"-00", "--", "python3", "-c", "print(42)")
		return r.code == 0 && r.stdout == "42\n"
	})
	p.must("session", "exec", tag+"-ok", "--", "touch", "/home/work/go")
	p.eventually("the other job succeeds", func() bool {
		s := p.sessions()[tag+"-ok"]
		return s.Status == "TERMINATED" && s.Result == "SUCCESS"
	})
	for i := range n - 2 {
		p.must("session", "rm", "--yes", fmt.Sprintf("%s-%02d", tag, i))
	}
	p.eventually("everything has ended", func() bool { return strings.TrimSpace(p.must("session", "list", "--json")) == "[]" })
}
