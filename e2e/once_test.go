package e2e_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestJobsRunOnce stops the all-in-one process for longer than its deadlines and kills it, while jobs start that append a line to a file
// in a folder: each line is there exactly once.
func TestJobsRunOnce(t *testing.T) {
	t.Parallel()
	p := up(t)
	shared := p.onDisk("lines")
	const jobs = 12
	submit := func(round string) {
		for i := range jobs {
			name := fmt.Sprintf("%s-%02d", round, i)
			p.must("session", "create", "python", "--detach", "--name", name, "-r", "mem=128m", "-v", "lines",
				"--batch", "echo "+name+" >> /home/work/lines/all")
		}
	}
	ended := func(round string) {
		t.Helper()
		p.eventually("the jobs of round "+round+" have ended", func() bool {
			n := 0
			for name, s := range p.sessions() {
				if strings.HasPrefix(name, round+"-") && s.Status == "TERMINATED" && s.Result == "SUCCESS" {
					n++
				}
			}
			return n == jobs
		})
		all, err := os.ReadFile(filepath.Join(shared, "all"))
		require.NoError(t, err)
		for i := range jobs {
			name := fmt.Sprintf("%s-%02d", round, i)
			require.Equal(t, 1, strings.Count(string(all), name+"\n"), "lines of job %s in:\n%s", name, all)
		}
	}

	pid := p.pid()
	submit("stopped")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	<-time.After(40 * time.Second) // longer than a placed kernel may show no sign of its agent
	require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
	ended("stopped")

	submit("killed")
	p.kill()
	p.start()
	ended("killed")
	p.clean()
}
